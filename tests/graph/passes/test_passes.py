"""All passes in their order: on parts of known networks, and on graphs at random."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from autosched.graph.graph import Graph
from autosched.graph.passes import PASSES, run_passes
from autosched.graph.verify import verify
from tests.graph.drafts import Draft, checked, operators_of


def all_passes(graph: Graph) -> Graph:
    """Verified after each of them."""
    after, _ = run_passes(graph, lambda name, made, changed, seconds: verify(made))
    return after


def written_norm(d, x, scale, bias):
    middle = d.sub(x, d.reduce_mean(x, axes=(-1,)))
    root = d.sqrt(d.add(d.reduce_mean(d.pow(middle, 2.0), axes=(-1,)), 1e-5))
    return d.add(d.mul(d.div(middle, root), scale), bias)


def written_linear(d, x, w, bias):
    return d.add(d.matmul(x, d.transpose(w, perm=(1, 0))), bias)


def block(d: Draft, x: str, rows: int, width: int, heads: int) -> str:
    """A block of a transformer as exporters write it, with dropout left as `identity`."""
    normed = written_norm(d, x, d.random(width), d.random(width))
    parts = []
    for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        made = d.linear(normed, d.random(width, width), d.random(width))
        split = d.reshape(made, shape=(1, rows, heads, width // heads))
        parts.append(d.transpose(split, perm=perm))
    q, k, v = parts
    weights = d.identity(d.softmax(d.div(d.matmul(q, k), math.sqrt(width / heads)), axis=-1))
    together = d.transpose(d.matmul(weights, v), perm=(0, 2, 1, 3))
    mixed = d.linear(d.reshape(together, shape=(1, rows, width)), d.random(width, width), d.random(width))
    x = d.add(x, d.identity(mixed))
    normed = written_norm(d, x, d.random(width), d.random(width))
    wide = d.linear(normed, d.random(2 * width, width), d.random(2 * width))
    gelu = d.mul(d.mul(wide, 0.5), d.add(d.erf(d.div(wide, math.sqrt(2))), 1.0))
    return d.add(x, d.linear(gelu, d.random(width, 2 * width), d.random(width)))


def test_a_block_of_a_transformer():
    d = Draft()
    after = checked(all_passes, d.graph(block(d, d.input(1, 5, 8), 5, 8, 2)))
    assert Counter(operators_of(after)) == {
        "layer_norm": 2, "linear": 4, "slice": 3, "reshape": 7, "transpose": 4, "attention": 1, "add": 2, "gelu": 1
    }  # fmt: skip


def test_a_block_of_a_convolutional_network():
    d = Draft()
    x = d.input(1, 3, 5, 5)
    y = x
    for last in (False, True):
        y = d.conv(y, d.random(3, 3, 3, 3), pads=((1, 1), (1, 1)))
        statistics = [d.random(3), d.random(3), d.random(3), d.random(3, low=0.5)]
        y = d.batch_norm(y, *statistics, epsilon=1e-5)
        y = d.add(y, x) if last else y
        y = d.mul(y, d.sigmoid(y))
    after = checked(all_passes, d.graph(y))
    assert operators_of(after) == ["conv", "silu", "conv", "add", "silu"]


def test_counts_and_what_is_watched():
    d = Draft()
    x = d.input(2, 3)
    graph = d.graph(d.relu(d.identity(d.add(d.identity(x), d.neg(d.constant([1, 2, 3]))))))
    seen = []
    _, counts = run_passes(graph, lambda name, made, changed, seconds: seen.append((name, changed)))
    assert [name for name, _ in seen] == [step.name for step in PASSES] == list(counts)
    # An `add` that reads another name is another node too.
    assert {name: count for name, count in counts.items() if count} == {"fold_constants": 1, "remove_identities": 4}
    assert {name for name, changed in seen if changed} == {"fold_constants", "remove_identities"}


def test_what_the_environment_asks_for(monkeypatch, capsys):
    d = Draft()
    graph = d.graph(d.relu(d.identity(d.neg(d.input(2)))))
    monkeypatch.setenv("AUTOSCHED_DEBUG", "4")
    run_passes(graph)
    text = capsys.readouterr().err
    assert "network: merge_siblings" in text
    assert text.count("return") == 1  # the graph, after the one pass that changes it


# Graphs at random: what is made so far is read by what comes next, in shapes of 1, 3 and 4.

SHAPES = [(3, 4), (1, 4), (4,), (3, 1), (1, 3, 4), (4, 4)]
UNARY = ["neg", "relu", "sigmoid", "tanh", "erf", "identity"]


def some_node(d: Draft, rng: np.random.Generator, pool: list[str]) -> str | None:
    """One more node that reads values of the pool; None where what was drawn does not fit."""
    x = str(rng.choice(pool))
    shape, kind = d.values[x].shape, int(rng.integers(9))
    if kind == 0:
        return str(d.add_node(str(rng.choice(UNARY)), x))
    if kind == 1:
        other = str(rng.choice([*pool, d.random(*SHAPES[int(rng.integers(len(SHAPES)))])]))
        fits = all(a == b or 1 in (a, b) for a, b in zip(shape[::-1], d.values[other].shape[::-1], strict=False))
        return str(d.add_node(str(rng.choice(["add", "sub", "mul"])), x, other)) if fits else None
    if kind == 2:
        return str(d.add_node(str(rng.choice(["add", "mul", "sub", "pow"])), x, float(rng.choice([0.0, 1.0, 2.0]))))
    if kind == 3:
        return str(d.transpose(x, perm=tuple(int(axis) for axis in rng.permutation(len(shape)))))
    if kind == 4:
        flat = math.prod(shape)
        return str(d.reshape(x, shape=[(flat,), (1, *shape), shape, (flat, 1)][int(rng.integers(4))]))
    if kind == 5 and len(shape) > 1:
        return str(d.linear(x, d.random(4, shape[-1])))
    if kind == 6 and len(shape) > 1:
        return str(d.matmul(x, d.transpose(d.random(4, shape[-1]), perm=(1, 0))))
    if kind == 7:
        return str(d.mul(x, d.sigmoid(x)))
    if kind == 8:
        return str(d.softmax(d.mul(x, 0.5), axis=-1))
    return None


@pytest.mark.parametrize("seed", range(40))
def test_graphs_at_random(seed):
    rng = np.random.default_rng(seed)
    d = Draft()
    pool = [d.input(3, 4), d.input(1, 4), d.input(4, 4)]
    while len(d.nodes) < 16:
        made = some_node(d, rng, pool)
        # Numbers that grow from node to node would leave nothing to compare: tanh keeps them small.
        pool += [str(d.tanh(made)) if rng.random() < 0.3 else made] if made is not None else []
    ends = list(dict.fromkeys([pool[-1], *(str(name) for name in rng.choice(pool, 2))]))
    checked(all_passes, d.graph(*ends))

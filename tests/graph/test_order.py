"""Orders of steps: right ones, with few bytes alive at once."""

from __future__ import annotations

import random

import pytest

from autosched.graph.memory.liveness import KernelRun, analyse_liveness
from autosched.graph.memory.order import order_steps
from autosched.graph.memory.placement import Arena
from tests.graph.layers import NETWORKS


def peak(steps, sizes, numbers):
    return Arena(analyse_liveness([steps[n] for n in numbers], sizes).buffers).bound


def chains(count, *sizes):
    """Branches from one value, each a chain of values of such sizes, that one step joins at the end."""
    steps, nbytes = [KernelRun(("input",), ("x",))], {"x": 64}
    for depth in range(len(sizes)):  # one step of each branch, then the next of each
        for branch in range(count):
            steps.append(KernelRun((f"{branch}.{depth - 1}" if depth else "x",), (f"{branch}.{depth}",)))
            nbytes[f"{branch}.{depth}"] = sizes[depth]
    return [*steps, KernelRun(tuple(f"{branch}.{len(sizes) - 1}" for branch in range(count)), ("y",))], nbytes | {
        "y": 64
    }


def test_a_branch_is_finished_before_the_next_begins():
    steps, sizes = chains(8, 640, 6400, 64)
    assert peak(steps, sizes, range(len(steps))) == 8 * 6400 + 640
    assert peak(steps, sizes, order_steps(steps, sizes)) == 64 + 7 * 64 + 640 + 6400 - 64


def test_what_frees_most_goes_first():
    """Small values are made of all the large ones before another large one is."""
    steps = [KernelRun(("x",), (f"large{n}",)) for n in range(5)] + [
        KernelRun((f"large{n}",), (f"small{n}",)) for n in range(5)
    ]
    sizes = {f"large{n}": 6400 for n in range(5)} | {f"small{n}": 64 for n in range(5)}
    kept = [f"small{n}" for n in range(5)]
    numbers = order_steps(steps, sizes, kept)
    assert numbers == (0, 5, 1, 6, 2, 7, 3, 8, 4, 9)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", range(2))
def test_known_networks_in_any_order_reach_the_bound(name, seed):
    network = NETWORKS[name].make()
    steps = random.Random(seed).sample(network.steps, len(network.steps))
    numbers = order_steps(steps, network.sizes)
    assert sorted(numbers) == list(range(len(steps)))
    written = {"image", "ids"}
    for n in numbers:
        assert written.issuperset(steps[n].reads)
        written.update(steps[n].writes)
    assert peak(steps, network.sizes, numbers) <= peak(network.steps, network.sizes, range(len(steps)))


def test_views_are_waited_for():
    steps = [KernelRun(("view",), ("b",)), KernelRun(("x",), ("a",))]
    assert order_steps(steps, {"a": 64, "b": 64}, aliases={"view": "a"}) == (1, 0)


def test_no_order():
    with pytest.raises(ValueError, match="steps wait for each other"):
        order_steps([KernelRun(("a",), ("b",)), KernelRun(("b",), ("a",))], {"a": 64, "b": 64})


def test_no_steps():
    assert order_steps([], {}) == ()

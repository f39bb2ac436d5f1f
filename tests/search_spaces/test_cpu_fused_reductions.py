"""Reductions that read each other's results, in one nest: inverted bottlenecks and perceptrons."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from autosched import te
from autosched.ir.interpreter.interpret import interpret
from autosched.ir.stmt import ForKind, Scope
from autosched.lower import concretise, lower
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu import sketches
from search_spaces.space import Sketch
from tests.bottlenecks import Sizes, bottleneck, expanded, perceptron, projected, windowed
from tests.codegen.running import check_candidate
from tests.helpers import little_rows

HOST = parse_target("cpu")
SMALL = Sizes(2, 5, 6, 3, 19)


def chains(dag: ComputeDAG, threads: int = 2) -> list[Sketch]:
    return [s for s in sketches(dag, HOST, threads) if s.fuses_reductions]


def check(dag: ComputeDAG) -> None:
    dag = collapse(dag)
    found = chains(dag)
    assert len({s.name for s in found}) == len(found) >= 2  # of each start two
    data = make_inputs(dag, 0, "normal")
    for sketch in found:
        for row in little_rows(sketch, 1, np.random.default_rng(1)):
            check_candidate(dag, sketch, row, data)


@pytest.mark.parametrize(
    "sizes",
    [
        SMALL,
        Sizes(1, 7, 5, 3, 17, stride=2),
        Sizes(2, 5, 1, 17, 8, stride=2),
        Sizes(1, 6, 5, 2, 16, taps=5, stride=3, pad=2),
        Sizes(1, 5, 4, 2, 33, pad=0),
        Sizes(1, 1, 7, 5, 9),
    ],
    ids=str,
)
def test_three_are_exact(sizes: Sizes) -> None:
    check(bottleneck(sizes))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_types(dtype: str) -> None:
    check(bottleneck(SMALL, dtype))


def test_two_are_exact() -> None:
    check(ComputeDAG(windowed(SMALL, expanded(SMALL))).with_weights(("W1", "B1", "W2", "B2")))
    x = te.placeholder((2, 5, 6, 19), name="X")
    check(ComputeDAG(projected(SMALL, windowed(SMALL, x))).with_weights(("W2", "B2", "W3")))


@pytest.mark.parametrize("rows", [1, 7, 13])
def test_products_are_exact(rows: int) -> None:
    if rows == 1:  # nothing is left of a row that could be made twice
        assert not chains(collapse(perceptron(rows, 5, 19)))
    else:
        check(perceptron(rows, 5, 19))


def test_what_lies_between_exists_for_the_rows_of_a_task() -> None:
    dag = collapse(bottleneck(SMALL))
    for sketch in chains(dag):
        stages = {s.name: s for s in sketch.state.stages}
        assert stages["EA"].scope is stages["DA"].scope is Scope.LOCAL
        assert {s.name for s in stages.values() if s.at is None} == {"Z", "W1.pack", "W2.pack", "W3.pack"}
        assert [x.name for x in stages["Z"].loops if x.kind is ForKind.PARALLEL] == ["n", "i.0"]
    sketch = chains(dag)[0]
    row = {p.name: p.domain[0] for p in sketch.params} | {"Z.i.m": 1, "Z.i.b": 3}
    func, _ = concretise(lower(sketch.state), row)
    counts: Counter[str] = Counter()
    interpret(func, make_inputs(dag, 0, "normal"), counts=counts)
    assert counts["EA"] == 2 * (4 + 3) * 6 * 19  # rows 0 to 3 and 2 to 4
    assert counts["DA"] == 2 * 5 * 6 * 19


def test_results_that_others_read_are_stored() -> None:
    """By an output, or by a reader that needs all rows of them."""
    middle = windowed(SMALL, expanded(SMALL))
    assert not chains(collapse(ComputeDAG([projected(SMALL, middle), middle])))
    x, w = te.placeholder((9, 5), name="X"), te.placeholder((5, 24), name="W")
    k, m = te.reduce_axis(5, name="k"), te.reduce_axis(9, name="m")
    h = te.compute((9, 24), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="H")
    v = te.placeholder((9, 7), name="V")
    turned = te.compute((7, 24), lambda i, j: te.sum(v[m, i] * h[m, j], axis=m), name="Y")
    assert not chains(collapse(ComputeDAG(turned)))


def test_a_writer_that_names_its_axes_itself() -> None:
    """The tasks' loops were looked for under the names of the last reduction: no chain was offered, silently."""
    x, w1, w2 = te.placeholder((7, 5), name="X"), te.placeholder((5, 19), name="W1"), te.placeholder((19, 6), name="W2")
    k, m = te.reduce_axis(5, "k"), te.reduce_axis(19, "m")
    hidden = te.compute((7, 19), lambda i, j: te.sum(x[i, k] * w1[k, j], axis=k), name="H")
    y = te.compute((7, 6), lambda i, j: te.sum(hidden[i, m] * w2[m, j], axis=m), name="Y")
    z = te.compute((7, 6), lambda row, column: te.maximum(y[row, column], 0.0), name="Z")
    check(ComputeDAG(z).with_weights(("W1", "W2")))

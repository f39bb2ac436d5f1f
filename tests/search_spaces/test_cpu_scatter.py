"""A scatter takes one step for each element, not one for each element and each place that it might go to."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from autosched import te
from autosched.ir.conditions import conjuncts
from autosched.ir.expr import const
from autosched.ir.stmt import For, ForKind, If, walk
from autosched.lower import concretise, lower
from autosched.target import parse_target
from autosched.te import ComputeDAG, Tensor
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.model import CostModel
from search_spaces.cpu import sketches
from tests.codegen.running import build, check_outputs, run, targets_in_turn
from tests.helpers import check_nest, little_rows

HASWELL = parse_target("llvm -mcpu=haswell")


def histogram(n: int = 77, bins: int = 256, dtype: str = "uint8") -> Tensor:
    a, k = te.placeholder((n,), dtype, "A"), te.reduce_axis(n, "k")
    return te.compute((bins,), lambda b: te.sum(te.cast(te.equal(te.cast(a[k], "int32"), b), "int32"), axis=k), "H")


def segments(
    n: int = 23, places: int = 13, width: int = 19, dtype: str = "float32", reducer: str = "sum", none: float = 0
) -> Tensor:
    """Numbers beyond the places belong nowhere."""
    x, ids = te.placeholder((n, width), dtype, "X"), te.placeholder((n,), "int64", "ids")
    k, combine = te.reduce_axis(n, "k"), getattr(te, reducer)
    return te.compute(
        (places, width),
        lambda s, d: combine(te.select(te.equal(s - 1, ids[k]), x[k, d], te.const(none, dtype)), axis=k),
        "S",
    )


def rows_of_histograms(rows: int = 5, n: int = 31, bins: int = 70) -> Tensor:
    a, k = te.placeholder((rows, n), "int32", "A"), te.reduce_axis(n, "k")
    return te.compute((rows, bins), lambda i, b: te.sum(te.select(te.equal(a[i, k] & 127, b), 1, 0), axis=k), "H")


def confusion(n: int = 41, classes: int = 11) -> Tensor:
    a, b = te.placeholder((n,), "uint8", "A"), te.placeholder((n,), "int32", "B")
    k = te.reduce_axis(n, "k")
    return te.compute(
        (classes, classes + 1),
        lambda i, j: te.sum(te.select(te.equal(a[k] & 15, i) & te.equal(b[k], j), 1.0, 0.0), axis=k),
        "C",
    )


def mean_of_segments() -> Tensor:
    """What follows; the sums go along columns."""
    x, ids = te.placeholder((17, 9, 3), name="X"), te.placeholder((9,), "int32", "ids")
    k, j = te.reduce_axis(9, "k"), te.reduce_axis(3, "j")
    total = te.compute(
        (17, 90), lambda d, s: te.sum(te.select(te.equal(ids[k] & 63, s), x[d, k, j], 0.0), axis=(k, j)), "total"
    )
    return te.compute((17, 90), lambda d, s: total[d, s] / 3.0, "mean")


CASES: dict[str, Callable[[], Tensor]] = {
    "histogram": histogram,
    "histogram-2": lambda: histogram(2, 65, "int32"),
    "segments": segments,
    "segments-1": lambda: segments(3, 67, 1),
    "segments-f64": lambda: segments(7, 33, 8, "float64", "prod", 1),
    "segments-max": lambda: segments(reducer="max", none=-math.inf),
    "rows": rows_of_histograms,
    "confusion": confusion,
    "mean": mean_of_segments,
}


@pytest.mark.parametrize("number", range(len(CASES)), ids=list(CASES))
def test_data_say_where_an_element_belongs(number: int) -> None:
    dag = collapse(ComputeDAG(list(CASES.values())[number]()))
    for target in targets_in_turn(0, number, 1):
        for threads in (1, 2):
            (sketch,) = sketches(dag, target, threads)
            assert ":arrivals" in sketch.name
            for row in little_rows(sketch, 2, np.random.default_rng(number)):
                func = concretise(lower(sketch.state), row)[0]
                over = next(s for s in walk(func.body) if isinstance(s, For) and s.reduce)
                assert len({s.var for s in walk(over.body) if isinstance(s, For) and not s.reduce}) <= 2  # along a row
                check_nest(func, dag)
                for kind in ("normal", "integers"):
                    data = make_inputs(dag, number, kind)
                    check_outputs(dag, data, run(build(sketch.state, target, threads, row), dag, data, target), kind)


@pytest.mark.parametrize(
    "made",
    [
        lambda: histogram(n=3407, bins=70),
        lambda: histogram(n=3203, bins=65, dtype="int32"),
        lambda: segments(n=3001, places=13, width=5),
        lambda: segments(n=2200, places=9, width=7, reducer="max", none=-math.inf),
        lambda: confusion(n=7001),
    ],
)
def test_threads_have_copies_of_small_results(made: Callable[[], Tensor]) -> None:
    dag = collapse(ComputeDAG(made()))
    split, whole = sketches(dag, parse_target("cpu"), 3)[-2:]
    assert "split-k" in split.name
    assert "in-turn" not in split.name
    assert "split-k" not in whole.name
    data = make_inputs(dag, 3, "integers")
    for row in little_rows(split, 2, np.random.default_rng(3)):
        target = parse_target("cpu")
        check_outputs(dag, data, run(build(split.state, target, 3, row), dag, data, target), "integers")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "made",
    [
        lambda: histogram(n=27005, bins=67),
        lambda: histogram(n=12803, bins=33, dtype="int32"),
        lambda: segments(n=5003, places=13, width=5),
        lambda: segments(n=1801, places=9, width=19, reducer="max", none=-math.inf),
        lambda: rows_of_histograms(rows=3, n=4799, bins=70),
    ],
)
def test_elements_go_to_several_copies_in_turn(made: Callable[[], Tensor], threads: int) -> None:
    dag, target = collapse(ComputeDAG(made())), parse_target("cpu")
    found = [s for s in sketches(dag, target, threads) if "in-turn" in s.name]
    assert len(found) == 1
    for row in little_rows(found[0], 2, np.random.default_rng(3)):
        func = concretise(lower(found[0].state), row)[0]
        unrolled = [s.bound for s in walk(func.body) if isinstance(s, For) and s.kind is ForKind.UNROLL]
        assert unrolled[0] in (const(4), const(8))
        check_nest(func, dag)
        for kind in ("integers", "normal"):
            data = make_inputs(dag, 3, kind)
            check_outputs(dag, data, run(build(found[0].state, target, threads, row), dag, data, target), kind)


@pytest.mark.parametrize("threads", [1, 2])
def test_several_copies_are_chosen_where_they_pay(threads: int) -> None:
    """A chain of stores of one place is assumed; with few elements, filling copies takes longer."""
    target = parse_target("llvm -mcpu=znver4")
    for n, pays in ((1 << 20, True), (3 << 14, True), (2000, False)):
        found = sketches(collapse(ComputeDAG(histogram(n, 256))), target, threads)
        model = CostModel(
            [lower(s.state) for s in found], [tuple(p.name for p in s.params) for s in found], target, threads
        )
        seconds = [
            float(model.analytic_latency(i, np.array([[p.domain[-1] for p in s.params]], np.int64))[0])
            for i, s in enumerate(found)
        ]
        best = found[int(np.argmin(seconds))]
        assert ("in-turn" in best.name) == pays, dict(zip([s.name for s in found], seconds, strict=True))


@pytest.mark.parametrize(("dtype", "bins", "tests"), [("uint8", 256, 0), ("uint8", 255, 1), ("int8", 256, 1)])
def test_indices_are_compared_only_with_the_bounds_that_their_type_exceeds(dtype: str, bins: int, tests: int) -> None:
    (sketch,) = sketches(collapse(ComputeDAG(histogram(2000, bins, dtype))), HASWELL, 1)
    func = concretise(lower(sketch.state), {})[0]
    assert sum(len(list(conjuncts(s.cond))) for s in walk(func.body) if isinstance(s, If)) == tests


def test_copies_are_refused_where_they_are_as_large_as_what_arrives() -> None:
    (sketch,) = sketches(collapse(ComputeDAG(histogram(n=2000, bins=256))), HASWELL, 2)
    assert "split-k" not in sketch.name


@pytest.mark.parametrize(
    "made",
    [
        lambda: histogram(bins=32),  # as soon compared with in vectors
        lambda: segments(places=8),
        lambda: segments(reducer="sum", none=1),  # elements of other segments count as well
    ],
)
def test_what_is_compared_as_before(made: Callable[[], Tensor]) -> None:
    assert all(":arrivals" not in s.name for s in sketches(collapse(ComputeDAG(made())), HASWELL, 1))


def test_the_draft_counts_a_step_for_each_element() -> None:
    """And not one for each of twenty times as many places."""
    seconds = []
    for places in (20, 400):
        sketch = sketches(collapse(ComputeDAG(segments(4000, places, 64))), HASWELL, 1)[-1]
        model = CostModel([lower(sketch.state)], [tuple(p.name for p in sketch.params)], HASWELL, 1)
        seconds.append(float(model.analytic_latency(0, np.array([[p.domain[-1] for p in sketch.params]]))[0]))
    assert seconds[1] < 2 * seconds[0]


def test_operations_are_those_of_the_elements() -> None:
    assert ComputeDAG(histogram(1000, 256)).flops == 2 * 1000  # a comparison and an addition
    assert ComputeDAG(segments(100, 40, 8)).flops == 2 * 100 * 8

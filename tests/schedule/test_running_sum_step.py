"""The step RunningSum, and where the CPU's space takes it: sums of integers that follow from their neighbours."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.lower import lower
from autosched.schedule import RunningSum, Split, initial_state, running_window
from autosched.target import parse_target
from autosched.te import ComputeDAG, Tensor
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.model import CostModel
from search_spaces import cpu
from search_spaces.space import Sketch, sample
from tests.codegen.running import check_candidate, check_kernel
from tests.helpers import little_rows

ZEN4 = parse_target("llvm -mcpu=znver4")


def columns(k: int, rows: int, width: int = 7, dtype: str = "uint8", result: str = "int32") -> Tensor:
    x, p = te.placeholder((rows + k - 1, width), dtype, "X"), te.reduce_axis(k, "p")
    return te.compute((rows, width), lambda i, j: te.sum(te.cast(x[i + p, j], result), axis=p), "S")


def squares_in_padding(k: int = 9) -> Tensor:
    """Along the middle axis, the borders padded with zeros."""
    x, p = te.placeholder((2, 13, 5), "int8", "X"), te.reduce_axis(k, "p")

    def element(b, i, j):
        value = te.cast(x[b, i, j], "int32")
        return te.select(te.all(i >= 0, i < 13), value * value, 0)

    return te.compute((2, 13, 5), lambda b, i, j: te.sum(element(b, i + p - k // 2, j), axis=p), "S")


def mean(k: int = 11) -> Tensor:
    total = columns(k, 17)
    return te.compute(total.shape, lambda i, j: te.cast(total[i, j], "float32") / k, "mean")


def running(dag: ComputeDAG) -> list[Sketch]:
    return [s for s in cpu.sketches(dag, ZEN4, 2) if any(isinstance(x, RunningSum) for x in s.state.steps)]


@pytest.mark.parametrize(
    "made",
    [
        lambda: columns(8, 9),
        lambda: columns(9, 19, 33, "int32"),
        lambda: columns(13, 29, 5),  # a window of windows
        lambda: columns(31, 37, 6, "uint16"),  # ... and elements beside these
        lambda: columns(9, 23, 5, "uint8", "uint8"),  # numbers wrap around
        lambda: columns(64, 67, 1),
        squares_in_padding,
        mean,
    ],
)
def test_running_sums_compute_the_reference(made: Callable[[], Tensor]) -> None:
    dag, rng = collapse(ComputeDAG(made())), np.random.default_rng(0)
    found = running(dag)
    assert found or made().shape[-1] == 1  # no other axis to have lanes along
    for sketch in found:
        for row in little_rows(sketch, 2, rng, 128):
            for kind in ("integers", "normal"):
                check_candidate(dag, sketch, row, make_inputs(dag, 1, kind))


@pytest.mark.parametrize(("k", "rows"), [(2, 3), (5, 1), (7, 2)])
def test_any_axis_and_any_length(k: int, rows: int) -> None:
    x, p = te.placeholder((3, rows + k - 1), "int32", "X"), te.reduce_axis(k, "p")
    dag = ComputeDAG(te.compute((3, rows), lambda i, j: te.sum(x[i, j + p], axis=p), "S"))
    check_kernel(dag, initial_state(dag).apply(RunningSum("S", "j")), threads=(1,))


def test_stages_of_shorter_windows_are_dropped_unless_read() -> None:
    dag = collapse(ComputeDAG(columns(31, 37)))
    assert len(dag.stages) > 1
    assert [s.name for s in initial_state(dag).apply(RunningSum("S", "i")).stages] == ["S"]
    short = columns(3, 20)
    p = te.reduce_axis(4, "q")
    long = te.compute((11, 7), lambda i, j: te.sum(short[i + 3 * p, j], axis=p), "L")
    other = te.compute((20, 7), lambda i, j: short[i, j] * 2, "O")
    both = ComputeDAG([long, other])
    state = initial_state(both).apply(RunningSum("L", "i"))
    assert [s.name for s in state.stages] == ["S", "L", "O"]
    check_kernel(both, state, threads=(1,))


def test_what_is_no_window_of_integers() -> None:
    x, p, q = te.placeholder((40, 9), "int32", "X"), te.reduce_axis(4, "p"), te.reduce_axis(3, "q")

    def found(*outputs: Tensor, stage: str = "S") -> bool:
        state = initial_state(ComputeDAG(list(outputs)))
        return running_window(state, state.stage(stage), "i") is not None

    def sums(fn) -> Tensor:
        return te.compute((9, 5), fn, "S")

    assert found(sums(lambda i, j: te.sum(x[i + p, j], axis=p)))
    assert not found(columns(9, 5, dtype="float32", result="float32"))
    assert not found(sums(lambda i, j: te.max(x[i + p, j], axis=p)))
    assert not found(sums(lambda i, j: te.sum(x[2 * i + p, j], axis=p))), "two new elements each time"
    assert not found(sums(lambda i, j: te.sum(x[i + 2 * p, j], axis=p))), "elements with gaps"
    assert not found(sums(lambda i, j: te.sum(x[i + p, j] * te.cast(p, "int32"), axis=p))), "weights"
    assert not found(sums(lambda i, j: te.sum(x[p, j], axis=p))), "the same elements each time"
    assert not found(sums(lambda i, j: te.sum(x[i + p, j + q], axis=(p, q)))), "three new elements"
    largest = te.compute((30, 9), lambda i, j: te.max(x[i + q, j], axis=q), "M")
    assert not found(sums(lambda i, j: te.sum(largest[i + 3 * p, j], axis=p))), "parts that are no sums"
    assert not found(sums(lambda i, j: te.sum(largest[i + 3 * p, j], axis=p) + 0)), "nor beside others"
    whole = te.compute((9, 5), lambda i, j: largest[3 * i, j] + x[i, j] + x[i + 1, j], "S")
    assert not found(whole), "a part that is no sum is not left out"


def test_refusals() -> None:
    state = initial_state(ComputeDAG(columns(9, 11)))
    with pytest.raises(ScheduleError, match="no sum of integers over neighbours along this axis"):
        state.apply(RunningSum("S", "j"))
    with pytest.raises(ScheduleError, match="has no axis 'z'"):
        state.apply(RunningSum("S", "z"))
    with pytest.raises(ScheduleError, match="before any other change"):
        state.apply(Split("S", "j", (2,)), RunningSum("S", "i"))
    with pytest.raises(ScheduleError, match="no sum of integers"):
        state.apply(RunningSum("S", "i"), RunningSum("S", "i"))


@pytest.mark.parametrize(("k", "dtype", "taken"), [(3, "uint8", False), (31, "float32", False), (31, "int32", True)])
def test_long_windows_of_integers_are_running_sums(k: int, dtype: str, taken: bool) -> None:
    result = dtype if dtype == "float32" else "int32"
    assert bool(running(collapse(ComputeDAG(columns(k, 64, 64, dtype, result))))) == taken


def test_the_draft_prefers_running_sums_of_long_windows() -> None:
    """What it predicts for them, here for an image that no cache holds, does not grow with the window."""
    seconds: dict[tuple[int, bool], float] = {}
    for k in (15, 63):
        found = cpu.sketches(collapse(ComputeDAG(columns(k, 3072, 5120, "int32"))), ZEN4, 2)
        model = CostModel([lower(s.state) for s in found], [tuple(p.name for p in s.params) for s in found], ZEN4, 2)
        for n, sketch in enumerate(found):
            rows = model.legal_rows(n, sample(sketch, 256, np.random.default_rng(0)))
            key = k, any(isinstance(x, RunningSum) for x in sketch.state.steps)
            seconds[key] = min([seconds.get(key, inf), *model.analytic_latency(n, rows).tolist()])
    assert seconds[63, True] < seconds[63, False]
    assert seconds[63, True] < 1.1 * seconds[15, True]

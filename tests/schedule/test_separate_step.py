"""The step Separate, and where the CPU's space takes it: windows whose rows serve several outputs."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.lower import lower
from autosched.schedule import Separate, Split, initial_state, window_axes
from autosched.target import parse_target
from autosched.te import ComputeDAG, Tensor
from autosched.te.operators.registry import build
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.model import CostModel
from search_spaces import cpu
from search_spaces.space import Sketch, sample
from tests.codegen.running import check_candidate, check_kernel
from tests.helpers import little_rows

HASWELL = parse_target("llvm -mcpu=haswell")


def pool(name: str, *shape: int, layout: str = "NHWC", dtype: str = "float32") -> ComputeDAG:
    return collapse(build(name, shape, {"layout": layout}, dtype=dtype)[0])


def sums(depth: int, height: int, width: int, k: int) -> Tensor:
    """Sums of squares in boxes of k^3."""
    x = te.placeholder((depth, height, width, 9), name="X")
    r = [te.reduce_axis(k, name=f"r{n}") for n in range(3)]

    def at(d, h, w, c):
        element = x[d + r[0], h + r[1], w + r[2], c]
        return te.sum(element * element, axis=r)

    return te.compute((depth - k + 1, height - k + 1, width - k + 1, 9), at, name="S")


def in_parts(dag: ComputeDAG) -> list[Sketch]:
    return [s for s in cpu.sketches(dag, HASWELL, 2) if any(isinstance(x, Separate) for x in s.state.steps)]


@pytest.mark.parametrize(
    "dag",
    [
        pool("max_pool2d", 1, 9, 7, 19, 5, 1, 2),
        pool("max_pool2d", 2, 7, 11, 3, 3, 1, 1, layout="NCHW"),
        pool("max_pool2d", 1, 11, 12, 33, 5, 2, 0, dtype="int8"),
        pool("avg_pool2d", 1, 8, 9, 17, 4, 1, 1),
        pool("avg_pool2d", 1, 10, 17, 2, 5, 2, 2, layout="NCHW", dtype="float16"),
        collapse(ComputeDAG(sums(5, 7, 6, 3))),
    ],
)
def test_windows_in_parts_compute_the_reference(dag: ComputeDAG) -> None:
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(0)
    found = in_parts(dag)
    assert found
    for sketch in found[::3]:
        (row,) = little_rows(sketch, 1, rng, 128)
        check_candidate(dag, sketch, row, inputs)


@pytest.mark.parametrize("axis", ["r0", "r1", "r2"])
def test_any_axis_of_a_window_may_stay(axis: str) -> None:
    dag = ComputeDAG(sums(4, 6, 5, 3))
    state = initial_state(dag).apply(Separate("S", axis))
    part, rest = state.stage("S.part"), state.stage("S")
    assert [a.name for a in rest.op.reduce_axes] == [axis]
    assert axis not in [a.name for a in part.op.reduce_axes]
    check_kernel(dag, state, threads=(1,))


@pytest.mark.parametrize(
    ("dag", "taken"),
    [
        (pool("max_pool2d", 1, 9, 9, 16, 3, 1, 1), True),
        (pool("max_pool2d", 1, 9, 9, 16, 3, 2, 1), False),  # 6 operations of 8
        (pool("max_pool2d", 1, 9, 9, 16, 5, 2, 1), True),
        (pool("avg_pool2d", 1, 9, 9, 16, 2, 2, 0), False),  # nothing is shared
        (pool("conv2d", 1, 9, 9, 16, 16, 3, 1, 1), False),  # weights differ from tap to tap
        (pool("global_avg_pool2d", 1, 9, 9, 16), False),
    ],
)
def test_windows_are_in_parts_where_that_halves_the_operations(dag: ComputeDAG, taken: bool) -> None:
    found = in_parts(dag)
    assert bool(found) == taken
    for sketch in found:
        (step,) = (x for x in sketch.state.steps if isinstance(x, Separate))
        assert sketch.state.stage(f"{step.stage}.part").at is not None, "a task's rows stay in its cache"


def test_the_draft_prefers_large_windows_in_parts() -> None:
    found = cpu.sketches(pool("max_pool2d", 1, 13, 13, 512, 9, 1, 4), HASWELL, 1)
    model = CostModel([lower(s.state) for s in found], [tuple(p.name for p in s.params) for s in found], HASWELL, 1)
    best: dict[bool, float] = {}
    for n, sketch in enumerate(found):
        rows = model.legal_rows(n, sample(sketch, 256, np.random.default_rng(0)))
        parts = any(isinstance(x, Separate) for x in sketch.state.steps)
        best[parts] = min([best.get(parts, inf), *model.analytic_latency(n, rows).tolist()])
    assert best[True] < 0.7 * best[False]


def test_what_is_no_window() -> None:
    x, (r, q) = te.placeholder((9, 9), name="X"), (te.reduce_axis(3, name=n) for n in "rq")

    def axes(fn) -> set[str]:
        return set(window_axes(initial_state(ComputeDAG(te.compute((3, 7), fn, name="S"))).stage("S").op))

    assert axes(lambda i, j: te.max(x[2 * i + r, j + q], axis=[r, q])) == {"r", "q"}
    assert axes(lambda i, j: te.max(x[3 * i + r, j + q], axis=[r, q])) == {"q"}, "no row serves two outputs"
    assert axes(lambda i, j: te.max(x[i + 3 * r, j + q], axis=[r, q])) == {"q"}, "rows with gaps"
    assert axes(lambda i, j: te.max(x[i + r, j + q] * r, axis=[r, q])) == {"q"}
    assert axes(lambda i, j: te.max(x[i + r, j + q] * x[r, j + q], axis=[r, q])) == {"q"}
    assert axes(lambda i, j: te.max(x[i + r, j], axis=r)) == set(), "nothing is left for a part"


def test_refusals() -> None:
    state = initial_state(ComputeDAG(sums(4, 6, 5, 3)))
    with pytest.raises(ScheduleError, match="no outputs share"):
        state.apply(Separate("S", "d"))
    taken = te.compute((4, 6, 5, 9), lambda *i: te.placeholder((4, 6, 5, 9), name="Y")[i] + 1.0, name="S.part")
    with pytest.raises(ScheduleError, match=r"S\.part exists already"):
        initial_state(ComputeDAG([sums(4, 6, 5, 3), taken])).apply(Separate("S", "r0"))
    with pytest.raises(ScheduleError, match="before any other change"):
        state.apply(Split("S", "d", (2,)), Separate("S", "r0"))

"""The steps for GPUs: what they refuse, in the words of their errors, and their way through JSON."""

from __future__ import annotations

import json

import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.ir.printer import func_text
from autosched.ir.stmt import BLOCKS, THREADS, ForKind, Scope
from autosched.lower import concretise, lower
from autosched.schedule import (
    AcrossLanes,
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Cooperate,
    CrossThread,
    Fuse,
    Parallel,
    Reorder,
    Rfactor,
    Split,
    State,
    Unroll,
    initial_state,
    replay,
    steps_from_json,
    steps_to_json,
)


def matmul(m: int = 16, n: int = 16, k: int = 8) -> te.ComputeDAG:
    A, B = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    axis = te.reduce_axis(k, name="k")
    return te.ComputeDAG(te.compute((m, n), lambda i, j: te.sum(A[i, axis] * B[axis, j], axis=axis), name="C"))


def split() -> State:
    """C in blocks i.0, j.0 and threads i.1, j.1, nothing bound yet."""
    state = initial_state(matmul())
    return state.apply(Split("C", "i", (4,)), Split("C", "j", (4,)), Reorder("C", ("i.0", "j.0", "i.1", "j.1")))


def bound() -> State:
    return split().apply(
        Bind("C", "i.0", "blockIdx.y"),
        Bind("C", "j.0", "blockIdx.x"),
        Bind("C", "i.1", "threadIdx.y"),
        Bind("C", "j.1", "threadIdx.x"),
    )


def cached() -> State:
    """The whole of what a tiled matmul has: accumulators in registers, both inputs in shared memory."""
    return (
        initial_state(matmul())
        .apply(CacheWrite("C"), CacheRead("A", "C.acc", "shared"), CacheRead("B", "C.acc", "shared"))
        .apply(Split("C", "i", ("iv", "it", "is")), Split("C", "j", ("jt",)))
        .apply(Reorder("C", ("i.0", "j.0", "i.2", "j.1", "i.1", "i.3")))
        .apply(Bind("C", "i.0", "blockIdx.y"), Bind("C", "j.0", "blockIdx.x"))
        .apply(Bind("C", "i.2", "threadIdx.y"), Bind("C", "j.1", "threadIdx.x"))
        .apply(ComputeAt("C.acc", "C", "j.1", "register"), Split("C.acc", "k", ("k1",)))
        .apply(Reorder("C.acc", ("k.0", "k.1", "i", "j")), Unroll("C.acc", "k.1"), Unroll("C.acc", "i"))
        .apply(ComputeAt("A.shared", "C.acc", "k.0", "shared"), Cooperate("A.shared", "va"))
        .apply(ComputeAt("B.shared", "C.acc", "k.0", "shared"), Cooperate("B.shared", 1))
    )


VALUES = {"iv": 2, "it": 2, "is": 2, "jt": 4, "k1": 4, "va": 2}


def softmax() -> State:
    X = te.placeholder((8, 16), name="X")
    k, m = te.reduce_axis(16, name="k"), te.reduce_axis(16, name="m")
    top = te.compute((8,), lambda i: te.max(X[i, k], axis=k), name="top")
    total = te.compute((8,), lambda i: te.sum(te.exp(X[i, m] - top[i]), axis=m), name="total")
    return initial_state(te.ComputeDAG(te.compute((8, 16), lambda i, j: te.exp(X[i, j] - top[i]) / total[i], name="Y")))


def rows() -> State:
    """A softmax whose rows belong to blocks."""
    return softmax().apply(Split("Y", "j", (4,)), Bind("Y", "i", "blockIdx.x"))


def refused(state: State, step: object, text: str) -> None:
    with pytest.raises(ScheduleError, match=text):
        state.apply(step)  # type: ignore[arg-type]


# Bind


def test_bind_marks_the_loops() -> None:
    kinds = [loop.kind for loop in bound().stage("C").loops]
    assert kinds == [ForKind.BLOCK_Y, ForKind.BLOCK_X, ForKind.THREAD_Y, ForKind.THREAD_X, ForKind.SERIAL]
    assert bound().on_gpu(bound().stage("C"))
    assert not split().on_gpu(split().stage("C"))


@pytest.mark.parametrize("index", [kind.value for kind in (*BLOCKS, *THREADS)])
def test_every_index_can_be_bound(index: str) -> None:
    assert split().apply(Bind("C", "i.0", index)).stage("C").loop("i.0").kind.value == index


def test_what_bind_refuses() -> None:
    state = split()
    refused(state, Bind("C", "i.0", "blockIdx.w"), r"bind\(C, i.0, blockIdx.w\): the index must be one of blockIdx.x,")
    refused(state, Bind("C", "i.0", "serial"), "the index must be one of")
    refused(state, Bind("D", "i.0", "blockIdx.x"), "no stage 'D'; its stages are C")
    refused(state, Bind("C", "i", "blockIdx.x"), "C has no loop 'i'; its loops are i.0, j.0, i.1, j.1, k")
    refused(state, Bind("C", "k", "threadIdx.x"), "a reduction loop cannot be bound; rfactor it first")
    refused(bound(), Bind("C", "i.0", "blockIdx.z"), "the loop is blockIdx.y already")
    refused(state.apply(Unroll("C", "i.0")), Bind("C", "i.0", "blockIdx.x"), "the loop is unroll already")
    one = state.apply(Bind("C", "i.0", "blockIdx.x"))
    refused(one, Bind("C", "j.0", "blockIdx.x"), "another loop is bound to it")


def test_block_loops_come_first_then_thread_loops() -> None:
    text = "block loops must be outermost, then thread loops, then the others"
    state = split()
    refused(state, Bind("C", "j.0", "blockIdx.x"), text)
    refused(state, Bind("C", "i.1", "threadIdx.x"), text)
    refused(state.apply(Bind("C", "i.0", "threadIdx.x")), Bind("C", "j.0", "blockIdx.x"), text)
    refused(state.apply(Parallel("C", ("i.0",))), Bind("C", "j.0", "blockIdx.x"), text)


def test_only_the_root_is_bound() -> None:
    state = initial_state(matmul()).apply(CacheWrite("C"), ComputeAt("C.acc", "C", "i"))
    refused(state, Bind("C.acc", "i", "threadIdx.x"), "only a stage at the root can be bound")


def test_a_bound_loop_is_not_changed_again() -> None:
    state = bound()
    refused(state, Reorder("C", ("i.1", "i.0")), "block loops must be outermost|reorder before")
    refused(state, Reorder("C", ("k", "j.1")), "block loops must be outermost|reorder before")
    refused(state, Fuse("C", ("i.0", "j.0")), "fuse before annotating")
    refused(state, Unroll("C", "j.1"), "the loop is threadIdx.x already")
    refused(state, Parallel("C", ("i.0",)), "the loop is blockIdx.y already")
    refused(initial_state(matmul()).apply(Bind("C", "i", "blockIdx.x")), Split("C", "i", (2,)), "split it before")


def test_nothing_is_computed_between_bound_loops() -> None:
    """Threads and blocks are one index space: a stage goes inside the innermost bound loop or to the root."""
    plain = initial_state(matmul()).apply(CacheRead("A", "C", "shared"))
    state = plain.apply(Bind("C", "i", "blockIdx.x"), Bind("C", "j", "threadIdx.x"))
    refused(state, ComputeAt("A.shared", "C", "i", "shared"), "between the bound loops of C|inside")
    inside = plain.apply(ComputeAt("A.shared", "C", "i", "shared"), Bind("C", "i", "blockIdx.x"))
    refused(inside, Bind("C", "j", "threadIdx.x"), "between the bound loops of C|inside")


# Shared memory


def test_what_cooperate_refuses() -> None:
    state = bound()
    refused(state, Cooperate("C", 1), "compute the stage at a loop with scope 'shared' first")
    with_copy = state.apply(CacheRead("A", "C", "shared"))
    refused(with_copy, Cooperate("A.shared", 1), r"cooperate\(A.shared\): compute the stage at a loop with scope")
    placed = with_copy.apply(ComputeAt("A.shared", "C", "k", "shared"))
    for vector in (0, -1, True, 1.5, 1 << 41):
        refused(placed, Cooperate("A.shared", vector), r"factor .* is not an integer from 1 to")  # type: ignore[arg-type]
    tiled = with_copy.apply(Split("A.shared", "d0", (2,)), ComputeAt("A.shared", "C", "k", "shared"))
    refused(tiled, Cooperate("A.shared", 1), "only a copy with its loops as written")
    reduced = rows().apply(ComputeAt("total", "Y", "i", "shared"))
    refused(reduced, Cooperate("total", 1), "only a copy")
    assert placed.apply(Cooperate("A.shared", 2)).stage("A.shared").cooperate == 2


def test_what_compute_at_refuses_of_shared_memory() -> None:
    state = bound().apply(CacheRead("A", "C", "shared"))
    refused(
        state, ComputeAt("A.shared", "C", "k", "far"), "scope must be one of local, register, shared, warp, got 'far'"
    )
    refused(state, ComputeAt("A.shared", "C", "i", "shared"), "C has no loop 'i'")
    refused(state, ComputeAt("C", "C", "k", "shared"), "cannot be computed inside itself")
    refused(state, ComputeAt("C", "A.shared", "d0", "shared"), "C is an output; cache_write it first")
    assert state.apply(ComputeAt("A.shared", "C", "k", "shared")).stage("A.shared").scope is Scope.SHARED


@pytest.mark.parametrize("annotate", [Cooperate("A.shared", 1), CrossThread("total", "m")], ids=["cooperate", "cross"])
def test_a_stage_that_threads_share_keeps_its_loops(annotate: Cooperate | CrossThread) -> None:
    """The threads replace the stage's own loops, so nothing can be done to those any more."""
    if isinstance(annotate, Cooperate):
        state = bound().apply(CacheRead("A", "C", "shared"), ComputeAt("A.shared", "C", "k", "shared"), annotate)
        refused(state, Split("A.shared", "d0", (2,)), "threads of the block share|split")
        refused(state.apply(CacheRead("A", "A.shared")), ComputeAt("A.cache", "A.shared", "d0"), "threads of the block")
    else:
        state = rows().apply(ComputeAt("total", "Y", "i", "register"), annotate)
        refused(state, Split("total", "m", (2,)), "threads of the block share|split")
        refused(state.apply(CacheRead("X", "total")), ComputeAt("X.cache", "total", "m"), "threads of the block")


# Reductions shared by threads


def test_what_cross_thread_refuses() -> None:
    state = rows()
    refused(state, CrossThread("total", "i"), r"cross_thread\(total, i\): it is not a reduction axis")
    refused(state, CrossThread("total", "x"), "total has no axis 'x'; its axes are i, m")
    refused(state, CrossThread("total", "m"), "compute the stage inside bound loops first")
    on_cpu = softmax().apply(ComputeAt("total", "Y", "i"))
    refused(on_cpu, CrossThread("total", "m"), "compute the stage inside bound loops first")
    tiled = state.apply(Split("total", "m", (4,)), ComputeAt("total", "Y", "i", "register"))
    refused(tiled, CrossThread("total", "m"), "do it before splitting the stage")
    assert state.apply(ComputeAt("total", "Y", "i", "register"), CrossThread("total", "m")).stage("total").cross == "m"


# Records


def test_steps_go_through_json_and_back() -> None:
    state = cached()
    text = steps_to_json(state, VALUES)
    assert json.loads(text)[6] == ["Bind", "C", "i.0", "blockIdx.y"]
    assert ["Cooperate", "A.shared", 2] in json.loads(text)
    again = replay(matmul(), text)
    assert steps_to_json(again, {}) == text
    assert [s.name for s in again.stages] == [s.name for s in state.stages]
    assert again.stage("A.shared").cooperate == 2
    assert again.stage("C").loops == state.stage("C").loops


def test_every_step_for_gpus_goes_through_json() -> None:
    steps = (Bind("C", "i", "threadIdx.z"), Cooperate("A.shared", 4), CrossThread("C", "k"), Rfactor("C", "k", 4))
    state = State((), (), (), steps)
    assert steps_from_json(steps_to_json(state, {})) == steps


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (["Bind", "C", "i"], "the stored step Bind has 2 fields, expected 3"),
        (["Bind", "C", "i", 3], "the stored step Bind holds 3 where str is expected"),
        (["Cooperate", "A.shared", "va"], "the stored step Cooperate holds 'va' where int is expected"),
        (["Cooperate", "A.shared", True], "the stored step Cooperate holds True where int is expected"),
        (["CrossThread", "C", ["k"]], r"the stored step CrossThread holds \['k'\] where str is expected"),
    ],
)
def test_stored_steps_that_are_no_steps(row: list[object], text: str) -> None:
    with pytest.raises(ScheduleError, match=text):
        steps_from_json(json.dumps([row]))


def rows_in_lanes(lanes: int | str = 4) -> State:
    """Sums of rows: a block for each row, and threads that are still loops."""
    A, k = te.placeholder((6, 40), name="A"), te.reduce_axis(40, name="k")
    state = initial_state(te.ComputeDAG(te.compute((6,), lambda i: te.sum(A[i, k], axis=k), name="R")))
    return state.apply(
        Split("R", "k", (lanes, 2)),
        Reorder("R", ("i", "k.1", "k.0", "k.2")),
        Bind("R", "i", "blockIdx.x"),
        Unroll("R", "k.0"),
        Unroll("R", "k.2"),
    )


def test_lanes_share_a_reduction() -> None:
    state = rows_in_lanes().apply(AcrossLanes("R", "k.1"))
    assert state.stage("R").is_across_lanes
    text = func_text(concretise(lower(state), {})[0])
    assert text.count("# warps of 32") == 2
    refused(state, AcrossLanes("R", "k.1"), r"across_lanes\(R, k.1\): another loop is along threadIdx.x")
    refused(rows_in_lanes(), AcrossLanes("R", "i"), "it is no loop of one reduction axis")
    refused(rows_in_lanes(), AcrossLanes("R", "k.0"), "the lanes are a constant power of two, 2 to 32")
    refused(rows_in_lanes(5), AcrossLanes("R", "k.1"), "the lanes are a constant power of two, 2 to 32")
    refused(rows_in_lanes("t"), AcrossLanes("R", "k.1"), "the lanes are a constant power of two, 2 to 32")
    refused(rows_in_lanes().apply(Reorder("R", ("i", "k.0", "k.1", "k.2"))), AcrossLanes("R", "k.1"), "is not bound")

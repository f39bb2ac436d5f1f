"""Pipelined loops compute what the operators say, with one barrier an iteration, every one of which is needed.

The oracle is that of tests/lower/test_gpu.py; it fails as well where a copy is read before it was waited for.
"""

from __future__ import annotations

import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.ir.interpreter.interpret import InterpretError
from autosched.ir.printer import func_text
from autosched.ir.stmt import Allocate, Barrier, Commit, For, Func, Scope, Stmt, Store, Wait, walk
from autosched.lower import concretise, lower
from autosched.schedule import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Pipeline,
    Reorder,
    Rfactor,
    Split,
    State,
    Unroll,
    initial_state,
    replay,
    steps_to_json,
)
from tests.gpu_schedules import (
    conv,
    conv_state,
    matmul,
    matmul_state,
    parameters,
    random_extents,
    random_values,
    shared_copy,
    tiled,
)
from tests.helpers import check_nest, exact, without

STAGES = (1, 2, 3, 4)
SMALL = {"iv": 1, "it": 2, "is": 2, "jv": 2, "jt": 3, "js": 1, "va": 1, "vb": 2}


def statements(func: Func, kind: type[Stmt]) -> list[Stmt]:
    return [s for s in walk(func.body) if isinstance(s, kind)]


def started(func: Func) -> set[str]:
    return {b for s in statements(func, Store) if isinstance(s, Store) and s.asynchronous for b in s.buffers}


def pipelined(dag: te.ComputeDAG, stages: int | str, copies: str = "asynchronous") -> State:
    return matmul_state(dag).apply(Pipeline("C.acc", "k.0", stages, copies))


@pytest.mark.parametrize("copies", ["asynchronous", "registers"])
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("k", [1, 3, 4, 7, 13])
def test_matmul(k: int, stages: int, copies: str) -> None:
    """One chunk, fewer chunks than stages, a last chunk that is cut off."""
    dag = matmul(7, 5, k)
    exact(dag, pipelined(dag, stages, copies), {**SMALL, "k1": 2, "k2": 2})


@pytest.mark.parametrize("seed", range(12))
def test_matmul_of_awkward_extents(seed: int) -> None:
    dag = matmul(*random_extents(seed, 3, 17))
    state = pipelined(dag, "stages", ("asynchronous", "registers")[seed % 2])
    exact(dag, state, {**random_values(seed, parameters(state)), "stages": 1 + seed % 4})


@pytest.mark.parametrize("dtype", ["int8", "int32", "float64"])
def test_other_types(dtype: str) -> None:
    """Elements of one byte have no asynchronous copies; they pass through registers."""
    dag = matmul(5, 7, 12, dtype)
    func = exact(dag, pipelined(dag, 3), {**SMALL, "k1": 2, "k2": 1})
    assert started(func) == (set() if dtype == "int8" else {"A.shared", "B.shared"})


def test_one_barrier_in_an_iteration_and_none_before() -> None:
    dag = matmul(4, 6, 12)
    for stages, copies in ((2, "asynchronous"), (3, "asynchronous"), (2, "registers")):
        func = exact(dag, pipelined(dag, stages, copies), {**SMALL, "k1": 2, "k2": 1})
        assert len(statements(func, Barrier)) == 1
        assert len(statements(func, Wait)) == (copies == "asynchronous")
    assert len(statements(exact(dag, pipelined(dag, 1), {**SMALL, "k1": 2, "k2": 1}), Barrier)) == 2


def test_buffers_have_room_for_the_stages_and_no_more_than_the_chunks() -> None:
    dag = matmul(4, 6, 12)
    for stages, chunk, expected in ((3, 2, 3), (4, 4, 3), (4, 12, None)):
        func = exact(dag, pipelined(dag, stages), {**SMALL, "k1": chunk, "k2": 1})
        shapes = {s.buffer.name: s.buffer.shape for s in walk(func.body) if isinstance(s, Allocate)}
        first = int(shapes["A.shared"][0].value)  # type: ignore[attr-defined]
        assert first == (expected or stages)


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_convolution_with_padding(layout: str, inline: bool, stages: int) -> None:
    """The padding is part of the copy: zeros where the condition fails, still asynchronous."""
    dag = conv(1, 5, 6, 5, 4, 3, 1, 1, layout)
    state = conv_state(dag, inline=inline).apply(Pipeline("Y.acc", "rc.0", stages))
    func = exact(dag, state, {**random_values(3, parameters(state), (1, 2, 3)), "rc1": 2})
    assert started(func) == ({"X.shared" if inline else "P", "W.shared"} if stages > 1 else set())


@pytest.mark.parametrize("chunks", [(2, 1, 1), (5, 3, 3), (2, 3, 3), (1, 2, 3), (5, 1, 1), (3, 2, 2)])
@pytest.mark.parametrize("copies", ["asynchronous", "registers"])
def test_chunks_of_several_reductions_are_one_sequence(chunks: tuple[int, ...], copies: str) -> None:
    """The pipeline goes on over the ends of the inner loops: the first fill stands outside of all three."""
    dag = conv(1, 5, 5, 6, 3, 3, 1, 1)
    state = initial_state(dag).apply(ComputeInline("P"), CacheWrite("Y"), CacheRead("X", "Y.acc", "shared"))
    state = state.apply(CacheRead("W", "Y.acc", "shared"), *tiled("Y", "bcyx"))
    state = state.apply(ComputeAt("Y.acc", "Y", "x.2", "register"))
    for axis, size in zip(("rc", "ry", "rx"), chunks, strict=True):
        state = state.apply(Split("Y.acc", axis, (size,)))
    order = ("rc.0", "ry.0", "rx.0", "rc.1", "ry.1", "rx.1", "b", "c", "y", "x")
    state = state.apply(Reorder("Y.acc", order))
    for copy in ("X.shared", "W.shared"):
        state = state.apply(*shared_copy(copy, "Y.acc", "rx.0"))
    values = random_values(5, parameters(state), (1, 2))
    for stages in (2, 3) if copies == "asynchronous" else (2,):
        func = exact(dag, state.apply(Pipeline("Y.acc", "rx.0", stages, copies)), values)
        n_chunks = -(-5 // chunks[0]) * -(-3 // chunks[1]) * -(-3 // chunks[2])
        assert len(statements(func, Barrier)) in (range(1, 9) if n_chunks > 1 else [2])
        ahead = [s for s in walk(func.body) if isinstance(s, For) and s.var.name.endswith(".ahead")]
        assert len(ahead) == (1 if stages == 3 and n_chunks > 2 else 0)


def test_what_is_computed_in_the_copy_passes_through_registers() -> None:
    A, B = te.placeholder((9, 11), name="A"), te.placeholder((11, 6), name="B")
    R = te.compute((9, 11), lambda i, j: te.max(A[i, j], 0.0), name="R")
    k = te.reduce_axis(11, name="k")
    dag = te.ComputeDAG(te.compute((9, 6), lambda i, j: te.sum(R[i, k] * B[k, j], axis=k), name="C"))
    state = initial_state(dag).apply(CacheWrite("C"), CacheRead("B", "C.acc", "shared"), *tiled("C", "ij"))
    state = state.apply(ComputeAt("C.acc", "C", "j.2", "register"), Split("C.acc", "k", (3,)))
    state = state.apply(Reorder("C.acc", ("k.0", "k.1", "i", "j")))
    state = state.apply(*shared_copy("R", "C.acc", "k.0", 2), *shared_copy("B.shared", "C.acc", "k.0", 2))
    for stages in STAGES[1:]:
        func = exact(dag, state.apply(Pipeline("C.acc", "k.0", stages)), SMALL)
        assert started(func) == {"B.shared"}
        held = [s.buffer for s in walk(func.body) if isinstance(s, Allocate) and s.buffer.scope is Scope.REGISTER]
        assert any(b.name == "R.held" for b in held)


def test_copies_from_shared_memory_are_not_asynchronous() -> None:
    """A shared buffer that is filled from another one, at a loop inside."""
    dag = matmul(5, 6, 12)
    state = initial_state(dag).apply(CacheWrite("C"), CacheRead("A", "C.acc", "shared"))
    state = state.apply(CacheRead("A.shared", "C.acc", "again"), CacheRead("B", "C.acc", "shared"), *tiled("C", "ij"))
    state = state.apply(ComputeAt("C.acc", "C", "j.2", "register"), Split("C.acc", "k", (3, 2)))
    state = state.apply(Reorder("C.acc", ("k.0", "k.1", "k.2", "i", "j")))
    for copy, loop in (("A.shared.again", "k.1"), ("B.shared", "k.1"), ("A.shared", "k.0")):
        state = state.apply(*shared_copy(copy, "C.acc", loop))
    func = exact(dag, state.apply(Pipeline("C.acc", "k.1", 2)), SMALL)
    assert started(func) == {"B.shared"}


@pytest.mark.parametrize(("k", "stages"), [(5, 2), (7, 3)])
def test_a_pipeline_that_is_entered_again(k: int, stages: int) -> None:
    """In a loop of the thread, a barrier stands between what was read last and the first fill of the next entry."""
    dag = matmul(4, 6, k)
    state = initial_state(dag).apply(CacheWrite("C"), CacheRead("B", "C.acc", "shared"), Split("C", "i", ("it",)))
    state = state.apply(Split("C", "j", ("jt",)), Reorder("C", ("j.1", "i.1", "i.0", "j.0")))
    state = state.apply(Bind("C", "j.1", "threadIdx.y"), Bind("C", "i.1", "threadIdx.x"))
    state = state.apply(ComputeAt("C.acc", "C", "j.0", "register"), Split("C.acc", "k", (2,)))
    state = state.apply(Reorder("C.acc", ("k.0", "k.1", "i", "j")), *shared_copy("B.shared", "C.acc", "k.0"))
    state = state.apply(Pipeline("C.acc", "k.0", stages))
    func = exact(dag, state, {"it": 2, "jt": 3})
    barriers = len(statements(func, Barrier))
    assert barriers == 2
    for n in range(barriers):
        broken(func, dag, Barrier, n)


def test_parts_of_a_reduction() -> None:
    """Blocks whose part is cut off have fewer iterations, which is known at run time only."""
    dag = matmul(4, 6, 13)
    state = initial_state(dag).apply(Rfactor("C", "k", 5, "outer"), CacheWrite("C.rf"))
    axes = [a.name for a in state.stage("C.rf").op.axes]
    state = state.apply(CacheRead("B", "C.rf.acc", "shared"), *tiled("C.rf", axes, "f"), *tiled("C", "ij"))
    inner = [a.name for a in state.stage("C.rf.acc").op.reduce_axes]
    state = state.apply(ComputeAt("C.rf.acc", "C.rf", f"{axes[-1]}.2", "register"))
    state = state.apply(Split("C.rf.acc", inner[0], (2,)))
    state = state.apply(Reorder("C.rf.acc", (f"{inner[0]}.0", f"{inner[0]}.1", *axes)))
    state = state.apply(*shared_copy("B.shared", "C.rf.acc", f"{inner[0]}.0"))
    for stages in STAGES:
        done = state.apply(Pipeline("C.rf.acc", f"{inner[0]}.0", stages))
        exact(dag, done, random_values(2, parameters(done), (1, 2, 3)))


def test_a_record_keeps_the_pipeline() -> None:
    dag = matmul(4, 6, 12)
    state = pipelined(dag, "stages")
    values = {**SMALL, "k1": 2, "k2": 1, "stages": 3}
    again = replay(dag, steps_to_json(state, values))
    assert again.steps[-1] == Pipeline("C.acc", "k.0", 3, "asynchronous")
    assert func_text(concretise(lower(again), {})[0]) == func_text(concretise(lower(state), values)[0])


# Faults that the oracle must find


def broken(func: Func, dag: te.ComputeDAG, kind: type[Stmt], number: int) -> None:
    """Without that statement."""
    with pytest.raises(InterpretError, match=r"race: |is read before it is written|copy to it is under way"):
        check_nest(without(func, kind, number), dag)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_wait_commit_and_barrier_is_needed(stages: int) -> None:
    dag = matmul(4, 6, 12)
    func = exact(dag, pipelined(dag, stages), {**SMALL, "k1": 2, "k2": 1})
    for kind in (Wait, Barrier):
        broken(func, dag, kind, 0)
    broken(func, dag, Commit, 1)
    registers = exact(dag, pipelined(dag, stages, "registers"), {**SMALL, "k1": 2, "k2": 1})
    broken(registers, dag, Barrier, 0)


# The step


def test_what_a_pipeline_needs() -> None:
    dag = matmul(4, 6, 12)
    plain = initial_state(dag).apply(CacheWrite("C"), CacheRead("A", "C.acc", "shared"), *tiled("C", "ij"))
    plain = plain.apply(ComputeAt("C.acc", "C", "j.2", "register"), Split("C.acc", "k", (2,)))
    plain = plain.apply(Reorder("C.acc", ("k.0", "k.1", "i", "j")))

    def refused(text: str, state: State, *steps: object) -> None:
        with pytest.raises(ScheduleError, match=text):
            state.apply(*steps)  # type: ignore[arg-type]

    refused("no shared buffer is filled there", plain, Pipeline("C.acc", "k.0", 2))
    alone = plain.apply(ComputeAt("A.shared", "C.acc", "k.0", "shared"))
    refused(r"do not fill A\.shared together", alone, Pipeline("C.acc", "k.0", 2))
    full = plain.apply(*shared_copy("A.shared", "C.acc", "k.0"))
    refused("more than 8 stages", full, Pipeline("C.acc", "k.0", 9))
    refused("is not an integer from 1", full, Pipeline("C.acc", "k.0", 0))
    refused("copies must be one of asynchronous, registers", full, Pipeline("C.acc", "k.0", 2, "later"))
    refused("the loop is unroll", full.apply(Unroll("C.acc", "k.0")), Pipeline("C.acc", "k.0", 2))
    refused("has a pipeline already", full.apply(Pipeline("C.acc", "k.0", 2)), Pipeline("C.acc", "k.0", 2))
    late = plain.apply(CacheRead("B", "C.acc", "shared"), *shared_copy("A.shared", "C.acc", "k.0"))
    late = late.apply(Pipeline("C.acc", "k.0", 2))
    refused("the loop is a pipeline already", late, *shared_copy("B.shared", "C.acc", "k.0"))
    chain = plain.apply(CacheRead("A.shared", "C.acc", "again"), *shared_copy("A.shared.again", "C.acc", "k.0"))
    chain = chain.apply(*shared_copy("A.shared", "C.acc", "k.0"))
    refused("is filled from another buffer", chain, Pipeline("C.acc", "k.0", 2))

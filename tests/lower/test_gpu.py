"""Schedules for GPUs compute what the operators say: exactly, on awkward extents, with tiles that do not divide.

The oracle runs the blocks and threads of each nest in a random order and fails on races, on barriers that not all
threads reach, and on reads of memory that nobody wrote (tests/helpers.py, autosched/ir/interpreter/blocks.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autosched import te
from autosched.ir.interpreter.interpret import InterpretError
from autosched.ir.stmt import Allocate, Barrier, For, Func, If, Scope, Stmt, Store, walk
from autosched.schedule import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    CrossThread,
    Fuse,
    Reorder,
    Rfactor,
    Split,
    State,
    initial_state,
)
from tests.gpu_schedules import (
    AWKWARD,
    FACTORS,
    REDUCTIONS,
    argmax,
    argmax_state,
    conv,
    conv_state,
    cross_state,
    matmul,
    matmul_state,
    neighbours,
    parameters,
    random_extents,
    random_values,
    row_reduction,
    several,
    shared_copy,
    softmax,
    softmax_state,
    tiled,
)
from tests.helpers import check_nest, exact, without

SEEDS = range(8)


def check_random(dag: te.ComputeDAG, state: State, seed: int, factors: Sequence[int] = FACTORS) -> Func:
    return exact(dag, state, random_values(seed, parameters(state), factors))


# Matrix products


@pytest.mark.parametrize("seed", range(16))
def test_matmul_with_all_levels(seed: int) -> None:
    dag = matmul(*random_extents(seed, 3))
    check_random(dag, matmul_state(dag), seed)


@pytest.mark.parametrize("dtype", ["int8", "int32", "float64"])
def test_matmul_of_other_types(dtype: str) -> None:
    dag = matmul(13, 7, 12, dtype)
    check_random(dag, matmul_state(dag), 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_matmul_without_registers_or_shared_memory(seed: int) -> None:
    dag = matmul(*random_extents(seed, 3))
    check_random(dag, initial_state(dag).apply(*tiled("C", "ij")), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_input_in_shared_memory_at_an_inner_loop(seed: int) -> None:
    """The copy stands inside the reduction, its reader needs rows that lie apart."""
    dag = matmul(*random_extents(seed, 3, 17))
    state = initial_state(dag).apply(CacheRead("B", "C", "shared"), *tiled("C", "ij"))
    check_random(dag, state.apply(*shared_copy("B.shared", "C", "j.2", "vb")), seed)


def statements(body: Stmt, kind: type[Stmt]) -> list[Stmt]:
    return [s for s in walk(body) if isinstance(s, kind)]


def conditions(s: Stmt) -> list[str]:
    """The conditions around the update of a reduction, as text."""
    match s:
        case Store():
            return [] if s.reducer is not None else ["not an update"]
        case If():
            return [*str(s.cond).split(" & "), *conditions(s.then)]
    return ["no statement of the update"]


@pytest.mark.parametrize(("cached", "limits"), [("A", ["7"]), ("B", ["5"]), ("AB", []), ("", ["5", "7"])])
def test_accumulators_are_guarded_only_where_memory_is_read_beyond_its_end(cached: str, limits: list[str]) -> None:
    """An operand in shared memory has zeros beyond the axis; one that is read where it lies has nothing there."""
    dag = matmul(5, 7, 4)
    state = initial_state(dag).apply(CacheWrite("C"), *(CacheRead(name, "C.acc", "shared") for name in cached))
    state = state.apply(*tiled("C", "ij"), ComputeAt("C.acc", "C", "j.2", "register"))
    state = state.apply(Reorder("C.acc", ("k", "i", "j")))
    for name in cached:
        state = state.apply(*shared_copy(f"{name}.shared", "C.acc", "k"))
    func = exact(dag, state, {"iv": 1, "it": 2, "is": 2, "jv": 1, "jt": 4, "js": 1})
    (points,) = (s for loop in statements(func.body, For) if loop.reduce for s in statements(loop.body, For))
    assert sorted(condition.split()[-1] for condition in conditions(points.body)) == limits


def test_every_barrier_of_a_copy_is_needed() -> None:
    """In a loop over k: before the copy (others still read the last one), and after it (others still write)."""
    dag = matmul(4, 4, 8)
    state = initial_state(dag).apply(CacheRead("B", "C", "shared"), Split("C", "k", (2,)))
    state = state.apply(Bind("C", "i", "threadIdx.y"), Bind("C", "j", "threadIdx.x"))
    func = exact(dag, state.apply(*shared_copy("B.shared", "C", "k.0")))
    assert len(statements(func.body, Barrier)) == 2
    for n in range(2):
        with pytest.raises(InterpretError, match=r"race: |is read before it is written"):
            check_nest(without(func, Barrier, n), dag)


def test_a_shared_copy_that_is_not_filled_together_has_one_writer() -> None:
    dag = matmul(4, 4, 8)
    state = initial_state(dag).apply(CacheRead("B", "C", "shared"), Split("C", "k", (2,)))
    state = state.apply(Bind("C", "i", "threadIdx.y"), Bind("C", "j", "threadIdx.x"))
    exact(dag, state.apply(ComputeAt("B.shared", "C", "k.0", "shared")))
    rows = row_reduction(3, 7)
    state = initial_state(rows).apply(Bind("Y", "i", "blockIdx.x"), Bind("Y", "j", "threadIdx.x"))
    exact(rows, state.apply(ComputeAt("R", "Y", "j", "shared")))


def test_registers_hold_only_the_points_of_their_thread() -> None:
    """Virtual threads step over the tile: the accumulators are packed, not spread over the whole tile."""
    dag = matmul(31, 31, 3)
    values = {"iv": 2, "it": 4, "is": 2, "jv": 3, "jt": 4, "js": 1, "k1": 2, "k2": 1, "va": 1, "vb": 1}
    func = exact(dag, matmul_state(dag), values)
    buffers = {s.buffer.name: s.buffer for s in walk(func.body) if isinstance(s, Allocate)}
    assert [str(e) for e in buffers["C.acc"].shape] == ["4", "3"]
    assert [str(e) for e in buffers["A.shared"].shape] == ["16", "2"]
    assert {b.scope for b in buffers.values()} == {Scope.REGISTER, Scope.SHARED}


# Convolutions


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("inline", [False, True], ids=["pad-in-shared", "pad-inlined"])
@pytest.mark.parametrize("seed", range(3))
def test_conv2d_with_padding(seed: int, inline: bool, layout: str) -> None:
    n, h, w, co = random_extents(seed, 4, 7)
    dag = conv(min(n, 2), 3, h, w, co, k=3, stride=1 + seed % 2, pad=1, layout=layout)
    check_random(dag, conv_state(dag, inline=inline), seed, (1, 2, 3))


def test_a_convolution_whose_tiles_reach_over_both_edges() -> None:
    """Threads that stand left of the image: their positions are negative where they read."""
    dag = conv(1, 2, 5, 5, 3, k=3, pad=1)
    state = initial_state(dag).apply(ComputeInline("P"), CacheRead("X", "Y", "shared"), *tiled("Y", "bcyx"))
    values = dict.fromkeys(parameters(state), 2)
    exact(dag, state.apply(*shared_copy("X.shared", "Y", "x.2")), values)


# Elementwise operators, copies, transposes


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_elementwise_in_any_rank(rank: int, seed: int) -> None:
    shape = tuple(random_extents(seed, rank, 13 if rank < 3 else 5))
    A, B = te.placeholder(shape, name="A"), te.placeholder(shape, name="B")
    dag = te.ComputeDAG(te.compute(shape, lambda *i: A[i] * 2.0 + B[i], name="C"))
    check_random(dag, initial_state(dag).apply(*tiled("C", [f"i{d}" for d in range(rank)])), seed, (1, 2, 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_all_axes_in_one_bound_loop(seed: int) -> None:
    """A fused loop is taken apart by division; its tail has no simple shape."""
    m, n = random_extents(seed, 2)
    A = te.placeholder((m, n), name="A")
    dag = te.ComputeDAG(te.compute((m, n), lambda i, j: A[i, j] + 1.0, name="C"))
    state = initial_state(dag).apply(Split("C", "i", ("i1",)), Split("C", "j", ("j1",)))
    state = state.apply(Reorder("C", ("i.0", "j.0", "i.1", "j.1")))
    state = state.apply(Fuse("C", ("i.0", "j.0")), Fuse("C", ("i.1", "j.1")))
    check_random(dag, state.apply(Bind("C", "i.0@j.0", "blockIdx.x"), Bind("C", "i.1@j.1", "threadIdx.x")), seed)


@pytest.mark.parametrize("order", [(1, 0), (2, 0, 1), (2, 1, 0), (0, 2, 1)])
@pytest.mark.parametrize("seed", range(4))
def test_transposes_through_shared_memory(order: tuple[int, ...], seed: int) -> None:
    shape = random_extents(seed, len(order), 13)
    A = te.placeholder(tuple(shape), name="A")
    back = [order.index(d) for d in range(len(order))]
    dag = te.ComputeDAG(te.compute(tuple(shape[d] for d in order), lambda *i: A[tuple(i[d] for d in back)], name="T"))
    axes = [f"i{d}" for d in range(len(order))]
    state = initial_state(dag).apply(CacheRead("A", "T", "shared"), *tiled("T", axes))
    check_random(dag, state.apply(*shared_copy("A.shared", "T", f"{axes[-1]}.2", "va")), seed, (1, 2, 3))


@pytest.mark.parametrize("n", AWKWARD)
@pytest.mark.parametrize("scope", ["local", "register"])
def test_a_stage_in_private_memory_with_reads_beyond_the_edges(n: int, scope: str) -> None:
    dag = neighbours(n)
    state = initial_state(dag).apply(*tiled("C", ["i"]), ComputeAt("B", "C", "i.2", scope))
    exact(dag, state, {"iv": 2, "it": 3, "is": 2})


@pytest.mark.parametrize("n", AWKWARD)
def test_a_stage_in_shared_memory_with_reads_beyond_the_edges(n: int) -> None:
    dag = neighbours(n)
    state = initial_state(dag).apply(*tiled("C", ["i"]), *shared_copy("B", "C", "i.2", 2))
    exact(dag, state, {"iv": 2, "it": 3, "is": 2})


def test_copies_that_do_not_read_one_another_wait_together() -> None:
    """Before both are filled and after; a copy of a copy waits for it."""
    dag = matmul(8, 8, 8)
    state = initial_state(dag).apply(CacheWrite("C"), CacheRead("A", "C.acc", "shared"))
    again = state.apply(CacheRead("A.shared", "C.acc", "again"), CacheRead("B", "C.acc", "shared"))
    state = state.apply(CacheRead("B", "C.acc", "shared"))
    for start, copies, n_barriers in ((state, ["A.shared"], 2), (again, ["A.shared.again", "A.shared"], 4)):
        done = start.apply(*tiled("C", "ij"), ComputeAt("C.acc", "C", "j.2", "register"), Split("C.acc", "k", (4,)))
        done = done.apply(Reorder("C.acc", ("k.0", "k.1", "i", "j")))
        for copy in (*copies, "B.shared"):
            done = done.apply(*shared_copy(copy, "C.acc", "k.0"))
        func = exact(dag, done, random_values(0, parameters(done)))
        assert len(statements(func.body, Barrier)) == n_barriers


def test_a_chain_of_copies_at_several_loops() -> None:
    """Global to shared to registers; the register copy reads the shared one."""
    dag = matmul(13, 12, 7)
    state = initial_state(dag).apply(CacheWrite("C"), CacheRead("A", "C.acc", "shared"))
    state = state.apply(CacheRead("A.shared", "C.acc", "own"), *tiled("C", "ij"))
    state = state.apply(ComputeAt("C.acc", "C", "j.2", "register"), Split("C.acc", "k", ("k1",)))
    state = state.apply(Reorder("C.acc", ("k.0", "k.1", "i", "j")))
    state = state.apply(ComputeAt("A.shared.own", "C.acc", "k.1", "register"))
    state = state.apply(*shared_copy("A.shared", "C.acc", "k.0", 2))
    for seed in range(4):
        check_random(dag, state, seed, (1, 2, 3))


# Reductions


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_a_row_in_each_thread(name: str, seed: int) -> None:
    dag = row_reduction(*random_extents(seed, 2), name)
    state = initial_state(dag).apply(*tiled("R", ["i"], "r"), *tiled("Y", ["i", "j"]))
    check_random(dag, state, seed)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("columns", AWKWARD)
def test_a_row_shared_by_the_threads_of_a_block(name: str, columns: int) -> None:
    dag = row_reduction(3, columns, name)
    for threads in (1, 2, 3, 5, 8):
        exact(dag, cross_state(dag), {"jt": threads})


@pytest.mark.parametrize("scope", ["local", "shared"])
def test_where_the_result_of_a_shared_reduction_can_be(scope: str) -> None:
    dag = row_reduction(3, 13)
    exact(dag, cross_state(dag, scope), {"jt": 5})


def test_several_rows_in_a_block() -> None:
    """The reduction is repeated for each row of the tile, its scratch memory used again."""
    dag = row_reduction(7, 13)
    state = initial_state(dag).apply(Split("Y", "i", ("i1",)), Split("Y", "j", ("jt",)))
    state = state.apply(Reorder("Y", ("i.0", "j.1", "i.1", "j.0")))
    state = state.apply(Bind("Y", "i.0", "blockIdx.x"), Bind("Y", "j.1", "threadIdx.x"))
    for loop in ("j.1", "i.1"):
        done = state.apply(ComputeAt("R", "Y", loop, "register"), CrossThread("R", "k"))
        for i1, jt in ((1, 4), (2, 3), (3, 5), (8, 2)):
            exact(dag, done, {"i1": i1, "jt": jt})


def test_the_threads_of_two_dimensions_share_a_reduction() -> None:
    dag = row_reduction(4, 13)
    state = initial_state(dag).apply(Split("Y", "j", ("j1", "j2")), Reorder("Y", ("i", "j.1", "j.2", "j.0")))
    state = state.apply(Bind("Y", "i", "blockIdx.x"), Bind("Y", "j.1", "threadIdx.y"), Bind("Y", "j.2", "threadIdx.x"))
    state = state.apply(ComputeAt("R", "Y", "j.2", "register"), CrossThread("R", "k"))
    exact(dag, state, {"j1": 3, "j2": 3})


@pytest.mark.parametrize("columns", [1, 5, 12, 31])
def test_softmax_with_two_shared_reductions(columns: int) -> None:
    dag = softmax(3, columns)
    exact(dag, softmax_state(dag), {"jt": 4})


@pytest.mark.parametrize("seed", range(4))
def test_argmax_in_global_memory_and_in_registers(seed: int) -> None:
    dag = argmax(*random_extents(seed, 2))
    check_random(dag, initial_state(dag).apply(*tiled("R", ["i"])), seed)
    check_random(dag, argmax_state(dag), seed)


@pytest.mark.parametrize("columns", AWKWARD)
def test_argmax_shared_by_the_threads_of_a_block(columns: int) -> None:
    X = te.placeholder((3, columns), name="X")
    k = te.reduce_axis(columns, name="k")
    n, v = te.compute((3,), lambda i: te.argmax(X[i, k], axis=k), name="R")
    Y = te.compute((3, columns), lambda i, j: te.select(X[i, j] < v[i], X[i, j], te.cast(n[i], "float32")), name="Y")
    dag = te.ComputeDAG(Y)
    for threads in (1, 3, 4):
        exact(dag, cross_state(dag), {"jt": threads})


@pytest.mark.parametrize("keep", ["inner", "outer"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_reduction_cut_in_parts_by_two_kernels(keep: str, seed: int) -> None:
    """The parts of K are blocks; a second kernel adds them up."""
    dag = matmul(*random_extents(seed, 3, 13))
    state = initial_state(dag).apply(Rfactor("C", "k", "kf", keep))
    axes = [a.name for a in state.stage("C.rf").op.axes]
    state = state.apply(*tiled("C.rf", axes, "f"), *tiled("C", ["i", "j"]))
    check_random(dag, state, seed, (1, 2, 3))


@pytest.mark.parametrize("columns", AWKWARD)
def test_a_shared_reduction_over_a_part(columns: int) -> None:
    """The threads share what rfactor made of an axis, where the last part is short."""
    dag = row_reduction(2, columns)
    state = initial_state(dag).apply(Rfactor("R", "k", 3, "inner"), Split("Y", "j", (2,)))
    state = state.apply(Reorder("Y", ("i", "j.1", "j.0")))
    state = state.apply(Bind("Y", "i", "blockIdx.x"), Bind("Y", "j.1", "threadIdx.x"))
    state = state.apply(ComputeAt("R", "Y", "j.1", "register"), ComputeAt("R.rf", "Y", "j.1", "register"))
    exact(dag, state.apply(CrossThread("R.rf", "k.o")))


# Whole programs


@pytest.mark.parametrize("seed", SEEDS)
def test_several_kernels_one_after_the_other(seed: int) -> None:
    dag = several(*random_extents(seed, 3, 13))
    state = initial_state(dag).apply(*tiled("C", "ij", "c"), *tiled("D", "ij", "d"), *tiled("S", "i", "s"))
    func = check_random(dag, state, seed, (1, 2, 3))
    assert {s.buffer.name for s in walk(func.body) if isinstance(s, Allocate)} == {"C"}


@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_computes_its_producer_in_registers(seed: int) -> None:
    dag = several(*random_extents(seed, 3, 13))
    state = initial_state(dag).apply(*tiled("D", "ij"), ComputeAt("C", "D", "j.2", "register"), *tiled("S", "i", "s"))
    check_random(dag, state, seed, (1, 2, 3))


def test_a_stage_that_is_not_scheduled_is_a_kernel_of_one_thread() -> None:
    dag = several(5, 7, 3)
    exact(dag, initial_state(dag).apply(*tiled("C", "ij")), {"iv": 1, "it": 2, "is": 2, "jv": 2, "jt": 2, "js": 1})


def test_conditions_as_output() -> None:
    A = te.placeholder((13,), name="A")
    dag = te.ComputeDAG(te.compute((13,), lambda i: A[i] > 0.0, name="C"))
    exact(dag, initial_state(dag).apply(*tiled("C", ["i"])), {"iv": 1, "it": 4, "is": 2})


@pytest.mark.parametrize("extents", [(1, 1, 1), (1, 7, 1), (5, 1, 3)])
def test_programs_with_a_single_block_or_thread(extents: tuple[int, int, int]) -> None:
    """Bound loops of one iteration go; what is left must still be one kernel's work."""
    dag = matmul(*extents)
    for factor in (1, 8):
        state = matmul_state(dag)
        exact(dag, state, dict.fromkeys(parameters(state), factor))

"""Reductions that the threads of a block share: by shuffles and in shared memory, for any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autosched import te
from autosched.codegen.c.kernel import emit
from autosched.errors import ScheduleError
from autosched.ir.stmt import Allocate, Barrier, For, Func, Scope, Shuffle, Stmt, walk
from autosched.lower import concretise, lower
from autosched.schedule import (
    Bind,
    CacheWrite,
    ComputeAt,
    CrossThread,
    Reorder,
    Split,
    Team,
    initial_state,
    replay,
    steps_to_json,
)
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from tests.codegen.gpu import dialects, run
from tests.gpu_schedules import (
    cross_state,
    one_reduction,
    row_reduction,
    softmax,
    softmax_state,
    team_state,
    teams_state,
)
from tests.helpers import check_nest, exact

COUNTS = (1, 2, 31, 32, 33, 48, 100, 128, 1000, 1024)
CASES = (
    *(("sum", dtype) for dtype in ("float32", "float64", "int32", "int64", "int8")),
    ("max", "float64"), ("min", "int8"), ("prod", "int32"), ("any", "bool"), ("all", "bool"),
    ("argmax", "float32"), ("argmin", "int64"), ("argmax", "int8"),
)  # fmt: skip


def build(dag: te.ComputeDAG, threads: int, warp: int) -> Func:
    return concretise(lower(team_state(dag, threads, warp)), {})[0]


def count(func: Func, *kinds: type[Stmt]) -> int:
    return sum(isinstance(s, kinds) for s in walk(func.body))


def shared_elements(func: Func) -> int:
    buffers = [s.buffer for s in walk(func.body) if isinstance(s, Allocate) and s.buffer.scope is Scope.SHARED]
    return sum(int(b.shape[0].value) for b in buffers)  # type: ignore[attr-defined]


@pytest.mark.parametrize("warp", [0, 2, 8, 32])
@pytest.mark.parametrize("threads", COUNTS)
def test_any_number_of_threads(threads: int, warp: int) -> None:
    rng = np.random.default_rng(threads + warp)
    for name in rng.choice(["sum", "max", "argmax"], 1 if threads > 100 else 2, replace=False):
        dag = one_reduction(str(name), 1, int(rng.integers(1, 2 * threads + 40)))
        check_nest(build(dag, threads, warp), dag)


@dialects
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_reducers_and_types_on_a_device(dialect: str, name: str, dtype: str) -> None:
    """A number of threads with a short last warp, and one of whole warps."""
    for threads in (40, 64):
        on_device(dialect, one_reduction(name, 2, 201, dtype), threads, 32)


@dialects
@pytest.mark.parametrize("threads", COUNTS)
def test_any_number_of_threads_on_a_device(dialect: str, threads: int) -> None:
    rng = np.random.default_rng(threads)
    for warp in (int(rng.choice([0, 2, 8])), 32):
        name, dtype = CASES[rng.integers(len(CASES))]
        on_device(dialect, one_reduction(name, 3, int(rng.integers(1, 3000)), dtype), threads, warp)


@dialects
@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "min"])
def test_nan_is_handed_on_by_the_threads_of_a_block(dialect: str, name: str) -> None:
    rng = np.random.default_rng(1)
    for dtype in ("float32", "float64"):
        dag = one_reduction(name, 12, 201, dtype)
        x = rng.choice([np.inf, -np.inf, 0.0, -0.0, 1.0, -2.0], (12, 201)).astype(dtype)
        x[rng.random(x.shape) < rng.choice([0.0, 0.02, 0.3], (12, 1))] = np.nan
        for threads, warp in ((40, 32), (64, 32), (48, 0)):
            on_device(dialect, dag, threads, warp, {dag.inputs[0].name: x})


def on_device(
    dialect: str, dag: te.ComputeDAG, threads: int, warp: int, inputs: dict[str, np.ndarray[Any, Any]] | None = None
) -> None:
    func, simplify = concretise(lower(team_state(dag, threads, warp)), {})
    inputs = inputs or make_inputs(dag, 0, "normal")
    results = run(emit(func, simplify, dialect), func, inputs)
    for tensor, reference in zip(dag.outputs, evaluate(dag, inputs), strict=True):
        assert within(reference, results[tensor.name].reshape(tensor.public_shape)).all(), (tensor.name, threads, warp)


@pytest.mark.parametrize("threads", [1, 2, 31, 32])
def test_one_warp_needs_no_shared_memory_and_no_barrier(threads: int) -> None:
    func = build(one_reduction("sum", 3, 100), threads, 32)
    assert count(func, Barrier) == 0
    assert shared_elements(func) == 0
    assert count(func, Shuffle) == {1: 0, 2: 1, 31: 6, 32: 5}[threads]


@pytest.mark.parametrize(("threads", "warps"), [(33, 2), (64, 2), (100, 4), (1024, 32)])
def test_several_warps_meet_once(threads: int, warps: int) -> None:
    func = build(one_reduction("sum", 3, 100), threads, 32)
    assert (count(func, Barrier), shared_elements(func), count(func, Shuffle)) == (1, warps, 5)
    pairs = build(one_reduction("argmax", 3, 100), threads, 32)
    assert (count(pairs, Barrier), shared_elements(pairs), count(pairs, Shuffle)) == (1, 2 * warps, 5)


def test_the_tree_is_as_it_was() -> None:
    func = build(one_reduction("sum", 3, 100), 64, 0)
    assert (count(func, Barrier), shared_elements(func), count(func, Shuffle)) == (7, 64, 0)


@pytest.mark.parametrize("scope", ["register", "shared"])
def test_what_is_done_again_waits_for_those_who_still_read(scope: str) -> None:
    """Two reductions of a row, and one for each of several rows of a thread: the oracle finds races."""
    dag = softmax(3, 70)
    exact(dag, softmax_state(dag, 32), {"jt": 40})
    rows = row_reduction(5, 70)
    exact(rows, cross_state(rows, scope, 32), {"jt": 48})


@pytest.mark.parametrize("warp", [0, 8, 32])
@pytest.mark.parametrize(
    ("members", "teams"), [(32, 2), (16, 4), (8, 3), (1, 5), (64, 3), (48, 2), (31, 2), (40, 3), (3, 1), (96, 2)]
)
def test_several_teams_in_a_block(members: int, teams: int, warp: int) -> None:
    """Each reduces its own row; those whose members share warps with other teams' do so by trees."""
    dag = row_reduction(5, 101)
    for along in ("xy", "yx"):
        func = exact(dag, teams_state(dag, members, teams, warp, along))
        whole = along == "xy" and warp > 0 and (members % warp == 0 or warp % members == 0)
        if teams > 1 and members > 1:
            assert (count(func, Shuffle) > 0) == whole
        if whole and members <= warp:
            assert (count(func, Barrier), shared_elements(func)) == (0, 0)
        if whole and members > warp:
            assert (count(func, Barrier), shared_elements(func)) == (1, teams * members // warp)


@pytest.mark.parametrize(("members", "teams", "warp"), [(32, 3, 32), (16, 2, 32), (20, 2, 32), (64, 2, 0), (64, 2, 32)])
def test_teams_beside_one_another(members: int, teams: int, warp: int) -> None:
    """Points along threadIdx.y, each with a team along x."""
    dag = one_reduction("sum", 5, 101)
    state = initial_state(dag).apply(CacheWrite("R"), Split("R", "i", (teams,)), Bind("R", "i.0", "blockIdx.x"))
    state = state.apply(
        Bind("R", "i.1", "threadIdx.y"), Team("R", members), ComputeAt("R.acc", "R", "team", "register")
    )
    exact(dag, state.apply(CrossThread("R.acc", "k", warp)))
    with pytest.raises(ScheduleError, match=r"team\(R\): one of its loops is bound to threadIdx.x already"):
        state.apply(Team("R", members))


@pytest.mark.parametrize(("vector", "length"), [(4, 101), (4, 64), (8, 1), (2, 7), (3, 100)])
def test_threads_take_neighbours(vector: int, length: int) -> None:
    """The last vector may be cut off; the number may be a parameter."""
    dag = one_reduction("sum", 3, length)
    state = initial_state(dag).apply(CacheWrite("R"), Bind("R", "i", "blockIdx.x"), Team("R", 8))
    state = state.apply(ComputeAt("R.acc", "R", "team", "register"))
    exact(dag, state.apply(CrossThread("R.acc", "k", 8, vector)))
    open_number = lower(state.apply(CrossThread("R.acc", "k", 8, "v")))
    assert emit(*concretise(open_number, {"v": vector}), "cuda").text.count("float4*)") == (
        vector == 4 and length == 64
    )


def test_teams_along_z() -> None:
    dag = one_reduction("sum", 5, 60)
    state = initial_state(dag).apply(CacheWrite("R"), Split("R", "i", (2,)), Bind("R", "i.0", "blockIdx.x"))
    state = state.apply(Bind("R", "i.1", "threadIdx.z"), ComputeAt("R.acc", "R", "i.1", "register"))
    state = state.apply(CrossThread("R.acc", "k", 32))
    exact(dag, state)  # a team of one thread


def test_the_text_of_one_warp() -> None:
    func, simplify = concretise(lower(teams_state(row_reduction(8, 64), 32, 4, 32)), {})
    text = emit(func, simplify, "cuda").text
    assert text.count("__shfl_xor_sync(0xffffffff, R_own[0], ") == 5
    assert "__shared__" not in text
    assert "__syncthreads" not in text
    part, simplify = concretise(lower(teams_state(row_reduction(8, 64), 4, 8, 8)), {})
    assert "__shfl_xor_sync(0xffffffff, R_own[0], 2, 8);" in emit(part, simplify, "cuda").text


def test_several_points_of_a_block() -> None:
    """The block's threads do two rows one after the other."""
    dag = row_reduction(4, 50)
    state = initial_state(dag).apply(Split("Y", "i", (2,)), Split("Y", "j", (40,)))
    state = state.apply(Reorder("Y", ("i.0", "j.1", "i.1", "j.0")))
    state = state.apply(Bind("Y", "i.0", "blockIdx.x"), Bind("Y", "j.1", "threadIdx.x"))
    for loop in ("j.1", "i.1"):
        for warp in (0, 32):
            placed = state.apply(ComputeAt("R", "Y", loop, "register"), CrossThread("R", "k", warp))
            func = exact(dag, placed)
            assert any(
                isinstance(s, For) and any(isinstance(x, Barrier) for x in walk(s.body)) for s in walk(func.body)
            )


def test_records_from_before_there_were_shuffles() -> None:
    dag = one_reduction("sum", 3, 100)
    text = steps_to_json(team_state(dag, 64, 0), {})
    assert '["CrossThread","R.acc","k",0,1]' in text
    old = replay(dag, text.replace('["CrossThread","R.acc","k",0,1]', '["CrossThread","R.acc","k"]'))
    assert steps_to_json(old, {}) == text
    new = steps_to_json(team_state(dag, 64, 32), {})
    assert replay(dag, new).stage("R.acc").warp == 32

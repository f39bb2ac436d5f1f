"""Reductions whose parts meet by atomic updates: schedules, refusals, records, sketches."""

from __future__ import annotations

from itertools import islice

import pytest

from autosched import te
from autosched.codegen.c.kernel import emit
from autosched.errors import ScheduleError
from autosched.ir.stmt import Allocate, Scope, Store, walk
from autosched.lower import concretise, lower
from autosched.schedule import (
    Atomic,
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Rfactor,
    State,
    Step,
    initial_state,
    replay,
    steps_to_json,
)
from autosched.target import parse_target
from autosched.te.dag import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import RULES, AtomicSplit, sketches
from search_spaces.space import Sketch
from tests.codegen.gpu import TARGETS, dialects
from tests.gpu_schedules import (
    atomic_state,
    atomic_team_state,
    matmul,
    one_reduction,
    parameters,
    random_extents,
    random_values,
    tiled,
)
from tests.helpers import check_nest, exact
from tests.search_spaces.gpu_candidates import check_candidates, draw


@pytest.mark.parametrize("seed", range(8))
def test_matrix_products(seed: int) -> None:
    dag = matmul(*random_extents(seed, 3, 13))
    state = atomic_state(dag, 1 + seed % 5)
    func = exact(dag, state, random_values(seed, parameters(state), (1, 2, 3)))
    assert not any(isinstance(s, Allocate) and s.buffer.scope is Scope.GLOBAL for s in walk(func.body))
    assert sum(isinstance(s, Store) and s.atomic for s in walk(func.body)) >= 1


@pytest.mark.parametrize(("name", "dtype"), [("sum", "float32"), ("sum", "int64"), ("max", "int32"), ("min", "int64")])
def test_rows_of_teams(name: str, dtype: str) -> None:
    for threads, warp in ((5, 0), (32, 32), (48, 32)):
        dag = one_reduction(name, 3, 100, dtype)
        exact(dag, atomic_team_state(dag, threads, warp))


def test_the_start_values_have_a_kernel_before_the_updates() -> None:
    dag = one_reduction("sum", 3, 100)
    func, simplify = concretise(lower(atomic_team_state(dag, 32, 32)), {})
    cuda = emit(func, simplify, "cuda")
    assert [x.arguments for x in cuda.launches] == [("R",), ("X", "R")]
    assert "atomicAdd(&R[R_rf_i], R_rf_acc[0]);" in cuda.text
    assert "if (R_rf_team < 1)" in cuda.text
    assert cuda.workspace == ()


def test_a_consumer_reads_the_result() -> None:
    """The result is no output: it is workspace, written by two kernels, and read by a third."""
    X = te.placeholder((5, 60), name="X")
    k = te.reduce_axis(60, name="k")
    R = te.compute((5,), lambda i: te.sum(X[i, k], axis=k), name="R")
    dag = ComputeDAG(te.compute((5,), lambda i: R[i] * 2.0, name="Y"))
    state = atomic_team_state(dag, 16, 0).apply(Bind("Y", "i", "threadIdx.x"))
    exact(dag, state)


def refused(state: State, step: Step, text: str) -> None:
    with pytest.raises(ScheduleError, match=text):
        state.apply(step)


def parts(name: str = "sum", dtype: str = "float32") -> State:
    return initial_state(one_reduction(name, 3, 100, dtype)).apply(Rfactor("R", "k", 37, "outer"))


def bound(state: State) -> State:
    k, i = (a.name for a in state.stage("R.rf").op.axes)
    return state.apply(CacheWrite("R.rf"), Bind("R.rf", k, "blockIdx.x"), Bind("R.rf", i, "threadIdx.x"))


def test_what_atomic_refuses() -> None:
    whole = initial_state(one_reduction("sum", 3, 100))
    refused(whole, Atomic("R"), r"atomic\(R\): it must be a reduction of parts; rfactor it first")
    refused(whole, Atomic("X"), "has no stage 'X'")
    refused(parts(), Atomic("R"), r"atomic\(R\): R.rf must only copy its parts; cache_write it first")
    refused(parts().apply(CacheWrite("R.rf")), Atomic("R"), "bind the loops of R.rf to blocks and threads first")
    refused(bound(parts("max")), Atomic("R"), "there are atomic updates for add of float32, .*; min of int32, int64;")
    refused(bound(parts("max", "int8")), Atomic("R"), "but it is none of these")
    refused(bound(parts("prod", "int32")), Atomic("R"), "but it is none of these")
    refused(bound(parts()).apply(Atomic("R")), Atomic("R"), "it is so already")


@pytest.mark.parametrize(
    "step",
    [
        CacheWrite("R"),
        CacheRead("R.rf", "R"),
        ComputeInline("R.rf"),
        ComputeAt("R.rf", "R", "i"),
        Rfactor("R", "k.o", 2),
        ComputeAt("R.rf.acc", "R", "i"),
    ],
    ids=lambda step: type(step).__name__,
)
def test_what_later_steps_may_not_take_away(step: Step) -> None:
    with pytest.raises(ScheduleError):
        bound(parts()).apply(Atomic("R"), step)


def test_records() -> None:
    dag = matmul(9, 11, 13)
    state = atomic_state(dag)
    values = random_values(1, parameters(state), (1, 2))
    text = steps_to_json(state, values)
    assert '["Atomic","C"]' in text
    assert steps_to_json(replay(dag, text), {}) == text
    exact(dag, replay(dag, text))


def test_loops_of_the_result_only_write_start_values() -> None:
    dag = matmul(5, 7, 13)
    state = initial_state(dag).apply(Rfactor("C", "k", 4, "outer"), CacheWrite("C.rf"))
    axes = [a.name for a in state.stage("C.rf").op.axes]
    state = state.apply(*tiled("C.rf", axes, "f"), Atomic("C"))  # C's own loops are as written: one thread
    check_nest(concretise(lower(state), random_values(0, parameters(state), (1, 2)))[0], dag)


# Sketches

CUDA = parse_target("cuda -arch=sm_80")


def is_atomic(sketch: Sketch) -> bool:
    return any(isinstance(step, Atomic) for step in sketch.state.steps)


def atomic_sketches(dag: ComputeDAG) -> list[Sketch]:
    return list(filter(is_atomic, sketches(collapse(dag), CUDA, (AtomicSplit(), *RULES))))


def long_sum(dtype: str = "float32") -> ComputeDAG:
    """Two sums of 20000, and twice of them."""
    X = te.placeholder((2, 20000), dtype, name="X")
    k = te.reduce_axis(20000, name="k")
    R = te.compute((2,), lambda i: te.sum(X[i, k], axis=k), name="R")
    return ComputeDAG(te.compute((2,), lambda i: R[i] + R[i], name="Y"))


def total_of_all() -> ComputeDAG:
    X = te.placeholder((100, 300), name="X")
    i, j = te.reduce_axis(100, name="i"), te.reduce_axis(300, name="j")
    return ComputeDAG(te.compute((), lambda: te.sum(X[i, j], axis=[i, j]), name="R"))


def test_it_is_only_for_those_who_ask() -> None:
    assert not any(isinstance(rule, AtomicSplit) for rule in RULES)
    for dag in (build("gmm", (1, 20, 24, 300))[0], long_sum()):
        assert atomic_sketches(dag)
        plain = sketches(collapse(dag), CUDA)
        assert not any(map(is_atomic, plain))
        assert {s.name for s in plain} <= {s.name for s in sketches(collapse(dag), CUDA, (AtomicSplit(), *RULES))}
    best = te.placeholder((2, 20000), name="X")
    k = te.reduce_axis(20000, name="k")
    assert not atomic_sketches(ComputeDAG(te.compute((2,), lambda i: te.max(best[i, k], axis=k), name="R")))


@dialects
@pytest.mark.parametrize("name", ["product", "rows", "double", "conv"])
def test_sketches_compute_what_the_operator_says(dialect: str, name: str) -> None:
    dag = {
        "product": lambda: build("gmm", (1, 20, 24, 300))[0],
        "rows": long_sum,
        "double": lambda: long_sum("float64"),
        "conv": lambda: build("c2d", (1, 5, 5, 130, 8, 3, 1, 1))[0],
    }[name]()
    drawn = draw(collapse(dag), CUDA, 200, rules=(AtomicSplit(), *RULES), wanted=is_atomic)
    found = list(islice(drawn, 3))
    assert found
    check_candidates(dag, found, TARGETS[dialect])

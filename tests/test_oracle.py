"""Every built-in operator's loop nest, as written and with tiled, parallel loops, computes the reference."""

from __future__ import annotations

import pytest

from autosched.ir.expr import Binary, Const
from autosched.ir.stmt import For, ForKind, Func, Seq, Stmt, Store
from autosched.ir.verify import IRError, verify
from autosched.lower import concretise, lower
from autosched.schedule import Parallel, Split, State, initial_state
from autosched.te.dag import ComputeDAG
from autosched.te.operators.registry import WORKLOADS, build, small_numbers
from tests.helpers import check_nest

SMALLER = {
    "cap": {"N": 1, "H": 3, "W": 3, "CI": 2, "CO": 2},
    "c3d": {"N": 1, "H": 3, "W": 3},
    "grp": {"groups": 2},
    "winograd": {"N": 1},
}


def small(name: str) -> ComputeDAG:
    return build(name, settings={**small_numbers(WORKLOADS[name]), **SMALLER.get(name, {})})[0]


def tiled(state: State) -> State:
    """Every axis of every stage split in three, with tails, the outermost loop parallel."""
    for stage in state.stages:
        for loop in stage.loops:
            state = state.apply(Split(stage.name, loop.name, (2, 3)))
        outermost = state.stage(stage.name).loops[0]
        if not outermost.reduce:
            state = state.apply(Parallel(stage.name, (outermost.name,)))
    return state


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_as_written_and_tiled(name):
    dag = small(name)
    stores = []
    for state in (initial_state(dag), tiled(initial_state(dag))):
        symbolic = lower(state)
        verify(symbolic)
        concrete, _ = concretise(symbolic, {})
        stores.append(check_nest(concrete, dag))
    assert stores[0] == stores[1]  # tiling visits every point exactly once


def changed(stmt: Stmt, change) -> Stmt:
    """`stmt` with `change` applied to every store and loop, innermost first."""
    if isinstance(stmt, For):
        return change(For(stmt.var, stmt.extent, stmt.bound, stmt.kind, changed(stmt.body, change), stmt.reduce))
    if isinstance(stmt, Seq):
        return Seq(tuple(changed(s, change) for s in stmt.stmts))
    return change(stmt) if isinstance(stmt, Store) else stmt


def plain_matmul() -> tuple[Func, ComputeDAG]:
    dag = small("matmul")
    return concretise(lower(initial_state(dag)), {})[0], dag


def test_the_oracle_sees_one_term_missing():
    func, dag = plain_matmul()

    def shorten(s: Stmt) -> Stmt:
        if isinstance(s, For) and s.reduce:
            n = Const(6, "int64")
            return For(s.var, n, n, s.kind, s.body, True)
        return s

    with pytest.raises(AssertionError, match=r"elements are wrong in\nkernel"):
        check_nest(Func(func.name, func.params, 1, changed(func.body, shorten)), dag)


def test_the_oracle_sees_a_wrong_operation():
    func, dag = plain_matmul()

    def add(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.reducer is not None:
            product = s.values[0]
            assert isinstance(product, Binary)
            return Store(s.buffers, s.indices, (product.a + product.b,), s.reducer, s.stage)
        return s

    with pytest.raises(AssertionError, match="elements are wrong in"):
        check_nest(Func(func.name, func.params, 1, changed(func.body, add)), dag)


def test_the_oracle_sees_a_race():
    func, dag = plain_matmul()

    def parallel(s: Stmt) -> Stmt:
        return For(s.var, s.extent, s.bound, ForKind.PARALLEL, s.body, True) if isinstance(s, For) and s.reduce else s

    with pytest.raises(IRError, match="race: a task writes"):
        check_nest(Func(func.name, func.params, 1, changed(func.body, parallel)), dag)

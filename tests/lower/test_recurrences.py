"""Nests of recurrences: every schedule computes the positions in order, and the verifier sees one that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosched.ir.stmt import For, ForKind, Func, Stmt
from autosched.ir.verify import IRError, verify
from autosched.lower import concretise, lower
from autosched.schedule import CacheWrite, ComputeAt, Reorder, Split, initial_state
from autosched.te import ComputeDAG
from autosched.te.rewrites.collapse import collapse
from tests.helpers import exact
from tests.schedule.random_steps import random_schedule
from tests.te.scans import CASES, case, smoothed

EMPTY = ("no positions", "no lines")
GRAPHS = {name: lambda name=name: collapse(case(name)) for name in CASES if name not in EMPTY}


@pytest.mark.parametrize("name", GRAPHS)
def test_loops_as_written(name):
    dag = GRAPHS[name]()
    exact(dag, initial_state(dag))


@pytest.mark.parametrize("seed", range(120))
def test_random_schedules(seed):
    dag, state = random_schedule(seed, graphs=GRAPHS)
    exact(dag, state)


@pytest.mark.parametrize("step", [-1, 1])
def test_inside_a_loop_over_lines_all_positions_are_computed(step):
    dag = ComputeDAG(smoothed((7, 9), 0, step))
    state = initial_state(dag).apply(CacheWrite("Y"), Split("Y", "i1", (4,)), Reorder("Y", ("i1.0", "i0", "i1.1")))
    func = exact(dag, state.apply(ComputeAt("Y.acc", "Y", "i1.0")))
    assert "alloc Y.acc: float32[7, 4] local" in str(func.body)
    func = exact(dag, state.apply(ComputeAt("Y.acc", "Y", "i0")))
    assert "alloc Y.acc: float32[7, 4] local" in str(func.body)


def with_loop(func: Func, name: str, kind: ForKind) -> Func:
    def go(s: Stmt) -> Stmt:
        return replace(s, kind=kind if s.var.name == name else s.kind, body=go(s.body)) if isinstance(s, For) else s

    return replace(func, body=go(func.body))


@pytest.mark.parametrize("kind", [ForKind.PARALLEL, ForKind.UNROLL])
def test_the_verifier_refuses_a_loop_that_is_not_in_order(kind):
    func, _ = concretise(lower(initial_state(ComputeDAG(smoothed((7, 9))))), {})
    with pytest.raises(IRError, match=f"reads what earlier iterations of the {kind.value} loop Y.i0 write"):
        verify(with_loop(func, "Y.i0", kind), concrete=True)

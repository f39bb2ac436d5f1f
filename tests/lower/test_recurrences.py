"""Nests of recurrences: every schedule computes the positions in order, and the verifier sees one that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosched import te
from autosched.ir.expr import Select
from autosched.ir.stmt import For, ForKind, Func, Stmt, walk
from autosched.ir.verify import IRError, verify
from autosched.ir.visit import exprs_of, loads, subexpressions
from autosched.lower import concretise, lower
from autosched.schedule import CacheWrite, ComputeAt, Reorder, Split, Vectorize, initial_state
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


def along(dag: ComputeDAG, lanes: int) -> Func:
    """The nest of a recurrence along the first axis, with lanes along the last one directly inside of its loop."""
    (stage,) = initial_state(dag).stages
    i, j = (a.name for a in stage.op.axes)
    steps = (Split(stage.name, j, (lanes,)), Reorder(stage.name, (f"{j}.0", i, f"{j}.1")))
    return exact(dag, initial_state(dag).apply(*steps, Vectorize(stage.name, f"{j}.1")))


def test_values_are_held_in_registers_and_begin_ahead_of_the_loop():
    assert str(along(ComputeDAG(smoothed((13, 36))), 4).body).splitlines() == [
        "for Y.i1.0 in 0..9",
        "    alloc Y.held.4: float32[2, 4] register",
        "    for Y.i1.1 in 0..4  # vectorize",
        "        Y.held.4[1, Y.i1.1] = X[0, Y.i1.0*4 + Y.i1.1]  # Y.init",
        "    for Y.i0 in 0..13  # reduce",
        "        for Y.i1.1 in 0..4  # vectorize",
        "            Y.held.4[0, Y.i1.1] = Y.held.4[1, Y.i1.1] * 0.75 + X[Y.i0, Y.i1.0*4 + Y.i1.1] * 0.25  # Y",
        "        for Y.i1.1 in 0..4  # vectorize",
        "            Y[Y.i0, Y.i1.0*4 + Y.i1.1] = Y.held.4[0, Y.i1.1]",
        "        for Y.i1.1 in 0..4  # vectorize",
        "            Y.held.4[1, Y.i1.1] = Y.held.4[0, Y.i1.1]",
    ]


@pytest.mark.parametrize("name", ["third order", "third order backwards", "two states", "int32", "automaton"])
def test_nothing_is_read_back(name):
    func = along(case(name), 4)
    outputs = {b.name for b in func.params[-func.n_outputs :]}
    read = {x.buffer for s in walk(func.body) for e in exprs_of(s) for x in loads(e)}
    assert not read & outputs
    assert not any(isinstance(e, Select) for s in walk(func.body) for v in exprs_of(s) for e in subexpressions(v))


def test_conditions_of_other_kinds_stay():
    text = str(along(case("resetting"), 7).body)
    assert "select(Y.i < 1, " in text
    assert "Y.held.7[1, Y.j.1]" in text


def test_values_are_read_from_memory_where_registers_do_not_suffice():
    func = along(ComputeDAG(smoothed((5, 512))), 256)
    assert "Y[Y.i0 - 1, " in str(func.body)


def test_values_are_read_from_memory_where_the_loop_is_split():
    dag = ComputeDAG(smoothed((13, 8)))
    assert "Y[Y.i0.0*4 + Y.i0.1 - 1, Y.i1]" in str(exact(dag, initial_state(dag).apply(Split("Y", "i0", (4,)))).body)


def test_before_the_beginning_reads_may_differ():
    """What is read at one position before the beginning depends on where it is read: the conditions stay."""
    x = te.placeholder((9, 8), name="X")
    dag = ComputeDAG(
        te.scan(
            (9, 8),
            lambda y, i, j: te.select(i < 1, x[i, j], y[i - 1, j]) + te.select(i < 2, x[i + 1, j], y[i - 2, j]),
            dtype="float32",
            name="Y",
        )
    )
    text = str(along(dag, 8).body)
    assert "select(Y.i < 2, X[Y.i + 1, Y.j.1], Y.held.8[2, Y.j.1])" in text


@pytest.mark.parametrize("columns", [32, 34, 39, 47])
def test_a_part_of_the_positions_does_not_begin_in_registers(columns):
    """A row of T is interleaved with the previous row of Y; the remaining columns of Y are computed in a second loop."""
    a = te.placeholder((3, columns), name="A")
    t = te.compute((3, columns), lambda i, j: te.tanh(a[i, j]), name="T")
    y = te.scan(
        (3, columns),
        lambda y, i, j: te.maximum(t[i, j], te.select(j >= 1, y[i, j - 1], t[i, 0])),
        axis=1,
        dtype="float32",
        name="Y",
    )
    dag = ComputeDAG(y)
    func = exact(dag, initial_state(dag).apply(Split("T", "j", (4,)), Vectorize("T", "j.1")))
    assert any(isinstance(s, For) and s.var.name.endswith(".n") for s in walk(func.body))

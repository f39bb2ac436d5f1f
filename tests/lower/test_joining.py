"""A pass that reads what another one has just written runs in the same loops, and only then."""

from __future__ import annotations

import re

import pytest

from autosched import te
from autosched.ir.stmt import For, Stmt, Store, walk
from autosched.lower import concretise, lower
from autosched.schedule import ComputeAt, Parallel, Reorder, Rfactor, Split, State, Vectorize, initial_state
from autosched.target import parse_target
from autosched.te import ComputeDAG
from tests.codegen.running import build, check_kernel
from tests.helpers import check_nest


def normalised(rows: int, columns: int, ahead: int = 0) -> ComputeDAG:
    """exp of a row, over the sum of its exp(x[k]) * exp(x[k + ahead])."""
    x = te.placeholder((rows, columns), name="X")
    k = te.reduce_axis(columns - ahead, name="k")
    power = te.compute((rows, columns), lambda i, j: te.exp(x[i, j]), name="power")
    total = te.compute((rows,), lambda i: te.sum(power[i, k] * power[i, k + ahead], axis=k), name="total")
    return ComputeDAG(te.compute((rows, columns), lambda i, j: power[i, j] / total[i], name="out"))


def row_by_row(dag: ComputeDAG, width: int, lanes: int, block: int = 1) -> State:
    """`block` rows a visit; power in vectors of `width`, its sum in vectors of `lanes`."""
    return initial_state(dag).apply(
        Split("out", "i", (block,)),
        Split("out", "j", (32,)),
        Vectorize("out", "j.1"),
        Parallel("out", ("i.0",)),
        ComputeAt("total", "out", "i.0"),
        Rfactor("total", "k", lanes, "inner"),
        Reorder("total.rf", ("i", "k.o", "k.i")),
        Vectorize("total.rf", "k.i"),
        ComputeAt("total.rf", "total", "i", "register"),
        Vectorize("total", "k.i"),
        ComputeAt("power", "out", "i.0"),
        Split("power", "j", (width,)),
        Vectorize("power", "j.1"),
    )


def loops_around(stmt: Stmt, stage: str) -> set[str]:
    """The loops that the stores of a stage stand in."""
    found: set[str] = set()
    for s in walk(stmt):
        if isinstance(s, For) and any(isinstance(x, Store) and x.stage == stage for x in walk(s)):
            found.add(s.var.name)
    return found


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("columns", [5, 32, 64, 100, 127])
def test_equal_vectors_are_joined(columns, block):
    dag = normalised(6, columns)
    state = row_by_row(dag, 32, 32, block)
    func, _ = concretise(lower(state), {})
    around = loops_around(func.body, "power")
    assert around
    assert not any(name.startswith("power.") for name in around)
    check_nest(func, dag)
    check_kernel(dag, state, kind="normal")


@pytest.mark.parametrize(("width", "lanes", "ahead"), [(16, 32, 0), (32, 16, 0), (32, 32, 1)])
def test_what_is_needed_before_it_is_there_is_not_joined(width, lanes, ahead):
    dag = normalised(4, 96, ahead)
    state = row_by_row(dag, width, lanes)
    func, _ = concretise(lower(state), {})
    assert any(name.startswith("power.") for name in loops_around(func.body, "power"))
    check_nest(func, dag)
    check_kernel(dag, state, kind="normal")


@pytest.mark.parametrize("columns", [33, 64, 100, 128])
@pytest.mark.parametrize("reducer", [te.sum, te.max, te.argmax])
def test_rows_of_a_few_vectors_are_combined_before_their_lanes_and_begin_with_a_term(columns, reducer):
    x, k = te.placeholder((6, columns), name="X"), te.reduce_axis(columns, name="k")
    made = te.compute((6,), lambda i: reducer(x[i, k], axis=k), name="S")
    dag = ComputeDAG(made)
    name = dag.stages[0].name
    state = initial_state(dag).apply(
        Rfactor(name, "k", columns, "inner"),
        Reorder(f"{name}.rf", ("i", "k.o", "k.i")),
        Vectorize(f"{name}.rf", "k.i"),
        ComputeAt(f"{name}.rf", name, "i", "register"),
        Vectorize(name, "k.i"),
    )
    func, _ = concretise(lower(state), {})
    stores = {s.stage: s for s in walk(func.body) if isinstance(s, Store)}
    assert (f"{name}.rf.init" in stores) is (reducer is te.argmax)  # which begins with the first place
    check_nest(func, dag)
    check_kernel(dag, state, kind="normal")
    if reducer is te.sum and columns % 16 == 0:
        text = build(state, parse_target("llvm -mcpu=skylake-avx512"), 1).ir
        assert len(re.findall(r"fadd <16 x float>", text)) == columns // 16 - 1
        assert len(re.findall(r"fadd <8 x float>", text)) == 1

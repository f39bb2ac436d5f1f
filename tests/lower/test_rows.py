"""Passes over rows: kept in the output, beside each other, with what stands still in registers; and only then."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.ir.printer import func_text
from autosched.ir.size import Guards
from autosched.ir.stmt import Allocate, For, Func, Scope, Store, walk
from autosched.lower import concretise, lower
from autosched.schedule import ComputeAt, Parallel, Reorder, Rfactor, Split, State, Vectorize, initial_state
from autosched.te import ComputeDAG
from tests.codegen.running import check_kernel
from tests.helpers import check_nest
from tests.lower.test_joining import normalised, row_by_row


def locals_of(func: Func) -> set[str]:
    return {s.buffer.name for s in walk(func.body) if isinstance(s, Allocate) and s.buffer.scope is Scope.LOCAL}


def beside(func: Func, first: str, second: str) -> bool:
    """Whether a serial loop that is no loop over rows has vectors of both stages."""
    for s in walk(func.body):
        if isinstance(s, For) and s.kind.value == "serial":
            inner = [x for x in walk(s.body) if isinstance(x, For) and x.kind.value == "serial"]
            stages = {x.stage for x in walk(s.body) if isinstance(x, Store)}
            if {first, second} <= stages and not any(
                len({y.stage for y in walk(x) if isinstance(y, Store)}) > 1 for x in inner
            ):
                return True
    return False


def chain(columns: int, rows: int, used: str) -> ComputeDAG:
    """out = 2 power of power = exp(x); `used`: "first" reads power[i, 0] as well, "cast" is another type."""
    x = te.placeholder((rows, columns), name="X")
    power = te.compute((rows, columns), lambda i, j: te.exp(x[i, j]), name="power")

    def value(i, j):
        two = power[i, j] * 2.0
        return te.cast(two, "float64") if used == "cast" else two + power[i, 0] if used == "first" else two

    return ComputeDAG(te.compute((rows, columns), value, name="out"))


def rows_of_chain(dag: ComputeDAG, block: int, width: int, widths: int) -> State:
    return initial_state(dag).apply(
        Split("out", "i", (block,)),
        Split("out", "j", (width,)),
        Vectorize("out", "j.1"),
        Parallel("out", ("i.0",)),
        ComputeAt("power", "out", "i.0"),
        Split("power", "j", (widths,)),
        Vectorize("power", "j.1"),
    )


@pytest.mark.parametrize(("columns", "block"), [(5, 1), (96, 3), (100, 6), (127, 2)])
def test_a_row_is_kept_in_the_output(columns, block):
    dag = normalised(6, columns)
    state = row_by_row(dag, 32, 32, block)
    func, _ = concretise(lower(state), {})
    assert "power" not in locals_of(func)
    check_nest(func, dag)
    check_kernel(dag, state, kind="normal")


@pytest.mark.parametrize(("used", "kept"), [("", False), ("first", True), ("cast", True)])
@pytest.mark.parametrize("columns", [33, 64])
def test_only_a_row_of_the_same_points_is(columns, used, kept):
    dag = chain(columns, 4, used)
    state = rows_of_chain(dag, 2, 16, 32)
    func, _ = concretise(lower(state), {})
    assert ("power" in locals_of(func)) == kept
    check_nest(func, dag)
    check_kernel(dag, state, kind="normal")


def test_full_tiles_of_rows_of_a_size_are_interleaved():
    with Guards() as guards:
        dag = normalised(guards.symbol("rows", 20, 1, 64), 128)
        func, _ = concretise(lower(row_by_row(dag, 32, 32, 3)), {})
    assert beside(func, "out", "total.rf")
    assert not guards.conditions


@pytest.mark.parametrize(("width", "lanes"), [(32, 32), (16, 32), (32, 16)])
@pytest.mark.parametrize(("columns", "block"), [(128, 3), (100, 2), (100, 6), (250, 6), (31, 3)])
def test_rows_are_interleaved(width, lanes, columns, block):
    dag = normalised(6, columns)
    state = row_by_row(dag, width, lanes, block)
    func, _ = concretise(lower(state), {})
    if columns in (128, 250):
        assert beside(func, "out", "total.rf")
    check_nest(func, dag)
    check_kernel(dag, state, kind="normal")


@pytest.mark.parametrize("lanes", [32, 14])
def test_passes_of_open_sizes_are_interleaved_where_no_ratio_is_decided(lanes):
    with Guards() as guards:
        columns = guards.symbol("n", 99, 64, 4096)
        func, _ = concretise(lower(row_by_row(normalised(6, columns), 32, lanes, 3)), {})
    assert lanes != 32 or beside(func, "out", "total.rf")
    assert all(guards.hold({"n": n}) for n in range(65, 4097, 2)), guards


@pytest.mark.parametrize("columns", [64, 100])
@pytest.mark.parametrize(("block", "first"), [(3, 1), (4, 2), (7, 2), (8, 2)])
def test_many_short_rows_are_two_apart(block, first, columns):
    """The sum of a row is there a step before it is needed; `first`: what is summed up then, from this row on."""
    dag = normalised(2 * block, columns)
    state = row_by_row(dag, 16, 16, block)
    func, _ = concretise(lower(state), {})
    assert f"total.i.s + {first}" in func_text(func)
    assert f"total.i.s + {first + 1}" not in func_text(func)
    check_nest(func, dag)
    check_kernel(dag, state, kind="normal")


@pytest.mark.parametrize("rows", [1, 4, 7])
def test_rows_that_know_of_each_other_are_not(rows):
    """Each row needs the one below it."""
    x = te.placeholder((rows + 1, 96), name="X")
    power = te.compute((rows + 1, 96), lambda i, j: te.exp(x[i, j]), name="power")
    dag = ComputeDAG(te.compute((rows, 96), lambda i, j: power[i, j] + power[i + 1, j], name="out"))
    state = rows_of_chain(dag, rows, 16, 16)
    func, _ = concretise(lower(state), {})
    assert not beside(func, "out", "power")
    check_nest(func, dag)
    check_kernel(dag, state, kind="normal")


def test_what_stands_still_is_in_a_register():
    dag = normalised(6, 96)
    func, _ = concretise(lower(row_by_row(dag, 32, 32, 3)), {})
    held = [s.buffer for s in walk(func.body) if isinstance(s, Allocate) and ".held" in s.buffer.name]
    assert held
    assert all(b.scope is Scope.REGISTER for b in held)


def test_what_becomes_of_it_is_computed_once_for_a_row():
    """The root of a mean is beside the loop over the vectors, not in it."""
    x, k = te.placeholder((6, 96), name="X"), te.reduce_axis(96, "k")
    squares = te.compute((6,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="squares")
    dag = ComputeDAG(te.compute((6, 96), lambda i, j: x[i, j] * te.rsqrt(squares[i] / 96.0 + 1e-5), name="out"))
    state = initial_state(dag).apply(
        Rfactor("squares", "k", 16), Reorder("squares.rf", ("i", "k.o", "k.i")), Vectorize("squares.rf", "k.i"),
        Split("out", "i", (3,)), Split("out", "j", (16,)), Vectorize("out", "j.1"), Parallel("out", ("i.0",)),
        ComputeAt("squares", "out", "i.0"), ComputeAt("squares.rf", "squares", "i", "register"),
        Vectorize("squares", "k.i"),
    )  # fmt: skip
    func, _ = concretise(lower(state), {})
    roots = [s for s in walk(func.body) if isinstance(s, Store) and any("rsqrt" in str(v) for v in s.values)]
    assert roots
    assert all(b.endswith(".held") for s in roots for b in s.buffers)
    check_nest(func, dag)
    check_kernel(dag, state, kind="normal")


@pytest.mark.parametrize(("rows", "joined"), [(4, True), (1, False)])
def test_one_value_of_each_row_parts_no_passes(rows, joined):
    """The mean is computed at the beginning of the pass that needs it first, row by row, not between the passes."""
    x, k = te.placeholder((2 * rows, 96), name="X"), te.reduce_axis(96, "k")
    total = te.compute((2 * rows,), lambda i: te.sum(x[i, k], axis=k), name="total")
    mean = te.compute((2 * rows,), lambda i: total[i] / 96.0, name="mean")
    dag = ComputeDAG(te.compute((2 * rows, 96), lambda i, j: (x[i, j] - mean[i]) * mean[i], name="out"))
    state = initial_state(dag).apply(
        Rfactor("total", "k", 16), Reorder("total.rf", ("i", "k.o", "k.i")), Vectorize("total.rf", "k.i"),
        Split("out", "i", (rows,)), Split("out", "j", (16,)), Vectorize("out", "j.1"), Parallel("out", ("i.0",)),
        ComputeAt("mean", "out", "i.0"), ComputeAt("total", "out", "i.0"),
        ComputeAt("total.rf", "total", "i", "register"), Vectorize("total", "k.i"),
    )  # fmt: skip
    func, _ = concretise(lower(state), {})
    assert beside(func, "out", "total.rf") == joined
    check_nest(func, dag)
    check_kernel(dag, state, kind="normal")

"""Widths of indices that are arithmetic on loop variables, against the elements and lines that are touched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autosched import te
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import INDEX, Const, Expr, Load, Param, Var, call, cast
from autosched.ir.visit import substitute
from autosched.lower import lower
from autosched.schedule import Reorder, Split, Vectorize, initial_state
from autosched.target import parse_target
from autosched.te import ComputeDAG
from cost_model.analysis.measured_widths import index_slopes, positions
from cost_model.analysis.statements import analyse
from cost_model.cpu.latency import make_block
from cost_model.cpu.machine import machine

ROW, COLUMN = Var("i"), Var("j")
ROWS, COLUMNS, TILE = 96, 320, (8, 32)


def real(e: Expr) -> Expr:
    return cast(e, "float32")


def slopes(index: Expr, i: int = 500, j: int = 700) -> tuple[float, ...]:
    widths = {p: Const(i if p is ROW else j, INDEX) for p in positions(index)}
    found = index_slopes(index, widths)
    assert found is not None
    return found.slopes


def test_a_rounded_linear_function_moves_by_its_coefficients():
    index = cast(call("floor", real(COLUMN) * 0.96 + real(ROW) * -0.25 + 3.5), "int32")
    assert positions(index) == (COLUMN, ROW)
    assert slopes(index) == pytest.approx((0.96, 0.25), rel=0.05)


def test_a_clamp_holds_it_where_it_is_mostly_outside():
    assert slopes(cast(call("floor", real(COLUMN) * 0.5), "int32"))[0] == pytest.approx(0.5, rel=0.05)
    clamped = te.min(te.max(cast(call("floor", real(COLUMN) * 0.5), "int64"), 0), 35)  # 70 of 700
    assert slopes(clamped)[0] == pytest.approx(0.05, rel=0.3)


def test_a_product_moves_by_the_other_factor():
    assert slopes(ROW * COLUMN) == pytest.approx((350, 250), rel=0.1)
    assert slopes(COLUMN * COLUMN)[0] == pytest.approx(700, rel=0.1)


def test_what_hashes_is_as_wide_as_its_range():
    index = (COLUMN * COLUMN * 7919) % 512
    found = index_slopes(index, {COLUMN: Const(700, INDEX)})
    assert found is not None
    assert found.slopes[0] > 16
    (width,) = Program([found.width([Const(64, INDEX)])], ())(np.zeros((1, 0)))[:, 0]
    assert 450 <= width <= 511


def test_data_and_other_functions_are_not_measured():
    assert index_slopes(Load("n", (COLUMN,), "int64") * COLUMN, {COLUMN: Const(7, INDEX)}) is None
    assert index_slopes(cast(call("sin", real(COLUMN)), "int32"), {COLUMN: Const(7, INDEX)}) is None


def test_an_axis_of_one_position():
    assert slopes(ROW * ROW, i=0) == (0.0,)


INDICES: dict[str, Callable[[Expr, Expr], tuple[Expr, Expr]]] = {
    "an affine warp": lambda i, j: (
        te.cast(te.floor(te.cast(j, "float32") * -0.04 + te.cast(i, "float32") * 0.97 + 13.0), "int32"),
        te.cast(te.floor(te.cast(j, "float32") * 0.96 + te.cast(i, "float32") * 0.05 + 3.5), "int32"),
    ),
    "a smaller image": lambda i, j: (i // 2, te.cast(te.round(te.cast(j, "float32") * 0.3), "int32")),
    "columns": lambda i, j: (te.cast(te.floor(te.cast(j, "float32") * 0.2), "int32"), i),
    "a product": lambda i, j: (i, i * j),
}


@pytest.mark.parametrize("case", INDICES)
def test_lines_that_a_tile_touches(case):
    """At each depth, of the tile in the middle of the image; of a diagonal, those of the rectangle around it."""
    a = te.placeholder((ROWS, COLUMNS), name="A")
    dag = ComputeDAG(te.compute((ROWS, COLUMNS), lambda i, j: a[INDICES[case](i, j)], name="C"))
    steps = Split("C", "i", TILE[:1]), Split("C", "j", TILE[1:]), Reorder("C", ("i.0", "j.0", "i.1", "j.1"))
    (statement,) = analyse(lower(initial_state(dag).apply(*steps))).statements
    (read,) = [x for x in statement.accesses if x.kind == "read"]
    lines = Program(list(read.lines), ())(np.zeros((1, 0)))[:, 0]
    middle = [n // 2 // t * t for n, t in zip((ROWS, COLUMNS), TILE, strict=True)]
    for depth, (rows, columns) in enumerate(((ROWS, COLUMNS), (TILE[0], COLUMNS), TILE, (1, TILE[1]), (1, 1))):
        first = [0 if n in (ROWS, COLUMNS) else m for n, m in zip((rows, columns), middle, strict=True)]
        i, j = np.meshgrid(first[0] + np.arange(rows), first[1] + np.arange(columns), indexing="ij")
        index = [te_value(x, i, j) for x in INDICES[case](ROW, COLUMN)]
        flat = index[0].clip(0, ROWS - 1) * COLUMNS + index[1].clip(0, COLUMNS - 1)
        touched = len(np.unique(flat * 4 // 64))
        assert touched / 2 <= lines[depth] <= touched * (2.5 if case == "an affine warp" else 2), (
            depth,
            lines[depth],
            touched,
        )


def te_value(index: Expr, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """An index over the variables `ROW` and `COLUMN` at points."""

    form = substitute(index, {ROW: Param("i"), COLUMN: Param("j")})
    values = Program([form], ("i", "j"))(np.stack([i.ravel(), j.ravel()], axis=1))
    return values[0].reshape(i.shape).astype("int64")


def test_gathered_elements_take_as_long_as_the_core_says():
    a = te.placeholder((ROWS, COLUMNS), name="A")
    cycles = {}
    ways = {
        "gathered": lambda i, j: (i, j * j % COLUMNS),
        "gathered again": lambda i, j: (i, te.cast(te.floor(te.cast(j, "float32") * 0.25), "int32")),
        "rows": lambda i, j: (i * i % ROWS, j),
    }
    bodies = {name: lambda i, j, at=at: a[at(i, j)] for name, at in ways.items()}
    column = ways["gathered again"]
    bodies["neighbours"] = lambda i, j: a[column(i, j)] + a[i, column(i, j)[1] + 1]
    for name, body in bodies.items():
        dag = ComputeDAG(te.compute((ROWS, COLUMNS), body, name="C"))
        state = initial_state(dag).apply(Split("C", "j", (16,)), Vectorize("C", "j.1"))
        (statement,) = analyse(lower(state)).statements
        block = make_block(statement, machine(parse_target("llvm -mcpu=znver4"), 1))
        (cycles[name],) = Program([block.limits["loads"]], ())(np.zeros((1, 0)))[:, 0]
    assert cycles["rows"] == pytest.approx(1)
    assert cycles["gathered"] == cycles["gathered again"] == cycles["neighbours"] == pytest.approx(16 / 0.83)

"""Padding that is left out: the same values, and no work for what is outside, whatever the register tile."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.ir.expr import Select
from autosched.ir.stmt import For, ForKind, Func, If, Stmt, Store, walk
from autosched.ir.stmt import Prefetch as PrefetchHint
from autosched.ir.verify import verify
from autosched.ir.visit import subexpressions
from autosched.lower import concretise, lower
from autosched.lower.passes.borders import MAX_COPIES
from autosched.schedule import (
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Prefetch,
    Reorder,
    Rfactor,
    Split,
    Step,
    Unroll,
    Vectorize,
    initial_state,
)
from autosched.te import ComputeDAG
from tests.helpers import check_nest

CO = 5


def window(
    h: int, w: int, k: int, stride: int = 1, dilation: int = 1, pad: int = 1, outside: float = 0.0
) -> ComputeDAG:
    """Y[i, j, o] = sum of P[i * stride + a * dilation, j * stride + b * dilation, c] * W[a, b, c, o]."""
    x, weights = te.placeholder((h, w, 3), name="X"), te.placeholder((k, k, 3, CO), name="W")

    def padded(i, j, c):
        return te.select((i >= pad) & (i < h + pad) & (j >= pad) & (j < w + pad), x[i - pad, j - pad, c], outside)

    p = te.compute((h + 2 * pad, w + 2 * pad, 3), padded, name="P")
    a, b, c = te.reduce_axis(k, "a"), te.reduce_axis(k, "b"), te.reduce_axis(3, "c")
    reach = dilation * (k - 1)

    def value(i, j, o):
        return te.sum(p[i * stride + a * dilation, j * stride + b * dilation, c] * weights[a, b, c, o], axis=[a, b, c])

    shape = ((h + 2 * pad - reach - 1) // stride + 1, (w + 2 * pad - reach - 1) // stride + 1, CO)
    return ComputeDAG(te.compute(shape, value, name="Y"))


def inside(n: int, k: int, stride: int, dilation: int, pad: int) -> int:
    """Pairs of an output and a tap along one axis whose element is in the image."""
    outputs = (n + 2 * pad - dilation * (k - 1) - 1) // stride + 1
    return sum(0 <= i * stride + a * dilation - pad < n for i in range(outputs) for a in range(k))


def tiled(dag: ComputeDAG, rows: int, columns: int, *more: Step) -> tuple[Func, dict[str, int]]:
    """A register tile of rows x columns points; the loops of the reduction as they are."""
    steps = (
        ComputeInline("P"), CacheWrite("Y"), Split("Y", "i", (rows,)), Split("Y", "j", (columns,)),
        Reorder("Y", ("i.0", "j.0", "i.1", "j.1", "o")), ComputeAt("Y.acc", "Y", "j.0", "register"),
        Unroll("Y", "i.1"), Unroll("Y", "j.1"), Vectorize("Y", "o"), Reorder("Y.acc", ("a", "b", "c", "i", "j", "o")),
        Unroll("Y.acc", "i"), Unroll("Y.acc", "j"), Vectorize("Y.acc", "o"),
    )  # fmt: skip
    func = concretise(lower(initial_state(dag).apply(*steps, *more)), {})[0]
    verify(func, concrete=True)
    return func, check_nest(func, dag)


def has_select(stmt: Stmt) -> bool:
    stores = [s for s in walk(stmt) if isinstance(s, Store)]
    return any(isinstance(e, Select) for s in stores for v in s.values for e in subexpressions(v))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 1), (1, 7), (2, 3), (4, 2), (3, 7)])
@pytest.mark.parametrize(("k", "stride", "dilation", "pad"), [(3, 1, 1, 1), (3, 1, 2, 2), (3, 2, 1, 1), (5, 1, 1, 2)])
def test_nothing_is_done_for_the_padding(rows, columns, k, stride, dilation, pad):
    dag = window(7, 6, k, stride, dilation, pad)
    func, counts = tiled(dag, rows, columns)
    if rows * columns <= 7:  # of larger tiles not every interval is written out
        assert not has_select(func.body)
        work = [inside(n, k, stride, dilation, pad) for n in (7, 6)]
        assert counts["Y.acc"] == work[0] * work[1] * 3 * CO


def test_hints_are_left_out_with_the_padding():
    for rows, columns in ((7, 1), (2, 3)):
        func, counts = tiled(window(7, 6, 3), rows, columns, Prefetch("Y.acc", "W", "c", 2))
        assert not has_select(func.body)
        assert counts["Y.acc"] == inside(7, 3, 1, 1, 1) * inside(6, 3, 1, 1, 1) * 3 * CO
        assert any(isinstance(s, PrefetchHint) for s in walk(func.body))


def test_code_stays_small():
    """Tiles of many points in wide windows have more intervals than are written out; the conditions stay then."""
    func, _ = tiled(window(9, 9, 7, pad=3), 9, 9)
    updates = [s for s in walk(func.body) if isinstance(s, Store) and s.reducer is not None]
    assert len(updates) <= MAX_COPIES
    assert has_select(func.body)


def test_tests_stand_outside_of_the_register_tile():
    func, _ = tiled(window(7, 7, 3), 3, 2)
    for loop in walk(func.body):
        if isinstance(loop, For) and loop.kind in (ForKind.UNROLL, ForKind.VECTORIZE):
            assert not any(isinstance(s, If) for s in walk(loop))


def test_tests_of_taps_that_are_outside_stand_outside_of_the_reduction():
    """The partial sums have the taps for axes of their own: one test for all channels of a tap."""
    dag = window(7, 6, 3)
    steps = (
        ComputeInline("P"), Rfactor("Y", "c", 2, "outer", ("a", "b")), Reorder("Y", ("a", "b", "c.o", "i", "j", "o")),
        ComputeAt("Y.rf", "Y", "j", "register"), Vectorize("Y", "o"),
        Reorder("Y.rf", ("c.i", "a", "b", "c.o", "i", "j", "o")), Vectorize("Y.rf", "o"),
    )  # fmt: skip
    func = concretise(lower(initial_state(dag).apply(*steps)), {})[0]
    counts = check_nest(func, dag)
    assert counts["Y.rf"] == inside(7, 3, 1, 1, 1) * inside(6, 3, 1, 1, 1) * 3 * CO
    loops = [s for s in walk(func.body) if isinstance(s, For) and s.var.name == "Y.rf.c.i"]
    assert loops
    assert not any(isinstance(s, If) for loop in loops for s in walk(loop))


def test_other_values_outside_are_added():
    """Not the identity: nothing may be left out."""
    func, _ = tiled(window(5, 6, 3, outside=2.0), 2, 2)
    assert has_select(func.body)


@pytest.mark.parametrize("outside", [float("-inf"), -3.0])
def test_a_maximum_leaves_out_what_is_below_everything(outside):
    x = te.placeholder((9, CO), name="X")
    p = te.compute((11, CO), lambda i, o: te.select((i >= 1) & (i < 10), x[i - 1, o], outside), name="P")
    a = te.reduce_axis(3, "a")
    dag = ComputeDAG(te.compute((9, CO), lambda i, o: te.max(p[i + a, o], axis=[a]), name="Y"))
    steps = (
        ComputeInline("P"), CacheWrite("Y"), Split("Y", "i", (4,)), Reorder("Y", ("i.0", "i.1", "o")),
        ComputeAt("Y.acc", "Y", "i.0", "register"), Unroll("Y", "i.1"), Vectorize("Y", "o"),
        Reorder("Y.acc", ("a", "i", "o")), Unroll("Y.acc", "i"), Vectorize("Y.acc", "o"),
    )  # fmt: skip
    func = concretise(lower(initial_state(dag).apply(*steps)), {})[0]
    verify(func, concrete=True)
    check_nest(func, dag)
    assert has_select(func.body) is (outside == -3.0)

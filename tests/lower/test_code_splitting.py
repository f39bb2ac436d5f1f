"""What of a kernel does not know how many tasks there are, and what does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autosched import te
from autosched.ir.expr import Expr
from autosched.ir.stmt import For
from autosched.lower import lower
from autosched.lower.code_splitting import ANY_EXTENT, Piece, pieces_of
from autosched.schedule import Parallel, Split, initial_state
from autosched.te import ComputeDAG

Index = Callable[[Expr], Expr]


def piece(n: int, at: Index = lambda i: i, split: int = 0, rows: int = 0) -> Piece:
    """y[i, j] = x[at(i), j] * 2 + w[j] over i in n, tasks of i, or of so many of them."""
    x, w = te.placeholder((rows or n, 5), name="x"), te.placeholder((5,), name="w")
    y = te.compute((n, 5), lambda i, j: x[at(i), j] * 2.0 + w[j], name="y")
    state = initial_state(ComputeDAG(y))
    if split:
        state = state.apply(Split("y", "i", (split,)))
    (found,) = pieces_of(lower(state.apply(Parallel("y", ("i.0" if split else "i",)))), {})[1]
    return found


def extents(found: Piece) -> list[str]:
    return [str(buffer.shape[0]) for buffer in found.func.params]


def test_a_task_that_is_a_row_does_not_know_how_many_there_are() -> None:
    few, many = piece(2), piece(61)
    assert few.digest == many.digest
    assert (few.extent, many.extent) == (2, 61)
    assert isinstance(few.func.body, For)
    assert str(few.func.body.extent) == str(ANY_EXTENT)
    assert extents(many) == ["3", "5", "3"]
    assert many.exact is not None
    assert extents(many.exact) == ["61", "5", "61"]
    assert many.exact.digest != many.digest


def test_blocks_of_rows() -> None:
    assert piece(12, split=4).digest == piece(20, split=4).digest
    assert piece(12, split=4).digest != piece(12, split=3).digest
    assert piece(13, split=4).extent is None  # the last task has fewer


@pytest.mark.parametrize(
    ("at", "rows"),
    [
        (lambda i: i // 2, 0),
        (lambda i: i * 2, 23),  # the last row is read by none
        (lambda i: 10 - i, 0),
        (lambda i: i + 1, 12),
    ],
)
def test_what_knows_its_row(at: Index, rows: int) -> None:
    assert piece(11, at, rows=rows).extent is None


def test_a_value_of_the_row() -> None:
    y = te.compute((7, 5), lambda i, j: (i + j).astype("float32"), name="y")
    (found,) = pieces_of(lower(initial_state(ComputeDAG(y)).apply(Parallel("y", ("i",)))), {})[1]
    assert found.extent is None


def test_one_task_has_no_loop() -> None:
    assert piece(1).extent is None


def test_without_elements_there_is_no_loop() -> None:
    x = te.placeholder((0, 5), name="x")
    y = te.compute((0, 5), lambda i, j: x[i, j] * 2.0, name="y")
    assert all(found.extent is None for found in pieces_of(lower(initial_state(ComputeDAG(y))), {})[1])

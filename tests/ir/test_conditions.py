"""Which reads of a border element happen only where another index is clamped to it."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.ir.conditions import border_reads
from autosched.ir.expr import const

A = te.placeholder((6, 9), name="A")


def borders(value):
    """The dimensions and indices of border reads of A in a stage of A's shape."""
    stage = te.compute((6, 9), value, name="S")
    found = border_reads(stage.op.body, frozenset({"A"}), (const(6), const(9)))
    return sorted({(dim, str(load.indices[dim])) for load, dim in found})


def clamped(i, n):
    return te.min(te.max(i, 0), n - 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda i, j: A[te.max(i - 1, 0), j], [(0, "0")]),
        (lambda i, j: A[i, te.min(j + 2, 8)], [(1, "8")]),
        (lambda i, j: A[clamped(i - 7, 6), j] + A[i, j], [(0, "0"), (0, "5")]),
        (lambda i, j: A[clamped(i + 1, 6), clamped(j - 1, 9)], [(0, "0"), (0, "5"), (1, "0"), (1, "8")]),
        (lambda i, j: te.select(i < 1, A[0, j], A[i - 1, j]), [(0, "0")]),
        (lambda i, j: te.select(i >= 2, A[i - 2, j], A[0, j]), [(0, "0")]),
    ],
    ids=["low", "high", "beyond", "corner", "mirrored", "select"],
)
def test_border_reads(value, expected):
    assert borders(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        lambda i, j: A[te.max(i - 1, 0), j] + A[0, j],
        lambda i, j: te.select(i >= 1, A[i, j], A[0, j] * 2) + te.select(i >= 3, A[0, j], A[i, j]),
        lambda i, j: te.select(i >= 4, A[i - 2, j], A[0, j]),
        lambda i, j: te.select(j >= 1, A[i, j], A[0, j]),
        lambda i, j: te.select(A[i, j] > 0, A[i, j], A[0, j]),
        lambda i, j: te.select(te.any(i < 1, j < 1), A[0, j], A[te.max(i - 1, 0), j]),
    ],
    ids=["everywhere", "other side", "index inside", "other axis", "data", "either"],
)
def test_reads_that_happen_elsewhere(value):
    assert (0, "0") not in borders(value)

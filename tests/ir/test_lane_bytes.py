"""The lanes that vectors of an expression have: of the type that its operations are in."""

from __future__ import annotations

import pytest

from autosched.ir.expr import Expr, Load, Select, Var, call, cast, const
from autosched.ir.types import lane_bytes

i: Var = Var("i")


def load(dtype: str, n: int = 0) -> Expr:
    return Load(dtype, (i + n,), dtype)


def taps(kind: str, n: int, dtype: str = "uint8") -> Expr:
    """A sum of `n` + 1 elements in the type `kind`."""
    return sum((cast(load(dtype, k), kind) for k in range(1, n + 1)), cast(load(dtype), kind))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (load("uint8"), 1),
        (const(0.0, "float32"), 4),
        (cast(load("uint8"), "float32"), 4),
        (cast(taps("uint16", 2), "uint8"), 2),
        (cast(taps("uint16", 3), "int32"), 4),  # too few to be worth a vector that is split
        (cast(taps("uint16", 4), "int32"), 2),
        (cast(taps("uint16", 5), "float32") * 0.2, 4),
        (cast(taps("uint16", 9), "float32") * 0.2, 2),
        (call("exp", cast(taps("uint16", 9), "float32")), 4),
        (cast(taps("float32", 9), "uint8"), 4),
        (taps("int32", 9) + cast(i, "int32"), 4),
        (taps("int64", 9), 8),
        (Select(i * 3 + 1 < 7, cast(taps("uint16", 4), "int32"), const(0, "int32")), 2),  # indices do not count
        (cast(load("uint8") + load("uint8", 1), "float64"), 8),
    ],
)
def test_of_examples(value: Expr, expected: int) -> None:
    assert lane_bytes(value) == expected

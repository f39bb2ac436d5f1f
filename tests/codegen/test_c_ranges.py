"""Two bounds of a number as one comparison, in C."""

from __future__ import annotations

import itertools

import pytest

from autosched.codegen.c.dialects import DIALECTS
from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.ranges import Range, in_ranges
from autosched.ir.expr import INDEX, Expr, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.visit import substitute

X, Y = Var("x", INDEX), Var("y", INDEX)
RANGES = {X: (0, 9), Y: (0, 4)}


def text(cond: Expr, index_type: str = "int") -> str:
    c = Expressions(DIALECTS["cuda"], index_type, Simplifier(dict(RANGES)))
    c.variables.update({X: "x", Y: "y"})
    return c.text(cond)


@pytest.mark.parametrize(
    ("cond", "expected"),
    [
        ((X + Y >= 1) & (X + Y < 15), "(unsigned)(x + y - 1) < 14"),
        ((X >= 3) & (Y >= 1) & (X <= 7) & (Y < 3), "(unsigned)(x - 3) < 5 && (unsigned)(y - 1) < 2"),
        ((X * 2 > Y) & (X * 2 - Y <= 8), "(unsigned)(x * 2 + y * -1 - 1) < 8"),
        ((X >= 3) & (Y < 3), "x >= 3 && y < 3"),
        ((X >= 3) & (X < 3), "x >= 3 && x < 3"),  # nothing between
    ],
)
def test_text(cond: Expr, expected: str) -> None:
    assert text(cond).replace("+ -", "- ") == expected


def test_values() -> None:
    simplify = Simplifier(dict(RANGES))
    cond = (X + Y >= 2) & (Y < 4) & (X + Y <= 6) & (Y > 0)
    parts = list(in_ranges(cond, simplify))
    assert [type(p) for p in parts] == [Range, Range]
    for x, y in itertools.product(range(10), range(5)):
        at = {X: simplify(X * 0 + x), Y: simplify(Y * 0 + y)}
        numbers = [(simplify(substitute(p.number, at)), p.size) for p in parts if isinstance(p, Range)]
        inside = all(0 <= int(n.value) < size for n, size in numbers)  # type: ignore[attr-defined]
        assert inside == (2 <= x + y <= 6 and 0 < y < 4)


def test_what_an_int_does_not_hold_stays() -> None:
    assert text((X >= 1) & (X < 5), "long long") == "x >= 1 && x < 5"
    wide = X * (1 << 30)
    assert "unsigned" not in text((wide >= 1) & (wide < (1 << 33)))

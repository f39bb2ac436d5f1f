"""Intervals of integer expressions: every value lies inside, by all operands of small types."""

from __future__ import annotations

import itertools

import pytest

from autosched.ir.expr import Call, Expr, Var, binary, const
from autosched.ir.interpreter.scalars import is_partial, operation, wrapping
from autosched.ir.types import integer_bounds

ENDS = (-128, -100, -3, -1, 0, 1, 2, 7, 100, 127)
INTERVALS = [(low, high) for low, high in itertools.combinations_with_replacement(ENDS, 2) if high - low < 110]
X, Y = Var("x", "int8"), Var("y", "int8")
OPERATIONS = ("add", "sub", "mul", "min", "max", "floordiv", "mod", "bitand", "bitor", "bitxor", "shl", "shr")


def samples(interval: tuple[int, int]) -> set[int]:
    low, high = interval
    return {n for n in (low, low + 1, -1, 0, 1, 5, (low + high) // 2, high - 1, high) if low <= n <= high}


@pytest.mark.parametrize("op", OPERATIONS)
def test_of_operations(op):
    compute = operation(op, "int8")
    for x, y in itertools.product(INTERVALS, INTERVALS):
        low, high = integer_bounds(binary(op, X, Y), {X: x, Y: y})
        for a, b in itertools.product(samples(x), samples(y)):
            if not is_partial(op) or (0 <= b < 8 if op in ("shl", "shr") else b != 0):
                assert low <= compute(a, b) <= high, (x, y, a, b)


@pytest.mark.parametrize(("fn", "compute"), [("neg", lambda n: -n), ("abs", abs)])
def test_of_functions(fn, compute):
    for x in INTERVALS:
        values = [wrapping("int8")(compute(n)) for n in samples(x)]
        low, high = integer_bounds(Call(fn, (X,)), {X: x})
        assert low <= min(values) <= max(values) <= high
        assert x[0] == -128 or (low, high) == (min(values), max(values))


@pytest.mark.parametrize(
    ("value", "interval"),
    [
        (X * X, (0, 25)),
        ((X << 2) + 1, (-19, 17)),
        (X >> 1, (-3, 2)),
        (abs(X) | const(8, "int8"), (0, 15)),
        (const(7, "int8") // (abs(X) + 1), (1, 7)),
    ],
)
def test_examples(value: Expr, interval: tuple[int, int]):
    assert integer_bounds(value, {X: (-5, 4)}) == interval


def test_what_is_known_of_an_expression_counts():
    assert integer_bounds((X + Y) // 2, {X + Y: (4, 9)}) == (2, 4)

"""Intervals of multilinear polynomials, by all points of small boxes."""

from __future__ import annotations

import itertools
import random

from autosched.ir.expr import Const, Expr, Var
from autosched.te.multilinear import MAX_VARIABLES, interval_of, polynomial
from autosched.te.tensor import postorder

A, B, M, N = (Var(name, "int32") for name in "abmn")


def of(e: Expr):
    known = {}
    for node in postorder([e]):
        known[node] = polynomial(node, known)
    return known[e]


def test_examples():
    byte = dict.fromkeys((A, B, M), (0, 255))
    assert interval_of(of(A * M + B * (255 - M)), byte) == (0, 255 * 255)
    assert interval_of(of(A - B + B), byte) == (0, 255)
    assert interval_of(of((A - B) * (M - 100)), byte) == (-255 * 155, 255 * 155)
    assert of(A * M + A * A) is None
    assert of((A // 2) * A) == {frozenset({A // 2, A}): 1}  # for all values of both


def test_many_variables_are_not_tried():
    variables = [Var(f"x{n}", "int32") for n in range(MAX_VARIABLES + 1)]
    assert of(sum(variables[1:-1], variables[0])) is not None
    assert of(sum(variables[1:], variables[0])) is None


def test_random_polynomials():
    rng, tried = random.Random(0), 0

    def drawn(depth: int) -> Expr:
        if depth == 0:
            return rng.choice((A, B, M, N, Const(rng.randint(-3, 3), "int32")))
        x, y = drawn(depth - 1), drawn(depth - 1)
        return rng.choice((x + y, x - y, x * y))

    for _ in range(300):
        e = drawn(3)
        terms = of(e)
        ranges = {x: tuple(sorted((rng.randint(-4, 4), rng.randint(-4, 4)))) for x in (A, B, M, N)}
        if terms is None:
            continue
        tried += 1
        points = itertools.product(*(range(low, high + 1) for low, high in ranges.values()))
        values = [value_of(e, dict(zip(ranges, point, strict=True))) for point in points]
        assert interval_of(terms, ranges) == (min(values), max(values))
    assert tried > 100


def value_of(e: Expr, values: dict[Expr, int]) -> int:
    if isinstance(e, Var):
        return values[e]
    if isinstance(e, Const):
        return e.number
    a, b = (value_of(x, values) for x in e.children)
    return {"add": a + b, "sub": a - b, "mul": a * b}[e.op]

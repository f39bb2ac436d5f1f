"""Multilinear polynomials: sums of products in which no variable occurs twice, as a*m + b*(255 - m).

Each is linear in each variable alone, so it is least and greatest where all variables are at an end of their intervals.
By the intervals of its operands the example would be in 0 .. 130050 for bytes, and is in 0 .. 65025.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import prod
from typing import TypeAlias

from autosched.ir.expr import Binary, Const, Expr
from autosched.ir.symbolic import SymbolicInteger
from autosched.ir.types import Interval

Polynomial: TypeAlias = Mapping[frozenset[Expr], int]  # coefficients by the variables of their products
MAX_VARIABLES = 6  # two to this power are the ends that are compared


def polynomial(e: Expr, known: Mapping[Expr, Polynomial | None]) -> Polynomial | None:
    """The polynomial of an integer expression, from those of its operands; None of one that is not multilinear, or has
    more than MAX_VARIABLES. What is no sum, difference, product or number is a variable."""
    match e:
        case Const() if not isinstance(e.value, SymbolicInteger):
            return {frozenset(): e.number}
        case Binary(op="add" | "sub" | "mul" as op, a=a, b=b):
            x, y = known[a], known[b]
            if x is None or y is None:
                return None
            made = _product(x, y) if op == "mul" else _sum(x, y, 1 if op == "add" else -1)
            return made if made is None or len(_variables(made)) <= MAX_VARIABLES else None
    return {frozenset({e}): 1}


def interval_of(terms: Polynomial, ranges: Mapping[Expr, Interval]) -> Interval:
    """The least and the greatest value, where the variables are in `ranges`."""
    variables = list(_variables(terms))
    values = []
    for ends in itertools.product(*(ranges[x] for x in variables)):
        value = dict(zip(variables, ends, strict=True))
        values.append(sum(factor * prod(value[x] for x in term) for term, factor in terms.items()))
    return min(values), max(values)


def _variables(terms: Polynomial) -> frozenset[Expr]:
    return frozenset().union(*terms)


def _sum(x: Polynomial, y: Polynomial, sign: int) -> Polynomial:
    """x + y, or x - y; terms that cancel are left out."""
    total = {term: x.get(term, 0) + sign * y.get(term, 0) for term in (*x, *y)}
    return {term: factor for term, factor in total.items() if factor}


def _product(x: Polynomial, y: Polynomial) -> Polynomial | None:
    if _variables(x) & _variables(y):
        return None
    return {s | t: a * b for s, a in x.items() for t, b in y.items()}

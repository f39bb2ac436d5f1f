"""Canonical expressions of a value, equal for algebraically equal ways to write them, and their matching with patterns.

    0.5 * x * (1 + erf(x / sqrt(2)))     (x * 0.5) * (erf(x * 0.7071) + 1)     the same expression

A sum is a constant and multiples of terms, a product is powers of factors, and everything else is a call. Division,
square roots, squares and negation are powers and multiples. Patterns are written with the operators of Python; ANY is
an open number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ANY = math.nan  # arithmetic propagates it: ANY + 1 and ANY * 2 are open too


class Expression:
    """A canonical expression, built by +, -, *, / and ** of expressions and numbers."""

    def __add__(self, other: Expression | float) -> Expression:
        return plus(self, _as_expression(other))

    __radd__ = __add__

    def __sub__(self, other: Expression | float) -> Expression:
        return plus(self, _as_expression(other) * -1)

    def __rsub__(self, other: float) -> Expression:
        return plus(_as_expression(other), self * -1)

    def __mul__(self, other: Expression | float) -> Expression:
        return times(self, _as_expression(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Expression | float) -> Expression:
        return times(self, power(_as_expression(other), -1))

    def __rtruediv__(self, other: float) -> Expression:
        return times(_as_expression(other), power(self, -1))

    def __pow__(self, exponent: float) -> Expression:
        return power(self, exponent)


@dataclass(frozen=True)
class Leaf(Expression):
    """A value by name."""

    name: str


@dataclass(frozen=True)
class CallExpression(Expression):
    """A function of one expression with numbers as parameters. `axes`: of a reduction; () in a pattern is open."""

    function: str
    argument: Expression
    numbers: tuple[float, ...] = ()
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Product(Expression):
    """Factors to powers; a constant factor is in the `Sum` around the product."""

    factors: tuple[tuple[Expression, float], ...]


@dataclass(frozen=True)
class Sum(Expression):
    """A constant and terms, each times a number."""

    constant: float
    terms: tuple[tuple[Expression, float], ...] = ()


def _as_expression(value: Expression | float) -> Expression:
    return value if isinstance(value, Expression) else Sum(float(value))


def _merge_equal(pairs: Sequence[tuple[Expression, float]]) -> tuple[tuple[Expression, float], ...]:
    """Merge equal expressions, adding up their numbers, and drop those with 0."""
    total: dict[Expression, float] = {}
    for expression, count in pairs:
        total[expression] = total.get(expression, 0.0) + count
    return tuple((expression, count) for expression, count in total.items() if count != 0)


def _as_sum(expression: Expression) -> Sum:
    return expression if isinstance(expression, Sum) else Sum(0.0, ((expression, 1.0),))


def _as_multiple(expression: Expression) -> tuple[float, tuple[tuple[Expression, float], ...]]:
    """Return (c, factors) whose product is the expression; a sum of several terms is a factor itself."""
    if isinstance(expression, Sum):
        if not expression.terms:
            return expression.constant, ()
        if expression.constant == 0 and len(expression.terms) == 1:
            ((inner, count),) = expression.terms
            return count, _as_multiple(inner)[1]
    return 1.0, expression.factors if isinstance(expression, Product) else ((expression, 1.0),)


def _multiple(count: float, factors: tuple[tuple[Expression, float], ...]) -> Expression:
    """Return the canonical expression of a product."""
    if not factors:
        return Sum(count)
    single = factors[0][0] if len(factors) == 1 and factors[0][1] == 1 else Product(factors)
    if count == 1:
        return single
    return Sum(0.0, ((single, count),))


def plus(a: Expression, b: Expression) -> Expression:
    x, y = _as_sum(a), _as_sum(b)
    constant, terms = x.constant + y.constant, _merge_equal((*x.terms, *y.terms))
    if constant == 0 and len(terms) == 1 and terms[0][1] == 1:
        return terms[0][0]
    return Sum(constant, terms)


def times(a: Expression, b: Expression) -> Expression:
    (x, left), (y, right) = _as_multiple(a), _as_multiple(b)
    return _multiple(x * y, _merge_equal((*left, *right)))


def power(base: Expression, exponent: float) -> Expression:
    """Return base ** exponent; only integer exponents distribute over factors: sqrt(x ** 2) is not x."""
    count, factors = _as_multiple(base)
    if exponent == 0:
        return Sum(1.0)
    if not factors:
        return Sum(_power_of_number(count, exponent))
    is_distributive = exponent == int(exponent) or (count > 0 and len(factors) == 1 and factors[0][1] in (1.0, -1.0))
    if not is_distributive:
        return Product(((base, exponent),))
    return _multiple(_power_of_number(count, exponent), tuple((expression, n * exponent) for expression, n in factors))


def _power_of_number(count: float, exponent: float) -> float:
    try:
        bindings = count**exponent
    except (ZeroDivisionError, OverflowError):
        return math.inf
    return bindings if isinstance(bindings, float) else math.inf


@dataclass(frozen=True)
class PatternMatch:
    """The bindings of a pattern: the number for ANY, and the axes of its reductions."""

    number: float | None = None
    axes: tuple[int, ...] | None = None


def match(
    pattern: Expression, expression: Expression, tolerance: float, bindings: PatternMatch | None = None
) -> PatternMatch | None:
    """Return the bindings with which `expression` matches `pattern`, None if there are none.

    Numbers match within the relative `tolerance`.
    """
    return next(_matches(pattern, expression, tolerance, bindings or PatternMatch()), None)


def _matches(
    pattern: Expression, expression: Expression, tolerance: float, bindings: PatternMatch
) -> Iterator[PatternMatch]:
    match pattern, expression:
        case Leaf(), Leaf():
            yield from [bindings] if pattern == expression else []
        case CallExpression(function=f, numbers=n), CallExpression(function=g, numbers=m) if (f, len(n)) == (g, len(m)):
            if bindings.axes is not None and expression.axes != bindings.axes:
                return
            extended = PatternMatch(bindings.number, expression.axes or bindings.axes)
            for a, b in zip(n, m, strict=True):
                if (following := _number(a, b, tolerance, extended)) is None:
                    return
                extended = following
            yield from _matches(pattern.argument, expression.argument, tolerance, extended)
        case Product(), Product():
            yield from _match_pairs(pattern.factors, expression.factors, tolerance, bindings)
        case Sum(), Sum():
            following = _number(pattern.constant, expression.constant, tolerance, bindings)
            if following is not None:
                yield from _match_pairs(pattern.terms, expression.terms, tolerance, following)


def _match_pairs(
    patterns: Sequence[tuple[Expression, float]],
    expressions: Sequence[tuple[Expression, float]],
    tolerance: float,
    bindings: PatternMatch,
) -> Iterator[PatternMatch]:
    """Match each pattern with another of the expressions, in any order."""
    if len(patterns) != len(expressions):
        return
    if not patterns:
        yield bindings
        return
    (pattern, count), *others = patterns
    for n, (expression, number) in enumerate(expressions):
        extended = _number(count, number, tolerance, bindings)
        if extended is not None:
            for inner in _matches(pattern, expression, tolerance, extended):
                yield from _match_pairs(others, [*expressions[:n], *expressions[n + 1 :]], tolerance, inner)


def _number(pattern: float, number: float, tolerance: float, bindings: PatternMatch) -> PatternMatch | None:
    if math.isnan(pattern):
        is_same = bindings.number is None or bindings.number == number
        return PatternMatch(number, bindings.axes) if is_same and not math.isnan(number) else None
    return bindings if math.isclose(pattern, number, rel_tol=tolerance) else None

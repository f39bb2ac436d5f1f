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


class Form:
    """A canonical expression, built by +, -, *, / and ** of expressions and numbers."""

    def __add__(self, other: Form | float) -> Form:
        return plus(self, _form(other))

    __radd__ = __add__

    def __sub__(self, other: Form | float) -> Form:
        return plus(self, _form(other) * -1)

    def __rsub__(self, other: float) -> Form:
        return plus(_form(other), self * -1)

    def __mul__(self, other: Form | float) -> Form:
        return times(self, _form(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Form | float) -> Form:
        return times(self, power(_form(other), -1))

    def __rtruediv__(self, other: float) -> Form:
        return times(_form(other), power(self, -1))

    def __pow__(self, exponent: float) -> Form:
        return power(self, exponent)


@dataclass(frozen=True)
class Leaf(Form):
    """A value by name."""

    name: str


@dataclass(frozen=True)
class CallForm(Form):
    """A function of one expression with numbers as parameters. `axes`: of a reduction; () in a pattern is open."""

    function: str
    argument: Form
    numbers: tuple[float, ...] = ()
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Product(Form):
    """Factors to powers; a constant factor is in the `Sum` around the product."""

    factors: tuple[tuple[Form, float], ...]


@dataclass(frozen=True)
class Sum(Form):
    """A constant and terms, each times a number."""

    constant: float
    terms: tuple[tuple[Form, float], ...] = ()


def _form(value: Form | float) -> Form:
    return value if isinstance(value, Form) else Sum(float(value))


def _merge_equal(pairs: Sequence[tuple[Form, float]]) -> tuple[tuple[Form, float], ...]:
    """Merge equal expressions, adding up their numbers, and drop those with 0."""
    total: dict[Form, float] = {}
    for form, count in pairs:
        total[form] = total.get(form, 0.0) + count
    return tuple((form, count) for form, count in total.items() if count != 0)


def _as_sum(form: Form) -> Sum:
    return form if isinstance(form, Sum) else Sum(0.0, ((form, 1.0),))


def _as_multiple(form: Form) -> tuple[float, tuple[tuple[Form, float], ...]]:
    """Return (c, factors) whose product is the expression; a sum of several terms is a factor itself."""
    if isinstance(form, Sum):
        if not form.terms:
            return form.constant, ()
        if form.constant == 0 and len(form.terms) == 1:
            ((inner, count),) = form.terms
            return count, _as_multiple(inner)[1]
    return 1.0, form.factors if isinstance(form, Product) else ((form, 1.0),)


def _multiple(count: float, factors: tuple[tuple[Form, float], ...]) -> Form:
    """Return the canonical expression of a product."""
    if not factors:
        return Sum(count)
    single = factors[0][0] if len(factors) == 1 and factors[0][1] == 1 else Product(factors)
    if count == 1:
        return single
    return Sum(0.0, ((single, count),))


def plus(a: Form, b: Form) -> Form:
    x, y = _as_sum(a), _as_sum(b)
    constant, terms = x.constant + y.constant, _merge_equal((*x.terms, *y.terms))
    if constant == 0 and len(terms) == 1 and terms[0][1] == 1:
        return terms[0][0]
    return Sum(constant, terms)


def times(a: Form, b: Form) -> Form:
    (x, left), (y, right) = _as_multiple(a), _as_multiple(b)
    return _multiple(x * y, _merge_equal((*left, *right)))


def power(base: Form, exponent: float) -> Form:
    """Return base ** exponent; only integer exponents distribute over factors: sqrt(x ** 2) is not x."""
    count, factors = _as_multiple(base)
    if exponent == 0:
        return Sum(1.0)
    if not factors:
        return Sum(_power_of_number(count, exponent))
    is_distributive = exponent == int(exponent) or (count > 0 and len(factors) == 1 and factors[0][1] in (1.0, -1.0))
    if not is_distributive:
        return Product(((base, exponent),))
    return _multiple(_power_of_number(count, exponent), tuple((form, n * exponent) for form, n in factors))


def _power_of_number(count: float, exponent: float) -> float:
    try:
        found = count**exponent
    except (ZeroDivisionError, OverflowError):
        return math.inf
    return found if isinstance(found, float) else math.inf


@dataclass(frozen=True)
class Bindings:
    """The bindings of a pattern: the number for ANY, and the axes of its reductions."""

    number: float | None = None
    axes: tuple[int, ...] | None = None


def match(pattern: Form, form: Form, tolerance: float, found: Bindings | None = None) -> Bindings | None:
    """Return the bindings with which `form` matches `pattern`, None if there are none.

    Numbers match within the relative `tolerance`.
    """
    return next(_matches(pattern, form, tolerance, found or Bindings()), None)


def _matches(pattern: Form, form: Form, tolerance: float, found: Bindings) -> Iterator[Bindings]:
    match pattern, form:
        case Leaf(), Leaf():
            yield from [found] if pattern == form else []
        case CallForm(), CallForm() if (pattern.function, len(pattern.numbers)) == (form.function, len(form.numbers)):
            if found.axes is not None and form.axes != found.axes:
                return
            told = Bindings(found.number, form.axes or found.axes)
            for a, b in zip(pattern.numbers, form.numbers, strict=True):
                if (following := _number(a, b, tolerance, told)) is None:
                    return
                told = following
            yield from _matches(pattern.argument, form.argument, tolerance, told)
        case Product(), Product():
            yield from _match_pairs(pattern.factors, form.factors, tolerance, found)
        case Sum(), Sum():
            following = _number(pattern.constant, form.constant, tolerance, found)
            if following is not None:
                yield from _match_pairs(pattern.terms, form.terms, tolerance, following)


def _match_pairs(
    patterns: Sequence[tuple[Form, float]], forms: Sequence[tuple[Form, float]], tolerance: float, found: Bindings
) -> Iterator[Bindings]:
    """Match each pattern with another of the expressions, in any order."""
    if len(patterns) != len(forms):
        return
    if not patterns:
        yield found
        return
    (pattern, count), *others = patterns
    for n, (form, number) in enumerate(forms):
        told = _number(count, number, tolerance, found)
        if told is not None:
            for inner in _matches(pattern, form, tolerance, told):
                yield from _match_pairs(others, [*forms[:n], *forms[n + 1 :]], tolerance, inner)


def _number(pattern: float, number: float, tolerance: float, found: Bindings) -> Bindings | None:
    if math.isnan(pattern):
        is_same = found.number is None or found.number == number
        return Bindings(number, found.axes) if is_same and not math.isnan(number) else None
    return found if math.isclose(pattern, number, rel_tol=tolerance) else None

"""Real-valued closed forms: the same expression nodes as the integer ones, with division and conditions.

`ir.closed_forms.program` computes everything in float64, so a cast costs nothing; it only tells the node constructors
that an operand is a real number. Python numbers are taken as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from autosched.ir.expr import Binary, Call, Const, Expr, Param, call, cast, select
from autosched.ir.symbolic import SymbolicInteger
from autosched.ir.visit import substitute

REAL = "float64"
ZERO: Expr = Const(0.0, REAL)
ONE: Expr = Const(1.0, REAL)
# Larger than any time, count or size: what a quantity becomes where its condition does not hold.
NEVER = 1e30


def real(x: Expr | float) -> Expr:
    """`x` as a real number."""
    if isinstance(x, Expr):
        return x if x.dtype == REAL else cast(x, REAL)
    return cast(Const(x), REAL) if isinstance(x, SymbolicInteger) else Const(float(x), REAL)


def add(a: Expr | float, b: Expr | float) -> Expr:
    x, y = real(a), real(b)
    return y if x is ZERO else x if y is ZERO else Binary("add", x, y)


def subtract(a: Expr | float, b: Expr | float) -> Expr:
    return Binary("sub", real(a), real(b))


def multiply(a: Expr | float, b: Expr | float) -> Expr:
    x, y = real(a), real(b)
    if x is ZERO or y is ZERO:
        return ZERO
    return y if x is ONE else x if y is ONE else Binary("mul", x, y)


def divide(a: Expr | float, b: Expr | float) -> Expr:
    """a / b."""
    y = real(b)
    return real(a) if y is ONE else Binary("div", real(a), y)


def minimum(a: Expr | float, b: Expr | float) -> Expr:
    return Binary("min", real(a), real(b))


def maximum(a: Expr | float, b: Expr | float) -> Expr:
    return Binary("max", real(a), real(b))


def sqrt(a: Expr | float) -> Expr:
    return call("sqrt", real(a))


def ceil(a: Expr | float) -> Expr:
    return call("ceil", real(a))


def where(cond: Expr, a: Expr | float, b: Expr | float) -> Expr:
    return select(cond, real(a), real(b))


def in_pairs(combine: Callable[[Expr, Expr], Expr], terms: Sequence[Expr], nothing: Expr) -> Expr:
    """`terms` combined by an associative operation, `nothing` for none: pairs, then pairs of these. What does not
    depend on each other is computed at once (`program.LevelPlan`), a chain of as many is not."""
    while len(terms) > 1:
        odd = [terms[-1]] if len(terms) % 2 else []
        terms = [*map(combine, terms[:-1:2], terms[1::2]), *odd]
    return terms[0] if terms else nothing


def sum_of(terms: Iterable[Expr | float]) -> Expr:
    return in_pairs(add, [x for term in terms if (x := real(term)) is not ZERO], ZERO)


def product_of(terms: Iterable[Expr | float]) -> Expr:
    """The product of `terms`, 1 for none."""
    result: Expr = ONE
    for term in terms:
        result = multiply(result, term)
    return result


def maximum_of(terms: Iterable[Expr | float]) -> Expr:
    """The maximum of non-negative `terms`, 0 for none."""
    return in_pairs(maximum, [x for term in terms if (x := real(term)) is not ZERO], ZERO)


def with_values(expr: Expr, values: Mapping[str, int]) -> Expr:
    """`expr` with numbers for its parameters; constants fold."""
    return substitute(expr, {Param(name): Const(value) for name, value in values.items()})


def is_one(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 1


def is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def absolute(expr: Expr) -> Expr:
    """|expr|; no node for what is a product of positive terms."""
    from autosched.ir.linear import is_negative

    match expr:
        case Const(value, dtype):
            return Const(abs(value), dtype)
        case Call(fn="neg", args=(a,)):
            return absolute(a)
    return expr * -1 if is_negative(expr) else expr

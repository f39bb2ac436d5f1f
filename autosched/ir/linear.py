"""Linear forms: an index as  sum of coefficient * atom + constant  with closed-form coefficients.

Atoms are loop variables, floordiv/mod/min/max nodes that contain some, or data. `interval` is the region
rule of the symbolic lowering: with some variables ranging over 0 .. bound-1 and the others fixed,
an index runs over [lo, lo + extent).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Call, Const, Expr, Var, binary, cast, imax, imin
from autosched.ir.types import integer_bounds
from autosched.ir.visit import KNOWN, free_vars, is_closed, is_data

ZERO = Const(0, INDEX)
ONE = Const(1, INDEX)


@dataclass(frozen=True)
class Linear:
    terms: tuple[tuple[Expr, Expr], ...]  # (atom, coefficient)
    constant: Expr

    def coefficient(self, atom: Expr) -> Expr:
        return dict(self.terms).get(atom, ZERO)

    def expr(self) -> Expr:
        result: Expr = ZERO
        for atom, coefficient in self.terms:
            result = result + atom * coefficient
        return result + self.constant

    def plus(self, closed: Expr) -> Expr:
        """The form with a closed form added, in which equal terms are added up."""
        return Linear(self.terms, combined(self.constant + closed)).expr()


@lru_cache(maxsize=KNOWN)
def linear(expr: Expr) -> Linear:
    """Collect `expr`; whatever is not a sum of closed form times atom becomes an atom itself."""
    terms: dict[Expr, Expr] = {}

    def add(e: Expr, factor: Expr) -> Expr:
        if is_closed(e):
            return cast(e, INDEX) * factor  # data may be of another type of integers
        match e:
            case Binary(op="add", a=a, b=b):
                return add(a, factor) + add(b, factor)
            case Binary(op="sub", a=a, b=b):
                return add(a, factor) + add(b, factor * -1)
            case Binary(op="mul", a=a, b=b) if is_closed(b):
                return add(a, factor * cast(b, INDEX))
            case Binary(op="mul", a=a, b=b) if is_closed(a):
                return add(b, factor * cast(a, INDEX))
            case Call(fn="neg", args=(a,)):
                return add(a, factor * -1)
        terms[e] = _plus(terms.get(e, ZERO), factor)
        return ZERO

    constant = add(expr, ONE)
    kept = tuple((a, c) for a, c in terms.items() if c is not ZERO)
    return Linear(kept, constant)


def _plus(a: Expr, b: Expr) -> Expr:
    """a + b; multiples of the same closed form become one, so that its sign shows."""
    (n, x), (m, y) = _multiple(a), _multiple(b)
    return x * (n + m) if x is y else a + b


def _multiple(closed: Expr) -> tuple[int, Expr]:
    """`closed` as number times the rest."""
    match closed:
        case Const():
            return closed.number, ONE
        case Binary(op="mul", a=a, b=Const() as factor) | Binary(op="mul", a=Const() as factor, b=a):
            n, rest = _multiple(a)
            return n * factor.number, rest
    return 1, closed


def combined(closed: Expr) -> Expr:
    """Return an integer closed form with equal terms added up: `(p + 2) - p` is 2."""
    terms: dict[Expr, int] = {}

    def add(e: Expr, factor: int) -> None:
        match e:
            case Binary(op="add" | "sub" as op, a=a, b=b):
                add(a, factor)
                add(b, factor if op == "add" else -factor)
            case Call(fn="neg", args=(a,)):
                add(a, -factor)
            case _:
                number, rest = _multiple(e)
                terms[rest] = terms.get(rest, 0) + number * factor

    add(closed, 1)
    number = terms.pop(ONE, 0)
    result: Expr = ZERO
    for term, factor in terms.items():
        result = result + term * factor if factor else result
    return result + number


def is_negative(closed: Expr) -> bool:
    """The sign of a product of positive parameters and constants; sums count as positive."""
    match closed:
        case Const(value=v):
            return v < 0
        case Binary(op="mul", a=a, b=b):
            return is_negative(a) != is_negative(b)
        case Call(fn="neg", args=(a,)):
            return not is_negative(a)
    return False


@dataclass(frozen=True)
class Interval:
    """[lo, lo + extent): `lo` over the fixed variables, `extent` a closed form."""

    lo: Expr
    extent: Expr


def interval(expr: Expr, ranging: Mapping[Var, Expr]) -> Interval:
    """The values `expr` takes while each variable of `ranging` runs over 0 .. bound-1 and all others stand still."""
    form = linear(expr)
    lo: Expr = form.constant
    extent: Expr = ONE
    for atom, coefficient in form.terms:
        part = _atom_interval(atom, ranging)
        span = part.extent - ONE
        if is_negative(coefficient):
            lo = lo + (part.lo + span) * coefficient
            extent = extent + span * (coefficient * -1)
        else:
            lo = lo + part.lo * coefficient
            extent = extent + span * coefficient
    return Interval(lo, extent)


def _atom_interval(atom: Expr, ranging: Mapping[Var, Expr]) -> Interval:
    if is_data(atom):  # data, of which nothing is known before the kernel runs
        low, high = integer_bounds(atom)
        if (low, high) != DTYPES[INDEX].integer_range:
            return Interval(Const(low, INDEX), Const(high - low + 1, INDEX))
    if not free_vars(atom) & ranging.keys():
        return Interval(atom, ONE)
    match atom:
        case Var():
            return Interval(ZERO, ranging[atom])
        case Binary(op="floordiv", a=a, b=b):
            inner = interval(a, ranging)
            aligned = inner.lo is ZERO
            return Interval(inner.lo // b, (inner.extent - ONE) // b + (ONE if aligned else Const(2, INDEX)))
        case Binary(op="mod", a=a, b=b):
            inner = interval(a, ranging)
            return Interval(ZERO, imin(b, inner.extent) if inner.lo is ZERO else b)
        case Binary(op="min" | "max" as op, a=a, b=b):  # both are 1-Lipschitz
            x, y = interval(a, ranging), interval(b, ranging)
            return Interval(binary(op, x.lo, y.lo), imax(x.extent, y.extent))
    raise AssertionError(f"no interval rule for {type(atom).__name__} {atom}")

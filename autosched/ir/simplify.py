"""Simplification of concrete integer expressions, given the ranges of the loop variables.

Every int64 expression is brought to one canonical form, sum of integer * atom + constant with
atoms in a fixed order, so that equal indices and extents become the same node. Division rules:

    (f*q + r) // f = q + r // f        (f*q + r) % f = r % f        r // f = 0, r % f = r for 0 <= r < f
    (g*r) // (g*f) = r // f            (g*r) % (g*f) = g * (r % f)  r // f * f + r % f = r
    r // g // f = r // (g*f)
    min(a, b) = a  where  a - b <= 0 over all ranges; max likewise; comparisons likewise
    min(a + b, a + c) = a + min(b, c); max likewise
    a + 3 < n and a < n  =  a + 3 < n
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from autosched.ir.conditions import conjuncts
from autosched.ir.expr import COMPARISON, INDEX, Binary, Call, Cast, Const, Expr, Load, Var, binary
from autosched.ir.symbolic import common_divisor
from autosched.ir.types import integer_bounds
from autosched.ir.visit import KNOWN, rebuild

Bounds = tuple[int, int]
UNKNOWN: Bounds = (-(1 << 62), 1 << 62)


class Affine(NamedTuple):
    """sum of coefficient * atom + constant."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int

    def expr(self) -> Expr:
        result: Expr = Const(self.constant, INDEX) if not self.terms or self.constant else Const(0, INDEX)
        total: Expr | None = None
        for atom, c in self.terms:
            piece = atom if c == 1 else Binary("mul", atom, Const(c, INDEX))
            total = piece if total is None else Binary("add", total, piece)
        if total is None:
            return result
        return total if self.constant == 0 else Binary("add", total, result)


@lru_cache(maxsize=KNOWN)
def _order(atom: Expr) -> tuple[int, str]:
    return (0, atom.name) if isinstance(atom, Var) else (1, str(atom))


@dataclass
class Simplifier:
    """`ranges[v]` = (smallest, largest) value of a loop variable; memoised, so ranges may only be added."""

    ranges: dict[Var, Bounds] = field(default_factory=dict)
    _memo: dict[Expr, Expr] = field(default_factory=dict)
    _affine: dict[Expr, Affine] = field(default_factory=dict)
    _data: dict[Expr, bool] = field(default_factory=dict)

    def __call__(self, expr: Expr) -> Expr:
        done = self._memo.get(expr)
        if done is None:
            done = self._simplify(expr)
            self._memo[expr] = done
            self._memo[done] = done
        return done

    def _simplify(self, expr: Expr) -> Expr:
        if self._holds_data(expr):  # which wraps around, so that (4 * x) // 4 is not always x
            return rebuild(expr, self)
        if expr.dtype == INDEX and self._is_int(expr):
            return self.affine(expr).expr()
        if isinstance(expr, Binary) and expr.op in COMPARISON and expr.a.dtype == INDEX:
            return self._compare(expr)
        if isinstance(expr, Binary) and expr.op == "and":
            return self._together(self(expr.a), self(expr.b))
        return rebuild(expr, self)

    def _together(self, a: Expr, b: Expr) -> Expr:
        """a & b without bounds of one linear form that others of the same form imply."""
        tightest: dict[tuple[str, tuple[tuple[Expr, int], ...]], Affine] = {}
        conditions = [*conjuncts(a), *conjuncts(b)]
        for c in conditions:
            if (bound := self._bound(c)) is not None:
                op, form = bound
                known = tightest.setdefault((op, form.terms), form)
                if (form.constant > known.constant) is (op == "lt"):
                    tightest[op, form.terms] = form
        result: Expr = Const(True, "bool")
        for c in dict.fromkeys(conditions):
            bound = self._bound(c)
            if bound is None or tightest[bound[0], bound[1].terms] == bound[1]:
                result = result & c
        return result

    def _bound(self, c: Expr) -> tuple[str, Affine] | None:
        """A comparison as form < 0 ("lt") or form >= 0 ("ge")."""
        if not (isinstance(c, Binary) and c.op in ("lt", "ge") and c.a.dtype == INDEX):
            return None
        return c.op, self._combine(self.affine(c.a), self.affine(c.b), -1)

    def _holds_data(self, expr: Expr) -> bool:
        holds_data = self._data.get(expr)
        if holds_data is None:
            holds_data = isinstance(expr, Load) or any(map(self._holds_data, expr.children))
            self._data[expr] = holds_data
        return holds_data

    @staticmethod
    def _is_int(expr: Expr) -> bool:
        match expr:
            case Binary(op=op):
                return op in _AFFINE_OPS
            case Call(fn=fn):
                return fn == "neg"
        return isinstance(expr, (Var, Const))

    def affine(self, expr: Expr) -> Affine:
        """The canonical form of an int64 expression."""
        done = self._affine.get(expr)
        if done is None:
            done = self._to_affine(expr)
            self._affine[expr] = done
        return done

    def place_value(self, form: Affine, extent: int, digit: Expr) -> Affine:
        """form * extent + digit."""
        simple = self(digit)
        added = _atom(simple) if self._holds_data(simple) else self.affine(simple)
        return self._combine(_scale(form, extent), added, 1)

    def _to_affine(self, expr: Expr) -> Affine:
        match expr:
            case Const():
                return Affine((), expr.number)
            case Var():
                return Affine(((expr, 1),), 0)
            case Binary(op="add", a=a, b=b):
                return self._combine(self.affine(a), self.affine(b), 1)
            case Binary(op="sub", a=a, b=b):
                return self._combine(self.affine(a), self.affine(b), -1)
            case Binary(op="mul", a=a, b=b):
                x, y = self.affine(a), self.affine(b)
                if not y.terms:
                    return _scale(x, y.constant)
                if not x.terms:
                    return _scale(y, x.constant)
                return _atom(binary("mul", *sorted((x.expr(), y.expr()), key=str)))
            case Call(fn="neg", args=(a,)):
                return _scale(self.affine(a), -1)
            case Binary(op="floordiv" | "mod" | "ceildiv" | "min" | "max") if self._holds_data(expr):
                return _atom(rebuild(expr, self))
            case Binary(op="floordiv" | "mod" | "ceildiv" as op, a=a, b=b):
                return self._divide(op, self.affine(a), self.affine(b))
            case Binary(op="min" | "max" as op, a=a, b=b):
                return self._minmax(op, self.affine(a), self.affine(b))
        rebuilt = rebuild(expr, self)  # of a select with a known condition, one branch
        return self.affine(rebuilt) if self._is_int(rebuilt) else _atom(rebuilt)

    def _combine(self, x: Affine, y: Affine, sign: int) -> Affine:
        if not y.terms:
            return Affine(x.terms, x.constant + sign * y.constant)
        terms = dict(x.terms)
        for atom, c in y.terms:
            terms[atom] = terms.get(atom, 0) + sign * c
        constant = x.constant + sign * y.constant
        joined, quotient = next(((t, q) for t in terms if (q := self._beside(t, terms)) is not None), (None, None))
        if joined is None or quotient is None:
            kept = sorted(((a, c) for a, c in terms.items() if c), key=lambda t: _order(t[0]))
            return Affine(tuple(kept), constant)
        assert isinstance(joined, Binary)
        factor = terms.pop(joined)
        del terms[quotient]
        rest = Affine(tuple((a, c) for a, c in terms.items() if c), constant)
        return self._combine(rest, _scale(self.affine(joined.a), factor), 1)

    def _beside(self, atom: Expr, terms: Mapping[Expr, int]) -> Expr | None:
        """The quotient that stands beside atom, if that is its remainder: c * (r % f) and c * f * (r // f)."""
        if not (isinstance(atom, Binary) and atom.op == "mod" and isinstance(atom.b, Const) and terms[atom]):
            return None
        quotient = self.affine(Binary("floordiv", atom.a, atom.b)).expr()  # may be written with smaller numbers
        return quotient if terms.get(quotient) == terms[atom] * atom.b.number else None

    def _divide(self, op: str, x: Affine, y: Affine) -> Affine:
        if y.terms or y.constant <= 0:
            return _atom(binary(op, x.expr(), y.expr()))
        f = y.constant
        if op == "ceildiv":  # ceil(x / f) = floor((x + f - 1) / f)
            return self._divide("floordiv", Affine(x.terms, x.constant + f - 1), y)
        whole = tuple((a, c // f) for a, c in x.terms if c % f == 0)
        rest = Affine(tuple((a, c) for a, c in x.terms if c % f), x.constant % f)
        lo, hi = self._affine_bounds(rest)
        quotient = Affine(whole, x.constant // f)
        if lo // f == hi // f:  # the remainder stays within one multiple of f
            k = lo // f
            return (
                Affine(quotient.terms, quotient.constant + k)
                if op == "floordiv"
                else Affine(rest.terms, rest.constant - k * f)
            )
        if op == "floordiv" and (inner := _only_quotient(rest)) is not None:  # x // g // f = x // (g f)
            whole_part = self._divide(op, self.affine(inner.a), Affine((), _divisor(inner) * f))
            return self._combine(quotient, whole_part, 1)
        # (x + r) // f = x // f where x moves in multiples of g, g divides f and 0 <= r < g
        big, small = self._by_grain(rest, f)
        common = common_divisor(f, big.constant, *(c for _, c in big.terms))
        reduced = Affine(tuple((a, c // common) for a, c in big.terms), big.constant // common)
        part = _atom(Binary(op, reduced.expr(), Const(f // common, INDEX)))
        if op == "floordiv":
            return self._combine(quotient, part, 1)
        return self._combine(_scale(part, common), small, 1)

    def _by_grain(self, x: Affine, f: int) -> tuple[Affine, Affine]:
        """x as a part that moves in multiples of some g dividing f, and a rest within [0, g), which may be nothing."""
        for grain in sorted({common_divisor(f, c) for _, c in x.terms} - {1}, reverse=True):
            small = Affine(tuple(t for t in x.terms if t[1] % grain), x.constant % grain)
            lo, hi = self._affine_bounds(small)
            if small.terms and lo >= 0 and hi < grain:
                return Affine(tuple(t for t in x.terms if t[1] % grain == 0), x.constant - small.constant), small
        return x, Affine((), 0)

    def _minmax(self, op: str, x: Affine, y: Affine) -> Affine:
        """min and max of several forms: nested ones are opened, dominated ones dropped, constants come first, and
        what all of them add stands outside."""
        sign = 1 if op == "min" else -1
        kept: list[Affine] = []
        for form in (*self._opened(op, x), *self._opened(op, y)):
            if any(self._at_most(k, form, sign) for k in kept):
                continue
            kept = [k for k in kept if not self._at_most(form, k, sign)] + [form]
        if len(kept) == 1:
            return kept[0]
        shared = [t for t in kept[0].terms if all(t in f.terms for f in kept)]
        bare = (Affine(tuple(t for t in f.terms if t not in shared), f.constant) for f in kept)
        ordered = sorted(bare, key=lambda f: (bool(f.terms), str(f.expr())))
        result = ordered[-1].expr()
        for form in reversed(ordered[:-1]):
            result = Binary(op, form.expr(), result)
        return self._combine(Affine(tuple(shared), 0), Affine(((result, 1),), 0), 1)

    def _opened(self, op: str, x: Affine) -> list[Affine]:
        """min(b, c) + rest as the forms b + rest, c + rest."""
        for atom, c in x.terms:
            if c == 1 and isinstance(atom, Binary) and atom.op == op:
                rest = Affine(tuple(t for t in x.terms if t[0] is not atom), x.constant)
                sides = (self._combine(self.affine(e), rest, 1) for e in (atom.a, atom.b))
                return [form for side in sides for form in self._opened(op, side)]
        return [x]

    def _at_most(self, x: Affine, y: Affine, sign: int) -> bool:
        """Whether x <= y (x >= y for sign -1) for all values of the variables."""
        lo, hi = self._affine_bounds(self._combine(x, y, -1))
        return hi <= 0 if sign > 0 else lo >= 0

    def _compare(self, expr: Binary) -> Expr:
        difference = self._combine(self.affine(expr.a), self.affine(expr.b), -1)
        lo, hi = self._affine_bounds(difference)
        truth = _decide(expr.op, lo, hi)
        if truth is not None:
            return Const(truth, "bool")
        return binary(expr.op, self(expr.a), self(expr.b))

    def bounds(self, expr: Expr) -> Bounds:
        """A range that contains every value of the int64 expression."""
        return self._affine_bounds(self.affine(expr))

    def _affine_bounds(self, x: Affine) -> Bounds:
        lo = hi = x.constant
        for atom, c in x.terms:
            a, b = self._atom_bounds(atom)
            lo += min(a * c, b * c)
            hi += max(a * c, b * c)
        return lo, hi

    def _atom_bounds(self, atom: Expr) -> Bounds:
        match atom:
            case Var():
                return self.ranges.get(atom, UNKNOWN)
            case _ if isinstance(atom, Cast) or self._holds_data(atom):
                low, high = integer_bounds(atom)
                return max(low, UNKNOWN[0]), min(high, UNKNOWN[1])
            case Binary(op="floordiv", a=a, b=Const() as f) if f.value > 0:
                lo, hi = self.bounds(a)
                return lo // f.number, hi // f.number
            case Binary(op="mod", b=Const() as f) if f.value > 0:
                return 0, f.number - 1
            case Binary(op="min", a=a, b=b):
                (la, ha), (lb, hb) = self.bounds(a), self.bounds(b)
                return min(la, lb), min(ha, hb)
            case Binary(op="max", a=a, b=b):
                (la, ha), (lb, hb) = self.bounds(a), self.bounds(b)
                return max(la, lb), max(ha, hb)
            case Binary(op="bitxor", a=a, b=b):
                (la, ha), (lb, hb) = self.bounds(a), self.bounds(b)
                return (0, (1 << max(ha, hb).bit_length()) - 1) if min(la, lb) >= 0 else UNKNOWN
        return UNKNOWN


_AFFINE_OPS = frozenset({"add", "sub", "mul", "floordiv", "mod", "ceildiv", "min", "max"})


def _only_quotient(x: Affine) -> Binary | None:
    """The quotient by a positive number that the form is; None where it is something else."""
    atom = x.terms[0][0] if len(x.terms) == 1 and x.terms[0][1] == 1 and not x.constant else None
    is_one = isinstance(atom, Binary) and atom.op == "floordiv" and _divisor(atom) > 0
    return atom if isinstance(atom, Binary) and is_one else None


def _divisor(quotient: Binary) -> int:
    """A number that is divided by; 0 where it is none."""
    return quotient.b.number if isinstance(quotient.b, Const) else 0


def _atom(expr: Expr) -> Affine:
    return Affine((), expr.number) if isinstance(expr, Const) else Affine(((expr, 1),), 0)


def _scale(x: Affine, factor: int) -> Affine:
    if factor == 0:
        return Affine((), 0)
    return Affine(tuple((a, c * factor) for a, c in x.terms), x.constant * factor)


def _decide(op: str, lo: int, hi: int) -> bool | None:
    """The truth of `difference op 0` when it is the same over [lo, hi]."""
    match op:
        case "lt":
            return True if hi < 0 else False if lo >= 0 else None
        case "le":
            return True if hi <= 0 else False if lo > 0 else None
        case "gt":
            return True if lo > 0 else False if hi <= 0 else None
        case "ge":
            return True if lo >= 0 else False if hi < 0 else None
        case "eq":
            return True if lo == hi == 0 else False if lo > 0 or hi < 0 else None
        case "ne":
            return False if lo == hi == 0 else True if lo > 0 or hi < 0 else None
    return None

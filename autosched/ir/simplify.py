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
from functools import lru_cache, reduce
from typing import NamedTuple

from autosched.ir.conditions import conjuncts
from autosched.ir.expr import COMPARISON, INDEX, Binary, Call, Cast, Const, Expr, Load, Var, binary
from autosched.ir.symbolic import FOLDS, common_divisor, is_known
from autosched.ir.types import integer_bounds
from autosched.ir.visit import KNOWN, rebuild

Bounds = tuple[int, int]
UNKNOWN: Bounds = (-(1 << 62), 1 << 62)


class Affine(NamedTuple):
    """sum of coefficient * atom + constant."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int

    def expr(self) -> Expr:
        total: Expr | None = None
        for atom, c in self.terms:
            piece = atom if is_known("eq", c, 1) else Binary("mul", atom, Const(c, INDEX))
            total = piece if total is None else Binary("add", total, piece)
        if total is None:
            return Const(self.constant, INDEX)
        return total if is_known("eq", self.constant, 0) else Binary("add", total, Const(self.constant, INDEX))


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
        tightest: dict[tuple[str, tuple[tuple[Expr, int], ...]], int] = {}
        conditions = [*conjuncts(a), *conjuncts(b)]
        for c in conditions:
            if (bound := self._bound(c)) is not None:
                op, form = bound
                known = tightest.setdefault((op, form.terms), form.constant)
                if is_known("ge" if op == "lt" else "le", form.constant, known):
                    tightest[op, form.terms] = form.constant
        result: Expr = Const(True, "bool")
        for c in dict.fromkeys(conditions):
            bound = self._bound(c)
            if bound is None or not self._is_implied(bound[0], bound[1], tightest[bound[0], bound[1].terms]):
                result = result & c
        return result

    @staticmethod
    def _is_implied(op: str, form: Affine, constant: int) -> bool:
        """Whether the bound follows from that of the same terms with this constant."""
        return is_known("gt" if op == "lt" else "lt", constant, form.constant)

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
            kept = sorted((t for t in terms.items() if not is_known("eq", t[1], 0)), key=lambda t: _order(t[0]))
            return Affine(tuple(kept), constant)
        assert isinstance(joined, Binary)
        factor = terms.pop(joined)
        del terms[quotient]
        rest = Affine(tuple((a, c) for a, c in terms.items() if not is_known("eq", c, 0)), constant)
        return self._combine(rest, _scale(self.affine(joined.a), factor), 1)

    def _beside(self, atom: Expr, terms: Mapping[Expr, int]) -> Expr | None:
        """The quotient that stands beside atom, if that is its remainder: c * (r % f) and c * f * (r // f)."""
        if not (isinstance(atom, Binary) and atom.op == "mod" and isinstance(atom.b, Const)):
            return None
        if is_known("eq", terms[atom], 0):
            return None
        quotient = self.affine(Binary("floordiv", atom.a, atom.b)).expr()  # may be written with smaller numbers
        return quotient if is_known("eq", terms.get(quotient, 0), terms[atom] * atom.b.number) else None

    def _divide(self, op: str, x: Affine, y: Affine) -> Affine:
        if y.terms and (exact := self._quotient_of_forms(x, y)) is not None:
            return exact[op]
        if y.terms or not is_known("gt", y.constant, 0):
            return _atom(binary(op, x.expr(), y.expr()))
        f = y.constant
        if op == "ceildiv":  # ceil(x / f) = floor((x + f - 1) / f)
            return self._divide("floordiv", Affine(x.terms, x.constant + f - 1), y)
        whole = tuple((a, c // f) for a, c in x.terms if _divides(f, c))
        rest = Affine(tuple((a, c) for a, c in x.terms if not _divides(f, c)), x.constant % f)
        quotient = Affine(whole, x.constant // f)
        if (k := self._common_quotient(rest, f)) is not None:  # the remainder stays within one multiple of f
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

    def _quotient_of_forms(self, x: Affine, y: Affine) -> dict[str, Affine] | None:
        """Return x // y, x % y and the quotient rounded up where y is a factor of x, or greater; else None."""
        if (exact := _exact_quotient(x, y)) is not None:
            return {"floordiv": exact, "ceildiv": exact, "mod": Affine((), 0)}
        if self._affine_bounds(x)[0] >= 1 and self._affine_bounds(self._combine(y, x, -1))[0] > 0:
            return {"floordiv": Affine((), 0), "ceildiv": Affine((), 1), "mod": x}
        return None

    def _common_quotient(self, x: Affine, f: int) -> int | None:
        """Return x // f where that is the same over all ranges."""
        lo, hi = self._affine_bounds(x)
        if is_known("ge", lo, 0) and is_known("lt", hi, f):
            return 0
        return lo // f if is_known("eq", lo // f, hi // f) else None

    def _by_grain(self, x: Affine, f: int) -> tuple[Affine, Affine]:
        """x as a part that moves in multiples of some g dividing f, and a rest within [0, g), which may be nothing."""
        for grain in sorted({common_divisor(f, c) for _, c in x.terms} - {1}, reverse=True):
            small = Affine(tuple(t for t in x.terms if not _divides(grain, t[1])), x.constant % grain)
            lo, hi = self._affine_bounds(small)
            if small.terms and is_known("ge", lo, 0) and is_known("lt", hi, grain):
                return Affine(tuple(t for t in x.terms if _divides(grain, t[1])), x.constant - small.constant), small
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
        numbers = [f.constant for f in kept if not f.terms]
        if len(numbers) > 1:  # of sizes
            kept = [*(f for f in kept if f.terms), Affine((), reduce(FOLDS[op], numbers))]
        if len(kept) == 1:
            return kept[0]
        shared = [t for t in kept[0].terms if all(_has_term(f, *t) for f in kept)]
        bare = (Affine(tuple(t for t in f.terms if all(t[0] is not a for a, _ in shared)), f.constant) for f in kept)
        ordered = sorted(bare, key=lambda f: (bool(f.terms), str(f.expr())))
        result = ordered[-1].expr()
        for form in reversed(ordered[:-1]):
            result = Binary(op, form.expr(), result)
        return self._combine(Affine(tuple(shared), 0), Affine(((result, 1),), 0), 1)

    def _opened(self, op: str, x: Affine) -> list[Affine]:
        """min(b, c) + rest as the forms b + rest, c + rest."""
        for atom, c in x.terms:
            if isinstance(atom, Binary) and atom.op == op and is_known("eq", c, 1):
                rest = Affine(tuple(t for t in x.terms if t[0] is not atom), x.constant)
                sides = (self._combine(self.affine(e), rest, 1) for e in (atom.a, atom.b))
                return [form for side in sides for form in self._opened(op, side)]
        return [x]

    def _at_most(self, x: Affine, y: Affine, sign: int) -> bool:
        """Whether x <= y (x >= y for sign -1) for all values of the variables."""
        lo, hi = self._affine_bounds(self._combine(x, y, -1))
        return is_known("le", hi, 0) if sign > 0 else is_known("ge", lo, 0)

    def _compare(self, expr: Binary) -> Expr:
        difference = self._combine(self.affine(expr.a), self.affine(expr.b), -1)
        lo, hi = self._affine_bounds(difference)
        truth = _decide(expr.op, lo, hi)
        if truth is not None:
            return Const(truth, "bool")
        a, b = self(expr.a), self(expr.b)
        if isinstance(a, Const) and isinstance(b, Const):  # of sizes
            return Binary(expr.op, a, b)
        return binary(expr.op, a, b)

    @staticmethod
    def _quotient_bounds(op: str, a: Bounds, b: Bounds) -> Bounds:
        """A range of a quotient or remainder, UNKNOWN where the operands may be negative."""
        if not (is_known("ge", a[0], 0) and is_known("gt", b[0], 0)):
            return UNKNOWN
        if op == "mod":
            return 0, _LEAST(a[1], b[1] - 1)
        divide = FOLDS[op]
        return divide(a[0], b[1]), divide(a[1], b[0])

    def bounds(self, expr: Expr) -> Bounds:
        """A range that contains every value of the int64 expression."""
        return self._affine_bounds(self.affine(expr))

    def _affine_bounds(self, x: Affine) -> Bounds:
        lo = hi = x.constant
        for atom, c in x.terms:
            a, b = self._atom_bounds(atom)
            if is_known("ge", c, 0):
                lo, hi = lo + a * c, hi + b * c
            elif is_known("le", c, 0):
                lo, hi = lo + b * c, hi + a * c
            else:
                return UNKNOWN
        return lo, hi

    def _atom_bounds(self, atom: Expr) -> Bounds:
        match atom:
            case Var():
                return self.ranges.get(atom, UNKNOWN)
            case _ if isinstance(atom, Cast) or self._holds_data(atom):
                low, high = integer_bounds(atom)
                return max(low, UNKNOWN[0]), min(high, UNKNOWN[1])
            case Binary(op="mod", b=Const() as f) if f.number > 0:
                return 0, f.number - 1
            case Binary(op="floordiv", a=a, b=Const() as f) if f.number > 0:
                lo, hi = self.bounds(a)
                return lo // f.number, hi // f.number
            case Binary(op="floordiv" | "ceildiv" | "mod" as op, a=a, b=b):
                return self._quotient_bounds(op, self.bounds(a), self.bounds(b))
            case Binary(op="mul", a=a, b=b):
                (la, ha), (lb, hb) = self.bounds(a), self.bounds(b)
                return (la * lb, ha * hb) if is_known("ge", la, 0) and is_known("ge", lb, 0) else UNKNOWN
            case Binary(op="min", a=a, b=b):
                (la, ha), (lb, hb) = self.bounds(a), self.bounds(b)
                return _LEAST(la, lb), _LEAST(ha, hb)
            case Binary(op="max", a=a, b=b):
                (la, ha), (lb, hb) = self.bounds(a), self.bounds(b)
                return _MOST(la, lb), _MOST(ha, hb)
            case Binary(op="bitxor", a=a, b=b):
                (la, ha), (lb, hb) = self.bounds(a), self.bounds(b)
                return (0, (1 << max(ha, hb).bit_length()) - 1) if min(la, lb) >= 0 else UNKNOWN
            case Binary(op="bitand"):
                low, high = integer_bounds(atom, self.ranges)
                return max(low, UNKNOWN[0]), min(high, UNKNOWN[1])
        return UNKNOWN


def _divides(f: int, number: int) -> bool:
    return is_known("eq", number % f, 0)


def _has_term(x: Affine, atom: Expr, factor: int) -> bool:
    return any(a is atom and is_known("eq", c, factor) for a, c in x.terms)


def _exact_quotient(x: Affine, y: Affine) -> Affine | None:
    """Return x / y where y is one term, a factor of all of x; None for others."""
    if len(y.terms) != 1 or y.constant or x.constant:
        return None
    ((divisor, f),) = y.terms
    terms, constant = [], 0
    for atom, c in x.terms:
        factors = _factors(atom)
        if divisor not in factors or not _divides(f, c):
            return None
        factors.remove(divisor)
        if factors:
            terms.append((reduce(lambda a, b: Binary("mul", a, b), factors), c // f))
        else:
            constant += c // f
    return Affine(tuple(terms), constant)


def _factors(expr: Expr) -> list[Expr]:
    if isinstance(expr, Binary) and expr.op == "mul":
        return [*_factors(expr.a), *_factors(expr.b)]
    return [expr]


_LEAST, _MOST = FOLDS["min"], FOLDS["max"]
_AFFINE_OPS = frozenset({"add", "sub", "mul", "floordiv", "mod", "ceildiv", "min", "max"})


def _only_quotient(x: Affine) -> Binary | None:
    """The quotient by a positive number that the form is; None where it is something else."""
    is_atom = len(x.terms) == 1 and is_known("eq", x.terms[0][1], 1) and is_known("eq", x.constant, 0)
    atom = x.terms[0][0] if is_atom else None
    is_one = isinstance(atom, Binary) and atom.op == "floordiv" and is_known("gt", _divisor(atom), 0)
    return atom if isinstance(atom, Binary) and is_one else None


def _divisor(quotient: Binary) -> int:
    """A number that is divided by; 0 where it is none."""
    return quotient.b.number if isinstance(quotient.b, Const) else 0


def _atom(expr: Expr) -> Affine:
    return Affine((), expr.number) if isinstance(expr, Const) else Affine(((expr, 1),), 0)


def _scale(x: Affine, factor: int) -> Affine:
    if is_known("eq", factor, 0):
        return Affine((), 0)
    return Affine(tuple((a, c * factor) for a, c in x.terms), x.constant * factor)


def _decide(op: str, lo: int, hi: int) -> bool | None:
    """The truth of `difference op 0` when it is the same over [lo, hi]."""
    match op:
        case "lt":
            return _either(is_known("lt", hi, 0), is_known("ge", lo, 0))
        case "le":
            return _either(is_known("le", hi, 0), is_known("gt", lo, 0))
        case "gt" | "ge":
            result = _decide("le" if op == "gt" else "lt", lo, hi)
            return None if result is None else not result
        case "eq":
            is_zero = is_known("eq", lo, 0) and is_known("eq", hi, 0)
            return _either(is_zero, is_known("gt", lo, 0) or is_known("lt", hi, 0))
        case "ne":
            result = _decide("eq", lo, hi)
            return None if result is None else not result
    return None


def _either(is_true: bool, is_false: bool) -> bool | None:
    return True if is_true else False if is_false else None

"""Bindings of loop variables during emission, and the index values that are available at the insertion point.

Unrolled variables are numbers, those of serial loops registers, the vectorised one is a number for each lane. An index
that is data is a variable here as well, bound to what was loaded (`lookup`): a number that is known from where it was
loaded on, or one for each lane. Integer arithmetic is emitted once, in the outermost loop that moves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import index
from typing import NamedTuple

from autosched.codegen.llvm.arithmetic import integer_op
from autosched.codegen.llvm.writer import Writer
from autosched.ir.conditions import NEGATED
from autosched.ir.expr import INDEX, Binary, Const, Expr, Var
from autosched.ir.simplify import UNKNOWN, Affine, Simplifier
from autosched.ir.size import is_sized
from autosched.ir.symbolic import FOLDS, INTEGERS, is_known
from autosched.ir.visit import free_vars, is_number, substitute

INTEGER_OPS = frozenset({"add", "sub", "mul", "floordiv", "mod", "min", "max"})  # of indices
CHUNK: Var = Var("chunk", INDEX)  # stands for the number of a vector where that is a loop variable
LANE: Var = Var("lane", INDEX)  # stands for the number of a lane beside data, below 64


@dataclass(frozen=True)
class Runtime:
    """A loop variable that is a register at run time; `depth` is its frame."""

    name: str
    depth: int


@dataclass(frozen=True)
class LaneRange:
    """The vectorised variable: value = base + chunk * lanes + (0 .. lanes-1), `chunk` a run-time variable or None."""

    base: int
    lanes: int
    chunk: Runtime | None = None


HERE = 1 << 30  # the depth of a number that was loaded where the writer stands: nothing moves out of a loop with it


class Numbers(NamedTuple):
    """A number for each lane, in a vector of int32 or int64."""

    name: str
    dtype: str
    lanes: int


Binding = int | Runtime | LaneRange | Numbers


@dataclass
class Bindings:
    """Integers over the current bindings `env` of variables."""

    writer: Writer
    simplify: Simplifier
    env: dict[Var, Binding] = field(default_factory=dict)
    data: dict[Expr, Var] = field(default_factory=dict)  # the variables that stand for indices that are data
    limits: tuple[Expr, ...] = ()  # forms that are 0 at most in the branches and loops around the current point
    _fixed: dict[tuple[object, ...], Expr] = field(default_factory=dict)
    _patterns: dict[tuple[object, ...], tuple[Expr, tuple[int, ...]] | None] = field(default_factory=dict)

    def shared(self, expr: Expr) -> int | Runtime | None:
        """Return the scalar value of an index that all lanes share; None where they differ."""
        return None if any(isinstance(self.env[v], LaneRange) for v in free_vars(expr)) else self.scalar(expr)

    def scalar(self, expr: Expr, is_rare: bool = False) -> int | Runtime:
        """Return an int64 expression without lanes: a constant, or a register in the outermost loop possible.

        `is_rare`: few iterations of the innermost loop need it, so that it is not computed for all of them.
        """
        fixed = self.fixed(expr)
        if isinstance(fixed, Const):
            return fixed.number
        depth = max(b.depth for v in free_vars(fixed) if isinstance(b := self.env[v], Runtime))
        if depth == HERE:
            return Runtime(self._integer(fixed), HERE)
        if is_rare and depth == len(self.writer.frames) - 1:
            return Runtime(self._integer(fixed), depth)
        memo = self.writer.frames[depth].memo
        key = ("int", fixed, tuple(self._name(v) for v in sorted(free_vars(fixed), key=lambda v: v.name)))
        if key not in memo:
            with self.writer.hoisted(depth):
                memo[key] = self._integer(fixed)
        return Runtime(memo[key], depth)

    def fixed(self, expr: Expr) -> Expr:
        """The expression with numbers in place of unrolled variables."""
        numbers = [(v, b) for v in free_vars(expr) if isinstance(b := self.env[v], INTEGERS)]
        key = (expr, *numbers)
        fixed_expr = self._fixed.get(key)
        if fixed_expr is None:  # copies of an unrolled body ask the same again
            constants: dict[Expr, Expr] = {v: Const(b, INDEX) for v, b in numbers}
            fixed_expr = self._with_size(expr) if isinstance(expr, Binary) and expr.op in NEGATED else None
            if fixed_expr is None:
                fixed_expr = self.simplify(substitute(expr, constants) if constants else expr)
            self._fixed[key] = fixed_expr
        return fixed_expr

    def _with_size(self, comparison: Binary) -> Expr | None:
        """The comparison of a number with a size, which is tested at run time unless it is known for all values; None
        for others."""
        a, b = self.fixed(comparison.a), self.fixed(comparison.b)
        if not (isinstance(a, Const) and isinstance(b, Const)) or (is_number(a) and is_number(b)):
            return None
        op = next((op for op in (comparison.op, NEGATED[comparison.op]) if is_known(op, a.value, b.value)), None)
        return Binary(comparison.op, a, b) if op is None else Const(op == comparison.op, "bool")

    def lane(self, lanes: int) -> Var:
        """The number of a lane, of so many, as a variable."""
        self.simplify.ranges[LANE] = (0, 63)
        self.env[LANE] = Numbers(f"<{', '.join(f'i32 {n}' for n in range(lanes))}>", "int32", lanes)
        return LANE

    def pattern(self, expr: Expr) -> tuple[int | Runtime, tuple[int, ...]] | None:
        """An index with lanes as what all of them share and a number for each: (16 i + n) // 2 = 8 i + n // 2. None
        where the numbers depend on other loops."""
        fixed = self.fixed(expr)
        vector = [(v, b) for v in free_vars(fixed) if isinstance(b := self.env[v], LaneRange | Numbers)]
        var, bound = vector[0] if len(vector) == 1 else (CHUNK, None)
        if not isinstance(bound, LaneRange):
            return None
        key = (fixed, bound.base, bound.lanes, bound.chunk is None)
        if key not in self._patterns:
            self._patterns[key] = self._lane_numbers(fixed, var, bound)
        lane_pattern = self._patterns[key]
        if lane_pattern is None:
            return None
        self._origin(bound)
        return self.scalar(lane_pattern[0]), lane_pattern[1]

    def _lane_numbers(self, expr: Expr, var: Var, bound: LaneRange) -> tuple[Expr, tuple[int, ...]] | None:
        origin = self._origin(bound) + bound.base
        numbers, shared = list[int](), None
        for n in range(bound.lanes):
            form = self.simplify.affine(substitute(expr, {var: origin + n}))
            shared = form.terms if shared is None else shared
            if form.terms != shared:
                return None
            numbers.append(index(form.constant))
        return Affine(shared or (), 0).expr(), tuple(numbers)

    def evenly(self, expr: Expr) -> tuple[tuple[int, ...], Expr] | None:
        """Return an index whose lanes are evenly apart as constants and a common offset; None for others."""
        vector = [v for v in free_vars(expr) if isinstance(self.env[v], LaneRange)]
        if len(vector) != 1:
            return None
        var, bound = vector[0], self.env[vector[0]]
        terms = self.simplify.affine(expr).terms
        assert isinstance(bound, LaneRange)
        if any(var in free_vars(a) for a, _ in terms if a is not var):
            return None
        step = dict(terms).get(var, 0)
        start = substitute(expr, {var: self._origin(bound)})
        return tuple(index(step * (bound.base + n)) for n in range(bound.lanes)), start

    def _origin(self, bound: LaneRange) -> Expr:
        """The vectorised variable in the first lane, less `base`."""
        if bound.chunk is None:
            return Const(0, INDEX)
        self.env[CHUNK] = bound.chunk
        self.simplify.ranges[CHUNK] = (0, UNKNOWN[1])
        return CHUNK * bound.lanes

    def interval(self, expr: Expr, used: int) -> tuple[int, int]:
        """Bounds of an index in the first `used` lanes, for all iterations of the loops that run."""
        form = self.simplify.affine(expr)
        low = high = form.constant
        for atom, c in form.terms:
            first, last = self.simplify.bounds(atom)
            bound = self.env[atom] if isinstance(atom, Var) else None
            if isinstance(bound, INTEGERS):
                first = last = bound
            elif isinstance(bound, LaneRange) and bound.chunk is None:
                first, last = bound.base, bound.base + used - 1
            elif bound is None and (numbers := self._own_numbers(atom)):
                first, last = min(numbers[:used]), max(numbers[:used])
            ends = c * first, c * last
            low, high = low + reduce(FOLDS["min"], ends), high + reduce(FOLDS["max"], ends)
        return low, high

    def _own_numbers(self, atom: Expr) -> tuple[int, ...]:
        """The values of a quotient or the like in each lane, () where they are not known."""
        has_lanes = any(isinstance(self.env[v], LaneRange) for v in free_vars(atom))
        pattern = self.pattern(atom) if has_lanes else None
        return () if pattern is None or pattern[0] != 0 else pattern[1]

    @contextmanager
    def within(self, limits: Iterable[Expr]) -> Iterator[None]:
        """Emit code at which these forms are 0 at most, besides those that are so around it."""
        outer = self.limits
        self.limits = (*outer, *(x for x in map(self.fixed, limits) if not is_sized(x)))
        try:
            yield
        finally:
            self.limits = outer

    @contextmanager
    def anywhere(self) -> Iterator[None]:
        """Ask for what holds outside of the branches and loops around as well."""
        limits, self.limits = self.limits, ()
        try:
            yield
        finally:
            self.limits = limits

    def interval_here(self, expr: Expr, used: int) -> tuple[int, int]:
        """Bounds of an index in the first `used` lanes at the current point: the loops of a split that does not divide
        do not reach their largest values together."""
        ends = self.interval(expr, used)
        if not self.limits or is_sized(expr) or not all(isinstance(end, int) for end in ends):
            return ends
        return -self._most(expr * -1, used), self._most(expr, used)

    def _most(self, expr: Expr, used: int) -> int:
        """An upper bound: multiples of limits, which are 0 at most, are subtracted, once for each at most: a variable
        that one cancels may come back with the next, in ever larger multiples."""
        most, scale = self.interval(expr, used)[1], 1
        for _ in self.limits:
            offers = [(self.interval(e, used)[1] // (scale * c), e, scale * c) for e, c in self._larger(expr)]
            known = [offer for offer in offers if isinstance(offer[0], int)]  # the others are of sizes
            best = min(known, key=lambda offer: offer[0], default=(most, expr, scale))
            if best[0] >= most:
                break
            most, expr, scale = best
        return most

    def _larger(self, expr: Expr) -> Iterator[tuple[Expr, int]]:
        """Forms that are at least c times `expr`, each without one of its variables, and c."""
        factors = dict(self.simplify.affine(expr).terms)
        for limit in self.limits:
            for atom, c in self.simplify.affine(limit).terms:
                if factors.get(atom, 0) * c > 0:
                    yield expr * abs(c) - limit * abs(factors[atom]), abs(c)

    def narrowed(self, number: int | Runtime) -> str:
        """The lowest 32 bits of a number."""
        if isinstance(number, int):
            return str(number)
        if isinstance(number, INTEGERS):
            number = Runtime(str(number), 0)
        if number.depth == HERE:
            return self.writer.value(f"trunc i64 {number.name} to i32")
        memo, key = self.writer.frames[number.depth].memo, ("narrow", number.name)
        if key not in memo:
            with self.writer.hoisted(number.depth):
                memo[key] = self.writer.value(f"trunc i64 {number.name} to i32")
        return memo[key]

    def _is_unsigned(self, expr: Expr) -> bool:
        return is_known("ge", self.simplify.bounds(expr)[0], 0)

    def _name(self, var: Var) -> str:
        bound = self.env[var]
        assert isinstance(bound, Runtime)
        return bound.name

    def _integer(self, expr: Expr) -> str:
        """Emit integer arithmetic here; division by positive constants rounds down."""
        match expr:
            case Const():
                return str(expr.number)
            case Var():
                bound = self.env[expr]
                return str(bound) if isinstance(bound, INTEGERS) else self._name(expr)
            case Binary(op=op, a=a, b=b):
                return integer_op(self.writer, op, self._integer(a), self._integer(b), self._is_unsigned(a))
        raise AssertionError(f"no integer code for {expr}")


def fits_32(*numbers: int) -> bool:
    return all(is_known("le", -(1 << 31), n) and is_known("lt", n, 1 << 31) for n in numbers)


def is_index(expr: Expr) -> bool:
    """Whether `expr` is integer arithmetic over loop variables; other int64 operations are those of data."""
    if isinstance(expr, Binary):
        if expr.op in ("floordiv", "mod") and not (isinstance(expr.b, Const) and expr.b.value > 0):
            return False  # it may trap, so it stays where it is written
        return expr.op in INTEGER_OPS and is_index(expr.a) and is_index(expr.b)
    return isinstance(expr, (Const, Var)) and expr.dtype == INDEX

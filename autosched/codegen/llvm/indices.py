"""Index values over loop variables: scalar where lanes agree, else a vector of lanes.

Lanes are in 32 bits where they fit: half the registers, and before AVX-512 the integers that are converted to floats,
and compared without masks to join, in one instruction.

Quotients and remainders of lanes that are evenly apart need no division of vectors, which no processor has. What all
lanes share is divided once, b = d q + r, and where that does not vary outside of the loops that do not move it. A lane
that is n further has (b + n) % d = r + n % d, less d where that is not below d, and (b + n) // d = q + n // d, and one
more there.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from autosched.codegen.llvm import masks
from autosched.codegen.llvm.arithmetic import Arithmetic, Val
from autosched.codegen.llvm.bindings import Bindings, LaneRange, Numbers, Runtime, fits_32
from autosched.codegen.llvm.vocabulary import suffix, value_type
from autosched.ir.expr import INDEX, Binary, Const, Expr, Var, binary
from autosched.ir.simplify import Affine
from autosched.ir.symbolic import INTEGERS
from autosched.ir.visit import free_vars

ZERO, TRUE = Const(0, INDEX), Const(True, "bool")
MAX_DIVISOR = 1 << 30  # twice that is no negative number of 32 bits


@dataclass(frozen=True)
class Indices:
    """Emits indices over loop variables, and comparisons of them, at the insertion point."""

    arithmetic: Arithmetic
    bindings: Bindings

    def emit(self, expr: Expr, used: int) -> Val:
        """Integer arithmetic, of which the first `used` lanes count: shared and hoisted where no lane is involved."""
        vector = {v for v in free_vars(expr) if isinstance(self.bindings.env[v], LaneRange | Numbers)}
        if not vector:
            scalar = self.bindings.scalar(expr)
            return Val(str(scalar) if isinstance(scalar, INTEGERS) else scalar.name, INDEX, 1)
        if isinstance(expr, Var):
            return self._lane_numbers(expr)
        assert isinstance(expr, Binary), f"no lane code for {expr}"
        if expr.op in ("floordiv", "mod"):
            known = self.bindings.pattern(expr)
            if known is not None:
                start, numbers = known
                name = str(start) if isinstance(start, INTEGERS) else start.name
                text = ", ".join(f"i64 {n}" for n in numbers)
                return self.arithmetic.binary("add", Val(f"<{text}>", INDEX, len(numbers)), Val(name, INDEX, 1))
            narrow = self.narrow(expr, used)
            if narrow is not None:
                return self.arithmetic.cast(narrow, INDEX)
        return self.arithmetic.binary(expr.op, self._operand(expr.a, used), self._operand(expr.b, used))

    def _operand(self, expr: Expr, used: int) -> Val:
        return Val(str(expr.number), INDEX, 1) if isinstance(expr, Const) else self.emit(expr, used)

    def compared(self, comparison: Binary, used: int) -> Val | None:
        """Emit a comparison of indices that is constant in each lane, or that fits into 32 bits."""
        if isinstance(comparison.a, Const) and isinstance(comparison.b, Const):  # of sizes
            a, b = (Val(str(e.number), INDEX, 1) for e in (comparison.a, comparison.b))
            return self.arithmetic.binary(comparison.op, a, b)
        return self._decided(comparison) or self._compared(comparison, used)

    def _decided(self, comparison: Binary) -> Val | None:
        """Return the lanes in which a quotient or remainder compares with a number, if all are known constants."""
        form = self.bindings.simplify.affine(comparison.a - comparison.b)
        if len(form.terms) != 1 or not isinstance(form.terms[0][0], Binary):
            return None
        ((atom, c),) = form.terms
        known = self.bindings.pattern(atom)
        if known is None or not isinstance(known[0], INTEGERS):
            return None
        values = (Const(c * (known[0] + n) + form.constant, INDEX) for n in known[1])
        holds = ["true" if binary(comparison.op, v, ZERO) == TRUE else "false" for v in values]
        mixed = masks.literal_mask((n for n, x in enumerate(holds) if x == "true"), len(holds))
        return Val(mixed, "bool", len(holds)) if len(set(holds)) > 1 else Val(holds[0], "bool", 1)

    def _compared(self, comparison: Binary, used: int) -> Val | None:
        """The lanes against what they share, in 32 bits; None where that does not fit. So is what has no lanes: of
        several differences the signs are tested at once."""
        difference = comparison.b - comparison.a
        even = self.bindings.evenly(difference)
        if even is None:
            narrow = self.narrow(comparison.a - comparison.b, used)
            return None if narrow is None else self.arithmetic.binary(comparison.op, narrow, Val("0", "int32", 1))
        if not fits_32(*even[0], *self.bindings.interval(difference, used)):
            return None
        start, numbers = self.bindings.scalar(even[1]), [-n for n in even[0]]
        if isinstance(start, INTEGERS) and len(numbers) > 1:
            hold = (n for n, number in enumerate(numbers) if getattr(operator, comparison.op)(number, start))
            return Val(masks.literal_mask(hold, len(numbers)), "bool", len(numbers))
        return self.arithmetic.binary(comparison.op, literal_lanes(numbers), self._shared(start))

    def _lane_numbers(self, var: Var) -> Val:
        """The values of the vectorised variable."""
        bound = self.bindings.env[var]
        if isinstance(bound, Numbers):
            return self.arithmetic.cast(Val(*bound), INDEX)
        assert isinstance(bound, LaneRange)
        text = ", ".join(f"i64 {bound.base + n}" for n in range(bound.lanes))
        numbers = Val(f"<{text}>" if bound.lanes > 1 else str(bound.base), INDEX, bound.lanes)
        if bound.chunk is None:
            return numbers
        start = self.arithmetic.writer.value(f"mul nsw i64 {bound.chunk.name}, {bound.lanes}")
        return self.arithmetic.binary("add", numbers, Val(start, INDEX, 1))

    def narrow(self, expr: Expr, used: int) -> Val | None:
        """The index as int32; None where that, or what it divides, does not fit in one of the first `used` lanes, or
        where data are in it."""
        data = any(isinstance(self.bindings.env.get(v), Numbers) for v in free_vars(expr))
        if data or not fits_32(*self.bindings.interval(expr, used)):
            return None
        total = self._plain(expr)
        if total is not None:
            return total
        form = self.bindings.simplify.affine(self.bindings.fixed(expr))
        divided = [(a, c) for a, c in form.terms if isinstance(a, Binary) and self._lanes_of(a)]
        rest = Affine(tuple(t for t in form.terms if t not in divided), form.constant)
        total = self._plain(rest.expr())
        for atom, c in divided:
            lanes = self._divided(atom, used)
            if lanes is None or total is None or not fits_32(c):
                return None
            scaled = lanes if c == 1 else self.arithmetic.binary("mul", lanes, self._shared(c))
            total = scaled if total.name == "0" else self.arithmetic.binary("add", scaled, total)
        return total

    def _plain(self, expr: Expr) -> Val | None:
        """An index whose lanes are evenly apart, or equal."""
        if not self._lanes_of(expr):
            return self._shared(self.bindings.scalar(expr))
        even = self.bindings.evenly(expr)
        if even is None or not fits_32(*even[0]):
            return None
        numbers, start = even
        return self._apart(numbers, self.bindings.scalar(start))

    def _apart(self, numbers: Sequence[int], shared: int | Runtime) -> Val:
        """A constant for each lane, and a common offset."""
        return self.arithmetic.binary("add", literal_lanes(numbers), self._shared(shared))

    def _shared(self, number: int | Runtime) -> Val:
        return Val(self.bindings.narrowed(number), "int32", 1)

    def _lanes_of(self, expr: Expr) -> list[Var]:
        return [v for v in free_vars(expr) if isinstance(self.bindings.env.get(v), LaneRange)]

    def _divided(self, atom: Binary, used: int) -> Val | None:
        """The lanes of a quotient or a remainder."""
        known = self.bindings.pattern(atom)
        if known is not None:
            return self._apart(known[1], known[0])
        divisor = int(atom.b.number) if isinstance(atom.b, Const) and atom.op in ("floordiv", "mod") else 0
        if not 0 < divisor < MAX_DIVISOR:
            return None
        even = self.bindings.evenly(atom.a)
        if even is None or not fits_32(*even[0]):
            inner = self.narrow(atom.a, used)
            return None if inner is None else self.arithmetic.binary(atom.op, inner, Val(str(divisor), "int32", 1))
        d, (numbers, start) = int(divisor), even

        def plus(lanes: Sequence[int], op: str) -> Val:
            return self._apart(lanes, self.bindings.scalar(binary(op, start, d)))

        high = plus([n % d for n in numbers], "mod")
        if atom.op == "floordiv":
            more = self.arithmetic.cast(self.arithmetic.binary("ge", high, Val(str(d), "int32", 1)), "int32")
            return self.arithmetic.binary("add", plus([n // d for n in numbers], "floordiv"), more)
        low = plus([n % d - d for n in numbers], "mod")  # large as an unsigned number where it is below 0
        kind = value_type("int32", high.lanes)
        call = f"call {kind} @llvm.umin.{suffix('int32', high.lanes)}({kind} {low.name}, {kind} {high.name})"
        return self.arithmetic.emitted(call, high)


def literal_lanes(numbers: Sequence[int]) -> Val:
    """A number of 32 bits for each lane."""
    text = ", ".join(f"i32 {n}" for n in numbers)
    return Val(f"<{text}>" if len(numbers) > 1 else str(numbers[0]), "int32", len(numbers))

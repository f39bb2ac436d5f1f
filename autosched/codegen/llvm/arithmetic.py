"""Arithmetic on LLVM values: lanes are matched, dtypes select the instruction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from autosched.codegen.llvm.math.vector_math import emit_call, emit_fmod, emit_or_nan, emit_pow
from autosched.codegen.llvm.small_floats import narrow, widen
from autosched.codegen.llvm.vocabulary import (
    ARITHMETIC,
    INTRINSICS,
    INVERSE_OF_FLOATS,
    PREDICATES,
    is_literal,
    literal,
    splat,
    suffix,
    value_type,
)
from autosched.codegen.llvm.writer import Writer
from autosched.ir.dtype import DTYPES
from autosched.target import Target

_NAN = literal(math.nan, "float64")  # in LLVM's text the same for float32


class Val(NamedTuple):
    """An SSA name or literal; `lanes` 1 is a scalar, which stands for the same value in every lane."""

    name: str
    dtype: str
    lanes: int


@dataclass(frozen=True)
class Arithmetic:
    writer: Writer
    target: Target

    def broadcast(self, value: Val, lanes: int) -> Val:
        """A scalar in every lane; once in a block."""
        if value.lanes == lanes or lanes == 1:
            return value
        if is_literal(value.name):
            return Val(splat(value.name, value.dtype, lanes), value.dtype, lanes)
        name = self.writer.broadcast.get((value.name, lanes))
        if name is None:
            kind, scalar = value_type(value.dtype, lanes), value_type(value.dtype)
            first = self.writer.value(f"insertelement {kind} poison, {scalar} {value.name}, i64 0")
            name = self.writer.value(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")
            self.writer.broadcast[value.name, lanes] = name
        return Val(name, value.dtype, lanes)

    def match(self, *values: Val) -> list[Val]:
        lanes = max(v.lanes for v in values)
        return [v if v.lanes == lanes else self.broadcast(v, lanes) for v in values]

    def _reordered(self, operation: Callable[..., Val], *operands: Val) -> Val | None:
        """The operation on vectors whose lanes have all been put in the same order, before that instead of afterwards:
        the order of a chain's last result is all that is needed then. None where they are not. (LLVM would put sums'
        operands in order again, but for the fence.)"""
        known = [self.writer.orders.get(v.name) for v in operands]
        orders = {k[1] for k in known if k is not None}
        if len(orders) != 1 or any(k is None and v.lanes > 1 for k, v in zip(known, operands, strict=True)):
            return None
        before = (v if k is None else v._replace(name=k[0]) for k, v in zip(known, operands, strict=True))
        result = operation(*before)
        fenced = (
            self.fence(result) if DTYPES[result.dtype].is_float and not DTYPES[result.dtype].is_stored_only else result
        )
        name = self.writer.reordered(value_type(result.dtype, result.lanes), result.name, fenced.name, orders.pop())
        return result._replace(name=name)

    def fence(self, a: Val) -> Val:
        """Return the same float opaque to LLVM's optimiser, without an instruction."""
        text = value_type(a.dtype, a.lanes)
        return self.emitted(f"call {text} @llvm.arithmetic.fence.{suffix(a.dtype, a.lanes)}({text} {a.name})", a)

    def binary(self, op: str, lhs: Val, rhs: Val) -> Val:
        if op not in PREDICATES and (reordered := self._reordered(partial(self.binary, op), lhs, rhs)) is not None:
            return reordered
        a, b = self.match(lhs, rhs)
        kind = DTYPES[a.dtype].kind
        column = {"f": 0, "i": 1, "u": 2, "b": 2}[kind]
        text = value_type(a.dtype, a.lanes)
        if op in PREDICATES:
            return self._compare(PREDICATES[op][column], a, b)
        if op in ("min", "max"):
            return (
                self._min_or_max(op, b, a)
                if self._is_number(lhs)
                else self._min_or_max(op, a, b, is_known=self._is_number(rhs))
            )
        if op == "pow":
            return self._power(a, b)
        if op == "fmod":
            w = self.writer
            name = emit_fmod(a.dtype, a.lanes, a.name, b.name, w.fresh, w.emit, self.target.has_fma, w.rarely)
            return Val(name, a.dtype, a.lanes)
        if op == "div" and kind == "f" and rhs.lanes < lhs.lanes:  # one scalar division for the whole vector
            return self.binary("mul", lhs, self.binary("div", Val(literal(1.0, rhs.dtype), rhs.dtype, 1), rhs))
        if op in ("and", "or") and {lhs.name, rhs.name} & {"true", "false"}:
            return _decided(op, lhs, rhs)
        if op in ("floordiv", "mod", "ceildiv"):
            return self._divide(op, a, b, rhs.name)
        made = Val(self.writer.value(f"{ARITHMETIC[op][column]} {text} {a.name}, {b.name}"), a.dtype, a.lanes)
        integers = [v.name in self.writer.integers for v in (a, b)]
        if op in ("add", "sub") and any(integers) and self._is_number(b if integers[0] else a):
            self.writer.numbers.add(made.name)
        return made

    def is_same(self, lhs: Val, rhs: Val) -> Val:
        """Where two values are equal or one is NaN."""
        return self._compare("ueq" if DTYPES[lhs.dtype].is_float else "eq", lhs, rhs)

    def fails(self, op: str, lhs: Val, rhs: Val) -> Val:
        """Where an ordering of floats does not hold, in one instruction."""
        return self._compare(INVERSE_OF_FLOATS[op], lhs, rhs)

    def _compare(self, predicate: str, lhs: Val, rhs: Val) -> Val:
        a, b = self.match(lhs, rhs)
        word = "fcmp" if DTYPES[a.dtype].is_float else "icmp"
        text = f"{word} {predicate} {value_type(a.dtype, a.lanes)} {a.name}, {b.name}"
        return Val(self.writer.value(text), "bool", a.lanes)

    def _is_number(self, value: Val) -> bool:
        """Whether a scalar is not NaN: a literal, or an integer as a float, or the difference of such."""
        is_number = is_literal(value.name) and value.name != _NAN
        is_made = value.name in self.writer.integers or value.name in self.writer.numbers
        return value.lanes == 1 and (is_number or is_made)

    def _min_or_max(self, op: str, a: Val, b: Val, is_known: bool = True) -> Val:
        """min or max; of floats, NaN where an operand is. `is_known`: b is a number, so one instruction is enough."""
        apart = DTYPES[a.dtype].is_float and not is_known
        if apart and a.lanes > 1 and self.target.masks_are_vectors:
            return self._chained(op, a, b)
        result = self.select(self.binary("gt" if op == "min" else "lt", a, b), b, a)  # a where one is NaN
        if not apart:
            return result
        if has_avx512(self.target) and a.lanes * DTYPES[a.dtype].nbytes % 64 == 0:
            w = self.writer
            return Val(emit_or_nan(a.dtype, a.lanes, result.name, b.name, w.fresh, w.emit), a.dtype, a.lanes)
        return self.select(self.binary("ne", b, b), b, result)

    def _chained(self, op: str, a: Val, b: Val) -> Val:
        """The extreme of `a`, which may be one of this block itself, and `b`, by bits that are set where a lane is NaN.

        All bits set are NaN, and an `or` runs anywhere: a blend would be beside the maximum and the comparison. Which
        lanes are NaN is kept apart along a chain, and asked of two operands at once: two instructions an operand.
        """
        known = self.writer.min_max_chains.get(a.name)
        best, lost, odd = known[1:] if known is not None and known[0] == op else (a, None, None)
        best = self.select(self.binary("gt" if op == "min" else "lt", best, b), b, best)
        integer = f"int{DTYPES[a.dtype].bits}"
        here = self.converted("sext", self._compare("uno", b if odd is None else odd, b), integer)
        here = here if lost is None else self.binary("bitor", lost, here)
        bits = self.binary("bitor", self.converted("bitcast", best, integer), here)
        extremum_bits = self.converted("bitcast", bits, a.dtype)
        self.writer.min_max_chains[extremum_bits.name] = (op, best, lost, b) if odd is None else (op, best, here, None)
        return extremum_bits

    def select(self, cond: Val, a: Val, b: Val) -> Val:
        if cond.name in ("true", "false"):
            return a if cond.name == "true" else b
        if cond.lanes == 1:
            x, y = self.match(a, b)
            c = cond
        else:
            c, x, y = self.match(cond, a, b)
        text = value_type(x.dtype, x.lanes)
        name = self.writer.value(f"select {value_type('bool', c.lanes)} {c.name}, {text} {x.name}, {text} {y.name}")
        return Val(name, x.dtype, x.lanes)

    def fma(self, a: Val, b: Val, c: Val) -> Val:
        """a * b + c.

        Where a row is a single vector, what is spread over its lanes is used once. An instruction that has its result
        in one of its operands would overwrite it rather than the accumulator: LLVM takes the first operand that is not
        used again. Accumulators would then change registers in each step of an unrolled reduction, and spill. So the
        operand is said to be used once more, by no instruction.
        """
        if (reordered := self._reordered(self.fma, a, b, c)) is not None:
            return reordered
        x, y, z = self.match(a, b, c)
        text = value_type(x.dtype, x.lanes)
        name = self.writer.value(
            f"call {text} @llvm.fma.{suffix(x.dtype, x.lanes)}({text} {x.name}, {text} {y.name}, {text} {z.name})"
        )
        if self.writer.single and _overwrites_operands(self.target):
            for value, broadcast in ((a, x), (b, y)):
                if value.lanes == 1 < x.lanes and broadcast.name.startswith("%"):
                    self.writer.emit(f"call void (...) @llvm.fake.use({text} {broadcast.name})")
        return Val(name, x.dtype, x.lanes)

    def less(self, a: Val, b: Val) -> Val:
        """a - b as a + -b, where `a` is read from memory and `b` has no lanes: of a sum, unlike of a difference, either
        operand may be in memory. LLVM would make it a difference again but for the fence, which is no instruction."""
        if a.lanes == 1 or b.lanes > 1 or self.target.arch != "x86_64":
            return self.binary("sub", a, b)
        known = self.writer.broadcast.get((b.name, 0))
        if known is None:
            known = self.writer.broadcast[b.name, 0] = self.fence(self.negate(b)).name
        return self.binary("add", a, Val(known, b.dtype, 1))

    def negate(self, a: Val) -> Val:
        text = value_type(a.dtype, a.lanes)
        if DTYPES[a.dtype].is_float:
            return Val(self.writer.value(f"fneg {text} {a.name}"), a.dtype, a.lanes)
        return self.binary("sub", Val("0", a.dtype, 1), a)

    def call(self, fn: str, a: Val) -> Val:
        """A function of one argument."""
        kind = DTYPES[a.dtype].kind
        text = value_type(a.dtype, a.lanes)
        if fn == "neg":
            return self.negate(a)
        if fn == "not":
            return Val(self.writer.value(f"xor {text} {a.name}, {splat('true', 'bool', a.lanes)}"), "bool", a.lanes)
        if fn == "abs" and kind != "f":
            return a if kind in "ub" else self.select(self.binary("lt", a, Val("0", a.dtype, 1)), self.negate(a), a)
        if fn == "rsqrt":
            return self.binary("div", Val(literal(1.0, a.dtype), a.dtype, 1), self.call("sqrt", a))
        if fn in INTRINSICS:
            name = self.writer.value(f"call {text} @llvm.{INTRINSICS[fn]}.{suffix(a.dtype, a.lanes)}({text} {a.name})")
            return Val(name, a.dtype, a.lanes)
        return Val(self._math(fn, a), a.dtype, a.lanes)

    def _math(self, fn: str, a: Val) -> str:
        w, t = self.writer, self.target
        return emit_call(fn, a.dtype, a.lanes, a.name, w.fresh, w.emit, t.has_fma, shuffled_bits(t), w.rarely)

    def _power(self, a: Val, b: Val) -> Val:
        """a ** b; small constant powers are products."""
        for exponent in (2, 3):
            text = literal(exponent, a.dtype)
            if b.name in (text, splat(text, a.dtype, b.lanes)):
                square = self.binary("mul", a, a)
                return square if exponent == 2 else self.binary("mul", square, a)
        w, t = self.writer, self.target
        name = emit_pow(a.dtype, a.lanes, a.name, b.name, w.fresh, w.emit, t.has_fma, shuffled_bits(t))
        return Val(name, a.dtype, a.lanes)

    def _divide(self, op: str, a: Val, b: Val, divisor: str) -> Val:
        """Integer division that rounds down (up for ceildiv), and its remainder with the divisor's sign.

        A processor traps on x / 0 and on smallest / -1. Lanes that do not exist and branches that are not taken
        may divide by 0, so unless `divisor` is a positive number 0 and -1 are replaced by 1. Results of x / 0 are 0, as
        NumPy's.
        """
        zero, one, minus_one = (Val(n, a.dtype, 1) for n in ("0", "1", "-1"))
        is_signed = DTYPES[a.dtype].kind == "i"
        if is_signed and divisor.isdigit() and divisor != "0":
            return self._divide_by_number(op, a, b, int(divisor))
        safe, negative, nothing = b, None, None
        if not divisor.isdigit() or divisor == "0":
            unsafe = nothing = self.binary("eq", b, zero)
            if is_signed:
                negative = self.binary("eq", b, minus_one)
                unsafe = self.binary("or", unsafe, negative)
            safe = self.select(unsafe, one, b)
        rest = self._divided("rem", a, safe)
        inexact = self.binary("ne", rest, zero)
        wrong = None
        if is_signed:  # the processor rounds towards zero
            wrong = self.binary("and", self.binary("lt", self.binary("bitxor", rest, b), zero), inexact)
        if op == "mod":
            return rest if wrong is None else self.binary("add", rest, self.select(wrong, b, zero))
        quotient = self._divided("div", a, safe)
        if nothing is not None:
            quotient = self.select(nothing, zero, quotient)
        if negative is not None:
            quotient = self.select(negative, self.negate(a), quotient)
        if wrong is not None:
            quotient = self.binary("sub", quotient, self.select(wrong, one, zero))
        return quotient if op == "floordiv" else self.binary("add", quotient, self.select(inexact, one, zero))

    def _divide_by_number(self, op: str, a: Val, b: Val, divisor: int) -> Val:
        """Division of a signed integer by `b`, the positive `divisor`, by way of one that is not negative:

            floor(a / b) = a udiv b where a >= 0, else ~(~a udiv b)

        That takes a third of the instructions of a quotient towards zero and its correction."""
        if divisor & (divisor - 1) == 0:
            quotient = self.binary("shr", a, self.number(divisor.bit_length() - 1, a.dtype))
            rest = self.binary("bitand", a, self.number(divisor - 1, a.dtype))
        else:
            sign = self.binary("shr", a, self.number(DTYPES[a.dtype].bits - 1, a.dtype))
            bits = f"u{a.dtype}"
            size = self._divided("div", self.cast(self.binary("bitxor", a, sign), bits), self.cast(b, bits))
            quotient = self.binary("bitxor", self.cast(size, a.dtype), sign)
            rest = quotient if op == "floordiv" else self.binary("sub", a, self.binary("mul", quotient, b))
        if op != "ceildiv":
            return quotient if op == "floordiv" else rest
        zero, one = self.number(0, a.dtype), self.number(1, a.dtype)
        return self.binary("add", quotient, self.select(self.binary("ne", rest, zero), one, zero))

    def _divided(self, word: str, a: Val, b: Val) -> Val:
        sign = "s" if DTYPES[a.dtype].kind == "i" else "u"
        text = value_type(a.dtype, a.lanes)
        return Val(self.writer.value(f"{sign}{word} {text} {a.name}, {b.name}"), a.dtype, a.lanes)

    def cast(self, a: Val, dtype: str) -> Val:
        if a.dtype == dtype:
            return a
        if DTYPES[a.dtype].is_stored_only:
            return widen(self, a)
        if DTYPES[dtype].is_stored_only:
            return narrow(self, a, dtype)
        source, kind = DTYPES[a.dtype].kind, DTYPES[dtype].kind
        old, new = value_type(a.dtype, a.lanes), value_type(dtype, a.lanes)
        if dtype == "bool":
            return self.binary("ne", a, Val(literal(0, a.dtype), a.dtype, 1))
        if source == "f" and kind == "f":
            word = "fpext" if DTYPES[dtype].nbytes > DTYPES[a.dtype].nbytes else "fptrunc"
        elif source == "f":
            word = "fptosi" if kind == "i" else "fptoui"
        elif kind == "f":
            word = "sitofp" if source == "i" else "uitofp"
        elif a.dtype == "bool" or DTYPES[dtype].nbytes > DTYPES[a.dtype].nbytes:
            word = "sext" if source == "i" else "zext"
        elif DTYPES[dtype].nbytes < DTYPES[a.dtype].nbytes:
            word = "trunc"
        else:
            return Val(a.name, dtype, a.lanes)  # signed or not: the same bits
        made = Val(self.writer.value(f"{word} {old} {a.name} to {new}"), dtype, a.lanes)
        if word in ("sitofp", "uitofp") and a.lanes == 1:
            self.writer.integers.add(made.name)
        return made

    def bitcast(self, a: Val, dtype: str) -> Val:
        """The number of `dtype` with the bits of `a`, which is of the same size."""
        same = value_type(a.dtype) == value_type(dtype)
        return Val(a.name, dtype, a.lanes) if same else self.converted("bitcast", a, dtype)

    def rounded(self, a: Val) -> Val:
        """Vectors of float32 as the nearest integers of 32 bits, in one instruction."""
        old, new = value_type(a.dtype, a.lanes), value_type("int32", a.lanes)
        kinds = f"{suffix('int32', a.lanes)}.{suffix(a.dtype, a.lanes)}"
        return Val(self.writer.value(f"call {new} @llvm.lrint.{kinds}({old} {a.name})"), "int32", a.lanes)

    def number(self, value: int | float, dtype: str) -> Val:
        return Val(literal(value, dtype), dtype, 1)

    def emitted(self, text: str, like: Val) -> Val:
        """The result of an instruction whose type is that of `like`."""
        return Val(self.writer.value(text), like.dtype, like.lanes)

    def converted(self, word: str, a: Val, kind: str, dtype: str = "") -> Val:
        """`a` by LLVM's conversion `word` to its type `kind`, known as `dtype` from there on."""
        old = _kind(a.dtype, a.lanes)
        name = self.writer.value(f"{word} {old} {a.name} to {_kind(kind, a.lanes)}")
        return Val(name, dtype or kind, a.lanes)


def _kind(name: str, lanes: int) -> str:
    """LLVM's type for a dtype of ours, or for its own scalar type."""
    scalar = value_type(name) if name in DTYPES else name
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def integer_op(writer: Writer, op: str, a: str, b: str, nonnegative: bool) -> str:
    """One int64 operation; floordiv and mod by a positive divisor, exact rounding when `a` may be negative."""
    match op:
        case "add" | "sub" | "mul":
            return writer.value(f"{op} nsw i64 {a}, {b}")
        case "min" | "max":
            return writer.value(f"call i64 @llvm.s{op}.i64(i64 {a}, i64 {b})")
        case "floordiv" | "mod" if nonnegative:
            return writer.value(f"{'udiv' if op == 'floordiv' else 'urem'} i64 {a}, {b}")
        case "floordiv":
            rest = writer.value(f"srem i64 {a}, {b}")
            sign = writer.value(f"ashr i64 {rest}, 63")
            quotient = writer.value(f"sdiv i64 {a}, {b}")
            return writer.value(f"add i64 {quotient}, {sign}")
        case "mod":
            rest = writer.value(f"srem i64 {a}, {b}")
            sign = writer.value(f"ashr i64 {rest}, 63")
            fix = writer.value(f"and i64 {sign}, {b}")
            return writer.value(f"add i64 {rest}, {fix}")
    raise AssertionError(f"no integer operation {op}")


def has_avx512(target: Target) -> bool:
    return target.arch == "x86_64" and target.vector_bytes == 64


def _overwrites_operands(target: Target) -> bool:
    """Whether a multiply-add has its result in one of its operands, which are in registers. (With vectors of 64 bytes
    it spreads what it reads from memory.)"""
    return target.arch == "x86_64" and target.has_fma and target.vector_bytes < 64


def shuffled_bits(target: Target) -> int:
    """Bits of a register whose elements one instruction picks by index; 0 where it could not pick all of them."""
    if target.arch != "x86_64" or target.vector_bytes < 32 or not target.has("avx2"):
        return 0
    return 8 * target.vector_bytes


def _decided(op: str, lhs: Val, rhs: Val) -> Val:
    """`and`, `or` with one side known."""
    known, other = (lhs, rhs) if lhs.name in ("true", "false") else (rhs, lhs)
    return other if (known.name == "true") == (op == "and") else known

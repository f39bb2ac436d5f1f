"""A builder of LLVM IR instructions on vectors of any width, for the elementary functions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

# Multiply-adds that wait for each other, by `LaneWriter.shuffled`; schedulers hold too few others to do meanwhile. In
# AVX-512 `exp` is few instructions, each for twice the lanes: there more of them would cost more than the wait.
LONGEST_CHAIN = {0: 8, 256: 8, 512: 12}


@dataclass(frozen=True)
class Format:
    """A floating-point format and the constants and coefficients (lowest power first) of its functions."""

    name: str
    bits: int
    fraction: int  # stored bits of the significand
    bias: int
    suffix: str
    smallest_normal: float
    sqrt_half: int  # the bit pattern of sqrt(1/2)
    exp_low: float  # exp is 0 below
    exp_high: float  # exp is infinite above
    ln2: tuple[float, float]  # high part with trailing zeros, low part
    exp: tuple[float, ...]  # (e**r - 1 - r) / r**2 on |r| <= ln2 / 2, for e**r
    powers: dict[int, int]  # bits of a register: entries of a table of 2**(j / powers) that shuffles look up in it
    exp_near: dict[int, tuple[float, ...]]  # powers: (e**r - 1) / r on |r| <= ln2 / 2 / powers
    expm1: tuple[float, ...]  # the same, for e**r - 1
    tanh_high: float  # tanh is 1 above
    erf_series: tuple[float, ...]  # erf(x) / x - 1 in x**2, |x| < 1
    erf_tail: tuple[float, ...]  # see _erf
    erf_high: float  # erf is 1 above
    sin: tuple[float, ...]  # (sin(r) - r) / r**3 in r**2, |r| <= pi/4
    cos: tuple[float, ...]  # (cos(r) - 1 + r**2 / 2) / r**4 in r**2

    @property
    def magic(self) -> float:
        """1.5 * 2**fraction: adding it rounds to an integer, which then stands in the low bits."""
        return 1.5 * 2.0**self.fraction


# Values, or where a condition holds those that are emitted for it: `Writer.rarely`
Rarely: TypeAlias = Callable[[str, Sequence[str], Sequence[str], Callable[[], Sequence[str]]], list[str]]


@dataclass(frozen=True)
class LaneWriter:
    """Writes instructions on `lanes` values of a format; a literal stands for the same number in every lane.

    `shuffled`: bits of a register whose elements one instruction picks by index, 512 in AVX-512, 256 in AVX2, else 0.
    """

    form: Format
    lanes: int
    fresh: Callable[[], str]
    out: Callable[[str], None]
    fused: bool
    shuffled: int = 0
    rarely: Rarely | None = None

    @property
    def type(self) -> str:
        return self._wide(self.form.name)

    @property
    def integer(self) -> str:
        return self._wide(f"i{self.form.bits}")

    @property
    def bool(self) -> str:
        return self._wide("i1")

    def number(self, value: float) -> str:
        word = self._literal(value)
        return word if self.lanes == 1 else f"splat ({self.form.name} {word})"

    def _literal(self, value: float) -> str:
        if self.form.bits == 32:
            value = struct.unpack("f", struct.pack("f", value))[0]
        return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"

    def _word(self, value: float) -> int:
        """The bits of a number."""
        kinds = ("f", "I") if self.form.bits == 32 else ("d", "Q")
        return int(struct.unpack(kinds[1], struct.pack(kinds[0], value))[0])

    def whole(self, value: int) -> str:
        signed = value - (1 << self.form.bits) if value >> (self.form.bits - 1) else value
        return str(signed) if self.lanes == 1 else f"splat (i{self.form.bits} {signed})"

    def emit(self, text: str) -> str:
        name = self.fresh()
        self.out(f"{name} = {text}")
        return name

    def op(self, word: str, a: str, b: str) -> str:
        return self.emit(f"{word} {self.type} {a}, {b}")

    def iop(self, word: str, a: str, b: str) -> str:
        return self.emit(f"{word} {self.integer} {a}, {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        """a b + c, in one rounding where the target can."""
        if not self.fused:
            return self.op("fadd", self.op("fmul", a, b), c)
        t = self.type
        return self.emit(f"call {t} @llvm.fma.{self._suffix}({t} {a}, {t} {b}, {t} {c})")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """By Horner's rule; a long one in float64 by even and odd powers apart, for half as long a wait (float32's
        longest, erf's, would lose a bit)."""
        if len(coefficients) > LONGEST_CHAIN[self.shuffled] and self.form.bits == 64:
            square = self.op("fmul", x, x)
            even, odd = (self.polynomial(square, coefficients[n::2]) for n in (0, 1))
            return self.fma(odd, x, even)
        value = self.number(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            value = self.fma(value, x, self.number(c))
        return value

    def compare(self, relation: str, a: str, b: str) -> str:
        return self.emit(f"fcmp {relation} {self.type} {a}, {b}")

    def select(self, condition: str, a: str, b: str) -> str:
        return self.emit(f"select {self.bool} {condition}, {self.type} {a}, {self.type} {b}")

    def at_most(self, x: str, limit: float) -> str:
        """min(x, limit), and NaN for NaN."""
        bound = self.number(limit)
        return self.select(self.compare("ogt", x, bound), bound, x)

    def at_least(self, x: str, limit: float) -> str:
        bound = self.number(limit)
        return self.select(self.compare("olt", x, bound), bound, x)

    def unary(self, intrinsic: str, x: str) -> str:
        return self.emit(f"call {self.type} @llvm.{intrinsic}.{self._suffix}({self.type} {x})")

    def copysign(self, magnitude: str, sign: str) -> str:
        t = self.type
        return self.emit(f"call {t} @llvm.copysign.{self._suffix}({t} {magnitude}, {t} {sign})")

    def where_any(
        self, condition: str, kinds: Sequence[str], usual: Sequence[str], rare: Callable[[], Sequence[str]]
    ) -> list[str]:
        """Return the values `usual`, of these types, or those that `rare` emits if the condition holds in any lane."""
        if self.lanes > 1:
            condition = self.emit(f"call i1 @llvm.vector.reduce.or.v{self.lanes}i1({self.bool} {condition})")
        if self.rarely is not None:
            return self.rarely(condition, kinds, usual, rare)
        pairs = zip(kinds, rare(), usual, strict=True)
        return [self.emit(f"select i1 {condition}, {kind} {a}, {kind} {b}") for kind, a, b in pairs]

    def called(self, name: str, result: str, *arguments: tuple[str, str]) -> str:
        """Call a function of `rare_cases.py` on vectors of these types, or on a single lane."""
        texts = [f"{self._vector(kind)} {self._in_vector(kind, x)}" for kind, x in arguments]
        return self.emit(f"call {result} @autosched.{name}.v{self.lanes}{self.form.suffix}({', '.join(texts)})")

    def _vector(self, kind: str) -> str:
        return kind if self.lanes > 1 else f"<1 x {kind}>"

    def _in_vector(self, kind: str, x: str) -> str:
        return x if self.lanes > 1 else self.emit(f"insertelement <1 x {kind}> poison, {kind} {x}, i64 0")

    def remainder(self, x: str, y: str) -> str:
        """The exact remainder of x / y, of any numbers, slowly."""
        remainders = self.called("fmod", self._vector(self.type), (self.type, x), (self.type, y))
        return remainders if self.lanes > 1 else self.emit(f"extractelement <1 x {self.type}> {remainders}, i64 0")

    def reduced(self, x: str, r: str, n: str) -> list[str]:
        """x - n pi / 2, and n, where |x| is above FAR; r and n elsewhere."""
        kinds = [self.type, self.integer]
        both = f"{{ {self._vector(kinds[0])}, {self._vector(kinds[1])} }}"
        pair = self.called("reduced", both, *zip((kinds[0], *kinds), (x, r, n), strict=True))
        parts = [self.emit(f"extractvalue {both} {pair}, {at}") for at in (0, 1)]
        if self.lanes > 1:
            return parts
        return [self.emit(f"extractelement <1 x {k}> {p}, i64 0") for k, p in zip(kinds, parts, strict=True)]

    def scale(self, x: str, n: str) -> str:
        """x * 2**n, n rounded down, in AVX-512; rounded once however small the result is, infinite beyond the range."""
        return self._avx512("scalef", x, n, f"{self.type} {x}")

    def exponent(self, x: str) -> str:
        """The largest e with 2**e <= |x|, in AVX-512; -infinity for 0, infinity for infinities."""
        return self._avx512_of("getexp", x, "")

    def fraction(self, x: str) -> str:
        """|x| / 2**e of that e, in AVX-512; 1 for 0 and infinity, NaN for what is negative."""
        return self._avx512_of("getmant", x, "i32 12, ")  # 8: no negative numbers, 4: nor -0's sign

    def bounded(self, x: str, limit: float) -> str:
        """x between -limit and limit, in AVX-512; some number between them for NaN."""
        return self._avx512("range", x, self.number(limit), f"i32 2, {self.type} {x}")  # 2: smaller, with the sign of x

    def or_nan(self, x: str, operand: str) -> str:
        """x, but NaN where `operand` is, in AVX-512."""
        t, kind = self.type, "ps" if self.form.bits == 32 else "pd"
        return self.emit(  # the table says for each class of numbers what to do: NaN is taken, x stays for the others
            f"call {t} @llvm.x86.avx512.mask.fixupimm.{kind}.512({t} {x}, {t} {operand}, "
            f"{self.integer} {self.whole(0x22)}, i32 0, i{self.lanes} -1, i32 4)"
        )

    def smaller(self, x: str, limit: float) -> str:
        """min(x, limit) of positive numbers, NaN among the largest, as integers."""
        bits, bound = self.bits(x), self.whole(self._word(limit))
        less = self.emit(f"icmp slt {self.integer} {bits}, {bound}")
        return self.float(self.emit(f"select {self.bool} {less}, {self.integer} {bits}, {self.integer} {bound}"))

    def power_at(self, powers: int, index: str) -> str:
        """The bits of 2**(j / powers) at the low bits j of `index`, a float, in each lane, in AVX2: a register of
        float32. 1's bits and j's, at the head of the fraction, are taken off: j / powers + k + bias in fixed point,
        added to them, makes it 2**(j / powers + k)."""
        head, one = self.form.fraction - (powers - 1).bit_length(), self._word(1.0)
        words = [self._word(2.0 ** (j / powers)) - one - (j << head) for j in range(powers)]
        return self.bits(self._selected(words, index))

    def table_lookup(self, numbers: Sequence[float], index: str) -> str:
        """The number at the low bits of `index`, a float, in each lane: a register of float32 of AVX2 or AVX-512."""
        return self._selected([self._word(x) for x in numbers], index)

    def _selected(self, words: Sequence[int], index: str) -> str:
        table = f"bitcast ({self.integer} <{', '.join(f'i32 {word}' for word in words)}> to {self.type})"
        name = "avx2.permps" if self.shuffled == 256 else "avx512.permvar.sf.512"
        return self.emit(f"call {self.type} @llvm.x86.{name}({self.type} {table}, {self.integer} {self.bits(index)})")

    def entry(self, numbers: Sequence[float], index: str) -> str:
        """The table's entry at the low bits of `index`, a float, in each lane, in AVX-512; two registers of entries."""
        t, kind = self.type, "ps" if self.form.bits == 32 else "pd"
        texts = [f"{self.form.name} {self._literal(x)}" for x in numbers]
        low, high = (", ".join(texts[n : n + self.lanes]) for n in (0, self.lanes))
        numbers_at = f"{t} <{low}>, {self.integer} {self.bits(index)}, {t} <{high}>"
        return self.emit(f"call {t} @llvm.x86.avx512.vpermi2var.{kind}.512({numbers_at})")

    def _avx512(self, name: str, x: str, y: str, rest: str) -> str:
        """An instruction on all lanes of whole registers, with the current rounding."""
        t, kind = self.type, "ps" if self.form.bits == 32 else "pd"
        return self.emit(
            f"call {t} @llvm.x86.avx512.mask.{name}.{kind}.512({t} {x}, {t} {y}, {rest}, i{self.lanes} -1, i32 4)"
        )

    def _avx512_of(self, name: str, x: str, rule: str) -> str:
        t, kind = self.type, "ps" if self.form.bits == 32 else "pd"
        rest = f"{t} zeroinitializer, i{self.lanes} -1, i32 4"
        return self.emit(f"call {t} @llvm.x86.avx512.mask.{name}.{kind}.512({t} {x}, {rule}{rest})")

    def bits(self, x: str) -> str:
        return self.emit(f"bitcast {self.type} {x} to {self.integer}")

    def float(self, bits: str) -> str:
        return self.emit(f"bitcast {self.integer} {bits} to {self.type}")

    def in_registers(self, function: Callable[..., str], *numbers: str) -> str:
        """`function` of `LaneWriter` and the numbers, in whole registers: every lane is computed alike, however many
        there are."""
        whole = replace(self, lanes=self.shuffled // self.form.bits)
        if self.lanes == whole.lanes:
            return function(whole, *numbers)
        if self.lanes == 1:
            registers = [self.emit(f"insertelement {whole.type} poison, {self.type} {x}, i64 0") for x in numbers]
            return self.emit(f"extractelement {whole.type} {function(whole, *registers)}, i64 0")
        if self.lanes < whole.lanes:
            padded = [self._taken_lanes(x, 0, whole.lanes) for x in numbers]
            return whole._taken_lanes(function(whole, *padded), 0, self.lanes)
        half = replace(self, lanes=self.lanes // 2)
        halves = ([self._taken_lanes(x, n, half.lanes) for x in numbers] for n in (0, half.lanes))
        parts = [half.in_registers(function, *some) for some in halves]
        picks = ", ".join(f"i32 {n}" for n in range(self.lanes))
        return self.emit(
            f"shufflevector {half.type} {parts[0]}, {half.type} {parts[1]}, <{self.lanes} x i32> <{picks}>"
        )

    def _taken_lanes(self, x: str, first: int, lanes: int) -> str:
        """Return `lanes` lanes of x from lane `first` on; those beyond its end are undefined."""
        picks = ", ".join(f"i32 {min(n, self.lanes)}" for n in range(first, first + lanes))
        return self.emit(f"shufflevector {self.type} {x}, {self.type} poison, <{lanes} x i32> <{picks}>")

    def power_of_two(self, biased: str) -> str:
        """2**k from an integer whose low bits are k + bias."""
        return self.float(self.iop("shl", biased, self.whole(self.form.fraction)))

    @property
    def _suffix(self) -> str:
        return self.form.suffix if self.lanes == 1 else f"v{self.lanes}{self.form.suffix}"

    def _wide(self, scalar: str) -> str:
        return scalar if self.lanes == 1 else f"<{self.lanes} x {scalar}>"

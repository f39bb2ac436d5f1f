"""Slow paths of elementary functions, for arguments outside of the fast vector code: functions, called in a branch.

    autosched.fmod.T(x, y)        the exact remainder of any two numbers, by division of integers, 11 bits at a time
    autosched.reduced.T(x, r, n)  x - n pi / 2, and n, in the lanes where |x| is above FAR; elsewhere r and n

Both go through the lanes of T one by one, in float64, which holds all that float32 does. `reduced` multiplies by as
many bits of 2 / pi as decide the result (Payne and Hanek): those that make multiples of four quarters are skipped, the
next 192 leave a relative error of 2**-64, for no float64 is nearer to a multiple of pi / 2 than 2**-62.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from string import Template

FAR = 2.0**20  # up to here x / (pi / 2) has at most 20 bits, and its products with parts of pi / 2 are exact
_WORDS = 20  # of 64 bits: none, then those of 2 / pi that the largest float64 needs
_ATTRIBUTES = "noinline cold nounwind memory(none) #0"
_CALLED = re.compile(r"@autosched\.(fmod|reduced)\.v(\d+)f(32|64)\(")

_FMOD = """define internal double @autosched.fmod(double %x, double %y) $attributes {
entry:
  %x.bits = bitcast double %x to i64
  %y.bits = bitcast double %y to i64
  %x.size = and i64 %x.bits, 9223372036854775807
  %y.size = and i64 %y.bits, 9223372036854775807
  %x.bad = icmp uge i64 %x.size, 9218868437227405312
  %y.bad = icmp ugt i64 %y.size, 9218868437227405312
  %y.zero = icmp eq i64 %y.size, 0
  %bad.1 = or i1 %x.bad, %y.bad
  %bad = or i1 %bad.1, %y.zero
  br i1 %bad, label %none, label %some
none:
  ret double 0x7FF8000000000000
some:
  %less = icmp ult i64 %x.size, %y.size
  br i1 %less, label %whole, label %divide
whole:
  ret double %x
divide:
  %x.field = lshr i64 %x.size, 52
  %y.field = lshr i64 %y.size, 52
  %x.e = call i64 @llvm.umax.i64(i64 %x.field, i64 1)
  %y.e = call i64 @llvm.umax.i64(i64 %y.field, i64 1)
  %x.before = sub i64 %x.e, 1
  %y.before = sub i64 %y.e, 1
  %x.above = shl i64 %x.before, 52
  %y.above = shl i64 %y.before, 52
  %x.m = sub i64 %x.size, %x.above
  %y.m = sub i64 %y.size, %y.above
  %bits.0 = sub i64 %x.e, %y.e
  %rest.0 = urem i64 %x.m, %y.m
  br label %next
next:
  %bits = phi i64 [ %bits.0, %divide ], [ %bits.left, %step ]
  %rest = phi i64 [ %rest.0, %divide ], [ %rest.left, %step ]
  %is.zero = icmp eq i64 %rest, 0
  %is.last = icmp eq i64 %bits, 0
  %ends = or i1 %is.zero, %is.last
  br i1 %ends, label %done, label %step
step:
  %some.bits = call i64 @llvm.umin.i64(i64 %bits, i64 11)
  %longer = shl i64 %rest, %some.bits
  %rest.left = urem i64 %longer, %y.m
  %bits.left = sub i64 %bits, %some.bits
  br label %next
done:
  %zeros = call i64 @llvm.ctlz.i64(i64 %rest, i1 false)
  %to.normal = sub i64 %zeros, 11
  %shift = call i64 @llvm.umin.i64(i64 %to.normal, i64 %y.before)
  %m = shl i64 %rest, %shift
  %e = sub i64 %y.before, %shift
  %above = shl i64 %e, 52
  %number = add i64 %m, %above
  %size = select i1 %is.zero, i64 0, i64 %number
  %sign = and i64 %x.bits, -9223372036854775808
  %signed = or i64 %size, %sign
  %result = bitcast i64 %signed to double
  ret double %result
}"""

# x = m 2**e; the 192 bits of 2 / pi from the one on that makes two quarters, as 64 bits each: a, b and c
_REDUCED = """@autosched.two.over.pi = private unnamed_addr constant [$words x i64] [$table]

define internal { double, i64 } @autosched.reduced(double %x) $attributes {
  %bits = bitcast double %x to i64
  %exponent = lshr i64 %bits, 52
  %e = and i64 %exponent, 2047
  %fraction = and i64 %bits, 4503599627370495
  %m = or i64 %fraction, 4503599627370496
  %first = sub i64 %e, 1013
  %word = lshr i64 %first, 6
  %shift = and i64 %first, 63
  %p0 = getelementptr inbounds i64, ptr @autosched.two.over.pi, i64 %word
  %p1 = getelementptr inbounds i64, ptr %p0, i64 1
  %p2 = getelementptr inbounds i64, ptr %p0, i64 2
  %p3 = getelementptr inbounds i64, ptr %p0, i64 3
  %w0 = load i64, ptr %p0
  %w1 = load i64, ptr %p1
  %w2 = load i64, ptr %p2
  %w3 = load i64, ptr %p3
  %a = call i64 @llvm.fshl.i64(i64 %w0, i64 %w1, i64 %shift)
  %b = call i64 @llvm.fshl.i64(i64 %w1, i64 %w2, i64 %shift)
  %c = call i64 @llvm.fshl.i64(i64 %w2, i64 %w3, i64 %shift)
  %m.wide = zext i64 %m to i128
  %b.wide = zext i64 %b to i128
  %c.wide = zext i64 %c to i128
  %mc = mul i128 %m.wide, %c.wide
  %carried = lshr i128 %mc, 64
  %mb = mul i128 %m.wide, %b.wide
  %middle = add i128 %mb, %carried
  %ma = mul i64 %m, %a
  %a.wide = zext i64 %ma to i128
  %high = shl i128 %a.wide, 64
  %product = add i128 %high, %middle
  %top = lshr i128 %product, 126
  %quarters.below = trunc i128 %top to i64
  %turns = shl i128 %product, 2
  %above.half = icmp slt i128 %turns, 0
  %one = zext i1 %above.half to i64
  %quarters = add i64 %quarters.below, %one
  %opposite = sub i128 0, %turns
  %size = select i1 %above.half, i128 %opposite, i128 %turns
  %zeros = call i128 @llvm.ctlz.i128(i128 %size, i1 false)
  %normal = shl i128 %size, %zeros
  %normal.high = lshr i128 %normal, 64
  %angle.wide = mul i128 %normal.high, $half_pi
  %angle.high = lshr i128 %angle.wide, 64
  %angle = trunc i128 %angle.high to i64
  %number = uitofp i64 %angle to double
  %zeros.low = trunc i128 %zeros to i64
  %scale.e = sub i64 960, %zeros.low
  %scale.bits = shl i64 %scale.e, 52
  %scale = bitcast i64 %scale.bits to double
  %rest = fmul double %number, %scale
  %is.negative = icmp slt i64 %bits, 0
  %turned = xor i1 %is.negative, %above.half
  %negated = fneg double %rest
  %signed = select i1 %turned, double %negated, double %rest
  %is.number = icmp ult i64 %e, 2047
  %r = select i1 %is.number, double %signed, double 0x7FF8000000000000
  %backwards = sub i64 0, %quarters
  %n = select i1 %is.negative, i64 %backwards, i64 %quarters
  %both.r = insertvalue { double, i64 } poison, double %r, 0
  %both = insertvalue { double, i64 } %both.r, i64 %n, 1
  ret { double, i64 } %both
}"""

_EACH_FMOD = """define internal $type @autosched.fmod.$name($type %x, $type %y) $attributes {
entry:
  br label %next
next:
  %lane = phi i64 [ 0, %entry ], [ %lane.next, %next ]
  %all = phi $type [ poison, %entry ], [ %all.next, %next ]
  %x.own = extractelement $type %x, i64 %lane
  %y.own = extractelement $type %y, i64 %lane
  %x.wide = $widened %x.own to double
  %y.wide = $widened %y.own to double
  %rest = call double @autosched.fmod(double %x.wide, double %y.wide)
  %own = $narrowed %rest to $scalar
  %all.next = insertelement $type %all, $scalar %own, i64 %lane
  %lane.next = add i64 %lane, 1
  %more = icmp ult i64 %lane.next, $lanes
  br i1 %more, label %next, label %done
done:
  ret $type %all.next
}"""

_EACH_REDUCED = """define internal { $type, $whole } @autosched.reduced.$name(
  $type %x, $type %r, $whole %n
) $attributes {
entry:
  br label %next
next:
  %lane = phi i64 [ 0, %entry ], [ %lane.next, %after ]
  %rs = phi $type [ %r, %entry ], [ %rs.next, %after ]
  %ns = phi $whole [ %n, %entry ], [ %ns.next, %after ]
  %x.own = extractelement $type %x, i64 %lane
  %x.wide = $widened %x.own to double
  %size = call double @llvm.fabs.f64(double %x.wide)
  %is.far = fcmp ogt double %size, $far
  br i1 %is.far, label %far, label %after
far:
  %both = call { double, i64 } @autosched.reduced(double %x.wide)
  %r.wide = extractvalue { double, i64 } %both, 0
  %n.wide = extractvalue { double, i64 } %both, 1
  %r.own = $narrowed %r.wide to $scalar
  %n.own = $cut %n.wide to i$bits
  %rs.far = insertelement $type %rs, $scalar %r.own, i64 %lane
  %ns.far = insertelement $whole %ns, i$bits %n.own, i64 %lane
  br label %after
after:
  %rs.next = phi $type [ %rs, %next ], [ %rs.far, %far ]
  %ns.next = phi $whole [ %ns, %next ], [ %ns.far, %far ]
  %lane.next = add i64 %lane, 1
  %more = icmp ult i64 %lane.next, $lanes
  br i1 %more, label %next, label %done
done:
  %first = insertvalue { $type, $whole } poison, $type %rs.next, 0
  %result = insertvalue { $type, $whole } %first, $whole %ns.next, 1
  ret { $type, $whole } %result
}"""


def are_called(text: str) -> bool:
    """Whether a text of LLVM calls one of these functions."""
    return _CALLED.search(text) is not None


def definitions(functions: Iterable[str]) -> list[str]:
    """The functions of this file that `functions`, texts, call."""
    called = sorted({match.groups() for text in functions for match in _CALLED.finditer(text)})
    scalars = {"fmod": _FMOD, "reduced": _REDUCED}
    return [
        *(_filled(scalars[name]) for name in sorted({name for name, _, _ in called})),
        *(_of_lanes(name, int(lanes), int(bits)) for name, lanes, bits in called),
    ]


def _filled(text: str, **words: str | int) -> str:
    table = ", ".join(f"i64 {word}" for word in _two_over_pi())
    known = {"attributes": _ATTRIBUTES, "words": _WORDS, "table": table, "half_pi": _half_pi_bits(), "far": FAR}
    return Template(text).substitute(known, **words)


def _of_lanes(name: str, lanes: int, bits: int) -> str:
    scalar = {32: "float", 64: "double"}[bits]
    words = {"fpext": f"fpext {scalar}", "fptrunc": "fptrunc double", "trunc": "trunc i64"}
    if bits == 64:
        words = dict.fromkeys(words, "bitcast double") | {"trunc": "bitcast i64"}
    return _filled(
        _EACH_FMOD if name == "fmod" else _EACH_REDUCED,
        type=f"<{lanes} x {scalar}>", whole=f"<{lanes} x i{bits}>", name=f"v{lanes}f{bits}", scalar=scalar, bits=bits,
        lanes=lanes, widened=words["fpext"], narrowed=words["fptrunc"], cut=words["trunc"],
    )  # fmt: skip


@cache
def _pi(bits: int) -> int:
    """pi 2**bits, rounded down, by Machin's formula."""
    one = 1 << (bits + 32)

    def atan_of_inverse(n: int) -> int:
        power, total, k, sign = one // n, 0, 1, 1
        while power:
            total += sign * (power // k)
            power //= n * n
            k, sign = k + 2, -sign
        return total

    return (4 * (4 * atan_of_inverse(5) - atan_of_inverse(239))) >> 32


def _half_pi_bits() -> int:
    """pi / 2 in 64 bits, of which one stands before the point."""
    return _pi(63) >> 1


@cache
def _two_over_pi() -> tuple[int, ...]:
    """The words of 2 / pi, after one that is zero, as signed integers."""
    n = 64 * (_WORDS - 1)
    digits = (2 << (2 * n + 64)) // _pi(n + 64)
    words = [(digits >> (64 * k)) & (2**64 - 1) for k in reversed(range(_WORDS - 1))]
    return (0, *(w - 2**64 if w >> 63 else w for w in words))

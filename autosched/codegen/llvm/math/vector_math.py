"""Elementary functions as straight-line LLVM IR on vectors of any width: no calls, so registers stay in registers.

Largest errors, in units in the last place of the exact result, with and without fused multiply-add:

    function  float32  float64  domain
    exp       2        2        all; overflow gives inf, subnormal results are rounded once, not flushed
    log       2        2        all, subnormals too; 0 gives -inf, negative gives NaN
    tanh      4        4        all
    sigmoid   4        4        all, down to subnormal results
    erf       2        4        all
    sin, cos  2        3        all
    fmod      0        0        all; the sign of x, NaN for infinite x and for y = 0, as in C
    pow       2        4 + 2 |y log x|   integer y for negative finite x, else NaN there; zeros and infinities as in C

NaN gives NaN (but x**0 and 1**y are 1), infinities give the limits (NaN for sin and cos).

How each is reduced to a polynomial:

    exp       x = n ln 2 + r, with ln 2 in two parts (Cody and Waite)
    log       x = 2**e m with sqrt(1/2) <= m < sqrt(2)
    pow       exp(y log x), of float32 in float64; in AVX2 no more of it than 2**-32 of y log x needs
    tanh      from exp(2 |x|) - 1
    erf       its odd series below 1; above, a polynomial (float32) or 1 - exp(log erfc) (float64)
    sin, cos  by multiples of pi / 2, in float64; above FAR in a branch, see `rare_cases.py`
    fmod      x - trunc(x / y) y, where the quotient is exact but for its last bit; else in a branch

Of float32 shorter polynomials do between the entries of a table, which shuffles look up in a register:

              AVX2: entries, instructions for 8    without    AVX-512: entries, instructions for 16
    exp       8 powers of 2**(1/8), 18 (7.4 cycles on Zen 3)  32 powers of 2**(1/32), 10 (8 cycles on Zen 4)
    log       8 logarithms, 26 (13 cycles)         42 (19)    16, 13 (8 cycles on Emerald Rapids; 18 without)
    erf       8 of degree 6, 31                    47         16 of degree 5 (a GELU: 12 cycles, 17 without)

`exp_negative`, for x that are at most 0, takes 14 instructions and 6.0 cycles on Zen 3. Where there is a table, other
widths are computed in whole registers, so that every lane gives the same bits.

Polynomial coefficients are a weighted minimax fit in 400-bit arithmetic, those of the 16 pieces in float64. The
relative errors of the fits are below 2**-26 and 2**-54. Between the 32 powers it is 2**-24, between the 8 and in the
pieces of erf 2**-25 (2**-24.7 in AVX2). erf above 1 in float32 interpolates at Chebyshev nodes, with
an error of 2**-25.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from autosched.codegen.llvm.math.rare_cases import FAR
from autosched.codegen.llvm.math.tables import (
    ERF_PIECES,
    ERF_STEP,
    FLOAT32_LOG,
    FLOAT64_LOG,
    FORMATS,
    LOG_NEAR,
    LOG_NEARER,
    LOG_OF_SIXTEENTH,
    LOG_PIECES,
    LOG_SIXTEENTHS,
)
from autosched.codegen.llvm.math.vector_lanes import LaneWriter, Rarely

# Functions that are one LLVM intrinsic; rounding is to even, as NumPy's.
INTRINSICS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven", "abs": "fabs"}

_LIFT = 64  # exponents: results of exp that are at most 1, times 2**_LIFT, are normal numbers
_SPARE_BITS = 29  # that float64 has more than float32
_TWO_OVER_PI = 0.6366197723675814
_HALF_PI = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21)  # 33 + 33 + 53 bits


def emit_call(
    fn: str, dtype: str, lanes: int, arg: str, fresh: Callable[[], str], out: Callable[[str], None], fma: bool,
    shuffled: int = 0, rarely: Rarely | None = None,
) -> str:  # fmt: skip
    """Write `fn` of `arg`, a value of `lanes` x `dtype` (1: a scalar), line by line to `out`; the result's name.

    `fresh` gives unused names with their %. `shuffled`: 512 where instructions of AVX-512
    may be used, 256 where those of AVX2. `rarely`: what writes a branch; without it what is in it is always computed.
    Raises KeyError for a function or dtype that is not in the table above.
    """
    return _FUNCTIONS[fn](LaneWriter(FORMATS[dtype], lanes, fresh, out, fma, shuffled, rarely), arg)


def emit_or_nan(
    dtype: str, lanes: int, x: str, operand: str, fresh: Callable[[], str], out: Callable[[str], None]
) -> str:  # fmt: skip
    """Write x, but NaN where `operand` is, in one instruction of AVX-512 for each register."""
    return LaneWriter(FORMATS[dtype], lanes, fresh, out, True, 512).in_registers(LaneWriter.or_nan, x, operand)


def emit_pow(
    dtype: str, lanes: int, x: str, y: str, fresh: Callable[[], str], out: Callable[[str], None], fma: bool,
    shuffled: int = 0,
) -> str:  # fmt: skip
    """Write x ** y with C's rules for zeros, infinities and negative x; of float32 the logarithm at least is computed
    in float64."""
    narrow = LaneWriter(FORMATS[dtype], lanes, fresh, out, fma, shuffled)
    if _looks_up_logarithms(narrow):
        return narrow.in_registers(_pow_from_table, x, y)
    wide = replace(narrow, form=FORMATS["float64"])
    if dtype == "float32":
        x, y = (narrow.emit(f"fpext {narrow.type} {v} to {wide.type}") for v in (x, y))
    result = _pow(wide, x, y)
    return result if dtype == "float64" else narrow.emit(f"fptrunc {wide.type} {result} to {narrow.type}")


def emit_fmod(
    dtype: str, lanes: int, x: str, y: str, fresh: Callable[[], str], out: Callable[[str], None], fma: bool,
    rarely: Rarely | None = None,
) -> str:  # fmt: skip
    """Write the exact remainder of x / y, with the sign of x."""
    return _fmod(LaneWriter(FORMATS[dtype], lanes, fresh, out, fma, 0, rarely), x, y)


def _fmod(v: LaneWriter, x: str, y: str) -> str:
    """The quotient, rounded, has a whole part that is too large by one at most; its product with y, and what is left
    of x, are exact where one rounding multiplies and adds, or where float64 has room for the product."""
    if not v.fused and v.form.bits == 64:
        return v.remainder(x, y)
    a, b, wide = v.unary("fabs", x), v.unary("fabs", y), v
    limit = 2.0 ** (v.form.fraction + 1)
    if not v.fused:
        wide, limit = replace(v, form=FORMATS["float64"]), 2.0**_SPARE_BITS
        a, b = (v.emit(f"fpext {v.type} {part} to {wide.type}") for part in (a, b))
    quotient = wide.op("fdiv", a, b)
    rest = wide.fma(wide.emit(f"fneg {wide.type} {wide.unary('trunc', quotient)}"), b, a)
    below = wide.compare("olt", rest, wide.number(0.0))
    rest = wide.select(below, wide.op("fadd", rest, b), rest)
    far = wide.compare("uge", quotient, wide.number(limit))
    far = v.emit(f"or {v.bool} {far}, {wide.compare('oeq', b, wide.number(math.inf))}")
    if wide is not v:
        rest = v.emit(f"fptrunc {wide.type} {rest} to {v.type}")
    return v.where_any(far, [v.type], [v.copysign(rest, x)], lambda: [v.remainder(x, y)])[0]


def _reduced(v: LaneWriter, x: str, bias: int) -> tuple[str, str]:
    """(r, z) with x = n ln2 + r, |r| <= ln2 / 2, and n + bias in the low bits of the float z."""
    shift = v.number(v.form.magic + bias)
    z = v.fma(x, v.number(1.0 / math.log(2.0)), shift)
    n = v.op("fsub", z, shift)
    r = v.fma(n, v.number(-v.form.ln2[0]), x)
    return v.fma(n, v.number(-v.form.ln2[1]), r), z


def _exp_of_reduced(v: LaneWriter, r: str) -> str:
    one = v.number(1.0)
    return v.fma(v.fma(v.polynomial(r, v.form.exp), r, one), r, one)


def _exp_near(v: LaneWriter, x: str, z: str, shift: str) -> tuple[str, str]:
    """(n, r) with n, the multiple of 1 / powers that z is without its shift, and x = n ln2 + r."""
    n = v.op("fsub", z, shift)
    r = v.fma(n, v.number(-v.form.ln2[0]), x)
    return n, v.fma(n, v.number(-v.form.ln2[1]), r)


def _exp_scaled(v: LaneWriter, x: str) -> str:
    """exp in AVX-512, for any x, in whole registers: x = n ln2 + r with n in steps of 1 / powers, 2**n exp(r).

    The fraction of n selects a power of two, its whole part is applied by one instruction, which is right however large
    n is and passes NaN on. So only r, which is then any number or NaN, has to be kept in bounds.
    """
    powers = v.form.powers[512]
    shift = v.number(v.form.magic / powers)
    z = v.fma(x, v.number(1.0 / math.log(2.0)), shift)
    n, r = _exp_near(v, x, z, shift)
    r = v.bounded(r, 0.36 / powers)
    rest = v.polynomial(r, v.form.exp_near[powers])
    if powers == 1:
        return v.scale(v.fma(rest, r, v.number(1.0)), n)
    power = v.entry([2.0 ** (j / powers) for j in range(powers)], z)
    return v.scale(v.fma(v.op("fmul", power, r), rest, power), n)


def _exp_from_table(v: LaneWriter, x: str, is_negative: bool) -> str:
    """exp in AVX2, in whole registers: as in AVX-512, where a register holds the powers.

    2**n is applied in two parts, of which one comes with the looked-up power; fewer multiplications than the longer
    polynomial. x may lie above exp_high: n does not, and what is left for r makes the result infinite.
    """
    form, powers = v.form, v.form.powers[256]
    shift = form.magic / powers + (form.bias + _LIFT if is_negative else 2 * form.bias)
    x = v.at_least(x, form.exp_low)
    z = v.fma(x, v.number(1.0 / math.log(2.0)), v.number(shift))
    if not is_negative:
        z = v.smaller(z, shift + form.exp_high / math.log(2.0) + 1)
    _, r = _exp_near(v, x, z, v.number(shift))
    return _scaled_power(v, z, r, is_negative)


def _scaled_power(v: LaneWriter, z: str, r: str, is_negative: bool) -> str:
    """2**n exp(r) with n in the low bits of z, in steps of 1 / powers, over the bias of `_exp_from_table`."""
    form, powers = v.form, v.form.powers[256]
    steps = (powers - 1).bit_length()
    part = v.iop("shl", v.bits(z), v.whole(form.fraction - steps))  # n + the shift, in fixed point, as an exponent
    if is_negative:
        rest = v.number(2.0**-_LIFT)
    else:
        exponent = ((1 << form.bits - 1 - form.fraction) - 1) << form.fraction
        half = v.iop("and", v.iop("lshr", part, v.whole(1)), v.whole(exponent))
        part, rest = v.iop("sub", part, half), v.float(half)
    power = v.float(v.iop("add", v.power_at(powers, z), part))
    near = v.fma(v.op("fmul", power, r), v.polynomial(r, form.exp_near[powers]), power)
    return v.op("fmul", near, rest)


def _exp(v: LaneWriter, x: str, is_negative: bool = False) -> str:
    """exp; with `is_negative` x is not above 0, but for what a product in it may be rounded by, at most 40."""
    if v.shuffled == 512:
        return v.in_registers(_exp_scaled, x)
    if v.shuffled in v.form.powers:
        return v.in_registers(partial(_exp_from_table, is_negative=is_negative), x)
    x = v.at_least(x, v.form.exp_low)
    if is_negative:
        r, z = _reduced(v, x, v.form.bias + _LIFT)
        part, rest = v.bits(z), v.number(2.0**-_LIFT)
    else:
        r, z = _reduced(v, v.at_most(x, v.form.exp_high), 2 * v.form.bias)
        half = v.iop("lshr", v.bits(z), v.whole(1))  # what is above the low bits is even, and shifted out
        part, rest = v.iop("sub", v.bits(z), half), v.power_of_two(half)
    # 2**n is applied in two parts, so that neither leaves the range before the result does
    return v.op("fmul", v.op("fmul", _exp_of_reduced(v, r), v.power_of_two(part)), rest)


def _exp_negative(v: LaneWriter, x: str) -> str:
    return _exp(v, x, is_negative=True)


def _exp_small(v: LaneWriter, x: str) -> str:
    """exp where the result is a normal number."""
    r, z = _reduced(v, x, v.form.bias)
    return v.op("fmul", _exp_of_reduced(v, r), v.power_of_two(v.bits(z)))


def _split(v: LaneWriter, x: str) -> tuple[str, str]:
    """(e, m) as floats with x = 2**e m and sqrt(1/2) <= m < sqrt(2), for positive x."""
    form = v.form
    tiny = v.compare("olt", x, v.number(form.smallest_normal))
    normal = v.select(tiny, v.op("fmul", x, v.number(2.0**form.fraction)), x)
    # e + bias stands above the fraction once sqrt(1/2) is taken to 1
    shifted = v.iop("add", v.bits(normal), v.whole((form.bias << form.fraction) - form.sqrt_half))
    exponent = v.iop("lshr", shifted, v.whole(form.fraction))
    magic_bits = (form.fraction + form.bias) << form.fraction | 1 << (form.fraction - 1)
    e = v.float(v.iop("add", exponent, v.whole(magic_bits)))
    offset = form.magic + form.bias
    e = v.op("fsub", e, v.select(tiny, v.number(offset + form.fraction), v.number(offset)))
    fraction = v.iop("and", shifted, v.whole((1 << form.fraction) - 1))
    return e, v.float(v.iop("add", fraction, v.whole(form.sqrt_half)))


def _looks_up_logarithms(v: LaneWriter) -> bool:
    return v.shuffled == 256 and v.form.bits == 32 and v.fused


def _near_log(v: LaneWriter, x: str) -> tuple[str, str, str, str]:
    """(e, c, m, s) with log x = e ln2 + c + log(m s), |m s - 1| < 0.0575, for positive float32."""
    form, lowest = v.form, v.form.sqrt_half
    tiny = v.compare("olt", x, v.number(form.smallest_normal))
    normal = v.select(tiny, v.op("fmul", x, v.number(2.0**form.fraction)), x)
    exponents = (v.whole(lowest + (form.fraction << form.fraction)), v.whole(lowest))
    base = v.emit(f"select {v.bool} {tiny}, {v.integer} {exponents[0]}, {v.integer} {exponents[1]}")
    above = v.iop("sub", v.bits(normal), base)
    e = v.emit(f"sitofp {v.integer} {v.iop('ashr', above, v.whole(form.fraction))} to {v.type}")
    m = v.float(v.iop("add", v.iop("and", above, v.whole((1 << form.fraction) - 1)), v.whole(lowest)))
    piece = v.float(v.iop("lshr", above, v.whole(form.fraction - 3)))
    s, c = (v.table_lookup(column, piece) for column in zip(*LOG_PIECES, strict=True))
    return e, c, m, s


def _log_from_table(v: LaneWriter, x: str) -> str:
    """log in AVX2, float32, in whole registers: m s = 1 + r with a looked-up s, 1 around 1, where nothing cancels."""
    e, c, m, s = _near_log(v, x)
    r = v.fma(m, s, v.number(-1.0))
    near = v.fma(v.op("fmul", r, r), v.polynomial(r, LOG_NEAR), r)
    value = v.op("fadd", v.fma(e, v.number(math.log(2.0)), c), near)
    value = v.select(v.compare("olt", x, v.number(math.inf)), value, x)
    negative = v.emit(f"icmp slt {v.integer} {v.bits(x)}, {v.whole(0)}")
    value = v.select(negative, v.number(math.nan), value)
    return v.select(v.compare("oeq", x, v.number(0.0)), v.number(-math.inf), value)


def _log_scaled(v: LaneWriter, x: str) -> str:
    """log in AVX-512, float32, in whole registers: the instructions that take a number apart know subnormals, 0,
    infinities and negative numbers. The last sixteenth below 2 is near 1/2, whose logarithm cancels an e of -1."""
    e, m = v.exponent(x), v.fraction(x)
    piece = v.float(v.iop("lshr", v.bits(m), v.whole(v.form.fraction - 4)))
    s, c = (v.table_lookup(column, piece) for column in zip(*LOG_SIXTEENTHS, strict=True))
    r = v.fma(m, s, v.number(-1.0))
    near = v.fma(v.op("fmul", r, r), v.polynomial(r, LOG_OF_SIXTEENTH), r)
    return v.op("fadd", v.fma(e, v.number(math.log(2.0)), c), near)


def _log(v: LaneWriter, x: str) -> str:
    if v.shuffled == 512 and v.form.bits == 32 and v.fused:
        return v.in_registers(_log_scaled, x)
    if _looks_up_logarithms(v):
        return v.in_registers(_log_from_table, x)
    e, m = _split(v, x)
    f = v.op("fsub", m, v.number(1.0))
    half_square = v.op("fmul", v.op("fmul", f, f), v.number(0.5))
    high, low = (v.number(part) for part in v.form.ln2)
    if v.form.bits == 32:
        cube = v.op("fmul", v.op("fmul", f, f), f)
        rest = v.fma(cube, v.polynomial(f, FLOAT32_LOG), v.op("fmul", e, low))
        tail = v.op("fsub", rest, half_square)
    else:  # log(1 + f) = f - (f**2/2 - s (f**2/2 + R)), s = f / (2 + f)
        s = v.op("fdiv", f, v.op("fadd", f, v.number(2.0)))
        z = v.op("fmul", s, s)
        series = v.op("fmul", z, v.polynomial(z, FLOAT64_LOG))
        rest = v.fma(s, v.op("fadd", half_square, series), v.op("fmul", e, low))
        tail = v.op("fsub", rest, half_square)
    value = v.fma(e, high, v.op("fadd", f, tail))
    infinity = v.number(math.inf)
    value = v.select(v.compare("oeq", x, infinity), infinity, value)
    zero = v.number(0.0)
    edge = v.select(v.compare("oeq", x, zero), v.number(-math.inf), v.number(math.nan))
    return v.select(v.compare("ogt", x, zero), value, edge)


def _tanh(v: LaneWriter, x: str) -> str:
    y = v.at_most(v.unary("fabs", x), v.form.tanh_high)
    r, z = _reduced(v, v.op("fadd", y, y), v.form.bias)
    small = v.fma(v.op("fmul", r, r), v.polynomial(r, v.form.expm1), r)  # exp(r) - 1
    scale = v.power_of_two(v.bits(z))
    expm1 = v.fma(scale, small, v.op("fsub", scale, v.number(1.0)))
    return v.copysign(v.op("fdiv", expm1, v.op("fadd", expm1, v.number(2.0))), x)


def _sigmoid(v: LaneWriter, x: str) -> str:
    """1 / (1 + exp(-x)) with exp of negative numbers only: nothing overflows, small results keep their digits."""
    e = _exp_negative(v, v.emit(f"fneg {v.type} {v.unary('fabs', x)}"))
    one = v.number(1.0)
    numerator = v.select(v.compare("olt", x, v.number(0.0)), e, one)
    return v.op("fdiv", numerator, v.op("fadd", e, one))


def _erf_from_table(v: LaneWriter, x: str) -> str:
    """erf in AVX2 and AVX-512, float32, in whole registers: each lane picks the coefficients of its piece of the curve.

    t = |x| up to 4, and erf(t) = t / 2 + t (erf(t) / t - 1/2), whose smaller second term is what the pieces give.
    """
    step, pieces = ERF_STEP[v.shuffled], ERF_PIECES[v.shuffled]
    t = v.at_most(v.unary("fabs", x), 4.0)
    shift = v.number(v.form.magic)
    z = v.fma(t, v.number(1 / step), shift)
    u = v.fma(v.op("fsub", z, shift), v.number(-step), t)
    *lower, value = (v.table_lookup(column, z) for column in zip(*pieces, strict=True))
    for coefficient in reversed(lower):
        value = v.fma(value, u, coefficient)
    return v.copysign(v.fma(t, value, v.op("fmul", t, v.number(0.5))), x)


def _erf(v: LaneWriter, x: str) -> str:
    """Tail: a polynomial in t - 2.46 in float32; in float64 log(erfc) is one in t - 2, whose terms stay small."""
    if v.shuffled in ERF_PIECES and v.form.bits == 32:
        return v.in_registers(_erf_from_table, x)
    one = v.number(1.0)
    series = v.fma(x, v.polynomial(v.op("fmul", x, x), v.form.erf_series), x)
    t = v.unary("fabs", x)
    bounded = v.at_most(t, v.form.erf_high)
    if v.form.bits == 32:
        value = v.polynomial(v.op("fsub", bounded, v.number(2.46)), v.form.erf_tail)
    else:
        log_erfc = v.polynomial(v.op("fsub", bounded, v.number(2.0)), v.form.erf_tail)
        value = v.op("fsub", one, _exp_small(v, log_erfc))
    tail = v.copysign(value, x)
    return v.select(v.compare("olt", t, one), series, tail)


def _sin_cos(v: LaneWriter, x: str, quarter: int) -> str:
    """sin(x + quarter pi/2). The reduction runs in float64 for both formats."""
    wide = replace(v, form=FORMATS["float64"])
    y = x if v.form.bits == 64 else v.emit(f"fpext {v.type} {x} to {wide.type}")
    shift = wide.number(wide.form.magic)
    z = wide.fma(y, wide.number(_TWO_OVER_PI), shift)
    n = wide.op("fsub", z, shift)
    for part in _HALF_PI:
        y = wide.fma(n, wide.number(-part), y)
    quadrant = wide.bits(z)
    if v.form.bits == 32:
        y = v.emit(f"fptrunc {wide.type} {y} to {v.type}")
        quadrant = v.emit(f"trunc {wide.integer} {quadrant} to {v.integer}")
    far = v.compare("ogt", v.unary("fabs", x), v.number(FAR))
    y, quadrant = v.where_any(far, [v.type, v.integer], [y, quadrant], lambda: v.reduced(x, y, quadrant))
    if quarter:
        quadrant = v.iop("add", quadrant, v.whole(quarter))
    square = v.op("fmul", y, y)
    sine = v.fma(v.op("fmul", y, square), v.polynomial(square, v.form.sin), y)
    if not quarter:  # of -0.0 the sum is 0.0
        sine = v.float(v.iop("or", v.bits(sine), v.iop("and", v.bits(y), v.whole(-1 << v.form.bits - 1))))
    rest = v.op("fmul", v.op("fmul", square, square), v.polynomial(square, v.form.cos))
    half = v.op("fmul", square, v.number(0.5))
    near = v.op("fsub", v.number(1.0), half)
    lost = v.op("fsub", v.op("fsub", v.number(1.0), near), half)  # what rounding took from 1 - y**2 / 2
    cosine = v.op("fadd", near, v.op("fadd", rest, lost))
    odd = v.iop("and", quadrant, v.whole(1))
    swapped = v.emit(f"icmp ne {v.integer} {odd}, {v.whole(0)}")
    value = v.select(swapped, cosine, sine)
    sign = v.iop("shl", v.iop("and", quadrant, v.whole(2)), v.whole(v.form.bits - 2))
    return v.float(v.iop("xor", v.bits(value), sign))


def _sin(v: LaneWriter, x: str) -> str:
    return _sin_cos(v, x, 0)


def _cos(v: LaneWriter, x: str) -> str:
    return _sin_cos(v, x, 1)


def _pow_from_table(v: LaneWriter, x: str, y: str) -> str:
    """pow of float32 in AVX2, in whole registers: y log2 x to 2**-32 of it, in float64, and what exp does of the
    rest."""
    powers, magnitude = v.form.powers[256], v.unary("fabs", x)
    e, c, m, s = _near_log(v, magnitude)
    e = v.select(v.compare("olt", magnitude, v.number(math.inf)), e, magnitude)
    e = v.select(v.compare("oeq", x, v.number(0.0)), v.number(-math.inf), e)
    wide = replace(v, form=FORMATS["float64"])
    e, c, m, s, exponent = (v.emit(f"fpext {v.type} {a} to {wide.type}") for a in (e, c, m, s, y))
    r = wide.fma(m, s, wide.number(-1.0))
    near = wide.fma(wide.op("fmul", r, r), wide.polynomial(r, LOG_NEARER), r)
    log2 = wide.fma(wide.op("fadd", c, near), wide.number(1.0 / math.log(2.0)), e)
    log2 = wide.at_least(wide.at_most(wide.op("fmul", exponent, log2), 136.0), -160.0)  # infinite and 0 beyond
    shift = wide.number(wide.form.magic / powers + 2 * v.form.bias)
    n = wide.op("fadd", log2, shift)
    rest = wide.op("fsub", log2, wide.op("fsub", n, shift))
    r = v.op("fmul", v.emit(f"fptrunc {wide.type} {rest} to {v.type}"), v.number(math.log(2.0)))
    z = v.float(v.emit(f"trunc {wide.integer} {wide.bits(n)} to {v.integer}"))
    return _pow_of_any(v, x, y, _scaled_power(v, z, r, is_negative=False))


def _pow(v: LaneWriter, x: str, y: str) -> str:
    return _pow_of_any(v, x, y, _exp(v, v.op("fmul", y, _log(v, v.unary("fabs", x)))))


def _pow_of_any(v: LaneWriter, x: str, y: str, value: str) -> str:
    """x**y from |x|**y."""
    zero, one = v.number(0.0), v.number(1.0)
    magnitude = v.unary("fabs", x)
    value = v.select(v.compare("oeq", magnitude, one), one, value)  # whatever y is, infinite or NaN
    even_part = v.op("fmul", v.unary("trunc", v.op("fmul", y, v.number(0.5))), v.number(2.0))
    whole = v.compare("oeq", y, v.unary("trunc", y))
    odd = v.emit(f"and {v.bool} {whole}, {v.compare('une', even_part, y)}")
    negated = v.iop("xor", v.bits(value), v.iop("and", v.bits(x), v.whole(-1 << v.form.bits - 1)))  # of -0.0 too
    value = v.select(odd, v.float(negated), value)
    negative = v.emit(f"and {v.bool} {v.compare('olt', x, zero)}, {v.compare('ogt', x, v.number(-math.inf))}")
    value = v.select(negative, v.select(whole, value, v.number(math.nan)), value)
    return v.select(v.compare("oeq", y, zero), one, value)


_FUNCTIONS: dict[str, Callable[[LaneWriter, str], str]] = {
    "exp": _exp,
    "exp_negative": _exp_negative,
    "log": _log,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "sin": _sin,
    "cos": _cos,
}

"""Elementary functions as straight-line LLVM IR on vectors of any width: no calls, so registers stay in registers.

Largest errors, in units in the last place of the exact result, with and without fused multiply-add:

    function  float32  float64  domain
    exp       2        2        all; overflow gives inf, subnormal results are rounded once, not flushed
    log       2        2        all, subnormals too; 0 gives -inf, negative gives NaN
    tanh      4        4        all
    sigmoid   4        4        all, down to subnormal results
    erf       2        4        all
    sin, cos  2        3        |x| <= 1e6; beyond, an absolute error of |x| 2**-52; NaN above 2**30
    pow       2        4 + 2 |y log x|   integer y for negative x, else NaN there

NaN gives NaN, and infinities give the limits (NaN for sin and cos). Reductions: exp by Cody and Waite's two-part ln 2
(float32 in AVX-512 by steps of ln 2 / 32, whose powers a shuffle looks up: 10 instructions for 16 elements, 8 cycles on
Zen 4; in AVX2 by steps of ln 2 / 8: 18 for 8 elements, 7.4 cycles on Zen 3, or 14 and 6.0 where x is at most 0,
`exp_negative`; other widths are computed in whole registers there, so that every lane gives the same bits); log by x =
2**e m with sqrt(1/2) <= m < sqrt(2); tanh from exp(2|x|) - 1; erf from its odd series below 1 and above from a
polynomial (float32) or 1 - exp(log erfc), float32 in AVX2 from one of eight polynomials of degree 6, looked up as well:
31 instructions instead of 47; sin and cos by multiples of pi/2 in float64. Polynomial coefficients were computed by a
weighted minimax fit in 400-bit arithmetic; the relative errors of the fits are below 2**-26 and 2**-54 (2**-24 between
the 32 powers, 2**-25 between the 8 and in the pieces of erf). Those of erf above 1 in float32 interpolate at Chebyshev
nodes, with an error of 2**-25.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from autosched.codegen.vector_lanes import Format, Lanes

# Functions that are one LLVM intrinsic; rounding is to even, as NumPy's.
INTRINSICS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven", "abs": "fabs"}


_FLOAT32_ERF_TAIL = (
    0.9994967, 0.0026562088, -0.0065357485, 0.009832828, -0.009904965, 0.0067981537, -0.00296312,
    0.0004615697, 0.00039067873, -0.00030136696, 5.1896404e-05, 2.5363142e-05, -9.166921e-06,
)  # fmt: skip
_ERF_STEP = 35 / 64
_ERF_PIECES = (
    (0.62837917, 1.0527804e-11, -0.37612587, -7.591939e-10, 0.11280228, 1.0132597e-08, -0.026095932),
    (0.525304, -0.34487644, -0.20606604, 0.17183888, 0.02061449, -0.048445806, 0.003629741),
    (0.30282292, -0.42212403, 0.044817355, 0.10381173, -0.060358696, -0.003772659, 0.014899147),
    (0.09713196, -0.3173565, 0.11696719, -0.003180422, -0.028434694, 0.016489869, -0.0017147376),
    (-0.043761138, -0.20425767, 0.083949745, -0.02607214, 0.00159588, 0.0047217733, -0.0032286092),
    (-0.13432601, -0.1334986, 0.04818359, -0.016536662, 0.004775719, -0.00063161703, -0.00040759397),
    (-0.19523916, -0.09287224, 0.028280444, -0.008569275, 0.0025271093, -0.0006886143, 0.00023188612),
    (-0.23877552, -0.0682381, 0.017823696, -0.0046558357, 0.0012612268, -0.00026696658, -0.00020597884),
)  # fmt: skip
# erf(t) / t - 1/2 in t - j _ERF_STEP, row j for the numbers around j _ERF_STEP, t <= 4
_FLOAT32 = Format(
    name="float",
    bits=32,
    fraction=23,
    bias=127,
    suffix="f32",
    smallest_normal=2.0**-126,
    sqrt_half=0x3F3504F3,
    exp_low=-104.0,
    exp_high=89.0,
    ln2=(0.693359375, -2.12194440e-4),
    exp=(0.49999994, 0.166665211, 0.0416682586, 0.00836867187, 0.00138212263),
    powers={512: 32, 256: 8},
    exp_near={32: (1.0000146627426147, 0.4999999), 8: (1.0, 0.50006485, 0.16664296)},
    expm1=(0.5, 0.166666657, 0.0416664928, 0.00833354518, 0.00139323168, 0.000197622765),
    tanh_high=10.0,
    erf_series=(0.128379166, -0.37612626, 0.11283581, -0.0268535353, 0.00518769957, -0.000800412905, 7.83262367e-05),
    erf_tail=_FLOAT32_ERF_TAIL,
    erf_high=3.92,
    sin=(-0.166666672, 0.0083333794, -0.000198530644, 2.83256668e-06),
    cos=(0.0416666456, -0.00138873106, 2.44325529e-05),
)
_FLOAT32_LOG = (
    0.333333313,
    -0.250008255,
    0.20001249,
    -0.166232139,
    0.142012477,
    -0.131611377,
    0.127652764,
    -0.0763627812,
)  # (log(1 + f) - f + f**2 / 2) / f**3, sqrt(1/2) <= 1 + f < sqrt(2)

_FLOAT64_EXP = (
    0.5000000000000006,
    0.1666666666666661,
    0.041666666666573864,
    0.008333333333374916,
    0.001388888893227874,
    0.00019841269751862413,
    2.4801504571418872e-05,
    2.7557377422809524e-06,
    2.7626277435262486e-07,
    2.506349642519524e-08,
)
_FLOAT64 = Format(
    name="double",
    bits=64,
    fraction=52,
    bias=1023,
    suffix="f64",
    smallest_normal=2.0**-1022,
    sqrt_half=0x3FE6A09E667F3BCD,
    exp_low=-746.0,
    exp_high=710.0,
    ln2=(6.93145751953125e-1, 1.42860682030941723212e-6),
    exp=_FLOAT64_EXP,
    powers={512: 1},
    exp_near={1: (1.0, *_FLOAT64_EXP)},
    expm1=_FLOAT64_EXP,
    tanh_high=22.0,
    erf_series=(
        0.1283791670955126,
        -0.3761263890318375,
        0.11283791670954857,
        -0.026866170645072893,
        0.005223977624780854,
        -0.000854832697874149,
        0.00012055331036873457,
        -1.4925593506265522e-05,
        1.6460972807098334e-06,
        -1.635002511885294e-07,
        1.4657879160483111e-08,
        -1.1365663432272042e-09,
        5.945257739638549e-11,
    ),
    erf_tail=(
        -5.364941264616638,
        -4.418160805994415,
        -0.9237508418237775,
        -0.01646511813693059,
        0.0035707563454856744,
        -0.0007323993857996998,
        0.00013530933961481217,
        -2.0706429065873188e-05,
        1.9521783665256697e-06,
        2.0362838636499415e-07,
        -1.7317893485457762e-07,
        5.782076753976074e-08,
        -1.397736100184547e-08,
        2.5200372647572436e-09,
        -2.562509543044964e-10,
        -3.6256458634586234e-11,
        2.987906589998781e-11,
        -1.0286220435603375e-11,
        2.403816278991328e-12,
        -3.693808676814777e-13,
        3.1515669424464613e-14,
        -9.820841259959657e-16,
    ),
    erf_high=6.0,
    sin=(
        -0.1666666666666663,
        0.008333333333321901,
        -0.00019841269829438268,
        2.7557313573680433e-06,
        -2.505074080050786e-08,
        1.5895847575794742e-10,
    ),
    cos=(
        0.041666666666666595,
        -0.001388888888887333,
        2.4801587288988052e-05,
        -2.755731421153899e-07,
        2.087570448304832e-09,
        -1.1358694588027113e-11,
    ),
)
_FLOAT64_LOG = (
    0.6666666666666735,
    0.3999999999941026,
    0.28571428743358707,
    0.22222198471974786,
    0.1818356974229817,
    0.15313906930792973,
    0.14797443267450225,
)  # (log((1 + s) / (1 - s)) - 2 s) / s**3 in s**2
_FORMATS = {"float32": _FLOAT32, "float64": _FLOAT64}

_LIFT = 64  # exponents: results of exp that are at most 1, times 2**_LIFT, are normal numbers
_TWO_OVER_PI = 0.6366197723675814
_HALF_PI = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21)  # 33 + 33 + 53 bits


def emit_call(
    fn: str, dtype: str, lanes: int, arg: str, fresh: Callable[[], str], out: Callable[[str], None], fma: bool,
    shuffled: int = 0,
) -> str:  # fmt: skip
    """Write `fn` of `arg`, a value of `lanes` x `dtype` (1: a scalar), line by line to `out`; the result's name.

    `fresh` gives unused names with their %. `shuffled`: 512 where instructions of AVX-512
    may be used, 256 where those of AVX2.
    Raises KeyError for a function or dtype that is not in the table above.
    """
    return _FUNCTIONS[fn](Lanes(_FORMATS[dtype], lanes, fresh, out, fma, shuffled), arg)


def emit_or_nan(
    dtype: str, lanes: int, x: str, operand: str, fresh: Callable[[], str], out: Callable[[str], None]
) -> str:  # fmt: skip
    """Write x, but NaN where `operand` is, in one instruction of AVX-512 for each register."""
    return Lanes(_FORMATS[dtype], lanes, fresh, out, True, 512).in_registers(Lanes.or_nan, x, operand)


def emit_pow(
    dtype: str, lanes: int, x: str, y: str, fresh: Callable[[], str], out: Callable[[str], None], fma: bool,
    shuffled: int = 0,
) -> str:  # fmt: skip
    """Write x ** y with C's rules for zeros, infinities and negative x; float32 is computed in float64."""
    narrow = Lanes(_FORMATS[dtype], lanes, fresh, out, fma, shuffled)
    wide = replace(narrow, form=_FORMATS["float64"])
    if dtype == "float32":
        x, y = (narrow.emit(f"fpext {narrow.type} {v} to {wide.type}") for v in (x, y))
    result = _pow(wide, x, y)
    return result if dtype == "float64" else narrow.emit(f"fptrunc {wide.type} {result} to {narrow.type}")


def _reduced(v: Lanes, x: str, bias: int) -> tuple[str, str]:
    """(r, z) with x = n ln2 + r, |r| <= ln2 / 2, and n + bias in the low bits of the float z."""
    shift = v.number(v.form.magic + bias)
    z = v.fma(x, v.number(1.0 / math.log(2.0)), shift)
    n = v.op("fsub", z, shift)
    r = v.fma(n, v.number(-v.form.ln2[0]), x)
    return v.fma(n, v.number(-v.form.ln2[1]), r), z


def _exp_of_reduced(v: Lanes, r: str) -> str:
    one = v.number(1.0)
    return v.fma(v.fma(v.polynomial(r, v.form.exp), r, one), r, one)


def _exp_near(v: Lanes, x: str, z: str, shift: str) -> tuple[str, str]:
    """(n, r) with n, the multiple of 1 / powers that z is without its shift, and x = n ln2 + r."""
    n = v.op("fsub", z, shift)
    r = v.fma(n, v.number(-v.form.ln2[0]), x)
    return n, v.fma(n, v.number(-v.form.ln2[1]), r)


def _exp_scaled(v: Lanes, x: str) -> str:
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


def _exp_looked_up(v: Lanes, x: str, is_negative: bool) -> str:
    """exp in AVX2, in whole registers: as in AVX-512, where a register holds the powers.

    2**n is applied in two parts, of which one comes with the looked-up power; fewer multiplications than the longer
    polynomial. x may lie above exp_high: n does not, and what is left for r makes the result infinite.
    """
    form, powers = v.form, v.form.powers[256]
    steps = (powers - 1).bit_length()
    shift = form.magic / powers + (form.bias + _LIFT if is_negative else 2 * form.bias)
    x = v.at_least(x, form.exp_low)
    z = v.fma(x, v.number(1.0 / math.log(2.0)), v.number(shift))
    if not is_negative:
        z = v.smaller(z, shift + form.exp_high / math.log(2.0) + 1)
    _, r = _exp_near(v, x, z, v.number(shift))
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


def _exp(v: Lanes, x: str, is_negative: bool = False) -> str:
    """exp; with `is_negative` x is not above 0, but for what a product in it may be rounded by, at most 40."""
    if v.shuffled == 512:
        return v.in_registers(_exp_scaled, x)
    if v.shuffled in v.form.powers:
        return v.in_registers(partial(_exp_looked_up, is_negative=is_negative), x)
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


def _exp_negative(v: Lanes, x: str) -> str:
    return _exp(v, x, is_negative=True)


def _exp_small(v: Lanes, x: str) -> str:
    """exp where the result is a normal number."""
    r, z = _reduced(v, x, v.form.bias)
    return v.op("fmul", _exp_of_reduced(v, r), v.power_of_two(v.bits(z)))


def _split(v: Lanes, x: str) -> tuple[str, str]:
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


def _log(v: Lanes, x: str) -> str:
    e, m = _split(v, x)
    f = v.op("fsub", m, v.number(1.0))
    half_square = v.op("fmul", v.op("fmul", f, f), v.number(0.5))
    high, low = (v.number(part) for part in v.form.ln2)
    if v.form.bits == 32:
        cube = v.op("fmul", v.op("fmul", f, f), f)
        rest = v.fma(cube, v.polynomial(f, _FLOAT32_LOG), v.op("fmul", e, low))
        tail = v.op("fsub", rest, half_square)
    else:  # log(1 + f) = f - (f**2/2 - s (f**2/2 + R)), s = f / (2 + f)
        s = v.op("fdiv", f, v.op("fadd", f, v.number(2.0)))
        z = v.op("fmul", s, s)
        series = v.op("fmul", z, v.polynomial(z, _FLOAT64_LOG))
        rest = v.fma(s, v.op("fadd", half_square, series), v.op("fmul", e, low))
        tail = v.op("fsub", rest, half_square)
    value = v.fma(e, high, v.op("fadd", f, tail))
    infinity = v.number(math.inf)
    value = v.select(v.compare("oeq", x, infinity), infinity, value)
    zero = v.number(0.0)
    edge = v.select(v.compare("oeq", x, zero), v.number(-math.inf), v.number(math.nan))
    return v.select(v.compare("ogt", x, zero), value, edge)


def _tanh(v: Lanes, x: str) -> str:
    y = v.at_most(v.unary("fabs", x), v.form.tanh_high)
    r, z = _reduced(v, v.op("fadd", y, y), v.form.bias)
    small = v.fma(v.op("fmul", r, r), v.polynomial(r, v.form.expm1), r)  # exp(r) - 1
    scale = v.power_of_two(v.bits(z))
    expm1 = v.fma(scale, small, v.op("fsub", scale, v.number(1.0)))
    return v.copysign(v.op("fdiv", expm1, v.op("fadd", expm1, v.number(2.0))), x)


def _sigmoid(v: Lanes, x: str) -> str:
    """1 / (1 + exp(-x)) with exp of negative numbers only: nothing overflows, small results keep their digits."""
    e = _exp_negative(v, v.emit(f"fneg {v.type} {v.unary('fabs', x)}"))
    one = v.number(1.0)
    numerator = v.select(v.compare("olt", x, v.number(0.0)), e, one)
    return v.op("fdiv", numerator, v.op("fadd", e, one))


def _erf_looked_up(v: Lanes, x: str) -> str:
    """erf in AVX2, float32, in whole registers: each lane picks the coefficients of its piece of the curve.

    t = |x| up to 4, and erf(t) = t / 2 + t (erf(t) / t - 1/2), whose smaller second term is what the pieces give.
    """
    t = v.at_most(v.unary("fabs", x), 4.0)
    shift = v.number(v.form.magic)
    z = v.fma(t, v.number(1 / _ERF_STEP), shift)
    u = v.fma(v.op("fsub", z, shift), v.number(-_ERF_STEP), t)
    *lower, value = (v.looked_up(column, z) for column in zip(*_ERF_PIECES, strict=True))
    for coefficient in reversed(lower):
        value = v.fma(value, u, coefficient)
    return v.copysign(v.fma(t, value, v.op("fmul", t, v.number(0.5))), x)


def _erf(v: Lanes, x: str) -> str:
    """Tail: a polynomial in t - 2.46 in float32; in float64 log(erfc) is one in t - 2, whose terms stay small."""
    if v.shuffled == 256 and v.form.bits == 32:
        return v.in_registers(_erf_looked_up, x)
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


def _sin_cos(v: Lanes, x: str, quarter: int) -> str:
    """sin(x + quarter pi/2). The reduction runs in float64 for both formats."""
    wide = replace(v, form=_FORMATS["float64"])
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
    if quarter:
        quadrant = v.iop("add", quadrant, v.whole(quarter))
    square = v.op("fmul", y, y)
    sine = v.fma(v.op("fmul", y, square), v.polynomial(square, v.form.sin), y)
    rest = v.op("fmul", v.op("fmul", square, square), v.polynomial(square, v.form.cos))
    half = v.op("fmul", square, v.number(0.5))
    near = v.op("fsub", v.number(1.0), half)
    lost = v.op("fsub", v.op("fsub", v.number(1.0), near), half)  # what rounding took from 1 - y**2 / 2
    cosine = v.op("fadd", near, v.op("fadd", rest, lost))
    odd = v.iop("and", quadrant, v.whole(1))
    swapped = v.emit(f"icmp ne {v.integer} {odd}, {v.whole(0)}")
    value = v.select(swapped, cosine, sine)
    reducible = v.compare("olt", v.unary("fabs", x), v.number(2.0**30))
    value = v.select(reducible, value, v.number(math.nan))
    sign = v.iop("shl", v.iop("and", quadrant, v.whole(2)), v.whole(v.form.bits - 2))
    return v.float(v.iop("xor", v.bits(value), sign))


def _sin(v: Lanes, x: str) -> str:
    return _sin_cos(v, x, 0)


def _cos(v: Lanes, x: str) -> str:
    return _sin_cos(v, x, 1)


def _pow(v: Lanes, x: str, y: str) -> str:
    zero, one = v.number(0.0), v.number(1.0)
    magnitude = v.unary("fabs", x)
    value = _exp(v, v.op("fmul", y, _log(v, magnitude)))
    value = v.select(v.compare("oeq", magnitude, one), one, value)  # whatever y is, infinite or NaN
    even_part = v.op("fmul", v.unary("trunc", v.op("fmul", y, v.number(0.5))), v.number(2.0))
    whole = v.compare("oeq", y, v.unary("trunc", y))
    negative = v.compare("olt", x, zero)
    flipped = v.select(v.compare("une", even_part, y), v.emit(f"fneg {v.type} {value}"), value)
    of_negative = v.select(whole, flipped, v.number(math.nan))
    value = v.select(negative, of_negative, value)
    return v.select(v.compare("oeq", y, zero), one, value)


_FUNCTIONS: dict[str, Callable[[Lanes, str], str]] = {
    "exp": _exp,
    "exp_negative": _exp_negative,
    "log": _log,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "sin": _sin,
    "cos": _cos,
}

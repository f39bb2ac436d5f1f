"""Values with error bounds: the rules of a running error analysis.

A `Bounded` is what an exact evaluation gives (float64, or the integer type itself) and how far a kernel that
works in the declared dtype may be from it. With u the unit roundoff of the dtype, every operation adds its
own rounding to what the operands' errors become (Higham, "Accuracy and Stability of Numerical Algorithms",
2nd ed., sections 2 and 3):

    a + b, a - b    ea + eb + u |v|                 a * b   |a| eb + |b| ea + ea eb + u |v|
    a / b           (ea + |v| eb) / (|b| - eb) + 3u |v|      (3u: also a reciprocal and a product)
    exp             v (e^ea - 1) + 8u |v|           sqrt    |sqrt(a) - sqrt(a - ea)| + 2u |v|
    min, max        max(ea, eb)                     select  both branches count where the condition is unsure
    log, rsqrt, tanh, erf, sigmoid, sin, cos: derivative bound times ea, plus 8u |v| (4 ulp of a fast version)

`err is None` means no error at all: inputs, copies, integer arithmetic, and float results that are exactly
representable (`_exact`). Underflow, flushed or not, adds the smallest normal number.
A product of two bfloat16 is exact in float32. Instructions that add up several (VDPBF16PS) differ from a chain of
multiply-adds in the order and number of roundings, which a sum's bound covers. They also take subnormal operands and
products for zero: the first is an error of the operand where it becomes a float32, the second is underflow.
A result that may overflow the dtype has an infinite bound. An infinity or NaN of the exact evaluation has
bound 0: it is expected, unless an operand has an infinite bound (1e50 - inf is -inf, and NaN in float32).
Steps (floor, comparisons, casts to integers) of an inexact value are sound: where the step may fall on
either side, the bound holds the jump.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr, precision_of
from autosched.ir.instructions.dots import factors
from autosched.ir.instructions.matrices import FLOAT8, PROMOTED
from autosched.ir.instructions.precision import FAST_FLOAT8, PRECISIONS, SHORT_BITS

Array: TypeAlias = npt.NDArray[Any]

EXACT = "float64"  # what the reference computes in
_FAST = 8.0  # units: 4 ulp of a fast function, an ulp being up to 2u of the result
_TOGETHER, _CUT = 32, 2.0**-13  # products of 8-bit floats that an instruction adds up, and what it cuts each off to
_ROUNDING = 0.42  # units: the root mean square of a rounding to nearest, for numbers of all sizes between powers of 2
_SEEDS = 1024  # deviations by which errors are drawn
_NOISE = 1e-30  # errors below this come from underflow only; they do not make the argument of sqrt negative


@dataclass(frozen=True)
class Bounded:
    """`value` and the bound `err` on a kernel's distance from it (None: exact); shapes broadcast against each other."""

    value: Array
    err: Array | None = None


def unit(dtype: str) -> float:
    """The relative error that one rounding in `dtype` may leave between a kernel and the reference, whose own rounding
    is counted as well where it computes in that type itself."""
    return DTYPES[dtype].unit_roundoff * (2.0 if dtype == EXACT else 1.0)


def working_type(dtype: str) -> str:
    """The NumPy type that values of `dtype` are evaluated in: floats in float64, everything else in itself."""
    return EXACT if DTYPES[dtype].is_float else dtype


def constant(value: bool | int | float, dtype: str) -> Bounded:
    """A constant as the kernel sees it: rounded to its dtype."""
    if DTYPES[dtype].is_float:
        return Bounded(np.asarray(DTYPES[dtype].numpy_dtype.type(value), dtype="float64"))
    return Bounded(np.asarray(value, dtype))


def cut_off(term: Expr, count: int) -> float:
    """What instructions may lose that add up `count` products of floats of 8 bits, relative to the sum of their sizes.

    An instruction brings up to 32 products and the sum so far to the exponent of the largest and cuts each off 13 bits
    below it, and then the result (wgmma on an H200). Each cut is 2^-13 of the sizes of what is in the sum, at most, and
    an instruction with t products that are not zero makes t + 2. Sums are promoted to float32 every 128 terms: a part
    of k with 4 instructions loses 136 2^-13 of its own sizes, and all parts together as much of all, for any count.
    With "fp8-fast" it grows with the count: 3 count 2^-13, where each product may have an instruction of its own.
    """
    most = PROMOTED + 2 * PROMOTED // _TOGETHER
    return 0.0 if (is_fast := _fast_float8(term)) is None else _CUT * (3 * count if is_fast else min(3 * count, most))


def usual_cut(term: Expr, count: int) -> float:
    """What instructions usually lose of such sums, as `cut_off`: of many terms few are cut off far above their last
    bit."""
    instructions = -(-count // _TOGETHER)
    is_fast = _fast_float8(term)
    return 0.0 if is_fast is None else _CUT * (instructions if is_fast else min(instructions, PROMOTED // _TOGETHER))


def _fast_float8(term: Expr) -> bool | None:
    """Whether sums of a product of floats of 8 bits are not promoted; None for other terms."""
    pair = factors(term, term.dtype)
    if pair is None or not all(x.dtype in FLOAT8 for x in pair):
        return None
    return any(precision_of(x) == FAST_FLOAT8 for x in term.children)


def exact_up_to(dtype: str, cut: float) -> float:
    """Sums of integers up to this size are exact, where so much may be cut off."""
    return DTYPES[dtype].largest_exact_integer if cut == 0.0 else 0.5 / _CUT


def order_deviation(total: Array, squares: Array, terms: int, dtype: str) -> Array:
    """Return the standard deviation of what rounding makes of sums whose `terms` numbers are added one after the other.

    `total` are the sums, `squares` those of the terms' squares. Adding up in order is the least accurate order; its
    roundings are taken to be independent (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis",
    SIAM J. Sci. Comput. 41(5), 2019). After k of n terms in random order a sum has the mean square
    (k/n)^2 s^2 + k/n (1 - k/n) (sum t^2 - s^2/n), and a rounding of a number x is _ROUNDING u |x| on average.
    """
    spread = np.maximum(squares - np.square(total) / max(terms, 1), 0.0)
    deviation = _ROUNDING * unit(dtype) * np.sqrt((terms - 1) * (np.square(total) / 3 + spread / 6))
    return np.where(np.isfinite(deviation), deviation, 0.0)


def in_some_direction(deviation: Array) -> Array:
    """Return errors of random signs, none smaller than its `deviation` and as many larger ones as a normal distribution
    has: a few results suffice to see how large errors are. They follow from the deviations alone."""
    rng = np.random.default_rng(zlib.crc32(np.ascontiguousarray(deviation).reshape(-1)[:_SEEDS].tobytes()))
    drawn = rng.standard_normal(deviation.shape, "float32")
    return deviation * np.copysign(np.maximum(np.abs(drawn), 1.0), drawn)


def errors(*parts: Array | None) -> Array | None:
    """The sum of errors, None when there is none."""
    total: Array | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total


def error_of(x: Bounded) -> Array:
    return np.zeros((), dtype="float64") if x.err is None else x.err


def _exact(value: Array, dtype: str) -> bool:
    """Whether a correctly rounded operation on exact operands, `value` in float64, has no error in `dtype`."""
    head = value.flat[:64]
    if dtype == EXACT:
        most = DTYPES[dtype].largest_exact_integer
        return integral(head) and integral(value) and bool(np.abs(value).max(initial=0.0) <= most)
    kind = DTYPES[dtype].numpy_dtype
    return all(np.array_equal(part, part.astype(kind).astype("float64")) for part in (head, value))


def integral(value: Array) -> bool:
    return bool(np.array_equal(np.rint(value), value))


def rounded(value: Array, err: Array | None, dtype: str, units: float = 1.0, of: Sequence[Bounded] = ()) -> Bounded:
    """The result of an operation in `dtype` that rounds `units` times; `err` is what the errors of its operands `of`
    became."""
    if not DTYPES[dtype].is_float:
        return Bounded(value, err)
    if err is None and units == 1.0 and _exact(value, dtype):
        return Bounded(value)
    total = np.abs(value) * (units * unit(dtype)) + DTYPES[dtype].underflow
    if err is not None:
        total = total + err
    return Bounded(value, tamed(value, total, dtype, *(x.err for x in of)))


def tamed(value: Array, err: Array, dtype: str, *origins: Array | None) -> Array:
    """`err`, infinite where the dtype may overflow; non-finite values are expected as they are, but where one of the
    operands' errors (`origins`) is infinite."""
    largest = DTYPES[dtype].largest
    if float(err.sum()) < unit(dtype) * largest / 16:  # NaN and infinity fail this as well
        return err
    shape = np.broadcast_shapes(value.shape, err.shape)
    value, err = np.broadcast_to(value, shape), np.broadcast_to(err, shape)
    err = np.where(np.isnan(err) | (np.abs(value) + err > largest), np.inf, err)
    counts = np.isfinite(value)
    for origin in origins:
        if origin is not None:
            counts = counts | np.isinf(origin)
    return np.where(counts, err, 0.0)


def binary(op: str, a: Bounded, b: Bounded, dtype: str) -> Bounded:
    """`a op b` for operands of `dtype`, which the caller has unified."""
    return _BINARY[op](a, b, dtype)


def _add(a: Bounded, b: Bounded, dtype: str) -> Bounded:
    return rounded(a.value + b.value, errors(a.err, b.err), dtype, of=(a, b))


def _sub(a: Bounded, b: Bounded, dtype: str) -> Bounded:
    return rounded(a.value - b.value, errors(a.err, b.err), dtype, of=(a, b))


def _mul(a: Bounded, b: Bounded, dtype: str) -> Bounded:
    left = None if a.err is None else np.abs(b.value) * a.err
    right = None if b.err is None else np.abs(a.value) * b.err
    both = None if a.err is None or b.err is None else a.err * b.err
    result = rounded(a.value * b.value, errors(left, right, both), dtype, of=(a, b))
    if result.err is None or (a.err is None and b.err is None):
        return result
    unsure = (_may_be_zero(a) & np.isinf(b.value)) | (_may_be_zero(b) & np.isinf(a.value))  # infinite, or NaN
    return Bounded(result.value, np.where(unsure, np.inf, result.err))


def _may_be_zero(x: Bounded) -> Array:
    return np.asarray((error_of(x) > 0) & (np.abs(x.value) <= error_of(x)))


def _div(a: Bounded, b: Bounded, dtype: str) -> Bounded:
    value = a.value / b.value
    err: Array | None = a.err
    if a.err is not None or b.err is not None:
        room = np.abs(b.value) - error_of(b)
        err = np.where(room > 0, (error_of(a) + np.abs(value) * error_of(b)) / room, np.inf)
    return rounded(value, err, dtype, 3.0, (a, b))


def _pow(a: Bounded, b: Bounded, dtype: str) -> Bounded:
    value = np.power(a.value, b.value)
    if not DTYPES[dtype].is_float:
        return Bounded(value)
    size = np.abs(a.value)
    grown = np.abs(np.power(size + error_of(a), b.value) - np.power(size, b.value))
    shrunk = np.abs(np.power(np.maximum(size - error_of(a), 0.0), b.value) - np.power(size, b.value))
    err: Array | None = np.maximum(grown, shrunk)
    if b.err is not None:
        log = np.log(np.where(size > 0, size, 1.0))
        err = np.where(size > error_of(a), err + np.abs(value) * np.expm1(np.abs(log) * b.err), np.inf)
    if a.err is None and b.err is None:
        err = None
    log_size = np.abs(np.log(np.where(size > 0, size, 1.0)) * b.value)
    own = np.abs(value) * (_FAST + 2.0 * log_size) * unit(dtype)  # by way of exp(b log a)
    return rounded(value, errors(err, own), dtype, _FAST, (a, b))


def _fmod(a: Bounded, b: Bounded, dtype: str) -> Bounded:
    """Exact of exact operands; a quotient that may be of the next integer as well makes any remainder possible."""
    value = np.fmod(a.value, b.value)
    if a.err is None and b.err is None:
        return Bounded(value)
    size, divisor, own, other = np.abs(a.value), np.abs(b.value), error_of(a), error_of(b)
    least = np.trunc((size - own) / (divisor + other))
    most = np.trunc((size + own) / (divisor - other))
    is_sure = (least == most) & (size >= own) & (divisor > other)
    err = np.where(is_sure, own + most * other, np.where((own > 0) | (other > 0), 2.0 * (divisor + other), 0.0))
    return rounded(value, err, dtype, of=(a, b))


def _integer(function: Callable[..., Any]) -> Callable[[Bounded, Bounded, str], Bounded]:
    """An integer operation; inexact integers (casts of inexact floats) make any result possible."""

    def rule(a: Bounded, b: Bounded, dtype: str) -> Bounded:
        value = np.asarray(function(a.value, b.value), dtype=dtype)
        if a.err is None and b.err is None:
            return Bounded(value)
        return Bounded(value, np.where(error_of(a) + error_of(b) > 0, np.inf, 0.0))

    return rule


def _extremum(function: Callable[..., Any]) -> Callable[[Bounded, Bounded, str], Bounded]:
    def rule(a: Bounded, b: Bounded, dtype: str) -> Bounded:
        err = None if a.err is None and b.err is None else np.maximum(error_of(a), error_of(b))
        return Bounded(function(a.value, b.value), err)

    return rule


def _compare(function: Callable[..., Any]) -> Callable[[Bounded, Bounded, str], Bounded]:
    """A comparison; its error is 1 where the operands are closer than their errors."""

    def rule(a: Bounded, b: Bounded, dtype: str) -> Bounded:
        value = function(a.value, b.value)
        slack = errors(a.err, b.err)
        if slack is None:
            return Bounded(value)
        gap = np.abs(a.value.astype("float64") - b.value.astype("float64"))  # of bools and unsigned numbers as well
        near = (slack > 0) & ~(gap > slack) & ~(_is_surely_nan(a) | _is_surely_nan(b))  # NaN differences are unsure
        return Bounded(value, np.where(near, 1.0, 0.0))

    return rule


def _is_surely_nan(x: Bounded) -> Array:
    return np.asarray((x.value != x.value) & ~np.isinf(error_of(x)))


def is_nan(x: Bounded, wanted: bool) -> Bounded:
    """Whether a value is NaN, or is not: what comparing it with itself says, which its error makes no less sure."""
    value = np.asarray((x.value != x.value) == wanted)
    return Bounded(value) if x.err is None else Bounded(value, np.where(np.isinf(x.err), 1.0, 0.0))


def _logical(function: Callable[..., Any], decides: bool) -> Callable[[Bounded, Bounded, str], Bounded]:
    """and, or: an operand that is sure and `decides` settles the result."""

    def rule(a: Bounded, b: Bounded, dtype: str) -> Bounded:
        value = function(a.value, b.value)
        if a.err is None and b.err is None:
            return Bounded(value)
        ua, ub = error_of(a) > 0, error_of(b) > 0
        settled = (~ua & (a.value == decides)) | (~ub & (b.value == decides))
        return Bounded(value, np.where((ua | ub) & ~settled, 1.0, 0.0))

    return rule


_BINARY: dict[str, Callable[[Bounded, Bounded, str], Bounded]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "fmod": _fmod,
    "min": _extremum(np.minimum),
    "max": _extremum(np.maximum),
    "eq": _compare(np.equal),
    "ne": _compare(np.not_equal),
    "lt": _compare(np.less),
    "le": _compare(np.less_equal),
    "gt": _compare(np.greater),
    "ge": _compare(np.greater_equal),
    "and": _logical(np.logical_and, False),
    "or": _logical(np.logical_or, True),
    "floordiv": _integer(np.floor_divide),
    "mod": _integer(np.mod),
    "ceildiv": _integer(lambda a, b: np.floor_divide(a, b) + (np.mod(a, b) != 0)),
    "bitand": _integer(np.bitwise_and),
    "bitor": _integer(np.bitwise_or),
    "bitxor": _integer(np.bitwise_xor),
    "shl": _integer(np.left_shift),
    "shr": _integer(np.right_shift),
}


def _erf(x: Array) -> Array:
    flat = np.fromiter(map(math.erf, np.ravel(x).tolist()), dtype="float64", count=x.size)
    return flat.reshape(x.shape)


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _log_error(x: Bounded, value: Array, e: Array) -> Array:
    return np.where(e < x.value, -np.log1p(-e / x.value), np.inf)


def _sqrt_error(x: Bounded, value: Array, e: Array) -> Array:
    below = np.abs(value - np.sqrt(np.maximum(x.value - e, 0.0)))
    return np.where(e <= x.value, below, np.where(e < _NOISE, np.sqrt(e), np.inf))


def _rsqrt_error(x: Bounded, value: Array, e: Array) -> Array:
    return np.where(e < x.value, 1.0 / np.sqrt(x.value - e) - value, np.inf)


# name -> (function, error of the result from the error of the argument, units of its own rounding)
_FUNCTIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Bounded, Array, Array], Array], float]] = {
    "exp": (np.exp, lambda x, v, e: v * np.expm1(e), _FAST),
    "exp_negative": (np.exp, lambda x, v, e: v * np.expm1(e), _FAST),
    "log": (np.log, _log_error, _FAST),
    "sqrt": (np.sqrt, _sqrt_error, 2.0),
    "rsqrt": (lambda x: 1.0 / np.sqrt(x), _rsqrt_error, _FAST),
    "tanh": (np.tanh, lambda x, v, e: np.minimum(e, 2.0), _FAST),
    "erf": (_erf, lambda x, v, e: np.minimum(e * (2.0 / math.sqrt(math.pi)), 2.0), _FAST),
    "sigmoid": (_sigmoid, lambda x, v, e: np.minimum(e * 0.25, 1.0), _FAST + 4.0),
    "sin": (np.sin, lambda x, v, e: np.minimum(e, 2.0), _FAST),
    "cos": (np.cos, lambda x, v, e: np.minimum(e, 2.0), _FAST),
}
_STEPS: dict[str, Callable[[Array], Array]] = {"floor": np.floor, "ceil": np.ceil, "round": np.rint}


def call(fn: str, x: Bounded, dtype: str) -> Bounded:
    """`fn(x)` in `dtype`."""
    if fn == "neg":
        return Bounded(-x.value, x.err)
    if fn == "abs":
        return Bounded(np.abs(x.value), x.err)
    if fn == "not":
        return Bounded(np.logical_not(x.value), x.err)
    if fn in PRECISIONS:
        return shortened(fn, x)
    if fn in _STEPS:
        return _step(_STEPS[fn], x, x.value)
    function, propagate, units = _FUNCTIONS[fn]
    value = np.asarray(function(x.value))
    err = None if x.err is None else propagate(x, value, x.err)
    return rounded(value, err, dtype, units, (x,))


def shortened(precision: str, x: Bounded) -> Bounded:
    """x, of which a kernel may take the first bits only (`precision.py`), and zero for a subnormal number."""
    size = np.abs(x.value) + (0.0 if x.err is None else x.err)
    own = size * PRECISIONS[precision] + DTYPES["float32"].underflow
    if x.err is None:
        mantissa = np.frexp(x.value)[0] * 2.0**SHORT_BITS
        is_short = (np.rint(mantissa) == mantissa) & (size >= DTYPES["float32"].smallest_normal)
        own = np.where(is_short | (size == 0) | ~np.isfinite(size), 0.0, own)
        return Bounded(x.value, own if own.any() else None)
    return Bounded(x.value, x.err + own)


def _step(function: Callable[[Array], Array], x: Bounded, value: Array) -> Bounded:
    """A monotone step function: an inexact argument may land on another step."""
    result = np.asarray(function(value))
    if x.err is None:
        return Bounded(result)
    jump = np.maximum(np.abs(function(value + x.err) - result), np.abs(function(value - x.err) - result))
    return Bounded(result, np.where(np.isnan(jump), np.inf, jump))


def distance(a: Array, b: Array) -> Array:
    """|a - b|, infinite from a number to NaN."""
    gap = np.abs(a.astype("float64") - b.astype("float64"))
    return np.where(np.isnan(gap), np.inf, gap)


def select(cond: Bounded, a: Bounded, b: Bounded) -> Bounded:
    """`a` where `cond`, else `b`; where the condition is unsure the bound reaches both."""
    value = np.where(cond.value, a.value, b.value)
    if a.err is None and b.err is None and cond.err is None:
        return Bounded(value)
    err = np.where(cond.value, error_of(a), error_of(b))
    if cond.err is not None:
        other = np.where(cond.value, b.value, a.value)
        same = (other == value) | (np.isnan(other) & np.isnan(value))
        gap = np.where(same, 0.0, distance(other, value))
        far = gap + np.where(cond.value, error_of(b), error_of(a))
        err = np.where(cond.err > 0, np.maximum(err, far), err)
    return Bounded(value, err)


def may_lose(value: Array, source: str) -> bool:
    """Whether some numbers of `source` are subnormal ones that processors may take for zero where they are widened."""
    row = DTYPES[source]
    if not (row.is_stored_only and row.flushes):
        return False
    size = np.abs(value)
    return bool(((size > 0) & (size < row.smallest_normal)).any())


def reinterpreted(x: Bounded, source: str, target: str) -> Bounded:
    """Numbers of `source` as those of `target` with the same bits; of an inexact number the result may be any."""
    bits = x.value.astype(DTYPES[source].numpy_dtype)
    value = bits.view(DTYPES[target].numpy_dtype).astype(working_type(target))
    return Bounded(value, None if x.err is None else np.where(x.err > 0, np.inf, 0.0))


def cast(x: Bounded, source: str, target: str) -> Bounded:
    """Conversion between dtypes; floats become integers by truncation, anything becomes a bool by != 0."""
    if target == "bool":
        return _compare(np.not_equal)(x, Bounded(np.zeros((), x.value.dtype)), source)
    if not DTYPES[target].is_float:
        if DTYPES[source].is_float:
            cut = _step(np.trunc, x, x.value)
            return Bounded(cut.value.astype(target), cut.err)
        return Bounded(x.value.astype(target), x.err)
    value, row = x.value.astype("float64"), DTYPES[target]
    if may_lose(x.value, source):
        lost = np.where(np.abs(value) < DTYPES[source].smallest_normal, np.abs(value), 0.0)
        return Bounded(value, errors(x.err, lost))
    if not row.has_infinity:
        value = np.where(np.isinf(value), np.nan, value)
    if row.is_stored_only:  # err may be as large as the rounding, so what is rounded is v + err
        return rounded(value, None if x.err is None else x.err * (1.0 + unit(target)), target, of=(x,))
    narrows = DTYPES[source].bits > row.bits if DTYPES[source].is_float else DTYPES[source].nbytes >= 4
    return rounded(value, x.err, target, of=(x,)) if narrows else Bounded(value, x.err)

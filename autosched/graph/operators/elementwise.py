"""Elementwise operators with NumPy's broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import elementary, operator
from autosched.ir.dtype import DTYPES, promote
from autosched.ir.expr import Expr
from autosched.ir.size import has_size
from autosched.te import Tensor


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the broadcast shape by NumPy's rules. Raises GraphError for incompatible shapes."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        full = [size for size in dict.fromkeys(sizes) if size != 1]
        if any(size != full[0] for size in full[1:]):
            raise GraphError(f"the shapes {', '.join(str(list(s)) for s in shapes)} do not fit each other")
        result.append(next((size for size in full if isinstance(size, int)), full[0]) if full else 1)
    return tuple(result)


def counted(number: int) -> Any:
    """Return a number of elements as a float to divide by, a size as it is: it becomes a float at run time."""
    return number if has_size((number,)) else float(number)


def element(x: Tensor, index: tuple[Any, ...]) -> Any:
    """Return the element of `x`, broadcast to the result, at `index`."""
    own = index[len(index) - len(x.shape) :]
    return x[tuple(0 if size == 1 else i for i, size in zip(own, x.shape, strict=True))]


def narrowed(value: Expr, *tensors: Tensor) -> Expr:
    """`value` in the small float that all floats among the `tensors` are: it was computed in a wider type, but the
    result of an operator has the type of its operands."""
    floats = {t.dtype for t in tensors if DTYPES[t.dtype].is_float}
    small = floats.pop() if len(floats) == 1 else value.dtype
    return te.cast(value, small) if value.dtype == DTYPES[small].computes_in else value


def map_elements(function: Callable[..., Any], *tensors: Tensor, name: str) -> Tensor:
    """Apply `function` to the elements of broadcast operands."""
    shape = broadcast_shape(*(t.shape for t in tensors))

    def at(*index: Expr) -> Expr:
        return narrowed(function(*(element(t, index) for t in tensors)), *tensors)

    made: Tensor = te.compute(shape, at, name=name)
    return made


def of_elements(function: Callable[..., Any], name: str = "") -> Callable[..., Tensor]:
    """Register a function of elements and attributes as the operator of that name."""
    label = name or function.__name__.rstrip("_")

    def mapped(*tensors: Tensor, **attributes: Any) -> Tensor:
        return map_elements(lambda *elements: function(*elements, **attributes), *tensors, name=label)

    mapped.__name__ = label
    mapped.__doc__ = function.__doc__
    return operator(mapped)


def truncating(a: Expr, b: Expr) -> Expr:
    """The quotient of integers without its fraction, as C and ONNX divide."""
    down = te.floordiv(a, b)
    inexact = te.not_equal(te.mod(a, b), 0)
    return te.select(te.all(inexact, (a < 0) ^ (b < 0)), down + 1, down)


@of_elements
def div(a: Expr, b: Expr) -> Expr:
    """a / b of floats; integers without the fraction."""
    return a / b if DTYPES[promote(a.dtype, b.dtype)].is_float else truncating(a, b)


def _is_apart(rest: Expr, b: Expr) -> Expr:
    """Whether `fmod` rounded the quotient up: it has a fraction, and is negative."""
    return te.all(te.not_equal(rest, 0.0), (rest < 0.0) ^ (b < 0.0))


@of_elements
def mod(a: Expr, b: Expr, fmod: bool = False) -> Expr:
    """The remainder, with the sign of `b`, or with that of `a` (`fmod`); of floats it is exact, and where it is 0, that
    has the sign of `a`."""
    if not DTYPES[promote(a.dtype, b.dtype)].is_float:
        rest = te.mod(a, b)
        return te.select(te.all(te.not_equal(rest, 0), (a < 0) ^ (b < 0)), rest - b, rest) if fmod else rest
    rest = te.fmod(a, b)
    return rest if fmod else te.select(_is_apart(rest, b), rest + b, rest)


@of_elements
def floor_div(a: Expr, b: Expr) -> Expr:
    """a / b, rounded down. Of floats, whose quotient may round up to the whole number above, what has no remainder is
    divided: that is a whole number but for its last bit. A zero has the sign of a / b."""
    if not DTYPES[promote(a.dtype, b.dtype)].is_float:
        return te.floordiv(a, b)
    rest = te.fmod(a, b)
    quotient = (a - rest) / b
    down = te.floor(quotient)
    nearest = te.select(quotient - down > 0.5, down + 1.0, down)
    below = te.select(_is_apart(rest, b), nearest - 1.0, nearest)
    signed = te.select(te.equal(below, 0.0), a / b * 0.0, below)
    return te.select(te.equal(b, 0.0), a / b, signed)


@of_elements
def pow_(a: Expr, b: Expr) -> Expr:
    """a to the power of b, in the type of `a`, but that floats are computed as floats."""
    if DTYPES[a.dtype].is_float:
        return te.pow(a, te.cast(b, DTYPES[a.dtype].computes_in))
    if DTYPES[b.dtype].is_float:
        return te.cast(te.pow(te.cast(a, b.dtype), b), a.dtype)
    return _whole_power(a, b)


def _whole_power(a: Expr, b: Expr) -> Expr:
    """By squares of a for the bits of b: the last bits of the result, and 1 / a without its fraction for negative b.
    The powers of odd numbers of n bits repeat after 2**(n - 2), those of even ones are 0 from the n-th on."""
    result, square = te.const(1, a.dtype), a
    is_unsigned = DTYPES[b.dtype].kind == "u"
    for bit in range(min(DTYPES[a.dtype].bits - 2, DTYPES[b.dtype].bits - (not is_unsigned))):
        result = result * te.select(te.equal((b >> bit) & 1, 1), square, 1)
        square = te.pow(square, 2)  # of one operand: expressions are walked as trees
    result = te.select(te.all(te.equal(a & 1, 0), b >= DTYPES[a.dtype].bits), te.const(0, a.dtype), result)
    if is_unsigned:
        return result
    is_unit = te.equal(a, 1) if DTYPES[a.dtype].kind == "u" else te.any(te.equal(a, 1), te.equal(a, -1))
    return te.select(te.all(b < 0, te.logical_not(is_unit)), te.const(0, a.dtype), result)


@of_elements
def shift_left(a: Expr, b: Expr) -> Expr:
    """a 2^b without the bits that leave its type; they all do where b is negative, as in NumPy."""
    bits = DTYPES[promote(a.dtype, b.dtype)].bits
    return te.select(te.all(b >= 0, b < bits), a << te.max(te.min(b, bits - 1), 0), 0)


@of_elements
def shift_right(a: Expr, b: Expr) -> Expr:
    """a / 2^b, rounded down; a negative b counts for more than all bits, as in NumPy."""
    row = DTYPES[promote(a.dtype, b.dtype)]
    inside = te.all(b >= 0, b < row.bits)
    if row.kind == "u":
        return te.select(inside, a >> te.max(te.min(b, row.bits - 1), 0), 0)
    return a >> te.select(inside, b, row.bits - 1)


@of_elements
def maximum(*values: Expr) -> Expr:
    """The greatest; NaN where there is one."""
    return reduce(te.maximum, values)


@of_elements
def minimum(*values: Expr) -> Expr:
    """The smallest; NaN where there is one."""
    return reduce(te.minimum, values)


@of_elements
def sign(x: Expr, keeps_nan: bool = True) -> Expr:
    """1, -1 or 0; of NaN NaN, if it `keeps_nan`, else 0."""
    one, zero = te.const(1, x.dtype), te.const(0, x.dtype)
    rest = te.select(te.not_equal(x, x), x, zero) if DTYPES[x.dtype].is_float and keeps_nan else zero
    return te.select(x > 0, one, rest if DTYPES[x.dtype].kind == "u" else te.select(x < 0, te.const(-1, x.dtype), rest))


@of_elements
def isinf(x: Expr, positive: bool = True, negative: bool = True) -> Expr:
    """Whether x is inf, where `positive`, or -inf, where `negative`."""
    signs = [s for s, wanted in ((1.0, positive), (-1.0, negative)) if wanted]
    return te.any(*(te.equal(x, s * math.inf) for s in signs)) if signs else te.all(x < x)


def saturated(x: Expr, dtype: str) -> Expr:
    """The float `x` as an integer: the nearest one that `dtype` has, 0 for NaN."""
    low, high = DTYPES[dtype].integer_range
    inside = te.select(te.equal(x, x), te.cast(x, dtype), te.const(0, dtype))
    above = te.select(x >= float(high + 1), te.const(high, dtype), inside)
    return te.select(x <= float(low), te.const(low, dtype), above)


@operator
def cast(x: Tensor, dtype: str, saturate: bool = False) -> Tensor:
    """x as `dtype`: floats lose their fraction, integers their upper bits. `saturate`: a number that `dtype` has no
    value near becomes the nearest one."""
    if dtype not in DTYPES:
        raise GraphError(f"the type {dtype} to cast to is not supported; use one of {', '.join(DTYPES)}")
    source, target = DTYPES[x.dtype], DTYPES[dtype]

    def value(*index: Expr) -> Expr:
        a = x[index]
        if not (saturate and target.is_integer) or source.kind == "b":
            return te.cast(a, dtype)
        if source.is_float:
            return saturated(a, dtype)
        (low, high), (least, most) = target.integer_range, source.integer_range
        a = te.max(a, low) if low > least else a
        return te.cast(te.min(a, high) if high < most else a, dtype)

    made: Tensor = te.compute(x.shape, value, name="cast")
    return made


@operator
def bitcast(x: Tensor, dtype: str) -> Tensor:
    """The numbers of `dtype` whose bits x has in memory. Of a type of another size several lie in one element of x, or
    one in several elements, along the last axis; the lowest bits are the first ones."""
    if dtype not in DTYPES:
        raise GraphError(f"the type {dtype} of a bitcast is not supported; use one of {', '.join(DTYPES)}")
    source, target = DTYPES[x.dtype], DTYPES[dtype]
    if source.bits == target.bits:
        made: Tensor = te.compute(x.shape, lambda *i: te.bitcast(x[i], dtype), name="bitcast")
        return made
    n, last = max(source.bits, target.bits) // min(source.bits, target.bits), x.shape[-1] if x.shape else 0
    is_split = source.bits > target.bits
    if not last or (not is_split and last % n):
        raise GraphError(f"elements of {x.dtype}{list(x.shape)} are no numbers of {dtype}: the last axis does not fit")

    def part(*i: Expr) -> Expr:
        bits = te.bitcast(x[(*i[:-1], i[-1] // n)], source.bits_dtype)
        first = te.cast(i[-1] % n, bits.dtype) * target.bits
        return te.bitcast(te.cast(bits >> first, target.bits_dtype), dtype)

    def joined(*i: Expr) -> Expr:
        parts = (te.bitcast(x[(*i[:-1], i[-1] * n + k)], source.bits_dtype) for k in range(n))
        fields = [te.cast(bits, target.bits_dtype) << k * source.bits for k, bits in enumerate(parts)]
        return te.bitcast(reduce(lambda a, b: a | b, fields), dtype)

    shape = (*x.shape[:-1], last * n if is_split else last // n)
    made = te.compute(shape, part if is_split else joined, name="bitcast")
    return made


@of_elements
def low_bits(x: Expr, bits: int) -> Expr:
    """The integer that the lowest `bits` of x are, with a sign if the type of x has one."""
    row = DTYPES[x.dtype]
    return x & ((1 << bits) - 1) if row.kind == "u" else (x << row.bits - bits) >> row.bits - bits


@of_elements
def round_to_float(x: Expr, fraction_bits: int, smallest_normal: float, largest: float, saturate: bool = True) -> Expr:
    """The float32 x as the nearest number, to even, of a float with so many bits of fraction; beyond its largest number
    that (`saturate`), or NaN."""
    near = te.max(te.min(x, 2.0 * largest), -2.0 * largest)
    power = te.bitcast(te.bitcast(te.abs(near), "int32") & _EXPONENT, "float32")  # of two, and infinite for NaN
    step = te.max(power, smallest_normal) * 2.0**-fraction_bits
    value = te.round(near / step) * step
    if saturate:
        return te.max(te.min(value, largest), -largest)
    return te.select(te.abs(value) > largest, te.const(math.nan, x.dtype), value)


@of_elements
def round_to_power(x: Expr, dtype: str, mode: str = "up", saturate: bool = True) -> Expr:
    """The float32 x as a power of two from 2^-127 to 2^127, which is all that float8_e8m0fnu has; infinities are NaN,
    and so is what is too large unless `saturate`.

    The result, of a `dtype` with the exponent of float32, is the upper part of the bits: instructions that convert, as
    vcvtneps2bf16, take 2^-127 for 0."""
    added = {"up": 0x7FFFFF, "nearest": 0x400000, "down": 0}
    if mode not in added:
        raise GraphError(f"the rounding is {', '.join(added)} but got {mode!r}")
    size = te.abs(x)
    is_small = size < 1.0  # made larger, as the powers below have no exponent of their own
    bits = te.bitcast(te.select(is_small, size * 2.0**64, size), "int32")
    power = te.bitcast(bits + added[mode] & _EXPONENT, "float32")
    power = te.max(te.select(is_small, power * 2.0**-64, power), 2.0**-127)
    is_number = te.all(size < math.inf, *(() if saturate else (power <= 2.0**127,)))
    value = te.select(is_number, te.min(power, 2.0**127), te.const(math.nan, x.dtype))
    held = DTYPES[dtype]
    return te.bitcast(te.cast(te.bitcast(value, "int32") >> 32 - held.bits, held.bits_dtype), dtype)


_EXPONENT = 0x7F800000  # the bits of a float32's exponent
_FUNCTIONS: Mapping[str, Callable[..., Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "equal": te.equal,
    "not_equal": te.not_equal,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "logical_and": te.all,
    "logical_or": te.any,
    "logical_xor": lambda a, b: te.not_equal(te.all(a), te.all(b)),
    "logical_not": te.logical_not,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "bitwise_not": lambda a: ~a,
    "where": te.select,
    "identity": lambda a: a,
    "neg": lambda a: -a,
    "reciprocal": lambda a: 1.0 / a,
    "isnan": lambda a: te.not_equal(a, a),
    **{name: getattr(te, name) for name in ("abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf")},
    **{name: getattr(te, name) for name in ("sigmoid", "floor", "ceil", "round")},
    **{name: getattr(elementary, name) for name in ("tan", "asin", "acos", "atan", "sinh", "cosh")},
    **{name: getattr(elementary, name) for name in ("asinh", "acosh", "atanh", "log1p", "expm1")},
}
for _name, _function in _FUNCTIONS.items():
    of_elements(_function, _name)

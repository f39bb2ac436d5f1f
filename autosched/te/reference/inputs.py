"""Input data for a DAG: deterministic, from a seed, of three kinds.

normal       floats N(0, 1), integers -8 .. 8 (unsigned 0 .. 8), bools by a fair coin
structured   non-zero integers +-1 .. +-31 from a hash of the element's index: every element is likely to differ
             from its neighbours, so a permuted, shifted or dropped term shows; types of 8 and 16 bits have all
             their numbers where nothing is computed in floats, so numbers that wrap around too early show as well
integers     small integers -4 .. 4, zeros among them

The magnitudes of the last two shrink where a reduction is long, so that a float32 sum of products of
inputs stays below 2^24: such sums are exact in any order, and the reference's bound for them is 0.

Where no result is a sum, a few floats of the structured kind are NaN, infinite, -0.0 or denormal, so few that most
results do not depend on them (`_special_share`). Sums have none: one NaN in an operand makes whole rows of results NaN,
which then say nothing, and kernels may leave out the zeros of padding, which infinity would make NaN.

An input that is read below log, sqrt, rsqrt or pow, or in a divisor, is made positive (through elementwise stages
as well, but not through reductions): a random sign would make the whole result NaN. This is no analysis of bounds:
where an operator still yields NaN (log of a difference, say), the reference has NaN there too and the
comparison expects it.

An input that is an index is drawn over the places of its dimension and a few outside, on both sides; bytes that an
index is computed from (packed numbers) over all that they may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.errors import UsageError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Call, Cast, Const, Expr, Load
from autosched.ir.stmt import Reducer
from autosched.ir.visit import loads
from autosched.te.dag import ComputeDAG
from autosched.te.reducer_laws import takes_special_numbers
from autosched.te.reference.evaluate import kind_of
from autosched.te.tensor import ComputeOp, PlaceholderOp, Tensor, postorder

KINDS = ("normal", "structured", "integers")

_EXACT = 1 << 24  # integers up to this size are exact in float32
_STRUCTURED_MAX = 31
_INTEGERS_MAX = 4
_NORMAL_INTEGER_MAX = 8
_SPECIAL = (math.nan, math.inf, -math.inf, -0.0)
_ALL_BITS = 16  # bits of an integer up to which all numbers are drawn
_FEW_SPECIAL = 64  # elements for a special one where each result depends on one, 8 times the reduction's length else
_FEW = 64  # places inside of a dimension for one outside, on each side
_CHUNK = 1 << 16  # elements made at a time, so that the hash stays in cache


def make_inputs(dag: ComputeDAG, seed: int, kind: str = "normal") -> dict[str, npt.NDArray[Any]]:
    """An array for every input of `dag`, by name; `kind` is one of KINDS."""
    if kind not in KINDS:
        raise UsageError(f"the kind of inputs must be one of {', '.join(KINDS)} but is {kind!r}")
    positive, places = positive_inputs(dag), index_inputs(dag)
    rng = np.random.Generator(np.random.PCG64(seed))
    longest = max((math.prod(a.extent for a in op.reduce_axes) for op in dag.stages), default=1)
    limit = max(1, math.isqrt(_EXACT // max(longest, 1)))
    special = _special_share(dag) if kind == "structured" else 0
    floats = any(DTYPES[node.dtype].is_float for op in dag.stages for node in postorder(op.body))
    divides = any(_divides(op) for op in dag.stages)  # by a maximum, maybe: a denormal's reciprocal is infinite
    arrays: dict[str, npt.NDArray[Any]] = {}
    for position, tensor in enumerate(dag.inputs):
        if tensor.name in places:
            low, high = places[tensor.name]
            array = rng.integers(low, high, tensor.shape, np.int64, endpoint=True).astype(tensor.dtype)
        elif kind == "normal":
            array = _normal(tensor, rng)
        elif kind == "structured":
            array = _structured(tensor, _choices(tensor.dtype, min(limit, _STRUCTURED_MAX), floats), seed, position)
        else:
            array = _integers(tensor, rng, min(limit, _INTEGERS_MAX))
        if tensor.name in positive:
            array = _made_positive(tensor, array, kind)
        elif special and DTYPES[tensor.dtype].is_float:
            _make_special(array, 0.0 if divides else _denormal(tensor.dtype), special, rng)
        arrays[tensor.name] = array
    return arrays


def _denormal(dtype: str) -> float:
    """A number in the middle of a float's subnormal ones."""
    row = DTYPES[dtype]
    return row.smallest_subnormal * float(2 ** (row.fraction_bits // 2))


def _special_share(dag: ComputeDAG) -> int:
    """The number of elements of which one may be special; 0: none may.

    Results that special values reach have to be those of any kernel: minima, maxima and choices are, and what is
    computed for each element, but for casts to integers, which NaN has no value for.
    """
    if any(_is_cut(node) for op in dag.stages for node in postorder(op.body)):
        return 0
    if not all(op.reducer is None or _is_selecting(op.reducer) for op in dag.stages):
        return 0
    return max(_FEW_SPECIAL, 8 * math.prod(axis.extent for op in dag.stages for axis in op.reduce_axes))


def _divides(op: ComputeOp) -> bool:
    return any(isinstance(node, Binary) and node.op == "div" for node in postorder(op.body))


def _is_cut(node: Expr) -> bool:
    return isinstance(node, Cast) and DTYPES[node.dtype].is_integer and DTYPES[node.a.dtype].is_float


def _is_selecting(reducer: Reducer) -> bool:
    """Whether no float is added up and any order gives the same, with NaN as well."""
    if all(not DTYPES[result.dtype].is_float for result in reducer.results):
        return True
    kind = kind_of(reducer)
    return kind in ("max", "min") or (kind == "choose" and takes_special_numbers(reducer))


def _make_special(array: npt.NDArray[Any], denormal: float, share: int, rng: np.random.Generator) -> None:
    values = np.array((*_SPECIAL, denormal, -denormal)).astype(array.dtype)
    where = rng.integers(0, max(array.size, 1), array.size // share)
    array.reshape(-1)[where] = values[np.arange(len(where)) % len(values)]


def positive_inputs(dag: ComputeDAG) -> frozenset[str]:
    """Names of the inputs that stand below a function defined on positive numbers only, or in a divisor."""
    positive: set[str] = set()
    pending = [load.buffer for op in dag.stages for load in _restricted(op)]
    while pending:
        name = pending.pop()
        if name in positive:
            continue
        positive.add(name)
        op = dag.tensors[name].op
        if isinstance(op, ComputeOp) and op.reducer is None:
            pending.extend(load.buffer for load in dag.reads(op))
    return frozenset(name for name in positive if isinstance(dag.tensors[name].op, PlaceholderOp))


def index_inputs(dag: ComputeDAG) -> dict[str, tuple[int, int]]:
    """The smallest and the largest number of the inputs that indices are, or are computed from."""
    bounds_of: dict[str, tuple[int, int]] = {}
    for op in dag.stages:
        for load in dag.reads(op):
            for index, extent in zip(load.indices, dag.tensors[load.buffer].shape, strict=True):
                for name, (low, high) in _made_of(dag, index, extent):
                    known = bounds_of.get(name, (low, high))
                    bounds_of[name] = min(low, known[0]), max(high, known[1])
    return bounds_of


def _made_of(dag: ComputeDAG, index: Expr, extent: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The inputs of integers that an index is computed from, through elementwise stages as well, and their ranges."""
    for load in loads(index):
        op, outside = dag.tensors[load.buffer].op, extent // _FEW + 1
        if not DTYPES[load.dtype].is_integer:
            continue
        if isinstance(op, ComputeOp):
            if op.reducer is None and op.recurrence is None:
                yield from (x for value in op.body for x in _made_of(dag, value, extent))
            continue
        least, most = DTYPES[load.dtype].integer_range
        low, high = (least, most) if most < 256 and _unclamped(index) is not load else (-outside, extent - 1 + outside)
        yield load.buffer, (max(low, least), min(high, most))


def _unclamped(index: Expr) -> Expr:
    """What is clamped to be an index."""
    match index:
        case Cast(a=a) | Binary(op="min" | "max", a=a, b=Const()):
            return _unclamped(a)
    return index


def _restricted(op: ComputeOp) -> list[Load]:
    roots: list[Expr] = []
    for node in postorder(op.body):
        match node:
            case Call(fn="log" | "sqrt" | "rsqrt", args=(a,)):
                roots.append(a)
            case Binary(op="div" | "floordiv" | "mod" | "fmod", b=b):
                roots.append(b)
            case Binary(op="pow", a=a, b=b) if not _natural(b):
                roots.append(a)
    return [node for node in postorder(roots) if isinstance(node, Load)]


def _natural(exponent: Expr) -> bool:
    return isinstance(exponent, Const) and float(exponent.value).is_integer() and exponent.value > 0


def _made_positive(tensor: Tensor, array: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    form = DTYPES[tensor.dtype].kind
    if form == "b":
        return array
    away_from_zero = form == "f" and kind == "normal"  # near 0 errors would explode
    size, dtype = np.abs(array), array.dtype
    return np.asarray(size + dtype.type(0.5) if away_from_zero else np.maximum(size, dtype.type(1)))


def _normal(tensor: Tensor, rng: np.random.Generator) -> npt.NDArray[Any]:
    row = DTYPES[tensor.dtype]
    if row.is_float:
        drawn_in = np.float32 if row.computes_in == "float32" else np.float64
        return np.asarray(rng.standard_normal(tensor.shape, dtype=drawn_in).astype(row.numpy_dtype, copy=False))
    return _integers(tensor, rng, _NORMAL_INTEGER_MAX)


def _integers(tensor: Tensor, rng: np.random.Generator, limit: int) -> npt.NDArray[Any]:
    kind = DTYPES[tensor.dtype].kind
    if kind == "b":
        return rng.integers(0, 2, tensor.shape).astype(bool)
    low = 0 if kind == "u" else -limit
    return rng.integers(low, limit + 1, tensor.shape, dtype=np.int8).astype(DTYPES[tensor.dtype].numpy_dtype)


def _choices(dtype: str, limit: int, floats: bool) -> npt.NDArray[Any]:
    """The numbers that structured inputs consist of. `floats`: the program computes in some."""
    row, sizes = DTYPES[dtype], np.arange(1, limit + 1)
    if row.kind == "b":
        return np.array([False, True])
    if row.is_integer and row.bits <= _ALL_BITS and not floats:
        low, high = row.integer_range
        return np.arange(low, high + 1)
    return sizes if row.kind == "u" else np.concatenate([-sizes, sizes])


def _structured(tensor: Tensor, choices: npt.NDArray[Any], seed: int, position: int) -> npt.NDArray[Any]:
    """Numbers by SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014)."""
    dtype = DTYPES[tensor.dtype].numpy_dtype
    table = np.resize(choices.astype(dtype), 1 << 16)
    count, start = math.prod(tensor.shape), ((seed * 1_000_003 + position) & 0xFFFF_FFFF) << 32
    values = np.empty(count, dtype=dtype)
    for lo in range(0, count, _CHUNK):
        x = np.arange(start + lo, start + min(lo + _CHUNK, count), dtype=np.uint64)
        x *= np.uint64(0x9E3779B97F4A7C15)
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        np.take(table, (x >> np.uint64(48)).astype(np.intp), out=values[lo : lo + _CHUNK])
    return values.reshape(tensor.shape)

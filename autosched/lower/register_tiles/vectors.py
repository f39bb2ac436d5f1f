"""The plan of a vectorised loop that no tile plan covers: its lanes, its vectors, and whether they are written out.

whole vectors     written out up to `MAX_CHUNKS`, else a loop; of a reduction over the lanes, those written out are
                  combined with each other first, so that lanes are combined only once
rounded bytes     of float32 values, several vectors at a time: `packing`
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Call, Cast, Const, Expr
from autosched.ir.stmt import For, Scope, Store
from autosched.ir.visit import free_vars, is_data, reduces_lanes
from autosched.lower.limits import MAX_CHUNKS
from autosched.lower.register_tiles.context import TileContext, next_power, number_of

PACKING_FEATURES = {16: "avx512bw", 8: "avx2"}  # by lanes of 32 bits: the extension of x86-64 that packs such vectors


@dataclass(frozen=True)
class RoundedByte:
    """`value`, at most the greatest byte, rounded half to even, plus `zero`, as the nearest number of `dtype`."""

    value: Expr
    zero: Expr | None
    dtype: str


@dataclass(frozen=True)
class BytePacking:
    """The first `vectors` of a loop become bytes, `together` of them at a time."""

    byte: RoundedByte
    together: int
    vectors: int


@dataclass(frozen=True)
class VectorPlan:
    """`whole` vectors of `lanes`, then `rest` iterations, fewer than a vector has lanes.

    `is_unrolled`: the whole vectors are written out. `combines_vectors`: a reduction over the lanes, whose vectors are
    combined with each other first.
    """

    lanes: int
    whole: int
    rest: int
    is_unrolled: bool
    combines_vectors: bool
    packing: BytePacking | None

    def __str__(self) -> str:
        packed = "" if self.packing is None else f", {self.packing.together} at a time packed to bytes"
        return f"{self.whole} vectors of {self.lanes} lanes{packed}"


def plan_vectors(loop: For, context: TileContext) -> VectorPlan:
    """Return the plan of a vectorised loop of constant extent."""
    extent = number_of(loop.extent)
    lanes = min(context.width(loop), next_power(extent))
    whole, rest = divmod(extent, lanes)
    is_unrolled = whole <= (MAX_CHUNKS // 2 if loop.var in context.deinterleaved else MAX_CHUNKS)
    combines = is_unrolled and whole > 1 and reduces_lanes(loop)
    packing = _plan_packing(loop, whole, lanes, context) if is_unrolled and not combines else None
    return VectorPlan(lanes, whole, rest, is_unrolled, combines, packing)


def rounded_byte(store: Store) -> RoundedByte | None:
    """Return the rounded float behind a stored byte in the form of `lower.passes.integral_floats`; else None."""
    if len(store.values) != 1 or store.reducer is not None:
        return None
    match store.values[0]:
        case Cast(a=Cast() as whole, dtype="int8" | "uint8" as dtype):
            zero = None
        case Cast(a=Binary(op="add", a=Cast() as whole, b=Cast() as zero), dtype="int8" | "uint8" as dtype):
            if free_vars(zero):
                return None
        case _:
            return None
    match whole:
        case Cast(a=Call(fn="round", args=(Binary(op="max", a=Binary(op="min") as least, b=low),)), dtype="int32"):
            first = DTYPES[dtype].integer_range[0]
            is_least = least.dtype == "float32" and _is_moved(low, first, zero)
            return RoundedByte(least, zero, dtype) if is_least else None
    return None


def _plan_packing(loop: For, whole: int, lanes: int, context: TileContext) -> BytePacking | None:
    """Four vectors at a time, or two; a single vector gains nothing."""
    store, together = loop.body, 4 if whole >= 4 else whole // 2 * 2
    target, feature = context.target, PACKING_FEATURES.get(lanes)
    has_instructions = target.arch == "x86_64" and feature is not None and target.has(feature)
    if not (together and has_instructions and isinstance(store, Store)) or loop.var in context.deinterleaved:
        return None
    byte = rounded_byte(store)
    if byte is None or not _writes_neighbours(store, loop, context):
        return None
    return BytePacking(byte, together, whole // together * together)


def _writes_neighbours(store: Store, loop: For, context: TileContext) -> bool:
    """Whether the lanes of a store are adjacent in memory."""
    (name,) = store.buffers
    if context.buffer(name).scope is Scope.REGISTER or any(map(is_data, store.indices)):
        return False
    lanes = range(number_of(loop.extent))
    return context.address(context.flat(name, store.indices), loop.var, lanes, {}).stride == 1


def _is_moved(bound: Expr, value: int, zero: Cast | None) -> bool:
    """Whether a float is an integer without the zero that is added after it."""
    if zero is None:
        return isinstance(bound, Const) and bound.value == value
    match bound:
        case Binary(op="sub", a=Const(value=constant), b=Cast(a=byte)):
            return constant == value and byte == zero.a and DTYPES[byte.dtype].nbytes == 1
    return False

"""Gathers, scatters and one-hot encodings: accesses whose indices are data.

`indexing` says which indices are valid along a dimension of size n, and whether networks check them
(`graph.index_checks`):

    wrapped      -n .. n - 1; negative ones count from the end
    plain        0 .. n - 1
    unchecked    any; the network does not check them

Memory is safe for all indices: an index out of range reads the nearest element, and updates at one are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.index_maps import axis_of, replaced, reshape
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.reducers import largest, smallest

WRAPPED, PLAIN, UNCHECKED = INDEXINGS = ("wrapped", "plain", "unchecked")


def place_of(index: Expr, size: int, indexing: str) -> Expr:
    """Return the index from the start that an index of a dimension means."""
    row = DTYPES[index.dtype]
    if not row.is_integer:
        raise GraphError(f"places are integers but got {index.dtype}")
    if indexing not in INDEXINGS:
        raise GraphError(f"the indexing is {', '.join(INDEXINGS)} but got {indexing!r}")
    index = _as_int64(index)
    return index if row.kind == "u" or indexing == PLAIN else te.select(index < 0, index + size, index)


def _as_int64(index: Expr) -> Expr:
    """Return the index in int64, whose largest number stands for all greater ones: no dimension is as large."""
    most = DTYPES["int64"].integer_range[1]
    return te.cast(te.min(index, most) if DTYPES[index.dtype].integer_range[1] > most else index, "int64")


@operator
def gather(x: Tensor, ids: Tensor, axis: int = 0, indexing: str = WRAPPED) -> Tensor:
    """Return x indexed by `ids` along `axis`, which is replaced by the axes of `ids`."""
    axis = axis_of(axis, len(x.shape))
    _check_choice(x, (axis,), ids.shape)
    end = axis + len(ids.shape)

    def at(*index: Expr) -> Expr:
        return x[(*index[:axis], place_of(ids[index[axis:end]], x.shape[axis], indexing), *index[end:])]

    made: Tensor = te.compute((*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]), at, name="gather")
    return made


@operator
def gather_elements(x: Tensor, ids: Tensor, axis: int, indexing: str = WRAPPED) -> Tensor:
    """x[i, ids[i, j, k], k] for axis 1."""
    axis = axis_of(axis, len(x.shape))
    _check_within(x, ids, axis)
    _check_choice(x, (axis,), ids.shape)
    size = x.shape[axis]

    def at(*index: Expr) -> Expr:
        return x[replaced(index, axis, place_of(ids[index], size, indexing))]

    made: Tensor = te.compute(ids.shape, at, name="gather_elements")
    return made


def _check_choice(x: Tensor, axes: Sequence[int], ids: tuple[int, ...]) -> None:
    """Raise GraphError if there are indices of this shape, but no elements along an axis that they could select."""
    if math.prod(ids) and (empty := [axis for axis in axes if not x.shape[axis]]):
        raise GraphError(f"the dimension {empty[0]} of {list(x.shape)} has no elements that {list(ids)} indices select")


def _check_within(x: Tensor, ids: Tensor, axis: int) -> None:
    """Raise GraphError if `ids` is larger than x along another axis than `axis`."""
    fits = len(ids.shape) == len(x.shape)
    if not fits or any(m > n for d, (m, n) in enumerate(zip(ids.shape, x.shape, strict=True)) if d != axis):
        raise GraphError(
            f"the indices {list(ids.shape)} reach beyond the tensor {list(x.shape)} in a dimension other than {axis}"
        )


@operator
def gather_nd(x: Tensor, ids: Tensor, batch_dims: int = 0) -> Tensor:
    """x at the indices that the last dimension of `ids` holds, which are of its first dimensions after the first
    `batch_dims`, which both have."""
    b, count = batch_dims, ids.shape[-1] if ids.shape else 0
    if not 0 < count <= len(x.shape) - b or len(ids.shape) <= b or ids.shape[:b] != x.shape[:b]:
        raise GraphError(f"the indices {list(ids.shape)} are none of {list(x.shape)} with {b} dimensions of batches")
    _check_choice(x, range(b, b + count), ids.shape)
    end = len(ids.shape) - 1

    def at(*index: Expr) -> Expr:
        row = index[:end]
        places = (place_of(ids[(*row, k)], x.shape[b + k], WRAPPED) for k in range(count))
        return x[(*index[:b], *places, *index[end:])]

    made: Tensor = te.compute((*ids.shape[:end], *x.shape[b + count :]), at, name="gather_nd")
    return made


@dataclass(frozen=True)
class _Joining:
    """How updates are combined: `reduction` of all updates of an element, then with the element itself."""

    reduce: Callable[..., Expr]
    combine: Callable[[Expr, Expr], Expr]
    neutral: Callable[[str], Any]


_JOININGS: Mapping[str, _Joining] = {
    "add": _Joining(te.sum, lambda a, b: a + b, lambda dtype: te.const(0, dtype)),
    "mul": _Joining(te.prod, lambda a, b: a * b, lambda dtype: te.const(1, dtype)),
    "max": _Joining(te.max, te.maximum, smallest),
    "min": _Joining(te.min, te.minimum, largest),
}


def _scattered(
    x: Tensor,
    n: int,
    reduction: str,
    hit: Callable[[tuple[Expr, ...], Expr], Expr],
    update: Callable[[tuple[Expr, ...], Expr], Expr],
    guard: Callable[[tuple[Expr, ...]], list[Expr]] = lambda index: [],
) -> Tensor:
    """x with those of `n` updates, at each index, that `hit` it; where `guard` does not hold none is to be read.

    Without a reduction the last one counts. te has no stores at places that are data, so each element looks for what
    arrives at it.
    """
    if reduction not in ("none", *_JOININGS):
        raise GraphError(f"the reduction of a scatter is none, {', '.join(_JOININGS)} but got {reduction!r}")
    if n == 0:
        return unchanged(x)

    def at(*index: Expr) -> Expr:
        k = te.reduce_axis(n, "k")

        def guarded(value: Expr, otherwise: Expr) -> Expr:
            conditions = guard(index)
            return te.select(te.all(*conditions), value, otherwise) if conditions else value

        if reduction == "none":
            never = te.const(-1)
            last = te.max(guarded(te.select(hit(index, k), k, never), never), axis=k)
            return te.select(last >= 0, guarded(update(index, last), x[index]), x[index])
        how = _JOININGS[reduction]
        neutral = how.neutral(x.dtype)
        arriving = how.reduce(guarded(te.select(hit(index, k), update(index, k), neutral), neutral), axis=k)
        return te.cast(how.combine(x[index], arriving), x.dtype)

    made: Tensor = te.compute(x.shape, at, name="scatter")
    return made


@operator
def scatter_elements(
    x: Tensor, ids: Tensor, updates: Tensor, axis: int, reduction: str = "none", indexing: str = WRAPPED
) -> Tensor:
    """x with updates[i, j, k] at [i, ids[i, j, k], k] for axis 1."""
    axis = axis_of(axis, len(x.shape))
    _check_within(x, ids, axis)
    _check_updates(x, updates, ids.shape)

    def hit(index: tuple[Expr, ...], k: Expr) -> Expr:
        return te.equal(place_of(ids[replaced(index, axis, k)], x.shape[axis], indexing), index[axis])

    def guard(index: tuple[Expr, ...]) -> list[Expr]:
        sizes = enumerate(zip(ids.shape, x.shape, strict=True))
        return [index[d] < m for d, (m, n) in sizes if d != axis and m < n]

    return _scattered(x, ids.shape[axis], reduction, hit, lambda i, k: updates[replaced(i, axis, k)], guard)


@operator
def scatter_nd(x: Tensor, ids: Tensor, updates: Tensor, reduction: str = "none") -> Tensor:
    """x with the parts `updates` at the indices, of its first dimensions, that the last dimension of `ids` holds."""
    depth = ids.shape[-1] if ids.shape else 0
    if not 0 < depth <= len(x.shape):
        raise GraphError(f"the last dimension of the indices {list(ids.shape)} holds none of {list(x.shape)}")
    _check_updates(x, updates, (*ids.shape[:-1], *x.shape[depth:]))
    n = math.prod(ids.shape[:-1])
    rows, parts = reshape(ids, (n, depth)), reshape(updates, (n, *x.shape[depth:]))

    def hit(index: tuple[Expr, ...], k: Expr) -> Expr:
        return te.all(*(te.equal(place_of(rows[k, d], x.shape[d], WRAPPED), index[d]) for d in range(depth)))

    return _scattered(x, n, reduction, hit, lambda index, k: parts[(k, *index[depth:])])


@operator
def write_rows(x: Tensor, at: Tensor, rows: Tensor, axis: int, indexing: str = WRAPPED) -> Tensor:
    """x with row n of `rows`, along `axis`, at the place at[n], or for index b of the first dimension at[b, n]; of
    several at one place the last. Rows at places beyond `x` are not written.
    """
    axis = axis_of(axis, len(x.shape))
    if at.shape[:-1] not in ((), x.shape[:1]) or (len(at.shape) == 2 and axis == 0):
        raise GraphError(f"places {list(at.shape)} are neither [n] nor [{x.shape[0]}, n] along an axis after the first")
    count, size = at.shape[-1], x.shape[axis]
    _check_updates(x, rows, (*x.shape[:axis], count, *x.shape[axis + 1 :]))

    def is_at(place: tuple[Expr, ...], k: Expr | int) -> Expr:
        return te.equal(place_of(at[(*place[:-1], k)], size, indexing), place[-1])

    def row_of(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (*index[: len(at.shape) - 1], index[axis])

    def one(*index: Expr) -> Expr:
        return te.select(is_at(row_of(index), 0), rows[replaced(index, axis, te.const(0))], x[index])

    def last(*place: Expr) -> Expr:
        k = te.reduce_axis(count, "k")
        return te.max(te.select(is_at(place, k), k, te.const(-1)), axis=k)

    if count == 0:
        return unchanged(x)
    if count == 1:
        written: Tensor = te.compute(x.shape, one, name="written")
        return written
    last_writer = te.compute((*at.shape[:-1], size), last, name="last")

    def any_of(*index: Expr) -> Expr:
        row = last_writer[row_of(index)]
        return te.select(row >= 0, rows[replaced(index, axis, row)], x[index])

    written = te.compute(x.shape, any_of, name="written")
    return written


def unchanged(x: Tensor) -> Tensor:
    """Return x with no updates."""
    copy: Tensor = te.compute(x.shape, lambda *index: x[index], name="unchanged")
    return copy


def _check_updates(x: Tensor, updates: Tensor, shape: tuple[int, ...]) -> None:
    if updates.shape != shape or updates.dtype != x.dtype:
        got = f"{updates.dtype}{list(updates.shape)}"
        raise GraphError(f"the updates must be {x.dtype}{list(shape)} for these indices but are {got}")


@operator
def one_hot(ids: Tensor, values: Tensor, depth: int, axis: int = -1) -> Tensor:
    """values[1] where the place along the new dimension `axis` of size `depth` is the one in `ids`, else values[0]. An
    index that is outside of -depth .. depth - 1 has values[0] alone, as ONNX says."""
    axis = axis_of(axis, len(ids.shape) + 1)
    if values.shape != (2,):
        raise GraphError(f"the values of one_hot are two numbers, off and on, but have the shape {list(values.shape)}")

    def at(*index: Expr) -> Expr:
        hot = te.equal(place_of(ids[(*index[:axis], *index[axis + 1 :])], depth, WRAPPED), index[axis])
        return te.select(hot, values[1], values[0])

    made: Tensor = te.compute((*ids.shape[:axis], depth, *ids.shape[axis:]), at, name="one_hot")
    return made


@operator
def first_outside(ids: Tensor, low: int, high: int, column: int = 0, columns: int = 1) -> tuple[Tensor, Tensor]:
    """The first of the elements `column`, `column + columns`, ... of `ids` that is not in `low` to `high`, and its
    number among them; where all lie there the number is how many there are."""
    count = math.prod(ids.shape) // columns
    flat = reshape(ids, (count, columns))

    def at() -> tuple[Expr, Expr]:
        k = te.reduce_axis(count, "k")
        index = _as_int64(flat[k, column])
        number = te.select(te.any(index < low, index > high), te.cast(k, "int64"), te.const(count, "int64"))
        return te.argmin((index, number), axis=k)

    index, number = te.compute((), at, name="outside")
    return index, number

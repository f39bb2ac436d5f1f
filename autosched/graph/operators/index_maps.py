"""Data movement operators: each element of the result is an element of the operand at another index, or the index."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.elementwise import broadcast_shape, element
from autosched.graph.operators.images import Images
from autosched.ir.expr import Expr
from autosched.te import Tensor

Shape = tuple[int, ...]


def axis_of(axis: int, rank: int) -> int:
    """Return the axis counted from the start; negative ones count from the end."""
    if not -rank <= axis < rank:
        raise GraphError(f"the axis {axis} is none of the {rank} dimensions there are")
    return axis % rank


def axes_of(axes: Iterable[int], rank: int) -> Shape:
    """The dimensions that `axes` mean, in the order given."""
    normalised = tuple(axis_of(axis, rank) for axis in axes)
    if len(set(normalised)) != len(normalised):
        raise GraphError(f"the axes {list(axes)} name a dimension twice")
    return normalised


def replaced(index: Sequence[Any], axis: int, place: Any) -> tuple[Any, ...]:
    """`index` with `place` at one dimension."""
    return (*index[:axis], place, *index[axis + 1 :])


def check_length(what: str, values: Sequence[object], rank: int) -> None:
    if len(values) != rank:
        raise GraphError(f"{what} has {len(values)} entries, but the tensor has {rank} dimensions")


def moved(x: Tensor, shape: Shape, place: Any, name: str) -> Tensor:
    """result[index] = x[place(*index)]."""
    made: Tensor = te.compute(shape, lambda *index: x[tuple(place(*index))], name=name)
    return made


def flat_place(index: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Return the flat row-major position of `index` in an array of these `sizes`."""
    place: Any = 0
    for i, size in zip(index, sizes, strict=True):
        place = place * size + i
    return place


def index_at(place: Any, sizes: Sequence[int]) -> list[Any]:
    """Return the index of a flat row-major position in an array of these `sizes`."""
    steps = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    return [
        place // step % size if d else place // step for d, (step, size) in enumerate(zip(steps, sizes, strict=True))
    ]


def _runs(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the shortest runs of axes of two shapes that have equally many elements, without axes of size 1.

    A reshape divides indices only within such a run.
    """
    left, right = ([d for d, size in enumerate(shape) if size > 1] for shape in (old, new))
    while left:
        a, b = [left.pop(0)], [right.pop(0)]
        while (p := math.prod(old[d] for d in a)) != (q := math.prod(new[d] for d in b)):
            if p < q:
                a.append(left.pop(0))
            else:
                b.append(right.pop(0))
        yield a, b


@operator
def reshape(x: Tensor, shape: Shape) -> Tensor:
    """The same elements in the same order."""
    if math.prod(x.shape) != math.prod(shape) or any(size < 0 for size in shape):
        raise GraphError(f"the shape {list(x.shape)} cannot become {list(shape)}, which has other elements")

    def place(*index: Expr) -> list[Any]:
        indices: list[Any] = [0] * len(x.shape)
        for old, new in _runs(x.shape, tuple(shape)) if 0 not in x.shape else ():
            where = flat_place([index[d] for d in new], [shape[d] for d in new])
            for d, i in zip(old, index_at(where, [x.shape[d] for d in old]), strict=True):
                indices[d] = i
        return indices

    return moved(x, tuple(shape), place, "reshape")


@operator
def transpose(x: Tensor, perm: Shape) -> Tensor:
    """Dimension d of the result is dimension perm[d] of x."""
    order = axes_of(perm, len(x.shape))
    check_length("the permutation", order, len(x.shape))
    return moved(
        x, tuple(x.shape[d] for d in order), lambda *i: [i[order.index(d)] for d in range(len(i))], "transpose"
    )


@operator
def expand(x: Tensor, shape: Shape) -> Tensor:
    """Sizes of 1 stretched, so that x fits with `shape`."""
    full = broadcast_shape(x.shape, tuple(shape))
    made: Tensor = te.compute(full, lambda *index: element(x, index), name="expand")
    return made


class Selection(NamedTuple):
    """The indices start, start + step, ...: `size` of them."""

    start: int
    step: int
    size: int

    @property
    def stop(self) -> int:
        return self.start + self.step * self.size


def selection(size: int, start: int | None, stop: int | None, step: int) -> Selection:
    """Return the indices of range(size)[start:stop:step]."""
    low, high = (0, size) if step > 0 else (-1, size - 1)

    def within(place: int | None, default: int) -> int:
        if place is None:
            return default
        counted = place + size if place < 0 else place
        if counted < low:
            return low
        return high if counted > high else counted

    first, end = (low, high) if step > 0 else (high, low)
    first, end = within(start, first), within(stop, end)
    distance, pace = (end - first, step) if step > 0 else (first - end, -step)
    return Selection(first, step, (distance + pace - 1) // pace if distance > 0 else 0)


def slice_selections(
    shape: Shape,
    starts: Sequence[int | None],
    stops: Sequence[int | None],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> tuple[Selection, ...]:
    """Return the indices that a slice selects along each axis. Raises GraphError for invalid slices."""
    named = axes_of(range(len(starts)) if axes is None else axes, len(shape))
    strides = (1,) * len(named) if steps is None else tuple(steps)
    if not len(starts) == len(stops) == len(strides) == len(named) or 0 in strides:
        raise GraphError(f"slice needs a start, a stop and a step other than 0 for each axis of {list(named)}")
    taken = [Selection(0, 1, size) for size in shape]
    for axis, start, stop, step in zip(named, starts, stops, strides, strict=True):
        taken[axis] = selection(shape[axis], start, stop, step)
    return tuple(taken)


@operator
def slice_(
    x: Tensor,
    starts: Sequence[int | None],
    stops: Sequence[int | None],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:
    """Python's slices along `axes` (the first ones): negative places count from the end, those outside are the ends."""
    taken = slice_selections(x.shape, starts, stops, axes, steps)
    shape = tuple(r.size for r in taken)
    return moved(x, shape, lambda *i: [r.start + p * r.step for r, p in zip(taken, i, strict=True)], "slice")


@operator
def concat(*x: Tensor, axis: int) -> Tensor:
    """The tensors behind each other along `axis`."""
    axis = axis_of(axis, len(x[0].shape))
    for other in x[1:]:
        if len(other.shape) != len(x[0].shape) or replaced(other.shape, axis, 0) != replaced(x[0].shape, axis, 0):
            shapes = ", ".join(str(list(t.shape)) for t in x)
            raise GraphError(f"the shapes {shapes} do not fit behind each other along dimension {axis}")
    starts = [sum(t.shape[axis] for t in x[:n]) for n in range(len(x) + 1)]

    def one_of(first: int, end: int, index: tuple[Expr, ...]) -> Expr:
        """The element, which is in one of x[first:end]: choices are nested no deeper than halving asks for."""
        if end - first == 1:
            return x[first][replaced(index, axis, index[axis] - starts[first])]
        middle = (first + end) // 2
        left, right = one_of(first, middle, index), one_of(middle, end, index)
        return te.select(index[axis] < starts[middle], left, right)

    shape = replaced(x[0].shape, axis, starts[-1])
    made: Tensor = te.compute(shape, lambda *index: one_of(0, len(x), index), name="concat")
    return made


@operator
def split(x: Tensor, sizes: Shape, axis: int) -> tuple[Tensor, ...]:
    """The parts of these `sizes` along `axis`."""
    axis = axis_of(axis, len(x.shape))
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0:
        raise GraphError(f"the parts {list(sizes)} are not all of dimension {axis}, whose size is {x.shape[axis]}")
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return tuple(slice_(x, (end - size,), (end,), (axis,)) for size, end in zip(sizes, ends, strict=True))


@operator
def tile(x: Tensor, repeats: Shape) -> Tensor:
    """x repeated along each dimension."""
    check_length("repeats", repeats, len(x.shape))
    shape = tuple(size * count for size, count in zip(x.shape, repeats, strict=True))
    return moved(x, shape, lambda *index: [i % size for i, size in zip(index, x.shape, strict=True)], "tile")


@operator
def flip(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Backwards along `axes`."""
    turned = axes_of(axes, len(x.shape))

    def place(*index: Expr) -> list[Any]:
        return [x.shape[d] - 1 - i if d in turned else i for d, i in enumerate(index)]

    return moved(x, x.shape, place, "flip")


@operator
def roll(x: Tensor, shifts: Sequence[int], axes: Sequence[int]) -> Tensor:
    """Elements moved up by `shifts` along `axes`, those that leave at the end to the start."""
    if len(shifts) != len(axes):
        raise GraphError(f"roll needs a shift for each axis but got {list(shifts)} for {list(axes)}")
    back = [0] * len(x.shape)
    for axis, shift in zip(axes, shifts, strict=True):  # an axis may come twice
        back[axis_of(axis, len(x.shape))] -= shift

    def place(*index: Expr) -> list[Any]:
        return [(i + b % n) % n if n and b % n else i for i, b, n in zip(index, back, x.shape, strict=True)]

    return moved(x, x.shape, place, "roll")


def _check_multiples(x: Tensor, sizes: Iterable[int], parts: int) -> None:
    if any(size % parts for size in sizes):
        raise GraphError(f"the shape {list(x.shape)} cannot be taken apart: there is no multiple of {parts}")


@operator
def depth_to_space(x: Tensor, block: int, mode: str = "DCR", channels_last: bool = False) -> Tensor:
    """[N, C, H, W] -> [N, C / b^2, H b, W b]: each block of b x b pixels from b^2 channels, which lie C / b^2 apart
    (DCR) or side by side (CRD)."""
    if mode not in ("DCR", "CRD"):
        raise GraphError(f'the mode of depth_to_space is "DCR" or "CRD" but got {mode!r}')
    images = Images(channels_last)
    check_length(f"an image {images} of two sizes", x.shape, 4)
    n, c, sizes = images.parts(x.shape)
    _check_multiples(x, (c,), block * block)
    depth = c // (block * block)

    def place(n: Expr, c: Expr, y: Expr, x: Expr) -> tuple[Any, ...]:
        inside = y % block * block + x % block
        channel = inside * depth + c if mode == "DCR" else c * (block * block) + inside
        return images.index(n, channel, (y // block, x // block))

    shape = images.index(n, depth, (size * block for size in sizes))
    return moved(x, shape, images.by(place), "depth_to_space")


@operator
def space_to_depth(x: Tensor, block: int, channels_last: bool = False) -> Tensor:
    """[N, C, H, W] -> [N, C b^2, H / b, W / b]: the b x b pixels of a block become channels, C apart."""
    images = Images(channels_last)
    check_length(f"an image {images} of two sizes", x.shape, 4)
    n, c, sizes = images.parts(x.shape)
    _check_multiples(x, sizes, block)

    def place(n: Expr, k: Expr, y: Expr, x: Expr) -> tuple[Any, ...]:
        inside = k // c
        return images.index(n, k % c, (y * block + inside // block, x * block + inside % block))

    shape = images.index(n, c * block * block, (size // block for size in sizes))
    return moved(x, shape, images.by(place), "space_to_depth")


@operator
def trilu(x: Tensor, k: int = 0, upper: bool = True) -> Tensor:
    """The matrices with 0 below their diagonal number `k`, or above it (not `upper`)."""
    if len(x.shape) < 2:
        raise GraphError(f"trilu needs matrices but got the shape {list(x.shape)}")

    def at(*index: Expr) -> Expr:
        i, j = index[-2:]
        return te.select(j - i >= k if upper else j - i <= k, x[index], te.const(0, x.dtype))

    made: Tensor = te.compute(x.shape, at, name="trilu")
    return made


@operator
def arange(start: int, step: int, size: int, dtype: str = "int64") -> Tensor:
    """The integers start, start + step, ...: `size` of them."""
    made: Tensor = te.compute((size,), lambda i: te.cast(i * step + start, dtype), name="arange")
    return made


@operator
def number(value: int, dtype: str = "int64") -> Tensor:
    """The integer `value`, a scalar."""
    made: Tensor = te.compute((), lambda: te.cast(te.const(value, "int64"), dtype), name="number")
    return made

"""Sampling of images at data-dependent positions: interpolation between a few neighbours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.images import Images
from autosched.graph.operators.index_maps import index_at
from autosched.graph.operators.resize import cubic_weights
from autosched.graph.operators.windows import Ints, Pads, Windows
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.operators.window import stored, widen

# The neighbours of a position, relative to its floor, and their weights as functions of the fraction.
_NEIGHBOURS: Mapping[str, tuple[tuple[int, ...], Callable[[Expr], list[Expr]]]] = {
    "linear": ((0, 1), lambda t: [1.0 - t, t]),
    "cubic": ((-1, 0, 1, 2), lambda t: cubic_weights(t, -0.75)),
}
_PADDINGS = ("zeros", "border", "reflection")


@operator
def grid_sample(
    x: Tensor, grid: Tensor, mode: str = "linear", padding: str = "zeros", align_corners: bool = False
) -> Tensor:
    """x[N, C, sizes...] at the places grid[N, out..., rank], whose last dimension counts from the last of x backwards.

    -1 and 1 are the middles of the first and last element (`align_corners`) or the borders before and behind them.
    What lies outside is 0, the element at the border, or mirrored at it. Modes: nearest, linear, cubic (of images of
    two dimensions).
    """
    rank = len(x.shape) - 2
    if rank not in (1, 2, 3) or len(grid.shape) != rank + 2 or grid.shape[-1] != rank or grid.shape[0] != x.shape[0]:
        raise GraphError(f"a grid of shape {list(grid.shape)} holds no places of images {list(x.shape)}")
    if mode not in ("nearest", *_NEIGHBOURS) or padding not in _PADDINGS or (mode == "cubic" and rank > 2):
        raise GraphError(f"grid_sample of {rank} dimensions does not take the mode {mode!r} with padding {padding!r}")
    sizes, kind = x.shape[2:], DTYPES[x.dtype].computes_in

    def place(d: int, *index: Expr) -> Expr:
        """Return the position along dimension d as a fractional index."""
        at = te.cast(grid[(*index, rank - 1 - d)], kind)
        size = float(sizes[d])
        pixel = (at + 1.0) * ((size - 1.0) / 2.0) if align_corners else ((at + 1.0) * size - 1.0) * 0.5
        if padding == "border" and mode != "cubic":
            return te.min(te.max(pixel, 0.0), size - 1.0)
        return _mirrored(pixel, sizes[d], align_corners) if padding == "reflection" and mode != "cubic" else pixel

    shape = (grid.shape[0], *grid.shape[1:-1])
    places = [te.compute(shape, lambda *i, d=d: place(d, *i), name=f"place{d}") for d in range(rank)]
    mirrors = mode == "cubic" and padding == "reflection"  # its neighbours, which may lie beyond the border

    def kept(at: Expr, size: int) -> Expr:
        return _within(_mirrored(at, size, align_corners) if mirrors else at, size)

    weighed = _weighed(x, mode, padding == "zeros", kept)

    def value(n: Expr, c: Expr, *position: Expr) -> Expr:
        return weighed(n, c, [at[(n, *position)] for at in places])

    made = te.compute((shape[0], x.shape[1], *shape[1:]), value, name="grid_sample")
    return stored(made, x.dtype)


def _weighed(
    x: Tensor, mode: str, zeros: bool, kept: Callable[[Expr, int], Expr]
) -> Callable[[Expr, Expr, Sequence[Expr]], Expr]:
    """Return the nearest element of an image and channel, or the weighted sum of the neighbours, at a position.

    `kept` maps an index of a dimension to a valid one; with `zeros`, elements outside are 0.
    """
    sizes = x.shape[2:]

    def neighbours(at: Expr) -> list[tuple[Expr, Expr | None]]:
        if mode == "nearest":
            return [(te.round(at), None)]
        shifts, weights = _NEIGHBOURS[mode]
        below = te.floor(at)
        return [(below + float(s), w) for s, w in zip(shifts, weights(at - below), strict=True)]

    def value(n: Expr, c: Expr, position: Sequence[Expr]) -> Expr:
        total: Expr | None = None
        for corner in itertools.product(*map(neighbours, position)):
            term = widen(x[(n, c, *(kept(at, size) for (at, _), size in zip(corner, sizes, strict=True)))])
            for _, weight in corner:
                term = term if weight is None else term * weight
            if zeros:
                inside = [te.all(at >= 0.0, at <= float(s - 1)) for (at, _), s in zip(corner, sizes, strict=True)]
                term = te.select(te.all(*inside), term, 0.0)
            total = term if total is None else total + term
        assert total is not None
        return total

    return value


def _within(at: Expr, size: int) -> Expr:
    """Clamp an index to the dimension."""
    return te.cast(te.max(te.min(at, float(size - 1)), 0.0), "int64")


def _mirrored(at: Expr, size: int, align_corners: bool) -> Expr:
    """Reflect `at` at the centres of the outer elements (`align_corners`) or at the borders until it is inside."""
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        return at * 0.0
    distance = te.abs(at - low)
    turns = te.floor(distance / span)
    rest = distance - turns * span
    odd = turns - te.floor(turns * 0.5) * 2.0
    return te.select(odd > 0.5, high - rest, rest + low)


@operator
def deform_columns(
    x: Tensor,
    offset: Tensor,
    mask: Tensor | None = None,
    kernel: Ints = (),
    strides: Ints = (),
    pads: Pads = (),
    dilations: Ints = (),
    groups: int = 1,
) -> Tensor:
    """Return what the taps of windows read of images [N, C, sizes...] at positions that are data, as channels
    [N, C * taps, windows...].

    Tap t of the kernel is moved by offset[n, (g * taps + t) * rank + d, window] along dimension d, for the channels of
    group g of `groups`, and its element is multiplied by mask[n, g * taps + t, window]. Between elements they are
    interpolated; outside of the image lie zeros. A deformable convolution is the convolution of this with a kernel of
    size 1, whose channels are those of the weights and their taps.
    """
    windows = Windows.over(Images(), x, kernel, strides, pads, dilations)
    rank, taps, (images, channels) = len(kernel), math.prod(kernel), x.shape[:2]
    if groups < 1 or channels % groups:
        raise GraphError(f"{channels} channels do not make {groups} groups, each with offsets of its own")
    for what, tensor, count in (("offsets", offset, groups * taps * rank), ("factors", mask, groups * taps)):
        expected = (images, count, *windows.out)
        if tensor is not None and tensor.shape != expected:
            raise GraphError(f"the {what} of these windows have the shape {list(expected)}, not {list(tensor.shape)}")
    kind = DTYPES[x.dtype].computes_in

    def place(d: int, n: Expr, tap: Expr, *window: Expr) -> Expr:
        step = index_at(tap % taps, kernel)[d] * windows.dilations[d]
        start = window[d] * windows.strides[d] - windows.given[d][0]
        return te.cast(start + step, kind) + te.cast(offset[(n, tap * rank + d, *window)], kind)

    shape = (images, groups * taps, *windows.out)
    places = [te.compute(shape, lambda *i, d=d: place(d, *i), name=f"place{d}") for d in range(rank)]
    weighed = _weighed(x, "linear", True, _within)

    def value(n: Expr, c: Expr, *window: Expr) -> Expr:
        channel, tap = c // taps, c % taps
        own = (n, channel // (channels // groups) * taps + tap, *window)
        element = weighed(n, channel, [at[own] for at in places])
        return element if mask is None else element * te.cast(mask[own], kind)

    return stored(te.compute((images, channels * taps, *windows.out), value, name="deform_columns"), x.dtype)


@operator
def col2im(
    x: Tensor,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[tuple[int, int]] = (),
    dilations: Sequence[int] = (),
) -> Tensor:
    """Columns [N, C * product of kernel, windows] added up where their windows lie in images [N, C, sizes...]."""
    rank, taps = len(sizes), math.prod(kernel)
    steps, gaps = tuple(strides) or (1,) * rank, tuple(dilations) or (1,) * rank
    around = tuple(pads) or ((0, 0),) * rank
    counts = [
        (size + low + high - gap * (k - 1) - 1) // step + 1
        for size, k, step, gap, (low, high) in zip(sizes, kernel, steps, gaps, around, strict=True)
    ]
    if len(x.shape) != 3 or x.shape[1] % taps or x.shape[2] != math.prod(counts):
        raise GraphError(
            f"{list(x.shape)} are no columns of windows {list(kernel)} of images {list(sizes)}: those have "
            f"{counts} windows"
        )
    channels = x.shape[1] // taps

    def value(n: Expr, c: Expr, *position: Expr) -> Expr:
        tap = [te.reduce_axis(k, name="k") for k in kernel]
        conditions, row, window = [], c, te.const(0)
        for at, t, k, step, gap, (low, _), count in zip(
            position, tap, kernel, steps, gaps, around, counts, strict=True
        ):
            start = at + low - t * gap
            conditions += [start >= 0, te.equal(te.mod(start, step), 0), start <= (count - 1) * step]
            row, window = row * k + t, window * count + start // step
        return te.sum(te.select(te.all(*conditions), widen(x[n, row, window]), 0.0), axis=tap)

    return stored(te.compute((x.shape[0], channels, *sizes), value, name="col2im"), x.dtype)

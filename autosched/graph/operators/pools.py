"""Pooling over the spatial axes of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.images import Images
from autosched.graph.operators.index_maps import index_at
from autosched.graph.operators.windows import Ints, Pads, Windows
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.operators.window import stored
from autosched.te.reducers import largest, smallest


@operator
def max_pool(
    x: Tensor,
    kernel: Ints,
    strides: Ints = (),
    pads: Pads = (),
    dilations: Ints = (),
    ceil_mode: bool = False,
    channels_last: bool = False,
) -> Tensor:
    """The maximum of each window; outside of the image lies -inf, or the least integer."""
    windows = Windows.over(Images(channels_last), x, kernel, strides, pads, dilations, ceil_mode)
    padded, k = windows.padded(x, smallest(x.dtype)), windows.taps()
    made = over_windows(x, windows, lambda n, c, at: te.max(windows.element(padded, n, c, at, k), axis=k), "max_pool")
    return stored(made, x.dtype)


def over_windows(x: Tensor, windows: Windows, at: Callable[[Expr, Expr, Sequence[Expr]], Any], name: str) -> Any:
    """at(n, c, position) of the windows of each channel."""
    n, c, _ = windows.images.parts(x.shape)

    def of_index(*index: Expr) -> Any:
        return at(*windows.images.parts(index))

    return te.compute(windows.shape(n, c), of_index, name=name)


@operator
def max_pool_indices(
    x: Tensor,
    kernel: Ints,
    strides: Ints = (),
    pads: Pads = (),
    dilations: Ints = (),
    ceil_mode: bool = False,
    whole: bool = False,
    channels_last: bool = False,
) -> tuple[Tensor, Tensor]:
    """The maximum of each window and its int64 place: in the flat image of its channel, or in the flat `whole` of x,
    both of [N, C, ...]."""
    windows = Windows.over(Images(channels_last), x, kernel, strides, pads, dilations, ceil_mode)
    padded, k = windows.padded(x, smallest(x.dtype)), windows.taps()

    images, channels, _ = windows.images.parts(x.shape)

    def at(n: Expr, c: Expr, position: Sequence[Expr]) -> tuple[Expr, Expr]:
        own = [p - low for p, (low, _) in zip(windows.places(position, k), windows.pads, strict=True)]
        flat = _flat((n, c, *own), (images, channels, *windows.sizes)) if whole else _flat(own, windows.sizes)
        sides = zip(own, windows.sizes, windows.pads, strict=True)
        inside = [c for place, size, (low, high) in sides for c in _within(place, size, low, high)]
        if inside:  # -inf in the image comes before that around it
            flat = te.select(te.all(*inside), flat, largest("int64"))
        return te.argmax((flat, windows.element(padded, n, c, position, k)), axis=k)

    place, value = over_windows(x, windows, at, "max_pool")
    return stored(value, x.dtype), place


@operator
def max_unpool(
    x: Tensor, places: Tensor, sizes: Ints, kernel: Ints = (), strides: Ints = (), pads: Pads = (), dilations: Ints = ()
) -> Tensor:
    """Images [N, C, *sizes] of zeros with the elements of x[N, C, ...] at their `places` in the flat image of their
    channel; of several at one place the last one.

    `kernel` and what follows: the windows of the pool that computed `places`, so that each place is in its window.
    Without a kernel it may be anywhere, and each element of the result compares itself with all places of its channel.
    """
    counts = x.shape[2:]
    if len(counts) != len(sizes) or places.shape != x.shape or not DTYPES[places.dtype].is_integer:
        raise GraphError(
            f"x{list(x.shape)} and {places.dtype}{list(places.shape)} are no elements of images {list(sizes)} with "
            "their places"
        )
    rank = len(sizes)
    strides, dilations, pads = strides or (1,) * rank, dilations or (1,) * rank, pads or ((0, 0),) * rank
    if kernel and not len(kernel) == len(strides) == len(dilations) == len(pads) == rank:
        raise GraphError(
            f"windows {list(kernel)}, {list(strides)}, {list(pads)}, {list(dilations)} need {rank} numbers"
        )
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=bool(kernel))]
    extents = [min(n, -(-span // s)) for n, span, s in zip(counts, spans, strides, strict=True)] if kernel else counts

    def at(n: Expr, c: Expr, *position: Expr) -> Expr:
        own: list[Expr] = [te.reduce_axis(extent, name="k") for extent in extents]
        taps, inside = tuple(own), list[Expr]()
        if kernel:
            last_windows = [(p + low) // s for p, s, (low, _) in zip(position, strides, pads, strict=True)]
            own = [window - k for window, k in zip(last_windows, own, strict=True)]
            inside = [c for window, count in zip(own, counts, strict=True) for c in (window >= 0, window < count)]
        is_here = te.equal(te.cast(places[(n, c, *own)], "int64"), te.cast(_flat(position, sizes), "int64"))
        number = te.select(is_here, te.cast(_flat(own, counts), "int64"), te.const(-1, "int64"))
        last = te.max(te.select(te.all(*inside), number, te.const(-1, "int64")) if inside else number, axis=taps)
        return te.select(last >= 0, x[(n, c, *index_at(last, counts))], te.const(0, x.dtype))

    made: Tensor = te.compute((*x.shape[:2], *sizes), at, name="max_unpool")
    return made


def _within(place: Expr, size: int, low: int, high: int) -> list[Expr]:
    return ([place >= 0] if low > 0 else []) + ([place < size] if high > 0 else [])


def _flat(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    place = index[0]
    for i, size in zip(index[1:], shape[1:], strict=True):
        place = place * size + i
    return place


@operator
def avg_pool(
    x: Tensor,
    kernel: Ints,
    strides: Ints = (),
    pads: Pads = (),
    dilations: Ints = (),
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    channels_last: bool = False,
) -> Tensor:
    """The mean of each window's elements of the image; with `count_include_pad` those of `pads` count as zeros."""
    windows = Windows.over(Images(channels_last), x, kernel, strides, pads, dilations, ceil_mode)
    sums = _sums(x, windows, lambda e: e)

    def at(*index: Expr) -> Expr:
        _, _, position = windows.images.parts(index)
        return sums[index] / _counted(windows, position, count_include_pad).astype(sums.dtype)

    return stored(te.compute(sums.shape, at, name="avg_pool"), x.dtype)


@operator
def lp_pool(
    x: Tensor,
    kernel: Ints,
    strides: Ints = (),
    pads: Pads = (),
    dilations: Ints = (),
    ceil_mode: bool = False,
    p: float = 2,
    channels_last: bool = False,
) -> Tensor:
    """(sum of |x|^p)^(1/p) over each window."""
    if p < 1:
        raise GraphError(f"the norm of a pool has p >= 1 but p is {p}")
    windows = Windows.over(Images(channels_last), x, kernel, strides, pads, dilations, ceil_mode)
    sums = _sums(x, windows, lambda e: power_of_size(e, p))
    return stored(te.compute(sums.shape, lambda *i: root(sums[i], p), name="lp_pool"), x.dtype)


def power_of_size(x: Expr, p: float) -> Expr:
    """|x|^p."""
    return te.abs(x) if p == 1 else x * x if p == 2 else te.pow(te.abs(x), float(p))


def root(x: Expr, p: float) -> Expr:
    """x^(1/p)."""
    return x if p == 1 else te.sqrt(x) if p == 2 else te.pow(x, 1.0 / p)


def _sums(x: Tensor, windows: Windows, of: Callable[[Expr], Expr]) -> Tensor:
    """Return the sum of a function of the elements, which maps 0 to 0, over each window."""
    padded, k = windows.padded(x), windows.taps()

    made: Tensor = over_windows(
        x, windows, lambda n, c, at: te.sum(of(windows.element(padded, n, c, at, k)), axis=k), "sums"
    )
    return made


def _counted(windows: Windows, position: Sequence[Expr], with_pads: bool) -> Expr:
    """Return the number of taps of the window at `position` in the image, or in image and pads of the operator."""
    count = te.const(1)
    for d, place in enumerate(position):
        size, k, stride, dilation = windows.sizes[d], windows.kernel[d], windows.strides[d], windows.dilations[d]
        low, high = windows.given[d]
        before, after = (0, size + low + high) if with_pads else (low, low + size)
        start, last = place * stride, (windows.out[d] - 1) * stride + (k - 1) * dilation
        first = te.max((before - start + dilation - 1) // dilation, 0) if before else 0
        end = te.min((after - start + dilation - 1) // dilation, k) if last >= after else k
        count = count * (end - first)
    return count


@operator
def adaptive_avg_pool(x: Tensor, sizes: Ints, channels_last: bool = False) -> Tensor:
    """Means of windows as equal as possible, of which there are `sizes`: window i of n begins at i * size // n."""
    rank, images = len(sizes), Images(channels_last)
    if len(x.shape) != rank + 2 or not rank or min(sizes) < 1:
        raise GraphError(f"sizes {list(sizes)} do not fit the image {list(x.shape)} with a batch and channels")
    n, c, own = images.parts(x.shape)
    given = list(zip(own, sizes, strict=True))
    k = [te.reduce_axis(_longest(size, n), name=f"k{d}") for d, (size, n) in enumerate(given)]

    def places(position: Sequence[Expr]) -> list[tuple[Expr, Expr]]:
        """First element of each window and the one behind it."""
        bounds = zip(position, given, strict=True)
        return [(i * size // n, ((i + 1) * size + n - 1) // n) for i, (size, n) in bounds]

    def total(n: Expr, c: Expr, *position: Expr) -> Expr:
        ends = list(zip(places(position), k, given, strict=True))
        element = x[images.index(n, c, (start + tap for (start, _), tap, _ in ends))]
        cut = [start + tap < end for (start, end), tap, (size, count) in ends if size % count]
        return te.sum(te.select(te.all(*cut), element, te.const(0, x.dtype)) if cut else element, axis=k)

    sums: Tensor = te.compute(images.index(n, c, sizes), images.by(total), name="sums")

    def mean(*index: Expr) -> Expr:
        count, (_, _, position) = te.const(1), images.parts(index)
        for (start, end), (size, parts) in zip(places(position), given, strict=True):
            count = count * (end - start if size % parts else size // parts)
        return sums[index] / count.astype(sums.dtype)

    return stored(te.compute(sums.shape, mean, name="adaptive_avg_pool"), x.dtype)


def _longest(size: int, parts: int) -> int:
    """The elements of the longest of `parts` windows over `size`."""
    return max(-(-(i + 1) * size // parts) - i * size // parts for i in range(parts))

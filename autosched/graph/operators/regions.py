"""Pooling of regions of images whose corners are data: RoIAlign and the maximum of a region's bins.

Rows and columns are independent. What a bin of a region reads is the product of what it reads of the rows and of the
columns of an image, so both operators compute one table for each, with a row for every region and bin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.gathers import PLAIN, place_of
from autosched.graph.operators.windows import Ints
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.operators.window import stored, widen
from autosched.te.reducers import smallest

# Samples lie more than half an element apart if a bin has several, so at most 4 are less than an element away from one;
# rounding may shift the first of them by one.
_NEAR = 6


@dataclass(frozen=True)
class _Bins:
    """The bins of all regions along one dimension of the images, of `size` elements.

    `start` and `length`: first position and length of bins by region, as stages; `samples`: of a bin, 0 for as many as
    the bin has elements, rounded up.
    """

    start: Tensor
    length: Tensor
    size: int
    count: int
    samples: int

    @property
    def taps(self) -> int:
        """The number of elements that a bin reads at most: two around each sample, or all."""
        return 2 * self.samples or self.size

    def element(self, places: Tensor | None, r: Expr, p: Expr, tap: Expr) -> Expr:
        """Return the index of the element at a tap."""
        return tap if places is None else places[r, p, tap]

    def weights(self) -> tuple[Tensor | None, Tensor]:
        """Return the indices of the elements at the taps, None if tap t is element t, and their weights."""
        if self.samples == 0:
            return None, self._weights_of_all()
        shape = (self.start.shape[0], self.count, self.taps)
        last = float(self.size - 1)

        def position(r: Expr, p: Expr, tap: Expr) -> Expr:
            kind = self.start.dtype
            steps = te.cast(p, kind) + (te.cast(tap // 2, kind) + 0.5) / float(self.samples)
            return self.start[r] + steps * self.length[r]

        at: Tensor = te.compute(shape, position, name="position")

        def kept(*i: Expr) -> Expr:
            return te.min(te.max(at[i], 0.0), last)

        def place(*i: Expr) -> Expr:
            return te.min(te.cast(te.floor(kept(*i)), "int64") + te.cast(i[2] % 2, "int64"), self.size - 1)

        def weight(*i: Expr) -> Expr:
            above = kept(*i) - te.floor(kept(*i))
            share = te.select(te.equal(i[2] % 2, 0), 1.0 - above, above)
            return te.select(self._is_inside(at[i]), share, 0.0)

        return te.compute(shape, place, name="place"), te.compute(shape, weight, name="weight")

    def _is_inside(self, at: Expr) -> Expr:
        """Whether a sample counts: others, more than an element outside of the image, are 0."""
        return te.all(at >= -1.0, at <= float(self.size))

    def _weights_of_all(self) -> Tensor:
        """Return the mean over the samples of a bin of their weights for each element."""
        kind = self.start.dtype
        samples: Tensor = te.compute(self.length.shape, lambda r: te.ceil(self.length[r]), name="samples")
        step: Tensor = te.compute(self.length.shape, lambda r: self.length[r] / te.max(samples[r], 1.0), name="step")

        def weight(r: Expr, p: Expr, h: Expr) -> Expr:
            q = te.reduce_axis(_NEAR, name="q")
            element = te.cast(h, kind)
            first = self.start[r] + te.cast(p, kind) * self.length[r] + step[r] * 0.5
            before = te.floor((element - 1.0 - first) / step[r])
            number = te.max(before, 0.0) + te.cast(q, kind)
            at = first + number * step[r]
            share = 1.0 - te.abs(te.min(te.max(at, 0.0), float(self.size - 1)) - element)
            counts = te.all(number < samples[r], self._is_inside(at))
            return te.sum(te.select(counts, te.max(share, 0.0), 0.0), axis=q)

        sums: Tensor = te.compute((self.start.shape[0], self.count, self.size), weight, name="shares")
        mean: Tensor = te.compute(sums.shape, lambda r, p, h: sums[r, p, h] / te.max(samples[r], 1.0), name="weight")
        return mean


def _check(x: Tensor, batch: Tensor, rois: Tensor, sizes: Ints) -> None:
    if len(x.shape) != 4 or len(batch.shape) != 1 or rois.shape != (*batch.shape, 4) or len(sizes) != 2:
        raise GraphError(
            f"regions of images [N, C, H, W] are [R, 4] with their images [R], of bins [2], but got {list(x.shape)}, "
            f"{list(rois.shape)}, {list(batch.shape)} and {list(sizes)}"
        )
    if min(sizes) < 1:
        raise GraphError(f"the bins of a region are at least 1 in each dimension but got {list(sizes)}")


@operator
def roi_align(
    x: Tensor,
    batch: Tensor,
    rois: Tensor,
    sizes: Ints,
    samples: int = 0,
    scale: float = 1.0,
    half_pixel: bool = True,
    mode: str = "avg",
    indexing: str = PLAIN,
) -> Tensor:
    """Mean or maximum (`mode` "max") of samples in each of `sizes` bins of regions, [R, C, *sizes].

    Region r is rois[r] = x1, y1, x2, y2, times `scale`, of the image batch[r]. A bin has `samples` samples along each
    dimension, or one for each element that it is long; a sample lies between four elements and is their mean by
    distance, or, for the maximum, the greatest of the four weighted elements. `half_pixel`: the middle of the first
    element is at 0.5; otherwise it is at 0 and a region is at least one element large.
    """
    _check(x, batch, rois, sizes)
    if mode not in ("avg", "max") or samples < 0:
        raise GraphError(f'roi_align takes the modes "avg" and "max" and samples >= 0 but got {mode!r}, {samples}')
    if mode == "max" and samples == 0:
        raise GraphError("roi_align of the mode max needs a number of samples that is no data: give samples > 0")
    rows, columns = (
        _bins(rois, d, size, count, (samples, scale, half_pixel))
        for d, size, count in ((1, x.shape[2], sizes[0]), (0, x.shape[3], sizes[1]))
    )
    (ys, y_weights), (xs, x_weights) = rows.weights(), columns.weights()

    def image(r: Expr) -> Expr:
        return place_of(batch[r], x.shape[0], indexing)

    shape = (rois.shape[0], x.shape[1], *sizes)
    if samples == 0:
        return stored(_by_rows_and_columns(x, image, y_weights, x_weights), x.dtype)

    def at(r: Expr, c: Expr, p: Expr, q: Expr) -> Expr:
        i, j = te.reduce_axis(rows.taps, name="i"), te.reduce_axis(columns.taps, name="j")
        weight = y_weights[r, p, i] * x_weights[r, q, j]
        term = widen(x[image(r), c, rows.element(ys, r, p, i), columns.element(xs, r, q, j)]) * weight
        return te.sum(term, axis=(i, j)) if mode == "avg" else te.max(term, axis=(i, j))

    pooled: Tensor = te.compute(shape, at, name="roi_align")
    if mode == "avg":
        sums = pooled
        pooled = te.compute(shape, lambda *i: sums[i] * (1.0 / samples**2), name="mean")
    return stored(pooled, x.dtype)


def _bins(rois: Tensor, d: int, size: int, count: int, how: tuple[int, float, bool]) -> _Bins:
    """Return the bins along a dimension; `d`: its column among the corners."""
    samples, scale, half_pixel = how
    kind = DTYPES[rois.dtype].computes_in

    def corner(r: Expr, column: int) -> Expr:
        at = te.cast(rois[r, column], kind) * scale
        return at - 0.5 if half_pixel else at

    def length(r: Expr) -> Expr:
        extent = corner(r, d + 2) - corner(r, d)
        return (extent if half_pixel else te.max(extent, 1.0)) / float(count)

    start = te.compute(rois.shape[:1], lambda r: corner(r, d), name="start")
    return _Bins(start, te.compute(rois.shape[:1], length, name="length"), size, count, samples)


def _by_rows_and_columns(x: Tensor, image: Callable[[Expr], Expr], rows: Tensor, columns: Tensor) -> Tensor:
    """Weighted sums over all elements, first of each column. Elements of weight 0 are not read: they may be NaN."""
    (regions, bins_y, height), (_, bins_x, width) = rows.shape, columns.shape

    def down(r: Expr, c: Expr, p: Expr, w: Expr) -> Expr:
        h = te.reduce_axis(height, name="h")
        weight = rows[r, p, h]
        return te.sum(te.select(weight > 0.0, widen(x[image(r), c, h, w]) * weight, 0.0), axis=h)

    by_row: Tensor = te.compute((regions, x.shape[1], bins_y, width), down, name="by_row")

    def across(r: Expr, c: Expr, p: Expr, q: Expr) -> Expr:
        w = te.reduce_axis(width, name="w")
        weight = columns[r, q, w]
        return te.sum(te.select(weight > 0.0, by_row[r, c, p, w] * weight, 0.0), axis=w)

    pooled: Tensor = te.compute((regions, x.shape[1], bins_y, bins_x), across, name="roi_align")
    return pooled


@operator
def roi_max_pool(
    x: Tensor, batch: Tensor, rois: Tensor, sizes: Ints, scale: float = 1.0, indexing: str = PLAIN
) -> Tensor:
    """Maxima of the elements in each of `sizes` bins of regions, [R, C, *sizes]; 0 for a bin outside of the image.

    The corners of region r, rois[r] = x1, y1, x2, y2 of the image batch[r], are multiplied by `scale` and rounded, and
    belong to it. Bins overlap where the region is no multiple of their number.
    """
    _check(x, batch, rois, sizes)
    (first_y, end_y), (first_x, end_x) = (
        _bounds(rois, d, size, count, scale)
        for d, size, count in ((1, x.shape[2], sizes[0]), (0, x.shape[3], sizes[1]))
    )
    lowest = smallest(x.dtype)

    def down(r: Expr, c: Expr, p: Expr, w: Expr) -> Expr:
        h = te.reduce_axis(x.shape[2], name="h")
        element = x[place_of(batch[r], x.shape[0], indexing), c, h, w]
        return te.max(te.select(te.all(h >= first_y[r, p], h < end_y[r, p]), element, lowest), axis=h)

    by_row: Tensor = te.compute((rois.shape[0], x.shape[1], sizes[0], x.shape[3]), down, name="by_row")

    def across(r: Expr, c: Expr, p: Expr, q: Expr) -> Expr:
        w = te.reduce_axis(x.shape[3], name="w")
        inside = te.all(w >= first_x[r, q], w < end_x[r, q])
        return te.max(te.select(inside, by_row[r, c, p, w], lowest), axis=w)

    maxima: Tensor = te.compute((rois.shape[0], x.shape[1], *sizes), across, name="maxima")

    def filled(r: Expr, c: Expr, p: Expr, q: Expr) -> Expr:
        is_empty = te.any(first_y[r, p] >= end_y[r, p], first_x[r, q] >= end_x[r, q])
        return te.select(is_empty, te.const(0, maxima.dtype), maxima[r, c, p, q])

    return stored(te.compute(maxima.shape, filled, name="roi_max_pool"), x.dtype)


def _bounds(rois: Tensor, d: int, size: int, count: int, scale: float) -> tuple[Tensor, Tensor]:
    """Return the first element of each bin, and the one behind it."""
    kind, shape = DTYPES[rois.dtype].computes_in, (rois.shape[0], count)

    def rounded(r: Expr, column: int) -> Expr:
        """Round to the nearest integer, halves away from 0."""
        at = te.cast(rois[r, column], kind) * scale
        whole = te.floor(te.abs(at))
        size_ = te.cast(te.select(te.abs(at) - whole >= 0.5, whole + 1.0, whole), "int64")
        return te.select(at < 0.0, te.const(0, "int64") - size_, size_)

    first: Tensor = te.compute(rois.shape[:1], lambda r: rounded(r, d), name="first")
    length: Tensor = te.compute(rois.shape[:1], lambda r: te.max(rounded(r, d + 2) - first[r] + 1, 1), name="length")

    def bound(r: Expr, numerator: Expr) -> Expr:
        return te.min(te.max(first[r] + numerator // count, 0), size)

    def start(r: Expr, p: Expr) -> Expr:
        return bound(r, te.cast(p, "int64") * length[r])

    def end(r: Expr, p: Expr) -> Expr:
        return bound(r, (te.cast(p, "int64") + 1) * length[r] + (count - 1))

    return te.compute(shape, start, name="first_of_bin"), te.compute(shape, end, name="end_of_bin")

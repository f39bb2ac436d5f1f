"""Rules of resizing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array
from autosched.graph.onnx.site import Results, Site, rule
from autosched.graph.operators.resize import COORDINATES
from autosched.ir.size import whole

EXACT = 1 << 20  # a scale with a smaller denominator is exact as a float, and so is its product with a size


@rule("Upsample")
def upsample(site: Site) -> Results:
    """Resize before opset 10: positions are multiples of the scale, rounded down."""
    x = site.input(0)
    scales = site.attribute("scales") if site.opset < 9 else floats(site, 1)
    if scales is None or len(scales) != site.rank(x) or min(scales) <= 0:
        raise GraphError(f"{list(scales or ())} are not scales of {site.rank(x)} axes")
    sizes = tuple(_scaled(size, scale) for size, scale in zip(site.shape(x), scales, strict=True))
    return resized(site, x, sizes, scales, "asymmetric", "floor")


def floats(site: Site, n: int) -> tuple[float, ...] | None:
    array = site.array(n)
    return None if array is None or array.size == 0 else tuple(float(v) for v in array.reshape(-1))


@rule("Resize")
def resize(site: Site) -> Results:
    x = site.input(0)
    shape, first = site.shape(x), 1 if site.opset < 11 else 2
    coordinates = site.attribute("coordinate_transformation_mode", "asymmetric" if site.opset < 11 else "half_pixel")
    nearest = site.attribute("nearest_mode", "floor" if site.opset < 11 else "round_prefer_floor")
    axes = site.axes(site.attribute("axes", range(len(shape))), len(shape))
    scales, wanted = floats(site, first), site.array(first + 1)
    policy = site.attribute("keep_aspect_ratio_policy", "stretch")
    for given in (scales, wanted):
        if given is not None and len(given) and (len(given) != len(axes) or min(given) <= 0):
            raise GraphError(f"{list(given)} are not scales or sizes of {len(axes)} axes")
    every_scale, sizes = [1.0] * len(shape), list(shape)
    if scales is not None:
        for axis, scale in zip(axes, scales, strict=True):
            every_scale[axis], sizes[axis] = scale, _scaled(shape[axis], scale)
        return resized(site, x, tuple(sizes), tuple(every_scale), coordinates, nearest)
    if wanted is None or wanted.size == 0:
        raise GraphError("it has neither scales nor sizes")
    targets = [whole(size) for size in wanted.reshape(-1)]
    if policy == "stretch":
        for axis, size in zip(axes, targets, strict=True):
            sizes[axis] = size
        return resized(site, x, tuple(sizes), None, coordinates, nearest)
    ratios = [size / shape[axis] for axis, size in zip(axes, targets, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    for axis in axes:
        every_scale[axis], sizes[axis] = scale, math.floor(shape[axis] * scale + 0.5)
    return resized(site, x, tuple(sizes), tuple(every_scale), coordinates, nearest)


def _scaled(size: int, scale: float) -> int:
    """Return the largest integer of at most size * scale, which is exact for a scale of few bits."""
    ratio = Fraction(scale)
    return size * ratio.numerator // ratio.denominator if ratio.denominator < EXACT else math.floor(size * scale)


def resized(
    site: Site, x: str, sizes: tuple[int, ...], scales: tuple[float, ...] | None, coordinates: str, nearest: str
) -> str:
    mode = site.attribute("mode", "nearest")
    crops = coordinates == "tf_crop_and_resize"
    if sizes == site.shape(x) and not crops:  # whatever the scales are, as ONNX Runtime has it
        site.ignore("antialias", "exclude_outside", "extrapolation_value", "cubic_coeff_a")
        return x
    if crops or (mode != "nearest" and (site.attribute("antialias", 0) or site.attribute("exclude_outside", 0))):
        return by_tables(site, x, sizes, scales, coordinates)
    site.ignore("antialias", "exclude_outside", "extrapolation_value")
    how = {
        "mode": mode,
        "coordinates": coordinates,
        "nearest": nearest,
        "cubic": site.attribute("cubic_coeff_a", -0.75),
    }
    return site.emit("resize", x, sizes=sizes, scales=scales, **how)


# Weights that depend on the position: computed here for each element of the result.

NEAREST: Mapping[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda place: np.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: np.floor(place + 0.5),
}


def by_tables(site: Site, x: str, sizes: tuple[int, ...], scales: tuple[float, ...] | None, coordinates: str) -> str:
    site.ignore("mode", "nearest_mode", "antialias", "exclude_outside", "cubic_coeff_a")
    own = site.shape(x)
    factors = scales or tuple(m / n for n, m in zip(own, sizes, strict=True))
    rest = site.attribute("extrapolation_value", 0.0)
    for axis, (n, m, factor) in enumerate(zip(own, sizes, factors, strict=True)):
        places = places_of(site, axis, n, m, factor, coordinates)
        if n == m and (places == np.arange(n)).all():
            continue
        ids, weights = neighbours(site, places, n, factor)
        dtype = site.dtype(x)
        x = site.emit("resample", x, site.constant(ids, "int64"), site.constant(weights, dtype), axis=axis)
        outside = (places < 0) | (places > n - 1)
        if coordinates == "tf_crop_and_resize" and outside.any():
            shape = [m if d == axis else 1 for d in range(len(own))]
            x = site.emit("where", site.constant(outside.reshape(shape)), site.constant(rest, dtype), x)
    return x


def places_of(site: Site, axis: int, n: int, m: int, factor: float, coordinates: str) -> Array:
    """Return the source positions of the m elements of the result among the n of the operand."""
    if coordinates == "tf_crop_and_resize":
        start, end = crop_of(site, axis)
        inside = (end - start) * (n - 1)
        steps = np.arange(m) / (m - 1) if m > 1 else np.full(1, 0.5)
        return steps * inside + start * (n - 1)
    if coordinates not in COORDINATES:
        raise GraphError(f"the coordinates {coordinates} are not supported")
    slope, first = COORDINATES[coordinates](n, m, 1 / Fraction(factor))
    return np.arange(m) * float(slope) + float(first)


def crop_of(site: Site, axis: int) -> tuple[float, float]:
    """Start and end of the part of an axis that is read, of its size."""
    axes = site.axes(site.attribute("axes", range(site.rank(site.input(0)))), site.rank(site.input(0)))
    ends = floats(site, 1)
    if ends is None or len(ends) != 2 * len(axes):
        raise GraphError(f"{list(ends or ())} are not the ends of the part that is read of {len(axes)} axes")
    return (ends[axes.index(axis)], ends[len(axes) + axes.index(axis)]) if axis in axes else (0.0, 1.0)


def neighbours(site: Site, places: Array, n: int, factor: float) -> tuple[Array, Array]:
    """For each place the elements that it is the sum of and their weights. With `antialias` the weights reach as far as
    the places lie apart."""
    mode = site.attribute("mode", "nearest")
    antialias, excludes = bool(site.attribute("antialias", 0)), bool(site.attribute("exclude_outside", 0))
    by_nearest = NEAREST[site.attribute("nearest_mode", "round_prefer_floor")]
    cubic = site.attribute("cubic_coeff_a", -0.75)
    if mode == "nearest":
        return np.clip(by_nearest(places), 0, n - 1)[:, None], np.ones((len(places), 1))
    narrow = min(factor, 1.0) if antialias else 1.0
    reach = (2.0 if mode == "cubic" else 1.0) / narrow
    ids = np.floor(places - reach)[:, None] + 1 + np.arange(math.ceil(2 * reach))
    distance = np.abs(ids - places[:, None]) * narrow
    weights = keys(distance, cubic) if mode == "cubic" else np.maximum(1 - distance, 0)
    if excludes:
        weights = np.where((ids < 0) | (ids > n - 1), 0.0, weights)
    return np.clip(ids, 0, n - 1), weights / weights.sum(1, keepdims=True)


def keys(d: Array, a: float) -> Array:
    """The cubic weight of an element at the distance d."""
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, (((d - 5) * d + 8) * d - 4) * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

"""Resizing of axes."""

from __future__ import annotations

import math

from autosched.errors import GraphError
from autosched.graph.onnx.site import Results, Site, refuse, rule


@rule("Upsample")
def upsample(site: Site) -> Results:
    """What Resize was before opset 10: places are multiples, the nearest is the one before."""
    x = site.input(0)
    scales = site.attribute("scales") if site.opset < 9 else floats(site, 1)
    if scales is None or len(scales) != site.rank(x) or min(scales) <= 0:
        raise GraphError(f"{list(scales or ())} are not scales of {site.rank(x)} axes")
    sizes = tuple(math.floor(size * scale) for size, scale in zip(site.shape(x), scales, strict=True))
    return resized(site, x, sizes, scales, "asymmetric", "floor")


def floats(site: Site, n: int) -> tuple[float, ...] | None:
    array = site.array(n)
    return None if array is None or array.size == 0 else tuple(float(v) for v in array.reshape(-1))


@rule("Resize")
def resize(site: Site) -> Results:
    x = site.input(0)
    site.ignore("extrapolation_value")  # of the crop, which is refused
    shape, first = site.shape(x), 1 if site.opset < 11 else 2
    coordinates = site.attribute("coordinate_transformation_mode", "asymmetric" if site.opset < 11 else "half_pixel")
    nearest = site.attribute("nearest_mode", "floor" if site.opset < 11 else "round_prefer_floor")
    refuse(coordinates == "tf_crop_and_resize", coordinates)
    refuse(bool(site.attribute("antialias", 0)), "antialias")
    refuse(bool(site.attribute("exclude_outside", 0)), "exclude_outside")
    axes = site.axes(site.attribute("axes", range(len(shape))), len(shape))
    scales, wanted = floats(site, first), site.array(first + 1)
    policy = site.attribute("keep_aspect_ratio_policy", "stretch")
    for given in (scales, wanted):
        if given is not None and len(given) and (len(given) != len(axes) or min(given) <= 0):
            raise GraphError(f"{list(given)} are not scales or sizes of {len(axes)} axes")
    every_scale, sizes = [1.0] * len(shape), list(shape)
    if scales is not None:
        for axis, scale in zip(axes, scales, strict=True):
            every_scale[axis], sizes[axis] = scale, math.floor(shape[axis] * scale)
        return resized(site, x, tuple(sizes), tuple(every_scale), coordinates, nearest)
    if wanted is None or wanted.size == 0:
        raise GraphError("it has neither scales nor sizes")
    targets = [int(size) for size in wanted.reshape(-1)]
    if policy == "stretch":
        for axis, size in zip(axes, targets, strict=True):
            sizes[axis] = size
        return resized(site, x, tuple(sizes), None, coordinates, nearest)
    ratios = [size / shape[axis] for axis, size in zip(axes, targets, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    for axis in axes:
        every_scale[axis], sizes[axis] = scale, math.floor(shape[axis] * scale + 0.5)
    return resized(site, x, tuple(sizes), tuple(every_scale), coordinates, nearest)


def resized(
    site: Site, x: str, sizes: tuple[int, ...], scales: tuple[float, ...] | None, coordinates: str, nearest: str
) -> str:
    mode = site.attribute("mode", "nearest")
    how = {
        "mode": mode,
        "coordinates": coordinates,
        "nearest": nearest,
        "cubic": site.attribute("cubic_coeff_a", -0.75),
    }
    return site.emit("resize", x, sizes=sizes, scales=scales, **how)

"""Rules of pooling, of windows and of regions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Attribute, Node
from autosched.graph.onnx.rules.windows import explicit_pads, window_of
from autosched.graph.onnx.site import Results, Site, rule
from autosched.graph.operators.gathers import PLAIN


@rule("MaxPool")
def max_pool(site: Site) -> Results:
    x = site.input(0)
    window = window_of(site, x, site.attribute("kernel_shape"))
    by_columns = bool(site.attribute("storage_order", 0))
    attributes = {**vars(window), "ceil_mode": bool(site.attribute("ceil_mode", 0))}
    if not site.is_output_used(1):
        return site.emit("max_pool", x, **attributes)
    values, places = site.emit_all(2, "max_pool_indices", x, **attributes)
    # Ours count within a plane, ONNX's within the whole array.
    n, c, *spatial = site.shape(x)
    places = in_order_of_columns(site, places, spatial) if by_columns else places
    planes = (np.arange(n * c) * int(np.prod(spatial))).reshape((n, c) + (1,) * len(spatial))
    return values, site.emit("add", places, site.constant(planes, "int64"))


def in_order_of_columns(site: Site, places: str, sizes: Sequence[int]) -> str:
    """Return places in flat images of these sizes as they are counted if the first dimension is contiguous."""
    total = ""
    for d, size in enumerate(sizes):
        numbers = [int(np.prod(sizes[d + 1 :])), size, int(np.prod(sizes[:d]))]
        step, count, stride = (site.constant(number, "int64") for number in numbers)
        index = site.emit("mod", site.emit("floor_div", places, step), count)
        term = site.emit("mul", index, stride)
        total = site.emit("add", total, term) if total else term
    return total


@rule("MaxUnpool")
def max_unpool(site: Site) -> Results:
    """Places count within the whole array of the images that their size is computed from; a larger result has zeros
    behind these. Places of a pool of the model are in its windows."""
    x, places, expected = site.input(0), site.input(1), site.array(2)
    kernel = site.attribute("kernel_shape")
    spatial, rank = site.shape(x)[2:], len(kernel)
    strides, pads = site.attribute("strides", (1,) * rank), explicit_pads(site, rank)
    if not len(spatial) == len(strides) == rank:
        raise GraphError(f"its kernel {list(kernel)} and strides {list(strides)} do not fit x{list(site.shape(x))}")
    rows = zip(spatial, strides, pads, kernel, strict=True)
    sizes = tuple((n - 1) * stride - sum(pair) + k for n, stride, pair, k in rows)
    pool = pool_of(site, places)
    if pool is not None and site.shape(pool.inputs[0] or "")[2:] == sizes:
        windows = {key: value for key, value in pool.attributes.items() if key != "ceil_mode"}
        y = site.emit("max_unpool", x, pool.outputs[1], sizes=sizes, **windows)
    else:
        plane = site.constant(int(np.prod(sizes)), "int64")
        y = site.emit("max_unpool", x, site.emit("mod", places, plane), sizes=sizes)
    if expected is None:
        return y
    whole = tuple(int(size) for size in expected.reshape(-1))
    own = site.shape(y)
    if len(whole) != len(own) or any(m < n for m, n in zip(whole, own, strict=True)) or whole[:2] != own[:2]:
        raise GraphError(f"its output_shape {list(whole)} is smaller than {list(own)}, which its places count in")
    if whole == own:
        return y
    more = tuple((0, m - n) for m, n in zip(whole, own, strict=True))
    return site.emit("pad", y, pads=more, mode="constant", value=0.0)


def pool_of(site: Site, places: str) -> Node | None:
    """Return the pool that computed `places`, to which the rule of MaxPool adds the place of the plane."""
    producers = {name: node for node in site.builder.nodes for name in node.outputs}
    total = producers.get(places)
    if total is None or total.operator != "add":
        return None
    node = producers.get(total.inputs[0] or "")
    return node if node is not None and node.operator == "max_pool_indices" else None


@rule("RoiAlign")
def roi_align(site: Site) -> Results:
    """Before opset 16 the middle of the first element is at 0."""
    default = "half_pixel" if site.opset >= 16 else "output_half_pixel"
    coordinates = site.attribute("coordinate_transformation_mode", default)
    mode = site.attribute("mode", "avg").lower()
    return site.emit(
        "roi_align",
        *(site.input(0), site.input(2), site.input(1)),
        sizes=(site.attribute("output_height", 1), site.attribute("output_width", 1)),
        samples=site.attribute("sampling_ratio", 0),
        scale=site.attribute("spatial_scale", 1.0),
        half_pixel=coordinates == "half_pixel",
        mode=mode,
        indexing=PLAIN,
    )


@rule("MaxRoiPool")
def max_roi_pool(site: Site) -> Results:
    """The first of the numbers of a region is its image."""
    x, rois = site.input(0), site.input(1)
    count = site.shape(rois)[0]
    batch = site.reshape(site.cast(site.part(rois, 1, 0, 1), "int64"), (count,))
    sizes, scale = tuple(site.attribute("pooled_shape")), site.attribute("spatial_scale", 1.0)
    corners = site.part(rois, 1, 1, 5)
    return site.emit("roi_max_pool", x, batch, corners, sizes=sizes, scale=scale, indexing=PLAIN)


@rule("AveragePool")
def average_pool(site: Site) -> Results:
    x = site.input(0)
    window = window_of(site, x, site.attribute("kernel_shape"))
    flags = {name: bool(site.attribute(name, 0)) for name in ("ceil_mode", "count_include_pad")}
    return site.emit("avg_pool", x, **vars(window), **flags)


@rule("LpPool")
def lp_pool(site: Site) -> Results:
    x = site.input(0)
    window = window_of(site, x, site.attribute("kernel_shape"))
    return site.emit(
        "lp_pool", x, **vars(window), ceil_mode=bool(site.attribute("ceil_mode", 0)), p=site.attribute("p", 2)
    )


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(site: Site) -> Results:
    x = site.input(0)
    over: dict[str, Attribute] = {"axes": tuple(range(2, site.rank(x))), "keepdims": True}
    if site.operator != "GlobalLpPool":
        return site.emit("reduce_mean" if site.operator == "GlobalAveragePool" else "reduce_max", x, **over)
    p = site.attribute("p", 2)
    if p in (1, 2):
        return site.emit(f"reduce_l{p}", x, **over)
    powers = site.emit("pow", site.emit("abs", x), site.constant(p, site.dtype(x)))
    return site.emit("pow", site.emit("reduce_sum", powers, **over), site.constant(1.0 / p, site.dtype(x)))

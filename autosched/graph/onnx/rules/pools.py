"""Rules of pooling."""

from __future__ import annotations

import numpy as np

from autosched.graph.graph import Attribute
from autosched.graph.onnx.rules.windows import window_of
from autosched.graph.onnx.site import Results, Site, refuse, rule


@rule("MaxPool")
def max_pool(site: Site) -> Results:
    x = site.input(0)
    window = window_of(site, x, site.attribute("kernel_shape"))
    refuse(site.attribute("storage_order", 0) != 0 and site.is_output_used(1), "indices in the order of columns")
    attributes = {**vars(window), "ceil_mode": bool(site.attribute("ceil_mode", 0))}
    if not site.is_output_used(1):
        return site.emit("max_pool", x, **attributes)
    values, places = site.emit_all(2, "max_pool_indices", x, **attributes)
    # Ours count within a plane, ONNX's within the whole array.
    n, c, *spatial = site.shape(x)
    planes = (np.arange(n * c) * int(np.prod(spatial))).reshape((n, c) + (1,) * len(spatial))
    return values, site.emit("add", places, site.constant(planes, "int64"))


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

"""Caches of keys and values: what is new is written at places that are data."""

from __future__ import annotations

import numpy as np

from autosched.errors import GraphError
from autosched.graph.onnx.site import Results, Site, refuse, rule


@rule("TensorScatter")
def tensor_scatter(site: Site) -> Results:
    past, new, first, mode = site.input(0), site.input(1), site.optional(2), site.attribute("mode", "linear")
    refuse(mode not in ("linear", "circular"), f"the mode {mode}")
    axis = site.axis(site.attribute("axis", -2), site.rank(past))
    if axis == 0:
        raise GraphError("its axis is the one of batches")
    if first is None:
        first = site.constant(np.zeros(site.shape(past)[0]), "int64")
    return written(site, past, new, axis, first, mode == "circular")


def written(site: Site, past: str, new: str, axis: int, first: str, circular: bool = False) -> str:
    """`past` with `new` along `axis`, from the place on that `first` [batch] says; in a circle behind the end comes the
    start."""
    shape, length = site.shape(past), site.shape(new)[axis]
    size = shape[axis]
    places = site.constant(np.arange(size)[None], "int64")
    shifted = site.emit("sub", places, site.reshape(site.cast(first, "int64"), (shape[0], 1)))
    if circular:
        shifted = site.emit("mod", shifted, site.constant(size, "int64"), fmod=False)
    inside = site.emit("clip", shifted, low=0, high=length - 1)  # the place among the new ones, where it is one
    row = tuple(n if d in (0, axis) else 1 for d, n in enumerate(shape))
    is_new = site.reshape(site.emit("equal", shifted, inside), row)
    each = site.emit("expand", site.reshape(inside, row), shape=shape)
    return site.emit("where", is_new, site.emit("gather_elements", new, each, axis=axis), past)

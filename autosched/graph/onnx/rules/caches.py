"""Rules of key and value caches: new rows are written at indices that are data."""

from __future__ import annotations

import numpy as np

from autosched.errors import GraphError
from autosched.graph.onnx.site import Results, Site, refuse, rule
from autosched.graph.operators.gathers import UNCHECKED


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
    start. Where there is no such place nothing is written."""
    batch, size, length = site.shape(past)[0], site.shape(past)[axis], site.shape(new)[axis]
    steps = site.constant(np.arange(length)[None], "int64")
    places = site.emit("add", site.reshape(site.cast(first, "int64"), (batch, 1)), steps)
    beyond = site.constant(size, "int64")
    if circular:
        places = site.emit("mod", places, beyond, fmod=False)
    else:  # a negative place would count from the end
        places = site.emit("where", site.emit("less", places, site.constant(0, "int64")), beyond, places)
    at = site.reshape(places, (length,) if batch == 1 else (batch, length))
    return site.emit("write_rows", past, at, new, axis=axis, indexing=UNCHECKED)

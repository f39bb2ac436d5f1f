"""Rules of convolutions."""

from __future__ import annotations

import math

from autosched.errors import GraphError
from autosched.graph.onnx.rules.windows import halves, window_of
from autosched.graph.onnx.site import Results, Site, rule


def kernel_of(site: Site, w: str) -> tuple[int, ...]:
    """Return the spatial sizes of the weights, which the attribute `kernel_shape` may repeat."""
    own = site.shape(w)[2:]
    said = tuple(site.attribute("kernel_shape", own))
    if said != own:
        raise GraphError(f"its kernel_shape {list(said)} is not that of its weights {list(site.shape(w))}")
    return own


@rule("Conv")
def conv(site: Site) -> Results:
    x, w = site.input(0), site.input(1)
    window = window_of(site, x, kernel_of(site, w))
    groups = site.attribute("group", 1)
    return site.emit("conv", x, w, site.optional(2), groups=groups, **window.strides_pads_dilations)


@rule("DeformConv")
def deform_conv(site: Site) -> Results:
    """A convolution with a kernel of size 1 of what the moved taps read, for each tap a channel."""
    x, w, bias = site.input(0), site.input(1), site.optional(3)
    window = window_of(site, x, kernel_of(site, w))
    columns = site.emit(
        "deform_columns",
        *(x, site.input(2), site.optional(4)),
        kernel=window.kernel,
        groups=site.attribute("offset_group", 1),
        **window.strides_pads_dilations,
    )
    n = len(window.kernel)
    weights = site.reshape(w, (site.shape(w)[0], math.prod(site.shape(w)[1:]), *(1,) * n))
    return site.emit("conv", columns, weights, bias, groups=site.attribute("group", 1))


@rule("ConvTranspose")
def conv_transpose(site: Site) -> Results:
    """A given output shape determines the pads; negative ones become padding of the result."""
    x, w = site.input(0), site.input(1)
    window = window_of(site, x, kernel_of(site, w))
    n, spatial, rule_ = len(window.kernel), site.shape(x)[2:], site.attribute("auto_pad", "NOTSET")
    more = list(site.attribute("output_padding", (0,) * n))
    wanted, pads = site.attribute("output_shape"), window.pads
    if wanted is None and rule_.startswith("SAME"):
        wanted = tuple(size * stride for size, stride in zip(spatial, window.strides, strict=True))
    if len(more) != n or (wanted is not None and len(wanted) < n):
        raise GraphError(f"its output_padding {more} or output_shape {wanted} does not fit {n} axes")
    if wanted is not None:
        rows = zip(spatial, window.strides, window.kernel, window.dilations, strict=True)
        full = [(size - 1) * stride + (k - 1) * d + 1 for size, stride, k, d in rows]
        totals = [size + p - out for size, p, out in zip(full, more, wanted[-n:], strict=True)]
        more = [p + max(-total, 0) for p, total in zip(more, totals, strict=True)]
        pads = halves([max(total, 0) for total in totals], rule_)
    rest = {**window.strides_pads_dilations, "pads": pads, "output_padding": tuple(more)}
    return site.emit("conv_transpose", x, w, site.optional(2), groups=site.attribute("group", 1), **rest)

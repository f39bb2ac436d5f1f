"""Windows of convolutions and pools, from the attributes of a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosched.errors import GraphError
from autosched.graph.graph import Attribute
from autosched.graph.onnx.site import Site

Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Window:
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Pads

    @property
    def strides_pads_dilations(self) -> dict[str, Attribute]:
        """Return the window of a convolution, whose kernel has the sizes of the weights."""
        return {"strides": self.strides, "pads": self.pads, "dilations": self.dilations}


def window_of(site: Site, x: str, kernel: Sequence[int]) -> Window:
    """The window of a node over the spatial axes of `x`. Pads that ONNX leaves to a rule are those of the rule."""
    spatial = site.shape(x)[2:]
    n = len(spatial)
    strides, dilations = (tuple(site.attribute(name, (1,) * n)) for name in ("strides", "dilations"))
    if n == 0 or {n} != {len(kernel), len(strides), len(dilations)} or min(*kernel, *strides, *dilations) < 1:
        given = f"kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}"
        raise GraphError(f"{given} do not fit the shape {list(site.shape(x))}")
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = explicit_pads(site, n)
    rule = site.attribute("auto_pad", "NOTSET")
    if rule.startswith("SAME"):
        outs = [-(-size // stride) for size, stride in zip(spatial, strides, strict=True)]
        rows = zip(outs, strides, extents, spatial, strict=True)
        pads = halves([max((out - 1) * stride + extent - size, 0) for out, stride, extent, size in rows], rule)
    return Window(tuple(kernel), strides, dilations, pads)


def explicit_pads(site: Site, n: int) -> Pads:
    pads = site.attribute("pads", (0,) * 2 * n)
    if site.attribute("auto_pad", "NOTSET") == "VALID":
        return ((0, 0),) * n
    if len(pads) != 2 * n:
        raise GraphError(f"its pads {list(pads)} are not two for each of {n} axes")
    return tuple(zip(pads[:n], pads[n:], strict=True))


def halves(totals: Sequence[int], rule: str) -> Pads:
    """Split a total pad in two; of an odd one, SAME_UPPER has the larger half at the end, others at the beginning."""
    pairs = [(total // 2, total - total // 2) for total in totals]
    return tuple(pairs if rule == "SAME_UPPER" else [(high, low) for low, high in pairs])

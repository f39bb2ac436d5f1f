"""Rules of sampling at positions that are data: regions of images, deformable convolutions, max unpooling."""

from __future__ import annotations

import math
from typing import Any

from autosched.graph.graph import Value
from autosched.graph.operators.gathers import PLAIN
from autosched.graph.torch.builder import TraceBuilder
from autosched.graph.torch.rules import rule


def _regions(b: TraceBuilder, rois: Value) -> tuple[Value, Value]:
    """Return the images of regions, which are the first of their numbers, and their corners."""
    batch = b.reshape(b.slice(rois, 1, 0, 1), rois.shape[:1])
    return b.cast(batch, "int64"), b.slice(rois, 1, 1, 5)


@rule("torchvision.roi_align.default")
def roi_align(
    b: TraceBuilder, x: Value, rois: Value, spatial_scale: float, height: int, width: int, *numbers: Any
) -> Value:
    sampling_ratio, aligned = numbers
    how = {"samples": max(sampling_ratio, 0), "scale": float(spatial_scale), "half_pixel": bool(aligned)}
    return b.emit("roi_align", x, *_regions(b, rois), sizes=(height, width), indexing=PLAIN, **how)


@rule("torchvision.roi_pool.default")
def roi_pool(
    b: TraceBuilder, x: Value, rois: Value, spatial_scale: float, height: int, width: int
) -> tuple[Value, None]:
    corners = _regions(b, rois)
    made = b.emit("roi_max_pool", x, *corners, sizes=(height, width), scale=float(spatial_scale), indexing=PLAIN)
    return made, None


@rule("torchvision.deform_conv2d.default")
def deform_conv(
    b: TraceBuilder, x: Value, weight: Value, offset: Value, mask: Value, bias: Value, *numbers: Any
) -> Value:
    """`numbers`: strides, pads, dilations, groups, those of offsets, and whether the mask is used."""
    (sy, sx, py, px, dy, dx), (groups, offset_groups, use_mask) = numbers[:6], numbers[6:]
    columns = b.emit(
        "deform_columns", x, offset, mask if use_mask else None, kernel=weight.shape[2:], strides=(sy, sx),
        pads=((py, py), (px, px)), dilations=(dy, dx), groups=offset_groups,
    )  # fmt: skip
    taps = b.reshape(weight, (weight.shape[0], math.prod(weight.shape[1:]), 1, 1))
    return b.emit("conv", columns, taps, bias, groups=groups)


@rule("aten.max_unpool2d.default", "aten.max_unpool3d.default")
def max_unpool(b: TraceBuilder, x: Value, indices: Value, output_size: Any, *_: Any) -> Value:
    """Places of a pool of the module are in its windows."""
    sizes = b.result.shape[-len(output_size) :]
    pool = next((node for node in b.nodes if indices.name in node.outputs), None)
    windows = {}
    if pool is not None and pool.operator == "max_pool_indices":
        image = b.values[pool.inputs[0] or ""]
        if image.shape[2:] == sizes:
            windows = {key: value for key, value in pool.attributes.items() if key != "ceil_mode"}
    single = len(x.shape) == len(sizes) + 1  # without a batch
    images, places = (b.reshape(v, (1, *v.shape)) if single else v for v in (x, indices))
    return b.reshape(b.emit("max_unpool", images, places, sizes=sizes, **windows), b.result.shape)

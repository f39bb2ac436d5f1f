"""Winograd convolution F(m x m, 3 x 3) as an operator of its own; see `winograd` for the stages it consists of."""

from __future__ import annotations

from autosched import te
from autosched.errors import UsageError
from autosched.te.operators.conv import conv_channels_last
from autosched.te.rewrites.winograd import TILES, match_stage, transformed
from autosched.te.tensor import ComputeOp, Tensor


def winograd(
    N: int = 1, H: int = 56, W: int = 56, CI: int = 64, CO: int = 64, pad: int = 1, m: int = 4,
    dtype: str = "float32",
) -> Tensor:  # fmt: skip
    """3x3 convolution of stride 1: X[N,H,W,CI] * W[3,3,CI,CO] -> [N,HO,WO,CO], by tiles of m x m outputs (2 or 4)."""
    if m not in TILES:
        raise UsageError(f"winograd: the output tile m must be one of {', '.join(map(str, TILES))} but is {m}")
    x = te.placeholder((N, H, W, CI), dtype, name="X")
    w = te.placeholder((3, 3, CI, CO), dtype, name="W")
    direct = conv_channels_last("winograd", x, w, 1, pad)
    assert isinstance(direct.op, ComputeOp)
    convolution = match_stage(direct.op)
    assert convolution is not None
    tensors = {t.name: t for t in direct.op.inputs}
    data, weights = tensors[convolution.data.buffer], tensors[convolution.weights.buffer]
    return transformed(convolution, m, data, weights, "conv", direct.op.axes)

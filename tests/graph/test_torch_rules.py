"""ATen operators one by one: what their rules make, computed by the reference, against torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch._functorch.aot_autograd import aot_module_simplified  # noqa: E402

from autosched.errors import GraphError  # noqa: E402
from autosched.graph.torch.load import decompositions, load_fx  # noqa: E402
from autosched.graph.torch.rules import rules  # noqa: E402
from tests.graph.torch_models import assert_close, by_reference, loaded  # noqa: E402


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def x(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    """Numbers around 0; integers from -9 to 9."""
    rng = np.random.default_rng([seed, *shape])
    if dtype is None or dtype.is_floating_point:
        return torch.from_numpy(rng.normal(size=shape).astype("float32")).to(dtype or torch.float32)
    return torch.from_numpy(rng.integers(-9, 10, shape)).to(dtype)


def ids(size: int, *shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng([size, *shape]).integers(0, size, shape))


def positive(*shape: int) -> Any:
    return x(*shape).abs() + 0.1


INT = torch.int64
Cases = dict[str, tuple[Callable[..., Any], Sequence[Any]]]
ARITHMETIC: Cases = {
    "add alpha": (lambda a, b: torch.add(a, b, alpha=2), [x(3, 4), x(4)]),
    "add int and float": (lambda a, b: a + b, [x(3, dtype=INT), x(3)]),
    "add number to integers": (lambda a: a + 1.5, [x(3, dtype=INT)]),
    "add scalars of another type": (lambda a: a + torch.tensor(2.5, dtype=torch.float64), [x(3)]),
    "rsub": (lambda a: 2 - a, [x(5)]),
    "mul bool": (lambda a: ((a > 0) * a, (a > 0) * (a < 1)), [x(4, 3)]),
    "div of integers": (lambda a, b: a / b, [x(6, dtype=INT), ids(4, 6) + 1]),
    "floor_divide": (lambda a, b: a // b, [x(9, dtype=INT), torch.tensor([2, -2, 3, -3, 4, -4, 5, 5, -5])]),
    "floor_divide of floats": (lambda a: a // 0.5, [x(9)]),
    "remainder": (lambda a, b: a % b, [x(9, dtype=INT), torch.tensor([2, -2, 3, -3, 4, -4, 5, 5, -5])]),
    "remainder of floats": (lambda a: a % 0.7, [x(9)]),
    "quotients of floats": (
        lambda a, q: (a % q, a // q, torch.div(a, q, rounding_mode="floor"), torch.div(a, q, rounding_mode="trunc")),
        [torch.tensor([1.0, 5.0, 1e9, 6.0, -1e-9]), torch.tensor([0.1, 0.1, 3.0, torch.inf, 3.0])],
    ),
    "quotients of the least integers": (
        lambda a: (a // 3, a % 3, torch.div(a, 3, rounding_mode="floor"), torch.div(a, -7, rounding_mode="trunc")),
        [torch.tensor([-128, -127, 127], dtype=torch.int8)],
    ),
    "sign": (torch.sign, [torch.tensor([torch.nan, -2.0, -0.0, torch.inf])]),
    "fmod": (lambda a: torch.fmod(a, 0.75), [x(9)]),
    "pow": (lambda a, b: (a**b, a**2, 2**b), [positive(5), x(5)]),
    "present": (lambda a, b: (torch.fmax(a.log(), b), torch.fmin(b, a.log()), torch.xlogy(b, b)), [x(7), x(7, seed=1)]),
    "div to zero": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), [x(9), x(9, seed=1)]),
    "compare": (lambda a, b: (a < b, a >= b, a == 1, a != b), [x(3, 3, dtype=INT), x(3)]),
    "logic": (lambda a, b: (torch.logical_and(a, b), torch.logical_not(a), (a > 0) | (b > 0)), [x(5), x(5, seed=1)]),
    "where": (lambda a, b: torch.where(a > 0, a, b), [x(3, 4), x(4, dtype=INT)]),
    "where numbers": (lambda a: torch.where(a > 0, 1.0, -1.0), [x(3, 4)]),
    "masked_fill": (lambda a, m: a.masked_fill(m > 0, -1e9), [x(2, 3, 4), x(3, 4)]),
    "casts": (lambda a: (a.to(torch.int32), a.bool(), a.double(), (a > 0).float()), [x(7) * 5]),
    "addcmul, lerp": (
        lambda a, b, c: (torch.addcmul(a, b, c, value=0.5), torch.lerp(a, b, 0.3)),
        [x(4), x(4, seed=1), x(4, seed=2)],
    ),
}
FUNCTIONS: Cases = {
    "of any": (
        lambda a: (a.neg(), a.abs(), a.exp(), a.sin(), a.cos(), a.tanh(), a.erf(), a.sigmoid(), a.sign()),
        [x(17)],
    ),
    "of positive": (
        lambda a: (a.log(), a.sqrt(), a.rsqrt(), a.reciprocal(), a.log2(), a.log10(), a.exp2(), a.log1p(), a.expm1()),
        [positive(9)],
    ),
    "rounding": (lambda a: (a.floor(), a.ceil(), a.round(), a.trunc(), a.frac()), [x(9) * 3]),
    "of integers": (lambda a: (a.exp(), a.sigmoid(), a.abs()), [x(5, dtype=INT)]),
    "activations": (
        lambda a: (F.relu(a), F.silu(a), F.gelu(a), F.gelu(a, approximate="tanh"), F.mish(a), F.relu6(a)),
        [x(19) * 3],
    ),
    "hard": (
        lambda a: (F.hardsigmoid(a), F.hardswish(a), F.hardtanh(a), F.leaky_relu(a, 0.2), F.threshold(a, 0.1, -3.0)),
        [x(19) * 4],
    ),
    "exponential": (
        lambda a: (F.elu(a), F.elu(a, 0.5), F.selu(a), F.celu(a, 2.0), F.softplus(a), F.softplus(a, beta=2)),
        [x(19)],
    ),
    "prelu": (lambda a, w: F.prelu(a, w), [x(2, 3, 4), x(3)]),
    "clamp": (
        lambda a, b: (a.clamp(-1, 0.5), a.clamp(min=0), a.clamp_max(0.2), torch.clamp(a, b, b + 1)),
        [x(9), x(9, seed=1)],
    ),
    "glu": (lambda a: F.glu(a, 1), [x(2, 6)]),
    "softmax": (lambda a: (F.softmax(a, 1), F.log_softmax(a, -1)), [x(2, 5, 3)]),
}
SHAPES: Cases = {
    "views": (lambda a: (a.view(6, 4), a.flatten(1), a.unsqueeze(1), a[:, :1].squeeze(1), a.reshape(-1)), [x(2, 3, 4)]),
    "axes": (lambda a: (a.permute(2, 0, 1), a.transpose(0, -1), a[0].t(), a.mT), [x(2, 3, 4)]),
    "expand": (lambda a: (a.expand(2, -1, 4), a.repeat(2, 1, 3)), [x(1, 3, 1)]),
    "slices": (lambda a: (a[1:, ::2], a[..., -1], a[:, 1:-1], a.narrow(1, -3, 2)), [x(3, 5)]),
    "joins": (
        lambda a, b: (torch.cat([a, b], -1), torch.stack([a, a], 1), torch.cat([a, b.int()], 1)),
        [x(2, 3), x(2, 1)],
    ),
    "parts": (lambda a: (*a.split(2, 1), *a.chunk(3, 1), *a.unbind(0), *a.split([1, 4], 1)), [x(2, 5)]),
    "order": (lambda a: (a.flip(0, -1), a.roll(1, 1), a.roll((1, -1), (0, 1)), a.roll(2)), [x(3, 4)]),
    "triangles": (lambda a: (a.tril(), a.triu(1), a.tril(-1)), [x(4, 5)]),
    "pads": (lambda a: (F.pad(a, (1, 2)), F.pad(a, (1, 0, 2, 1), value=3.0), F.pad(a, (-1, 2))), [x(1, 2, 4, 5)]),
    "pads by mirrors": (lambda a: (F.pad(a, (1, 2, 2, 1), "reflect"), F.pad(a, (2, 1), "replicate")), [x(2, 4, 5)]),
    "pads in circles": (lambda a: F.pad(a, (1, 2), "circular"), [x(2, 4, 5)]),
    "pixels": (lambda a: (F.pixel_shuffle(a, 2), F.pixel_unshuffle(a, 2)), [x(1, 8, 4, 6)]),
    "filled": (lambda a: (torch.zeros_like(a) + a, torch.ones_like(a) * a, a.new_full((2,), 3.0) + a[0, 0]), [x(2, 3)]),
    "windows": (lambda a: (a.unfold(1, 3, 2), a.unfold(0, 2, 1)), [x(3, 7)]),
    "arange": (lambda a: a + torch.arange(3) * torch.linspace(0, 1, 3), [x(2, 3)]),
}
INDICES: Cases = {
    "embedding": (lambda w, i: F.embedding(i, w), [x(7, 3), ids(7, 2, 4)]),
    "index_select, gather": (
        lambda a, i, j: (a.index_select(1, i), a.gather(0, j)),
        [x(3, 5), ids(5, 4), ids(3, 2, 5)],
    ),
    "index": (lambda a, i: (a[i], a[:, i], a[:, i, i], a[i, 0]), [x(4, 4, 4), ids(4, 3)]),
    "index of several": (lambda a, i, j: a[:, i, j], [x(2, 4, 5, 3), ids(4, 3, 1), ids(5, 2)]),
    "index of dimensions apart": (
        lambda a, i, v: (
            a[i, :, i],
            torch.ops.aten.index_put(a, [i, None, i], v),
            torch.ops.aten.index_put(a, [None, i], v[0, 0], True),
        ),
        [x(3, 4, 3), torch.tensor([2, 0]), x(2, 4)],
    ),
    "index from the end": (lambda a: a[torch.tensor([-1, 0, -2])], [x(4, 2)]),
    "index_put": (lambda a, i, v: a.index_put((i,), v), [x(5, 3), torch.tensor([3, 0]), x(2, 3)]),
    "index_copy": (lambda a, i, v: a.index_copy(1, i, v), [x(2, 5, 3), torch.tensor([3, 0]), x(2, 2, 3)]),
    "index_add": (lambda a, i, v: a.index_add(0, i, v), [x(5, 3), torch.tensor([3, 3]), x(2, 3)]),
    "scatter": (
        lambda a, i, v: (a.scatter(1, i, v), a.scatter(1, i, 2.0)),
        [x(3, 5), torch.tensor([[1, 4], [0, 2], [2, 3]]), x(3, 3)],
    ),
    "scatter_add": (lambda a, i, v: a.scatter_add(1, i, v), [x(3, 5), ids(5, 3, 4), x(3, 4)]),
    "writes to slices with steps": (
        lambda a, b, c: (torch.slice_scatter(a, b, 1, 1, 5, 2), torch.slice_scatter(a, c, 0, 0, 3, 2)),
        [x(3, 5), x(3, 2), x(2, 5)],
    ),
    "scatter_reduce": (
        lambda a, i, v: (a.scatter_reduce(1, i, v, "amax"), a.scatter_reduce(1, i, v, "sum")),
        [x(3, 5), ids(5, 3, 4), x(3, 4)],
    ),
    "scatter_reduce of what arrives alone": (
        lambda a, i, v: tuple(
            a.scatter_reduce(1, i, v, how, include_self=self)
            for how, self in (*((how, False) for how in ("amax", "amin", "sum", "prod", "mean")), ("mean", True))
        ),
        [x(3, 5), ids(5, 3, 4), x(3, 4)],
    ),
    "scatter_reduce of integers": (
        lambda a, i, v: (
            a.scatter_reduce(0, i, v, "amin", include_self=False),
            a.scatter_reduce(0, i, v, "amax", include_self=False),
        ),
        [x(7, dtype=INT), ids(7, 5), x(5, dtype=INT)],
    ),
    "index_put where a mask is": (
        lambda a, m, v: (
            torch.ops.aten.index_put(a, [m > 0], torch.tensor(0.5)),
            torch.ops.aten.index_put(a, [m[:, 0] > 0], v),
            torch.ops.aten.index_put(a, [m > 0], torch.tensor([2.0]), True),
        ),
        [x(3, 5), x(3, 5, seed=1), x(5)],
    ),
    "searchsorted": (
        lambda a, v: (
            torch.searchsorted(a.cumsum(-1), v),
            torch.searchsorted(a.cumsum(-1), v, right=True, out_int32=True),
            torch.bucketize(v, a.cumsum(-1)[0]),
            torch.bucketize(v.round(), torch.arange(4.0), right=True),
        ),
        [positive(3, 5), x(3, 7).abs()],
    ),
    "diagonals": (lambda a: (a.diagonal(), a.diagonal(1, 0, 2), a.diagonal(-2, -1, 1)), [x(3, 4, 5)]),
    "writes to slices": (
        lambda a, b: torch.slice_scatter(a, b, 1, 1, 3).select_scatter(b[:, 0], 1, 0),
        [x(3, 5), x(3, 2)],
    ),
}
REDUCTIONS: Cases = {
    "sums": (
        lambda a: (a.sum(), a.sum(1), a.sum((0, -1), keepdim=True), a.mean(), a.mean(-1), a.prod(1)),
        [x(2, 3, 4)],
    ),
    "sums of integers": (lambda a: (a.sum(), (a > 0).sum(1), a.amax(0)), [x(3, 4, dtype=torch.int32)]),
    "extremes": (lambda a: (a.amax(1), a.amin((0, 2)), a.max(), *a.max(1), *a.min(2, keepdim=True)), [x(2, 3, 4)]),
    "places": (lambda a: (a.argmax(), a.argmax(1), a.argmin(0, keepdim=True)), [x(3, 4)]),
    "truths of bytes": (
        lambda a: (a.any(), a.all(), a.any(1), a.all(0, keepdim=True), (a & 3).any((0, 1)), a[0, 0].any()),
        [x(3, 4, dtype=torch.uint8)],
    ),
    "truths": (lambda a: ((a > 1).any(), (a > 0).all(1), (a > 0).any((0, 1))), [x(3, 4)]),
    "variances": (lambda a: (a.var(), a.var(1, correction=0), a.std((0, 2)), *torch.var_mean(a, 1)), [x(2, 3, 4)]),
    "norms": (
        lambda a: (
            a.norm(),
            a.norm(1, 1),
            a.floor().norm(0, 1),
            (-a.sum().abs()).norm(),
            torch.linalg.vector_norm(a, 3, 0),
            F.normalize(a, dim=1),
        ),
        [x(3, 4)],
    ),
    "logsumexp, cumsum": (lambda a: (a.logsumexp(1), a.cumsum(0), a.cumsum(-1)), [x(3, 4)]),
}
PRODUCTS: Cases = {
    "matmul": (lambda a, b: (a @ b, a[0] @ b[0], a @ b[0], a[0, 0] @ b[0]), [x(2, 3, 4), x(2, 4, 5)]),
    "addmm": (
        lambda c, a, b: (torch.addmm(c, a, b), torch.addmm(c, a, b, beta=0.5, alpha=2)),
        [x(5), x(3, 4), x(4, 5)],
    ),
    "linear": (lambda a, w, c: (F.linear(a, w, c), F.linear(a, w), F.linear(a[0, 0], w)), [x(2, 3, 4), x(5, 4), x(5)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [x(2, 3, 4), x(2, 5, 4)]),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [x(2, 3, 5, 4), x(2, 3, 6, 4), x(2, 3, 6, 4)],
    ),
    "attention, causal": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.3),
        [x(1, 2, 5, 4), x(1, 2, 5, 4)],
    ),
    "attention, causal, more keys": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        [x(1, 2, 3, 4), x(1, 2, 5, 4)],
    ),
    "attention, boolean mask": (lambda q, m: F.scaled_dot_product_attention(q, q, q, m > -1), [x(1, 2, 5, 4), x(5, 5)]),
    "attention, grouped": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        [x(1, 4, 5, 4), x(1, 2, 6, 4)],
    ),
}
NORMALIZATION: Cases = {
    "batch_norm": (
        lambda a, m, v, w: (F.batch_norm(a, m, v, w, w), F.batch_norm(a, m, v)),
        [x(2, 3, 4, 5), x(3), positive(3), x(3)],
    ),
    "layer_norm": (lambda a, w: (F.layer_norm(a, (3, 4), w, w), F.layer_norm(a, (4,))), [x(2, 3, 4), x(3, 4)]),
    "group_norm": (lambda a, w: (F.group_norm(a, 2, w, w), F.group_norm(a, 4)), [x(2, 4, 3, 3), x(4)]),
    "instance_norm": (lambda a, w: (F.instance_norm(a, weight=w, bias=w), F.instance_norm(a)), [x(2, 4, 3, 3), x(4)]),
    "rms_norm": (lambda a, w: (F.rms_norm(a, (4,), w), F.rms_norm(a, (3, 4), eps=1e-3)), [x(2, 3, 4), x(4)]),
    "local_response_norm": (lambda a: F.local_response_norm(a, 3), [x(1, 5, 3, 3)]),
}
WINDOWS: Cases = {
    "conv1d": (lambda a, w, c: F.conv1d(a, w, c, 2, 1), [x(2, 3, 9), x(4, 3, 3), x(4)]),
    "conv2d": (lambda a, w: F.conv2d(a, w, None, (1, 2), (0, 1), (2, 1), 2), [x(1, 4, 7, 8), x(6, 2, 3, 3)]),
    "conv3d": (lambda a, w: F.conv3d(a, w, None, 1, 1), [x(1, 2, 3, 4, 5), x(3, 2, 3, 3, 3)]),
    "conv, sizes that stay": (lambda a, w: F.conv2d(a, w, padding="same"), [x(1, 2, 5, 6), x(3, 2, 4, 3)]),
    "conv of one image": (lambda a, w: F.conv2d(a, w, padding="valid"), [x(2, 5, 6), x(3, 2, 3, 3)]),
    "conv_transpose": (
        lambda a, w, c: (F.conv_transpose2d(a, w, c, 2, 1, 1, 2), F.conv_transpose2d(a, w, None, 1, 0, 0, 2, 2)),
        [x(1, 4, 3, 4), x(4, 2, 3, 3), x(4)],
    ),
    "conv_transpose1d": (lambda a, w: F.conv_transpose1d(a, w, None, 3), [x(1, 2, 4), x(2, 3, 3)]),
    "max_pool": (
        lambda a: (F.max_pool2d(a, 3, 2, 1), F.max_pool2d(a, (2, 1), ceil_mode=True), F.max_pool1d(a[0], 2)),
        [x(1, 2, 7, 5)],
    ),
    "avg_pool": (
        lambda a: (F.avg_pool2d(a, 3, 2, 1), F.avg_pool2d(a, 2, padding=1, count_include_pad=False)),
        [x(1, 2, 7, 5)],
    ),
    "avg_pool1d": (lambda a: F.avg_pool1d(a, 3, 1, 1), [x(2, 2, 7)]),
    "avg_pool, larger": (lambda a: F.avg_pool2d(a, 3, 2, 1, ceil_mode=True), [x(1, 2, 6, 8)]),
    "adaptive": (
        lambda a: (F.adaptive_avg_pool2d(a, 1), F.adaptive_avg_pool2d(a, (3, 2)), F.adaptive_max_pool2d(a, 1)),
        [x(1, 2, 7, 5)],
    ),
    "nearest": (
        lambda a: (F.interpolate(a, scale_factor=2), F.interpolate(a, size=(5, 7)), F.interpolate(a, scale_factor=1.7)),
        [x(1, 2, 3, 4)],
    ),
    "linear resize": (
        lambda a: (
            F.interpolate(a, scale_factor=2, mode="bilinear"),
            F.interpolate(a, size=(5, 7), mode="bilinear", align_corners=True),
            F.interpolate(a, scale_factor=1.7, mode="bilinear"),
            F.interpolate(a[0], size=9, mode="linear"),
        ),
        [x(1, 2, 3, 4)],
    ),
    "cubic resize": (lambda a: F.interpolate(a, size=(6, 7), mode="bicubic"), [x(1, 2, 3, 4)]),
    "grids": (
        lambda a, g: (
            F.grid_sample(a, g, align_corners=True),
            F.grid_sample(a, g, "nearest", "border", align_corners=False),
            F.grid_sample(a, g, "bicubic", "reflection", align_corners=False),
        ),
        [x(2, 3, 5, 4), x(2, 3, 7, 2)],
    ),
    "grids of volumes": (lambda a, g: F.grid_sample(a, g, align_corners=False), [x(1, 2, 3, 4, 5), x(1, 2, 1, 3, 3)]),
    "adaptive maxima": (
        lambda a: (F.adaptive_max_pool2d(a, (3, 2)), F.adaptive_max_pool1d(a[0], 4), F.adaptive_max_pool2d(a, 1)),
        [x(2, 3, 7, 5)],
    ),
    "fold": (lambda a: (F.fold(a, (4, 5), 2, padding=1, stride=2), F.fold(a[0], (4, 4), (2, 2))), [x(2, 8, 9)]),
}


def bags(**words: Any) -> Callable[..., Any]:
    return lambda w, i, o: F.embedding_bag(i, w, o, **words)


def product_of_codes(width: int, depth: int, group: int) -> tuple[Callable[..., Any], list[Any]]:
    """With weights as torch's kernels for this processor want them."""
    aten = torch.ops.aten
    packed = aten._convert_weight_to_int4pack_for_cpu(ids(16, width, depth).to(torch.int32), 2)
    given = [x(3, depth), packed, x(depth // group, width, 2)]
    return lambda a, w, s: aten._weight_int4pack_mm_for_cpu(a, w, group, s), given


def layers(mask: Any = None, padding: Any = None, **words: Any) -> Callable[..., Any]:
    """A layer as torch runs it where no gradients are needed."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, **words).eval().requires_grad_(False)
    return lambda a: layer(a, src_mask=mask, src_key_padding_mask=padding)


def attention(**words: Any) -> Callable[..., Any]:
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(6, 3, batch_first=True).eval().requires_grad_(False)
    return lambda a: layer(a, a, a, **words)


_TABLE, _BAGS = x(11, 3), [ids(11, 9), torch.tensor([0, 3, 3, 8])]
_PADDING = torch.tensor([[False, False, True], [False, False, False]])
LAYERS: Cases = {
    **{f"bags by {mode}": (bags(mode=mode), [_TABLE, *_BAGS]) for mode in ("sum", "mean", "max")},
    "bags without padding": (
        lambda w, i, o: tuple(F.embedding_bag(i, w, o, mode=m, padding_idx=4) for m in ("sum", "mean", "max")),
        [_TABLE, *_BAGS],
    ),
    "bags of weights": (
        lambda w, i, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s, include_last_offset=True),
        [_TABLE, ids(11, 9), torch.tensor([0, 4, 9]), x(9)],
    ),
    "bags of one size": (lambda w, i: F.embedding_bag(i, w), [_TABLE, ids(11, 4, 3)]),
    "codes of 4 bits": product_of_codes(144, 64, 32),
    "codes of one block": product_of_codes(64, 96, 32),
    "codes of few columns": product_of_codes(16, 128, 64),
    "layers": (layers(), [x(2, 3, 8)]),
    "layers with their norms first": (layers(norm_first=True, activation="gelu"), [x(2, 3, 8)]),
    "layers with padding": (layers(padding=_PADDING), [x(2, 3, 8)]),
    "layers with a mask": (layers(mask=torch.ones(3, 3).triu(1).bool()), [x(2, 3, 8)]),
    "layers with both": (layers(torch.ones(3, 3).triu(1).bool(), _PADDING), [x(2, 3, 8)]),
    "attention with weights": (attention(), [x(2, 5, 6)]),
    "attention with weights of heads": (attention(average_attn_weights=False), [x(2, 5, 6)]),
    "distances": (lambda a, b: (torch.cdist(a, b), torch.cdist(a, b, 1)), [x(5, 3), x(4, 3)]),
    "bilinear": (lambda a, b, w, c: F.bilinear(a, b, w, c), [x(3, 4), x(3, 5), x(2, 4, 5), x(2)]),
}
FAMILIES: dict[str, Cases] = {
    **{"arithmetic": ARITHMETIC, "functions": FUNCTIONS, "shapes": SHAPES, "indices": INDICES},
    **{"reductions": REDUCTIONS, "products": PRODUCTS, "normalization": NORMALIZATION, "windows": WINDOWS},
    "layers": LAYERS,
}


def in_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def all_of(cases: Cases) -> tuple[Callable[..., Any], list[Any]]:
    """All cases as one function, since to export one takes most of a second, however small it is."""
    counts = [len(inputs) for _, inputs in cases.values()]

    def function(*tensors):
        rest = iter(tensors)
        made = [in_tuple(f(*islice(rest, n))) for (f, _), n in zip(cases.values(), counts, strict=True)]
        return tuple(y.clone() for results in made for y in results)  # torch.compile makes views itself

    return function, [tensor for _, inputs in cases.values() for tensor in inputs]


def assert_values(cases: Cases, results: Sequence[Any]) -> None:
    found, wrong = iter(results), {}
    for name, (function, inputs) in cases.items():
        expected = in_tuple(function(*inputs))
        try:
            assert_close(list(islice(found, len(expected))), expected)
        except AssertionError as error:
            wrong[name] = str(error)
    assert not wrong
    assert list(found) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_those_of_torch(family):
    function, tensors = all_of(FAMILIES[family])
    assert_values(FAMILIES[family], by_reference(loaded(Function(function), tensors), tensors))


def captured(function: Callable[..., Any], tensors: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """The graph that a backend of torch.compile compiles, and its inputs."""
    found: list[Any] = []

    def keep(gm, example_inputs):
        found.append(gm)
        return gm

    def take(gm, example_inputs):
        found.append(example_inputs)
        words = {"fw_compiler": keep, "inference_compiler": keep, "decompositions": decompositions()}
        return aot_module_simplified(gm, example_inputs, **words)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=take, fullgraph=True, dynamic=False)(*tensors)
    inputs, graph = found
    return graph, inputs


@pytest.mark.parametrize("family", FAMILIES)
def test_values_of_what_torch_compile_sees(family):
    """Below composites: convolution for conv2d, addmm for linear, native_layer_norm."""
    graph, inputs = captured(*all_of(FAMILIES[family]))
    assert_values(FAMILIES[family], by_reference(loaded(graph, inputs, load_fx), inputs))


def test_every_rule_is_for_an_operator_of_torch():
    """Or of torchvision, which has operators of its own where it is installed."""
    has_vision = find_spec("torchvision") is not None and import_module("torchvision") is not None
    for name in rules():
        space, operator, overload = name.split(".")
        if space == "torchvision" and not has_vision:
            continue
        assert overload in getattr(getattr(torch.ops, space), operator).overloads(), name


REFUSED: dict[str, tuple[Callable[..., Any], Sequence[Any], str]] = {
    "mask": (lambda a: torch.ops.aten.index_put(a, [None, a[0] > 0], torch.tensor(0.0)), [x(2, 3)], "a mask chooses"),
    "divisor": (
        lambda a: F.avg_pool2d(a, 2, ceil_mode=True, divisor_override=3),
        [x(1, 1, 5, 5)],
        "avg_pool with the divisor 3",
    ),
    "many": (lambda a: torch.topk(a, 17)[0], [x(20)], "the first 17 of"),
    "mean": (
        lambda a, i: a.scatter_reduce(0, i, a, "mean"),
        [x(4, dtype=INT), torch.tensor([0, 1, 1, 3])],
        "with the reduction mean",
    ),
    "values by a mask": (
        lambda a, v: torch.ops.aten.index_put(a, [a > 0], v),
        [torch.tensor([1.0, -1.0, 2.0]), torch.tensor([3.0, 4.0])],
        "how many values a mask chooses",
    ),
    "softplus": (lambda a: F.softplus(a, threshold=5.0), [x(4)], "threshold 5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_are_refused(name):
    function, inputs, words = REFUSED[name]
    with pytest.raises(GraphError, match=words):
        loaded(Function(function), inputs)

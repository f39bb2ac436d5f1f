"""Peers of operators: NumPy and PyTorch, as `autosched bench` times them.

A formulation takes the workload's arguments by name and its input arrays in order, converts them to the peer's fastest
layout (channels_last images, weights in its own order) before timing, and returns the call. An operator for which NumPy
has no single call has no formulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autosched.errors import UsageError

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[Any]
Params: TypeAlias = Mapping[str, int | float | str]


@dataclass(frozen=True)
class PeerCall:
    """`run` is timed; `result` runs it once and returns its value in autosched's layout."""

    run: Callable[[], object]
    result: Callable[[], Array]


Peer: TypeAlias = Callable[[str, Params, Sequence[Array]], PeerCall | None]


def find_peers(names: Sequence[str]) -> dict[str, Peer]:
    """Return the named peers. Raises UsageError for an unknown peer and for one that is not installed."""
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise UsageError(f"there is no peer {unknown[0]!r}: --peers takes {', '.join(PEERS)}")
    if any(map(needs_torch, names)) and not has_torch():
        raise UsageError("the peer torch is not installed: pip install 'autosched[peers]', or use --peers numpy")
    return {name: PEERS[name] for name in names}


def has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


def installed() -> list[str]:
    """Return the default peers: installed ones that need no compilation."""
    return ["torch", "numpy"] if has_torch() else ["numpy"]


def needs_torch(name: str) -> bool:
    return name.startswith("torch")


def torch_session(threads: int) -> AbstractContextManager[object]:
    """Enter inference mode with `threads` threads for a benchmark."""
    import torch

    torch.set_num_threads(threads)
    mode: AbstractContextManager[object] = torch.inference_mode()
    return mode


def session(names: Sequence[str], threads: int) -> AbstractContextManager[object]:
    return torch_session(threads) if any(map(needs_torch, names)) else nullcontext()


def numpy_call(workload: str, params: Params, arrays: Sequence[Array]) -> PeerCall | None:
    if workload not in NUMPY:
        return None
    run = NUMPY[workload](params, [np.ascontiguousarray(a) for a in arrays])
    return PeerCall(run, lambda: np.asarray(run()))


def _torch_takes(workload: str, arrays: Sequence[Array]) -> bool:
    """Return whether there is a formulation, and PyTorch has its operators for these types."""
    dtypes = {a.dtype for a in arrays}
    return workload in TORCH and len(dtypes) == 1 and dtypes.pop().kind in "fiub"  # bfloat16 is NumPy's kind V


def torch_call(workload: str, params: Params, arrays: Sequence[Array]) -> PeerCall | None:
    if not _torch_takes(workload, arrays):
        return None
    import torch

    run, ours = TORCH[workload](params, [torch.from_numpy(a) for a in arrays])
    return PeerCall(run, lambda: np.asarray(ours(run())))


def torch_compiled_call(workload: str, params: Params, arrays: Sequence[Array]) -> PeerCall | None:
    """Return the function compiled by TorchInductor at its first call."""
    if not _torch_takes(workload, arrays):
        return None
    import torch

    run, ours = TORCH[workload](params, [torch.from_numpy(a) for a in arrays])
    compiled = torch.compile(run, dynamic=False)
    return PeerCall(compiled, lambda: np.asarray(ours(compiled())))


def torch_prepacked_call(workload: str, params: Params, arrays: Sequence[Array]) -> PeerCall | None:
    """Return a convolution with weights packed at load time, the peer of kernels with `weights`."""
    if workload not in PREPACKED:
        return None
    import torch

    run, ours = _prepacked(PREPACKED[workload](params, [torch.from_numpy(a) for a in arrays]))
    return PeerCall(run, lambda: np.asarray(ours(run())))


PEERS: dict[str, Peer] = {
    "torch": torch_call,
    "torch.compile": torch_compiled_call,
    "torch.prepacked": torch_prepacked_call,
    "numpy": numpy_call,
}

# NumPy: single calls, into reused memory if the call allows it.


def _product(x: Array, y: Array) -> Callable[[], Array]:
    """Return a matrix product into reused memory; products of 8 bits are accumulated in 32."""
    narrow = all(a.dtype.kind in "iu" and a.dtype.itemsize == 1 for a in (x, y))
    sums = np.dtype(np.int32) if narrow else None
    out = np.empty((*x.shape[:-1], y.shape[-1]), sums or np.result_type(x, y))
    return lambda: np.matmul(x, y, out=out, dtype=sums)


def _numpy_matmul(_: Params, a: list[Array]) -> Callable[[], Array]:
    return _product(*a)


def _numpy_scores(_: Params, a: list[Array]) -> Callable[[], Array]:
    q, k = a[0].transpose(0, 2, 1, 3), a[1].transpose(0, 2, 3, 1)
    n, heads, seq, _dim = q.shape
    product = _product(q, k)
    return lambda: product().reshape(n * heads, seq, seq)


def _numpy_relu(_: Params, a: list[Array]) -> Callable[[], Array]:
    out, zero = np.empty_like(a[0]), a[0].dtype.type(0)
    return lambda: np.maximum(a[0], zero, out=out)


def _numpy_add(_: Params, a: list[Array]) -> Callable[[], Array]:
    out = np.empty_like(a[0])
    return lambda: np.add(a[0], a[1], out=out)


def _numpy_norm(_: Params, a: list[Array]) -> Callable[[], Array]:
    flat = a[0].reshape(a[0].shape[0], -1)
    return lambda: np.linalg.norm(flat, axis=1)


NUMPY: dict[str, Callable[[Params, list[Array]], Callable[[], Array]]] = {
    "matmul": _numpy_matmul,
    "batch_matmul": _numpy_matmul,
    "gmm": _numpy_matmul,
    "tbg": _numpy_scores,
    "nrm": _numpy_norm,
    "relu": _numpy_relu,
    "add": _numpy_add,
    "transpose": lambda _, a: lambda: np.ascontiguousarray(a[0].T),
}

# PyTorch: each returns the call, and a function that converts its value to autosched's layout.

Formulation: TypeAlias = "tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]"
Tensors: TypeAlias = "list[torch.Tensor]"


def _number(params: Params, name: str, default: int) -> int:
    return int(params.get(name, default))


def _is_last(params: Params) -> bool:
    return params.get("layout", "NHWC") == "NHWC"


def _image(params: Params, x: torch.Tensor) -> torch.Tensor:
    """Return the view N, C, H, W of NHWC memory, which PyTorch calls channels_last, without a copy."""
    return x.permute(0, 3, 1, 2) if _is_last(params) else x


def _to_ours(params: Params) -> Callable[[torch.Tensor], torch.Tensor]:
    return (lambda y: y.permute(0, 2, 3, 1)) if _is_last(params) else (lambda y: y)


def _same(y: torch.Tensor) -> torch.Tensor:
    return y


@dataclass(frozen=True)
class PeerConvolution:
    """A 2-D or 3-D convolution with PyTorch's arguments. `ours` converts its value to autosched's layout, `after` are
    further operations.
    """

    x: torch.Tensor
    w: torch.Tensor
    ours: Callable[[torch.Tensor], torch.Tensor]
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    groups: int = 1
    bias: torch.Tensor | None = None
    relu: bool = False
    flat: bool = False  # images one pixel high, which are not padded above and below
    transposed: bool = False
    after: Callable[[torch.Tensor], torch.Tensor] | None = None

    def call(self) -> Formulation:
        from torch.nn import functional

        x, w, bias, stride, pad = self.x, self.w, self.bias, self.stride, self.pad
        if self.transposed:
            return lambda: functional.conv_transpose2d(x, w, bias, stride, pad), self.ours
        function = functional.conv3d if x.dim() == 5 else functional.conv2d

        def convolve() -> torch.Tensor:
            return function(x, w, bias, stride, pad, self.dilation, self.groups)

        after = self.after
        return convolve if after is None else lambda: after(convolve()), self.ours


def _conv2d(p: Params, a: Tensors) -> PeerConvolution:
    import torch

    x, w = _image(p, a[0]), a[1]
    if _is_last(p):
        w = w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    numbers = (_number(p, "stride", 1), _number(p, "pad", 0), _number(p, "dilation", 1), _number(p, "groups", 1))
    return PeerConvolution(x, w, _to_ours(p), *numbers)


def _conv1d(p: Params, a: Tensors) -> Formulation:
    from torch.nn import functional

    x, w = a[0].permute(0, 2, 1).contiguous(), a[1].permute(2, 1, 0).contiguous()
    stride, pad = _number(p, "stride", 1), _number(p, "pad", 0)
    return lambda: functional.conv1d(x, w, None, stride, pad), lambda y: y.permute(0, 2, 1)


def _conv3d(p: Params, a: Tensors) -> PeerConvolution:
    import torch

    x = a[0].permute(0, 4, 1, 2, 3)
    w = a[1].permute(4, 3, 0, 1, 2).contiguous(memory_format=torch.channels_last_3d)
    return PeerConvolution(x, w, lambda y: y.permute(0, 2, 3, 4, 1), _number(p, "stride", 1), _number(p, "pad", 0))


def _depthwise(p: Params, a: Tensors) -> PeerConvolution:
    import torch

    x = _image(p, a[0])
    w = (a[1].permute(2, 0, 1) if _is_last(p) else a[1]).unsqueeze(1)
    if _is_last(p):
        w = w.contiguous(memory_format=torch.channels_last)
    numbers = (_number(p, "stride", 1), _number(p, "pad", 0), _number(p, "dilation", 1))
    return PeerConvolution(x, w, _to_ours(p), *numbers, groups=x.shape[1])


def _transposed(p: Params, a: Tensors) -> PeerConvolution:
    import torch

    w = a[1].permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)
    numbers = (_number(p, "stride", 1), _number(p, "pad", 0))
    return PeerConvolution(_image(p, a[0]), w, _to_ours(p), *numbers, transposed=True)


def _capsule(p: Params, a: Tensors) -> PeerConvolution:
    """Return a capsule convolution: the rows of the 4x4 matrices are in the batch, (q, CI) are input channels, (j, CO)
    output channels.
    """
    import torch

    n, h, w, _, _, ci = a[0].shape
    k, co = a[1].shape[0], a[1].shape[5]
    x = a[0].permute(0, 3, 4, 5, 1, 2).reshape(n * 4, 4 * ci, h, w).contiguous(memory_format=torch.channels_last)
    weights = a[1].permute(3, 5, 2, 4, 0, 1).reshape(4 * co, 4 * ci, k, k)
    weights = weights.contiguous(memory_format=torch.channels_last)

    def ours(y: torch.Tensor) -> torch.Tensor:
        return y.reshape(n, 4, 4, co, *y.shape[2:]).permute(0, 4, 5, 1, 2, 3)

    return PeerConvolution(x, weights, ours, _number(p, "stride", 1), _number(p, "pad", 0))


def _conv_bn_relu(p: Params, a: Tensors) -> PeerConvolution:
    import torch

    scale, offset = a[3].view(1, -1, 1, 1), a[4].view(1, -1, 1, 1)
    return replace(_conv2d(p, a), bias=a[2], after=lambda y: torch.relu(y * scale + offset))


def _folded(p: Params, a: Tensors) -> PeerConvolution:
    """Return cbr with its batch normalisation folded into weights and bias, as is usual for inference."""
    c = _conv2d(p, a)
    return replace(c, w=c.w * a[3].view(-1, 1, 1, 1), bias=a[2] * a[3] + a[4], relu=True)


def _rows_as_images(p: Params, a: Tensors) -> PeerConvolution:
    """Return c1d as a convolution of images that are one pixel high."""
    one = _conv2d(p, [a[0].unsqueeze(1), a[1].unsqueeze(0)])
    return replace(one, ours=lambda y: y.permute(0, 2, 3, 1).squeeze(1), flat=True)


def _eager(operands: Callable[[Params, Tensors], PeerConvolution]) -> Callable[[Params, Tensors], Formulation]:
    return lambda p, a: operands(p, a).call()


def _prepacked(c: PeerConvolution) -> Formulation:
    """Return oneDNN's convolution with weights in its blocked layout, as a frozen graph of TorchInductor calls it."""
    import torch

    pads = [0, c.pad] if c.flat else [c.pad] * (c.x.dim() - 2)
    strides, dilations = [c.stride] * len(pads), [c.dilation] * len(pads)
    reorder = torch._C._nn.mkldnn_reorder_conv3d_weight if len(pads) == 3 else torch._C._nn.mkldnn_reorder_conv2d_weight
    packed = reorder(c.w.to_mkldnn(), pads, strides, dilations, c.groups, list(c.x.shape))
    numbers: tuple[Any, ...] = (pads, strides, dilations, c.groups, "relu" if c.relu else "none", [], "")
    return lambda: torch.ops.mkldnn._convolution_pointwise(c.x, packed, c.bias, *numbers), c.ours


def _scores(softmax: bool) -> Callable[[Params, Tensors], Formulation]:
    def formulation(_: Params, a: Tensors) -> Formulation:
        import torch

        q, k = a[0].permute(0, 2, 1, 3), a[1].permute(0, 2, 3, 1)

        def run() -> torch.Tensor:
            s = torch.matmul(q, k)
            return torch.softmax(s, -1) if softmax else s

        return run, lambda y: y.flatten(0, 1)

    return formulation


def _attention(p: Params, a: Tensors) -> Formulation:
    from torch.nn import functional

    (q, k, v), is_causal = a, bool(_number(p, "causal", 0))
    return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal), _same


def _max_pool(p: Params, a: Tensors) -> Formulation:
    from torch.nn import functional

    x, (k, stride, pad) = _image(p, a[0]), _window(p)
    return lambda: functional.max_pool2d(x, k, stride, pad), _to_ours(p)


def _avg_pool(p: Params, a: Tensors) -> Formulation:
    from torch.nn import functional

    x, (k, stride, pad) = _image(p, a[0]), _window(p)
    count_all = bool(_number(p, "count_include_pad", 1))
    return lambda: functional.avg_pool2d(x, k, stride, pad, False, count_all), _to_ours(p)


def _window(p: Params) -> tuple[int, int, int]:
    return _number(p, "k", 3), _number(p, "stride", 1), _number(p, "pad", 0)


def _layer_norm(p: Params, a: Tensors) -> Formulation:
    from torch.nn import functional

    x, gamma, beta = a
    eps = float(p.get("eps", 1e-5))
    return lambda: functional.layer_norm(x, x.shape[-1:], gamma, beta, eps), _same


def _rms_norm(p: Params, a: Tensors) -> Formulation:
    from torch.nn import functional

    x, gamma = a
    eps = float(p.get("eps", 1e-5))
    return lambda: functional.rms_norm(x, list(x.shape[-1:]), gamma, eps), _same


def _batch_norm(p: Params, a: Tensors) -> Formulation:
    from torch.nn import functional

    x, (gamma, beta, mean, var) = _image(p, a[0]), a[1:]
    eps = float(p.get("eps", 1e-5))
    return lambda: functional.batch_norm(x, mean, var, gamma, beta, False, 0.0, eps), _to_ours(p)


def _plain(name: str) -> Callable[[Params, Tensors], Formulation]:
    """Return a function of module torch on the inputs without conversion."""

    def formulation(_: Params, a: Tensors) -> Formulation:
        import torch

        function = getattr(torch, name)
        return lambda: function(*a), _same

    return formulation


def _softmax(_: Params, a: Tensors) -> Formulation:
    return lambda: a[0].softmax(-1), _same


def _norm(_: Params, a: Tensors) -> Formulation:
    import torch

    return lambda: torch.linalg.vector_norm(a[0], dim=(1, 2)), _same


def _dense(_: Params, a: Tensors) -> Formulation:
    import torch

    return lambda: torch.addmm(a[2], a[0], a[1]), _same


def _gelu(_: Params, a: Tensors) -> Formulation:
    from torch.nn import functional

    return lambda: functional.gelu(a[0]), _same


def _elementwise(_: Params, a: Tensors) -> Formulation:
    """Inputs: X, R, scale, shift, as the workload creates them."""
    import torch

    x, residual, scale, shift = a
    return lambda: torch.relu(x * scale + shift) + residual, _same


def _global_pool(name: str) -> Callable[[Params, Tensors], Formulation]:
    def formulation(p: Params, a: Tensors) -> Formulation:
        x = _image(p, a[0])
        return lambda: getattr(x, name)(dim=(2, 3)), _same

    return formulation


CONVOLUTIONS: dict[str, Callable[[Params, Tensors], PeerConvolution]] = {
    **dict.fromkeys(("c2d", "dil", "grp", "conv2d", "winograd"), _conv2d),
    **dict.fromkeys(("dep", "depthwise"), _depthwise),
    "c3d": _conv3d,
    "cap": _capsule,
    "t2d": _transposed,
    "cbr": _conv_bn_relu,
}
TORCH: dict[str, Callable[[Params, Tensors], Formulation]] = {
    **{name: _eager(operands) for name, operands in CONVOLUTIONS.items()},
    "c1d": _conv1d,
    "gmm": _plain("bmm"),
    "matmul": _plain("mm"),
    "batch_matmul": _plain("bmm"),
    "dense": _dense,
    "tbg": _scores(softmax=False),
    "tbs": _scores(softmax=True),
    "attention": _attention,
    "nrm": _norm,
    "sfm": _softmax,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    "global_max_pool2d": _global_pool("amax"),
    "global_avg_pool2d": _global_pool("mean"),
    "elementwise": _elementwise,
    "relu": _plain("relu"),
    "gelu": _gelu,
    "add": _plain("add"),
    "transpose": lambda _, a: ((lambda: a[0].t().contiguous()), _same),
}

# Operators whose weights oneDNN packs at load time.
PREPACKED: dict[str, Callable[[Params, Tensors], PeerConvolution]] = {
    **{name: CONVOLUTIONS[name] for name in ("c2d", "c3d", "dil", "grp", "conv2d", "dep", "depthwise", "cap")},
    "c1d": _rows_as_images,
    "cbr": _folded,
}

"""Every built-in operator against loops or formulas written independently of it, on small awkward shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from autosched.errors import UsageError
from autosched.te import ComputeDAG, Tensor
from autosched.te.operators import attention, conv, elementwise, gemm, normalise, pool
from autosched.te.operators.transposed import t2d
from autosched.te.operators.winograd import winograd
from autosched.te.reference.evaluate import evaluate
from autosched.te.reference.inputs import make_inputs

Array = np.ndarray[Any, Any]
FLOATS = ("float32", "float64")
MIXED = ("float32", "int8", "uint8", "int32")


def run(tensor: Tensor, kind: str = "normal") -> tuple[dict[str, Array], Array]:
    """Inputs widened so that NumPy's arithmetic on them is exact enough, and the operator's value."""
    dag = ComputeDAG(tensor)
    inputs = make_inputs(dag, 5, kind)
    (result,) = evaluate(dag, inputs)
    assert result.value.shape == tensor.public_shape
    wide = {n: a.astype("float64" if a.dtype.kind == "f" else "int64") for n, a in inputs.items()}
    return wide, result.value


def same(got: Array, expected: Array) -> None:
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6 * (1 + np.abs(expected).max()))
    else:
        np.testing.assert_array_equal(got, expected)


def naive_conv(x: Array, w: Array, stride: int, pad: int, dilation: int = 1) -> Array:
    """x[N, spatial, CI] with w[taps, CI, CO], one output position and tap at a time."""
    spatial = x.ndim - 2
    sizes, taps = x.shape[1:-1], w.shape[:spatial]
    out = [(s + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for s, k in zip(sizes, taps, strict=True)]
    y = np.zeros((x.shape[0], *out, w.shape[-1]), dtype=x.dtype)
    for position in np.ndindex(*out):
        for tap in np.ndindex(*taps):
            where = [p * stride - pad + t * dilation for p, t in zip(position, tap, strict=True)]
            if all(0 <= i < s for i, s in zip(where, sizes, strict=True)):
                y[(slice(None), *position)] += x[(slice(None), *where)] @ w[tap]
    return y


WINDOWS = [(1, 1, 0), (3, 1, 1), (3, 2, 1), (2, 3, 0), (5, 2, 2), (3, 1, 0)]  # k, stride, pad


@pytest.mark.parametrize("dtype", MIXED)
@pytest.mark.parametrize(("k", "stride", "pad"), WINDOWS)
def test_c1d(k: int, stride: int, pad: int, dtype: str) -> None:
    ins, got = run(conv.c1d(2, 7, 3, 5, k, stride, pad, dtype))
    same(got, naive_conv(ins["X"], ins["W"], stride, pad))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize(("k", "stride", "pad"), WINDOWS)
def test_c2d_and_dil(k: int, stride: int, pad: int, dtype: str) -> None:
    ins, got = run(conv.c2d(2, 7, 5, 3, 2, k, stride, pad, dtype))
    same(got, naive_conv(ins["X"], ins["W"], stride, pad))
    ins, got = run(conv.dil(1, 11, 13, 2, 3, k, stride, pad, 2, dtype))
    same(got, naive_conv(ins["X"], ins["W"], stride, pad, 2))


@pytest.mark.parametrize(("k", "stride", "pad"), [(1, 2, 0), (3, 2, 1), (2, 1, 0)])
def test_c3d(k: int, stride: int, pad: int) -> None:
    ins, got = run(conv.c3d(1, 3, 5, 2, 2, 3, k, stride, pad))
    same(got, naive_conv(ins["X"], ins["W"], stride, pad))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_grp_and_conv2d_in_both_layouts(groups: int, dtype: str) -> None:
    def grouped(x: Array, w: Array) -> Array:
        parts = zip(np.split(x, groups, -1), np.split(w, groups, -1), strict=True)
        return np.concatenate([naive_conv(a, b, 2, 1, 2) for a, b in parts], -1)

    ins, got = run(conv.grp(2, 7, 9, 6, 12, 3, 2, 1, 2, groups, dtype))
    same(got, grouped(ins["X"], ins["W"]))
    ins, got = run(conv.conv2d(2, 7, 9, 6, 12, 3, 2, 1, 2, groups, "NHWC", dtype))
    same(got, grouped(ins["X"], ins["W"]))
    ins, got = run(conv.conv2d(2, 7, 9, 6, 12, 3, 2, 1, 2, groups, "NCHW", dtype))
    expected = grouped(ins["X"].transpose(0, 2, 3, 1), ins["W"].transpose(2, 3, 1, 0))
    same(got, expected.transpose(0, 3, 1, 2))


def test_a_pad_stage_exists_only_with_padding() -> None:
    assert [s.name for s in ComputeDAG(conv.c2d(1, 5, 5, 2, 3, 1, 1, 0)).stages] == ["conv"]
    assert [s.name for s in ComputeDAG(conv.c2d(1, 5, 5, 2, 3, 3, 1, 1)).stages] == ["pad", "conv"]
    assert conv.grp(1, 5, 5, 4, 6, 3, 1, 1, 1, 2).public_shape == (1, 5, 5, 6)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_depthwise(layout: str, dtype: str) -> None:
    ins, got = run(conv.depthwise(2, 7, 5, 3, 3, 2, 1, 1, layout, dtype))
    x, w = ins["X"], ins["W"]
    if layout == "NCHW":
        x, w = x.transpose(0, 2, 3, 1), w.transpose(1, 2, 0)
    expected = np.concatenate([naive_conv(x[..., c : c + 1], w[..., c : c + 1, None], 2, 1) for c in range(3)], -1)
    same(got, expected if layout == "NHWC" else expected.transpose(0, 3, 1, 2))
    ins, got = run(conv.dep(1, 5, 7, 2, 3, 1, 0, dtype))
    expected = np.concatenate([naive_conv(ins["X"][..., [c]], ins["W"][..., [c], None], 1, 0) for c in range(2)], -1)
    same(got, expected)


@pytest.mark.parametrize(("k", "stride", "pad"), [(3, 2, 1), (1, 1, 0)])
def test_cap(k: int, stride: int, pad: int) -> None:
    ins, got = run(conv.cap(2, 5, 3, 2, 3, k, stride, pad))
    x, w = ins["X"], ins["W"]
    expected = np.zeros(got.shape)
    for i, j, q in product(range(4), repeat=3):
        expected[..., i, j, :] += naive_conv(x[..., i, q, :], w[:, :, q, j], stride, pad)
    same(got, expected)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize(
    ("k", "s", "p"),
    [
        (4, 2, 1), (3, 2, 1), (3, 1, 1), (1, 1, 0), (2, 3, 0), (5, 3, 2), (4, 2, 2), (4, 2, 0), (7, 3, 4), (3, 2, 0),
        (2, 2, 0),
    ],
)  # fmt: skip
def test_t2d_scatters_every_input(k: int, s: int, p: int, dtype: str) -> None:
    height, width = 5, 3
    ins, got = run(t2d(2, height, width, 2, 3, k, s, p, dtype))
    full = np.zeros((2, (height - 1) * s + k, (width - 1) * s + k, 3), dtype=ins["X"].dtype)
    for ih, iw, kh, kw in product(range(height), range(width), range(k), range(k)):
        full[:, ih * s + kh, iw * s + kw] += ins["X"][:, ih, iw] @ ins["W"][kh, kw]
    same(got, full[:, p : full.shape[1] - p, p : full.shape[2] - p])


def test_t2d_multiplies_no_zeros() -> None:
    dag = ComputeDAG(t2d(1, 4, 4, 8, 6, 4, 2, 1))
    (conv_stage,) = [s for s in dag.stages if s.reducer is not None]
    points = math.prod(a.extent for a in (*conv_stage.axes, *conv_stage.reduce_axes))
    assert points == 8 * 8 * 6 * 2 * 2 * 8  # outputs times taps of one phase times channels


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(("height", "width", "pad"), [(7, 5, 1), (8, 8, 1), (3, 6, 0), (1, 1, 1), (4, 4, 0)])
def test_winograd(height: int, width: int, pad: int, m: int) -> None:
    ins, got = run(winograd(2, height, width, 3, 2, pad, m, "float64"))
    same(got, naive_conv(ins["X"], ins["W"], 1, pad))


@pytest.mark.parametrize("dtype", MIXED)
def test_matrix_products(dtype: str) -> None:
    ins, got = run(gemm.matmul(5, 3, 7, dtype))
    same(got, ins["A"] @ ins["B"])
    ins, got = run(gemm.batch_matmul(2, 3, 1, 5, dtype))
    same(got, ins["X"] @ ins["Y"])
    ins, got = run(gemm.gmm(3, 2, 5, 1, dtype))
    same(got, ins["X"] @ ins["Y"])
    ins, got = run(gemm.dense(2, 5, 3, dtype))
    same(got, ins["X"] @ ins["W"] + ins["bias"])


def naive_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention_and_softmax(dtype: str) -> None:
    ins, got = run(gemm.tbg(2, 5, 3, 7, dtype))
    scores = np.einsum("nihd,njhd->nhij", ins["Q"], ins["K"]).reshape(6, 5, 5)
    same(got, scores)
    ins, got = run(gemm.tbs(2, 5, 3, 7, dtype))
    same(got, naive_softmax(np.einsum("nihd,njhd->nhij", ins["Q"], ins["K"]).reshape(6, 5, 5)))
    ins, got = run(normalise.softmax(3, 7, dtype))
    same(got, naive_softmax(ins["A"]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sizes", [(2, 3, 5, 7, 4), (1, 1, 5, 1, 9), (1, 2, 1, 3, 1), (1, 2, 5, 3, 0)])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(dtype: str, sizes: tuple[int, ...], causal: int) -> None:
    ins, got = run(attention.attention(*sizes, causal, dtype))
    scores = np.einsum("nhid,nhjd->nhij", ins["Q"], ins["K"]) / math.sqrt(sizes[3])
    assert scores.shape == (*sizes[:3], sizes[4] or sizes[2])
    if causal:
        scores[..., np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    same(got, naive_softmax(scores) @ ins["V"])


@pytest.mark.parametrize("dtype", FLOATS)
def test_norms(dtype: str) -> None:
    ins, got = run(normalise.nrm(3, 5, 7, dtype))
    same(got, np.sqrt((ins["A"] ** 2).sum((1, 2))))
    ins, got = run(normalise.layer_norm(3, 7, dtype))
    x = ins["X"]
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    same(got, normal * ins["gamma"] + ins["beta"])
    ins, got = run(normalise.rms_norm(2, 5, dtype))
    x = ins["X"]
    same(got, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * ins["gamma"])


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_batch_norm(layout: str) -> None:
    ins, got = run(normalise.batch_norm(2, 3, 5, 7, layout))
    shape = (7,) if layout == "NHWC" else (7, 1, 1)
    gamma, beta, mean, var = (ins[n].reshape(shape) for n in ("gamma", "beta", "mean", "var"))
    same(got, (ins["X"] - mean) / np.sqrt(var + 1e-5) * gamma + beta)


def test_cbr() -> None:
    ins, got = run(conv.cbr(2, 7, 5, 3, 2, 3, 2, 1))
    y = naive_conv(ins["X"], ins["W"], 2, 1)
    same(got, np.maximum((y + ins["bias"]) * ins["bn_scale"] + ins["bn_offset"], 0))


def naive_pool(x: Array, k: int, stride: int, pad: int, combine: Callable[[Array, int], Array]) -> Array:
    """NHWC; `combine(elements[N, count, C], area)` sees the elements of the image and the window's area."""
    n, h, w, c = x.shape
    out = [(size + 2 * pad - k) // stride + 1 for size in (h, w)]
    y = np.zeros((n, *out, c))
    for i, j in np.ndindex(*out):
        rows = [r for r in range(i * stride - pad, i * stride - pad + k) if 0 <= r < h]
        columns = [s for s in range(j * stride - pad, j * stride - pad + k) if 0 <= s < w]
        y[:, i, j] = combine(x[:, rows][:, :, columns].reshape(n, -1, c), k * k)
    return y


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(("k", "stride", "pad"), [(3, 2, 1), (2, 2, 0), (1, 3, 0), (5, 1, 2)])
def test_pools(k: int, stride: int, pad: int, layout: str) -> None:
    def last(a: Array) -> Array:
        return a if layout == "NHWC" else a.transpose(0, 2, 3, 1)

    for dtype in ("float32", "int8", "uint8"):
        ins, got = run(pool.max_pool2d(2, 7, 5, 3, k, stride, pad, layout, dtype))
        same(last(got), naive_pool(last(ins["X"]), k, stride, pad, lambda e, _: e.max(1)))
    ins, got = run(pool.avg_pool2d(2, 7, 5, 3, k, stride, pad, 1, layout))
    same(last(got), naive_pool(last(ins["X"]), k, stride, pad, lambda e, area: e.sum(1) / area))
    ins, got = run(pool.avg_pool2d(2, 7, 5, 3, k, stride, pad, 0, layout))
    same(last(got), naive_pool(last(ins["X"]), k, stride, pad, lambda e, _: e.mean(1)))
    spatial = (1, 2) if layout == "NHWC" else (2, 3)
    ins, got = run(pool.global_max_pool2d(2, 3, 5, 7, layout))
    same(got, ins["X"].max(spatial))
    ins, got = run(pool.global_avg_pool2d(2, 3, 5, 7, layout))
    same(got, ins["X"].mean(spatial))


def test_elementwise() -> None:
    ins, got = run(elementwise.relu(3, 5, "int32"))
    same(got, np.maximum(ins["X"], 0))
    ins, got = run(elementwise.gelu(3, 5))
    erf = np.vectorize(math.erf)(ins["X"] / math.sqrt(2))
    same(got, ins["X"] / 2 * (1 + erf))
    ins, got = run(elementwise.add(3, 5, "float64"))
    same(got, ins["A"] + ins["B"])
    ins, got = run(elementwise.elementwise(3, 5))
    same(got, np.maximum(ins["X"] * ins["scale"] + ins["shift"], 0) + ins["R"])
    for dtype in ("bool", "int8", "float32"):
        ins, got = run(elementwise.transpose(3, 5, dtype))
        same(got, ins["X"].T)


def test_illegal_shapes_are_refused_with_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"c2d: the output would be empty .* spans 7 .* padded input only 5"):
        conv.c2d(1, 3, 3, 2, 2, 7, 1, 1)
    with pytest.raises(UsageError, match=r"grp: CI=6 is not divisible by groups=4"):
        conv.grp(1, 5, 5, 6, 8, 3, 1, 1, 1, 4)
    with pytest.raises(UsageError, match=r"t2d: the output would be empty"):
        t2d(1, 1, 1, 2, 2, 1, 1, 1)
    with pytest.raises(UsageError, match=r"pad may be at most half of the window"):
        pool.max_pool2d(1, 5, 5, 2, 3, 1, 2)
    with pytest.raises(UsageError, match=r"layout must be NHWC or NCHW but is 'NWHC'"):
        conv.conv2d(layout="NWHC")
    with pytest.raises(UsageError, match=r"output tile m must be one of 2, 4 but is 3"):
        winograd(m=3)

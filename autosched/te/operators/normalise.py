"""Normalisations: norm, softmax, layer, RMS and batch normalisation.

Every intermediate is a stage of its own; fusing them is the schedule's business.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosched import te
from autosched.ir.expr import Expr
from autosched.te.operators.window import NHWC, check_layout
from autosched.te.tensor import Tensor


def nrm(B: int, M: int, N: int, dtype: str = "float32") -> Tensor:
    """Y[b] = sqrt(sum over m, n of A[b,m,n]^2)."""
    a = te.placeholder((B, M, N), dtype, name="A")
    m, n = te.reduce_axis(M, name="m"), te.reduce_axis(N, name="n")
    squares = te.compute((B,), lambda b: te.sum(a[b, m, n] * a[b, m, n], axis=[m, n]), name="squares")
    result: Tensor = te.compute((B,), lambda b: te.sqrt(squares[b]), name="norm")
    return result


def softmax_over(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x - max) / sum(exp(x - max)) over one axis, as the stages max, exp, sum and divide."""
    return softmax_and_peak(x, axis)[0]


def softmax_and_peak(x: Tensor, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The softmax over one axis, and the maxima that are subtracted on the way."""
    axis %= len(x.shape)
    outer, n = (*x.shape[:axis], *x.shape[axis + 1 :]), x.shape[axis]
    k, r = te.reduce_axis(n, name="k"), te.reduce_axis(n, name="k")

    def along(i: Sequence[Expr], place: Expr) -> tuple[Expr, ...]:
        return (*i[:axis], place, *i[axis:])

    def of_row(i: Sequence[Expr]) -> tuple[Expr, ...]:
        return (*i[:axis], *i[axis + 1 :])

    peak = te.compute(outer, lambda *i: te.max(x[along(i, k)], axis=k), name="peak")
    power = te.compute(x.shape, lambda *i: te.exp(x[i] - peak[of_row(i)]), name="power")
    total = te.compute(outer, lambda *i: te.sum(power[along(i, r)], axis=r), name="total")
    return te.compute(x.shape, lambda *i: power[i] / total[of_row(i)], name="softmax"), peak


def softmax(M: int = 1024, N: int = 1024, dtype: str = "float32") -> Tensor:
    """Softmax over the last axis of A[M,N]."""
    return softmax_over(te.placeholder((M, N), dtype, name="A"))


def layer_norm(M: int = 512, N: int = 768, dtype: str = "float32", eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gamma + beta over the last axis of X[M,N]; var is the mean of (x - mean)^2."""
    x = te.placeholder((M, N), dtype, name="X")
    gamma, beta = te.placeholder((N,), dtype, name="gamma"), te.placeholder((N,), dtype, name="beta")
    k, r = te.reduce_axis(N, name="k"), te.reduce_axis(N, name="k")
    total = te.compute((M,), lambda i: te.sum(x[i, k], axis=k), name="total")
    mean = te.compute((M,), lambda i: total[i] / N, name="mean")

    def square(i: Expr) -> Expr:
        centred = x[i, r] - mean[i]
        return te.sum(centred * centred, axis=r)

    squares = te.compute((M,), square, name="squares")
    scale = te.compute((M,), lambda i: te.rsqrt(squares[i] / N + eps), name="scale")
    result: Tensor = te.compute(
        (M, N), lambda i, j: (x[i, j] - mean[i]) * scale[i] * gamma[j] + beta[j], name="layer_norm"
    )
    return result


def rms_norm(M: int = 512, N: int = 768, dtype: str = "float32", eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gamma over the last axis of X[M,N]."""
    x, gamma = te.placeholder((M, N), dtype, name="X"), te.placeholder((N,), dtype, name="gamma")
    k = te.reduce_axis(N, name="k")
    squares = te.compute((M,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="squares")
    scale = te.compute((M,), lambda i: te.rsqrt(squares[i] / N + eps), name="scale")
    result: Tensor = te.compute((M, N), lambda i, j: x[i, j] * scale[i] * gamma[j], name="rms_norm")
    return result


def batch_norm(
    N: int = 1, H: int = 56, W: int = 56, C: int = 64, layout: str = NHWC, dtype: str = "float32", eps: float = 1e-5
) -> Tensor:
    """Inference: (x - mean[C]) / sqrt(var[C] + eps) * gamma[C] + beta[C], folded to x * scale[C] + shift[C]."""
    check_layout("batch_norm", layout)
    x = te.placeholder((N, H, W, C) if layout == NHWC else (N, C, H, W), dtype, name="X")
    gamma, beta, mean, var = (te.placeholder((C,), dtype, name=name) for name in ("gamma", "beta", "mean", "var"))
    scale, shift = folded_batch_norm(gamma, beta, mean, var, eps)

    if layout == NHWC:
        nhwc: Tensor = te.compute(x.shape, lambda n, h, w, c: x[n, h, w, c] * scale[c] + shift[c], name="batch_norm")
        return nhwc
    nchw: Tensor = te.compute(x.shape, lambda n, c, h, w: x[n, c, h, w] * scale[c] + shift[c], name="batch_norm")
    return nchw


def folded_batch_norm(gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """What each channel is multiplied by, and what is added to it then."""
    scale = te.compute(gamma.shape, lambda c: gamma[c] * te.rsqrt(var[c] + eps), name="scale")
    return scale, te.compute(gamma.shape, lambda c: beta[c] - mean[c] * scale[c], name="shift")

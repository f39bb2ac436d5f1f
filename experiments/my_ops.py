"""Operators of your own: functions that return the output tensors. Copy this file and change it.

    autosched tune experiments/my_ops.py:rms_norm --set M=1024
    autosched tune experiments/my_ops.py:gelu_matmul --set M=256 --set N=512 --set K=512
    autosched tune experiments/my_ops.py:int4_matmul --set M=1
    autosched tune experiments/my_ops.py:running_sum

The arguments are the workload's numbers, and `--set NAME=VALUE` changes them. Each `te.compute` is a stage; which
stages are fused, tiled, packed or computed in vectors is found by the search.
"""

from __future__ import annotations

import math

from autosched import te
from autosched.ir.expr import Expr
from autosched.te import Tensor


def rms_norm(M: int = 512, N: int = 768, eps: float = 1e-6) -> Tensor:
    """Y[i,j] = X[i,j] / sqrt(mean_k X[i,k]^2 + eps) * gamma[j]."""
    X, gamma = te.placeholder((M, N), name="X"), te.placeholder((N,), name="gamma")
    k = te.reduce_axis(N, name="k")
    squares = te.compute((M,), lambda i: te.sum(X[i, k] * X[i, k], axis=k), name="squares")
    scale = te.compute((M,), lambda i: te.rsqrt(squares[i] / float(N) + eps), name="scale")
    result: Tensor = te.compute((M, N), lambda i, j: X[i, j] * scale[i] * gamma[j], name="rms_norm")
    return result


def gelu(x: Expr) -> Expr:
    """x/2 (1 + erf(x / sqrt 2)); an expression, so that it joins the stage that uses it."""
    return 0.5 * x * (1.0 + te.erf(x * math.sqrt(0.5)))


def gelu_matmul(M: int = 512, N: int = 512, K: int = 512) -> Tensor:
    """Y = gelu(A B + bias), one kernel."""
    A, B = te.placeholder((M, K), name="A"), te.placeholder((K, N), name="B")
    bias = te.placeholder((N,), name="bias")
    k = te.reduce_axis(K, name="k")
    C = te.compute((M, N), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    result: Tensor = te.compute((M, N), lambda i, j: gelu(C[i, j] + bias[j]), name="gelu_matmul")
    return result


def int4_matmul(M: int = 512, N: int = 1024, K: int = 1024, group: int = 64) -> Tensor:
    """Y = X W^T with weights of 4 bits, two in a byte along K, the even one in the low bits; each `group` of them has a
    scale and a zero point. `group` divides K and is even."""
    X, W = te.placeholder((M, K), name="X"), te.placeholder((N, K // 2), "uint8", name="W")
    scale, zero = te.placeholder((N, K // group), name="scale"), te.placeholder((N, K // group), name="zero")
    k = te.reduce_axis(K, name="k")

    def weight(n: Expr, k: Expr) -> Expr:
        bits = te.cast(W[n, k // 2], "int32") >> te.cast(4 * (k % 2), "int32") & 15
        return (te.cast(bits, "float32") - zero[n, k // group]) * scale[n, k // group]

    result: Tensor = te.compute((M, N), lambda m, n: te.sum(X[m, k] * weight(n, k), axis=k), name="int4_matmul")
    return result


def running_sum(M: int = 512, N: int = 4096) -> Tensor:
    """Y[i,j] = sum of X[i,k] for k <= j."""
    X, k = te.placeholder((M, N), name="X"), te.reduce_axis(N, name="k")
    result: Tensor = te.compute(
        (M, N), lambda i, j: te.sum(te.select(k <= j, X[i, k], 0.0), axis=k), name="running_sum"
    )
    return result

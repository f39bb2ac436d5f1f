"""Operators of your own: functions that return the output tensors. Copy this file and change it.

    autosched tune experiments/my_ops.py:rms_norm --set M=1024
    autosched tune experiments/my_ops.py:gelu_matmul --set M=256 --set N=512 --set K=512

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

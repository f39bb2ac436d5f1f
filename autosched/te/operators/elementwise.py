"""Elementwise operators and chains of them, and transposition."""

from __future__ import annotations

import math

from autosched import te
from autosched.ir.expr import Expr
from autosched.te.tensor import Tensor


def gelu_of(x: Expr) -> Expr:
    """x/2 (1 + erf(x / sqrt 2)), the exact form (Hendrycks and Gimpel, 2016)."""
    return x * 0.5 * (te.erf(x * math.sqrt(0.5)) + 1.0)


def relu(M: int = 1024, N: int = 1024, dtype: str = "float32") -> Tensor:
    """max(X, 0)."""
    x = te.placeholder((M, N), dtype, name="X")
    result: Tensor = te.compute((M, N), lambda i, j: te.max(x[i, j], te.const(0, dtype)), name="relu")
    return result


def gelu(M: int = 1024, N: int = 1024, dtype: str = "float32") -> Tensor:
    """X/2 (1 + erf(X / sqrt 2))."""
    x = te.placeholder((M, N), dtype, name="X")
    result: Tensor = te.compute((M, N), lambda i, j: gelu_of(x[i, j]), name="gelu")
    return result


def add(M: int = 1024, N: int = 1024, dtype: str = "float32") -> Tensor:
    """A + B."""
    a, b = te.placeholder((M, N), dtype, name="A"), te.placeholder((M, N), dtype, name="B")
    result: Tensor = te.compute((M, N), lambda i, j: a[i, j] + b[i, j], name="add")
    return result


def elementwise(M: int = 1024, N: int = 1024, dtype: str = "float32") -> Tensor:
    """relu(X * scale[N] + shift[N]) + R, four stages."""
    x, residual = te.placeholder((M, N), dtype, name="X"), te.placeholder((M, N), dtype, name="R")
    scale, shift = te.placeholder((N,), dtype, name="scale"), te.placeholder((N,), dtype, name="shift")
    scaled = te.compute((M, N), lambda i, j: x[i, j] * scale[j], name="scaled")
    shifted = te.compute((M, N), lambda i, j: scaled[i, j] + shift[j], name="shifted")
    positive = te.compute((M, N), lambda i, j: te.max(shifted[i, j], te.const(0, dtype)), name="positive")
    result: Tensor = te.compute((M, N), lambda i, j: positive[i, j] + residual[i, j], name="elementwise")
    return result


def transpose(M: int = 1024, N: int = 1024, dtype: str = "float32") -> Tensor:
    """X[M,N] -> [N,M]."""
    x = te.placeholder((M, N), dtype, name="X")
    result: Tensor = te.compute((N, M), lambda i, j: x[j, i], name="transpose")
    return result

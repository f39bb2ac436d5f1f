"""Matrix products, with and without batch, and the attention score subgraphs."""

from __future__ import annotations

from autosched import te
from autosched.te.operators.normalise import softmax_over
from autosched.te.operators.window import widen
from autosched.te.tensor import Tensor


def matmul(M: int = 512, N: int = 512, K: int = 512, dtype: str = "float32", w_dtype: str = "") -> Tensor:
    """A[M,K] * B[K,N] -> [M,N]; B is of `w_dtype` where that is given."""
    a, b = te.placeholder((M, K), dtype, name="A"), te.placeholder((K, N), w_dtype or dtype, name="B")
    k = te.reduce_axis(K, name="k")
    result: Tensor = te.compute((M, N), lambda i, j: te.sum(widen(a[i, k]) * widen(b[k, j]), axis=k), name="matmul")
    return result


def batch_matmul(B: int = 8, M: int = 256, N: int = 256, K: int = 256, dtype: str = "float32") -> Tensor:
    """X[B,M,K] * Y[B,K,N] -> [B,M,N]."""
    x, y = te.placeholder((B, M, K), dtype, name="X"), te.placeholder((B, K, N), dtype, name="Y")
    k = te.reduce_axis(K, name="k")
    result: Tensor = te.compute(
        (B, M, N), lambda b, i, j: te.sum(widen(x[b, i, k]) * widen(y[b, k, j]), axis=k), name="matmul"
    )
    return result


def gmm(B: int, N: int, M: int, K: int, dtype: str = "float32") -> Tensor:
    """X[B,N,K] * Y[B,K,M] -> [B,N,M]."""
    return batch_matmul(B, N, M, K, dtype)


def dense(M: int = 128, N: int = 1024, K: int = 1024, dtype: str = "float32", w_dtype: str = "") -> Tensor:
    """X[M,K] * W[K,N] + bias[N] -> [M,N]; W is of `w_dtype` where that is given, bias of the products' type."""
    x, w = te.placeholder((M, K), dtype, name="X"), te.placeholder((K, N), w_dtype or dtype, name="W")
    k = te.reduce_axis(K, name="k")
    product = te.compute((M, N), lambda i, j: te.sum(widen(x[i, k]) * widen(w[k, j]), axis=k), name="matmul")
    bias = te.placeholder((N,), product.dtype, name="bias")
    result: Tensor = te.compute((M, N), lambda i, j: product[i, j] + bias[j], name="dense")
    return result


def _scores(n: int, seq: int, heads: int, dim: int, dtype: str) -> Tensor:
    """S[n,h,i,j] = sum_d Q[n,i,h,d] K[n,j,h,d]: the transposes are in the indices."""
    q = te.placeholder((n, seq, heads, dim), dtype, name="Q")
    k = te.placeholder((n, seq, heads, dim), dtype, name="K")
    d = te.reduce_axis(dim, name="d")
    scores: Tensor = te.compute(
        (n, heads, seq, seq),
        lambda n, h, i, j: te.sum(widen(q[n, i, h, d]) * widen(k[n, j, h, d]), axis=d),
        name="scores",
    )
    return scores


def tbg(N: int, seq: int, heads: int, dim: int, dtype: str = "float32") -> Tensor:
    """Attention scores: Q[N,seq,heads,dim], K[N,seq,heads,dim] -> Q K^T as [N*heads,seq,seq]."""
    return te.view(_scores(N, seq, heads, dim, dtype), (N * heads, seq, seq))


def tbs(N: int, seq: int, heads: int, dim: int, dtype: str = "float32") -> Tensor:
    """tbg followed by softmax over the last axis."""
    return te.view(softmax_over(_scores(N, seq, heads, dim, dtype)), (N * heads, seq, seq))

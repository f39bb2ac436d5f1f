"""Attention: two products with a softmax in between."""

from __future__ import annotations

import math

from autosched import te
from autosched.ir.expr import Expr
from autosched.te.operators.normalise import softmax_and_peak
from autosched.te.operators.window import stored, stretched, widen
from autosched.te.tensor import Tensor


def attention(
    N: int = 1, heads: int = 12, queries: int = 512, dim: int = 64, keys: int = 0, causal: int = 0,
    dtype: str = "float32",
) -> Tensor:  # fmt: skip
    """softmax(Q K^T / sqrt(dim)) V for Q[N,heads,queries,dim] and K, V[N,heads,keys,dim].

    `keys` of 0 are as many as there are queries; with `causal` a query has those up to its own place. The softmax is
    rounded to `dtype` before V is multiplied by it.
    """
    keys = keys or queries
    q = te.placeholder((N, heads, queries, dim), dtype, name="Q")
    k, v = (te.placeholder((N, heads, keys, dim), dtype, name=name) for name in "KV")
    return scaled_dot_product(q, k, v, (N, heads), 1.0 / math.sqrt(dim), causal=bool(causal))


def scaled_dot_product(
    q: Tensor, k: Tensor, v: Tensor, batch: tuple[int, ...], scale: float, mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(q k^T * scale + mask) v, for q[..., heads, L, D], k[..., heads, S, D] and v[..., heads, S, E],
    in the type that sums of products have.

    `batch` has the dimensions of the result but the last two, to which those of the operands are stretched; the heads
    of `k` and `v` divide the last of them. A mask of bools says which scores are kept, another one is added. `causal`
    keeps those of places up to the query's own. A query for which a mask keeps none gets zeros.
    """
    (length, depth), (places, width) = q.shape[-2:], v.shape[-2:]
    d, s = te.reduce_axis(depth, name="d"), te.reduce_axis(places, name="s")

    def place(t: Tensor, i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Of a query's batch and head in `t`, of whose heads each may serve several of the queries'."""
        index = (*i[: len(batch) - 1], i[len(batch) - 1] // (batch[-1] // max(t.shape[-3], 1)))
        return stretched(t.shape[:-2], index)

    def score(*i: Expr) -> Expr:
        x, y = q[(*stretched(q.shape[:-2], i[:-2]), i[-2], d)], k[(*place(k, i), i[-1], d)]
        return te.sum(widen(x) * widen(y), axis=d)

    scores = te.compute((*batch, length, places), score, name="scores")

    def masked(*i: Expr) -> Expr:
        value = scores[i] * scale
        kept = [i[-1] <= i[-2]] if causal else []
        if mask is not None:
            element = mask[stretched(mask.shape, i)]
            value, kept = (value, [element, *kept]) if mask.dtype == "bool" else (value + element, kept)
        return te.select(te.all(*kept), value, -math.inf) if kept else value

    shares, peak = softmax_and_peak(te.compute(scores.shape, masked, name="masked"))
    weights = stored(shares, v.dtype)

    def mixed(*i: Expr) -> Expr:
        return te.sum(widen(weights[(*i[:-1], s)]) * widen(v[(*place(v, i), s, i[-1])]), axis=s)

    result: Tensor = te.compute((*batch, length, width), mixed, name="mixed")
    if mask is None:  # every query keeps the first key
        return result

    def at(*i: Expr) -> Expr:
        return te.select(te.equal(peak[i[:-1]], -math.inf), 0.0, result[i])

    whole: Tensor = te.compute(result.shape, at, name="attention")
    return whole

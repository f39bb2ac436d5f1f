"""Scaled dot-product attention as one operator: two products with a softmax in between."""

from __future__ import annotations

import math

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.elementwise import broadcast_shape, element
from autosched.graph.operators.products import stretched
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.operators.normalise import softmax_and_peak
from autosched.te.operators.window import stored, widen


@operator
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None, causal: bool = False
) -> Tensor:
    """softmax(q k^T * scale + mask) v, for q[..., heads, L, D], k[..., heads, S, D] and v[..., heads, S, E].

    k and v may have fewer heads, of which each serves as many neighbours of q. A mask of bools says which scores are
    kept, another one is added; both broadcast to [..., heads, L, S]. `causal` keeps those of places up to the query's
    own, which counts from the first. `scale` is 1 / sqrt(D) if left out. A query that keeps none gets zeros, as in
    torch.
    """
    batch = _batch(q, k, v)
    (length, depth), (places, width) = q.shape[-2:], v.shape[-2:]
    factor = 1.0 / math.sqrt(depth) if scale is None else scale
    heads = [_heads(t, q) for t in (k, v)]
    d, s = te.reduce_axis(depth, name="d"), te.reduce_axis(places, name="s")

    def place(t: Tensor, i: tuple[Expr, ...], shared: int) -> tuple[Expr, ...]:
        """Of a query's batch and head in `t`, of whose heads each serves `shared` of the queries'."""
        index = (*i[: len(batch) - 1], i[len(batch) - 1] // shared)
        return stretched(t.shape[:-2], index)

    def score(*i: Expr) -> Expr:
        x, y = q[(*stretched(q.shape[:-2], i[:-2]), i[-2], d)], k[(*place(k, i, heads[0]), i[-1], d)]
        return te.sum(widen(x) * widen(y), axis=d)

    scores = te.compute((*batch, length, places), score, name="scores")
    if mask is not None and broadcast_shape(mask.shape, scores.shape) != scores.shape:
        raise GraphError(f"a mask of shape {list(mask.shape)} does not fit scores of {list(scores.shape)}")

    def masked(*i: Expr) -> Expr:
        value = scores[i] * factor
        if mask is not None and mask.dtype != "bool":
            value = value + element(mask, i)
        kept = [] if mask is None or mask.dtype != "bool" else [element(mask, i)]
        kept += [i[-1] <= i[-2]] if causal else []
        return te.select(te.all(*kept), value, -math.inf) if kept else value

    shares, peak = softmax_and_peak(te.compute(scores.shape, masked, name="masked"))
    weights = stored(shares, v.dtype)

    def mixed(*i: Expr) -> Expr:
        return te.sum(widen(weights[(*i[:-1], s)]) * widen(v[(*place(v, i, heads[1]), s, i[-1])]), axis=s)

    result = te.compute((*batch, length, width), mixed, name="mixed")
    if mask is None:  # every query keeps the first key
        return stored(result, q.dtype)

    def at(*i: Expr) -> Expr:
        return te.select(te.equal(peak[i[:-1]], -math.inf), 0.0, result[i])

    return stored(te.compute(result.shape, at, name="attention"), q.dtype)


def _batch(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """All dimensions of the result but the last two."""
    shapes = [list(t.shape) for t in (q, k, v)]
    if min(map(len, shapes)) < 3 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise GraphError(
            f"attention takes q[..., heads, L, D], k[..., heads, S, D] and v[..., heads, S, E] but got {shapes[0]}, "
            f"{shapes[1]} and {shapes[2]}"
        )
    return (*broadcast_shape(*(t.shape[:-3] for t in (q, k, v))), q.shape[-3])


def _heads(t: Tensor, q: Tensor) -> int:
    """How many heads of `q` one of `t` serves."""
    if q.shape[-3] % t.shape[-3]:
        raise GraphError(
            f"{q.shape[-3]} heads of queries are no multiple of {t.shape[-3]}, the heads of keys or values"
        )
    return q.shape[-3] // t.shape[-3]

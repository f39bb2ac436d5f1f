"""Scaled dot-product attention as one operator: two products with a softmax in between."""

from __future__ import annotations

import math

from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.elementwise import broadcast_shape
from autosched.te import Tensor
from autosched.te.operators.attention import scaled_dot_product
from autosched.te.operators.window import stored


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
    _check_heads(k, q)
    _check_heads(v, q)
    scores = (*batch, q.shape[-2], k.shape[-2])
    if mask is not None and broadcast_shape(mask.shape, scores) != scores:
        raise GraphError(f"a mask of shape {list(mask.shape)} does not fit scores of {list(scores)}")
    factor = 1.0 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    return stored(scaled_dot_product(q, k, v, batch, factor, mask, causal), q.dtype)


def _batch(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """All dimensions of the result but the last two."""
    shapes = [list(t.shape) for t in (q, k, v)]
    if min(map(len, shapes)) < 3 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise GraphError(
            f"attention takes q[..., heads, L, D], k[..., heads, S, D] and v[..., heads, S, E] but got {shapes[0]}, "
            f"{shapes[1]} and {shapes[2]}"
        )
    return (*broadcast_shape(*(t.shape[:-3] for t in (q, k, v))), q.shape[-3])


def _check_heads(t: Tensor, q: Tensor) -> None:
    """Each head of `t` serves as many of `q`."""
    if q.shape[-3] % t.shape[-3] if t.shape[-3] else q.shape[-3]:
        raise GraphError(
            f"{q.shape[-3]} heads of queries are no multiple of {t.shape[-3]}, the heads of keys or values"
        )

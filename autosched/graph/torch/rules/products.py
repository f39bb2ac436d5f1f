"""Rules of matrix products and attention."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.torch.builder import TraceBuilder
from autosched.graph.torch.rules import rule
from autosched.graph.torch.rules.gradients import attention_scores, with_heads


@rule("aten.linear.default")
def linear(b: TraceBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    return b.emit("linear", x, weight, bias)


@rule("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.mv.default", "aten.dot.default")
def matmul(b: TraceBuilder, x: Value, y: Value) -> Value:
    """A matrix that was transposed before is the weight of `linear` as it was."""
    weight = b.transposed.get(y.name)
    if weight is not None and len(weight.shape) == 2:
        return b.emit("linear", x, weight, None)
    return b.emit("matmul", x, y)


@rule("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
def add_product(
    b: TraceBuilder, c: Value, x: Value, y: Value, *, beta: bool | int | float = 1, alpha: bool | int | float = 1
) -> Value:
    """beta * c + alpha * (x @ y)."""
    weight = b.transposed.get(y.name)
    if weight is not None and weight.shape[:1] == c.shape and (beta, alpha) == (1, 1):
        return b.emit("linear", x, weight, c)
    product = matmul(b, x, y)
    if alpha != 1:
        product = b.emit("mul", product, b.operand(alpha, product.dtype))
    if beta == 0:  # torch does not read c then
        return product
    if beta != 1:
        c = b.emit("mul", c, b.operand(beta, c.dtype))
    return b.emit("add", product, c)


@rule("aten.scaled_dot_product_attention.default")
def attention(
    b: TraceBuilder,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: object,
) -> Value:
    """`options`: scale; enable_gqa, which the sizes show."""
    if dropout_p != 0.0:
        raise GraphError(f"{b.origin} has dropout {dropout_p}: call eval() of the module")
    scale = options.get("scale")
    number = float(scale) if isinstance(scale, int | float) else None
    return b.emit("attention", query, key, value, attn_mask, scale=number, causal=is_causal)


@rule("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    b: TraceBuilder,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> tuple[Value, Value]:
    """Attention that also returns the logsumexp of the scores, from which training computes gradients."""
    mask, scale = options.get("attn_mask"), options.get("scale")
    made = attention(b, query, key, value, mask, dropout_p, is_causal, scale=scale)
    scores, _ = attention_scores(b, query, with_heads(b, key, query.shape[1]), is_causal, mask, scale)
    sums = b.emit("reduce_log_sum_exp", b.cast(scores, "float32"), axes=(len(scores.shape) - 1,), keepdims=False)
    return made, sums if b.expected[1] is None else b.cast(sums, b.expected[1].dtype)


def _pivots(b: TraceBuilder, x: Value) -> list[Value]:
    """Return the pivots of the elimination of matrices, whose product is the determinant."""
    pivots, rest = [], x
    for n in range(x.shape[-1], 0, -1):
        pivot, *left = b.emit_many("eliminate", (rest,), min(n, 2))
        pivots.append(pivot)
        rest = left[0] if left else rest
    return pivots


@rule("aten._linalg_det.default")
def determinant(b: TraceBuilder, x: Value) -> tuple[Value, None, None]:
    return reduce(partial(b.emit, "mul"), _pivots(b, x)), None, None


@rule("aten._linalg_slogdet.default")
def log_determinant(b: TraceBuilder, x: Value) -> tuple[Value, Value, None, None]:
    """The sign of the determinant, and the logarithm of its size."""
    pivots = _pivots(b, x)
    signs = reduce(partial(b.emit, "mul"), [b.emit("sign", pivot, keeps_nan=True) for pivot in pivots])
    logs = reduce(partial(b.emit, "add"), [b.emit("log", b.emit("abs", pivot)) for pivot in pivots])
    return signs, logs, None, None

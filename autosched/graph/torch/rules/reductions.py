"""Rules of reductions, variances and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.torch.builder import TraceBuilder, axes_of, axis_of
from autosched.graph.torch.rules import enter_all, rule

MOST_RANKED = 16  # elements that are worth looking for one after the other


def reduced(b: TraceBuilder, operator: str, x: Value, dims: Any, keepdim: bool) -> Value:
    """A scalar stays what it is."""
    axes = axes_of(x, dims)
    if not x.shape:
        return x
    return b.emit(operator, x, axes=axes, keepdims=keepdim)


def in_result_type(operator: str) -> Callable[..., Value]:
    def apply(b: TraceBuilder, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
        return reduced(b, operator, b.cast(x, b.result.dtype), dim, keepdim)

    return apply


def of_all(operator: str) -> Callable[..., Value]:
    def apply(b: TraceBuilder, x: Value, dtype: Any = None) -> Value:
        return reduced(b, operator, b.cast(x, b.result.dtype), None, False)

    return apply


def of_truths(operator: str) -> Callable[..., Value]:
    """Of uint8 the result is uint8 as well, 0 or 1."""

    def apply(b: TraceBuilder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        return b.cast(reduced(b, operator, b.cast(x, "bool"), dim, keepdim), b.result.dtype)

    return apply


enter_all(
    {
        "aten.sum.dim_IntList": in_result_type("reduce_sum"),
        "aten.mean.dim": in_result_type("reduce_mean"),
        "aten.amax.default": in_result_type("reduce_max"),
        "aten.amin.default": in_result_type("reduce_min"),
        "aten.prod.dim_int": in_result_type("reduce_prod"),
        "aten.logsumexp.default": in_result_type("reduce_log_sum_exp"),
    }
)
enter_all({f"aten.{name}.default": of_all(f"reduce_{name}") for name in ("sum", "mean", "prod", "max", "min")})
enter_all(
    {
        f"aten.{name}.{kind}": of_truths(f"reduce_{name}")
        for name in ("any", "all")
        for kind in ("default", "dim", "dims")
    }
)


def greatest_or_least(operator: str, place: str) -> Callable[..., tuple[Value, Value]]:
    """The value and where it is, the first of several."""

    def apply(b: TraceBuilder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        best = reduced(b, operator, x, dim, keepdim)
        return best, b.emit(place, x, axis=axis_of(x, dim), keepdims=keepdim)

    return apply


enter_all(
    {
        "aten.max.dim": greatest_or_least("reduce_max", "argmax"),
        "aten.min.dim": greatest_or_least("reduce_min", "argmin"),
    }
)


def place_of_best(operator: str) -> Callable[..., Value]:
    """Without a dimension of all elements in the order of memory."""

    def apply(b: TraceBuilder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is not None:
            return b.emit(operator, x, axis=axis_of(x, dim), keepdims=keepdim)
        line = b.emit(operator, b.reshape(x, (math.prod(x.shape),)), axis=0, keepdims=False)
        return b.reshape(line, b.result.shape)

    return apply


enter_all({f"aten.{name}.default": place_of_best(name) for name in ("argmax", "argmin")})


def variance(b: TraceBuilder, x: Value, dims: Any, correction: float | None, keepdim: bool) -> tuple[Value, Value]:
    """Variance and mean; the sum of squares is divided by their number less `correction`."""
    axes = axes_of(x, dims)
    mean = b.emit("reduce_mean", x, axes=axes, keepdims=True)
    away = b.emit("sub", x, mean)
    total = b.emit("reduce_sum", b.emit("mul", away, away), axes=axes, keepdims=keepdim)
    count = math.prod(x.shape[axis] for axis in axes) - (1 if correction is None else correction)
    shape = total.shape
    scale = 1.0 / count if count > 0 else math.inf  # as torch: infinite or NaN
    return b.emit("mul", total, b.operand(scale, x.dtype)), b.reshape(mean, shape)


@rule("aten.var.correction")
def var(b: TraceBuilder, x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Value:
    return variance(b, x, dim, correction, keepdim)[0]


@rule("aten.std.correction")
def std(b: TraceBuilder, x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Value:
    return b.emit("sqrt", variance(b, x, dim, correction, keepdim)[0])


@rule("aten.var_mean.correction")
def var_mean(
    b: TraceBuilder, x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return variance(b, x, dim, correction, keepdim)


@rule("aten.linalg_vector_norm.default")
def vector_norm(
    b: TraceBuilder, x: Value, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    """torch's names of the arguments."""
    made = b.cast(x, b.result.dtype)
    if x.shape and (ord == 2 or ord == 1):
        return reduced(b, f"reduce_l{int(ord)}", made, dim, keepdim)
    if ord == 0:  # how many are not 0
        return reduced(b, "reduce_sum", b.cast(b.cast(made, "bool"), made.dtype), dim, keepdim)
    size = b.emit("abs", made)
    if not x.shape:
        return size
    if math.isinf(ord):
        return reduced(b, "reduce_max" if ord > 0 else "reduce_min", size, dim, keepdim)
    powers = reduced(b, "reduce_sum", b.emit("pow", size, b.operand(float(ord), size.dtype)), dim, keepdim)
    return b.emit("pow", powers, b.operand(1.0 / ord, size.dtype))


@rule("aten.cumsum.default")
def cumsum(b: TraceBuilder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    made = b.cast(x, b.result.dtype)
    return b.emit("cumsum", made, axis=axis_of(x, dim)) if x.shape else made


@rule("aten.cumprod.default")
def cumprod(b: TraceBuilder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    made = b.cast(x, b.result.dtype)
    return b.emit("cumprod", made, axis=axis_of(x, dim)) if x.shape else made


@rule("aten.topk.default")
def topk(
    b: TraceBuilder, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, ...]:
    """torch's names of the arguments. Sorting many is torch's."""
    if not x.shape or k > MOST_RANKED:
        raise GraphError(f"{b.origin}: the first {k} of {list(x.shape)}, more than {MOST_RANKED} or of a scalar")
    return b.emit_many("top_k", (x,), 2, k=k, axis=axis_of(x, dim), largest=largest)


@rule("aten.softmax.int")
def softmax(b: TraceBuilder, x: Value, dim: int, dtype: Any = None) -> Value:
    return b.emit("softmax", b.cast(x, b.result.dtype), axis=axis_of(x, dim))


@rule("aten._safe_softmax.default")
def safe_softmax(b: TraceBuilder, x: Value, dim: int, dtype: Any = None) -> Value:
    """0 where all of a row is -inf."""
    made = softmax(b, x, dim)
    largest = b.emit("reduce_max", x, axes=(axis_of(x, dim),), keepdims=True)
    nothing = b.emit("equal", largest, b.operand(-math.inf, x.dtype))
    return b.emit("where", nothing, b.operand(0, made.dtype), made)


@rule("aten._softmax.default")
def plain_softmax(b: TraceBuilder, x: Value, dim: int, half_to_float: bool) -> Value:
    return softmax(b, x, dim)


@rule("aten.log_softmax.int")
def log_softmax(b: TraceBuilder, x: Value, dim: int, dtype: Any = None) -> Value:
    return b.emit("log_softmax", b.cast(x, b.result.dtype), axis=axis_of(x, dim))


@rule("aten._log_softmax.default")
def plain_log_softmax(b: TraceBuilder, x: Value, dim: int, half_to_float: bool) -> Value:
    return log_softmax(b, x, dim)

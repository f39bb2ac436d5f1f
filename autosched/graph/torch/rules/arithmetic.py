"""Rules of binary arithmetic, comparisons, logic, where and casts, with torch's type promotion made explicit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.torch.builder import Operand, TraceBuilder, dtype_name
from autosched.graph.torch.rules import enter_all, rule
from autosched.ir.dtype import DTYPES
from autosched.ir.size import value_of


def promoted(a: Operand, b: Operand) -> str:
    """The type in which torch brings two operands together: numbers and scalars give way to tensors."""
    x, y = (
        torch.empty((1,) * len(o.shape), dtype=getattr(torch, o.dtype), device="meta")
        if isinstance(o, Value)
        else value_of(o)
        for o in (a, b)
    )
    return dtype_name(torch.result_type(x, y))


def in_result_type(operator: str) -> Callable[..., Value]:
    """Both operands as the result's type."""

    def apply(b: TraceBuilder, x: Operand, y: Operand) -> Value:
        kind = b.result.dtype
        return b.emit(operator, b.operand(x, kind), b.operand(y, kind))

    return apply


def in_common_type(operator: str) -> Callable[..., Value]:
    """A comparison."""

    def apply(b: TraceBuilder, x: Operand, y: Operand) -> Value:
        kind = promoted(x, y)
        return b.emit(operator, b.operand(x, kind), b.operand(y, kind))

    return apply


def of_truths(operator: str) -> Callable[..., Value]:
    def apply(b: TraceBuilder, x: Operand, y: Operand) -> Value:
        return b.emit(operator, b.operand(x, "bool"), b.operand(y, "bool"))

    return apply


enter_all(
    {
        f"aten.{name}.{kind}": in_result_type(operator)
        for name, operator, kinds in (
            ("maximum", "maximum", "default"),
            ("minimum", "minimum", "default"),
            ("pow", "pow", "Tensor_Tensor Tensor_Scalar Scalar"),
            ("bitwise_and", "bitwise_and", "Tensor Scalar"),
            ("bitwise_or", "bitwise_or", "Tensor Scalar"),
            ("bitwise_xor", "bitwise_xor", "Tensor Scalar"),
            ("bitwise_left_shift", "shift_left", "Tensor Tensor_Scalar"),
            ("bitwise_right_shift", "shift_right", "Tensor Tensor_Scalar"),
            ("__lshift__", "shift_left", "Tensor Scalar"),
            ("__rshift__", "shift_right", "Tensor Scalar"),
        )
        for kind in kinds.split()
    }
)
enter_all(
    {
        f"aten.{name}.{kind}": in_common_type(operator)
        for name, operator in (
            ("eq", "equal"),
            ("ne", "not_equal"),
            ("lt", "less"),
            ("le", "less_equal"),
            ("gt", "greater"),
            ("ge", "greater_equal"),
        )
        for kind in ("Tensor", "Scalar")
    }
)
_PRESENT = (("fmax", "maximum"), ("fmin", "minimum"))
enter_all({f"aten.logical_{name}.default": of_truths(f"logical_{name}") for name in ("and", "or", "xor")})


@rule("aten.mul.Tensor", "aten.mul.Scalar")
def mul(b: TraceBuilder, x: Operand, y: Operand) -> Value:
    return of_truths("logical_and")(b, x, y) if b.result.dtype == "bool" else in_result_type("mul")(b, x, y)


def scaled(b: TraceBuilder, x: Operand, factor: bool | int | float) -> Value:
    """factor * x in the type of the result."""
    value = b.operand(x, b.result.dtype)
    return value if factor == 1 else b.emit("mul", value, b.operand(factor, b.result.dtype))


@rule("aten.add.Tensor", "aten.add.Scalar")
def add(b: TraceBuilder, x: Operand, y: Operand, alpha: bool | int | float = 1) -> Value:
    if b.result.dtype == "bool":
        return b.emit("logical_or", b.operand(x, "bool"), b.operand(y, "bool"))
    return b.emit("add", scaled(b, x, 1), scaled(b, y, alpha))


@rule("aten.sub.Tensor", "aten.sub.Scalar")
def sub(b: TraceBuilder, x: Operand, y: Operand, alpha: bool | int | float = 1) -> Value:
    return b.emit("sub", scaled(b, x, 1), scaled(b, y, alpha))


@rule("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(b: TraceBuilder, x: Operand, y: Operand, alpha: bool | int | float = 1) -> Value:
    return sub(b, y, x) if alpha == 1 else b.emit("sub", scaled(b, y, 1), scaled(b, x, alpha))


@rule("aten.addcmul.default")
def addcmul(b: TraceBuilder, x: Value, y: Value, z: Value, value: int | float = 1) -> Value:
    return b.emit("add", scaled(b, x, 1), b.emit("mul", scaled(b, y, value), scaled(b, z, 1)))


@rule("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(b: TraceBuilder, x: Operand, y: Operand) -> Value:
    return in_result_type("div")(b, x, y)


@rule("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(b: TraceBuilder, x: Operand, y: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(b, x, y)
    made = div(b, x, y)
    if rounding_mode == "trunc" and DTYPES[made.dtype].is_float:
        below = b.emit("less", made, b.operand(0, made.dtype))
        return b.emit("where", below, b.emit("ceil", made), b.emit("floor", made))
    return made


@rule("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(b: TraceBuilder, x: Operand, y: Operand) -> Value:
    return in_result_type("floor_div")(b, x, y)


@rule("aten.remainder.Tensor", "aten.remainder.Scalar")
def remainder(b: TraceBuilder, x: Operand, y: Operand) -> Value:
    return in_result_type("mod")(b, x, y)


@rule("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(b: TraceBuilder, x: Operand, y: Operand) -> Value:
    kind = b.result.dtype
    return b.emit("mod", b.operand(x, kind), b.operand(y, kind), fmod=True)


def present_of(operator: str) -> Callable[..., Value]:
    """Return the operand that is not NaN, or the result of `operator` for two numbers."""

    def apply(b: TraceBuilder, x: Value, y: Value) -> Value:
        kind = b.result.dtype
        p, q = b.cast(x, kind), b.cast(y, kind)
        made = b.emit(operator, p, q)
        if not DTYPES[kind].is_float:
            return made
        return b.emit("where", b.emit("isnan", p), q, b.emit("where", b.emit("isnan", q), p, made))

    return apply


enter_all({f"aten.{name}.default": present_of(operator) for name, operator in _PRESENT})


@rule("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other")
def xlogy(b: TraceBuilder, x: Operand, y: Operand) -> Value:
    """x * log(y), and 0 where x is, but for y that is NaN."""
    kind = b.result.dtype
    p, q = b.operand(x, kind), b.operand(y, kind)
    zero = b.operand(0, kind)
    nothing = b.emit("logical_and", b.emit("equal", p, zero), b.emit("equal", q, q))
    return b.emit("where", nothing, zero, b.emit("mul", p, b.emit("log", q)))


@rule("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(b: TraceBuilder, condition: Value, x: Operand, y: Operand) -> Value:
    kind = b.result.dtype
    return b.emit("where", b.operand(condition, "bool"), b.operand(x, kind), b.operand(y, kind))


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(b: TraceBuilder, x: Value, mask: Value, value: Operand) -> Value:
    return b.expand(where(b, mask, value, x), b.result.shape)


@rule("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(b: TraceBuilder, start: Value, end: Value, weight: Operand) -> Value:
    kind = b.result.dtype
    return b.emit("add", start, b.emit("mul", b.operand(weight, kind), b.emit("sub", end, start)))


@rule("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout", "prims.convert_element_type.default")
def to_type(b: TraceBuilder, x: Value, *_: Any, **__: Any) -> Value:
    return b.cast(x, b.result.dtype)


@rule(
    *("aten.alias.default", "aten.clone.default", "aten.contiguous.default", "aten.detach.default"),
    *("aten.lift_fresh_copy.default", "aten.detach_.default", "aten.lift_fresh.default"),
)
def same(b: TraceBuilder, x: Value, **_: Any) -> Value:
    return x


@rule("aten.dropout.default")
def dropout(b: TraceBuilder, x: Value, p: float, train: bool) -> Value:
    if train and p != 0.0:
        raise GraphError(f"{b.origin} is in training mode: call eval() of the module")
    return x


@rule("aten.native_dropout.default")
def native_dropout(b: TraceBuilder, x: Value, p: float, train: bool | None) -> tuple[Value, None]:
    return dropout(b, x, p, bool(train)), None

"""The operators of networks: one function each, from tensors and attributes to the stages that compute the result.

    @operator
    def relu(x: Tensor) -> Tensor: ...            Node("relu", ("x",), ("y",))
    @operator
    def concat(*x: Tensor, axis: int) -> Tensor   Node("concat", ("a", "b"), ("c",), {"axis": 1})

Tensors are passed by position, None for an optional one that is left out; attributes by name. The returned tensor, or
tuple of tensors, determines shape and type of the results, their values in the reference, and the stages of a kernel.
So all of `te` (inlining, fusion, Winograd, intrinsics) applies. An operator raises GraphError for what it does not
support. `operators()` has all of them by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

from autosched.errors import ExpressionError, GraphError
from autosched.graph.graph import Attribute, Node, Value
from autosched.graph.loops import results_of_loop
from autosched.graph.operator_facts import Attributes, OperandTypes, operator_fact
from autosched.te import Tensor, compute, placeholder
from autosched.te.checks import checked_before
from autosched.te.tensor import ComputeOp

F = TypeVar("F", bound=Callable[..., "Tensor | tuple[Tensor, ...]"])
_FAMILIES = (
    "elementwise",
    "activations",
    "index_maps",
    "padding",
    "resize",
    "sampling",
    "regions",
    "gathers",
    "reductions",
    "ranking",
    "products",
    "convolutions",
    "pools",
    "normalisation",
    "attention",
    "quantised",
    "few_bits",
)  # modules of this package
_TABLE: dict[str, Callable[..., Any]] = {}


def operator(function: F) -> F:
    """Register the decorated function as the operator of its name (without a trailing underscore)."""
    name = function.__name__.rstrip("_")
    assert name not in _TABLE, f"there are two operators {name}"
    _TABLE[name] = function
    return function


@cache
def operators() -> Mapping[str, Callable[..., Any]]:
    """Return all operators by name."""
    for family in _FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
    return _TABLE


def build(node: Node, tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Return the results of a node as stages over `tensors`, one for each input. Raises GraphError.

    The stages were checked when the types of the results were inferred.
    """
    try:
        with checked_before():
            return _apply(node.operator, tensors, node.attributes, len(node.outputs))
    except (ExpressionError, GraphError) as error:
        raise GraphError(f"{node.origin or node}: {error}") from error


def own_result(tensor: Tensor) -> Tensor:
    """Return a copy of a result that is an operand itself, so that a kernel can compute it; others as they are."""
    if isinstance(tensor.op, ComputeOp):
        return tensor
    copy: Tensor = compute(tensor.shape, lambda *index: tensor[index], name="copy")
    return copy


def results_of(node: Node, values: Mapping[str, Value]) -> tuple[Value, ...]:
    """Return the results of a node as values, with shapes and types. Raises GraphError."""
    if node.body is not None:
        return results_of_loop(node, values)
    given = tuple(None if name is None else (values[name].shape, values[name].dtype) for name in node.inputs)
    try:
        made = _inferred(node.operator, given, tuple(sorted(node.attributes.items())), len(node.outputs))
    except (ExpressionError, GraphError) as error:
        raise GraphError(f"{node.origin or node}: {error}") from error
    return tuple(Value(name, *shape_and_dtype) for name, shape_and_dtype in zip(node.outputs, made, strict=True))


def _apply(
    name: str, tensors: Sequence[Tensor | None], attributes: Mapping[str, Attribute], n_outputs: int
) -> tuple[Tensor, ...]:
    function = operators().get(name)
    if function is None:
        raise GraphError(f"there is no operator {name}")
    made = function(*tensors, **attributes)
    results = made if isinstance(made, tuple) else (made,)
    if len(results) < n_outputs:
        raise GraphError(f"the operator {name} has {len(results)} results, not {n_outputs}")
    return results[:n_outputs]


@operator_fact(list, lambda stored: tuple((tuple(shape), dtype) for shape, dtype in stored))
def _inferred(
    name: str, given: OperandTypes, attributes: Attributes, n_outputs: int
) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Return shapes and types of the results."""
    return tuple((t.public_shape, t.dtype) for t in stages_of(name, given, attributes, n_outputs)[1])


@lru_cache(maxsize=1024)
def stages_of(
    name: str, given: OperandTypes, attributes: Attributes, n_outputs: int
) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
    """Return placeholders `x0`, `x1`, ... for the operands, None for one that is left out, and the results."""
    tensors = tuple(None if x is None else placeholder(x[0], x[1], f"x{n}") for n, x in enumerate(given))
    return tensors, _apply(name, tensors, dict(attributes), n_outputs)

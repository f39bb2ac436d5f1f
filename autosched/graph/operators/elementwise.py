"""Operators on elements, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.te import Tensor


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's: aligned at the end, sizes of 1 stretch. Raises GraphError where they do not fit."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    for sizes in zip(*padded, strict=True):
        if len(set(sizes) - {1}) > 1:
            raise GraphError(f"the shapes {', '.join(str(list(s)) for s in shapes)} do not fit each other")
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def element(x: Tensor, index: tuple[Any, ...]) -> Any:
    """The element of `x` that broadcasting puts at `index`."""
    own = index[len(index) - len(x.shape) :]
    return x[tuple(0 if size == 1 else i for i, size in zip(own, x.shape, strict=True))]


def map_elements(function: Callable[..., Any], *tensors: Tensor, name: str) -> Tensor:
    """`function` of the elements that broadcasting brings together."""
    shape = broadcast_shape(*(t.shape for t in tensors))
    made: Tensor = te.compute(shape, lambda *index: function(*(element(t, index) for t in tensors)), name=name)
    return made


@operator
def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b."""
    return map_elements(lambda x, y: x + y, a, b, name="add")


@operator
def relu(x: Tensor) -> Tensor:
    """max(x, 0); NaN stays."""
    return map_elements(lambda a: te.max(a, 0.0), x, name="relu")

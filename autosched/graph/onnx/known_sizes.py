"""Folding of shape arithmetic while sizes are symbols: arrays of sizes and numbers, as NumPy's arrays of objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from autosched.graph.graph import Array
from autosched.ir.size import has_size

# Operators that move elements, with the operands that are moved; the others must be numbers. () are all.
_MOVED: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Identity", "Gather", "GatherElements", "GatherND", "Slice", "Squeeze", "Unsqueeze"), (0,)),
    **dict.fromkeys(("Reshape", "Flatten", "Transpose", "Split", "Tile", "Expand"), (0,)),
    "Concat": (),
    "Where": (1, 2),
}


def size_array(sizes: Sequence[int]) -> Array:
    """Return numbers as an array, of objects if sizes are among them."""
    if not has_size(tuple(sizes)):
        return np.asarray(sizes, np.int64)
    array = np.empty(len(sizes), object)
    array[:] = sizes
    return array


def is_of_sizes(array: Array | None) -> bool:
    return array is not None and array.dtype == object


def pinned(array: Array | None, dtype: str) -> Array | None:
    """Return an array of numbers: a guard says that each size has its value."""
    return array.astype(dtype) if array is not None and is_of_sizes(array) else array


def _divided(a: Any, b: Any) -> Any:
    """The quotient without its fraction."""
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _divided,
    "Mod": lambda a, b: a % b,
    "Neg": lambda a: -a,
    "Abs": abs,
    "Max": lambda *x: reduce(lambda a, b: a if a >= b else b, x),
    "Min": lambda *x: reduce(lambda a, b: a if a <= b else b, x),
}
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "Equal": lambda a, b: bool(a == b),
    "Less": lambda a, b: bool(a < b),
    "LessOrEqual": lambda a, b: bool(a <= b),
    "Greater": lambda a, b: bool(a > b),
    "GreaterOrEqual": lambda a, b: bool(a >= b),
}


def fold_sizes(
    operator: str,
    attributes: Mapping[str, Any],
    arrays: Sequence[Array | None],
    move: Callable[[Sequence[Array | None]], tuple[Array, ...] | None],
) -> tuple[Array, ...] | None:
    """Return the results of a node that reads sizes; None where they are no sizes, or not by this table.

    `move` evaluates the node for arrays of numbers.
    """
    if operator in _MOVED:
        return _moved(_MOVED[operator] or tuple(range(len(arrays))), arrays, move)
    objects = [a.astype(object) for a in arrays if a is not None]
    if any(a.dtype.kind not in "iubO" for a in arrays if a is not None):
        return None
    if operator == "Cast" and attributes["to"] in (6, 7):  # int32 and int64
        return (objects[0],)
    if operator == "ReduceProd" and len(arrays) == 1 and objects[0].ndim == 1:
        product = np.empty((), object)
        product[()] = math.prod(objects[0].tolist())
        return (product.reshape((1,) if attributes.get("keepdims", 1) else ()),)
    function = _ELEMENTWISE.get(operator, _COMPARISONS.get(operator))
    if function is None or (operator in ("Div", "Mod") and any(b == 0 for b in objects[1].reshape(-1))):
        return None
    made = np.frompyfunc(function, len(objects), 1)(*objects)
    result = np.empty(np.broadcast_shapes(*(a.shape for a in objects)), object)
    result[...] = made
    return (result.astype(bool) if operator in _COMPARISONS else result,)


def _moved(
    which: Sequence[int],
    arrays: Sequence[Array | None],
    move: Callable[[Sequence[Array | None]], tuple[Array, ...] | None],
) -> tuple[Array, ...] | None:
    """Move the numbers of elements instead of the elements."""
    elements, numbered = list[Any](), list[Array | None]()
    for n, array in enumerate(arrays):
        if array is None or n not in which:
            numbered.append(pinned(array, "int64"))
            continue
        numbered.append(np.arange(array.size, dtype=np.int64).reshape(array.shape) + len(elements))
        elements += array.reshape(-1).tolist()
    moved = move(numbered)
    if moved is None:
        return None
    table = np.empty(len(elements), object)
    table[:] = elements
    results = [np.empty(places.shape, object) for places in moved]
    for result, places in zip(results, moved, strict=True):
        result[...] = table[places]
    return tuple(results)

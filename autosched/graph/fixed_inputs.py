"""Inputs that are fixed at load: their values are checked and become constants of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from autosched.errors import GraphError
from autosched.graph.graph import Array, Graph
from autosched.ir.dtype import DTYPES


def fix_inputs(graph: Graph, fixed: Mapping[str, npt.ArrayLike]) -> Graph:
    """Return the graph with the inputs that `fixed` names as constants. Raises GraphError for an unknown name, or a
    value of another shape or type."""
    arrays = {}
    for name, value in fixed.items():
        if name not in graph.inputs:
            raise unknown_input(name, graph.inputs)
        described = graph.values[name]
        arrays[name] = fixed_array(name, value, DTYPES[described.dtype].numpy_dtype, described.shape)
    inputs = tuple(name for name in graph.inputs if name not in arrays)
    return replace(graph, inputs=inputs, constants={**graph.constants, **arrays}) if arrays else graph


def how_to_fix(name: str) -> str:
    """Return the remedy for messages: how a caller fixes an input at load."""
    call = f'autosched.load(path, inputs={{"{name}": VALUE}})'
    return f"an input that is always the same can be fixed at load: {call}, or --fix {name}=VALUE"


def unknown_input(name: str, inputs: Sequence[str]) -> GraphError:
    names = ", ".join(inputs) or "none"
    return GraphError(f"{name} is given a value, but is no input of the model; its inputs are: {names}")


def fixed_array(
    name: str, value: npt.ArrayLike, dtype: np.dtype[np.generic], shape: Sequence[int | str | None]
) -> Array:
    """Return `value` as the array that the input `name` is fixed to.

    Python numbers are converted if they are in the range of the type; arrays must have the type already. Symbolic sizes
    of `shape` match any size. Raises GraphError.
    """
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors that NumPy cannot see
        raise GraphError(f"the value of the input {name} is no array of numbers: {error}") from error
    expected = f"{dtype.name}[{', '.join('?' if size is None else str(size) for size in shape)}]"
    got = f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"
    is_python = not hasattr(value, "dtype")
    if (array.dtype != dtype and not (is_python and _holds(dtype, array))) or not _fits(array.shape, shape):
        what = f"{got} {value!r}" if array.size == 1 else got
        raise GraphError(f"the input {name} is fixed to {' '.join(what.split())}, but must be {expected}")
    return np.array(array, dtype, order="C")


def _holds(dtype: np.dtype[np.generic], array: Array) -> bool:
    """Whether Python numbers can be elements of a type: floats may be rounded, integers must be in range."""
    kinds = {"b": "b", "i": "iu", "u": "iu"}.get(dtype.kind, "fiu")  # small floats of ml_dtypes are of kind V
    if array.dtype.kind not in kinds:
        return False
    if dtype.kind not in "iu":
        return True
    info = np.iinfo(dtype.name)
    return array.size == 0 or (int(array.min()) >= info.min and int(array.max()) <= info.max)


def _fits(shape: tuple[int, ...], expected: Sequence[int | str | None]) -> bool:
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(not isinstance(size, int) or n == size for n, size in pairs)

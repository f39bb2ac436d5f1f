"""Element types of ONNX that networks hold in a type of ours: integers of 2 and 4 bits, and floats that are not ours.

Each is held in a type that has all its numbers, one for each element. So what moves or reads its numbers needs nothing
of its own; what makes them, Cast and QuantizeLinear, rounds to them. `GraphBuilder.held_types` has the values of such
types.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np

from autosched.graph.graph import Array
from autosched.ir.dtype import DTYPES

# By ml_dtypes' names.
HELD_IN = {
    "int2": "int8", "uint2": "uint8", "int4": "int8", "uint4": "uint8", "float4_e2m1fn": "float8_e4m3fn",
    "float8_e4m3fnuz": "float16", "float8_e5m2fnuz": "float16", "float8_e8m0fnu": "bfloat16",
}  # fmt: skip
BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4}
POWERS = "float8_e8m0fnu"  # of two, and NaN
WITHOUT_NAN = "float4_e2m1fn"  # a NaN becomes 0


def held(array: Array) -> Array:
    """Return the array in the type that holds its numbers; itself, if that is its own."""
    name = HELD_IN.get(array.dtype.name)
    return array if name is None else array.astype(DTYPES[name].numpy_dtype)


@cache
def float_format(name: str) -> tuple[int, float, float]:
    """Return the bits of the fraction, the smallest normal number and the largest one of a float of ml_dtypes."""
    info = ml_dtypes.finfo(np.dtype(getattr(ml_dtypes, name)))  # type: ignore[no-untyped-call]
    return int(info.nmant), float(info.smallest_normal), float(info.max)

"""Maps of whole arrays, for kernels that are written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from autosched.codegen.c.source import PixelBox, TensorMap

Array = npt.NDArray[Any]


def tensor_map(
    array: Array, box: tuple[int, ...] | PixelBox, swizzle: int = 0, steps: Sequence[int] = (), buffer: str = "A"
) -> TensorMap:
    """`map` of a contiguous array that is the kernel's buffer of that name."""
    strides = tuple(reversed(array.strides[:-1]))
    extents = tuple(reversed(array.shape))
    return TensorMap("map", buffer, array.dtype.name, extents, strides, box, swizzle, tuple(steps))

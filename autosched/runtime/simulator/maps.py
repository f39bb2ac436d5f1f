"""Tensor maps as the simulator's copy engine reads them: 128 bytes, like those that a driver encodes.

The limits are those of cuda.h 13.0, "cuTensorMapEncodeTiled" and "cuTensorMapEncodeIm2col". Lists are innermost first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.errors import UsageError

Array = npt.NDArray[Any]
NBYTES, ALIGNMENT = 128, 64
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes of the span -> the number of the mode


@dataclass(frozen=True)
class Pixels:
    """Of an image to columns: corners of its box along W, H, (D); `channels` and `pixels` that are copied at a time."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


class _Map(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64), ("strides", ctypes.c_uint64 * 4), ("extents", ctypes.c_uint32 * 5),
        ("box", ctypes.c_uint16 * 5), ("lower", ctypes.c_int16 * 3), ("upper", ctypes.c_int16 * 3),
        ("channels", ctypes.c_uint16), ("pixels", ctypes.c_uint16), ("steps", ctypes.c_uint8 * 5),
        ("rank", ctypes.c_uint8), ("bytes", ctypes.c_uint8), ("swizzle", ctypes.c_uint8), ("is_im2col", ctypes.c_uint8),
    )  # fmt: skip


def tiled(array: Array, box: Sequence[int], swizzle: int = 0, steps: Sequence[int] | None = None) -> Array:
    """A map of boxes of a contiguous array; `steps`: between the elements that are taken. Raises UsageError."""
    made = _described(array, swizzle, steps)
    _require(len(box) == array.ndim and all(1 <= n <= 256 for n in box), f"boxes have 1 to 256 elements, got {box}")
    inner = box[0] * array.itemsize
    _require(inner % 16 == 0, f"a row of a box must have a multiple of 16 bytes, got {inner}")
    _require(
        not swizzle or inner <= swizzle, f"a row of a box has at most the {swizzle} bytes of the swizzle, got {inner}"
    )
    made.box[: array.ndim] = tuple(box)
    return _bytes(made)


def image(array: Array, columns: Pixels, swizzle: int = 0, steps: Sequence[int] | None = None) -> Array:
    """A map of an image whose dimensions are (N, (D,) H, W, C). Raises UsageError."""
    made = _described(array, swizzle, steps)
    spatial = array.ndim - 2
    _require(3 <= array.ndim <= 5, f"an image has 3 to 5 dimensions, got {array.ndim}")
    limit = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}[spatial]
    corners = (*columns.lower, *columns.upper)
    _require(
        len(corners) == 2 * spatial and all(-limit <= n < limit for n in corners),
        f"corners are {spatial} numbers each from {-limit} to {limit - 1}, got {columns.lower} and {columns.upper}",
    )
    inner = columns.channels * array.itemsize
    _require(1 <= columns.channels <= 256 and inner % 16 == 0, f"channels take a multiple of 16 bytes, got {inner}")
    _require(not swizzle or inner <= swizzle, f"channels take at most the {swizzle} bytes of the swizzle, got {inner}")
    _require(1 <= columns.pixels <= 1024, f"1 to 1024 pixels at a time, got {columns.pixels}")
    made.lower[:spatial], made.upper[:spatial] = columns.lower, columns.upper
    made.channels, made.pixels, made.is_im2col = columns.channels, columns.pixels, 1
    return _bytes(made)


def _described(array: Array, swizzle: int, steps: Sequence[int] | None) -> _Map:
    rank = array.ndim
    strides = tuple(reversed(array.strides))
    _require(1 <= rank <= 5, f"a tensor has 1 to 5 dimensions, got {rank}")
    _require(array.ctypes.data % 16 == 0, "a tensor must begin at a multiple of 16 bytes")
    _require(strides[0] == array.itemsize, "elements must be neighbours along the last dimension")
    _require(
        all(s % 16 == 0 and s < 1 << 40 for s in strides[1:]),
        f"strides must be multiples of 16 bytes, got {strides[1:]}",
    )
    _require(swizzle in SWIZZLES, f"a swizzle has 0, 32, 64 or 128 bytes, got {swizzle}")
    taken = tuple(steps or [1] * rank)
    _require(len(taken) == rank and all(1 <= n <= 8 for n in taken), f"steps are 1 to 8, got {taken}")
    made = _Map(address=array.ctypes.data, rank=rank, bytes=array.itemsize, swizzle=SWIZZLES[swizzle])
    made.strides[: rank - 1] = strides[1:]
    made.extents[:rank] = tuple(reversed(array.shape))
    made.steps[:rank] = taken
    return made


def _bytes(made: _Map) -> Array:
    raw = np.zeros(NBYTES + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    whole = raw[begin : begin + NBYTES]
    whole[: ctypes.sizeof(made)] = np.frombuffer(bytes(made), np.uint8)
    return whole


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UsageError(f"no tensor map can be made: {message}")

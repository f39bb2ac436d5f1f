"""Tensor maps of the simulator's copy engine: 128 bytes, like those that a driver encodes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.codegen.c.source import PixelBox, TensorMap
from autosched.errors import UsageError
from autosched.ir.dtype import DTYPES
from autosched.runtime.gpu.tensor_maps import ALIGNMENT, NBYTES, SWIZZLES, why_illegal

Array = npt.NDArray[Any]


class _Map(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64), ("strides", ctypes.c_uint64 * 4), ("extents", ctypes.c_uint32 * 5),
        ("box", ctypes.c_uint16 * 5), ("lower", ctypes.c_int16 * 3), ("upper", ctypes.c_int16 * 3),
        ("channels", ctypes.c_uint16), ("pixels", ctypes.c_uint16), ("steps", ctypes.c_uint8 * 5),
        ("rank", ctypes.c_uint8), ("bytes", ctypes.c_uint8), ("swizzle", ctypes.c_uint8), ("is_im2col", ctypes.c_uint8),
    )  # fmt: skip


def encoded(wanted: TensorMap, address: int) -> Array:
    """Return the map of an array at `address`, in its 128 bytes. Raises UsageError."""
    if words := why_illegal(wanted, address):
        raise UsageError(words)
    rank, box = len(wanted.extents), wanted.box
    made = _Map(address=address, rank=rank, bytes=DTYPES[wanted.dtype].nbytes, swizzle=SWIZZLES[wanted.swizzle])
    made.strides[: rank - 1] = wanted.strides
    made.extents[:rank] = wanted.extents
    made.steps[:rank] = wanted.steps or (1,) * rank
    if isinstance(box, PixelBox):
        made.lower[: rank - 2], made.upper[: rank - 2] = box.lower, box.upper
        made.channels, made.pixels, made.is_im2col = box.channels, box.pixels, 1
    else:
        made.box[:rank] = box
    raw = np.zeros(NBYTES + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    whole = raw[begin : begin + NBYTES]
    whole[: ctypes.sizeof(made)] = np.frombuffer(bytes(made), np.uint8)
    return whole

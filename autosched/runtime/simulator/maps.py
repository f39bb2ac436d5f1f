"""Tensor maps of the simulator's copy engine: 128 bytes, like those that a driver encodes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.codegen.c.source import PixelBox, TensorMap
from autosched.errors import UsageError
from autosched.ir.dtype import DTYPES
from autosched.runtime.gpu.tensor_maps import ALIGNMENT, NBYTES, SWIZZLES, violated_limit

Array = npt.NDArray[Any]


class _Map(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64), ("strides", ctypes.c_uint64 * 4), ("extents", ctypes.c_uint32 * 5),
        ("box", ctypes.c_uint16 * 5), ("lower", ctypes.c_int16 * 3), ("upper", ctypes.c_int16 * 3),
        ("channels", ctypes.c_uint16), ("pixels", ctypes.c_uint16), ("steps", ctypes.c_uint8 * 5),
        ("rank", ctypes.c_uint8), ("bytes", ctypes.c_uint8), ("swizzle", ctypes.c_uint8), ("is_im2col", ctypes.c_uint8),
    )  # fmt: skip


def encoded(tensor_map: TensorMap, address: int) -> Array:
    """Return the map of an array at `address`, in its 128 bytes. Raises UsageError."""
    if reason := violated_limit(tensor_map, address):
        raise UsageError(reason)
    rank, box = len(tensor_map.extents), tensor_map.box
    fields = _Map(
        address=address, rank=rank, bytes=DTYPES[tensor_map.dtype].nbytes, swizzle=SWIZZLES[tensor_map.swizzle]
    )
    fields.strides[: rank - 1] = tensor_map.strides
    fields.extents[:rank] = tensor_map.extents
    fields.steps[:rank] = tensor_map.steps or (1,) * rank
    if isinstance(box, PixelBox):
        fields.lower[: rank - 2], fields.upper[: rank - 2] = box.lower, box.upper
        fields.channels, fields.pixels, fields.is_im2col = box.channels, box.pixels, 1
    else:
        fields.box[:rank] = box
    memory = np.zeros(NBYTES + ALIGNMENT, np.uint8)
    offset = -memory.ctypes.data % ALIGNMENT
    aligned = memory[offset : offset + NBYTES]
    aligned[: ctypes.sizeof(fields)] = np.frombuffer(bytes(fields), np.uint8)
    return aligned

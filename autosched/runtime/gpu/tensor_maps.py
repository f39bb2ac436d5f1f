"""Encoding of tensor maps by the CUDA driver's `cuTensorMapEncode...`, called in libcuda without a Python package.

The limits are those of cuda.h 13.0 for these functions. Drivers of CUDA 13.1 and before set one bit wrongly in the maps
of small tensors (CUTLASS, cute/atom/copy_traits_sm90_tma.hpp); it is cleared here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache

from autosched.codegen.c.source import PixelBox, TensorMap
from autosched.ir.dtype import DTYPES
from autosched.runtime.gpu.cuda_driver import FAULT_OF_CODE
from autosched.runtime.gpu.device import DeviceFault

NBYTES, ALIGNMENT = 128, 64
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes of the span -> CUtensorMapSwizzle
# CUtensorMapDataType by kind, bits and exponent bits. Other types are copied as unsigned integers of their size.
_TYPES = {("i", 32, 0): 3, ("f", 16, 5): 6, ("f", 32, 8): 7, ("f", 64, 11): 8, ("f", 16, 8): 9}
_UNSIGNED = {1: 0, 2: 1, 4: 2, 8: 4}
_MAX_RANK, _MAX_BOX, _MAX_STEP, _MAX_PIXELS = 5, 256, 8, 1024
_CORNER_LIMITS = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}  # by spatial dimensions: -limit <= corner < limit
_L2_PROMOTION = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B: reads fetch lines of 256 bytes into the L2 cache
_DEFAULT_MODE = 0  # no interleaving; zeros outside of the tensor
# Drivers up to this release encode maps of tensors below this size with a wrong bit in this word.
_LAST_FAULTY_DRIVER, _SMALL_TENSOR_BYTES, _FAULTY_WORD, _FAULTY_BIT = 13010, 128 << 10, 1, 21


class EncodedMap(ctypes.Structure):
    """The driver's CUtensorMap, 128 bytes."""

    _fields_ = (("words", ctypes.c_uint64 * (NBYTES // 8)),)


def violated_limit(tensor_map: TensorMap, address: int) -> str | None:
    """Return a sentence on the first limit that a map of a buffer at `address` violates; None for a legal map."""
    rank, steps = len(tensor_map.extents), tensor_map.steps or (1,) * len(tensor_map.extents)
    itemsize = DTYPES[tensor_map.dtype].nbytes
    limits = (
        (1 <= rank <= _MAX_RANK, f"a tensor has 1 to {_MAX_RANK} dimensions, got {rank}"),
        (address % 16 == 0, f"it must begin at a multiple of 16 bytes, got the address {address:#x}"),
        (all(1 <= n <= 1 << 32 for n in tensor_map.extents), f"extents are 1 to {1 << 32}, got {tensor_map.extents}"),
        (
            len(tensor_map.strides) == rank - 1 and all(s % 16 == 0 and 0 < s < 1 << 40 for s in tensor_map.strides),
            f"strides must be multiples of 16 bytes, {rank - 1} of them, got {tensor_map.strides}",
        ),
        (tensor_map.swizzle in SWIZZLES, f"a swizzle has 0, 32, 64 or 128 bytes, got {tensor_map.swizzle}"),
        (
            len(steps) == rank and all(1 <= n <= _MAX_STEP for n in steps),
            f"steps are 1 to {_MAX_STEP} for each dimension, got {steps}",
        ),
        *_limits_of_box(tensor_map.box, rank),
    )
    row_bytes = (tensor_map.box.channels if isinstance(tensor_map.box, PixelBox) else tensor_map.box[0]) * itemsize
    row_limits = (
        (row_bytes % 16 == 0, f"a row of a box must have a multiple of 16 bytes, got {row_bytes}"),
        (
            not tensor_map.swizzle or row_bytes <= tensor_map.swizzle,
            f"a row of a box has at most the {tensor_map.swizzle} bytes of the swizzle, got {row_bytes}",
        ),
    )
    limit = next((limit for is_met, limit in (*limits, *row_limits) if not is_met), None)
    return None if limit is None else f"no tensor map {tensor_map.name} of {tensor_map.buffer} can be encoded: {limit}"


def _limits_of_box(box: tuple[int, ...] | PixelBox, rank: int) -> Sequence[tuple[bool, str]]:
    if not isinstance(box, PixelBox):
        is_legal = len(box) == rank and all(1 <= n <= _MAX_BOX for n in box)
        return ((is_legal, f"boxes have 1 to {_MAX_BOX} elements along each dimension, got {box}"),)
    spatial, corners = rank - 2, (*box.lower, *box.upper)
    limit = _CORNER_LIMITS.get(spatial, 0)
    return (
        (limit > 0, f"an image has 3 to {_MAX_RANK} dimensions, got {rank}"),
        (
            len(box.lower) == len(box.upper) == spatial and all(-limit <= n < limit for n in corners),
            f"corners are {spatial} numbers each from {-limit} to {limit - 1}, got {box.lower} and {box.upper}",
        ),
        (1 <= box.channels <= _MAX_BOX, f"1 to {_MAX_BOX} channels at a time, got {box.channels}"),
        (1 <= box.pixels <= _MAX_PIXELS, f"1 to {_MAX_PIXELS} pixels at a time, got {box.pixels}"),
    )


@lru_cache(maxsize=256)
def encode(tensor_map: TensorMap, address: int) -> EncodedMap:
    """Return the encoded map of a buffer at `address` on the device, aligned to ALIGNMENT. It is shared: do not change
    it.

    Cached, since most calls of a kernel use the same memory. Raises DeviceFault.
    """
    if reason := violated_limit(tensor_map, address):
        raise DeviceFault("launch_refused", reason)
    driver = _driver()
    memory = ctypes.create_string_buffer(NBYTES + ALIGNMENT)
    encoded = EncodedMap.from_buffer(memory, -ctypes.addressof(memory) % ALIGNMENT)
    rank = len(tensor_map.extents)
    dtype = DTYPES[tensor_map.dtype]
    code = _TYPES.get((dtype.kind, dtype.bits, dtype.exponent_bits), _UNSIGNED[dtype.nbytes])
    tensor = (
        ctypes.byref(encoded), code, rank, ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*tensor_map.extents), (ctypes.c_uint64 * rank)(*tensor_map.strides),
    )  # fmt: skip
    steps = (ctypes.c_uint32 * rank)(*(tensor_map.steps or (1,) * rank))
    modes = (_DEFAULT_MODE, SWIZZLES[tensor_map.swizzle], _L2_PROMOTION, _DEFAULT_MODE)
    box = tensor_map.box
    if isinstance(box, PixelBox):
        corners = ((ctypes.c_int * (rank - 2))(*corner) for corner in (box.lower, box.upper))
        status = driver.cuTensorMapEncodeIm2col(*tensor, *corners, box.channels, box.pixels, steps, *modes)
    else:
        status = driver.cuTensorMapEncodeTiled(*tensor, (ctypes.c_uint32 * rank)(*box), steps, *modes)
    if status:
        fault = FAULT_OF_CODE.get(status, "launch_failure")
        raise DeviceFault(fault, f"making the tensor map {tensor_map.name} failed: status {status} of the CUDA driver")
    tensor_bytes = dtype.nbytes * tensor_map.extents[0] + sum(
        (n - 1) * s for n, s in zip(tensor_map.extents[1:], tensor_map.strides, strict=True)
    )
    if _driver_version() <= _LAST_FAULTY_DRIVER and tensor_bytes < _SMALL_TENSOR_BYTES:
        encoded.words[_FAULTY_WORD] &= ~(1 << _FAULTY_BIT)
    return encoded


@cache
def _driver() -> ctypes.CDLL:
    """Return libcuda, which an open device has loaded already. Raises DeviceFault."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceFault("device_lost", f"the CUDA driver library cannot be called for tensor maps: {error}") from None


@cache
def _driver_version() -> int:
    """Return 13010 for the driver of CUDA 13.1; 0 if unknown."""
    version = ctypes.c_int(0)
    _driver().cuDriverGetVersion(ctypes.byref(version))
    return version.value

"""Tensor maps as the CUDA driver encodes them, for any Python package over it: `cuTensorMapEncode...` of libcuda.

The limits are those of cuda.h 13.0 at these functions. Drivers of CUDA 13.1 and before want one bit off in the maps of
small tensors (CUTLASS, cute/atom/copy_traits_sm90_tma.hpp).
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
# CUtensorMapDataType by kind, bits and exponent bits. What is not here is moved as unsigned integers of its size, which
# copies do not see.
_TYPES = {("i", 32, 0): 3, ("f", 16, 5): 6, ("f", 32, 8): 7, ("f", 64, 11): 8, ("f", 16, 8): 9}
_UNSIGNED = {1: 0, 2: 1, 4: 2, 8: 4}
_MOST_RANK, _MOST_BOX, _MOST_STEP, _MOST_PIXELS = 5, 256, 8, 1024
_CORNERS = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}  # by spatial dimensions: corners are from minus this to less than this
_WHOLE_LINES = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B: what is read is fetched into the cache by lines of 256 bytes
_NONE = 0  # no interleaving; zeros where a box is outside
_MENDED, _SMALL, _WORD, _BIT = 13010, 128 << 10, 1, 21  # the last release with the fault, and what it is


class EncodedMap(ctypes.Structure):
    """CUtensorMap."""

    _fields_ = (("words", ctypes.c_uint64 * (NBYTES // 8)),)


def why_illegal(wanted: TensorMap, address: int) -> str | None:
    """What no copy engine takes about a map of a buffer at `address`, in one sentence; None where it is legal."""
    rank, steps = len(wanted.extents), wanted.steps or (1,) * len(wanted.extents)
    itemsize = DTYPES[wanted.dtype].nbytes
    found = (
        (1 <= rank <= _MOST_RANK, f"a tensor has 1 to {_MOST_RANK} dimensions, got {rank}"),
        (address % 16 == 0, f"it must begin at a multiple of 16 bytes, got the address {address:#x}"),
        (all(1 <= n <= 1 << 32 for n in wanted.extents), f"extents are 1 to {1 << 32}, got {wanted.extents}"),
        (
            len(wanted.strides) == rank - 1 and all(s % 16 == 0 and 0 < s < 1 << 40 for s in wanted.strides),
            f"strides must be multiples of 16 bytes, {rank - 1} of them, got {wanted.strides}",
        ),
        (wanted.swizzle in SWIZZLES, f"a swizzle has 0, 32, 64 or 128 bytes, got {wanted.swizzle}"),
        (
            len(steps) == rank and all(1 <= n <= _MOST_STEP for n in steps),
            f"steps are 1 to {_MOST_STEP} for each dimension, got {steps}",
        ),
        *_of_box(wanted.box, rank),
    )
    inner = (wanted.box.channels if isinstance(wanted.box, PixelBox) else wanted.box[0]) * itemsize
    row = (
        (inner % 16 == 0, f"a row of a box must have a multiple of 16 bytes, got {inner}"),
        (
            not wanted.swizzle or inner <= wanted.swizzle,
            f"a row of a box has at most the {wanted.swizzle} bytes of the swizzle, got {inner}",
        ),
    )
    words = next((words for holds, words in (*found, *row) if not holds), None)
    return None if words is None else f"no tensor map {wanted.name} can be made of {wanted.buffer}: {words}"


def _of_box(box: tuple[int, ...] | PixelBox, rank: int) -> Sequence[tuple[bool, str]]:
    if not isinstance(box, PixelBox):
        legal = len(box) == rank and all(1 <= n <= _MOST_BOX for n in box)
        return ((legal, f"boxes have 1 to {_MOST_BOX} elements along each dimension, got {box}"),)
    spatial, corners = rank - 2, (*box.lower, *box.upper)
    limit = _CORNERS.get(spatial, 0)
    return (
        (limit > 0, f"an image has 3 to {_MOST_RANK} dimensions, got {rank}"),
        (
            len(box.lower) == len(box.upper) == spatial and all(-limit <= n < limit for n in corners),
            f"corners are {spatial} numbers each from {-limit} to {limit - 1}, got {box.lower} and {box.upper}",
        ),
        (1 <= box.channels <= _MOST_BOX, f"1 to {_MOST_BOX} channels at a time, got {box.channels}"),
        (1 <= box.pixels <= _MOST_PIXELS, f"1 to {_MOST_PIXELS} pixels at a time, got {box.pixels}"),
    )


@lru_cache(maxsize=256)
def encode(wanted: TensorMap, address: int) -> EncodedMap:
    """The map of a buffer at `address` on the device, at a multiple of ALIGNMENT; nobody may change it.

    Kept, because a kernel that is called again mostly gets the same memory. Raises DeviceFault.
    """
    if words := why_illegal(wanted, address):
        raise DeviceFault("launch_refused", words)
    driver = _driver()
    space = ctypes.create_string_buffer(NBYTES + ALIGNMENT)
    made = EncodedMap.from_buffer(space, -ctypes.addressof(space) % ALIGNMENT)
    rank = len(wanted.extents)
    dtype = DTYPES[wanted.dtype]
    code = _TYPES.get((dtype.kind, dtype.bits, dtype.exponent_bits), _UNSIGNED[dtype.nbytes])
    tensor = (
        ctypes.byref(made), code, rank, ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*wanted.extents), (ctypes.c_uint64 * rank)(*wanted.strides),
    )  # fmt: skip
    steps = (ctypes.c_uint32 * rank)(*(wanted.steps or (1,) * rank))
    modes = (_NONE, SWIZZLES[wanted.swizzle], _WHOLE_LINES, _NONE)
    box = wanted.box
    if isinstance(box, PixelBox):
        corners = ((ctypes.c_int * (rank - 2))(*corner) for corner in (box.lower, box.upper))
        status = driver.cuTensorMapEncodeIm2col(*tensor, *corners, box.channels, box.pixels, steps, *modes)
    else:
        status = driver.cuTensorMapEncodeTiled(*tensor, (ctypes.c_uint32 * rank)(*box), steps, *modes)
    if status:
        kind = FAULT_OF_CODE.get(status, "launch_failure")
        raise DeviceFault(kind, f"making the tensor map {wanted.name} failed: status {status} of the CUDA driver")
    reach = dtype.nbytes * wanted.extents[0] + sum(
        (n - 1) * s for n, s in zip(wanted.extents[1:], wanted.strides, strict=True)
    )
    if _driver_version() <= _MENDED and reach < _SMALL:
        made.words[_WORD] &= ~(1 << _BIT)
    return made


@cache
def _driver() -> ctypes.CDLL:
    """Loaded by then: there is a device. Raises DeviceFault."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceFault("device_lost", f"the CUDA driver library cannot be called for tensor maps: {error}") from None


@cache
def _driver_version() -> int:
    """13010 of CUDA 13.1; 0 where it is not told."""
    version = ctypes.c_int(0)
    _driver().cuDriverGetVersion(ctypes.byref(version))
    return version.value

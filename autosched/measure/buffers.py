"""Guarded memory for kernels under test: 64-byte aligned buffers between redzones, and poison in unwritten memory.

Poison is 0x7FFB repeated for floats (a NaN in every width that a float can have, so that reading it shows in the
result) and 0xA5 for integers. A redzone has REDZONE bytes on either side: 0xA5 around outputs and scratch, the NaN
around inputs. So elements read from beyond an input show, and so does copying one redzone into another.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from autosched.ir.dtype import DTYPES
from autosched.runtime.tensors import ALIASED_BYTES, ALIGNMENT, apart

REDZONE = 256
GUARD = b"\xa5"
POISON_FLOAT = b"\xfb\x7f"
_LIBC = ctypes.CDLL(None)
_LIBC.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_LIBC.memcmp.restype = ctypes.c_int

Bytes = npt.NDArray[np.uint8]


def poison_bytes(dtype: str, n_bytes: int) -> Bytes:
    """Return `n_bytes` of poison for `dtype`: 0xA5 for 8-bit floats too, as kernels may write any of their few NaNs."""
    if not DTYPES[dtype].is_float or DTYPES[dtype].nbytes == 1:
        return np.full(n_bytes, GUARD[0], np.uint8)
    return np.resize(np.frombuffer(POISON_FLOAT, np.uint8), n_bytes)


class GuardedBuffer:
    """`n_bytes` of memory, aligned to 64 bytes, between two redzones. Raises MemoryError if it is too large.

    `input_address`: of the input that a result is computed from; the buffer is then placed by `runtime.tensors.apart`,
    so that the two do not alias in the cache.
    """

    def __init__(self, n_bytes: int, guard: bytes = GUARD, input_address: int | None = None) -> None:
        slack = ALIGNMENT if input_address is None else ALIASED_BYTES
        try:
            raw = np.empty(n_bytes + 2 * REDZONE + slack, np.uint8)
        except ValueError:  # more than an array can have, which is more than a machine has
            raise MemoryError(f"{n_bytes} bytes") from None
        first = raw.ctypes.data + REDZONE
        start = REDZONE + (-first % ALIGNMENT if input_address is None else apart(first, input_address))
        self.bytes: Bytes = raw[start : start + n_bytes]
        self.address: int = raw.ctypes.data + start
        self._zones: tuple[Bytes, Bytes] = (raw[start - REDZONE : start], raw[start + n_bytes :][:REDZONE])
        self._guard: Bytes = np.resize(np.frombuffer(guard, np.uint8), REDZONE)
        self.guard()

    def guard(self) -> None:
        """Fill the redzones."""
        for zone in self._zones:
            zone[:] = self._guard

    def poison(self, dtype: str) -> None:
        """Fill the buffer with poison."""
        if DTYPES[dtype].is_float:
            even = self.bytes[: len(self.bytes) & ~1]
            even.view(np.uint16).fill(int.from_bytes(POISON_FLOAT, "little"))
        else:
            self.bytes.fill(GUARD[0])

    def breach(self) -> str | None:
        """Return a sentence on the bytes of the redzones that were overwritten; None if they are intact."""
        for zone, side in zip(self._zones, ("before its start", "after its end"), strict=True):
            changed = np.flatnonzero(zone != self._guard)
            if len(changed):
                nearest = REDZONE - int(changed[-1]) if side.startswith("before") else int(changed[0]) + 1
                return f"{len(changed)} bytes {side}, the nearest {nearest} bytes away"
        return None

    def equals(self, other: npt.NDArray[np.generic]) -> bool:
        """Return whether the bytes equal those of the C-contiguous array `other`."""
        return same_bytes(self.bytes, other)


def same_bytes(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> bool:
    """Return whether two C-contiguous arrays have the same bytes, by memcmp, several times as fast as NumPy."""
    assert a.flags.c_contiguous
    assert b.flags.c_contiguous
    return a.nbytes == b.nbytes and _LIBC.memcmp(a.ctypes.data, b.ctypes.data, a.nbytes) == 0

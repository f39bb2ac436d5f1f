"""Argument sets of a timed kernel: calls take copies of its packed weights in turn, so that these are not in the
caches.

A kernel of a network does not find its weights where its last call has left them (`target.far_weights`). It is timed
with as many copies as evict each other from the caches. Activations stay in the caches, as the layer before has just
written them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autosched.runtime.tensors import ALIGNMENT, address_of, aligned_empty

MAX_SETS = 1024  # smaller weights hardly matter for a kernel's time


class CopyMemory:
    """Memory that is reused by successive argument sets: allocating new pages takes longer than filling them."""

    def __init__(self) -> None:
        self._bytes = aligned_empty((0,), "uint8")

    def of(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Return `n_bytes` of the memory."""
        if n_bytes > len(self._bytes):
            self._bytes = aligned_empty((n_bytes,), "uint8")
        return self._bytes[:n_bytes]


class ArgumentSets:
    """Pointers to the arguments of each set, and the memory of the copies.

    `args`: the address of the pointers. `turn`: the address of the state of the timing loop: the number of the next
    call's set, the number of sets, and the pointers in a set.
    """

    def __init__(
        self,
        pointers: Sequence[int | None],
        packed: npt.NDArray[np.uint8] | None,
        bytes_between_calls: int,
        memory: CopyMemory | None = None,
    ) -> None:
        """Create a set for each copy. `packed`: the block of the last pointer. `bytes_between_calls`: bytes of other
        copies that are read between two calls with the same one. `memory`: that of earlier sets, which are not used any
        more.
        """
        stride = 0 if packed is None else aligned_stride(packed.nbytes)
        copies = min(-(-bytes_between_calls // stride), MAX_SETS - 1) if packed is not None and packed.nbytes else 0
        self._memory = (memory or CopyMemory()).of(copies * stride)
        flat = [*pointers]
        for n in range(copies):
            assert packed is not None
            copy = self._memory[n * stride :][: packed.nbytes]
            copy[:] = packed
            flat += [*pointers[:-1], address_of(copy)]
        self._pointers = (ctypes.c_void_p * len(flat))(*flat)
        self._turn = (ctypes.c_int64 * 3)(0, copies + 1, len(pointers))
        self.args: int = ctypes.addressof(self._pointers)
        self.turn: int = ctypes.addressof(self._turn)

    @property
    def count(self) -> int:
        return self._turn[1]


def aligned_stride(n_bytes: int) -> int:
    """Return the bytes from copy to copy: a line more than they need, so that their offsets in a page differ."""
    return (n_bytes // ALIGNMENT + 2) * ALIGNMENT

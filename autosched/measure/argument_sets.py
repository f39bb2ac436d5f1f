"""A kernel's arguments, once or several times: with copies of its packed weights, which calls take by turns.

A kernel of a network does not find its weights where its last call has left them (`target.far_weights`). It is timed
with as many copies as push each other out of the caches; what flows between layers stays where it is, as a layer before
has just written it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autosched.runtime.tensors import ALIGNMENT, address_of, aligned_empty

MOST_SETS = 1024  # smaller weights are nothing beside what else a kernel does


class CopyMemory:
    """Memory for one set of copies after another: the system takes longer to give new pages than they take to fill."""

    def __init__(self) -> None:
        self._bytes = aligned_empty((0,), "uint8")

    def of(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        if n_bytes > len(self._bytes):
            self._bytes = aligned_empty((n_bytes,), "uint8")
        return self._bytes[:n_bytes]


class ArgumentSets:
    """Pointers to arguments, set after set, and the memory of the copies. `turn` is what the timing loop reads and
    moves on: the number of the next call's set, how many there are, pointers of one."""

    def __init__(
        self,
        pointers: Sequence[int | None],
        packed: npt.NDArray[np.uint8] | None,
        passing: int,
        memory: CopyMemory | None = None,
    ) -> None:
        """`packed`: what the last pointer points to. `passing`: bytes of other copies between two calls with one.
        `memory`: of earlier sets, which nobody uses any more."""
        stride = 0 if packed is None else aligned_stride(packed.nbytes)
        copies = min(-(-passing // stride), MOST_SETS - 1) if packed is not None and packed.nbytes else 0
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
    """From copy to copy: a line more than they need, so that they begin at different places of a page."""
    return (n_bytes // ALIGNMENT + 2) * ALIGNMENT

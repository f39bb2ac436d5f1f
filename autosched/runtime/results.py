"""Reuse of results: memory of large ones and small arrays themselves, once nothing refers to them any more.

The C library returns large blocks to the system when they are freed (glibc: always those above 32 MiB), and the system
clears the pages of a new block at their first write: at 64 MiB that took 8.1 ms, writing to mapped pages 2.4 ms. So the
memory of the last large results is kept, at most KEPT_BYTES. It is reused once its reference count shows that no array,
view, tensor or buffer holds it.

Of a small result it is the array that takes long: 8000 cycles of Python, where the C library's memory took 1000 and
PyTorch does all of relu for 56 x 56 numbers in 5700. So each kernel keeps its last two (`Spares`).

Both ask the object that owns the memory, since a view need not hold the array that it was made of: NumPy gives it the
owner of that array's memory as its base. An array itself is asked as well where it is to be used again.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from sys import getrefcount
from typing import Any, Final, TypeAlias
from weakref import getweakrefcount

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Memory: TypeAlias = npt.NDArray[np.uint8]

LARGE_BYTES: Final = 8 << 20  # smaller ones the C library keeps by itself
KEPT_BYTES: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 32  # of this machine's memory
SPARE_BYTES: Final = 256 << 10  # what computes more takes ten times as long as the call

_kept: deque[Memory] = deque()  # the latest last; threads share it, since its methods are atomic


def result_memory(n_bytes: int) -> Memory:
    """Return so many bytes, of any content, that nothing else holds. A view of them keeps them from being reused."""
    if not LARGE_BYTES <= n_bytes <= KEPT_BYTES or not _COUNTS_TELL:
        return np.empty(n_bytes, np.uint8)
    for _ in range(len(_kept)):
        try:
            memory = _kept.popleft()
        except IndexError:  # another thread has it
            break
        is_free = memory.nbytes == n_bytes and getrefcount(memory) == _ALONE and not getweakrefcount(memory)
        _kept.append(memory)  # `memory` holds it: no other thread can take it for free
        if is_free:
            return memory
    made: Memory = np.empty(n_bytes, np.uint8)
    _kept.append(made)
    _forget_oldest()
    return made


def _forget_oldest() -> None:
    """Down to KEPT_BYTES; what is in use lives on with its users."""
    while sum(memory.nbytes for memory in tuple(_kept)) > KEPT_BYTES:
        try:
            _kept.popleft()
        except IndexError:
            return


class Spare:
    """The results of a call, each with its memory. `key`: the address of the input that they are placed apart from."""

    __slots__ = ("key", "owned", "results")

    def __init__(self, key: int, results: list[Array]) -> None:
        self.key = key
        self.results = results
        self.owned = [(array, array.base) for array in results]


class Spares:
    """The last results of one kernel that computes `n_bytes` at a call, two at most: a caller in a loop still holds one
    when it calls again.

    The caller checks shape and strides of a reused result first: an owner may have changed them.
    """

    __slots__ = ("_kept",)

    def __init__(self, n_bytes: int) -> None:
        n = 2 if n_bytes <= SPARE_BYTES and _COUNTS_TELL else 0
        self._kept: deque[Spare] = deque(maxlen=n)  # threads share it

    def take(self, key: int) -> Spare | None:
        """Return the results of an earlier call, of any content, if nothing else holds one of them or its memory, and
        their memory has not changed.
        """
        kept = self._kept
        for _ in range(len(kept)):
            try:
                spare = kept.popleft()
            except IndexError:  # another thread has it
                break
            if spare.key == key:
                for array, memory in spare.owned:
                    if getrefcount(array) != _ALONE_IN_SPARE or getrefcount(memory) != _ALONE_AS_BASE:
                        break
                    if array.base is not memory or getweakrefcount(array) or getweakrefcount(memory):
                        break
                else:
                    return spare
            kept.append(spare)
        return None

    def keep(self, spare: Spare) -> None:
        """Keep results. The caller must hold the arrays elsewhere than in the spare, as long as it uses them."""
        self._kept.append(spare)


def _references_of_one() -> int:
    """Return the reference count in `result_memory` of memory that only its variable holds; it differs among
    versions.
    """
    memory = np.empty(1, np.uint8)
    return getrefcount(memory)


def _references_in_spare() -> tuple[int, int]:
    """Return the reference counts in `Spares.take` of an array, and of its memory, that only a spare holds."""
    spare = Spare(0, [np.ndarray(1, np.uint8, np.empty(1, np.uint8))])
    for array, memory in spare.owned:
        return getrefcount(array), getrefcount(memory)
    raise AssertionError("a spare of one result holds one")


_ALONE = _references_of_one()
_ALONE_IN_SPARE, _ALONE_AS_BASE = _references_in_spare()
_COUNTS_TELL = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()

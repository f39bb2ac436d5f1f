"""Memory for large results, and small results themselves, used again when nobody looks at them any more.

The C library gives large pieces back to the system when they are freed (glibc: always those above 32 MiB), and the
system clears the pages of a new one as they are first written: at 64 MiB that took 8.1 ms, where writing to pages that
are there took 2.4. So the last large results stay here, in at most KEPT_BYTES. One is given out again once the count of
references says that no array, view, tensor or buffer holds it.

Of a small result it is the array that takes long: 8000 cycles of Python, where the C library's memory took 1000 and
PyTorch does all of relu for 56 x 56 numbers in 5700. So each kernel keeps its last two (`Spares`).
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Memory: TypeAlias = npt.NDArray[np.uint8]

LARGE_BYTES: Final = 8 << 20  # smaller ones the C library keeps by itself
KEPT_BYTES: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 32  # of this machine's memory
SPARE_BYTES: Final = 256 << 10  # what computes more takes ten times as long as the call

_kept: deque[Memory] = deque()  # the latest last; threads share it, since its methods are atomic


def result_memory(n_bytes: int) -> Memory:
    """So many bytes, of any content, that nobody else holds. A view of them keeps them from being given out again."""
    if not LARGE_BYTES <= n_bytes <= KEPT_BYTES or not _COUNTS_TELL:
        return np.empty(n_bytes, np.uint8)
    for _ in range(len(_kept)):
        try:
            memory = _kept.popleft()
        except IndexError:  # another thread has it
            break
        is_free = memory.nbytes == n_bytes and sys.getrefcount(memory) == _ALONE
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


class Spares:
    """The last results of one kernel that makes `n_bytes` at a call, two at most: a caller in a loop still holds one
    while it asks for the next. They belong to a key, which says where they lie best. Whoever uses them again looks at
    their form first: an owner may have changed it."""

    def __init__(self, n_bytes: int) -> None:
        n = 2 if n_bytes <= SPARE_BYTES and _COUNTS_TELL else 0
        self._kept: deque[tuple[int, list[Array]]] = deque(maxlen=n)  # threads share it

    def take(self, key: int) -> list[Array] | None:
        """The results of an earlier call, of any content, that nobody else holds."""
        for _ in range(len(self._kept)):
            try:
                kept = self._kept.popleft()
            except IndexError:  # another thread has it
                break
            if kept[0] == key and _references(kept[1]) == _ALONE_IN_LIST * len(kept[1]):
                return kept[1]
            self._kept.append(kept)
        return None

    def keep(self, key: int, results: list[Array]) -> None:
        """The caller must have the arrays elsewhere than in this list, as long as it uses them."""
        self._kept.append((key, results))


def _references(results: list[Array]) -> int:
    """What counting says of all arrays together, weak references included."""
    found = 0
    for array in results:
        found += sys.getrefcount(array) + weakref.getweakrefcount(array)
    return found


def _references_of_one() -> int:
    """What counting says in `result_memory` of memory that only its variable holds; it differs among versions."""
    memory = np.empty(1, np.uint8)
    return sys.getrefcount(memory)


_ALONE, _ALONE_IN_LIST = _references_of_one(), _references([np.empty(1)])
_COUNTS_TELL = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()

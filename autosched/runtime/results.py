"""Memory for large results, used again when nobody looks at it any more.

The C library gives large pieces back to the system when they are freed (glibc: always those above 32 MiB), and the
system clears the pages of a new one as they are first written: at 64 MiB that took 8.1 ms, where writing to pages that
are there took 2.4. So the last large results stay here, in at most KEPT_BYTES. One is given out again once the count of
references says that no array, view, tensor or buffer holds it.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Memory: TypeAlias = npt.NDArray[np.uint8]

LARGE_BYTES: Final = 8 << 20  # smaller ones the C library keeps by itself
KEPT_BYTES: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 32  # of this machine's memory

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


def _references_of_one() -> int:
    """What counting says in `result_memory` of memory that only its variable holds; it differs among versions."""
    memory = np.empty(1, np.uint8)
    return sys.getrefcount(memory)


_ALONE = _references_of_one()
_COUNTS_TELL = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()

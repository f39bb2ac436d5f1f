"""Python's search for reference cycles, which would take a session 5 to 13 % of its time (two readings)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# New objects before the youngest are looked through, where Python's own number is 700. Of a session's expressions most
# live until its end, and every look at one costs as much; what lies in cycles until then is a few ten megabytes.
YOUNG = 2_000_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Inside, cycles are searched for rarely; not at all where that is switched off, and as before afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], YOUNG) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)

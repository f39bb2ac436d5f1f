"""How much of a run's time is left."""

from __future__ import annotations

import time
from collections.abc import Callable

RESERVE_S = 8.0  # for the table, and for processes to end


class Budget:
    """`minutes` from now on, less RESERVE_S; `clock` in seconds."""

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self.total_s = max(0.0, 60.0 * minutes - RESERVE_S)

    @property
    def spent_s(self) -> float:
        return self._clock() - self._start

    @property
    def left_s(self) -> float:
        return max(0.0, self.total_s - self.spent_s)

    def share(self, wanted_s: float, least_s: float, kept_s: float = 0.0) -> float | None:
        """Up to `wanted_s` seconds such that `kept_s` stay; None where that would be less than `least_s`."""
        given = min(wanted_s, self.left_s - kept_s)
        return given if given >= least_s else None

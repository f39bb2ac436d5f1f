"""How long kernels of a network take on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosched.runtime.gpu.device import LaunchSequence

LEAST_S = 2e-4  # that are timed at once: what begins and ends it takes 4 us
MOST = 64  # launches at a time of one of the calls


@dataclass
class GpuClock:
    """Seconds of one of `calls`, which do the same with other arrays and take turns: as weights of several layers do in
    a network, they push each other out of the caches. `seconds` times so many calls that go round some."""

    calls: Sequence[LaunchSequence]
    seconds: Callable[[Sequence[LaunchSequence], int], float]
    _rounds: int = 0

    def __call__(self, times: int) -> float:
        n = len(self.calls)
        if not n:  # all that it would do has been done when the network was loaded
            return 0.0
        if not self._rounds:
            once = self.seconds(self.calls, n)
            self._rounds = max(1, min(math.ceil(LEAST_S / max(once, 1e-9)), MOST))
        timed = n * max(self._rounds, -(-times // n))
        return self.seconds(self.calls, timed) / timed * times

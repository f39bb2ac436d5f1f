"""GPU timer: seconds of a network's kernels, by events of the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosched.runtime.gpu.device import LaunchSequence

MIN_S = 2e-4  # duration of a measurement: the two events take 4 us
MAX_LAUNCHES = 64  # of one kernel in a measurement


@dataclass
class GpuClock:
    """Clock of a kernel. `calls`: the kernel's launches with the arrays of each layer that has it, which are timed in
    turn, so that layers evict each other's weights from the caches as in the network. `seconds(calls, n)` times `n`
    launches that cycle through `calls`."""

    calls: Sequence[LaunchSequence]
    seconds: Callable[[Sequence[LaunchSequence], int], float]
    _rounds: int = 0

    def __call__(self, times: int) -> float:
        n = len(self.calls)
        if not n:  # all launches of the kernel were constant and have run at load
            return 0.0
        if not self._rounds:
            once = self.seconds(self.calls, n)
            self._rounds = max(1, min(math.ceil(MIN_S / max(once, 1e-9)), MAX_LAUNCHES))
        timed = n * max(self._rounds, -(-times // n))
        return self.seconds(self.calls, timed) / timed * times

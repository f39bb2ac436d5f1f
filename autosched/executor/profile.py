"""The kernels of a network as they run one after the other, in the network's arena, each timed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from autosched.executor.model import Model
from autosched.graph.graph import Array
from autosched.measure.backends import lock_name
from autosched.measure.host import device_lock

BUDGET_S = 2.0
FEWEST, MOST = 5, 200  # runs


@dataclass(frozen=True)
class NetworkTimes:
    """Medians in seconds. `kernels`: by the step that each is; `call`: of the whole network, called as users do."""

    kernels: Mapping[int, float]
    call: float


def profile(model: Model, arrays: Mapping[str, Array], budget_s: float | None = None) -> NetworkTimes:
    """Runs the network on `arrays`, by the names of its inputs, kernel by kernel and whole in turn, for about
    `budget_s` (default: BUDGET_S). Raises DeviceError where a kernel stops."""
    with device_lock(lock_name(model.device.target.kind)):
        clocks = model.clocks(arrays)
        clocks.call(1)
        samples: dict[int, list[float]] = {step: [] for step in clocks.kernels}
        calls: list[float] = []
        end = time.perf_counter() + (BUDGET_S if budget_s is None else budget_s)
        while len(calls) < FEWEST or (len(calls) < MOST and time.perf_counter() < end):
            for step, clock in clocks.kernels.items():
                samples[step].append(clock(1))
            calls.append(clocks.call(1))
    return NetworkTimes({step: median(found) for step, found in samples.items()}, median(calls))

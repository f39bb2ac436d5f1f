"""Profile of a network: the time of each kernel, run in order in the network's arena, and of whole calls."""

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
MIN_RUNS, MAX_RUNS = 5, 200


@dataclass(frozen=True)
class NetworkProfile:
    """Medians in seconds. `kernels`: of each kernel, by its step. `call`: of a call of the whole network."""

    kernels: Mapping[int, float]
    call: float


def profile(model: Model, arrays: Mapping[str, Array], budget_s: float | None = None) -> NetworkProfile:
    """Profile the network on `arrays` (by input name): kernels and whole calls, interleaved, for about `budget_s`
    seconds (default: BUDGET_S). Raises DeviceError if a kernel fails."""
    with device_lock(lock_name(model.device.target.kind)):
        clocks = model.clocks(arrays)
        clocks.call(1)
        samples: dict[int, list[float]] = {step: [] for step in clocks.kernels}
        calls: list[float] = []
        end = time.perf_counter() + (BUDGET_S if budget_s is None else budget_s)
        while len(calls) < MIN_RUNS or (len(calls) < MAX_RUNS and time.perf_counter() < end):
            for step, clock in clocks.kernels.items():
                samples[step].append(clock(1))
            calls.append(clocks.call(1))
    return NetworkProfile({step: median(seconds) for step, seconds in samples.items()}, median(calls))

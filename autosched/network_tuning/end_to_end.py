"""Interleaved end-to-end comparison of networks: what is fastest alone need not be fastest in the network.

A kernel is tuned with its weights at their cache level in the network, but with its other arrays in the caches; in the
network other kernels have used the caches before. So schedules are also timed within the network: the earlier schedule
of a task, the best one measured and, for the tasks that take most of the time, the next best. The fastest ones are
taken if whole calls become faster by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TypeAlias

from autosched.executor.model import Model
from autosched.executor.profile import profile
from autosched.graph.graph import Array
from autosched.measure.backends import lock_name
from autosched.measure.host import device_lock
from autosched.measure.timing import interleaved
from autosched.tuner.workload_spec import WorkloadSpec

ROUNDS, SAMPLE_S = 11, 0.01
PROFILES, PROFILE_S = 3, 0.15  # of each network, interleaved: the least of a kernel's medians counts
SLOWER = 1.02  # a kernel loses if it is more than this times as slow as another one in the network
MARGIN = 0.005  # of a network's latency: smaller differences do not count
Arrays: TypeAlias = Mapping[str, Array]  # by the names of the network's inputs
Samples: TypeAlias = tuple[float, ...]  # seconds of one call
Steps: TypeAlias = Mapping[WorkloadSpec, str]  # schedules of tasks by their specs
RankedSteps: TypeAlias = Mapping[WorkloadSpec, Sequence[str]]  # schedules of tasks, the fastest alone first


@dataclass(frozen=True)
class LatencyComparison:
    """The faster network of two, and interleaved samples of the earlier network and of this one."""

    model: Model
    before: Samples
    after: Samples


def comparison_s(call_s: float) -> float:
    """Return the seconds that comparing two networks takes whose calls take `call_s`."""
    return 2 * (ROUNDS + 1) * max(SAMPLE_S, call_s)


def choose_schedules(
    start: Model,
    candidates: RankedSteps,
    build: Callable[[Steps], Model],
    inputs: Arrays,
    can_continue: Callable[[], bool],
) -> LatencyComparison:
    """Compare `start` with the network that `build` makes of the fastest candidates.

    Those are the ones fastest alone, or those fastest in the network if it is faster by them. Once `can_continue`
    returns False, the ones fastest alone are taken all or none.
    """
    if not candidates:
        (samples,) = interleaved_samples([start], inputs)
        return LatencyComparison(start, samples, samples)
    steps = {spec: ranked[0] for spec, ranked in candidates.items()}
    best = build(steps)
    if can_continue():
        others = _build_runners_up(steps, candidates, build, can_continue)
        times = times_in_network([start, best, *(model for _, model in others)], inputs)
        chosen = fastest_in_network(times[0], list(zip([steps, *(s for s, _ in others)], times[1:], strict=True)))
        if chosen != steps:
            rival = build(chosen) if chosen else start
            best_samples, rival_samples = interleaved_samples([best, rival], inputs)
            best = rival if min(rival_samples) < (1 - MARGIN) * min(best_samples) else best
    return compare(start, best, inputs)


def compare(start: Model, best: Model, inputs: Arrays) -> LatencyComparison:
    """Compare whole calls of two networks."""
    before, after = interleaved_samples([start, best], inputs)
    return (
        LatencyComparison(best, before, after) if min(after) < min(before) else LatencyComparison(start, before, before)
    )


def _build_runners_up(
    steps: Steps, candidates: RankedSteps, build: Callable[[Steps], Model], can_continue: Callable[[], bool]
) -> list[tuple[Steps, Model]]:
    """Build a network with the second schedule of each task that has one, one with the third, and so on."""
    networks: list[tuple[Steps, Model]] = []
    for rank in range(1, max(map(len, candidates.values()))):
        if not can_continue():
            break
        other = {**steps, **{spec: ranked[rank] for spec, ranked in candidates.items() if len(ranked) > rank}}
        networks.append((other, build(other)))
    return networks


def interleaved_samples(models: Sequence[Model], inputs: Arrays) -> list[Samples]:
    """Return interleaved samples of each network, taken under the lock of the device."""
    clocks = {}
    for n, model in enumerate(models):
        clocks[str(n)] = model.clocks(inputs).call
    with device_lock(lock_name(models[0].device.target.kind)):
        samples = interleaved(clocks, ROUNDS, SAMPLE_S)
    return [tuple(samples[str(n)]) for n in range(len(models))]


def times_in_network(models: Sequence[Model], inputs: Arrays) -> list[dict[WorkloadSpec, float]]:
    """Return for each network the seconds of its tasks' kernels within it, by their specs."""
    times: list[dict[WorkloadSpec, float]] = [{} for _ in models]
    for _ in range(PROFILES):
        for least, model in zip(times, models, strict=True):
            kernels = profile(model, inputs, PROFILE_S).kernels
            for task in model.tasks:
                seconds = mean(kernels[n] for n in task.steps)
                workload = task.kernel_spec.workload
                least[workload] = min(seconds, least.get(workload, seconds))
    return times


def fastest_in_network(
    start: Mapping[WorkloadSpec, float], tried: Sequence[tuple[Steps, Mapping[WorkloadSpec, float]]]
) -> dict[WorkloadSpec, str]:
    """Return the schedules of `tried`, each with the times of its network, that are fastest in the network.

    Tasks whose kernel was faster at the `start` are left out. The first schedules of `tried` are preferred to those
    that are faster by less than SLOWER.
    """
    first, first_times = tried[0]
    chosen: dict[WorkloadSpec, str] = {}
    for spec, steps in first.items():
        best, best_s = steps, first_times.get(spec, math.inf)
        for other, times in tried[1:]:
            if other[spec] != steps and SLOWER * times.get(spec, math.inf) < best_s:
                best, best_s = other[spec], times[spec]
        if best_s <= SLOWER * start.get(spec, math.inf):
            chosen[spec] = best
    return chosen

"""Networks timed as a whole, side by side: what is faster alone need not be faster between its neighbours.

A kernel is tuned with its weights as far away as they are in the network, and its other arrays in the caches that it
likes; in a network others have been there before. So kernels are also timed as they run there: the one that there was,
the best that was found, and of the tasks that take most of the time the next best. Which is fastest there is taken, if
whole calls are faster for it.
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

ROUNDS, SAMPLE_S = 11, 0.01
PROFILES, PROFILE_S = 3, 0.15  # of each network, by turns: the fastest median of a kernel counts
SLOWER = 1.02  # times as long takes a kernel that loses in the network
MARGIN = 0.005  # of a network's time: a difference that counts
Arrays: TypeAlias = Mapping[str, Array]  # by the names of the network's inputs
Samples: TypeAlias = tuple[float, ...]  # seconds of one call
Steps: TypeAlias = Mapping[str, str]  # schedules of tasks by their specs
Found: TypeAlias = Mapping[str, Sequence[str]]  # the same, several of a task: the one that was fastest alone first


@dataclass(frozen=True)
class Verdict:
    """The faster network, and samples of the one before and of this one, taken side by side."""

    model: Model
    before: Samples
    after: Samples


def contest_s(call_s: float) -> float:
    """Seconds that comparing two networks takes, of which a call takes so long."""
    return 2 * (ROUNDS + 1) * max(SAMPLE_S, call_s)


def contest(
    start: Model, found: Found, build: Callable[[Steps], Model], inputs: Arrays, may_go_on: Callable[[], bool]
) -> Verdict:
    """`start` against the network that `build` makes of the best schedules `found`, or of those that are fastest in it
    if it is faster for that. Where it may not go on, the best are all taken or none."""
    if not found:
        (samples,) = side_by_side([start], inputs)
        return Verdict(start, samples, samples)
    steps = {spec: known[0] for spec, known in found.items()}
    best = build(steps)
    if may_go_on():
        others = _others(steps, found, build, may_go_on)
        times = times_inside([start, best, *(model for _, model in others)], inputs)
        chosen = fastest_inside(times[0], list(zip([steps, *(s for s, _ in others)], times[1:], strict=True)))
        if chosen != steps:
            rival = build(chosen) if chosen else start
            mine, theirs = side_by_side([best, rival], inputs)
            best = rival if min(theirs) < (1 - MARGIN) * min(mine) else best
    return faster(start, best, inputs)


def faster(start: Model, best: Model, inputs: Arrays) -> Verdict:
    """The faster of two networks in whole calls."""
    before, after = side_by_side([start, best], inputs)
    return Verdict(best, before, after) if min(after) < min(before) else Verdict(start, before, before)


def _others(
    steps: Steps, found: Found, build: Callable[[Steps], Model], may_go_on: Callable[[], bool]
) -> list[tuple[Steps, Model]]:
    """Networks with the next schedule of each task that has one, with the one after that, and so on."""
    made: list[tuple[Steps, Model]] = []
    for place in range(1, max(map(len, found.values()))):
        if not may_go_on():
            break
        other = {**steps, **{spec: known[place] for spec, known in found.items() if len(known) > place}}
        made.append((other, build(other)))
    return made


def side_by_side(models: Sequence[Model], inputs: Arrays) -> list[Samples]:
    """Samples of each network, by turns, while nobody else of this user's measures."""
    clocks = {}
    for n, model in enumerate(models):
        clocks[str(n)] = model.clocks(inputs).call
    with device_lock(lock_name(models[0].device.target.kind)):
        samples = interleaved(clocks, ROUNDS, SAMPLE_S)
    return [tuple(samples[str(n)]) for n in range(len(models))]


def times_inside(models: Sequence[Model], inputs: Arrays) -> list[dict[str, float]]:
    """For each network the seconds of its tasks' kernels as they run in it, by their specs."""
    times: list[dict[str, float]] = [{} for _ in models]
    for _ in range(PROFILES):
        for known, model in zip(times, models, strict=True):
            kernels = profile(model, inputs, PROFILE_S).kernels
            for task in model.tasks:
                seconds = mean(kernels[n] for n in task.steps)
                known[task.recipe.spec] = min(seconds, known.get(task.recipe.spec, seconds))
    return times


def fastest_inside(start: Mapping[str, float], tried: Sequence[tuple[Steps, Mapping[str, float]]]) -> dict[str, str]:
    """Of the schedules that were `tried`, each with the times of its network, those that are fastest there; without
    the tasks whose kernel was faster at the `start`. What is not faster by more than times differ is not preferred to
    the first."""
    first, first_times = tried[0]
    chosen: dict[str, str] = {}
    for spec, steps in first.items():
        best, best_s = steps, first_times.get(spec, math.inf)
        for other, times in tried[1:]:
            if other[spec] != steps and SLOWER * times.get(spec, math.inf) < best_s:
                best, best_s = other[spec], times[spec]
        if best_s <= SLOWER * start.get(spec, math.inf):
            chosen[spec] = best
    return chosen

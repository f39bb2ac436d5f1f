"""Networks timed as a whole, side by side: what is faster alone need not be faster between its neighbours.

A kernel is tuned with its arrays in the caches that it likes; in a network others have been there before. So kernels
are also timed as they run there, and those that lose by it are taken back if whole calls are faster for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TypeAlias

from autosched.graph.graph import Array
from autosched.measure.backends import lock_name
from autosched.measure.host import device_lock
from autosched.measure.timing import interleaved
from autosched.network.model import Model
from autosched.network.profile import profile

ROUNDS, SAMPLE_S = 11, 0.01
PROFILES, PROFILE_S = 3, 0.15  # of each network, by turns: the fastest median of a kernel counts
SLOWER = 1.02  # times as long takes a kernel that loses in the network
MARGIN = 0.005  # of a network's time: a difference that counts
Arrays: TypeAlias = Mapping[str, Array]  # by the names of the network's inputs
Samples: TypeAlias = tuple[float, ...]  # seconds of one call
Steps: TypeAlias = Mapping[str, str]  # schedules of tasks by their specs


@dataclass(frozen=True)
class Verdict:
    """The faster network, and samples of the one before and of this one, taken side by side."""

    model: Model
    before: Samples
    after: Samples


def contest(
    start: Model, found: Steps, build: Callable[[Steps], Model], inputs: Arrays, may_go_on: Callable[[], bool]
) -> Verdict:
    """`start` against the network that `build` makes of the schedules `found`, without those that lose in it if that is
    faster. Where it may not go on, all of them are taken or none."""
    if not found:
        (samples,) = side_by_side([start], inputs)
        return Verdict(start, samples, samples)
    best = build(found)
    if may_go_on() and (losing := losing_tasks(start, best, inputs) & set(found)):
        rest = {spec: steps for spec, steps in found.items() if spec not in losing}
        rival = build(rest) if rest else start
        mine, theirs = side_by_side([best, rival], inputs)
        best = rival if min(theirs) < (1 - MARGIN) * min(mine) else best
    before, after = side_by_side([start, best], inputs)
    return Verdict(best, before, after) if min(after) < min(before) else Verdict(start, before, before)


def side_by_side(models: Sequence[Model], inputs: Arrays) -> list[Samples]:
    """Samples of each network, by turns, while nobody else of this user's measures."""
    clocks = {}
    for n, model in enumerate(models):
        clocks[str(n)] = model.clocks(inputs).call
    with device_lock(lock_name(models[0].device.target.kind)):
        samples = interleaved(clocks, ROUNDS, SAMPLE_S)
    return [tuple(samples[str(n)]) for n in range(len(models))]


def losing_tasks(before: Model, after: Model, inputs: Arrays) -> set[str]:
    """The specs of the tasks whose kernels take longer in the network `after` than in the one `before`."""
    times: list[dict[str, float]] = [{}, {}]
    for _ in range(PROFILES):
        for known, model in zip(times, (before, after), strict=True):
            kernels = profile(model, inputs, PROFILE_S).kernels
            for task in model.tasks:
                seconds = mean(kernels[n] for n in task.steps)
                known[task.recipe.spec] = min(seconds, known.get(task.recipe.spec, seconds))
    first, last = times
    return {spec for spec, seconds in last.items() if seconds > SLOWER * first.get(spec, math.inf)}

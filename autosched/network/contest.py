"""Networks timed as a whole, side by side: what is faster alone need not be faster between its neighbours.

A kernel is tuned with its arrays in the caches that it likes; in a network others have been there before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from autosched.graph.graph import Array
from autosched.measure.host import device_lock
from autosched.measure.timing import interleaved, python_clock
from autosched.network.model import Model

ROUNDS, SAMPLE_S = 11, 0.01
SWAPPED = 3  # tasks that may take back the schedule that they had, those with the largest share
MARGIN = 0.005  # of a network's time: a difference that counts
Samples: TypeAlias = tuple[float, ...]  # seconds of one call
Steps: TypeAlias = Mapping[str, str]  # schedules of tasks by their specs


@dataclass(frozen=True)
class Verdict:
    """The faster network, and samples of the one before and of this one, taken side by side."""

    model: Model
    before: Samples
    after: Samples


def contest(
    start: Model, found: Steps, build: Callable[[Steps], Model], arrays: Sequence[Array], may_go_on: Callable[[], bool]
) -> Verdict:
    """`start` against the network that `build` makes of the schedules `found`, those of the largest tasks first. Each
    of the first few is left out where that makes the network faster, while `may_go_on`."""
    if not found:
        (samples,) = side_by_side([start], arrays)
        return Verdict(start, samples, samples)
    best = build(found)
    for spec in list(found)[:SWAPPED] if len(found) > 1 else ():
        if not may_go_on():
            break
        rest = {other: steps for other, steps in found.items() if other != spec}
        rival = build(rest)
        mine, theirs = side_by_side([best, rival], arrays)
        if min(theirs) < (1 - MARGIN) * min(mine):
            best, found = rival, rest
    before, after = side_by_side([start, best], arrays)
    return Verdict(best, before, after) if min(after) < min(before) else Verdict(start, before, before)


def side_by_side(models: Sequence[Model], arrays: Sequence[Array]) -> list[Samples]:
    """Samples of each network, by turns, while nobody else of this user's measures."""
    clocks = {str(n): python_clock(partial(model, *arrays)) for n, model in enumerate(models)}
    with device_lock("cpu"):
        samples = interleaved(clocks, ROUNDS, SAMPLE_S)
    return [tuple(samples[str(n)]) for n in range(len(models))]

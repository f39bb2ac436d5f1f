"""Arena planning for sizes that vary: the offsets of a plan for some sizes, computed for others.

Of two buffers that are live at one step, the one that is higher in the plan stays higher: it begins where the highest
buffer below it ends. So the buffers are disjoint for all sizes, and where all of them grow by one factor, the arena
grows by that factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosched.graph.memory.arena import ArenaPlan
from autosched.graph.memory.buffers import aligned
from autosched.graph.memory.liveness import LiveBuffer


@dataclass(frozen=True)
class ArenaOrder:
    """The buffers of an arena from the lowest to the highest, each with the buffers that end below it. `alignment`: of
    offsets in bytes."""

    below: Mapping[str, tuple[str, ...]]
    alignment: int

    @staticmethod
    def of(plan: ArenaPlan, buffers: Sequence[LiveBuffer], alignment: int) -> ArenaOrder:
        rising = sorted(buffers, key=lambda buffer: plan.offsets[buffer.name])
        below: dict[str, tuple[str, ...]] = {}
        for n, buffer in enumerate(rising):
            lower = [b for b in rising[:n] if b.first <= buffer.last and buffer.first <= b.last]
            implied = {name for b in lower for name in below[b.name]}
            below[buffer.name] = tuple(b.name for b in lower if b.name not in implied)
        return ArenaOrder(below, alignment)

    def offsets(self, nbytes: Mapping[str, int]) -> tuple[dict[str, int], int]:
        """Return the offset of each buffer, and the bytes of the arena. `nbytes`: of the buffers."""
        offsets: dict[str, int] = {}
        for name, lower in self.below.items():
            ends = (aligned(offsets[other] + nbytes[other], self.alignment) for other in lower)
            offsets[name] = max(ends, default=0)
        return offsets, max((offset + nbytes[name] for name, offset in offsets.items()), default=0)

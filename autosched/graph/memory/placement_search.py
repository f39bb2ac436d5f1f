"""An order of tenants whose placement is smaller than a known one: branch and bound over canonical placements.

After MiniMalloc (Moffitt, 2023). Any placement can be pushed down until each tenant lies at 0 or on another. Placed
then in the order of their offsets, each lies at the lowest place above all that are alive with it, and no lower than
the one before. So only orders are searched. A branch ends where a step cannot hold what is left for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autosched.graph.memory.placement import Arena

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _State:
    """`order` is placed. `floors`: where each tenant would lie; `left`: those without a place."""

    order: tuple[int, ...]
    floors: Ints
    left: Flags
    nbytes: int


class PlacementSearch:
    """The tenants as arrays, and the smallest placement so far."""

    def __init__(self, arena: Arena, best: int) -> None:
        self.bound, self.best = arena.bound, best
        self.found: tuple[int, ...] | None = None
        self.sizes: Ints = np.array(arena.sizes, np.int64)
        self.firsts: Ints = np.array([t.first for t in arena.tenants], np.int64)
        self.lasts: Ints = np.array([t.last for t in arena.tenants], np.int64)
        steps = np.unique(self.firsts)  # the most bytes are alive at one of these
        self.alive: Flags = (self.firsts <= steps[:, None]) & (steps[:, None] <= self.lasts)  # [step, tenant]

    def run(self, nodes: int) -> tuple[int, ...] | None:
        """The order of the smallest placement, if one is smaller than that known; looks at most at so many nodes."""
        count = len(self.sizes)
        root = _State((), np.zeros(count, np.int64), np.ones(count, np.bool_), 0)
        stack = [self._branches(root)]
        while stack and nodes and self.best > self.bound:
            state = next(stack[-1], None)
            if state is None:
                stack.pop()
            elif not state.left.any():
                self.best, self.found = state.nbytes, state.order
            else:
                nodes -= 1
                stack.append(self._branches(state))
        return self.found

    def _branches(self, state: _State) -> Iterator[_State]:
        """The states with one tenant more, the most promising first; none where no better placement follows."""
        tops = state.floors + self.sizes
        rows = np.flatnonzero(state.left)
        # What could lie below another one altogether lies there in a canonical placement.
        rows = rows[state.floors[rows] < tops[rows].min()]
        for n in rows[np.lexsort((-self.sizes[rows] * (self.lasts - self.firsts + 1)[rows], state.floors[rows]))]:
            top = int(tops[n])
            meets = (self.firsts <= self.lasts[n]) & (self.lasts >= self.firsts[n])
            floors = np.where(meets, np.maximum(state.floors, top), np.maximum(state.floors, state.floors[n]))
            left = state.left.copy()
            left[n] = False
            following = _State((*state.order, int(n)), floors, left, max(state.nbytes, top))
            if self._can_improve(following):
                yield following

    def _can_improve(self, state: _State) -> bool:
        """Whether each step has room, below the best size, for what is left to lie in it."""
        if state.nbytes >= self.best:
            return False
        alive = self.alive & state.left
        needed = alive @ self.sizes
        lowest = np.where(alive, state.floors, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
        open_steps = needed > 0
        return bool((lowest[open_steps] + needed[open_steps] < self.best).all())

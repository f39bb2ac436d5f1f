"""Branch and bound over canonical placements, for an order of buffers whose arena is smaller than the best known.

After MiniMalloc (Moffitt, 2023). Any placement can be pushed down until each buffer is at 0 or on top of another one.
Placed in the order of their offsets, each buffer is then at the lowest offset above all placed buffers that are live
with it, and no lower than the one before. So only orders are searched. A branch is cut where the remaining buffers of a
step do not fit below the best size.
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
    """A partial placement of the buffers `order`. `floors`: each buffer's lowest offset; `left`: those to place."""

    order: tuple[int, ...]
    floors: Ints
    left: Flags
    nbytes: int


class PlacementSearch:
    """The buffers as arrays, and the order of the smallest placement so far."""

    def __init__(self, arena: Arena, best: int) -> None:
        self.bound, self.best = arena.bound, best
        self.best_order: tuple[int, ...] | None = None
        self.sizes: Ints = np.array(arena.sizes, np.int64)
        self.firsts: Ints = np.array([t.first for t in arena.buffers], np.int64)
        self.lasts: Ints = np.array([t.last for t in arena.buffers], np.int64)
        steps = np.unique(self.firsts)  # the peak of live bytes is at one of these
        self.alive: Flags = (self.firsts <= steps[:, None]) & (steps[:, None] <= self.lasts)  # [step, buffer]

    def run(self, nodes: int) -> tuple[int, ...] | None:
        """Return the order of the smallest placement after visiting at most `nodes` nodes, None if none is smaller."""
        count = len(self.sizes)
        root = _State((), np.zeros(count, np.int64), np.ones(count, np.bool_), 0)
        stack = [self._branches(root)]
        while stack and nodes and self.best > self.bound:
            state = next(stack[-1], None)
            if state is None:
                stack.pop()
            elif not state.left.any():
                self.best, self.best_order = state.nbytes, state.order
            else:
                nodes -= 1
                stack.append(self._branches(state))
        return self.best_order

    def _branches(self, state: _State) -> Iterator[_State]:
        """Yield the states with one more buffer that can lead to a smaller placement, the most promising first."""
        tops = state.floors + self.sizes
        rows = np.flatnonzero(state.left)
        # In a canonical placement, a buffer that fits below the floor of another one comes before it.
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
        """Whether the remaining buffers of each step fit below the best size."""
        if state.nbytes >= self.best:
            return False
        alive = self.alive & state.left
        needed = alive @ self.sizes
        lowest = np.where(alive, state.floors, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
        open_steps = needed > 0
        return bool((lowest[open_steps] + needed[open_steps] < self.best).all())

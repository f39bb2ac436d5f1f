"""Greedy placement of the buffers of an arena, one after the other, in gaps between those that are live together.

The size of the arena depends on the order, and a little on the choice of the gap: the narrowest one (best fit), or the
one whose bytes were freed last and are still in the cache.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

from autosched.graph.memory.liveness import LiveBuffer
from autosched.runtime.tensors import ALIASED_BYTES, ALIGNMENT

MIN_DISTANCE = 256  # bytes, see `ArenaPlacement.aliasing_bytes`
MAX_FREED = 16  # freed buffers that are considered for reuse

INFINITE = float("inf")

Offsets: TypeAlias = dict[int, int]


@dataclass(frozen=True)
class Arena:
    """The buffers to place, by number."""

    buffers: tuple[LiveBuffer, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of each buffer, rounded up to whole cache lines."""
        return [-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in self.buffers]

    @cached_property
    def live_bytes(self) -> dict[int, int]:
        """Live bytes by step, of the steps at which a buffer becomes live; the peak is among them."""
        change: dict[int, int] = {}
        for buffer, size in zip(self.buffers, self.sizes, strict=True):
            change[buffer.first] = change.get(buffer.first, 0) + size
            change[buffer.last + 1] = change.get(buffer.last + 1, 0) - size
        steps = sorted(change)
        alive = dict(zip(steps, accumulate(change[step] for step in steps), strict=True))
        return {step: alive[step] for step in sorted({t.first for t in self.buffers})}

    @cached_property
    def bound(self) -> int:
        """The lower bound of an arena's bytes: the most bytes that are live at one step."""
        return max(self.live_bytes.values(), default=0)

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """For each buffer, those whose live range overlaps its own."""
        neighbours: list[list[int]] = [[] for _ in self.buffers]
        alive: list[int] = []
        for n in sorted(range(len(self.buffers)), key=lambda n: self.buffers[n].first):
            alive = [m for m in alive if self.buffers[m].last >= self.buffers[n].first]
            for m in alive:
                neighbours[n].append(m)
                neighbours[m].append(n)
            alive.append(n)
        return neighbours

    @cached_property
    def partners(self) -> list[list[int]]:
        """For each buffer, those that would suffer from 4K aliasing with it: one is read while the other is written,
        and both have a page of bytes or more."""
        numbers = {t.name: n for n, t in enumerate(self.buffers)}
        pairs = {(n, numbers[name]) for n, t in enumerate(self.buffers) for name in t.read_with}
        partners: list[list[int]] = [[] for _ in self.buffers]
        for n, m in sorted(pairs | {(m, n) for n, m in pairs}):
            if n != m and min(self.sizes[n], self.sizes[m]) >= ALIASED_BYTES:
                partners[n].append(m)
        return partners

    @cached_property
    def _begun(self) -> tuple[list[int], list[int]]:
        """The sorted first steps of the buffers, and the running sum of their bytes."""
        order = sorted(range(len(self.buffers)), key=lambda n: self.buffers[n].first)
        return [self.buffers[n].first for n in order], [0, *accumulate(self.sizes[n] for n in order)]

    def written_between(self, step: int, later: int) -> int:
        """Return the bytes of the buffers whose live range begins after `step` and before `later`."""
        firsts, sums = self._begun
        return sums[bisect_left(firsts, later)] - sums[bisect_right(firsts, step)]


@dataclass
class ArenaPlacement:
    """The buffers placed so far, in an arena of at most `limit` bytes if possible.

    The slot of a buffer with partners has `padding` bytes more, in which the buffer moves until it has no 4K aliasing
    with them.
    """

    arena: Arena
    padding: int = 0
    limit: float = INFINITE
    slots: Offsets = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    _ended: list[tuple[int, int]] = field(default_factory=list)  # (last step, buffer), sorted

    @property
    def nbytes(self) -> int:
        return max((offset + self.arena.sizes[n] for n, offset in self.offsets.items()), default=0)

    def put(self, n: int, slot: int) -> None:
        """Place a buffer in a slot: at the first offset without 4K aliasing, or else at the start of the slot."""
        candidates = range(slot, slot + self.padding + 1, ALIGNMENT)
        self.slots[n] = slot
        self.offsets[n] = next((offset for offset in candidates if not self.aliasing_bytes(n, offset)), slot)
        insort(self._ended, (self.arena.buffers[n].last, n))

    def length(self, n: int) -> int:
        """Return the bytes of a buffer's slot."""
        return self.arena.sizes[n] + (self.padding if self.arena.partners[n] else 0)

    def gaps(self, n: int) -> Iterator[tuple[int, float]]:
        """Yield (start, end) of the gaps that are free while a buffer is live and hold its slot; the last is open."""
        length, top = self.length(n), 0
        taken = ((self.slots[m], self.slots[m] + self.length(m)) for m in self.arena.neighbours[n] if m in self.slots)
        for start, end in sorted(taken):
            if start - top >= length:
                yield top, start
            top = max(top, end)
        yield top, INFINITE

    def freed(self, n: int) -> list[tuple[int, int]]:
        """Return (buffer, age) of the buffers freed before a buffer becomes live, youngest first.

        The age is the number of bytes written since. Ages beyond the size of the arena are left out: a smaller cache
        has evicted such bytes, and a larger one holds the whole arena.
        """
        arena, first = self.arena, self.arena.buffers[n].first
        freed: list[tuple[int, int]] = []
        for k in range(bisect_left(self._ended, (first, -1)) - 1, -1, -1):
            last, m = self._ended[k]
            since = arena.written_between(last, first)
            if since >= arena.bound or len(freed) == MAX_FREED:
                break
            freed.append((m, since))
        return freed

    def aliasing_bytes(self, n: int, offset: int) -> int:
        """Return the bytes of a buffer, once for each partner with which it has 4K aliasing at `offset`.

        That is, their offsets differ by less than MIN_DISTANCE modulo 4096, so that loads of one wait for stores to the
        other (`runtime.tensors.apart`).
        """
        others = [self.offsets[m] for m in self.arena.partners[n] if m in self.offsets]
        n_aliasing = sum(
            not MIN_DISTANCE <= (offset - other) % ALIASED_BYTES <= ALIASED_BYTES - MIN_DISTANCE for other in others
        )
        return n_aliasing * self.arena.sizes[n]

    def age(self, n: int, offset: int, freed: Sequence[tuple[int, int]]) -> int:
        """Return the sum of the ages of the bytes that a buffer would reuse at `offset`; `freed` is `self.freed(n)`."""
        parts, total = [(offset, offset + self.arena.sizes[n])], 0
        for m, since in freed:
            low = self.offsets[m]
            high = low + self.arena.sizes[m]
            rest = []
            for start, end in parts:
                if low < end and start < high:
                    total += since * (min(end, high) - max(start, low))
                    rest += [(a, b) for a, b in ((start, low), (high, end)) if a < b]
                else:
                    rest.append((start, end))
            if not rest:
                return total
            parts = rest
        return total + self.arena.bound * sum(end - start for start, end in parts)


ChooseSlot: TypeAlias = Callable[[ArenaPlacement, int], int]  # the start of the slot for a buffer


def place_buffers(
    arena: Arena, order: Iterable[int], choose_slot: ChooseSlot, padding: int = 0, limit: float = INFINITE
) -> ArenaPlacement:
    """Place the buffers in this order."""
    placement = ArenaPlacement(arena, padding, limit)
    for n in order:
        placement.put(n, choose_slot(placement, n))
    return placement


def best_fit(placement: ArenaPlacement, n: int) -> int:
    """Return the start of the narrowest gap."""
    return min((end - start, start) for start, end in placement.gaps(n))[1]


def most_recently_freed(placement: ArenaPlacement, n: int) -> int:
    """Return the slot within the limit whose bytes are youngest, at an end of a gap or of a freed buffer."""
    length, freed = placement.length(n), placement.freed(n)

    def rank(slot: int) -> tuple[float, ...]:
        return slot + length > placement.limit, placement.age(n, slot, freed), slot

    starts = [placement.slots[m] for m, _ in freed]
    starts += [placement.slots[m] + placement.length(m) - length for m, _ in freed]
    slots = set()
    for start, end in placement.gaps(n):
        last = end - length
        slots |= {start, *(slot for slot in starts if start <= slot <= last)}
        if last < INFINITE:
            slots.add(int(last))
    return min(slots, key=rank)

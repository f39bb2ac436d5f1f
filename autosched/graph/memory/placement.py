"""Places for tenants of an arena, one after the other: each into a gap between those that are alive with it.

The arena's bytes depend on the order, and a little on which gap is taken. Taken is the narrowest gap, or the place
whose bytes were freed last: they are still in the cache.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

from autosched.graph.memory.liveness import Tenant
from autosched.runtime.tensors import ALIASED_BYTES, ALIGNMENT

APART = 256  # see `ArenaPlacement.close_bytes`
RECENT = 16  # of what was freed before a tenant is written, so many are looked at

INFINITE = float("inf")

Offsets: TypeAlias = dict[int, int]


@dataclass(frozen=True)
class Arena:
    """What is to be placed; tenants are numbered."""

    tenants: tuple[Tenant, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes, in whole cache lines."""
        return [-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in self.tenants]

    @cached_property
    def breadths(self) -> dict[int, int]:
        """Bytes that are alive, by step; of the steps at which a tenant begins, which the largest is among."""
        change: dict[int, int] = {}
        for tenant, size in zip(self.tenants, self.sizes, strict=True):
            change[tenant.first] = change.get(tenant.first, 0) + size
            change[tenant.last + 1] = change.get(tenant.last + 1, 0) - size
        steps = sorted(change)
        alive = dict(zip(steps, accumulate(change[step] for step in steps), strict=True))
        return {step: alive[step] for step in sorted({t.first for t in self.tenants})}

    @cached_property
    def bound(self) -> int:
        """No arena is smaller: the most bytes that are alive at one step."""
        return max(self.breadths.values(), default=0)

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """The tenants that are alive at a step at which a tenant is."""
        found: list[list[int]] = [[] for _ in self.tenants]
        alive: list[int] = []
        for n in sorted(range(len(self.tenants)), key=lambda n: self.tenants[n].first):
            alive = [m for m in alive if self.tenants[m].last >= self.tenants[n].first]
            for m in alive:
                found[n].append(m)
                found[m].append(n)
            alive.append(n)
        return found

    @cached_property
    def partners(self) -> list[list[int]]:
        """The tenants to hold apart from a tenant: both have a page of bytes, and one is read while the other is
        written."""
        numbers = {t.name: n for n, t in enumerate(self.tenants)}
        pairs = {(n, numbers[name]) for n, t in enumerate(self.tenants) for name in t.beside}
        found: list[list[int]] = [[] for _ in self.tenants]
        for n, m in sorted(pairs | {(m, n) for n, m in pairs}):
            if n != m and min(self.sizes[n], self.sizes[m]) >= ALIASED_BYTES:
                found[n].append(m)
        return found

    @cached_property
    def _begun(self) -> tuple[list[int], list[int]]:
        """The steps at which tenants begin, and the bytes that began before each of them."""
        order = sorted(range(len(self.tenants)), key=lambda n: self.tenants[n].first)
        return [self.tenants[n].first for n in order], [0, *accumulate(self.sizes[n] for n in order)]

    def written_between(self, step: int, later: int) -> int:
        """The bytes of tenants that begin after one step and before another."""
        firsts, sums = self._begun
        return sums[bisect_left(firsts, later)] - sums[bisect_right(firsts, step)]


@dataclass
class ArenaPlacement:
    """Tenants that have a slot, in an arena of at most `limit` bytes where that can be.

    Slots of tenants with partners are longer by `spare` bytes, in which a tenant moves until it is apart from them.
    """

    arena: Arena
    spare: int = 0
    limit: float = INFINITE
    slots: Offsets = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    _ended: list[tuple[int, int]] = field(default_factory=list)  # (last step, tenant), sorted

    @property
    def nbytes(self) -> int:
        return max((offset + self.arena.sizes[n] for n, offset in self.offsets.items()), default=0)

    def put(self, n: int, slot: int) -> None:
        """A tenant into a slot: at the first place of it that is near no partner, or at its start."""
        places = range(slot, slot + self.spare + 1, ALIGNMENT)
        self.slots[n] = slot
        self.offsets[n] = next((place for place in places if not self.close_bytes(n, place)), slot)
        insort(self._ended, (self.arena.tenants[n].last, n))

    def length(self, n: int) -> int:
        """The bytes of a slot."""
        return self.arena.sizes[n] + (self.spare if self.arena.partners[n] else 0)

    def gaps(self, n: int) -> Iterator[tuple[int, float]]:
        """(start, end) of what is free while a tenant is alive, as far as it is long enough; the last has no end."""
        length, top = self.length(n), 0
        taken = ((self.slots[m], self.slots[m] + self.length(m)) for m in self.arena.neighbours[n] if m in self.slots)
        for start, end in sorted(taken):
            if start - top >= length:
                yield top, start
            top = max(top, end)
        yield top, INFINITE

    def freed(self, n: int) -> list[tuple[int, int]]:
        """(tenant, age) of what ended before a tenant begins, the last first: how many bytes were written since.

        Left out is what is older than the arena is large: a cache that holds less has forgotten it, and one that holds
        more holds everything.
        """
        arena, first = self.arena, self.arena.tenants[n].first
        found: list[tuple[int, int]] = []
        for k in range(bisect_left(self._ended, (first, -1)) - 1, -1, -1):
            last, m = self._ended[k]
            since = arena.written_between(last, first)
            if since >= arena.bound or len(found) == RECENT:
                break
            found.append((m, since))
        return found

    def close_bytes(self, n: int, offset: int) -> int:
        """The bytes of a tenant for each partner that it lies too near, which makes stores and loads wait for each
        other, as `runtime.tensors.apart` says: addresses less than 256 bytes apart but for multiples of 4096."""
        others = [self.offsets[m] for m in self.arena.partners[n] if m in self.offsets]
        near = sum(not APART <= (offset - other) % ALIASED_BYTES <= ALIASED_BYTES - APART for other in others)
        return near * self.arena.sizes[n]

    def age(self, n: int, offset: int, freed: Sequence[tuple[int, int]]) -> int:
        """The sum over the bytes that a tenant takes of how old each is; `freed` as from the method."""
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


# The slot for a tenant, given those that have one.
Choice: TypeAlias = Callable[[ArenaPlacement, int], int]


def place(
    arena: Arena, order: Iterable[int], choose: Choice, spare: int = 0, limit: float = INFINITE
) -> ArenaPlacement:
    """All of `order`, one after the other."""
    placement = ArenaPlacement(arena, spare, limit)
    for n in order:
        placement.put(n, choose(placement, n))
    return placement


def narrowest(placement: ArenaPlacement, n: int) -> int:
    """The start of the narrowest gap."""
    return min((end - start, start) for start, end in placement.gaps(n))[1]


def freed_last(placement: ArenaPlacement, n: int) -> int:
    """The slot whose bytes are the youngest, of those within the limit: at an end of a gap, or of what was freed."""
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

"""One arena for the values of a network: where each lies, so that no two lie together that are needed together.

Placed by decreasing size, as TFLite does, real networks reach the bound of the most bytes that are alive at one step.
Where they do not, the steps with most bytes go first; then, again and again, what lay too high; at last a search goes
on for a bounded number of nodes. That says how small the arena can be; for up to 5 % more, it is laid out for speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autosched.graph.memory.liveness import Tenant
from autosched.graph.memory.placement import Arena, ArenaPlacement, freed_last, narrowest, place
from autosched.graph.memory.placement_search import PlacementSearch

SLACK = 1.05  # of the smallest arena found, for speed
ROUNDS = 40  # in which what lies too high goes first
NODES = 500  # of the search
SEARCHED = 100  # tenants; of more, so many nodes hardly reach a whole placement
SPARES = (4096, 1024, 256)  # bytes per slot for holding results apart from inputs: all that can help, or fewer
HALVES = 6  # see `_orders`


@dataclass(frozen=True)
class ArenaPlan:
    """Where each tenant lies in an arena of `nbytes`, which cannot be smaller than `bound_bytes`.

    Offsets are multiples of 64 bytes, and so must be the address of the arena.
    """

    offsets: Mapping[str, int]
    nbytes: int
    bound_bytes: int


def plan(tenants: Sequence[Tenant]) -> ArenaPlan:
    """The placement that is best for speed among those of about the least bytes."""
    names = [t.name for t in tenants]
    if len(set(names)) < len(names):
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is two tenants")
    arena = Arena(tuple(tenants))
    best = _smallest(arena)
    limit = best.nbytes * SLACK
    orders = dict.fromkeys((tuple(best.slots), *_orders(arena)))
    for spare in SPARES if any(arena.partners) else (0,):
        placements = [
            place(arena, order, choose, spare, limit) for order in orders for choose in (freed_last, narrowest)
        ]
        best = min((p for p in (best, *placements) if p.nbytes <= limit), key=_slowness)
        if not _close_bytes(best):
            break
    return ArenaPlan({arena.tenants[n].name: offset for n, offset in best.offsets.items()}, best.nbytes, arena.bound)


def _smallest(arena: Arena) -> ArenaPlacement:
    """The placement of the fewest bytes that is found with bounded work."""
    best = place(arena, _by_size(arena), narrowest)
    if best.nbytes > arena.bound:
        best = min(best, place(arena, _by_breadth(arena), narrowest), key=lambda p: p.nbytes)
    tried = best
    for _ in range(ROUNDS):
        if best.nbytes == arena.bound:
            return best
        tried = place(arena, _highest_first(tried, best.nbytes), narrowest)
        best = min(best, tried, key=lambda p: p.nbytes)
    if best.nbytes > arena.bound and len(arena.tenants) <= SEARCHED:
        order = PlacementSearch(arena, best.nbytes).run(NODES)
        best = best if order is None else place(arena, order, narrowest)
    return best


def _highest_first(placement: ArenaPlacement, nbytes: int) -> list[int]:
    """The order of a placement, but what reaches `nbytes`, or else to its top, goes before all others."""
    top, sizes = min(nbytes, placement.nbytes), placement.arena.sizes
    return sorted(placement.slots, key=lambda n: placement.offsets[n] + sizes[n] < top)


def _by_size(arena: Arena) -> list[int]:
    """The largest first, of several the first in time."""
    return sorted(range(len(arena.tenants)), key=lambda n: (-arena.sizes[n], arena.tenants[n].first))


def _by_breadth(arena: Arena) -> list[int]:
    """What is alive at the step of the most bytes first, and so on by step; the largest of a step first."""
    by_size, order = _by_size(arena), dict[int, None]()
    for step in sorted(arena.breadths, key=lambda step: -arena.breadths[step]):
        order |= {n: None for n in by_size if arena.tenants[n].first <= step <= arena.tenants[n].last}
    return list(order)


def _orders(arena: Arena) -> Iterator[tuple[int, ...]]:
    """From the order of time, in which it is known best what was freed last, to that of size: the larger tenants by
    size, then the others by time."""
    by_size = _by_size(arena)
    sizes = [arena.bound >> half for half in range(HALVES)]
    for least in (arena.bound + 1, *sizes, 0):
        large = [n for n in by_size if arena.sizes[n] >= least]
        small = [n for n in by_size if arena.sizes[n] < least]
        yield *large, *sorted(small, key=lambda n: arena.tenants[n].first)


def _slowness(placement: ArenaPlacement) -> tuple[int, int, int]:
    """What costs time, the worst first: values too near what they are computed from, then memory that is not in the
    cache."""
    age = sum(placement.age(n, offset, placement.freed(n)) for n, offset in placement.offsets.items())
    return _close_bytes(placement), age, placement.nbytes


def _close_bytes(placement: ArenaPlacement) -> int:
    return sum(placement.close_bytes(n, offset) for n, offset in placement.offsets.items())

"""Arena planning: offsets in one block of memory for the values of a network, disjoint for those live at one step.

Greedy placement by decreasing size, as in TFLite, reaches the lower bound, the most bytes live at one step, for most
networks. For others, the buffers of the steps with most live bytes are placed first; then, repeatedly, those that
ended highest; at last a branch and bound search visits a bounded number of nodes. Among the placements of at most 5 %
more than the smallest arena, the one that is best for caches is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass

from autosched.graph.memory.liveness import LiveBuffer
from autosched.graph.memory.placement import Arena, ArenaPlacement, best_fit, most_recently_freed, place_buffers
from autosched.graph.memory.placement_search import PlacementSearch
from autosched.runtime.decisions import decided_once

SLACK = 1.05  # size of the arena over the smallest one found
ROUNDS = 40  # of placing the highest buffers first
SEARCH_NODES = 500
MAX_SEARCHED_BUFFERS = 100  # for more buffers, SEARCH_NODES nodes hardly reach a complete placement
PADDINGS = (4096, 1024, 256)  # bytes per slot to move results out of 4K aliasing with inputs; 4096 always suffice
SIZE_THRESHOLDS = 6  # see `_orders`


@dataclass(frozen=True)
class ArenaPlan:
    """The offset of each buffer in an arena of `nbytes`; no arena can be smaller than `bound_bytes`.

    Offsets are multiples of 64 bytes, and so must be the address of the arena.
    """

    offsets: Mapping[str, int]
    nbytes: int
    bound_bytes: int


def find_arena(buffers: Sequence[LiveBuffer]) -> ArenaPlan:
    """Return the plan of the buffers, which is made once: it took 0.4 s of 1.0 of a load of MobileNet-V2."""
    depends = [astuple(buffer) for buffer in buffers]
    return ArenaPlan(**decided_once("arena", depends, lambda: asdict(plan_arena(buffers))))


def plan_arena(buffers: Sequence[LiveBuffer]) -> ArenaPlan:
    """Return the placement with the lowest cost among those of at most SLACK times the fewest bytes."""
    names = [t.name for t in buffers]
    if len(set(names)) < len(names):
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is the name of two buffers")
    arena = Arena(tuple(buffers))
    best = _smallest(arena)
    limit = best.nbytes * SLACK
    orders = dict.fromkeys((tuple(best.slots), *_orders(arena)))
    for padding in PADDINGS if any(arena.partners) else (0,):
        placements = [
            place_buffers(arena, order, choose, padding, limit)
            for order in orders
            for choose in (most_recently_freed, best_fit)
        ]
        best = min((p for p in (best, *placements) if p.nbytes <= limit), key=_cost)
        if not _aliasing_bytes(best):
            break
    return ArenaPlan({arena.buffers[n].name: offset for n, offset in best.offsets.items()}, best.nbytes, arena.bound)


def _smallest(arena: Arena) -> ArenaPlacement:
    """Return the smallest placement that bounded work finds."""
    best = place_buffers(arena, _by_size(arena), best_fit)
    if best.nbytes > arena.bound:
        best = min(best, place_buffers(arena, _by_live_bytes(arena), best_fit), key=lambda p: p.nbytes)
    latest = best
    for _ in range(ROUNDS):
        if best.nbytes == arena.bound:
            return best
        latest = place_buffers(arena, _highest_first(latest, best.nbytes), best_fit)
        best = min(best, latest, key=lambda p: p.nbytes)
    if best.nbytes > arena.bound and len(arena.buffers) <= MAX_SEARCHED_BUFFERS:
        order = PlacementSearch(arena, best.nbytes).run(SEARCH_NODES)
        best = best if order is None else place_buffers(arena, order, best_fit)
    return best


def _highest_first(placement: ArenaPlacement, nbytes: int) -> list[int]:
    """Return the order of a placement with the buffers that end at or above `nbytes`, or at its top, moved first."""
    top, sizes = min(nbytes, placement.nbytes), placement.arena.sizes
    return sorted(placement.slots, key=lambda n: placement.offsets[n] + sizes[n] < top)


def _by_size(arena: Arena) -> list[int]:
    """Return the buffers by decreasing size, equal ones by their first step."""
    return sorted(range(len(arena.buffers)), key=lambda n: (-arena.sizes[n], arena.buffers[n].first))


def _by_live_bytes(arena: Arena) -> list[int]:
    """Return the buffers of the step with the most live bytes first, and so on; those of a step by size."""
    by_size, order = _by_size(arena), dict[int, None]()
    for step in sorted(arena.live_bytes, key=lambda step: -arena.live_bytes[step]):
        order |= {n: None for n in by_size if arena.buffers[n].first <= step <= arena.buffers[n].last}
    return list(order)


def _orders(arena: Arena) -> Iterator[tuple[int, ...]]:
    """Yield orders from that of time, which knows best which bytes were freed last, to that of size.

    In each, the buffers of at least a threshold come first, by size; then the others, by time.
    """
    by_size = _by_size(arena)
    sizes = [arena.bound >> half for half in range(SIZE_THRESHOLDS)]
    for least in (arena.bound + 1, *sizes, 0):
        large = [n for n in by_size if arena.sizes[n] >= least]
        small = [n for n in by_size if arena.sizes[n] < least]
        yield *large, *sorted(small, key=lambda n: arena.buffers[n].first)


def _cost(placement: ArenaPlacement) -> tuple[int, int, int]:
    """Return bytes with 4K aliasing, the age of reused bytes, which predicts cache misses, and the size."""
    age = sum(placement.age(n, offset, placement.freed(n)) for n, offset in placement.offsets.items())
    return _aliasing_bytes(placement), age, placement.nbytes


def _aliasing_bytes(placement: ArenaPlacement) -> int:
    return sum(placement.aliasing_bytes(n, offset) for n, offset in placement.offsets.items())

"""Plans of memory: no overlap, about the fewest bytes, and laid out for speed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autosched.graph.memory.arena import plan_arena
from autosched.graph.memory.liveness import LiveBuffer, analyse_liveness
from autosched.graph.memory.placement import Arena as Problem
from autosched.graph.memory.placement import ArenaPlacement, best_fit, most_recently_freed, place_buffers
from autosched.graph.memory.placement_search import PlacementSearch
from tests.graph.arena import Arena, faults
from tests.graph.layers import NETWORKS
from tests.graph.memory_fuzz import faults_of

MIB = 1 << 20
PAGE = 4096


@pytest.mark.parametrize("name", NETWORKS)
def test_known_networks_need_about_what_is_alive_at_once(name):
    known = NETWORKS[name]
    network = known.make()
    buffers = analyse_liveness(network.steps, network.sizes).buffers
    made = plan_arena(buffers)
    assert len(network.steps) == known.kernels
    assert sum(network.sizes.values()) / MIB == pytest.approx(known.total, abs=0.06)
    assert made.bound_bytes / MIB == pytest.approx(known.bound, abs=0.06)
    assert made.nbytes <= 1.05 * made.bound_bytes
    assert not faults(buffers, made)
    assert not close_pairs(buffers, made.offsets)


def close_pairs(buffers, offsets):
    """The pairs of at least a page that lie at nearly the same place of one, the first written where the second is
    read."""
    sizes = {t.name: t.nbytes for t in buffers}
    pairs = [(t.name, other) for t in buffers for other in t.read_with if min(t.nbytes, sizes[other]) >= PAGE]
    return [(a, b) for a, b in pairs if not 256 <= (offsets[a] - offsets[b]) % PAGE <= PAGE - 256]


@pytest.mark.parametrize("start", range(0, 300, 100))
def test_random_tenants_and_networks(start):
    assert {seed: found for seed in range(start, start + 100) if (found := faults_of(seed))} == {}


def test_nothing_needs_nothing():
    made = plan_arena([])
    assert (made.offsets, made.nbytes, made.bound_bytes) == ({}, 0, 0)


@pytest.mark.parametrize("change", [{"nbytes": 0}, {"last": 1}])
def test_what_is_no_tenant(change):
    with pytest.raises(ValueError, match="not a buffer: "):
        replace(LiveBuffer("a", 64, 2, 3), **change)


def test_a_name_is_one_tenant():
    with pytest.raises(ValueError, match="a is the name of two buffers"):
        plan_arena([LiveBuffer("a", 64, 0, 0), LiveBuffer("a", 64, 1, 1)])


def test_what_was_freed_last_is_taken_first():
    """Of free places of the same size the one that the step before has left; where that is too high, another one."""
    spans = {"old": (640, 0, 1), "hold": (64, 0, 9), "young": (640, 1, 3), "other": (64, 2, 2), "new": (640, 4, 5)}
    problem = Problem(tuple(LiveBuffer(name, *span) for name, span in spans.items()))
    for limit, expected in ((2048, 704), (1000, 0)):
        placement = ArenaPlacement(problem, limit=limit)
        for n, offset in enumerate((0, 640, 704, 1344)):
            placement.put(n, offset)
        assert most_recently_freed(placement, 4) == expected


def test_results_are_held_apart_from_what_they_are_computed_from():
    """Pages upon pages would all lie at the same place of one."""
    buffers = [LiveBuffer(f"v{n}", 32 * PAGE, n, n + 1, (f"v{n - 1}",) if n else ()) for n in range(8)]
    made = plan_arena(buffers)
    assert not close_pairs(buffers, made.offsets)
    assert made.bound_bytes < made.nbytes <= 1.05 * made.bound_bytes


def test_they_are_not_where_that_costs_much():
    """Six pages that are all to be apart from each other, which takes five times 256 bytes."""
    buffers = [LiveBuffer(f"v{n}", PAGE, 0, 0, tuple(f"v{m}" for m in range(n))) for n in range(6)]
    made = plan_arena(buffers)
    assert close_pairs(buffers, made.offsets)
    assert made.nbytes <= 1.05 * made.bound_bytes


# Buffers that by size do not fit the bound: (units of 64 bytes, first, last).
HARD = [(3, 0, 0), (5, 1, 1), (4, 3, 4), (3, 1, 3), (6, 4, 4)]


def test_the_search_finds_what_orders_by_size_do_not():
    buffers = [LiveBuffer(f"t{n}", 64 * size, first, last) for n, (size, first, last) in enumerate(HARD)]
    problem = Problem(tuple(buffers))
    by_size = sorted(range(len(buffers)), key=lambda n: -problem.sizes[n])
    simple = place_buffers(problem, by_size, best_fit).nbytes
    order = PlacementSearch(problem, simple).run(1000)
    assert order is not None
    found = place_buffers(problem, order, best_fit)
    assert problem.bound == found.nbytes < simple
    assert plan_arena(buffers).nbytes <= 1.05 * problem.bound


def test_what_lies_too_high_goes_first_in_a_larger_network():
    """Too many buffers for the search; placed by size or by breadth they need more than the smallest arena."""
    rng = np.random.default_rng(3)
    sizes = rng.choice((4000, 400_000, 200_000, 393_216), 300)
    buffers = [LiveBuffer(f"t{n}", int(size), n, n + int(rng.integers(1, 5))) for n, size in enumerate(sizes)]
    problem = Problem(tuple(buffers))
    by_size = sorted(range(300), key=lambda n: -problem.sizes[n])
    assert place_buffers(problem, by_size, best_fit).nbytes > 1.1 * problem.bound
    made = plan_arena(buffers)
    assert made.nbytes <= 1.05 * made.bound_bytes
    assert not faults(buffers, made)


def test_the_search_ends():
    """After so many nodes, with what it has."""
    rng = np.random.default_rng(0)
    buffers = tuple(
        LiveBuffer(f"t{n}", 64 * int(rng.integers(1, 99)), n // 4, n // 4 + int(rng.integers(9))) for n in range(60)
    )
    assert PlacementSearch(Problem(buffers), 1 << 40).run(10) is None
    assert PlacementSearch(Problem(buffers), 1 << 40).run(100) is not None


def test_faults_are_found():
    a, b = LiveBuffer("a", 100, 0, 1), LiveBuffer("b", 100, 1, 2)
    made = plan_arena([a, b])
    assert not faults([a, b], made)
    assert "overlap in step 1" in faults([a, b], replace(made, offsets={"a": 0, "b": 64}))[0]
    assert "not aligned" in faults([a, b], replace(made, offsets={"a": 0, "b": 132}))[0]
    assert "outside of" in faults([a, b], replace(made, offsets={"a": 0, "b": 256}))[0]
    assert "alive at once" in faults([a, b], replace(made, bound_bytes=1))[0]


def test_an_arena_forgets():
    a, b = LiveBuffer("a", 8, 0, 1), LiveBuffer("b", 8, 1, 2)
    arena = Arena([a, b], made := plan_arena([a, b]))
    views = {name: arena.view(offset, (2,), "float32") for name, offset in made.offsets.items()}
    assert np.isnan(views["a"]).all()
    views["a"][:] = views["b"][:] = 1
    arena.after(1)
    assert np.isnan(views["a"]).all()
    assert (views["b"] == 1).all()

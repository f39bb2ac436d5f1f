"""The array operations: domains respected, moves move, everything a function of the generator's state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from search_spaces import space
from search_spaces.space import Population, Sketch, SketchParam

NO_STATE: Any = None
POWERS = (1, 2, 4, 8, 16, 32, 64)
SKETCH = Sketch(
    "tiled",
    NO_STATE,
    (
        SketchParam("i1", POWERS, "tile", group="i", extent=64),
        SketchParam("i2", POWERS, "tile", group="i", extent=64),
        SketchParam("i3", POWERS, "tile", group="i", extent=64),
        SketchParam("unroll", (0, 16, 64, 512), "unroll"),
        SketchParam("fixed", (8,), "vector"),
    ),
)
SMALL = Sketch("small", NO_STATE, (SketchParam("a", (1, 2, 3), "tile"), SketchParam("b", (0, 1), "switch")))


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def population(n: int = 500) -> Population:
    return space.sample(SKETCH, n, rng())


def test_param_rejects_an_unsorted_or_empty_domain() -> None:
    for domain in ((), (2, 1), (1, 1)):
        with pytest.raises(ValueError, match="ascending"):
            SketchParam("p", domain, "tile")


def test_sample_stays_in_the_domains_and_mostly_under_the_extent() -> None:
    rows = population(4000)
    assert rows.shape == (4000, 5)
    assert rows.dtype == np.int64
    assert space.contains(SKETCH, rows).all()
    assert (rows[:, :3].prod(axis=1) <= 64).mean() > 0.7
    for column in range(4):  # every value is reached
        assert set(np.unique(rows[:, column])) == set(SKETCH.params[column].domain)


def test_contains_spots_foreign_values() -> None:
    assert space.contains(SMALL, np.array([[1, 0], [4, 0], [3, 2]])).tolist() == [True, False, False]


def test_rows_from_outside_become_the_nearest_of_the_domains() -> None:
    rows = np.array([[3, 100, 0, 100, 4], [-5, 6, 48, 8, 99]])
    assert space.nearest(SKETCH, rows).tolist() == [[4, 64, 1, 64, 8], [1, 6 - 2 + 4, 64, 16, 8]]
    inside = space.sample(SKETCH, 100, rng())
    np.testing.assert_array_equal(space.nearest(SKETCH, inside), inside)


def test_enumerate_grid_is_complete_when_it_fits() -> None:
    rows = space.enumerate_grid(SMALL, 100, rng())
    assert len(rows) == 6 == space.grid_size(SMALL)
    assert len(space.unique(rows)) == 6


@pytest.mark.parametrize("limit", [10, 200])
def test_enumerate_grid_is_bounded_and_distinct(limit: int) -> None:
    rows = space.enumerate_grid(SKETCH, limit, rng())
    assert 0 < len(rows) <= limit
    assert len(space.unique(rows)) == len(rows)
    assert space.contains(SKETCH, rows).all()


def test_mutate_changes_every_chosen_row_and_keeps_the_domains() -> None:
    rows = population()
    changed = space.mutate(SKETCH, rows, rng(1), prob=1.0)
    assert space.contains(SKETCH, changed).all()
    assert ((changed != rows).any(axis=1)).mean() > 0.9  # a second edit may undo the first
    assert (space.mutate(SKETCH, rows, rng(1), prob=0.0) == rows).all()


def test_mutate_often_moves_a_factor_within_an_axis() -> None:
    rows = population(2000)
    changed = space.mutate(SKETCH, rows, rng(2), prob=1.0)
    moved = (changed[:, :3] != rows[:, :3]).sum(axis=1) == 2
    kept = changed[:, :3].prod(axis=1) == rows[:, :3].prod(axis=1)
    assert (moved & kept).mean() > 0.15


def test_mutate_leaves_a_space_of_one_row_alone() -> None:
    one = Sketch(
        "one", NO_STATE, (SketchParam("a", (4,), "tile", group="i"), SketchParam("b", (2,), "tile", group="i"))
    )
    rows = np.array([[4, 2]] * 3)
    assert (space.mutate(one, rows, rng(), prob=1.0) == rows).all()
    assert len(space.neighbours(one, rows)) == 0


def test_crossover_takes_groups_whole() -> None:
    a, b = population(), space.sample(SKETCH, 500, rng(3))
    child = space.crossover(SKETCH, a, b, rng(4))
    for columns in (slice(0, 3), slice(3, 4)):
        is_a = (child[:, columns] == a[:, columns]).all(axis=1)
        is_b = (child[:, columns] == b[:, columns]).all(axis=1)
        assert (is_a | is_b).all()
        assert is_a.any()
        assert is_b.any()


def test_neighbours_are_all_single_moves() -> None:
    row = np.array([4, 1, 64, 16, 8])
    near = space.neighbours(SKETCH, row[None, :])
    assert space.contains(SKETCH, near).all()
    found = {tuple(r) for r in near.tolist()}
    assert len(found) == len(near)
    assert tuple(row.tolist()) not in found
    steps = {(v, 1, 64, 16, 8) for v in (1, 2, 8, 16)} | {(4, v, 64, 16, 8) for v in (2, 4)}
    steps |= {(4, 1, v, 16, 8) for v in (16, 32)} | {(4, 1, 64, v, 8) for v in (0, 64, 512)}
    moves = {(2, 2, 64, 16, 8), (1, 4, 64, 16, 8), (8, 1, 32, 16, 8), (16, 1, 16, 16, 8)}
    moves |= {(4, 2, 32, 16, 8), (4, 4, 16, 16, 8)}
    assert found == steps | moves


def test_neighbours_of_several_rows_are_those_of_each_without_the_rows() -> None:
    rows = population()[:20]
    near = {tuple(r) for r in space.neighbours(SKETCH, rows).tolist()}
    each = {tuple(r) for row in rows for r in space.neighbours(SKETCH, row[None, :]).tolist()}
    assert near == each - {tuple(r) for r in rows.tolist()}
    assert len(space.neighbours(SKETCH, rows[:0])) == 0


def test_keys_and_unique() -> None:
    rows = np.array([[1, 2], [2, 1], [1, 2], [0, 3], [3, 0]])
    assert space.unique(rows).tolist() == [[1, 2], [2, 1], [0, 3], [3, 0]]
    assert len(np.unique(space.keys(rows))) == 4
    assert len(space.unique(np.empty((0, 2), dtype=np.int64))) == 0
    grid = space.enumerate_grid(SKETCH, 2000, rng())
    assert len(np.unique(space.keys(grid))) == len(grid) == 1372


def test_keys_are_mixed_by_splitmix64() -> None:
    mask, state = 2**64 - 1, 0x9E3779B97F4A7C15
    for value in (3, 2**40):
        state = (state ^ value) + 0x9E3779B97F4A7C15 & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    assert space.keys(np.array([[3, 2**40]])).tolist() == [state]


def test_mutate_moves_along_domains_of_any_length() -> None:
    domains = ((7,), (1, 3), (0, 2, 5, 6, 11), (4, 9, 10))
    sketch = Sketch("alone", NO_STATE, tuple(SketchParam(f"p{j}", d, "tile") for j, d in enumerate(domains)))
    rows = space.sample(sketch, 400, rng())
    changed = space.mutate(sketch, rows, rng(1), prob=1.0)
    assert space.contains(sketch, changed).all()
    edits = (changed != rows).sum(axis=1)
    assert (edits <= 2).all()
    assert (edits == 1).mean() > 0.5
    assert all((changed[:, j] != rows[:, j]).any() for j in (1, 2, 3))


def test_everything_follows_the_generator() -> None:
    rows = population()
    for first, second in (
        (space.sample(SKETCH, 50, rng(5)), space.sample(SKETCH, 50, rng(5))),
        (space.mutate(SKETCH, rows, rng(5)), space.mutate(SKETCH, rows, rng(5))),
        (space.enumerate_grid(SKETCH, 10, rng(5)), space.enumerate_grid(SKETCH, 10, rng(5))),
    ):
        assert (first == second).all()
    assert not (space.sample(SKETCH, 50, rng(5)) == space.sample(SKETCH, 50, rng(6))).all()


def test_counts_of_tiles_that_cover_an_axis_are_one_row() -> None:
    params = (
        SketchParam("m", (1, 2, 4, 8, 16), "tile", group="i", extent=50, counts=True),
        SketchParam("r", (7, 8, 50), "tile", group="i", extent=50),
        SketchParam("u", (1, 2, 3), "unroll"),
    )
    sketch = Sketch("counted", NO_STATE, params)
    rows = np.array([[16, 7, 1], [8, 7, 1], [4, 7, 1], [16, 8, 2], [16, 50, 3], [1, 50, 3]])
    found = space.canonical(sketch, rows)
    assert found.tolist() == [[8, 7, 1], [8, 7, 1], [4, 7, 1], [8, 8, 2], [1, 50, 3], [1, 50, 3]]
    assert rows[0, 0] == 16  # what was given stays
    assert np.array_equal(space.canonical(SKETCH, population()), population())


def test_canonical_rows_are_in_the_space_even_where_no_count_of_the_domain_is_the_least() -> None:
    few = Sketch(
        "few", NO_STATE, (SketchParam("m", (1, 4), "tile", "i", 30, True), SketchParam("r", (8, 20), "tile", "i", 30))
    )
    rows = space.enumerate_grid(few, 100, rng())
    found = space.canonical(few, rows)
    assert space.contains(few, found).all()
    assert found.tolist() == rows.tolist()

"""Populations as arrays: sketches, their parameters, and the operators of the evolutionary search.

A *sketch* is a loop nest with open parameters; a *candidate* is (sketch, one row of integers), and the *population*
of a sketch is one int64 matrix [n, n_params] of parameter VALUES, every column drawn from that parameter's sorted
domain. All functions map matrices to matrices: loops run over parameters, never over candidates. The meaning of a
value is not known here; legality is the cost model's array predicate.

Parameters of one axis (the tile counts of its levels) share a `group`: crossover takes a group as a whole, and
mutation may move a factor from one level to another, which keeps the total tile of the axis about constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from autosched.schedule import State

Population: TypeAlias = npt.NDArray[np.int64]
Keys: TypeAlias = npt.NDArray[np.uint64]

STEP_SUCCESS = 0.5  # of the geometric distribution of a mutation's domain steps: half of them 1, a quarter 2, ...
SECOND_EDIT = 0.3  # share of mutated rows that get a second edit
FACTOR_MOVE = 0.4  # share of edits that move a factor between two levels of an axis
SMALL_GRID = 16  # ratio of the grid's size to the requested rows up to which rows are drawn without repetition
SHUFFLED_LEVELS = 0.75  # share of samples whose tile counts are bounded by the axis extent


# Constants of SplitMix64 as arrays: NumPy converts a Python number in every operation.
_GOLDEN, _LAST_SHIFT = np.array(0x9E3779B97F4A7C15, np.uint64), np.array(31, np.uint64)
_MIX = [
    (np.array(shift, np.uint64), np.array(factor, np.uint64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
]


@dataclass(frozen=True)
class SketchParam:
    """An open parameter of a sketch.

    `domain`: its values, ascending, distinct. `kind`: its meaning (tile, unroll, vector, switch, ...), for reports.
    `group`: the axis whose tile level it is, "" for none. `extent`: where positive, the largest sensible product of the
    group's values; `sample` respects it, the other operators leave it to legality. `counts`: whether it is the number
    of tiles in a row, where the other parameters of the group make the tile: all counts that reach `extent` are equal.
    """

    name: str
    domain: tuple[int, ...]
    kind: str
    group: str = ""
    extent: int = 0
    counts: bool = False

    def __post_init__(self) -> None:
        if not self.domain or any(a >= b for a, b in zip(self.domain, self.domain[1:], strict=False)):
            raise ValueError(f"the domain of parameter {self.name} must be ascending and not empty: {self.domain}")


@dataclass(frozen=True)
class Sketch:
    """A named schedule with the open parameters `params`; records refer to it by name.

    `fuses_reductions`: whether one nest computes reductions that read each other's results.
    """

    name: str
    state: State
    params: tuple[SketchParam, ...]
    fuses_reductions: bool = False


@dataclass(frozen=True)
class _Tables:
    """The domains and groups of a parameter list as arrays."""

    domains: tuple[Population, ...]
    filled: Population  # [n_params, longest] the domains, padded with the largest int64
    sizes: Population  # [n_params]
    groups: tuple[tuple[int, ...], ...]  # column numbers; a parameter without a group is alone in one
    group_of: npt.NDArray[np.intp]  # [n_params]
    movable: npt.NDArray[np.intp]  # columns with more than one value
    pairs: npt.NDArray[np.intp]  # [n_pairs, 2] (giver, taker) columns of the same group
    counts: tuple[tuple[int, tuple[int, ...], int], ...]  # (column of a tile count, columns of its tile, axis extent)


@lru_cache(maxsize=256)
def _tables(params: tuple[SketchParam, ...]) -> _Tables:
    members: dict[str, list[int]] = {}
    for j, param in enumerate(params):
        members.setdefault(param.group or f"={param.name}", []).append(j)
    group_of = np.zeros(len(params), dtype=np.intp)
    for g, columns in enumerate(members.values()):
        group_of[columns] = g
    sizes = np.array([len(p.domain) for p in params], dtype=np.int64)
    pairs = [(a, b) for columns in members.values() for a in columns for b in columns if a != b and sizes[a] > 1]
    filled = np.full((len(params), sizes.max(initial=0)), np.iinfo(np.int64).max)
    for j, p in enumerate(params):
        filled[j, : len(p.domain)] = p.domain
    return _Tables(
        domains=tuple(np.array(p.domain, dtype=np.int64) for p in params),
        filled=filled,
        sizes=sizes,
        groups=tuple(tuple(columns) for columns in members.values()),
        group_of=group_of,
        movable=np.flatnonzero(sizes > 1),
        pairs=np.array(pairs, dtype=np.intp).reshape(-1, 2),
        counts=tuple(
            (j, tuple(k for k in members[p.group] if k != j), p.extent)
            for j, p in enumerate(params)
            if p.counts and p.group and p.extent > 0
        ),
    )


def grid_size(sketch: Sketch) -> int:
    """Return the number of rows of the sketch, legal or not."""
    size = 1
    for param in sketch.params:
        size *= len(param.domain)
    return size


def contains(sketch: Sketch, rows: Population) -> npt.NDArray[np.bool_]:
    """Return [n] True where every value of a row is in its parameter's domain (rows of records may not be)."""
    inside = np.ones(len(rows), dtype=bool)
    for j, domain in enumerate(_tables(sketch.params).domains):
        inside &= np.isin(rows[:, j], domain)
    return inside


def nearest(sketch: Sketch, rows: Population) -> Population:
    """Return [n, n_params] rows of another shape moved into the sketch's domains.

    Each value becomes the nearest one in log scale, the smaller of two that are as near.
    """
    out = rows.copy()
    for j, domain in enumerate(_tables(sketch.params).domains):
        distance = np.abs(np.log2(domain + 1.0) - np.log2(np.maximum(rows[:, j], 0) + 1.0)[:, None])
        out[:, j] = domain[distance.argmin(axis=1)]
    return out


def canonical(sketch: Sketch, rows: Population) -> Population:
    """Return [n, n_params] the rows with each tile count that covers its axis replaced by the least one that does.

    Equal rows are equal programs, and different rows are now mostly different programs: without this, most neighbours
    of a good row are that program again.
    """
    tables = _tables(sketch.params)
    out = rows.copy()
    for column, tile, extent in tables.counts:
        domain = tables.domains[column]
        needed = -(-extent // np.maximum(rows[:, tile].prod(axis=1), 1))
        least = domain[np.minimum(np.searchsorted(domain, needed), len(domain) - 1)]
        out[:, column] = np.where(rows[:, column] >= needed, np.minimum(rows[:, column], least), rows[:, column])
    return out


def sample(sketch: Sketch, n: int, rng: np.random.Generator) -> Population:
    """Return [n, n_params] random rows.

    Values are uniform over the domains. For groups with a positive extent, most rows draw the levels in random order,
    each bounded by the extent over the levels drawn before: independent draws mostly exceed the extent.
    """
    tables = _tables(sketch.params)
    index = (rng.random((n, len(sketch.params))) * tables.sizes).astype(np.int64)
    rows = _values(tables, index)
    for columns in tables.groups:
        extent = max(sketch.params[j].extent for j in columns)
        if extent > 0 and len(columns) > 1:
            _sample_levels(tables, rows, columns, extent, rng)
    return rows


def _sample_levels(
    tables: _Tables, rows: Population, columns: tuple[int, ...], extent: int, rng: np.random.Generator
) -> None:
    """Redraw in place most rows' values of one group so that their product stays within `extent` if possible."""
    n = len(rows)
    order = np.argsort(rng.random((n, len(columns))), axis=1)
    bounded = rng.random(n) < SHUFFLED_LEVELS
    remaining = np.full(n, extent, dtype=np.int64)
    for turn in range(len(columns)):
        draw = rng.random(n)
        for position, j in enumerate(columns):
            selected = np.flatnonzero(bounded & (order[:, turn] == position))
            domain = tables.domains[j]
            choices = np.maximum(np.searchsorted(domain, remaining[selected], side="right"), 1)
            value = domain[(draw[selected] * choices).astype(np.int64)]
            rows[selected, j] = value
            remaining[selected] = np.maximum(remaining[selected] // np.maximum(value, 1), 1)


def enumerate_grid(sketch: Sketch, limit: int, rng: np.random.Generator) -> Population:
    """Return all rows of the sketch if there are at most `limit`, else at most `limit` distinct random ones."""
    tables = _tables(sketch.params)
    size = grid_size(sketch)
    if size > SMALL_GRID * limit:
        return unique(sample(sketch, limit, rng))
    rest = np.arange(size, dtype=np.int64) if size <= limit else rng.permutation(size)[:limit]
    index = np.empty((len(rest), len(sketch.params)), dtype=np.int64)
    for j in range(len(sketch.params) - 1, -1, -1):
        rest, index[:, j] = np.divmod(rest, tables.sizes[j])
    return _values(tables, index)


def mutate(sketch: Sketch, rows: Population, rng: np.random.Generator, prob: float = 0.85) -> Population:
    """Return [n, n_params] the rows, each edited once or twice with probability `prob`, else copied.

    An edit either moves one parameter a few steps along its domain, or moves a factor between two levels of an
    axis. Every edit changes its row, as long as some domain has two values.
    """
    tables = _tables(sketch.params)
    out = rows.copy()
    if not len(tables.movable) or not len(rows):
        return out
    chosen = rng.random(len(rows)) < prob
    again = chosen & (rng.random(len(rows)) < SECOND_EDIT)
    for mask in (chosen, again):
        where = np.flatnonzero(mask)
        moved = _move_factor(tables, out, where, rng)
        _step(tables, out, where[~moved], rng)
    return out


def _step(tables: _Tables, rows: Population, where: npt.NDArray[np.intp], rng: np.random.Generator) -> None:
    """Move one random parameter of each row `where` a geometric number of domain steps, reflected at the ends."""
    column = tables.movable[rng.integers(len(tables.movable), size=len(where))]
    step = rng.geometric(STEP_SUCCESS, size=len(where)) * np.where(rng.random(len(where)) < 0.5, -1, 1)
    domain, last = tables.filled[column], tables.sizes[column] - 1
    at = (domain < rows[where, column][:, None]).sum(axis=1)
    to = np.clip(at + step, 0, last)
    to = np.where(to == at, np.clip(at - step, 0, last), to)
    rows[where, column] = tables.filled[column, to]


def _move_factor(
    tables: _Tables, rows: Population, where: npt.NDArray[np.intp], rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Move a factor between two levels of an axis in a share of the rows `where`; return which rows changed."""
    changed = np.zeros(len(where), dtype=bool)
    if not len(tables.pairs):
        return changed
    is_chosen = rng.random(len(where)) < FACTOR_MOVE
    pair = rng.integers(len(tables.pairs), size=len(where))
    step = rng.geometric(STEP_SUCCESS, size=len(where))
    for p in np.unique(pair[is_chosen]):
        giver, taker = tables.pairs[p]
        mine = np.flatnonzero(is_chosen & (pair == p))
        target = where[mine]
        given, taken = _transfer(tables, rows[target, giver], rows[target, taker], (giver, taker), step[mine])
        changed[mine] = given != rows[target, giver]
        rows[target, giver], rows[target, taker] = given, taken
    return changed


def _transfer(
    tables: _Tables, give: Population, take: Population, pair: tuple[int, int], step: npt.NDArray[np.int64]
) -> tuple[Population, Population]:
    """Return new values of two levels: the giver moves `step` domain values down, the taker to the value nearest to
    the one that keeps the product. Unchanged where the giver is at its smallest value or zero, or the taker cannot
    grow."""
    giver, taker = pair
    at = np.searchsorted(tables.domains[giver], give)
    given = tables.domains[giver][np.maximum(at - step, 0)]
    target = take * give / np.maximum(given, 1)
    domain = tables.domains[taker]
    above = np.minimum(np.searchsorted(domain, target), len(domain) - 1)
    below = np.maximum(above - 1, 0)
    taken = np.where(domain[above] * domain[below] < target * target, domain[above], domain[below])  # in log scale
    valid = (given < give) & (given > 0) & (taken > take)
    return np.where(valid, given, give), np.where(valid, taken, take)


def crossover(sketch: Sketch, a: Population, b: Population, rng: np.random.Generator) -> Population:
    """Return [n, n_params] children of the row pairs (a[i], b[i]): each group comes from one of the parents."""
    tables = _tables(sketch.params)
    from_a = rng.random((len(a), len(tables.groups))) < 0.5
    return np.where(from_a[:, tables.group_of], a, b)


def neighbours(sketch: Sketch, rows: Population) -> Population:
    """Return [m, n_params] all distinct rows one move away from one of `rows` [n, n_params], without these.

    A move changes one parameter by one or two domain values, or moves a factor of one or two domain values of the giver
    between two levels of an axis.
    """
    tables = _tables(sketch.params)
    moves = [rows[:0]]
    for j in tables.movable:
        at = np.searchsorted(tables.domains[j], rows[:, j])
        for step in (-1, 1, -2, 2):
            inside = (at + step >= 0) & (at + step < tables.sizes[j])
            moved = rows[inside]
            moved[:, j] = tables.domains[j][at[inside] + step]
            moves.append(moved)
    for giver, taker in tables.pairs:
        for step in (1, 2):
            given, taken = _transfer(
                tables, rows[:, giver], rows[:, taker], (giver, taker), np.full(len(rows), step, dtype=np.int64)
            )
            changed = given != rows[:, giver]
            moved = rows[changed]
            moved[:, giver], moved[:, taker] = given[changed], taken[changed]
            moves.append(moved)
    distinct = unique(np.concatenate(moves))
    return distinct[~np.isin(keys(distinct), keys(rows))]


def _values(tables: _Tables, index: Population) -> Population:
    rows = np.empty(index.shape, dtype=np.int64)
    for j, domain in enumerate(tables.domains):
        rows[:, j] = domain[index[:, j]]
    return rows


def keys(rows: Population) -> Keys:
    """Return [n] 64-bit hashes of the rows; distinct rows collide with probability 2**-64.

    Columns are mixed one after the other with the finaliser of SplitMix64 (Steele et al., OOPSLA 2014).
    """
    state = np.full(len(rows), _GOLDEN)
    for column in rows.astype(np.uint64).T:
        state ^= column
        state += _GOLDEN
        for shift, factor in _MIX:
            state ^= state >> shift
            state *= factor
        state ^= state >> _LAST_SHIFT
    return state


def unique(rows: Population) -> Population:
    """Return the distinct rows, in the order of their first appearance."""
    _, first = np.unique(keys(rows), return_index=True)
    return rows[np.sort(first)]

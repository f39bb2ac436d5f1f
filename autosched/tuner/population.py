"""Scored rows of several sketches side by side, and the choice of a few of them. All array operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.tuner.protocols import Candidate, Keys, Population

Index = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SketchRows:
    """Distinct rows [n, n_params] of one sketch, their `keys` [n] and `score` [n], higher is better."""

    rows: Population
    keys: Keys
    score: Floats

    def take(self, index: npt.NDArray[Any]) -> SketchRows:
        return SketchRows(self.rows[index], self.keys[index], self.score[index])


@dataclass(frozen=True)
class Pool:
    """One part for each sketch."""

    parts: tuple[SketchRows, ...]

    def __len__(self) -> int:
        return sum(len(part.score) for part in self.parts)

    @property
    def best_score(self) -> float:
        """Of all rows; minus infinity where there are none."""
        return max((float(part.score.max()) for part in self.parts if len(part.score)), default=-np.inf)

    def flat(self) -> tuple[Index, Index, Floats]:
        """(sketch, row within the sketch, score), each [n], best first; ties keep the order of the rows."""
        sketch = np.repeat(np.arange(len(self.parts)), [len(part.score) for part in self.parts])
        local = np.concatenate([np.arange(len(part.score)) for part in self.parts])
        score = np.concatenate([part.score for part in self.parts])
        order = np.argsort(-score, kind="stable")
        return sketch[order], local[order], score[order]

    def select(self, sketch: Index, local: Index) -> Pool:
        """The named rows only, in the order named."""
        return Pool(tuple(part.take(local[sketch == i]) for i, part in enumerate(self.parts)))

    def top(self, n: int, each: int = 0, within: float = np.inf) -> Pool:
        """The best `n` rows and the best `each` of every sketch whose best one scores at most `within` less than all,
        best first within each sketch."""
        sketch, local, score = self.flat()
        rank = cumulative_count(sketch)
        near = np.isin(sketch, sketch[(rank == 0) & (score >= self.best_score - within)])
        keep = near & (rank < each)
        keep[:n] = True
        return self.select(sketch[keep], local[keep])

    def merge(self, other: Pool) -> Pool:
        """Both pools' rows, each distinct row once; of equal rows, this pool's."""
        parts = []
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            if not len(theirs.score):  # as most are, where few sketches are left in an evolution
                parts.append(mine)
                continue
            fresh = theirs.take(~np.isin(theirs.keys, mine.keys))
            parts.append(
                SketchRows(
                    np.concatenate([mine.rows, fresh.rows]),
                    np.concatenate([mine.keys, fresh.keys]),
                    np.concatenate([mine.score, fresh.score]),
                )
            )
        return Pool(tuple(parts))

    def without(self, seen: Sequence[Keys]) -> Pool:
        """The rows whose keys are not in `seen[sketch]`."""
        found = (
            p.take(~np.isin(p.keys, s)) if len(p.score) and len(s) else p for p, s in zip(self.parts, seen, strict=True)
        )
        return Pool(tuple(found))

    def candidate(self, sketch: int, local: int) -> Candidate:
        return Candidate(sketch, tuple(self.parts[sketch].rows[local].tolist()))

    def buckets(self, sketch: Index, local: Index) -> npt.NDArray[np.int64]:
        """[n] labels of rows in which every parameter has the same power of two below it."""
        labels = np.empty(len(sketch), dtype=np.int64)
        used = 0
        for i, part in enumerate(self.parts):
            mine = sketch == i
            coarse = np.frexp(part.rows[local[mine]].astype(np.float64))[1]
            if len(coarse):
                _, inverse = np.unique(coarse, axis=0, return_inverse=True)
                labels[mine] = used + inverse.reshape(-1)
                used += int(inverse.max()) + 1
        return labels


def cumulative_count(labels: npt.NDArray[Any]) -> Index:
    """[n] how many equal labels stand before each: 0 for the first of its kind."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    begins = np.ones(len(labels), dtype=bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(begins)
    count = np.empty(len(labels), dtype=np.intp)
    count[order] = np.arange(len(labels)) - np.repeat(starts, np.diff(np.append(starts, len(labels))))
    return count


def choose(pool: Pool, n: int, penalty: float, crowd: int, taken: Index) -> tuple[Candidate, ...]:
    """At most `n` candidates of `pool`: the best, spread over sketches and parameter values.

    Every further candidate of a sketch, and every one of `taken` [n_sketches] that it already had, counts
    `penalty` against its score; at most `crowd` come from one bucket while there are others.
    """
    sketch, local, score = pool.flat()
    sketch, local, score = sketch[: 64 * n], local[: 64 * n], score[: 64 * n]
    crowded = cumulative_count(pool.buckets(sketch, local)) >= crowd
    order = np.argsort(crowded, kind="stable")
    rank = np.empty(len(score), dtype=np.intp)
    rank[order] = cumulative_count(sketch[order])
    adjusted = score - penalty * (rank + taken[sketch])
    best = np.lexsort((-adjusted, crowded))[:n]
    return tuple(pool.candidate(int(sketch[b]), int(local[b])) for b in best)

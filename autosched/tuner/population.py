"""Populations: scored rows of several sketches, and the selection of candidates, as array operations."""

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
    """Distinct rows [n, n_params] of one sketch, their `keys` [n] and `score` [n]; higher is better."""

    rows: Population
    keys: Keys
    score: Floats

    def take(self, index: npt.NDArray[Any]) -> SketchRows:
        return SketchRows(self.rows[index], self.keys[index], self.score[index])


@dataclass(frozen=True)
class Pool:
    """Scored rows of all sketches. `parts`: those of each sketch."""

    parts: tuple[SketchRows, ...]

    def __len__(self) -> int:
        return sum(len(part.score) for part in self.parts)

    @property
    def best_score(self) -> float:
        """The highest score; minus infinity without rows."""
        return max((float(part.score.max()) for part in self.parts if len(part.score)), default=-np.inf)

    def flat(self) -> tuple[Index, Index, Floats]:
        """Return (sketch, row within the sketch, score), each [n], best first; ties keep the order of the rows."""
        sketch = np.repeat(np.arange(len(self.parts)), [len(part.score) for part in self.parts])
        local = np.concatenate([np.arange(len(part.score)) for part in self.parts])
        score = np.concatenate([part.score for part in self.parts])
        order = np.argsort(-score, kind="stable")
        return sketch[order], local[order], score[order]

    def select(self, sketch: Index, local: Index) -> Pool:
        """Return the rows with these indices, in this order."""
        return Pool(tuple(part.take(local[sketch == i]) for i, part in enumerate(self.parts)))

    def top(self, n: int, each: int = 0, within: float = np.inf) -> Pool:
        """Return the best `n` rows, and the best `each` of every sketch whose best score is at most `within` below the
        best of all; best first within each sketch."""
        sketch, local, score = self.flat()
        rank = cumulative_count(sketch)
        is_close = np.isin(sketch, sketch[(rank == 0) & (score >= self.best_score - within)])
        keep = is_close & (rank < each)
        keep[:n] = True
        return self.select(sketch[keep], local[keep])

    def merge(self, other: Pool) -> Pool:
        """Return the rows of both pools, each distinct row once; of equal rows, this pool's."""
        parts = []
        for own, added in zip(self.parts, other.parts, strict=True):
            if not len(added.score):  # quick exit: late in an evolution most sketches have no new rows
                parts.append(own)
                continue
            fresh = added.take(~np.isin(added.keys, own.keys))
            parts.append(
                SketchRows(
                    np.concatenate([own.rows, fresh.rows]),
                    np.concatenate([own.keys, fresh.keys]),
                    np.concatenate([own.score, fresh.score]),
                )
            )
        return Pool(tuple(parts))

    def without(self, seen: Sequence[Keys]) -> Pool:
        """Return the rows whose keys are not in `seen[sketch]`."""
        parts = (
            p.take(~np.isin(p.keys, s)) if len(p.score) and len(s) else p for p, s in zip(self.parts, seen, strict=True)
        )
        return Pool(tuple(parts))

    def candidate(self, sketch: int, local: int) -> Candidate:
        return Candidate(sketch, tuple(self.parts[sketch].rows[local].tolist()))

    def buckets(self, sketch: Index, local: Index) -> npt.NDArray[np.int64]:
        """Return labels [n], equal for rows of a sketch whose parameters all have the same floor of log2."""
        labels = np.empty(len(sketch), dtype=np.int64)
        used = 0
        for i, part in enumerate(self.parts):
            is_own = sketch == i
            coarse = np.frexp(part.rows[local[is_own]].astype(np.float64))[1]
            if len(coarse):
                _, inverse = np.unique(coarse, axis=0, return_inverse=True)
                labels[is_own] = used + inverse.reshape(-1)
                used += int(inverse.max()) + 1
        return labels


def cumulative_count(labels: npt.NDArray[Any]) -> Index:
    """Return [n], for each label the number of equal labels before it."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    is_first = np.ones(len(labels), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(is_first)
    count = np.empty(len(labels), dtype=np.intp)
    count[order] = np.arange(len(labels)) - np.repeat(starts, np.diff(np.append(starts, len(labels))))
    return count


def choose(pool: Pool, n: int, penalty: float, crowd: int, taken: Index) -> tuple[Candidate, ...]:
    """Return at most `n` of the best candidates of `pool`, diversified over sketches and parameter values.

    A candidate's score is lowered by `penalty` for each better one of its sketch, and for each of the `taken`
    [n_sketches] candidates that the sketch had before. At most `crowd` are taken from a bucket while others have rows.
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

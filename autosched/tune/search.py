"""The search policy: which candidates to measure next.

    draft    until DRAFT_TRIALS, and until each sketch has been tried or COVER_SHARE is over: the best of a large
             analytic draft, every sketch's best first, then spread over sketches and parameter values
    evolve   then: evolution of the measured best and the draft's elite, judged by the learned score
    descend  the last DESCENT_SHARE of the trials or of the time: coordinate descent around the best few (Droplet,
             TACO 2024)

What a round proposes is a function of the seed, the round's number, what was observed before it and the state of
the cost model, of nothing else, so a search that was stopped anywhere continues from its records. Populations are
matrices; no loop here runs over candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from autosched.tune.population import Floats, Index, Part, Pool, choose
from autosched.tune.protocols import Candidate, CostModel, Keys, Population, Scores, SearchSpace, SketchLike, Trial

S = TypeVar("S", bound=SketchLike)
Judge: TypeAlias = Callable[[int, Population], Scores]

DRAFT_ROWS = 32_768  # rows drawn for the draft, shared by the sketches
DRAFT_PER_SKETCH = 512  # ... but at least so many for each
DRAFT_RETRIES = 3  # further draws for a sketch with few legal rows
DRAFT_GENERATIONS = 3  # generations of evolution under the analytic latency
DRAFT_TRIALS = 12  # measurements that follow the draft alone
COVER_SHARE = 0.35  # of a search, at most, goes into trying each sketch once: the draft ranks rows better than sketches
ANOTHER_OF_SKETCH = 0.25  # in the draft, a sketch's next candidate must promise to be exp(0.25) times as fast
ANOTHER_IN_EVOLUTION = 0.05  # later, the same in standard deviations of the best scores
POPULATION = 2048
GENERATIONS = 4  # more gain nothing (TVM pull request 6994)
ELITE = 512  # rows that have children
MUTATION = 0.85  # a child's chance to be mutated
CROSSOVER = 0.4  # a child's chance to have two parents
EPSILON = 0.05  # share of picks that are random legal rows
DESCENT_SHARE = 0.2
DESCENT_CENTRES = 3
NOT_A_SCORE = -1e30
HOPELESS = 4  # failures without one success after which a sketch is left alone


class Search(Generic[S]):
    """The policy and its state: what has been observed, and the draft. There must be at least one sketch."""

    def __init__(self, space: SearchSpace[S], sketches: Sequence[S], model: CostModel, seed: int) -> None:
        self._space, self._sketches, self._model = space, sketches, model
        self._seed = seed % 2**64
        self._trials: list[Trial] = []
        self._draft: Pool | None = None

    def observe(self, trials: Sequence[Trial]) -> None:
        """Takes in measured candidates; none of them is proposed again."""
        self._trials.extend(trials)

    def phase(self, progress: float) -> str:
        """What the next round does when `progress` (0 to 1) of the search is over: draft, evolve or descend."""
        if len(self._trials) < DRAFT_TRIALS or not self._best(1):
            return "draft"
        if progress < COVER_SHARE and not self._tried().all():
            return "draft"
        return "descend" if progress >= 1.0 - DESCENT_SHARE else "evolve"

    def propose(self, round: int, n: int, phase: str) -> tuple[Candidate, ...]:
        """At most `n` distinct candidates that were not observed; none once the space is used up."""
        rng = np.random.default_rng((self._seed, round + 1))
        picks: tuple[Candidate, ...] = ()
        if phase == "descend":
            picks = self._descend(n)
        if phase != "draft" and len(picks) < n:
            picks = _join(picks, self._evolve(rng, n), n - int(rng.binomial(n, EPSILON)))
            picks = _join(picks, self._random(rng, n, n_sketches=4), n) if len(picks) < n else picks
        if len(picks) < n:
            picks = _join(picks, self._from_draft(2 * n), n)
        if len(picks) < n:
            picks = _join(picks, self._random(rng, n, n_sketches=len(self._sketches)), n)
        return picks

    # Where picks come from

    def _from_draft(self, n: int) -> tuple[Candidate, ...]:
        if self._draft is None:
            self._draft = self._make_draft()
        pool = self._open(self._draft)
        tried = self._tried()
        nothing = np.empty(0, dtype=np.intp)
        new = Pool(tuple(p.take(nothing) if known else p for p, known in zip(pool.parts, tried, strict=True)))
        best = new.top(0, each=1)
        sketch, local, _ = best.flat()
        picks = tuple(best.candidate(int(s), int(row)) for s, row in zip(sketch[:n], local[:n], strict=True))
        taken = np.bincount([t.candidate.sketch for t in self._trials], minlength=len(self._sketches))
        return _join(picks, choose(pool, n, ANOTHER_OF_SKETCH, 1, taken), n)

    def _make_draft(self) -> Pool:
        """Legal rows of all sketches, scored with the negative logarithm of their analytic latency."""
        rng = np.random.default_rng((self._seed, 0))
        each = max(DRAFT_PER_SKETCH, DRAFT_ROWS // len(self._sketches))
        pool = self._judged(self._analytic, [self._legal(i, each, rng) for i in range(len(self._sketches))])
        for _ in range(DRAFT_GENERATIONS):
            children = self._children(pool.top(ELITE, each=8), 4 * ELITE, rng)
            pool = pool.merge(self._judged(self._analytic, children, pool))
        return pool

    def _evolve(self, rng: np.random.Generator, n: int) -> tuple[Candidate, ...]:
        """The best new rows of a few generations that start from the measured best, the draft's elite and others."""
        if self._draft is None:
            self._draft = self._make_draft()
        sketch, local, _ = self._draft.flat()
        others = rng.choice(len(sketch), size=min(len(sketch), POPULATION // 4), replace=False)
        start = np.union1d(np.arange(min(len(sketch), POPULATION // 2)), others)
        founders = self._draft.select(sketch[start], local[start])
        measured = self._rows([t.candidate for t in self._best(64)])
        pool = self._judged(
            self._model.score, [np.concatenate([m, p.rows]) for m, p in zip(measured, founders.parts, strict=True)]
        )
        for _ in range(GENERATIONS):
            children = self._children(self._alive(pool).top(ELITE), POPULATION, rng)
            pool = pool.merge(self._judged(self._model.score, children, pool))
        spread = float(np.std(pool.flat()[2][:ELITE]))
        nobody = np.zeros(len(self._sketches), dtype=np.intp)
        return choose(self._open(pool), n, ANOTHER_IN_EVOLUTION * spread, 2, nobody)

    def _descend(self, n: int) -> tuple[Candidate, ...]:
        """The best-scored rows one move away from the best measured ones."""
        rows = self._rows([])
        for trial in self._best(DESCENT_CENTRES):
            i = trial.candidate.sketch
            near = self._space.neighbours(self._sketches[i], np.array(trial.candidate.values, dtype=np.int64))
            rows[i] = np.concatenate([rows[i], near[self._model.legal(i, near)]])
        nobody = np.zeros(len(self._sketches), dtype=np.intp)
        return choose(self._open(self._judged(self._model.score, rows)), n, 0.0, n, nobody)

    def _random(self, rng: np.random.Generator, n: int, n_sketches: int) -> tuple[Candidate, ...]:
        """Random legal rows of `n_sketches` random sketches."""
        rows = self._rows([])
        for i in rng.permutation(len(self._sketches))[:n_sketches]:
            rows[i] = self._legal(int(i), 64, rng)
        nobody = np.zeros(len(self._sketches), dtype=np.intp)
        return choose(self._open(self._judged(lambda _, r: rng.random(len(r)), rows)), n, 0.0, n, nobody)

    # Populations

    def _legal(self, i: int, n: int, rng: np.random.Generator) -> Population:
        """All legal rows of sketch `i` if it has at most `n` rows, else the legal ones of a few random draws."""
        sketch = self._sketches[i]
        found = self._space.enumerate_grid(sketch, n, rng)
        complete = len(found) < n
        found = self._model.legal_rows(i, found)
        for _ in range(DRAFT_RETRIES):
            if complete or len(found) >= n // 8:
                break
            more = self._space.enumerate_grid(sketch, 2 * n, rng)
            found = np.concatenate([found, self._model.legal_rows(i, more)])
        return found

    def _children(self, elite: Pool, n: int, rng: np.random.Generator) -> list[Population]:
        """About `n` legal children; a sketch has as many as its share of the elite. Better rows have more."""
        children = self._rows([])
        total = max(len(elite), 1)
        for i, (sketch, part) in enumerate(zip(self._sketches, elite.parts, strict=True)):
            if not len(part.rows):
                continue
            size = -(-n * len(part.rows) // total)
            a, b = (np.minimum(*rng.integers(len(part.rows), size=(2, size))) for _ in range(2))
            crossed = self._space.crossover(sketch, part.rows[a], part.rows[b], rng)
            rows = np.where(rng.random((size, 1)) < CROSSOVER, crossed, part.rows[a])
            rows = self._space.mutate(sketch, rows, rng, MUTATION)
            children[i] = rows[self._model.legal(i, rows)]
        return children

    def _judged(self, judge: Judge, rows: Sequence[Population], known: Pool | None = None) -> Pool:
        """The distinct rows, without those of `known`, with their scores; what is not finite scores lowest."""
        parts = []
        for i, candidates in enumerate(rows):
            keys, first = np.unique(self._space.keys(candidates), return_index=True)
            if known is not None:
                first = first[~np.isin(keys, known.parts[i].keys)]
            first.sort()
            fresh = candidates[first]
            score: Floats = np.asarray(judge(i, fresh) if len(fresh) else np.empty(0), dtype=np.float64)
            parts.append(Part(fresh, self._space.keys(fresh), np.where(np.isfinite(score), score, NOT_A_SCORE)))
        return Pool(tuple(parts))

    def _analytic(self, i: int, rows: Population) -> Scores:
        return -np.log(np.maximum(self._model.draft(i, rows), 1e-12))

    def _rows(self, candidates: Sequence[Candidate]) -> list[Population]:
        """The candidates as one matrix for each sketch."""
        rows: list[Population] = []
        for i in range(len(self._sketches)):
            values = [c.values for c in candidates if c.sketch == i]
            rows.append(np.array(values, dtype=np.int64).reshape(len(values), len(self._sketches[i].params)))
        return rows

    # What was observed

    def _best(self, n: int) -> list[Trial]:
        """The `n` fastest trials, fastest first."""
        timed = [(t.seconds, place, t) for place, t in enumerate(self._trials) if t.seconds is not None]
        return [t for _, _, t in sorted(timed, key=lambda entry: entry[:2])[:n]]

    def _tried(self) -> npt.NDArray[np.bool_]:
        """[n_sketches] whether a candidate of the sketch has been observed."""
        tried = np.zeros(len(self._sketches), dtype=bool)
        tried[[t.candidate.sketch for t in self._trials]] = True
        return tried

    def _alive(self, pool: Pool) -> Pool:
        """Without the sketches of which only failures are known (all of them, if it is so for all)."""
        failed: Index = np.zeros(len(self._sketches), dtype=np.intp)
        worked = np.zeros(len(self._sketches), dtype=bool)
        for trial in self._trials:
            failed[trial.candidate.sketch] += trial.seconds is None
            worked[trial.candidate.sketch] |= trial.seconds is not None
        hopeless = (failed >= HOPELESS) & ~worked
        if hopeless.all():
            return pool
        nothing = np.empty(0, dtype=np.intp)
        return Pool(tuple(p.take(nothing) if dead else p for p, dead in zip(pool.parts, hopeless, strict=True)))

    def _open(self, pool: Pool) -> Pool:
        """The rows of `pool` that may be proposed."""
        seen: list[Keys] = [self._space.keys(rows) for rows in self._rows([t.candidate for t in self._trials])]
        return self._alive(pool).without(seen)


def _join(picks: tuple[Candidate, ...], more: tuple[Candidate, ...], n: int) -> tuple[Candidate, ...]:
    """`picks`, filled up to `n` from `more`, each candidate once."""
    return picks + tuple(c for c in dict.fromkeys(more) if c not in picks)[: max(n - len(picks), 0)]

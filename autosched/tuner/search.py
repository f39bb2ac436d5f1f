"""The search policy: which candidates to measure next.

    draft    until `draft_trials`, and until each sketch has been tried or `cover_share` is over: the best of a large
             analytic draft, every sketch's best first, then spread over sketches and parameter values; in the first
             round also what was fastest for the nearest shapes
    evolve   then: evolution of the measured best and the draft's elite, judged by the learned score
    descend  the last `descent_share` of the trials or of the time: coordinate descent around the best few (Droplet,
             TACO 2024)

The names in quotes are numbers of `Policy`, whose switches leave parts of this out: then some rounds are `random`.
What a round proposes is a function of the policy, the seed, the round's number, what was observed before it and the
state of the cost model; in the first round of other shapes' records too. So a search that was stopped anywhere
continues from its records. Populations are matrices; no loop here runs over candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from autosched.tuner.policy import FULL, Policy
from autosched.tuner.population import Floats, Index, Pool, SketchRows, choose, cumulative_count
from autosched.tuner.protocols import Candidate, CostModel, Keys, Population, Scores, SearchSpace, SketchLike, Trial

S = TypeVar("S", bound=SketchLike)
Judge: TypeAlias = Callable[[int, Population], Scores]

NOT_A_SCORE = -1e30


class Search(Generic[S]):
    """The policy and its state: what has been observed, and the draft. There must be at least one sketch."""

    def __init__(
        self,
        space: SearchSpace[S],
        sketches: Sequence[S],
        model: CostModel,
        seed: int,
        policy: Policy = FULL,
        relatives: Sequence[Candidate] = (),
    ) -> None:
        self._space, self._sketches, self._model, self._policy = space, sketches, model, policy
        self._seed = seed % 2**64
        self._relatives = tuple(dict.fromkeys(relatives))[: policy.relatives]
        self._trials: list[Trial] = []
        self._draft: Pool | None = None

    def observe(self, trials: Sequence[Trial]) -> None:
        """Takes in measured candidates; none of them is proposed again."""
        self._trials.extend(trials)

    def correct(self, known: Trial, trial: Trial) -> None:
        """What was `known` of a candidate turned out to be `trial`."""
        self._trials[self._trials.index(known)] = trial

    def phase(self, progress: float) -> str:
        """What the next round does when `progress` (0 to 1) of the search is over: draft, evolve, descend or random."""
        policy = self._policy
        if policy.random:
            return "random"
        if len(self._trials) < policy.draft_trials or not self._best(1):
            return "draft" if policy.draft else "random"
        if policy.draft and progress < policy.cover_share and not self._tried().all():
            return "draft"
        return "descend" if progress >= 1.0 - policy.descent_share and policy.descent_share else "evolve"

    def prepare(self) -> None:
        """Makes the draft that the first round is taken from, if one is: the same as it would make then."""
        if self._draft is None and self._policy.draft and not self._policy.random:
            self._draft = self._make_draft()

    def propose(self, round: int, n: int, phase: str) -> tuple[Candidate, ...]:
        """At most `n` distinct candidates that were not observed; none once the space is used up."""
        rng = np.random.default_rng((self._seed, round + 1))
        picks: tuple[Candidate, ...] = ()
        if phase == "descend":
            picks = self._descend(n)
        if phase in ("evolve", "descend") and len(picks) < n:
            picks = _join(picks, self._evolve(rng, n), n - int(rng.binomial(n, self._policy.epsilon)))
            picks = _join(picks, self._random(rng, n, n_sketches=4), n) if len(picks) < n else picks
        if phase != "random" and self._policy.draft and len(picks) < n:
            drafted = self._from_draft(2 * n)
            known = self._relatives[: n // 2] if round == 0 else ()
            picks = _join(_join(_join(picks, drafted, n - len(known)), known, n), drafted, n)
        if len(picks) < n:
            picks = _join(picks, self._random(rng, n, n_sketches=len(self._sketches)), n)
        return picks

    # Where picks come from

    def _from_draft(self, n: int) -> tuple[Candidate, ...]:
        if self._draft is None:
            self._draft = self._make_draft()
        pool = self._open(self._draft)
        taken = np.bincount([t.candidate.sketch for t in self._trials], minlength=len(self._sketches))
        return _join(self._new_sketches(pool, n), choose(pool, n, self._policy.another_of_sketch, 1, taken), n)

    def _new_sketches(self, pool: Pool, n: int) -> tuple[Candidate, ...]:
        """The best row of each of at most `n` sketches that were not tried yet, with unlike vectors.

        What the draft or, once there are measurements, the model gets wrong about a vector width it gets wrong in every
        sketch. So up to `alike` candidates of the same widths count `another_of_width` each against a further one.
        """
        policy, nothing = self._policy, np.empty(0, dtype=np.intp)
        parts = [p.take(nothing) if known else p for p, known in zip(pool.parts, self._tried(), strict=True)]
        sketch, local, _, width = self._by_width(Pool(tuple(parts)))
        keep = cumulative_count(width + sketch.astype(np.uint64)) < policy.shortlist
        few = Pool(tuple(parts)).select(sketch[keep], local[keep])
        if policy.learned and len(self._best(policy.draft_trials)) == policy.draft_trials:
            few = self._judged(self._model.score, [part.rows for part in few.parts])
        sketch, local, score, width = self._by_width(few)
        known = np.array(
            [self._widths(t.candidate.sketch, _row(t.candidate))[0] for t in self._trials], dtype=np.uint64
        )
        alike = (width[:, None] == known[None, :]).sum(axis=1)
        picks: list[Candidate] = []
        while len(picks) < n and np.isfinite(score).any():
            best = int(np.argmax(score - policy.another_of_width * np.minimum(alike, policy.alike)))
            picks.append(few.candidate(int(sketch[best]), int(local[best])))
            alike[width == width[best]] += 1
            score[sketch == sketch[best]] = -np.inf
        return tuple(picks)

    def _by_width(self, pool: Pool) -> tuple[Index, Index, Floats, Keys]:
        """`pool.flat()` and a label of each row's vectors."""
        sketch, local, score = pool.flat()
        width = np.empty(len(sketch), dtype=np.uint64)
        for i, part in enumerate(pool.parts):
            mine = sketch == i
            width[mine] = self._widths(i, part.rows)[local[mine]]
        return sketch, local, score, width

    def _widths(self, i: int, rows: Population) -> Keys:
        """[n] equal for rows, of whatever sketch, whose vectors are as wide: those of the first stage that has any."""
        columns = [j for j, param in enumerate(self._sketches[i].params) if param.kind == "vector"]
        return self._space.keys(rows[:, columns[:1]])

    def _make_draft(self) -> Pool:
        """Legal rows of all sketches, scored with the negative logarithm of their analytic latency.

        A row has one sample of each independent part of its sketch: where there are several, fewer rows do."""
        rng = np.random.default_rng((self._seed, 0))
        each = max(self._policy.draft_per_sketch, self._policy.draft_rows // len(self._sketches))
        rows = [self._legal(i, -(-each // self._model.n_parts(i)), rng) for i in range(len(self._sketches))]
        best = self._rows([])

        def judge(i: int, found: Population) -> Scores:
            seconds, best[i] = self._model.analytic_latency_with_best(i, found)
            return _rate(seconds)

        pool = self._judged(judge, rows)
        pool = pool.merge(self._judged(self._analytic, best, pool))
        within = float(np.log(self._policy.draft_slower))
        for _ in range(self._policy.draft_generations):
            children = self._children(pool.top(self._policy.elite, 8, within), 4 * self._policy.elite, rng)
            pool = pool.merge(self._judged(self._analytic, children, pool))
        return self._descended(pool)

    def _descended(self, pool: Pool) -> Pool:
        """With all rows one move away from the best rows of the pool and from the best of each sketch, some times over,
        each time from others: what random draws and children come near to and seldom hit. It ends where nothing
        better is found for some times."""
        done: list[Keys] = [part.keys[:0] for part in pool.parts]
        top, in_vain, within = pool.best_score, 0, float(np.log(self._policy.draft_slower))
        for number in range(self._policy.draft_descents):
            best = pool.without(done).top(self._policy.draft_descended, int(number == 0), within)
            done = [np.concatenate([keys, part.keys]) for keys, part in zip(done, best.parts, strict=True)]
            near = [self._near(i, part.rows) for i, part in enumerate(best.parts)]
            pool = pool.merge(self._judged(self._analytic, near, pool))
            in_vain = in_vain + 1 if pool.best_score <= top else 0
            if in_vain == self._policy.draft_in_vain:
                break
            top = pool.best_score
        return pool

    def _evolve(self, rng: np.random.Generator, n: int) -> tuple[Candidate, ...]:
        """The best new rows of a few generations that start from the measured best, the draft's elite and others."""
        measured = self._rows([t.candidate for t in self._best(64)])
        founders = self._founders(rng)
        pool = self._judged(self._judge, [np.concatenate(pair) for pair in zip(measured, founders, strict=True)])
        for _ in range(self._policy.generations):
            children = self._children(self._alive(pool).top(self._policy.elite), self._policy.population, rng)
            pool = pool.merge(self._judged(self._judge, children, pool))
        spread = float(np.std(pool.flat()[2][: self._policy.elite]))
        nobody = np.zeros(len(self._sketches), dtype=np.intp)
        return choose(self._open(pool), n, self._policy.another_in_evolution * spread, 2, nobody)

    def _founders(self, rng: np.random.Generator) -> list[Population]:
        """What evolution starts from besides the measured best: the draft's elite and others."""
        size = self._policy.population
        if not self._policy.draft:
            each = -(-size // len(self._sketches))
            return [self._legal(i, each, rng) for i in range(len(self._sketches))]
        if self._draft is None:
            self._draft = self._make_draft()
        sketch, local, _ = self._draft.flat()
        others = rng.choice(len(sketch), size=min(len(sketch), size // 4), replace=False)
        start = np.union1d(np.arange(min(len(sketch), size // 2)), others)
        return [part.rows for part in self._draft.select(sketch[start], local[start]).parts]

    def _descend(self, n: int) -> tuple[Candidate, ...]:
        """The best-scored rows one move away from the best measured ones."""
        centres = self._rows([t.candidate for t in self._best(self._policy.descent_centres)])
        rows = [self._near(i, part) for i, part in enumerate(centres)]
        nobody = np.zeros(len(self._sketches), dtype=np.intp)
        return choose(self._open(self._judged(self._judge, rows)), n, 0.0, n, nobody)

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
        for _ in range(self._policy.draft_retries):
            if complete or len(found) >= n // 8:
                break
            more = self._space.enumerate_grid(sketch, 2 * n, rng)
            found = np.concatenate([found, self._model.legal_rows(i, more)])
        return found

    def _near(self, i: int, rows: Population) -> Population:
        """The legal rows of sketch `i` one move away from one of `rows`."""
        near = self._space.neighbours(self._sketches[i], rows) if len(rows) else rows
        return near[self._model.legal(i, near)] if len(near) else near

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
            rows = np.where(rng.random((size, 1)) < self._policy.crossover, crossed, part.rows[a])
            rows = self._space.mutate(sketch, rows, rng, self._policy.mutation)
            children[i] = rows[self._model.legal(i, rows)]
        return children

    def _judged(self, judge: Judge, rows: Sequence[Population], known: Pool | None = None) -> Pool:
        """The distinct programs among the rows, without those of `known`, with their scores; what is not finite scores
        lowest."""
        parts = []
        for i, candidates in enumerate(self._canonical(rows)):
            keys = self._space.keys(candidates)
            if not len(keys):
                parts.append(SketchRows(candidates, keys, np.empty(0)))
                continue
            distinct, first = np.unique(keys, return_index=True)
            if known is not None:
                first = first[~np.isin(distinct, known.parts[i].keys)]
            first.sort()
            fresh = candidates[first]
            score: Floats = np.asarray(judge(i, fresh) if len(fresh) else np.empty(0), dtype=np.float64)
            parts.append(SketchRows(fresh, keys[first], np.where(np.isfinite(score), score, NOT_A_SCORE)))
        return Pool(tuple(parts))

    def _canonical(self, rows: Sequence[Population]) -> list[Population]:
        pairs = zip(self._sketches, rows, strict=True)
        return [self._space.canonical(sketch, part) if len(part) else part for sketch, part in pairs]

    def _judge(self, i: int, rows: Population) -> Scores:
        return self._model.score(i, rows) if self._policy.learned else self._analytic(i, rows)

    def _analytic(self, i: int, rows: Population) -> Scores:
        return _rate(self._model.analytic_latency(i, rows))

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
        timed = [(s, place, t) for place, t in enumerate(self._trials) if (s := t.undisturbed_s) is not None]
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
        hopeless = (failed >= self._policy.hopeless) & ~worked
        if hopeless.all():
            return pool
        nothing = np.empty(0, dtype=np.intp)
        return Pool(tuple(p.take(nothing) if dead else p for p, dead in zip(pool.parts, hopeless, strict=True)))

    def _open(self, pool: Pool) -> Pool:
        """The rows of `pool` that may be proposed."""
        measured = self._canonical(self._rows([t.candidate for t in self._trials]))
        seen: list[Keys] = [self._space.keys(rows) for rows in measured]
        return self._alive(pool).without(seen)


def _rate(seconds: Scores) -> Scores:
    """Higher is better."""
    return -np.log(np.maximum(seconds, 1e-12))


def _row(candidate: Candidate) -> Population:
    return np.array([candidate.values], dtype=np.int64)


def _join(picks: tuple[Candidate, ...], more: tuple[Candidate, ...], n: int) -> tuple[Candidate, ...]:
    """`picks`, filled up to `n` from `more`, each candidate once."""
    return picks + tuple(c for c in dict.fromkeys(more) if c not in picks)[: max(n - len(picks), 0)]

"""Search policy: which candidates are measured next. A round is in one of three phases:

    draft    predicted-latency preselection: the best of many rows by the analytic latency, first of each sketch, then
             diversified over sketches and parameter values; the first round also has the fastest candidates of the
             nearest shapes. Until `draft_trials` are done, and all sketches are tried or `cover_share` is used up
    evolve   evolution of the best measured rows and the draft's elite, by the learned score
    descend  coordinate descent around the best few (Droplet, TACO 2024), in the last `descent_share`

The names in quotes are parameters of `Policy`, which can also switch off phases: their rounds are `random`. A proposal
is a function of policy, seed, round number, earlier observations and the state of the cost model (in the first round
also of other shapes' records), so an interrupted search continues from its records as it would have. Populations are
matrices; no loop runs over candidates.
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
ScoreFunction: TypeAlias = Callable[[int, Population], Scores]

NOT_A_SCORE = -1e30


class Search(Generic[S]):
    """The policy with its state: observed trials and the draft. Needs at least one sketch."""

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
        """Add measured candidates, which are not proposed again."""
        self._trials.extend(trials)

    def correct(self, known: Trial, trial: Trial) -> None:
        """Replace the trial `known` by `trial`."""
        self._trials[self._trials.index(known)] = trial

    def phase(self, progress: float) -> str:
        """Return the phase of the next round at `progress` (0 to 1): draft, evolve, descend or random."""
        policy = self._policy
        if policy.random:
            return "random"
        if len(self._trials) < policy.draft_trials or not self._best(1):
            return "draft" if policy.draft else "random"
        if policy.draft and progress < policy.cover_share and not self._tried().all():
            return "draft"
        return "descend" if progress >= 1.0 - policy.descent_share and policy.descent_share else "evolve"

    def prepare(self) -> None:
        """Make the draft for the first round now, if the policy has one; the result does not depend on when."""
        if self._draft is None and self._policy.draft and not self._policy.random:
            self._draft = self._make_draft()

    def propose(self, round: int, n: int, phase: str) -> tuple[Candidate, ...]:
        """Return at most `n` distinct candidates that were not observed; none once the space is exhausted."""
        rng = np.random.default_rng((self._seed, round + 1))
        picks: tuple[Candidate, ...] = ()
        if phase == "descend":
            picks = self._descend(n)
        if phase in ("evolve", "descend") and len(picks) < n:
            picks = _join(picks, self._evolve(rng, n), n - int(rng.binomial(n, self._policy.epsilon)))
            picks = _join(picks, self._random(rng, n, n_sketches=4), n) if len(picks) < n else picks
        if phase != "random" and self._policy.draft and len(picks) < n:
            drafted = self._from_draft(2 * n)
            relatives = self._relatives[: n // 2] if round == 0 else ()
            picks = _join(_join(_join(picks, drafted, n - len(relatives)), relatives, n), drafted, n)
        if len(picks) < n:
            picks = _join(picks, self._random(rng, n, n_sketches=len(self._sketches)), n)
        return picks

    # Sources of candidates

    def _from_draft(self, n: int) -> tuple[Candidate, ...]:
        if self._draft is None:
            self._draft = self._make_draft()
        pool = self._proposable(self._draft)
        taken = np.bincount([t.candidate.sketch for t in self._trials], minlength=len(self._sketches))
        return _join(self._new_sketches(pool, n), choose(pool, n, self._policy.another_of_sketch, 1, taken), n)

    def _new_sketches(self, pool: Pool, n: int) -> tuple[Candidate, ...]:
        """Return the best row of each of at most `n` untried sketches, diversified over vector widths.

        Errors of the analytic latency, or of the model once there are measurements, on a vector width affect all
        sketches. So each of up to `alike` candidates with the same widths lowers a row's score by `another_of_width`.
        """
        policy, nothing = self._policy, np.empty(0, dtype=np.intp)
        parts = [p.take(nothing) if is_tried else p for p, is_tried in zip(pool.parts, self._tried(), strict=True)]
        sketch, local, _, width = self._by_width(Pool(tuple(parts)))
        keep = cumulative_count(width + sketch.astype(np.uint64)) < policy.shortlist
        shortlist = Pool(tuple(parts)).select(sketch[keep], local[keep])
        if policy.learned and len(self._best(policy.draft_trials)) == policy.draft_trials:
            shortlist = self._score_distinct(self._model.score, [part.rows for part in shortlist.parts])
        sketch, local, score, width = self._by_width(shortlist)
        tried_widths = np.array(
            [self._widths(t.candidate.sketch, _row(t.candidate))[0] for t in self._trials], dtype=np.uint64
        )
        n_alike = (width[:, None] == tried_widths[None, :]).sum(axis=1)
        picks: list[Candidate] = []
        while len(picks) < n and np.isfinite(score).any():
            best = int(np.argmax(score - policy.another_of_width * np.minimum(n_alike, policy.alike)))
            picks.append(shortlist.candidate(int(sketch[best]), int(local[best])))
            n_alike[width == width[best]] += 1
            score[sketch == sketch[best]] = -np.inf
        return tuple(picks)

    def _by_width(self, pool: Pool) -> tuple[Index, Index, Floats, Keys]:
        """Return `pool.flat()` and a label of each row's vector widths."""
        sketch, local, score = pool.flat()
        width = np.empty(len(sketch), dtype=np.uint64)
        for i, part in enumerate(pool.parts):
            is_own = sketch == i
            width[is_own] = self._widths(i, part.rows)[local[is_own]]
        return sketch, local, score, width

    def _widths(self, i: int, rows: Population) -> Keys:
        """Return labels [n] that are equal for rows of any sketches with equal vector widths of the first vectorised
        stage."""
        columns = [j for j, param in enumerate(self._sketches[i].params) if param.kind == "vector"]
        return self._space.keys(rows[:, columns[:1]])

    def _make_draft(self) -> Pool:
        """Return legal rows of all sketches, scored by the negative logarithm of their analytic latency.

        A row is a sample of each independent part of its sketch, so sketches with more parts need fewer rows.
        """
        rng = np.random.default_rng((self._seed, 0))
        each = max(self._policy.draft_per_sketch, self._policy.draft_rows // len(self._sketches))
        rows = [self._legal(i, -(-each // self._model.n_parts(i)), rng) for i in range(len(self._sketches))]
        best = self._rows([])

        def score_rows(i: int, population: Population) -> Scores:
            seconds, best[i] = self._model.analytic_latency_with_best(i, population)
            return _score_of(seconds)

        pool = self._score_distinct(score_rows, rows)
        pool = pool.merge(self._score_distinct(self._analytic, best, pool))
        within = float(np.log(self._policy.draft_slower))
        for _ in range(self._policy.draft_generations):
            children = self._children(pool.top(self._policy.elite, 8, within), 4 * self._policy.elite, rng)
            pool = pool.merge(self._score_distinct(self._analytic, children, pool))
        return self._descend_draft(pool)

    def _descend_draft(self, pool: Pool) -> Pool:
        """Add the neighbours of the best rows, and of each sketch's best row in the first step, in several steps of
        coordinate descent: random draws and children come near to the best rows, but seldom hit them."""
        done: list[Keys] = [part.keys[:0] for part in pool.parts]
        top, in_vain, within = pool.best_score, 0, float(np.log(self._policy.draft_slower))
        for number in range(self._policy.draft_descents):
            best = pool.without(done).top(self._policy.draft_descended, int(number == 0), within)
            done = [np.concatenate([keys, part.keys]) for keys, part in zip(done, best.parts, strict=True)]
            neighbours = [self._neighbours(i, part.rows) for i, part in enumerate(best.parts)]
            pool = pool.merge(self._score_distinct(self._analytic, neighbours, pool))
            in_vain = in_vain + 1 if pool.best_score <= top else 0
            if in_vain == self._policy.draft_in_vain:
                break
            top = pool.best_score
        return pool

    def _evolve(self, rng: np.random.Generator, n: int) -> tuple[Candidate, ...]:
        """Return the best new rows after some generations of evolution from measured rows and founders."""
        measured = self._rows([t.candidate for t in self._best(64)])
        founders = self._founders(rng)
        pool = self._score_distinct(
            self._score, [np.concatenate(pair) for pair in zip(measured, founders, strict=True)]
        )
        for _ in range(self._policy.generations):
            children = self._children(
                self._without_hopeless(pool).top(self._policy.elite), self._policy.population, rng
            )
            pool = pool.merge(self._score_distinct(self._score, children, pool))
        spread = float(np.std(pool.flat()[2][: self._policy.elite]))
        none_taken = np.zeros(len(self._sketches), dtype=np.intp)
        return choose(self._proposable(pool), n, self._policy.another_in_evolution * spread, 2, none_taken)

    def _founders(self, rng: np.random.Generator) -> list[Population]:
        """Return the rows that evolution starts from besides measured ones: the draft's elite and random others."""
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
        """Return the best neighbours of the best measured rows, by the score."""
        centres = self._rows([t.candidate for t in self._best(self._policy.descent_centres)])
        rows = [self._neighbours(i, part) for i, part in enumerate(centres)]
        none_taken = np.zeros(len(self._sketches), dtype=np.intp)
        return choose(self._proposable(self._score_distinct(self._score, rows)), n, 0.0, n, none_taken)

    def _random(self, rng: np.random.Generator, n: int, n_sketches: int) -> tuple[Candidate, ...]:
        """Return random legal rows of `n_sketches` random sketches."""
        rows = self._rows([])
        for i in rng.permutation(len(self._sketches))[:n_sketches]:
            rows[i] = self._legal(int(i), 64, rng)
        none_taken = np.zeros(len(self._sketches), dtype=np.intp)
        return choose(
            self._proposable(self._score_distinct(lambda _, r: rng.random(len(r)), rows)), n, 0.0, n, none_taken
        )

    # Populations

    def _legal(self, i: int, n: int, rng: np.random.Generator) -> Population:
        """Return all legal rows of sketch `i` if it has at most `n` rows, else the legal ones of a few random draws."""
        sketch = self._sketches[i]
        drawn = self._space.enumerate_grid(sketch, n, rng)
        is_complete = len(drawn) < n
        legal = self._model.legal_rows(i, drawn)
        for _ in range(self._policy.draft_retries):
            if is_complete or len(legal) >= n // 8:
                break
            more = self._space.enumerate_grid(sketch, 2 * n, rng)
            legal = np.concatenate([legal, self._model.legal_rows(i, more)])
        return legal

    def _neighbours(self, i: int, rows: Population) -> Population:
        """Return the legal rows of sketch `i` that differ from one of `rows` by one move."""
        neighbours = self._space.neighbours(self._sketches[i], rows) if len(rows) else rows
        return neighbours[self._model.legal(i, neighbours)] if len(neighbours) else neighbours

    def _children(self, elite: Pool, n: int, rng: np.random.Generator) -> list[Population]:
        """Return about `n` legal children, for each sketch by its share of the elite; better rows have more."""
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

    def _score_distinct(self, score_rows: ScoreFunction, rows: Sequence[Population], known: Pool | None = None) -> Pool:
        """Return the rows of distinct programs that are not in `known`, with their scores; scores that are not finite
        become NOT_A_SCORE."""
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
            score: Floats = np.asarray(score_rows(i, fresh) if len(fresh) else np.empty(0), dtype=np.float64)
            parts.append(SketchRows(fresh, keys[first], np.where(np.isfinite(score), score, NOT_A_SCORE)))
        return Pool(tuple(parts))

    def _canonical(self, rows: Sequence[Population]) -> list[Population]:
        pairs = zip(self._sketches, rows, strict=True)
        return [self._space.canonical(sketch, part) if len(part) else part for sketch, part in pairs]

    def _score(self, i: int, rows: Population) -> Scores:
        return self._model.score(i, rows) if self._policy.learned else self._analytic(i, rows)

    def _analytic(self, i: int, rows: Population) -> Scores:
        return _score_of(self._model.analytic_latency(i, rows))

    def _rows(self, candidates: Sequence[Candidate]) -> list[Population]:
        """Return the candidates as one matrix for each sketch."""
        rows: list[Population] = []
        for i in range(len(self._sketches)):
            values = [c.values for c in candidates if c.sketch == i]
            rows.append(np.array(values, dtype=np.int64).reshape(len(values), len(self._sketches[i].params)))
        return rows

    # Observed trials

    def _best(self, n: int) -> list[Trial]:
        """Return the `n` fastest trials, fastest first."""
        timed = [(s, index, t) for index, t in enumerate(self._trials) if (s := t.undisturbed_s) is not None]
        return [t for _, _, t in sorted(timed, key=lambda entry: entry[:2])[:n]]

    def _tried(self) -> npt.NDArray[np.bool_]:
        """Return [n_sketches], whether a candidate of the sketch has been observed."""
        tried = np.zeros(len(self._sketches), dtype=bool)
        tried[[t.candidate.sketch for t in self._trials]] = True
        return tried

    def _without_hopeless(self, pool: Pool) -> Pool:
        """Remove the rows of sketches with only failures; keep all if it would remove all."""
        failed: Index = np.zeros(len(self._sketches), dtype=np.intp)
        worked = np.zeros(len(self._sketches), dtype=bool)
        for trial in self._trials:
            failed[trial.candidate.sketch] += trial.seconds is None
            worked[trial.candidate.sketch] |= trial.seconds is not None
        hopeless = (failed >= self._policy.hopeless) & ~worked
        if hopeless.all():
            return pool
        nothing = np.empty(0, dtype=np.intp)
        return Pool(tuple(p.take(nothing) if remove else p for p, remove in zip(pool.parts, hopeless, strict=True)))

    def _proposable(self, pool: Pool) -> Pool:
        """Return the rows of `pool` that were not measured, of sketches that are not hopeless."""
        measured = self._canonical(self._rows([t.candidate for t in self._trials]))
        seen: list[Keys] = [self._space.keys(rows) for rows in measured]
        return self._without_hopeless(pool).without(seen)


def _score_of(seconds: Scores) -> Scores:
    """Return a score that is higher for shorter times."""
    return -np.log(np.maximum(seconds, 1e-12))


def _row(candidate: Candidate) -> Population:
    return np.array([candidate.values], dtype=np.int64)


def _join(picks: tuple[Candidate, ...], more: tuple[Candidate, ...], n: int) -> tuple[Candidate, ...]:
    """Return `picks`, filled up to `n` from `more`, each candidate once."""
    return picks + tuple(c for c in dict.fromkeys(more) if c not in picks)[: max(n - len(picks), 0)]

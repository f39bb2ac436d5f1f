"""How far a session is: what it has found, what it has of code, and what time is over."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autosched.measure.results import Failure, Job
from autosched.tuner.protocols import Candidate, Trial
from autosched.tuner.result import Point
from autosched.tuner.task import Task

FINAL_SHARE = 0.1  # of a time budget, kept for the final comparison
FINAL_S = 1.0  # ... but at least so long, and at most half of the budget


@dataclass
class Progress:
    """What is known so far. `resumed` of the `trials` are of an earlier run; `best_ci` is known after the comparison.

    The largest reading of the peak counts, for what else runs on the machine can only make it smaller.
    """

    phase: str = "start"
    round: int = 0
    trials: list[Trial] = field(default_factory=list)
    resumed: int = 0
    best: Trial | None = None
    best_ci: tuple[float, float] | None = None
    curve: list[Point] = field(default_factory=list)
    peak_gflops: float | None = None

    def add(self, trial: Trial, elapsed_s: float) -> None:
        self.trials.append(trial)
        if trial.seconds is None or (self.best is not None and trial.seconds >= (self.best.seconds or 0.0)):
            return
        self.best = trial
        self.curve.append(Point(len(self.trials), elapsed_s, trial.seconds))

    def correct(self, known: Trial, trial: Trial, elapsed_s: float) -> None:
        """What was `known` of a candidate turned out to be `trial`: the best, and when it was found, anew."""
        number = self.trials.index(known)
        self.trials[number] = trial
        timed = sorted((t for t in self.trials if t.seconds is not None), key=lambda t: t.seconds or 0.0)
        self.best = timed[0] if timed else None
        self.curve = [point for point in self.curve if point.trial != number + 1]
        if self.best and self.best.seconds and not (self.curve and self.curve[-1].best_s <= self.best.seconds):
            self.curve.append(Point(len(self.trials), elapsed_s, self.best.seconds))

    def timed(self) -> list[Trial]:
        """The valid trials, fastest first."""
        return sorted((t for t in self.trials if t.seconds is not None), key=lambda t: t.undisturbed_s or 0.0)

    def failures(self) -> Counter[str]:
        return Counter(t.failure for t in self.trials if t.failure is not None)

    def saw_peak(self, gflops: float) -> None:
        self.peak_gflops = max(self.peak_gflops or 0.0, gflops)


@dataclass
class Stopwatch:
    """Seconds: since the command began, at `started` on `clock`, and of the session's parts by name. `reserve_s` of
    the budget are kept for the end; None: FINAL_SHARE of it."""

    clock: Callable[[], float]
    started: float
    budget_s: float | None
    reserve_s: float | None = None
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def elapsed(self) -> float:
        return self.clock() - self.started

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        begun = self.clock()
        try:
            yield
        finally:
            self.parts[part] += self.clock() - begun

    def spent(self) -> float:
        """The used share of the budget, without what is kept for the end; 0 if there is none."""
        budget = self.budget_s
        if budget is None:
            return 0.0
        usual_s = min(max(FINAL_SHARE * budget, FINAL_S), 0.5 * budget)
        return self.elapsed() / (budget - (usual_s if self.reserve_s is None else self.reserve_s))


@dataclass
class Jobs:
    """What is to be measured of candidates, each under one key. Sources take long: they are kept until `keep`."""

    task: Task
    _keys: dict[Candidate, str] = field(default_factory=dict)
    _made: dict[Candidate, Job] = field(default_factory=dict)

    def of(self, candidate: Candidate) -> Job | Failure:
        if candidate not in self._made:
            key = self._keys.setdefault(candidate, f"c{len(self._keys)}")
            try:
                self._made[candidate] = Job(key, self.task.source(candidate))
            except Exception as error:  # a bug of code generation costs its candidate, not the session
                return Failure(key, "build_error", f"code generation raised {type(error).__name__}: {error}")
        return self._made[candidate]

    def keep(self, candidates: Iterable[Candidate]) -> None:
        """Forgets the jobs of all others."""
        self._made = {c: self._made[c] for c in candidates if c in self._made}

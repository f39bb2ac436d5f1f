"""Progress of a session: trials and best candidate, stopwatch, and jobs of the candidates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autosched.measure.results import Failure, Job
from autosched.tuner.protocols import Candidate, Trial
from autosched.tuner.result import Point
from autosched.tuner.task import Task

FINAL_SHARE = 0.1  # of the budget: reserved for the final comparison
FINAL_S = 1.0  # seconds reserved at least; at most half of the budget


@dataclass
class Progress:
    """State of a session. `resumed`: how many of the `trials` are of an earlier run. `best_ci`: confidence interval of
    the best, after the final comparison. `peak_gflops`: the largest reading, because other load only lowers readings.
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
        """Replace the trial `known` by `trial`, and update best and curve."""
        number = self.trials.index(known)
        self.trials[number] = trial
        timed = sorted((t for t in self.trials if t.seconds is not None), key=lambda t: t.seconds or 0.0)
        self.best = timed[0] if timed else None
        self.curve = [point for point in self.curve if point.trial != number + 1]
        if self.best and self.best.seconds and not (self.curve and self.curve[-1].best_s <= self.best.seconds):
            self.curve.append(Point(len(self.trials), elapsed_s, self.best.seconds))

    def timed(self) -> list[Trial]:
        """Return the verified trials, fastest first."""
        return sorted((t for t in self.trials if t.seconds is not None), key=lambda t: t.undisturbed_s or 0.0)

    def failures(self) -> Counter[str]:
        return Counter(t.failure for t in self.trials if t.failure is not None)

    def add_peak_reading(self, gflops: float) -> None:
        self.peak_gflops = max(self.peak_gflops or 0.0, gflops)


@dataclass
class Stopwatch:
    """Seconds since the start of the command (`started` on `clock`), and those of the session's phases by name in
    `parts`. `reserve_s`: seconds of the budget reserved for the end; None: FINAL_SHARE of it."""

    clock: Callable[[], float]
    started: float
    budget_s: float | None
    reserve_s: float | None = None
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def elapsed(self) -> float:
        return self.clock() - self.started

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        start = self.clock()
        try:
            yield
        finally:
            self.parts[part] += self.clock() - start

    def spent(self) -> float:
        """Return the used share of the budget less its reserve; 0 without a budget."""
        budget = self.budget_s
        if budget is None:
            return 0.0
        default_s = min(max(FINAL_SHARE * budget, FINAL_S), 0.5 * budget)
        return self.elapsed() / (budget - (default_s if self.reserve_s is None else self.reserve_s))


@dataclass
class Jobs:
    """Jobs of candidates, each with one key. They are cached until `keep`, because generating sources takes long."""

    task: Task
    _keys: dict[Candidate, str] = field(default_factory=dict)
    _cache: dict[Candidate, Job] = field(default_factory=dict)

    def of(self, candidate: Candidate) -> Job | Failure:
        if candidate not in self._cache:
            key = self._keys.setdefault(candidate, f"c{len(self._keys)}")
            try:
                self._cache[candidate] = Job(key, self.task.source(candidate))
            except Exception as error:  # a bug of code generation costs its candidate, not the session
                return Failure(key, "build_error", f"code generation raised {type(error).__name__}: {error}")
        return self._cache[candidate]

    def keep(self, candidates: Iterable[Candidate]) -> None:
        """Drop the jobs of all other candidates."""
        self._cache = {c: self._cache[c] for c in candidates if c in self._cache}

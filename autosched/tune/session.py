"""One tuning session: rounds of propose, measure, record, learn; then a fair comparison of the best few.

Only this file knows the order of things. The search decides what to measure, the measurer is the only one that
touches the device, the recorder makes every trial durable before anybody hears of it. A KeyboardInterrupt at any
point ends the session with the best so far.

Resuming takes the records' trials round by round, as if they had just been measured: the search and the cost model
come to the state in which the records end, and a round that was cut short is completed.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from autosched.errors import DeviceError, Interrupted, NoValidCandidate, UsageError
from autosched.measure.results import Failure, FinalMeasurement, Job, Measurement, median_interval
from autosched.tune.callbacks import Callback, Event
from autosched.tune.policy import FULL, Policy
from autosched.tune.protocols import Candidate, Measurer, Recorder, Trial
from autosched.tune.result import Point, Result
from autosched.tune.search import Search
from autosched.tune.task import Task, training_data

if TYPE_CHECKING:
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel

MODEL_SHARE = 0.1  # of the wall time may go into fitting the cost model
MODEL_GRACE_S = 0.5  # ... not counting the first fit's imports and a short search's few fits
PEAK_READINGS = 4  # at most, of the peak after the final comparison
FINAL_CANDIDATES = 4  # of the fastest are compared in the end
FINAL_SHARE = 0.1  # of a time budget, kept for that comparison
FINAL_S = 1.0  # ... but at least so long, and at most half of the budget
MAX_NUMBER = 2**63 - 1  # that a record can hold


@dataclass(frozen=True)
class Settings:
    """`trials`: candidates to measure, failures and resumed ones included. `budget_s`: seconds from the start.

    `policy`: what the search does with them.
    """

    trials: int = 64
    budget_s: float | None = None
    seed: int = 0
    policy: Policy = FULL

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("seed", 0)):
            number = getattr(self, name)
            if not isinstance(number, Integral) or not least <= int(number) <= MAX_NUMBER:
                raise UsageError(f"{name} must be a whole number of at least {least}, got {number!r}")
            object.__setattr__(self, name, int(number))  # NumPy's would not go into a record
        seconds: object = self.budget_s
        if seconds is not None and not (isinstance(seconds, Real) and 0.0 < float(seconds) < math.inf):
            raise UsageError(f"budget_s must be a number of seconds above 0, got {seconds!r}")


def run(
    task: Task,
    settings: Settings,
    measurer: Measurer,
    recorder: Recorder,
    callbacks: Sequence[Callback] = (),
    *,
    read_peak: Callable[[], float | None] | None = None,
    started: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    kernel: Callable[[Candidate], Kernel | GpuKernel] | None = None,
) -> Result:
    """Tunes `task`. `started` is the command's start on `clock`; `kernel` compiles a candidate for the Result.

    `read_peak` measures the peak in GFLOP/s: after the first round, and after the final comparison. The largest
    counts, for what else runs on the machine can only make it smaller.

    Raises NoValidCandidate if no trial was verified, Interrupted if Ctrl-C came before the first that was, DeviceError
    when the device is lost for good; whatever it raises, the trials so far are recorded.
    """
    begun = clock() if started is None else started
    return _Session(task, settings, measurer, recorder, tuple(callbacks), read_peak, begun, clock, kernel).run()


@dataclass
class _Session:
    task: Task
    settings: Settings
    measurer: Measurer
    recorder: Recorder
    callbacks: tuple[Callback, ...]
    read_peak: Callable[[], float | None] | None
    started: float
    clock: Callable[[], float]
    kernel: Callable[[Candidate], Kernel | GpuKernel] | None
    search: Search[Any] = field(init=False)
    trials: list[Trial] = field(default_factory=list)
    best: Trial | None = None
    best_ci: tuple[float, float] | None = None
    peak_gflops: float | None = None
    curve: list[Point] = field(default_factory=list)
    keys: dict[Candidate, str] = field(default_factory=dict)
    jobs: dict[Candidate, Job] = field(default_factory=dict)  # of this round and of the fastest: sources take long
    resumed: int = 0
    taught: int = 0  # trials that the cost model knows
    phase: str = "start"
    round: int = 0
    search_s: float = 0.0
    model_s: float = 0.0
    emit_s: float = 0.0  # sources made while nothing compiles
    prepare_s: float = 0.0
    measuring_since: float | None = None  # seconds from the start
    first_result_s: float = 0.0
    interrupted: bool = False

    def run(self) -> Result:
        try:
            self._explore()
            self._compare_best()
            self._measure_peak()
        except KeyboardInterrupt:
            self.interrupted = True
        except DeviceError as error:
            self.recorder.finish("failed")
            raise self._lost(error) from error
        outcome = "finished" if self.best else "failed"
        self.recorder.finish("interrupted" if self.interrupted else outcome)
        result = self._result()
        for callback in self.callbacks:
            callback.on_finish(result)
        return result

    # Rounds

    def _explore(self) -> None:
        self.prepare_s = self._elapsed()
        settings = self.settings
        self.search = Search(self.task.space, self.task.sketches, self.task.model, settings.seed, settings.policy)
        history: dict[int, list[Trial]] = {}
        for trial in self.recorder.history():
            history.setdefault(trial.round, []).append(trial)
        last = max(history, default=-1)
        self._tell("on_start", resumed=sum(map(len, history.values())))
        while self.round <= last or not self._is_over():
            known = history.get(self.round, [])
            size = settings.policy.round_size(self.round, settings.trials)
            n = min(size, settings.trials - len(self.trials)) if self.round >= last else 0
            picks = self._propose(n, known)
            if not picks and not known and self.round >= last:
                break  # the space is used up
            self._adopt(known)
            self._measure(picks)
            self._learn()
            if self.round == 0:  # a first result comes first
                self._read_peak()
            self.round += 1

    def _is_over(self) -> bool:
        return len(self.trials) >= self.settings.trials or self._time_is_up()

    def _time_is_up(self) -> bool:
        """Whether the budget is used, save for the final share; never before a first batch or a first result."""
        if self.best is None and len(self.trials) < self.settings.policy.first_batch:
            return False
        return self._spent() >= 1.0

    def _spent(self) -> float:
        """The used share of the budget, without what is kept for the end; 0 if there is none."""
        budget = self.settings.budget_s
        if budget is None:
            return 0.0
        return self._elapsed() / (budget - min(max(FINAL_SHARE * budget, FINAL_S), 0.5 * budget))

    def _propose(self, n: int, known: Sequence[Trial]) -> list[Candidate]:
        """What is left to measure of a round of `n`, of which `known` are already."""
        if len(known) >= n:
            return []
        begun = self.clock()
        self.phase = self.search.phase(max(len(self.trials) / self.settings.trials, self._spent()))
        measured = {trial.candidate for trial in known}
        picks = [c for c in self.search.propose(self.round, n, self.phase) if c not in measured]
        self.search_s += self.clock() - begun
        return picks[: n - len(known)]

    def _adopt(self, known: Sequence[Trial]) -> None:
        """Takes over trials of an earlier run."""
        self.resumed += len(known)
        for trial in known:
            self._add(trial)

    def _measure(self, picks: Sequence[Candidate]) -> None:
        if not picks:
            return
        if self.measuring_since is None:
            self.measuring_since = self._elapsed()
        self._tell("on_round")
        waiting: dict[str, Candidate] = {}
        best_s = min((s for t in self.trials if (s := t.undisturbed_s) is not None), default=None)
        for answer in self.measurer.measure(self._jobs(picks, waiting), best_s):
            self._record(waiting.pop(answer.key), answer)
            if self._time_is_up():
                return
        for key, candidate in waiting.items():
            self._record(candidate, Failure(key, "protocol", "the measurer gave no answer for this candidate"))
        fastest = {t.candidate for t in self._timed()[:FINAL_CANDIDATES]}
        self.jobs = {candidate: job for candidate, job in self.jobs.items() if candidate in fastest}

    def _jobs(self, picks: Sequence[Candidate], waiting: dict[str, Candidate]) -> Iterator[Job]:
        """Jobs of `picks`, one after the other while others compile; then the model prepares in the shade of that."""
        for candidate in picks:
            job = self._job(candidate)
            if isinstance(job, Failure):
                self._record(candidate, job)
            else:
                waiting[job.key] = candidate
                self.jobs[candidate] = job
                yield job
        if self.round == 1 and self.settings.policy.learned:  # not in round 0: a first result comes first
            self.task.model.prepare()

    def _job(self, candidate: Candidate) -> Job | Failure:
        key = self.keys.setdefault(candidate, f"c{len(self.keys)}")
        if candidate in self.jobs:
            return self.jobs[candidate]
        try:
            return Job(key, self.task.source(candidate))
        except Exception as error:  # a bug of code generation costs its candidate, not the session
            return Failure(key, "build_error", f"code generation raised {type(error).__name__}: {error}")

    def _record(self, candidate: Candidate, answer: Measurement | Failure) -> None:
        if isinstance(answer, Failure):
            trial = Trial(candidate, self.round, None, (), answer.kind, answer.message)
        else:
            trial = Trial(candidate, self.round, answer.seconds, answer.samples)
        trial = replace(trial, record_id=self.recorder.append(trial))
        self._add(trial)
        self._tell("on_result", trial)

    def _add(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.search.observe([trial])
        if trial.seconds is None or (self.best is not None and trial.seconds >= (self.best.seconds or 0.0)):
            return
        if self.best is None:
            self.first_result_s = self._elapsed()
        self.best = trial
        self.curve.append(Point(len(self.trials), self._elapsed(), trial.seconds))

    def _learn(self) -> None:
        """Tells the cost model of new trials, unless fitting has taken more than its share of the time so far."""
        if self.model_s > MODEL_SHARE * self._elapsed() + MODEL_GRACE_S:
            return
        begun = self.clock()
        self.task.model.update(*training_data(self.trials[self.taught :]))
        self.taught = len(self.trials)
        self.model_s += self.clock() - begun

    # The end

    def _compare_best(self) -> None:
        """Measures the fastest few again, interleaved, and lets that decide.

        A candidate that is caught being wrong now is a failure from here on, and the next fastest take the place of
        those of a comparison that none survived.
        """
        self.phase = "final"
        compared: set[Candidate] = set()
        while True:
            timed = self._timed()
            self.best = timed[0] if timed else None
            rivals = [t for t in timed if t.candidate not in compared][:FINAL_CANDIDATES]
            compared.update(t.candidate for t in rivals)
            begun = self.clock()
            made = [(self._job(t.candidate), t) for t in rivals]
            self.emit_s += self.clock() - begun
            jobs = {job.key: (job, t) for job, t in made if isinstance(job, Job)}
            if not jobs:
                return
            self._tell("on_round")
            answers = self.measurer.final([job for job, _ in jobs.values()])
            for answer in answers:
                self._confirm(jobs[answer.key][1], answer)
            finals = [a for a in answers if not isinstance(a, Failure)]
            if finals:
                fastest = min(finals, key=lambda f: f.seconds)
                self.best = replace(jobs[fastest.key][1], seconds=fastest.seconds, samples=fastest.samples)
                self.best_ci = fastest.ci
                return

    def _timed(self) -> list[Trial]:
        """The valid trials, fastest first."""
        return sorted((t for t in self.trials if t.seconds is not None), key=lambda t: t.undisturbed_s or 0.0)

    def _read_peak(self) -> float | None:
        """One reading; the largest counts, for what else runs on the machine can only make it smaller."""
        reading = None if self.read_peak is None else self.read_peak()
        if reading is not None:
            self.peak_gflops = max(self.peak_gflops or 0.0, reading)
        return self.peak_gflops if reading is not None else None

    def _measure_peak(self) -> None:
        """Once more; and again where a verified kernel was faster, for then it was the reading that was disturbed."""
        best_s = None if self.best is None else self.best.seconds
        reached = self.task.gflops(best_s) if best_s else 0.0
        for _ in range(PEAK_READINGS):
            peak = self._read_peak()
            if peak is None or peak >= reached:
                return

    def _confirm(self, trial: Trial, answer: FinalMeasurement | Failure) -> None:
        """Records what the comparison said of a trial."""
        if isinstance(answer, Failure):
            failed = Trial(trial.candidate, trial.round, None, (), answer.kind, answer.message, trial.record_id)
            self.recorder.append(failed)
            self.trials[self.trials.index(trial)] = failed
        elif trial.record_id is not None:
            self.recorder.certify(trial.record_id, answer.seconds, answer.ci)

    def _result(self) -> Result:
        best, kernel = self.best, self.kernel
        failures = Counter(t.failure for t in self.trials if t.failure is not None)
        if best is None or best.seconds is None:
            raise self._nothing(failures)
        found = Result.of(self.task, best.candidate, best.seconds)
        return replace(
            found,
            trials=len(self.trials),
            wall_s=self._elapsed(),
            prepare_s=self.prepare_s,
            search_s=self.search_s,
            model_s=self.model_s,
            build_s=self.measurer.build_s + self.emit_s,
            check_s=self.measurer.check_s,
            measure_s=self.measurer.measure_s,
            first_result_s=self.first_result_s,
            best_ci_s=self.best_ci or (median_interval(best.samples) if best.samples else found.best_ci_s),
            peak_gflops=self.peak_gflops,
            record_id=best.record_id,
            interrupted=self.interrupted,
            resumed=self.resumed,
            known_s=self.recorder.known_s,
            failures=dict(sorted(failures.items())),
            curve=tuple(self.curve),
            records=tuple(self.trials),
            kernel=None if kernel is None else partial(kernel, best.candidate),
        )

    def _lost(self, error: DeviceError) -> DeviceError:
        """The device is gone for good; what it measured is recorded."""
        best = self.best
        if best is None or best.seconds is None:
            kept = f"{len(self.trials)} failed trials are recorded" if self.trials else "nothing was measured yet"
        else:
            kept = (
                f"{len(self.trials)} trials are recorded, the best with {self.task.gflops(best.seconds):.4g} GFLOP/s "
                f"(record {best.record_id}): resume from them when the device is back"
            )
        return DeviceError(f"the device of {self.task.target} was lost: {error}; {kept}")

    def _nothing(self, failures: Counter[str]) -> Interrupted | NoValidCandidate:
        if self.interrupted:
            recorded = f"{len(self.trials)} failed trials are recorded" if self.trials else "nothing was measured yet"
            return Interrupted(f"interrupted before the first verified kernel of {self.task.workload}; {recorded}")
        if not self.trials:
            return NoValidCandidate(
                f"the search space of {self.task.workload} on {self.task.target} with {self.task.threads} threads has "
                f"no legal candidate, or the budget ended before the first: raise --budget or report this workload"
            )
        first = next(t for t in self.trials if t.failure is not None)
        classes = ", ".join(f"{kind} {n}" for kind, n in failures.most_common())
        return NoValidCandidate(
            f"none of the {len(self.trials)} measured candidates of {self.task.workload} was valid ({classes}); "
            f"the first failed with: {first.message}"
        )

    # What others hear

    def _elapsed(self) -> float:
        return self.clock() - self.started

    def _tell(self, moment: str, trial: Trial | None = None, resumed: int | None = None) -> None:
        if not self.callbacks:
            return
        event = self._event(trial, self.resumed if resumed is None else resumed)
        for callback in self.callbacks:
            match moment:
                case "on_start":
                    callback.on_start(event)
                case "on_round":
                    callback.on_round(event)
                case _:
                    callback.on_result(event)

    def _event(self, trial: Trial | None, resumed: int) -> Event:
        task, elapsed, done = self.task, self._elapsed(), len(self.trials)
        seconds = trial.seconds if trial else None
        best_s = self.best.seconds if self.best else None
        best_gflops = task.gflops(best_s) if best_s else None
        fresh = done - self.resumed
        return Event(
            workload=task.workload,
            target=task.target,
            threads=task.threads,
            phase=self.phase,
            round=self.round,
            trial=done,
            trials=self.settings.trials,
            failed=sum(t.failure is not None for t in self.trials),
            seconds=seconds,
            failure=trial.failure if trial else None,
            message=trial.message if trial else "",
            gflops=task.gflops(seconds) if seconds else None,
            best_s=best_s,
            best_gflops=best_gflops,
            peak_gflops=self.peak_gflops,
            elapsed_s=elapsed,
            eta_s=self._eta(elapsed, fresh) if fresh else None,
            sketch=task.sketches[trial.candidate.sketch].name if trial else None,
            n_sketches=len(task.sketches),
            resumed=resumed,
        )

    def _eta(self, elapsed: float, fresh: int) -> float:
        """Seconds to the end at the pace so far, or to the end of the budget."""
        pace = (elapsed - (self.measuring_since or 0.0)) / fresh
        left = max(self.settings.trials - len(self.trials), 0) * pace
        budget = self.settings.budget_s
        return left if budget is None else min(left, max(budget - elapsed, 0.0))

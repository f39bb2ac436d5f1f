"""Tuning session: rounds of propose, measure, record and learn, then the final comparison of the best candidates.

    run(task, ...)                        a whole session
    begin(task, ...)  then  session.step  one round at a time, between rounds of other tasks

The search proposes candidates, only the measurer uses the device, and the recorder stores each trial before callbacks
are notified. A KeyboardInterrupt ends the session with the best so far.

A resumed session repeats the recorded trials round by round as if they were measured, which brings search and cost
model to the state at the end of the records; an incomplete round is completed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from autosched.errors import DeviceError, UsageError
from autosched.measure.results import Failure, FinalMeasurement, Job, Measurement, impossible_time, median_interval
from autosched.tuner.callbacks import Callback, CallbackNotifier
from autosched.tuner.policy import FULL, Policy
from autosched.tuner.progress import Jobs, Progress, Stopwatch
from autosched.tuner.protocols import Candidate, Measurer, Recorder, Trial
from autosched.tuner.result import Result, device_lost, nothing_found
from autosched.tuner.search import Search
from autosched.tuner.task import Task, training_data

MODEL_SHARE = 0.1  # of the wall time: most that fitting the cost model may take
MODEL_GRACE_S = 0.5  # seconds of fitting beyond that share: imports of the first fit, fits of a short search
MAX_PEAK_READINGS = 4  # of the peak after the final comparison
N_FINALISTS = 4  # fastest candidates in the final comparison
MAX_NUMBER = 2**63 - 1  # largest integer of a record


@dataclass(frozen=True)
class Settings:
    """Settings of a session. `trials`: number of measurements, including failures and resumed ones. `budget_s`: seconds
    from the start. `started`: start of the command on the session's clock; None is now."""

    trials: int = 64
    budget_s: float | None = None
    seed: int = 0
    policy: Policy = FULL
    started: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("seed", 0)):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, Integral) or not least <= int(number) <= MAX_NUMBER:
                raise UsageError(f"{name} must be a whole number of at least {least}, got {number!r}")
            object.__setattr__(self, name, int(number))  # NumPy's integers cannot be stored
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
    read_peak: Callable[[Candidate | None], float | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Tune a task.

    `read_peak` measures the peak in GFLOP/s of the units that the best candidate computes with, after the first round
    and after the final comparison. The largest reading counts, because other load only lowers readings.

    Raises NoValidCandidate if no trial was verified, Interrupted after Ctrl-C before the first verified trial,
    DeviceError if the device is lost. The trials are recorded in any case.
    """
    watch = Stopwatch(clock, clock() if settings.started is None else settings.started, settings.budget_s)
    watch.parts["prepare"] = watch.elapsed()
    session = begin(task, settings, measurer, recorder, watch, callbacks, read_peak=read_peak)
    result = session.run()
    session.notifier.notify_finish(result)
    return result


def begin(
    task: Task,
    settings: Settings,
    measurer: Measurer,
    recorder: Recorder,
    watch: Stopwatch,
    callbacks: Sequence[Callback] = (),
    *,
    read_peak: Callable[[Candidate | None], float | None] | None = None,
) -> Session:
    """Return a session whose rounds are run by `step`. Sessions of several tasks can share `watch` and its budget."""
    search = Search(task.space, task.sketches, task.model, settings.seed, settings.policy, recorder.relatives())
    notifier = CallbackNotifier(callbacks, task, settings.trials, Progress(), watch)
    return Session(task, settings, measurer, recorder, search, notifier, read_peak)


@dataclass
class Session:
    """The state of a session: it can be paused between any two rounds."""

    task: Task
    settings: Settings
    measurer: Measurer
    recorder: Recorder
    search: Search[Any]
    notifier: CallbackNotifier
    read_peak: Callable[[Candidate | None], float | None] | None

    def __post_init__(self) -> None:
        self.progress, self.watch = self.notifier.progress, self.notifier.watch
        self.jobs = Jobs(self.task)
        self.n_learned = 0  # trials that the cost model was updated with
        self.history: dict[int, list[Trial]] = {}  # recorded trials by round

    def run(self) -> Result:
        """Run all rounds and the final comparison. Raises what the function `run` raises."""
        interrupted = False
        try:
            self.load_history()
            while self.has_history_left or not self._is_over():
                trials, done = self.settings.trials, len(self.progress.trials)
                size = self.settings.policy.round_size(self.progress.round, trials)
                if not self.step(min(size, trials - done), max(done / trials, self.watch.spent())):
                    break
            self.compare()
            self._measure_peak()
        except KeyboardInterrupt:
            interrupted = True
        except DeviceError as error:
            self.recorder.finish("failed")
            raise device_lost(self.task, self.progress.trials, self.progress.best, error) from error
        self.finish(interrupted)
        return self._result(interrupted)

    def finish(self, interrupted: bool = False) -> None:
        """Store the end of the session."""
        outcome = "finished" if self.progress.best else "failed"
        self.recorder.finish("interrupted" if interrupted else outcome)

    # Rounds

    def load_history(self) -> None:
        """Read the records that the session resumes from, before the first round."""
        for trial in self.recorder.history():
            self.history.setdefault(trial.round, []).append(trial)
        self.notifier.notify_start(resumed=sum(map(len, self.history.values())))

    @property
    def has_history_left(self) -> bool:
        """Whether recorded rounds are left that have not been repeated."""
        return self.progress.round <= max(self.history, default=-1)

    def prepare(self) -> None:
        """Make the draft, and wait for the data, so that nothing is computed later while other tasks are timed."""
        with self.watch.during("search"):
            self.search.prepare()
        self.measurer.await_reference()

    def step(self, n: int, share: float, meanwhile: Callable[[], None] | None = None) -> bool:
        """Run a round: repeat its recorded trials or, after them, propose and measure up to `n` candidates in total,
        and update the cost model.

        `share` (0 to 1): progress of the search. `meanwhile` is called while candidates are built, when nothing is
        timed. Returns False, without a round, once the space is exhausted.
        """
        progress, last = self.progress, max(self.history, default=-1)
        recorded = self.history.get(progress.round, [])
        picks = self._propose(n if progress.round >= last else 0, recorded, share)
        if not picks and not recorded and progress.round >= last:
            return False
        for trial in recorded:
            self._add(trial)
        progress.resumed += len(recorded)
        self._measure(picks, meanwhile)
        if progress.round == 0:  # after the round, so that the first result is early
            self._read_peak()
            self._recheck_times()
        self._learn()
        progress.round += 1
        return True

    def _is_over(self) -> bool:
        return len(self.progress.trials) >= self.settings.trials or self._time_is_up()

    def _time_is_up(self) -> bool:
        """Return whether the budget less its reserve is used up; never before a first batch or a first result."""
        if self.progress.best is None and len(self.progress.trials) < self.settings.policy.first_batch:
            return False
        return self.watch.spent() >= 1.0

    def _propose(self, n: int, recorded: Sequence[Trial], share: float) -> list[Candidate]:
        """Return the candidates of a round of `n` that are not `recorded`."""
        if len(recorded) >= n:
            return []
        progress = self.progress
        with self.watch.during("search"):
            progress.phase = self.search.phase(share)
            measured = {trial.candidate for trial in recorded}
            picks = [c for c in self.search.propose(progress.round, n, progress.phase) if c not in measured]
        return picks[: n - len(recorded)]

    def _measure(self, picks: Sequence[Candidate], meanwhile: Callable[[], None] | None) -> None:
        if not picks:
            return
        self.notifier.notify_round()
        waiting: dict[str, Candidate] = {}
        fastest = self.progress.timed()[:1]
        best_s = fastest[0].undisturbed_s if fastest else None
        for answer in self.measurer.measure(self._jobs(picks, waiting, meanwhile), best_s, self._is_possible):
            self._record(waiting.pop(answer.key), answer)
            if self._time_is_up():
                return
        for key, candidate in waiting.items():
            self._record(candidate, Failure(key, "protocol", "the measurer gave no answer for this candidate"))
        self.jobs.keep(t.candidate for t in self.progress.timed()[:N_FINALISTS])

    def _jobs(
        self, picks: Sequence[Candidate], waiting: dict[str, Candidate], meanwhile: Callable[[], None] | None
    ) -> Iterator[Job]:
        """Yield the jobs of `picks`; then, while the last ones compile, initialise the model and call `meanwhile`."""
        for candidate in picks:
            job = self.jobs.of(candidate)
            if isinstance(job, Failure):
                self._record(candidate, job)
            else:
                waiting[job.key] = candidate
                yield job
        if (
            self.progress.round == 1 and self.settings.policy.learned
        ):  # not in round 0, so that the first result is early
            self.task.model.prepare()
        if meanwhile is not None:
            meanwhile()

    def _record(self, candidate: Candidate, answer: Measurement | Failure) -> None:
        trial = Trial.of(candidate, self.progress.round, answer)
        trial = replace(trial, record_id=self.recorder.append(trial))
        self._add(trial)
        self.notifier.notify_result(trial)

    def _add(self, trial: Trial) -> None:
        self.progress.add(trial, self.watch.elapsed())
        self.search.observe([trial])

    def _is_possible(self, seconds: float) -> bool:
        """Return whether a call can be so short. If it is above the measured peak, the peak is measured again, whose
        readings may have been disturbed."""
        if seconds < self.task.bound.seconds(None):
            return False
        for _ in range(MAX_PEAK_READINGS):
            if seconds >= self.task.bound.seconds(self.progress.peak_gflops):
                return True
            self._read_peak()
        return seconds >= self.task.bound.seconds(self.progress.peak_gflops)

    def _recheck_times(self) -> None:
        """Measure again the trials that are faster than the peak allows, which was measured after them."""
        for trial in self.progress.timed():
            if trial.undisturbed_s is None or self._is_possible(trial.undisturbed_s):
                continue
            job = self.jobs.of(trial.candidate)
            if isinstance(job, Failure):
                answer: Measurement | Failure = job
            else:
                (answer,) = self.measurer.measure([job], None, self._is_possible)
            corrected = Trial.of(trial.candidate, trial.round, answer)
            corrected = replace(corrected, record_id=self.recorder.append(corrected))
            self.progress.correct(trial, corrected, self.watch.elapsed())
            self.search.correct(trial, corrected)

    def _learn(self) -> None:
        """Update the cost model with new trials, unless fitting has used up its share of the time."""
        if self.watch.parts["model"] > MODEL_SHARE * self.watch.elapsed() + MODEL_GRACE_S:
            return
        trials = self.progress.trials
        with self.watch.during("model"):
            self.task.model.update(*training_data(trials[self.n_learned :]))
        self.n_learned = len(trials)

    def _read_peak(self) -> float | None:
        best = self.progress.best
        reading = None if self.read_peak is None else self.read_peak(best.candidate if best else None)
        if reading is not None:
            self.progress.add_peak_reading(reading)
        return reading

    # Final comparison

    def compare(self) -> None:
        """Measure the fastest candidates again, interleaved, and choose the best by that.

        A candidate that turns out to be wrong becomes a failure. If all do, the next fastest are compared.
        """
        progress = self.progress
        progress.phase = "final"
        compared: set[Candidate] = set()
        while True:
            timed = progress.timed()
            progress.best = timed[0] if timed else None
            rivals = [t for t in timed if t.candidate not in compared][:N_FINALISTS]
            compared.update(t.candidate for t in rivals)
            with self.watch.during("emit"):  # nothing compiles meanwhile
                pairs = [(self.jobs.of(t.candidate), t) for t in rivals]
            jobs = {job.key: (job, t) for job, t in pairs if isinstance(job, Job)}
            if not jobs:
                return
            self.notifier.notify_round()
            answers = [
                self._refuse_impossible(answer) for answer in self.measurer.final([job for job, _ in jobs.values()])
            ]
            for answer in answers:
                self._confirm(jobs[answer.key][1], answer)
            finals = [a for a in answers if not isinstance(a, Failure)]
            if finals:
                fastest = min(finals, key=lambda f: f.seconds)
                progress.best = replace(jobs[fastest.key][1], seconds=fastest.seconds, samples=fastest.samples)
                progress.best_ci = fastest.ci
                return

    def _refuse_impossible(self, answer: FinalMeasurement | Failure) -> FinalMeasurement | Failure:
        if isinstance(answer, Failure) or self._is_possible(answer.seconds):
            return answer
        return Failure(answer.key, *impossible_time(answer.seconds))

    def _confirm(self, trial: Trial, answer: FinalMeasurement | Failure) -> None:
        """Record a trial's result in the final comparison."""
        if isinstance(answer, Failure):
            failed = replace(Trial.of(trial.candidate, trial.round, answer), record_id=trial.record_id)
            self.recorder.append(failed)
            self.progress.trials[self.progress.trials.index(trial)] = failed
        elif trial.record_id is not None:
            self.recorder.certify(trial.record_id, answer.seconds, answer.ci)

    def _measure_peak(self) -> None:
        """Measure the peak again, several times while it is below a verified kernel's rate: readings were disturbed."""
        best = self.progress.best
        reached = self.task.gflops(best.seconds) if best and best.seconds else 0.0
        for _ in range(MAX_PEAK_READINGS):
            reading = self._read_peak()
            if reading is None or (self.progress.peak_gflops or 0.0) >= reached:
                return

    def _result(self, interrupted: bool) -> Result:
        progress, parts, measurer = self.progress, self.watch.parts, self.measurer
        best = progress.best
        if best is None or best.seconds is None:
            raise nothing_found(self.task, progress.trials, interrupted)
        result = Result.of(self.task, best.candidate, best.seconds)
        return replace(
            result,
            trials=len(progress.trials),
            wall_s=self.watch.elapsed(),
            prepare_s=parts["prepare"],
            search_s=parts["search"],
            model_s=parts["model"],
            build_s=measurer.build_s + parts["emit"],
            check_s=measurer.check_s,
            measure_s=measurer.measure_s,
            first_result_s=progress.curve[0].elapsed_s,
            best_ci_s=progress.best_ci or (median_interval(best.samples) if best.samples else result.best_ci_s),
            peak_gflops=progress.peak_gflops,
            record_id=best.record_id,
            interrupted=interrupted,
            resumed=progress.resumed,
            known_s=self.recorder.known_s,
            failures=dict(sorted(progress.failures().items())),
            curve=tuple(progress.curve),
            records=tuple(progress.trials),
        )

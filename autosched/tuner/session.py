"""One tuning session: rounds of propose, measure, record, learn; then a fair comparison of the best few.

    run(task, ...)                        a whole session
    begin(task, ...)  then  session.step  one round at a time, among the rounds of other tasks

Only this file knows the order of things. The search decides what to measure, the measurer is the only one that
touches the device, the recorder makes every trial durable before the audience hears of it. A KeyboardInterrupt at any
point ends the session with the best so far.

Resuming takes the records' trials round by round, as if they had just been measured: the search and the cost model
come to the state in which the records end, and a round that was cut short is completed.
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
from autosched.tuner.callbacks import Audience, Callback
from autosched.tuner.policy import FULL, Policy
from autosched.tuner.progress import Jobs, Progress, Stopwatch
from autosched.tuner.protocols import Candidate, Measurer, Recorder, Trial
from autosched.tuner.result import Result, device_lost, nothing_found
from autosched.tuner.search import Search
from autosched.tuner.task import Task, training_data

MODEL_SHARE = 0.1  # of the wall time may go into fitting the cost model
MODEL_GRACE_S = 0.5  # ... not counting the first fit's imports and a short search's few fits
PEAK_READINGS = 4  # at most, of the peak after the final comparison
FINAL_CANDIDATES = 4  # of the fastest are compared in the end
MAX_NUMBER = 2**63 - 1  # that a record can hold


@dataclass(frozen=True)
class Settings:
    """`trials`: candidates to measure, failures and resumed ones included. `budget_s`: seconds from the start.

    `policy`: what the search does with them. `started`: when the command began, on the session's clock; None is now.
    """

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
    read_peak: Callable[[Candidate | None], float | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Tunes `task`.

    `read_peak` measures the peak of what the best candidate computes with, in GFLOP/s: after the first round, and after
    the final comparison. The largest counts, for what else runs on the machine can only make it smaller.

    Raises NoValidCandidate if no trial was verified, Interrupted if Ctrl-C came before the first that was, DeviceError
    when the device is lost for good; whatever it raises, the trials so far are recorded.
    """
    watch = Stopwatch(clock, clock() if settings.started is None else settings.started, settings.budget_s)
    watch.parts["prepare"] = watch.elapsed()
    session = begin(task, settings, measurer, recorder, watch, callbacks, read_peak=read_peak)
    result = session.run()
    session.audience.hears_of_end(result)
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
    """A session that waits for its rounds. Sessions of several tasks share `watch`: together they take the time."""
    search = Search(task.space, task.sketches, task.model, settings.seed, settings.policy, recorder.relatives())
    audience = Audience(callbacks, task, settings.trials, Progress(), watch)
    return Session(task, settings, measurer, recorder, search, audience, read_peak)


@dataclass
class Session:
    """A search at work, with all that it has learned: it may rest between any two rounds.

    How far it is, its audience sees as it does itself.
    """

    task: Task
    settings: Settings
    measurer: Measurer
    recorder: Recorder
    search: Search[Any]
    audience: Audience
    read_peak: Callable[[Candidate | None], float | None] | None

    def __post_init__(self) -> None:
        self.progress, self.watch = self.audience.progress, self.audience.watch
        self.jobs = Jobs(self.task)
        self.taught = 0  # trials that the cost model knows
        self.history: dict[int, list[Trial]] = {}  # what records tell, by round

    def run(self) -> Result:
        """All rounds, and the end. Raises what the function `run` does."""
        interrupted = False
        try:
            self.recall()
            while self.is_behind or not self._is_over():
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
        """Closes the record of this session."""
        outcome = "finished" if self.progress.best else "failed"
        self.recorder.finish("interrupted" if interrupted else outcome)

    # Rounds

    def recall(self) -> None:
        """Reads the records from which the session goes on: before the first round."""
        for trial in self.recorder.history():
            self.history.setdefault(trial.round, []).append(trial)
        self.audience.hears_of_start(resumed=sum(map(len, self.history.values())))

    @property
    def is_behind(self) -> bool:
        """Whether there are rounds in the records that are not taken over yet."""
        return self.progress.round <= max(self.history, default=-1)

    def prepare(self) -> None:
        """What the first round begins with: the draft, and all data. Nothing of it is left for later, when others may
        time."""
        with self.watch.during("search"):
            self.search.prepare()
        self.measurer.await_reference()

    def step(self, n: int, share: float, meanwhile: Callable[[], None] | None = None) -> bool:
        """One round: takes over what the records have of it or, once they end, proposes and measures up to `n`
        candidates, completing the last of theirs; learns of it. `share` (0 to 1) of the search is over. `meanwhile` is
        called while candidates are built, and nothing is timed.

        False, and no round, once the space is used up.
        """
        progress, last = self.progress, max(self.history, default=-1)
        known = self.history.get(progress.round, [])
        picks = self._propose(n if progress.round >= last else 0, known, share)
        if not picks and not known and progress.round >= last:
            return False
        for trial in known:
            self._add(trial)
        progress.resumed += len(known)
        self._measure(picks, meanwhile)
        if progress.round == 0:  # a first result comes first
            self._read_peak()
            self._doubt()
        self._learn()
        progress.round += 1
        return True

    def _is_over(self) -> bool:
        return len(self.progress.trials) >= self.settings.trials or self._time_is_up()

    def _time_is_up(self) -> bool:
        """Whether the budget is used, save for the final share; never before a first batch or a first result."""
        if self.progress.best is None and len(self.progress.trials) < self.settings.policy.first_batch:
            return False
        return self.watch.spent() >= 1.0

    def _propose(self, n: int, known: Sequence[Trial], share: float) -> list[Candidate]:
        """What is left to measure of a round of `n`, of which `known` are already."""
        if len(known) >= n:
            return []
        progress = self.progress
        with self.watch.during("search"):
            progress.phase = self.search.phase(share)
            measured = {trial.candidate for trial in known}
            picks = [c for c in self.search.propose(progress.round, n, progress.phase) if c not in measured]
        return picks[: n - len(known)]

    def _measure(self, picks: Sequence[Candidate], meanwhile: Callable[[], None] | None) -> None:
        if not picks:
            return
        self.audience.hears_of_round()
        waiting: dict[str, Candidate] = {}
        fastest = self.progress.timed()[:1]
        best_s = fastest[0].undisturbed_s if fastest else None
        for answer in self.measurer.measure(self._jobs(picks, waiting, meanwhile), best_s, self._is_possible):
            self._record(waiting.pop(answer.key), answer)
            if self._time_is_up():
                return
        for key, candidate in waiting.items():
            self._record(candidate, Failure(key, "protocol", "the measurer gave no answer for this candidate"))
        self.jobs.keep(t.candidate for t in self.progress.timed()[:FINAL_CANDIDATES])

    def _jobs(
        self, picks: Sequence[Candidate], waiting: dict[str, Candidate], meanwhile: Callable[[], None] | None
    ) -> Iterator[Job]:
        """Jobs of `picks`, one after the other while others compile; then the model prepares in the shade of that, and
        what is to be done `meanwhile`."""
        for candidate in picks:
            job = self.jobs.of(candidate)
            if isinstance(job, Failure):
                self._record(candidate, job)
            else:
                waiting[job.key] = candidate
                yield job
        if self.progress.round == 1 and self.settings.policy.learned:  # not in round 0: a first result comes first
            self.task.model.prepare()
        if meanwhile is not None:
            meanwhile()

    def _record(self, candidate: Candidate, answer: Measurement | Failure) -> None:
        trial = Trial.of(candidate, self.progress.round, answer)
        trial = replace(trial, record_id=self.recorder.append(trial))
        self._add(trial)
        self.audience.hears_of_result(trial)

    def _add(self, trial: Trial) -> None:
        self.progress.add(trial, self.watch.elapsed())
        self.search.observe([trial])

    def _is_possible(self, seconds: float) -> bool:
        """Whether a call can take so little. Where it beats the peak, it may be the reading that was disturbed."""
        if seconds < self.task.bound.seconds(None):
            return False
        for _ in range(PEAK_READINGS):
            if seconds >= self.task.bound.seconds(self.progress.peak_gflops):
                return True
            self._read_peak()
        return seconds >= self.task.bound.seconds(self.progress.peak_gflops)

    def _doubt(self) -> None:
        """Measures again what was measured before the peak was, and is faster than it allows."""
        for trial in self.progress.timed():
            if trial.undisturbed_s is None or self._is_possible(trial.undisturbed_s):
                continue
            made = self.jobs.of(trial.candidate)
            if isinstance(made, Failure):
                answer: Measurement | Failure = made
            else:
                (answer,) = self.measurer.measure([made], None, self._is_possible)
            right = Trial.of(trial.candidate, trial.round, answer)
            right = replace(right, record_id=self.recorder.append(right))
            self.progress.correct(trial, right, self.watch.elapsed())
            self.search.correct(trial, right)

    def _learn(self) -> None:
        """Tells the cost model of new trials, unless fitting has taken more than its share of the time so far."""
        if self.watch.parts["model"] > MODEL_SHARE * self.watch.elapsed() + MODEL_GRACE_S:
            return
        trials = self.progress.trials
        with self.watch.during("model"):
            self.task.model.update(*training_data(trials[self.taught :]))
        self.taught = len(trials)

    def _read_peak(self) -> float | None:
        best = self.progress.best
        reading = None if self.read_peak is None else self.read_peak(best.candidate if best else None)
        if reading is not None:
            self.progress.saw_peak(reading)
        return reading

    # The end

    def compare(self) -> None:
        """Measures the fastest few again, interleaved, and lets that decide.

        A candidate that is caught being wrong now is a failure from here on, and the next fastest take the place of
        those of a comparison that none survived.
        """
        progress = self.progress
        progress.phase = "final"
        compared: set[Candidate] = set()
        while True:
            timed = progress.timed()
            progress.best = timed[0] if timed else None
            rivals = [t for t in timed if t.candidate not in compared][:FINAL_CANDIDATES]
            compared.update(t.candidate for t in rivals)
            with self.watch.during("emit"):  # nothing compiles meanwhile
                made = [(self.jobs.of(t.candidate), t) for t in rivals]
            jobs = {job.key: (job, t) for job, t in made if isinstance(job, Job)}
            if not jobs:
                return
            self.audience.hears_of_round()
            answers = [self._believed(answer) for answer in self.measurer.final([job for job, _ in jobs.values()])]
            for answer in answers:
                self._confirm(jobs[answer.key][1], answer)
            finals = [a for a in answers if not isinstance(a, Failure)]
            if finals:
                fastest = min(finals, key=lambda f: f.seconds)
                progress.best = replace(jobs[fastest.key][1], seconds=fastest.seconds, samples=fastest.samples)
                progress.best_ci = fastest.ci
                return

    def _believed(self, answer: FinalMeasurement | Failure) -> FinalMeasurement | Failure:
        if isinstance(answer, Failure) or self._is_possible(answer.seconds):
            return answer
        return Failure(answer.key, *impossible_time(answer.seconds))

    def _confirm(self, trial: Trial, answer: FinalMeasurement | Failure) -> None:
        """Records what the comparison said of a trial."""
        if isinstance(answer, Failure):
            failed = replace(Trial.of(trial.candidate, trial.round, answer), record_id=trial.record_id)
            self.recorder.append(failed)
            self.progress.trials[self.progress.trials.index(trial)] = failed
        elif trial.record_id is not None:
            self.recorder.certify(trial.record_id, answer.seconds, answer.ci)

    def _measure_peak(self) -> None:
        """Once more; and again where a verified kernel was faster, for then it was the reading that was disturbed."""
        best = self.progress.best
        reached = self.task.gflops(best.seconds) if best and best.seconds else 0.0
        for _ in range(PEAK_READINGS):
            reading = self._read_peak()
            if reading is None or (self.progress.peak_gflops or 0.0) >= reached:
                return

    def _result(self, interrupted: bool) -> Result:
        progress, parts, measurer = self.progress, self.watch.parts, self.measurer
        best = progress.best
        if best is None or best.seconds is None:
            raise nothing_found(self.task, progress.trials, interrupted)
        found = Result.of(self.task, best.candidate, best.seconds)
        return replace(
            found,
            trials=len(progress.trials),
            wall_s=self.watch.elapsed(),
            prepare_s=parts["prepare"],
            search_s=parts["search"],
            model_s=parts["model"],
            build_s=measurer.build_s + parts["emit"],
            check_s=measurer.check_s,
            measure_s=measurer.measure_s,
            first_result_s=progress.curve[0].elapsed_s,
            best_ci_s=progress.best_ci or (median_interval(best.samples) if best.samples else found.best_ci_s),
            peak_gflops=progress.peak_gflops,
            record_id=best.record_id,
            interrupted=interrupted,
            resumed=progress.resumed,
            known_s=self.recorder.known_s,
            failures=dict(sorted(progress.failures().items())),
            curve=tuple(progress.curve),
            records=tuple(progress.trials),
        )

"""Measurement of candidates: worker processes build, verify and time them; the tuner process never runs generated code.

The workers are those of a `WorkerPool`, which measurers of several problems may share, one at work at a time.

Phases do not overlap with timing: `measure` builds the whole batch in parallel first, waits until every worker is
silent, and then lets one runner check and time one candidate after the other, holding the device's lock on this host.
Deadlines are kept here. A runner with a fault of a class with `respawn` (see `results.FAULTS`) is killed with its
process group; its successor passes a canary before the next candidate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import tee
from pathlib import Path
from statistics import median
from typing import TypeVar

from autosched.errors import UsageError
from autosched.measure.host import device_lock
from autosched.measure.problem import Problem
from autosched.measure.process import Worker, WorkerError
from autosched.measure.protocol import Build, Built, Drop, Failed, Hold, Measure, Numbered, Peak, Rate, Sample, Samples
from autosched.measure.results import (
    FAULTS,
    Failure,
    FinalMeasurement,
    Job,
    Measurement,
    impossible_time,
    median_interval,
)
from autosched.measure.worker_pool import WorkerPool
from autosched.runtime.gpu.compile import Resources

Answer = TypeVar("Answer")

_RUN_DEADLINE_S = 2.0  # shortest deadline of a run
_DEADLINE_FACTOR = 30.0  # a call that takes so many times the best time counts as a hang
# Why a worker was lost while it compiled a candidate -> the candidate's class.
_BUILD_FAULT = {"hang": "build_timeout", "crash": "build_error"}
# A lower bound for all machines, by which deadlines allow for checks of large problems: on a quiet core one of 201 MB
# whose expected numbers are NaN takes 0.7 s.
_CHECK_BYTES_PER_S = 5e7


class Measurer:
    """The measurer of the candidates of one problem. A context manager; `close` ends all workers and removes all files,
    also for other measurers of the worker pool.

    `problem` may be replaced by the same one with its data in another directory. `floor_s`: seconds of samples for each
    candidate. `first_deadline_s`: the deadline of a run while no time is known. `build_s`, `check_s`, `measure_s`: the
    wall time of the phases so far; waiting for the reference and for a fresh runner counts as checking. `resources`:
    registers and memory of the kernels built for a device, by the job's key, as the compiler reports them.
    """

    def __init__(
        self, problem: Problem, worker_pool: WorkerPool, *, floor_s: float = 0.03, first_deadline_s: float = 30.0
    ) -> None:
        self.build_s = self.check_s = self.measure_s = 0.0
        self.problem, self._worker_pool, self._floor_s = problem, worker_pool, floor_s
        self._first_deadline_s = first_deadline_s
        self._processes, self._runners = worker_pool.processes, worker_pool.runners
        self.resources: dict[str, tuple[Resources, ...]] = {}
        self._objects: dict[str, Path] = {}
        self._build_failures: dict[str, Failure] = {}
        self._compiled: dict[bytes, str] = {}  # a text's hash -> the first job that has it
        self._seconds: dict[str, float] = {}  # measured times, for the deadlines of `final`
        self._slots: dict[str, int] = {}  # slots of the current runner's kernels, in `final`

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all workers and remove all object files. May be called again."""
        self._worker_pool.close()

    def build(self, jobs: Iterable[Job]) -> dict[str, Failure]:
        """Compile the jobs that are not compiled yet, in parallel; return the failures of `jobs` by key. `jobs` may be
        an iterator, whose next job is made while others compile.
        """
        start = time.monotonic()
        self._runners.prepare()
        new: dict[str, Path] = {}
        twins: dict[str, str] = {}
        keys: list[str] = []
        resources: dict[str, tuple[Resources, ...]] = {}
        failures: dict[str, Failure] = {}
        lost: set[str] = set()

        def settle(task: tuple[Job, Path], reply: Numbered | WorkerError) -> tuple[Job, Path] | None:
            key = task[0].key
            if isinstance(reply, Built):
                resources[key] = reply.resources
            elif isinstance(reply, Failed):
                failures[key] = Failure(key, reply.fault, reply.message)
            elif isinstance(reply, WorkerError):
                if FAULTS[reply.fault].repeated and key not in lost:
                    lost.add(key)
                    return task
                kind = _BUILD_FAULT.get(reply.fault, reply.fault)
                failures[key] = Failure(key, kind, f"while compiling: {reply}")
            return None

        self._processes.run(
            self._unbuilt(jobs, keys, new, twins),
            lambda number, task: Build(number, task[0].source, str(task[1])),
            settle,
        )
        self.resources |= resources
        self._build_failures |= failures
        self._objects.update(new)
        for key, first in twins.items():
            self._objects[key] = self._objects[first]
            if first in self.resources:
                self.resources[key] = self.resources[first]
            if first in self._build_failures:
                self._build_failures[key] = replace(self._build_failures[first], key=key)
        self.build_s += time.monotonic() - start
        return {key: self._build_failures[key] for key in keys if key in self._build_failures}

    def _unbuilt(
        self, jobs: Iterable[Job], keys: list[str], new: dict[str, Path], twins: dict[str, str]
    ) -> Iterator[tuple[Job, Path]]:
        """Yield the jobs that are not compiled yet, with paths for their objects.

        Fills `keys` with all keys, `new` with the paths by key, and `twins` with the key of an earlier job of the same
        text: different parameters may give the same code, and LLVM takes most of the time.
        """
        for job in jobs:
            most = self._worker_pool.threads
            if not 1 <= job.source.threads <= most:
                raise UsageError(
                    f"candidate {job.key} is for {job.source.threads} threads, but is measured with {most}"
                )
            keys.append(job.key)
            if job.key in self._objects or job.key in new or job.key in twins:
                continue
            first = self._compiled.setdefault(sha256(job.source.text.encode()).digest(), job.key)
            if first in self._objects or first in new:
                twins[job.key] = first
            else:  # also if building the first one was interrupted
                new[job.key] = self._processes.new_object()
                yield job, new[job.key]

    def measure(
        self,
        jobs: Iterable[Job],
        best_s: float | None = None,
        is_possible: Callable[[float], bool] = lambda seconds: True,
    ) -> Iterator[Measurement | Failure]:
        """Yield one result for each job, in order, as soon as it is there.

        `best_s`: the fastest sample so far, in seconds. `is_possible(seconds)`: whether a call can be so fast; it is
        called while the device is free. If `jobs` is an iterator, jobs are compiled while the next ones are made;
        nothing is timed before all are compiled.
        """
        jobs, to_build = tee(jobs)
        failures = self.build(to_build)
        self.await_reference()
        for job in jobs:
            if job.key in failures:
                yield failures[job.key]
                continue
            result = _repeated(partial(self._measure_one, job, best_s, is_possible))
            if isinstance(result, Measurement):
                self._seconds[job.key] = result.seconds
                best_s = min(result.samples if best_s is None else (best_s, *result.samples))
            yield result

    def final(self, jobs: Sequence[Job], rounds: int = 7, sample_s: float = 0.01) -> list[FinalMeasurement | Failure]:
        """Compare `jobs` in interleaved rounds of one runner; return the results in the order of `jobs`.

        A round has one sample of each job; the order is reversed from round to round. A sample is the fastest of short
        ones that take `sample_s` together, or one long call. The interval is `median_interval`: 95 % from 6 rounds on.
        Each round checks each job's result again.
        """
        failures = self.build(jobs)
        self.await_reference()
        running = [job for job in jobs if job.key not in failures]
        samples: dict[str, list[float]] = {job.key: [] for job in running}
        with device_lock(self._worker_pool.lock):
            self._runner()
            self._drop()
            for number in range(rounds):
                for job in running if number % 2 == 0 else running[::-1]:
                    if job.key in failures:
                        continue
                    result = _repeated(partial(self._sample, job, sample_s))
                    if isinstance(result, Failure):
                        failures[job.key] = result
                    else:
                        samples[job.key].append(result)
            self._drop()
        return [failures[job.key] if job.key in failures else _final(job.key, tuple(samples[job.key])) for job in jobs]

    def peak_gflops(self, pipe: str) -> float | None:
        """Measure the peak of a pipe of the GPU in its runner; return GFLOP/s, or None on failure."""
        self.await_reference()
        with device_lock(self._worker_pool.lock):
            worker = self._runner()
            try:
                reply = worker.ask(Peak(worker.next_id(), pipe), self._first_deadline_s)
            except WorkerError:
                self._runners.discard()
                return None
        return reply.gflops if isinstance(reply, Rate) and reply.gflops > 0 else None

    def await_reference(self) -> None:
        """Wait until the problem's data are written; raise the error of writing them."""
        start = time.monotonic()
        self.problem.wait()
        self.check_s += time.monotonic() - start

    def _runner(self) -> Worker:
        start = time.monotonic()
        worker, changed = self._runners.ready(self.problem)
        self.check_s += time.monotonic() - start
        if changed:
            self._slots.clear()
        return worker

    def _measure_one(
        self, job: Job, best_s: float | None, is_possible: Callable[[float], bool]
    ) -> Measurement | Failure:
        with device_lock(self._worker_pool.lock):
            worker = self._runner()
            try:
                reply, check_s = self._hold(worker, job, 0, best_s)
                if isinstance(reply, Failed):
                    return self._failed(job, reply.fault, reply.message)
                deadline_s = max(self._deadline(best_s), 10 * check_s)
                reply = self._timed(worker, Measure(worker.next_id(), 0, self._floor_s, best_s), deadline_s)
            except WorkerError as lost:
                return self._failed(job, lost.fault, str(lost))
        if isinstance(reply, Failed):
            return self._failed(job, reply.fault, reply.message)
        if not isinstance(reply, Samples) or not reply.samples:
            return self._failed(job, "protocol", f"the runner answered a measurement with {str(reply)[:200]}")
        if (fastest := min(reply.samples)) <= 0 or not is_possible(fastest):
            return self._failed(job, *impossible_time(fastest))
        return Measurement(job.key, median(reply.samples), reply.samples, reply.early_stopped)

    def _sample(self, job: Job, sample_s: float) -> float | Failure:
        worker, known_s = self._runner(), self._seconds.get(job.key)
        try:
            if job.key not in self._slots:
                slot = len(self._slots)
                reply, _ = self._hold(worker, job, slot, known_s)
                if isinstance(reply, Failed):
                    return self._failed(job, reply.fault, reply.message)
                self._slots[job.key] = slot
            request = Sample(worker.next_id(), self._slots[job.key], sample_s)
            reply = self._timed(worker, request, self._deadline(known_s) + 4 * sample_s)
        except WorkerError as lost:
            return self._failed(job, lost.fault, str(lost))
        if isinstance(reply, Failed):
            return self._failed(job, reply.fault, reply.message)
        if not isinstance(reply, Samples) or len(reply.samples) != 1:
            return self._failed(job, "protocol", f"the runner answered a sample with {str(reply)[:200]}")
        if reply.samples[0] <= 0:
            return self._failed(job, *impossible_time(reply.samples[0]))
        return reply.samples[0]

    def _hold(self, worker: Worker, job: Job, slot: int, best_s: float | None) -> tuple[Numbered, float]:
        """Load and check a candidate; return the reply and the seconds it took."""
        request = Hold(worker.next_id(), slot, str(self._objects[job.key]), job.source)
        start = time.monotonic()
        try:
            reply = worker.ask(request, self._deadline(best_s, calls=2) + self._worker_pool.launch_build_s)
        finally:
            elapsed = time.monotonic() - start
            self.check_s += elapsed
        return reply, elapsed

    def _timed(self, worker: Worker, request: Numbered, deadline_s: float) -> Numbered:
        start, check_s = time.monotonic(), 0.0
        try:
            reply = worker.ask(request, deadline_s)
            if isinstance(reply, Samples):
                check_s = min(max(reply.check_s, 0.0), time.monotonic() - start)
        finally:
            self.check_s += check_s
            self.measure_s += time.monotonic() - start - check_s
        return reply

    def _deadline(self, best_s: float | None, calls: int = 1) -> float:
        """Return the seconds after which a run counts as a hang."""
        allowance = self._floor_s + self.problem.n_bytes / _CHECK_BYTES_PER_S
        if best_s is None:
            return self._first_deadline_s + allowance
        return max(_RUN_DEADLINE_S, _DEADLINE_FACTOR * calls * best_s) + allowance

    def _failed(self, job: Job, fault: str, message: str) -> Failure:
        """Return the failure of a run; end the runner if the fault makes it untrustworthy."""
        self._processes.check_directory()
        if fault not in FAULTS:
            fault, message = "protocol", f"the runner answered with an unknown class of failure: {message}"
        if FAULTS[fault].respawn:
            self._runners.discard()
        return Failure(job.key, fault, message)

    def _drop(self) -> None:
        """Drop the kernels that the runner holds."""
        worker = self._runner()
        self._slots.clear()
        try:
            worker.ask(Drop(worker.next_id()), _RUN_DEADLINE_S)
        except WorkerError:
            self._runners.discard()


def _repeated(attempt: Callable[[], Answer | Failure]) -> Answer | Failure:
    """Return the result of `attempt`, or of a second attempt if the first failure is not the candidate's fault."""
    answer = attempt()
    return attempt() if isinstance(answer, Failure) and FAULTS[answer.kind].repeated else answer


def _final(key: str, samples: tuple[float, ...]) -> FinalMeasurement:
    return FinalMeasurement(key, median(samples), median_interval(samples), samples)

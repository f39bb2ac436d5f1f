"""Measures programs of the operator set for the data that the cost model is judged by.

    python -m experiments.collect_programs --db programs.db --minutes 5

Every benchmark shape at N=1 and N=16 with one and two threads is a case, but for those of more than MOST_FLOPS
or MOST_BYTES. A case is gone through in passes, each a mixture such as a search meets:

    first     the best of the analytic draft of all sketches, and random legal rows, some of them of the better ones
    second    what evolution under the learned score proposes, neighbours of the best, and random rows
    others    random rows alone

Timing is short: what counts is the order of programs, and of many. Neighbours on a shared machine slow down what runs
for some seconds, so the programs of a pass take TURNS turns each, every turn in another order, and the fastest sample
counts. All is recorded as in a tuning session, checked against the reference too, so collecting goes on where it
ended: a pass that has begun counts as done.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autosched.errors import DeviceError, UsageError
from autosched.kernel.device import Device
from autosched.kernel.request import Request
from autosched.kernel.roofline import compulsory_bytes
from autosched.kernel.task import make_task, start_run, task_key
from autosched.measure import Failure, Job, Measurement, Measurer, WorkerPool, make_problem
from autosched.measure.host import ScratchDirectory
from autosched.store import Database
from autosched.target import parse_target
from autosched.tuner.definition import define
from autosched.tuner.memory_check import check_memory_and_disk
from autosched.tuner.options import WorkloadOptions
from autosched.tuner.protocols import Candidate, Trial
from autosched.tuner.recorder import DatabaseRecorder
from autosched.tuner.search import Search
from autosched.tuner.task import Task, training_data
from experiments.scoreboard.bouts import Bout
from experiments.tuning import BenchmarkCase
from search_spaces.space import Sketch

OPERATORS = ("c1d", "c2d", "c3d", "gmm", "grp", "dil", "dep", "t2d", "cap", "nrm", "sfm", "cbr", "tbg", "tbs")
BATCHES, THREADS = (1, 16), (1, 2)
MOST_FLOPS, MOST_BYTES = 6e9, 32e6  # of a case
FLOOR_S = 0.003  # seconds of samples for a turn of a program
TURNS = 3
CASE_S = 7.0  # of timing, for a pass of a case; what has not had its turn then is left out
GROUP = 14  # cases that are prepared together before any of them is timed
DRAWN = 256  # random rows of a sketch, of which some are measured


@dataclass(frozen=True)
class Mixture:
    """How many candidates of a pass come from where: each phase of the search policy; `random`: uniform ones;
    `better`: of the random ones that the draft likes."""

    policy: tuple[tuple[str, int], ...]
    random: int
    better: int


PASSES = (
    Mixture((("draft", 12),), 18, 10),
    Mixture((("evolve", 12), ("descend", 8)), 14, 6),
    Mixture((), 40, 0),
    Mixture((), 40, 0),
)


def all_cases() -> Iterator[Bout]:
    """All that are small enough, so ordered that every operator comes early."""
    for batch in BATCHES:
        for index in range(4):
            for threads in THREADS:
                for workload in OPERATORS:
                    bout = Bout(BenchmarkCase(workload, index), batch, threads)
                    dag, _ = bout.built
                    if dag.flops <= MOST_FLOPS and compulsory_bytes(dag) <= MOST_BYTES:
                        yield bout


@dataclass
class Bench:
    """A case with its search, its workers and what has been measured of it."""

    bout: Bout
    task: Task
    search: Search[Sketch]
    measurer: Measurer
    recorder: DatabaseRecorder
    round: int
    trials: list[Trial] = field(default_factory=list)
    jobs: list[tuple[Job, Candidate]] = field(default_factory=list)

    def prepare(self) -> None:
        """Chooses the programs of the next pass and builds them."""
        self.jobs = []
        for candidate in self._pick(PASSES[self.round]):
            try:
                self.jobs.append((Job(f"p{self.round}-{len(self.jobs)}", self.task.source(candidate)), candidate))
            except Exception as error:  # a bug of code generation costs its candidate only
                print(f"{self.bout.label}: {type(error).__name__}: {error}", file=sys.stderr)
        self.measurer.build([job for job, _ in self.jobs])

    def time(self, rng: np.random.Generator) -> int:
        """Records all programs that have had their first turn within a turn's part of CASE_S; how many."""
        answers = self._turn(rng.permutation(len(self.jobs)), CASE_S / TURNS)
        samples = {i: [*a.samples] for i, a in answers.items() if not isinstance(a, Failure)}
        for _ in range(TURNS - 1):
            for i, again in self._turn(rng.permutation([*samples]), np.inf).items():
                samples[i] += () if isinstance(again, Failure) else again.samples
        fresh: list[Trial] = []
        for i, answer in answers.items():
            candidate = self.jobs[i][1]
            trial = Trial.of(candidate, self.round, answer)
            if i in samples:
                trial = replace(trial, seconds=min(samples[i]), samples=tuple(samples[i]))
            self.recorder.append(trial)
            fresh.append(trial)
        self.learn(fresh)
        self.round += 1
        return sum(t.seconds is not None for t in fresh)

    def _turn(self, order: npt.NDArray[np.int64], seconds: float) -> dict[int, Measurement | Failure]:
        """Times jobs in this order, by their number; what `seconds` do not suffice for is left out."""
        begun, found = time.monotonic(), {}
        jobs = [self.jobs[i][0] for i in order]
        for i, answer in zip(order.tolist(), self.measurer.measure(jobs), strict=False):
            found[i] = answer
            if time.monotonic() - begun > seconds:
                break
        return found

    def learn(self, trials: Sequence[Trial]) -> None:
        self.trials += trials
        self.search.observe(trials)
        self.task.model.update(*training_data(trials))

    def _pick(self, mixture: Mixture) -> list[Candidate]:
        """Distinct new candidates, in the proportions of `mixture`."""
        task, rng = self.task, np.random.default_rng((self.round, len(self.trials)))
        picks = [c for phase, n in mixture.policy for c in self.search.propose(self.round, n, phase)]
        drawn: list[tuple[float, Candidate]] = []
        for i, sketch in enumerate(task.sketches):
            rows = task.model.legal_rows(i, task.space.enumerate_grid(sketch, DRAWN, rng))
            seconds = task.model.analytic_latency(i, rows)
            drawn += [(float(s), Candidate(i, tuple(row.tolist()))) for s, row in zip(seconds, rows, strict=True)]
        drawn.sort(key=lambda pair: pair[0])
        n = len(drawn)
        places = [*(n * rng.random(2 * mixture.better) ** 3).astype(int), *rng.integers(n, size=2 * mixture.random)]
        known = {t.candidate for t in self.trials} | set(picks)
        fresh = [c for c in dict.fromkeys(drawn[p][1] for p in rng.permutation(places)) if c not in known]
        return [*dict.fromkeys(picks), *fresh[: mixture.random + mixture.better]]


def set_up(bout: Bout, database: Database, ends: ExitStack) -> Bench | None:
    """What `bout` needs for its passes, closed by `ends`; None where all are done."""
    asked = WorkloadOptions(shape=bout.case.shape, batch=bout.batch)
    problem, target = define(bout.case.workload, asked), parse_target("cpu")
    request = Request(problem, Device(target, bout.threads))
    records = database.records(*task_key(request))
    round = 1 + max((r.round for r in records), default=-1)
    if round >= len(PASSES):
        return None
    scratch = ends.enter_context(ScratchDirectory())
    check_memory_and_disk(problem.dag, scratch)
    data = make_problem(problem.dag, scratch, round)
    measurer = Measurer(data, WorkerPool(target, bout.threads, 1), floor_s=FLOOR_S)
    ends.enter_context(measurer)
    task, sketches = make_task(request)
    recorder = start_run(database, request, task, sketches, seed=round, resume=True)
    bench = Bench(bout, task, Search(task.space, sketches, task.model, seed=round), measurer, recorder, round)
    if known := recorder.history():
        bench.learn(known)
    data.wait()
    return bench


def collect(path: Path, minutes: float, cases: Sequence[Bout]) -> int:
    """Measures until `minutes` are over or all is measured; how many programs."""
    begun, done = time.monotonic(), 0
    with Database(path) as database:
        for at in range(0, len(cases), GROUP):
            with ExitStack() as ends:
                benches = [_set_up(bout, database, ends) for bout in cases[at : at + GROUP]]
                ready = [bench for bench in benches if bench is not None]
                while ready := [b for b in ready if b.round < len(PASSES)]:
                    if time.monotonic() - begun > 60 * minutes:
                        return done
                    for bench in ready:
                        bench.prepare()
                    done += sum(_timed(bench) for bench in ready)
                    _say(f"{done} programs in {time.monotonic() - begun:.0f} s")
    return done


def _set_up(bout: Bout, database: Database, ends: ExitStack) -> Bench | None:
    try:
        return set_up(bout, database, ends)
    except UsageError as error:  # no room for its arrays
        _say(f"{bout.label}: {error}")
        return None


def _timed(bench: Bench) -> int:
    begun, round = time.monotonic(), bench.round
    try:
        done = bench.time(np.random.default_rng(round))
    except DeviceError as error:
        _say(f"{bench.bout.label}: {error}")
        bench.round = len(PASSES)
        return 0
    _say(f"{bench.bout.label} pass {round}: {done} of {len(bench.jobs)} programs in {time.monotonic() - begun:.1f} s")
    return done


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.collect_programs", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--db", type=Path, required=True, help="the record database to add to")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M", help="stop after so long (default 10)")
    args = parser.parse_args(argv)
    done = collect(args.db, args.minutes, list(all_cases()))
    print(f"{done} programs measured")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""A search space with a known landscape, and deterministic stand-ins for everything a session talks to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.codegen.source import KernelSource
from autosched.measure.results import Failure, FinalMeasurement, Job, Measurement, impossible_time
from autosched.tuner.protocols import Candidate, Population, Trial
from autosched.tuner.task import Task
from autosched.tuner.task_info import TaskInfo
from search_spaces import space
from search_spaces.space import Sketch, SketchParam

Floats = npt.NDArray[np.float64]
TILES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
EXTENT = 64


NO_STATE: Any = None


def sketch(name: str) -> Sketch:
    levels = [SketchParam(f"{axis}{level}", TILES, "tile", axis, EXTENT) for axis in "ij" for level in (1, 2, 3)]
    return Sketch(name, NO_STATE, (*levels, SketchParam("unroll", (0, 16, 64, 512), "unroll")))


def tiny(name: str) -> Sketch:
    return Sketch(name, NO_STATE, (SketchParam("a", (1, 2, 3), "tile"), SketchParam("b", (0, 1), "switch")))


def true_seconds(i: int, rows: Population) -> Floats:
    """A rugged valley: best at i3 = 6, i2 = 4, j3 = 16, j2 = 2, unroll 64, in sketch 1."""
    if rows.shape[1] == 2:
        return np.asarray(1e-3 * (1 + (rows[:, 0] - 2) ** 2 + rows[:, 1]), dtype=np.float64)
    best = np.array([1, 4, 6, 1, 2, 16, 64])
    distance = np.abs(np.log2(np.maximum(rows, 1)) - np.log2(best)) @ np.array([0.1, 0.2, 0.5, 0.1, 0.2, 0.4, 0.05])
    waves = 0.05 * np.sin(rows @ np.array([1, 3, 5, 7, 11, 13, 0]))
    return np.asarray(1e-3 * np.exp(distance + waves) * (1.0 + 0.3 * abs(i - 1)), dtype=np.float64)


@dataclass
class FakeModel:
    """Draft: the truth, coarsely; score: the draft and, once trained, the residual of the nearest trial."""

    sketches: Sequence[Sketch]
    updates: list[int] = field(default_factory=list)
    prepared: int = 0
    memory: list[tuple[int, tuple[int, ...], float]] = field(default_factory=list)

    def legal(self, i: int, rows: Population) -> npt.NDArray[np.bool_]:
        if rows.shape[1] == 2:
            return np.ones(len(rows), dtype=bool)
        fits: npt.NDArray[np.bool_] = (rows[:, :3].prod(axis=1) <= EXTENT) & (rows[:, 3:6].prod(axis=1) <= EXTENT)
        return fits

    def n_parts(self, i: int) -> int:
        return 1

    def legal_rows(self, i: int, rows: Population) -> Population:
        return rows[self.legal(i, rows)]

    def analytic_latency(self, i: int, rows: Population) -> Floats:
        blur = 1.0 + 0.3 * np.sin(rows @ np.arange(1, rows.shape[1] + 1))
        return np.asarray(true_seconds(i, rows) * blur * (2.0 if i == 1 else 1.0), dtype=np.float64)

    def analytic_latency_with_best(self, i: int, rows: Population) -> tuple[Floats, Population]:
        return self.analytic_latency(i, rows), rows[:0]

    def score(self, i: int, rows: Population) -> Floats:
        score = -np.log(self.analytic_latency(i, rows))
        mine = [(row, s) for sketch, row, s in self.memory if sketch == i and np.isfinite(s)]
        if mine:
            known = np.array([row for row, _ in mine])
            residual = -np.log([s for _, s in mine]) + np.log(self.analytic_latency(i, known))
            distance = np.abs(np.log2(rows[:, None, :] + 1.0) - np.log2(known[None, :, :] + 1.0)).sum(axis=2)
            weight = np.exp(-distance)
            score = score + (weight * residual).sum(axis=1) / (weight.sum(axis=1) + 1e-3)
        return np.asarray(score, dtype=np.float64)

    def prepare(self) -> None:
        self.prepared += 1

    def update(self, sketches: Sequence[int], rows: Sequence[npt.NDArray[np.int64]], seconds: Sequence[float]) -> bool:
        self.updates.append(len(seconds))
        self.memory += [(i, tuple(r.tolist()), s) for i, r, s in zip(sketches, rows, seconds, strict=True)]
        return True


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@dataclass
class FakeMeasurer:
    """Times by `true_seconds`; `fails(i, values)` names a candidate's failure; `interrupt_after` trials: Ctrl-C."""

    clock: Clock
    fails: Any = None
    interrupt_after: int | None = None
    unstable: int = 0  # so many candidates fail in the final comparison
    clock_error: Callable[[str], float] = lambda text: 1.0  # a factor for each look at a candidate
    trial_s: float = 0.1
    build_s: float = 0.0
    check_s: float = 0.0
    measure_s: float = 0.0
    measured: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)

    def measure(
        self, jobs: Iterable[Job], best_s: float | None, is_possible: Callable[[float], bool] = lambda seconds: True
    ) -> Iterator[Measurement | Failure]:
        jobs = list(jobs)
        self.batches.append(len(jobs))
        for job in jobs:
            if self.interrupt_after is not None and len(self.measured) >= self.interrupt_after:
                raise KeyboardInterrupt
            i, values = parse(job.source)
            self.measured.append(job.source.ir)
            self.clock.now += self.trial_s
            self.measure_s += self.trial_s
            fault = self.fails(i, values) if self.fails else None
            if fault:
                yield Failure(job.key, fault, f"it was a {fault}")
            else:
                seconds = self.clock_error(job.source.ir) * float(true_seconds(i, np.array([values]))[0])
                if not is_possible(0.99 * seconds):
                    yield Failure(job.key, *impossible_time(seconds))
                    continue
                yield Measurement(job.key, seconds, (seconds, seconds * 1.01, seconds * 0.99))

    def await_reference(self) -> None:
        pass

    def final(self, jobs: Sequence[Job]) -> Sequence[FinalMeasurement | Failure]:
        finals: list[FinalMeasurement | Failure] = []
        for job in jobs:
            self.compared.append(job.source.ir)
            if self.unstable and self.compared.index(job.source.ir) < self.unstable:
                finals.append(Failure(job.key, "unstable_result", "it was unstable"))
                continue
            seconds = self.clock_error(job.source.ir) * float(true_seconds(*parse_rows(job.source))[0])
            finals.append(FinalMeasurement(job.key, seconds, (seconds * 0.99, seconds * 1.02)))
        return finals


@dataclass
class FakeRecorder:
    trials: list[Trial] = field(default_factory=list)
    resumed: tuple[Trial, ...] = ()
    certified: dict[int, float] = field(default_factory=dict)
    status: str = "running"
    known_s: float | None = None
    known_shapes: tuple[Candidate, ...] = ()

    def relatives(self) -> Sequence[Candidate]:
        return self.known_shapes

    def history(self) -> Sequence[Trial]:
        return self.resumed

    def append(self, trial: Trial) -> int:
        self.trials.append(trial)
        return len(self.trials) + len(self.resumed)

    def certify(self, record_id: int, seconds: float, ci: tuple[float, float]) -> None:
        self.certified[record_id] = seconds

    def finish(self, status: str) -> None:
        self.status = status


def parse(source: KernelSource) -> tuple[int, list[int]]:
    i, *values = source.ir.split(",")
    return int(i), [int(v) for v in values]


def parse_rows(source: KernelSource) -> tuple[int, Population]:
    i, values = parse(source)
    return i, np.array([values], dtype=np.int64)


def emit(i: int, values: Mapping[str, int]) -> KernelSource:
    return KernelSource("kernel", ",".join(map(str, [i, *values.values()])), 0, 1)


def make_task(sketches: tuple[Sketch, ...] | None = None) -> Task:
    chosen = sketches or (sketch("plain"), sketch("packed"), sketch("fused"))
    subject = TaskInfo("matmul", (1, 64, 64), "float32", "cpu", threads=1, flops=1_000_000)
    return Task(subject, chosen, space, FakeModel(chosen), emit, load)


def load(source: object) -> Any:
    raise AssertionError("no session compiles a kernel before its end")

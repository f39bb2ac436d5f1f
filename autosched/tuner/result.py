"""Result of a session: the best candidate, the cost of the search and its curve; errors of a search without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from autosched.errors import DeviceError, Interrupted, NoValidCandidate
from autosched.tuner.task_info import TaskInfo

if TYPE_CHECKING:
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel
    from autosched.tuner.protocols import Candidate, Trial
    from autosched.tuner.task import Task

SCHEMA_VERSION = 1
NEAR_BEST = 0.95  # of the best known throughput


@dataclass(frozen=True)
class Point:
    """A point of the tuning curve: after `trial` trials and `elapsed_s` seconds the best time was `best_s`."""

    trial: int
    elapsed_s: float
    best_s: float


@dataclass(frozen=True, kw_only=True)
class Result(TaskInfo):
    """The outcome of `tune` for a task. All times are in seconds.

    `trials`: number of measured candidates, `failed` of them without a time (by fault class in `failures`), `resumed`
    of them from records. `wall_s` and `first_result_s` (the first verified candidate) count from the start of the
    command. `wall_s` is the sum of `prepare_s` (imports, sketches, lowering, start of workers), `search_s`, `model_s`
    (fitting), `build_s`, `check_s`, `measure_s` and `other_s` (peak, records). `best_ci_s`: confidence interval of the
    median of the final samples. `peak_gflops`: peak measured in the same run.

    Efficiency of the search: `best_known_s` is the best time of the trials and of earlier records. `trials_to_95` and
    `seconds_to_95`: when the throughput first was 95 % of that, None if never. `first_round_ratio`: best time of the
    first round over that of all trials, at least 1; None without a verified trial in the first round.

    A search without measurements has `verified` False: its `best_s` and `gflops` are the cost model's estimates.
    """

    trials: int = 0
    wall_s: float = 0.0
    prepare_s: float = 0.0
    search_s: float = 0.0
    model_s: float = 0.0
    build_s: float = 0.0
    check_s: float = 0.0
    measure_s: float = 0.0
    first_result_s: float | None = None
    best_s: float
    best_ci_s: tuple[float, float]
    known_s: float | None = field(default=None, repr=False)
    gflops: float
    peak_gflops: float | None = None
    record_id: int | None = None
    sketch: str
    values: Mapping[str, int]
    verified: bool = True
    interrupted: bool = False
    resumed: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    curve: tuple[Point, ...] = ()
    records: tuple[Trial, ...] = field(default=(), repr=False)
    schema_version: int = SCHEMA_VERSION
    kernel: Callable[[], Kernel | GpuKernel] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, task: Task, candidate: Candidate, seconds: float) -> Result:
        """Return a result with a candidate and its seconds, without the facts of a search."""
        return cls(
            **vars(task.info),
            best_s=seconds,
            best_ci_s=(seconds, seconds),
            gflops=task.gflops(seconds),
            sketch=task.sketches[candidate.sketch].name,
            values=task.values(candidate),
            kernel=partial(task.kernel, candidate),
        )

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def fraction_of_peak(self) -> float | None:
        return self.gflops / self.peak_gflops if self.peak_gflops else None

    @property
    def other_s(self) -> float:
        parts = (self.prepare_s, self.search_s, self.model_s, self.build_s, self.check_s, self.measure_s)
        return self.wall_s - sum(parts)

    @property
    def best_known_s(self) -> float:
        best_s = self.curve[-1].best_s if self.curve else self.best_s
        return best_s if self.known_s is None else min(best_s, self.known_s)

    @property
    def trials_to_95(self) -> int | None:
        point = self._first_near_best()
        return None if point is None else point.trial

    @property
    def seconds_to_95(self) -> float | None:
        point = self._first_near_best()
        return None if point is None else point.elapsed_s

    @property
    def first_round_ratio(self) -> float | None:
        first = [t.seconds for t in self.records if t.round == 0 and t.seconds is not None]
        return min(first) / self.curve[-1].best_s if first else None

    def _first_near_best(self) -> Point | None:
        """Return the first point of the curve with NEAR_BEST of the best known throughput."""
        return next((p for p in self.curve if NEAR_BEST * p.best_s <= self.best_known_s), None)

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the kernel, which is bound to this process."""
        return {**self.__dict__, "kernel": None}

    def compile(self) -> Kernel | GpuKernel:
        """Return the best candidate as a callable kernel; only in the process of the search."""
        if self.kernel is None:
            raise ValueError("this Result is not of a search by autosched.tune in this process: see autosched.compile")
        return self.kernel()

    def to_json(self) -> dict[str, object]:
        """Return the object that `tune --json` prints, as JSON data without `records` and the kernel."""
        data: dict[str, object] = {"schema_version": self.schema_version}
        for name in JSON_FIELDS:
            value = getattr(self, name)
            data[name] = list(value) if isinstance(value, tuple) else value
        data["values"], data["failures"] = dict(self.values), dict(self.failures)
        data["curve"] = [[p.trial, p.elapsed_s, p.best_s] for p in self.curve]
        return data


JSON_FIELDS = (
    "workload", "shape", "dtype", "target", "threads", "trials", "failed", "wall_s", "prepare_s", "search_s", "model_s",
    "build_s", "check_s", "measure_s", "other_s", "first_result_s", "best_known_s", "trials_to_95", "seconds_to_95",
    "first_round_ratio", "best_s", "best_ci_s", "gflops", "peak_gflops", "fraction_of_peak",
    "record_id", "verified", "interrupted", "resumed", "sketch", "weights", "winograd", "precision",
)  # fmt: skip


def nothing_found(task: Task, trials: Sequence[Trial], interrupted: bool) -> Interrupted | NoValidCandidate:
    """Return the error of a session none of whose `trials` was verified."""
    info = task.info
    if interrupted:
        return Interrupted(f"interrupted before the first verified kernel of {info.workload}; {_recorded(trials)}")
    if not trials:
        return NoValidCandidate(
            f"the search space of {info.workload} on {info.target} with {info.threads} threads has "
            f"no legal candidate, or the budget ended before the first: raise --budget or report this workload"
        )
    failures = Counter(t.failure for t in trials if t.failure is not None)
    first = next(t for t in trials if t.failure is not None)
    classes = ", ".join(f"{kind} {n}" for kind, n in failures.most_common())
    return NoValidCandidate(
        f"none of the {len(trials)} measured candidates of {info.workload} was valid ({classes}); "
        f"the first failed with: {first.message}"
    )


def device_lost(task: Task, trials: Sequence[Trial], best: Trial | None, error: DeviceError) -> DeviceError:
    """Return the error of a session whose device was lost; its trials are recorded."""
    if best is None or best.seconds is None:
        recorded = _recorded(trials)
    else:
        recorded = (
            f"{len(trials)} trials are recorded, the best with {task.gflops(best.seconds):.4g} GFLOP/s "
            f"(record {best.record_id}): resume from them when the device is back"
        )
    return DeviceError(f"the device of {task.info.target} was lost: {error}; {recorded}")


def _recorded(trials: Sequence[Trial]) -> str:
    return f"{len(trials)} failed trials are recorded" if trials else "nothing was measured yet"

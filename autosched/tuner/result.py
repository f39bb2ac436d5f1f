"""What a session leaves behind: the best candidate, how it was found and what it cost; or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from autosched.errors import DeviceError, Interrupted, NoValidCandidate
from autosched.tuner.task_info import Subject

if TYPE_CHECKING:
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel
    from autosched.tuner.protocols import Candidate, Trial
    from autosched.tuner.task import Task

SCHEMA_VERSION = 1
NEAR = 0.95  # of the best known throughput


@dataclass(frozen=True)
class Point:
    """A step of the tuning curve: after `trial` trials and `elapsed_s` seconds the best time was `best_s`."""

    trial: int
    elapsed_s: float
    best_s: float


@dataclass(frozen=True, kw_only=True)
class Result(Subject):
    """The outcome of `tune` for what it begins with. All times in seconds.

    `trials` counts measured candidates, `failed` those of them without a time (by class in `failures`), `resumed`
    those taken over from records. `wall_s` and `first_result_s` (to the first verified candidate) count from the
    start of the command. Parts of it, which together are all of it: `prepare_s` (imports, sketches, their lowering,
    workers started), `search_s`, `model_s` (fitting), `build_s`, `check_s`, `measure_s`, `other_s` (the peak, records).
    `best_ci_s` is an interval for the median of the final samples. `peak_gflops` was measured in the same run.

    How soon the search was there: `best_known_s` is the best time of its trials or on record before; `trials_to_95`
    and `seconds_to_95` say when the best so far was within 95 % of it, None if never; `first_round_ratio` is the best
    time of the first round over that of all trials, 1 at best, None where nothing of the first round was valid.

    A search without measurements has `verified` False: its `best_s` and `gflops` are the cost model's estimate.
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
        """What is to be said of a candidate that takes so long; how it was found is left open."""
        return cls(
            **vars(task.subject),
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
        found = self.curve[-1].best_s if self.curve else self.best_s
        return found if self.known_s is None else min(found, self.known_s)

    @property
    def trials_to_95(self) -> int | None:
        point = self._near()
        return None if point is None else point.trial

    @property
    def seconds_to_95(self) -> float | None:
        point = self._near()
        return None if point is None else point.elapsed_s

    @property
    def first_round_ratio(self) -> float | None:
        first = [t.seconds for t in self.records if t.round == 0 and t.seconds is not None]
        return min(first) / self.curve[-1].best_s if first else None

    def _near(self) -> Point | None:
        """The first point of the curve that is near enough to the best known."""
        return next((p for p in self.curve if NEAR * p.best_s <= self.best_known_s), None)

    def __getstate__(self) -> dict[str, object]:
        """For pickles, which go to other processes: all but the kernel, which is of this one."""
        return {**self.__dict__, "kernel": None}

    def compile(self) -> Kernel | GpuKernel:
        """The best candidate as a callable kernel, in the process that has searched."""
        if self.kernel is None:
            raise ValueError("this Result is not of a search by autosched.tune in this process: see autosched.compile")
        return self.kernel()

    def to_json(self) -> dict[str, object]:
        """The object that `tune --json` prints (JSON data; `records` and the kernel are left out)."""
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
    """Why a session ends without a Result: none of its `trials` was valid."""
    subject = task.subject
    if interrupted:
        return Interrupted(f"interrupted before the first verified kernel of {subject.workload}; {_recorded(trials)}")
    if not trials:
        return NoValidCandidate(
            f"the search space of {subject.workload} on {subject.target} with {subject.threads} threads has "
            f"no legal candidate, or the budget ended before the first: raise --budget or report this workload"
        )
    failures = Counter(t.failure for t in trials if t.failure is not None)
    first = next(t for t in trials if t.failure is not None)
    classes = ", ".join(f"{kind} {n}" for kind, n in failures.most_common())
    return NoValidCandidate(
        f"none of the {len(trials)} measured candidates of {subject.workload} was valid ({classes}); "
        f"the first failed with: {first.message}"
    )


def device_lost(task: Task, trials: Sequence[Trial], best: Trial | None, error: DeviceError) -> DeviceError:
    """The device is gone for good; what it measured is recorded."""
    if best is None or best.seconds is None:
        kept = _recorded(trials)
    else:
        kept = (
            f"{len(trials)} trials are recorded, the best with {task.gflops(best.seconds):.4g} GFLOP/s "
            f"(record {best.record_id}): resume from them when the device is back"
        )
    return DeviceError(f"the device of {task.subject.target} was lost: {error}; {kept}")


def _recorded(trials: Sequence[Trial]) -> str:
    return f"{len(trials)} failed trials are recorded" if trials else "nothing was measured yet"

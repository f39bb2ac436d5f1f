"""Protocols of the tuner: search space, cost model, measurer and recorder, with the records that they exchange.

The search space is a set of array functions over sketches (a module satisfies it), the cost model scores whole
populations, only the measurer uses the device, the recorder stores results durably.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from autosched.measure.results import Failure

if TYPE_CHECKING:
    from autosched.measure.results import FinalMeasurement, Job, Measurement

Population: TypeAlias = npt.NDArray[np.int64]  # [n, n_params] parameter values of one sketch
Scores: TypeAlias = npt.NDArray[np.floating[Any]]  # [n]
Keys: TypeAlias = npt.NDArray[np.uint64]  # [n]
Mask: TypeAlias = npt.NDArray[np.bool_]  # [n]

S_contra = TypeVar("S_contra", contravariant=True)


@dataclass(frozen=True)
class Candidate:
    """A point of the search space: the index of a sketch and one value for each of its parameters."""

    sketch: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """A measured candidate: its median time in seconds, or the class of its failure."""

    candidate: Candidate
    round: int
    seconds: float | None
    samples: tuple[float, ...] = ()
    failure: str | None = None
    message: str = ""
    record_id: int | None = None

    @classmethod
    def of(cls, candidate: Candidate, round: int, answer: Measurement | FinalMeasurement | Failure) -> Trial:
        if isinstance(answer, Failure):
            return cls(candidate, round, None, (), answer.kind, answer.message)
        return cls(candidate, round, answer.seconds, answer.samples)

    @property
    def undisturbed_s(self) -> float | None:
        """The fastest sample, by which trials are compared: disturbances only make samples slower."""
        return min(self.samples, default=self.seconds) if self.seconds is not None else None


class SketchLike(Protocol):
    """A sketch, of which the tuner reads name and parameters."""

    @property
    def name(self) -> str: ...
    @property
    def params(self) -> tuple[ParamLike, ...]: ...


class ParamLike(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str:
        """Kind of the parameter: "vector" for vector widths."""
        ...


class SearchSpace(Protocol[S_contra]):
    """Operations on the population of one sketch; each result is determined by the arguments and `rng`."""

    def enumerate_grid(self, sketch: S_contra, limit: int, rng: np.random.Generator) -> Population:
        """Return all rows of the sketch if there are at most `limit`, else at most `limit` distinct random ones."""
        ...

    def mutate(self, sketch: S_contra, rows: Population, rng: np.random.Generator, prob: float) -> Population: ...
    def crossover(self, sketch: S_contra, a: Population, b: Population, rng: np.random.Generator) -> Population: ...
    def neighbours(self, sketch: S_contra, rows: Population) -> Population:
        """Return all rows that differ from one of `rows` by one move."""
        ...

    def nearest(self, sketch: S_contra, rows: Population) -> Population:
        """Return the rows of the sketch nearest to `rows`, whose values may be outside of the domains."""
        ...

    def canonical(self, sketch: S_contra, rows: Population) -> Population:
        """Return the rows in canonical form: equal for rows that give the same program."""
        ...

    def keys(self, rows: Population) -> Keys:
        """Return keys that are equal exactly for equal rows."""
        ...


class CostModel(Protocol):
    """Scores rows of sketch `i` without lowering any of them."""

    def legal(self, i: int, rows: Population) -> Mask: ...
    def legal_rows(self, i: int, rows: Population) -> Population:
        """Return the legal ones of random `rows`; illegal ones may be repaired and kept."""
        ...

    def n_parts(self, i: int) -> int:
        """Return the number of independent parts of sketch `i`, with parameters of their own; at least 1."""
        ...

    def analytic_latency(self, i: int, rows: Population) -> Scores:
        """Return the analytic latency in seconds."""
        ...

    def analytic_latency_with_best(self, i: int, rows: Population) -> tuple[Scores, Population]:
        """Return the analytic latency, and a few legal rows that combine the best values of `rows` for each part; no
        rows for sketches of one part."""
        ...

    def score(self, i: int, rows: Population) -> Scores:
        """Return scores, comparable between sketches; higher is better."""
        ...

    def prepare(self) -> None:
        """Do the lazy initialisation of the first `score` and `update` now."""
        ...

    def update(self, sketches: Sequence[int], rows: Sequence[npt.NDArray[np.int64]], seconds: Sequence[float]) -> bool:
        """Add measured rows (inf seconds: failed), and return whether the model was fitted again."""
        ...


class Measurer(Protocol):
    """Builds, verifies and times candidates, one at a time; the totals are seconds of this session."""

    @property
    def build_s(self) -> float: ...
    @property
    def check_s(self) -> float: ...
    @property
    def measure_s(self) -> float: ...
    def await_reference(self) -> None:
        """Wait until the reference is computed."""
        ...

    def measure(
        self, jobs: Iterable[Job], best_s: float | None, is_possible: Callable[[float], bool]
    ) -> Iterator[Measurement | Failure]:
        """Build the jobs, then time them, and yield one answer for each. An impossible time is measured again, and a
        failure if it stays impossible."""
        ...

    def final(self, jobs: Sequence[Job]) -> Sequence[FinalMeasurement | Failure]: ...


class Recorder(Protocol):
    """Stores trials, durably once `append` returns. `known_s`: the best time on record before the session."""

    @property
    def known_s(self) -> float | None: ...
    def history(self) -> Sequence[Trial]:
        """Return the trials to resume from; none for a fresh run."""
        ...

    def relatives(self) -> Sequence[Candidate]:
        """Return the fastest candidates of the operator's other shapes, nearest shape first."""
        ...

    def append(self, trial: Trial) -> int:
        """Store a trial, and return its record id."""
        ...

    def certify(self, record_id: int, seconds: float, ci: tuple[float, float]) -> None: ...
    def finish(self, status: str) -> None:
        """Record the end of the session. `status`: "finished", "interrupted" or "failed" (no verified trial)."""
        ...

"""What tuning asks of its surroundings: four small protocols and the records that cross them.

The search space is a set of array functions over sketches (a module serves), the cost model judges whole
populations, the measurer is the only one to touch the device, the recorder makes results durable.
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
    """A point of the search space: the number of a sketch and one value for each of its parameters."""

    sketch: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """What is known of a measured candidate: its median time, or why it has none."""

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
        """What trials are compared by: the fastest sample, because whatever disturbs one makes it slower."""
        return min(self.samples, default=self.seconds) if self.seconds is not None else None


class SketchLike(Protocol):
    """A schedule with open numbers; tuning reads how it is called and of what kind its numbers are."""

    @property
    def name(self) -> str: ...
    @property
    def params(self) -> tuple[ParamLike, ...]: ...


class ParamLike(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str:
        """What it is: "vector" for the widths of vectors."""
        ...


class SearchSpace(Protocol[S_contra]):
    """Moves on the population of one sketch; every function is determined by its arguments and `rng`."""

    def enumerate_grid(self, sketch: S_contra, limit: int, rng: np.random.Generator) -> Population:
        """All rows of the sketch if there are at most `limit`, else at most `limit` distinct random ones."""
        ...

    def mutate(self, sketch: S_contra, rows: Population, rng: np.random.Generator, prob: float) -> Population: ...
    def crossover(self, sketch: S_contra, a: Population, b: Population, rng: np.random.Generator) -> Population: ...
    def neighbours(self, sketch: S_contra, rows: Population) -> Population:
        """All rows one move away from one of `rows`."""
        ...

    def nearest(self, sketch: S_contra, rows: Population) -> Population:
        """Rows of the sketch that are most like `rows`, whose numbers may be outside of it."""
        ...

    def canonical(self, sketch: S_contra, rows: Population) -> Population:
        """The rows, with the same numbers for rows that are known to mean the same program."""
        ...

    def keys(self, rows: Population) -> Keys:
        """Equal for equal rows, different for different ones."""
        ...


class CostModel(Protocol):
    """Judges rows of sketch number `i` without lowering any of them."""

    def legal(self, i: int, rows: Population) -> Mask: ...
    def legal_rows(self, i: int, rows: Population) -> Population:
        """Those of random `rows` that are legal; it may make others legal and keep them, but no more than `rows`."""
        ...

    def n_parts(self, i: int) -> int:
        """Parts of sketch `i` that have parameters of their own, at least 1."""
        ...

    def analytic_latency(self, i: int, rows: Population) -> Scores:
        """Analytic latency in seconds."""
        ...

    def analytic_latency_with_best(self, i: int, rows: Population) -> tuple[Scores, Population]:
        """`draft`, and a few legal rows that have the best of `rows`, by it, in each part; none where there is only
        one."""
        ...

    def score(self, i: int, rows: Population) -> Scores:
        """Higher is better; comparable between sketches."""
        ...

    def prepare(self) -> None:
        """Does what the first `score` and `update` would begin with; they work without it."""
        ...

    def update(self, sketches: Sequence[int], rows: Sequence[npt.NDArray[np.int64]], seconds: Sequence[float]) -> bool:
        """Adds measured rows (seconds inf: failed); says whether it was worth fitting the model again."""
        ...


class Measurer(Protocol):
    """Builds, verifies and times, one candidate at a time; the totals are seconds of this session."""

    @property
    def build_s(self) -> float: ...
    @property
    def check_s(self) -> float: ...
    @property
    def measure_s(self) -> float: ...
    def await_reference(self) -> None:
        """Returns when nothing is computed any more that results are compared with."""
        ...

    def measure(
        self, jobs: Iterable[Job], best_s: float | None, is_possible: Callable[[float], bool]
    ) -> Iterator[Measurement | Failure]:
        """Takes a job when there is a builder for it; times when all are built. One answer for each. A time that is
        not possible is taken again, and a failure if it stays."""
        ...

    def final(self, jobs: Sequence[Job]) -> Sequence[FinalMeasurement | Failure]: ...


class Recorder(Protocol):
    """Keeps trials; what `append` returned for is durable. `known_s`: the best time on record before the session."""

    @property
    def known_s(self) -> float | None: ...
    def history(self) -> Sequence[Trial]:
        """Trials to resume from; empty for a fresh run."""
        ...

    def relatives(self) -> Sequence[Candidate]:
        """What was fastest for the operator's other shapes, the nearest shape's first."""
        ...

    def append(self, trial: Trial) -> int:
        """Stores a trial, returns its record id."""
        ...

    def certify(self, record_id: int, seconds: float, ci: tuple[float, float]) -> None: ...
    def finish(self, status: str) -> None:
        """The session has ended: finished, interrupted, or failed (nothing valid was found)."""
        ...

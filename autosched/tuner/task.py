"""What is to be tuned: a workload on a target with its search space, put together once before the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autosched.tuner.protocols import Candidate, CostModel, Population, SearchSpace, SketchLike, Trial
from autosched.tuner.task_info import Subject
from autosched.tuner.time_bound import TimeBound

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel


@dataclass(frozen=True)
class Task:
    """A subject and the space in which its fastest kernel is looked for.

    `emit(sketch number, values by name)` is the only way from a candidate to code; it may raise for a candidate
    that turns out not to be expressible, which is then a failed trial. `load` makes a callable kernel of code.
    """

    subject: Subject
    sketches: tuple[SketchLike, ...]
    space: SearchSpace[Any]
    model: CostModel
    emit: Callable[[int, Mapping[str, int]], Source]
    load: Callable[[Source], Kernel | GpuKernel]
    bound: TimeBound = field(default_factory=TimeBound)  # what is faster than this was not measured rightly

    def values(self, candidate: Candidate) -> dict[str, int]:
        """The candidate's numbers by parameter name."""
        params = self.sketches[candidate.sketch].params
        return {p.name: v for p, v in zip(params, candidate.values, strict=True)}

    def candidate(self, sketch: str, values: Mapping[str, int]) -> Candidate | None:
        """The candidate that a record's sketch name and values mean; None if this search space has no such row."""
        found = self._row(sketch, values)
        return self._legal(*found) if found else None

    def nearest(self, sketch: str, values: Mapping[str, int]) -> Candidate | None:
        """The candidate that is most like one of another shape; None if no sketch of the name has these parameters, or
        if it would not be legal."""
        if (found := self._row(sketch, values)) is None:
            return None
        i, rows = found
        return self._legal(i, self.space.canonical(self.sketches[i], self.space.nearest(self.sketches[i], rows)))

    def _row(self, sketch: str, values: Mapping[str, int]) -> tuple[int, Population] | None:
        """The number of the sketch and `values` as its row [1, n_params], whether it is in the domains or not."""
        for i, known in enumerate(self.sketches):
            if known.name == sketch and {p.name for p in known.params} == set(values):
                return i, np.array([[int(values[p.name]) for p in known.params]], dtype=np.int64)
        return None

    def _legal(self, i: int, row: Population) -> Candidate | None:
        return Candidate(i, tuple(row[0].tolist())) if self.model.legal(i, row).all() else None

    def source(self, candidate: Candidate) -> Source:
        return self.emit(candidate.sketch, self.values(candidate))

    def kernel(self, candidate: Candidate) -> Kernel | GpuKernel:
        return self.load(self.source(candidate))

    def gflops(self, seconds: float) -> float:
        return self.subject.flops / seconds / 1e9


def training_data(trials: Sequence[Trial]) -> tuple[list[int], list[npt.NDArray[np.int64]], list[float]]:
    """Sketch numbers, rows and undisturbed seconds of trials for the cost model; a failure took for ever."""
    rows = [np.array(t.candidate.values, dtype=np.int64) for t in trials]
    seconds = [np.inf if (s := t.undisturbed_s) is None else s for t in trials]
    return [t.candidate.sketch for t in trials], rows, seconds

"""Task of the tuner: a workload on a target with its search space and cost model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autosched.tuner.protocols import Candidate, CostModel, Population, SearchSpace, SketchLike, Trial
from autosched.tuner.task_info import TaskInfo
from autosched.tuner.time_bound import TimeBound

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel


@dataclass(frozen=True)
class Task:
    """A workload on a target, with the search space of its kernels.

    `emit(sketch index, values by name)` generates code; an exception makes the candidate a failed trial. `load` makes a
    callable kernel of code. `bound`: lower bound of times, below which a measurement is wrong.
    """

    info: TaskInfo
    sketches: tuple[SketchLike, ...]
    space: SearchSpace[Any]
    model: CostModel
    emit: Callable[[int, Mapping[str, int]], Source]
    load: Callable[[Source], Kernel | GpuKernel]
    bound: TimeBound = field(default_factory=TimeBound)

    def values(self, candidate: Candidate) -> dict[str, int]:
        """Return the candidate's values by parameter name."""
        params = self.sketches[candidate.sketch].params
        return {p.name: v for p, v in zip(params, candidate.values, strict=True)}

    def candidate(self, sketch: str, values: Mapping[str, int]) -> Candidate | None:
        """Return the candidate of a record's sketch name and values; None if the search space does not have it."""
        row = self._row(sketch, values)
        return self._legal(*row) if row else None

    def nearest(self, sketch: str, values: Mapping[str, int]) -> Candidate | None:
        """Return the candidate nearest to one of another shape; None if no sketch of the name has these parameters, or
        if the candidate is illegal."""
        if (row := self._row(sketch, values)) is None:
            return None
        i, rows = row
        return self._legal(i, self.space.canonical(self.sketches[i], self.space.nearest(self.sketches[i], rows)))

    def _row(self, sketch: str, values: Mapping[str, int]) -> tuple[int, Population] | None:
        """Return the index of the sketch and the values as a row [1, n_params], which may be outside of the domains."""
        for i, own in enumerate(self.sketches):
            if own.name == sketch and {p.name for p in own.params} == set(values):
                return i, np.array([[int(values[p.name]) for p in own.params]], dtype=np.int64)
        return None

    def _legal(self, i: int, row: Population) -> Candidate | None:
        return Candidate(i, tuple(row[0].tolist())) if self.model.legal(i, row).all() else None

    def source(self, candidate: Candidate) -> Source:
        return self.emit(candidate.sketch, self.values(candidate))

    def kernel(self, candidate: Candidate) -> Kernel | GpuKernel:
        return self.load(self.source(candidate))

    def gflops(self, seconds: float) -> float:
        return self.info.flops / seconds / 1e9 if self.info.flops else 0.0


def training_data(trials: Sequence[Trial]) -> tuple[list[int], list[npt.NDArray[np.int64]], list[float]]:
    """Return sketch indices, rows and undisturbed seconds of trials for the cost model; infinity for failures."""
    rows = [np.array(t.candidate.values, dtype=np.int64) for t in trials]
    seconds = [np.inf if (s := t.undisturbed_s) is None else s for t in trials]
    return [t.candidate.sketch for t in trials], rows, seconds

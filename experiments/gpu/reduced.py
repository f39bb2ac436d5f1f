"""A candidate of a large problem at sizes that the simulator executes in seconds: whether it is right, and what of
shared memory's time it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autosched.codegen.c.source import GpuSource
from autosched.errors import UsageError
from autosched.kernel.simulation import simulated_data
from autosched.measure.check import CandidateError
from autosched.measure.gpu.simulated import EXAMINING
from autosched.tuner.protocols import Candidate
from experiments.gpu.drawn import CalibrationProblem, ProblemModel, job, named, problem_model


@dataclass(frozen=True)
class SassProblem(CalibrationProblem):
    """A problem that can be made small."""

    @property
    def reduced(self) -> tuple[SassProblem, ...]:
        """A few tiles with whole rows, then sizes that no tile divides. Rows of operands keep whole pieces of 16 bytes,
        without which other sketches are offered; what is added up is as long as the pipelines of large tiles need."""
        if self.workload == "attention":
            shapes = _of_attention(self.shape)
        elif self.workload == "gmm":
            shapes = _of_product(self.shape)
        else:
            shapes = _of_convolution(self.shape)
        return tuple(replace(self, shape=shape) for shape in shapes)


def _of_product(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    _, m, n, k = shape
    return (1, min(m, 256), min(n, 256), min(k, 1024)), (1, min(m, 131), min(n, 264), min(k - 8, 1032))


def _of_convolution(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    _, height, width, channels, made, *rest = shape
    sizes = (2, min(height, 14), min(width, 14), min(channels, 128), min(made, 128))
    return (*sizes, *rest), (3, 5, 7, min(channels, 128), min(made, 136), *rest)


def _of_attention(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    *_, length, depth = shape
    return (1, 2, min(length, 256), depth), (1, 1, min(length, 131), depth)


# A rule that is broken -> the kind of parameters that may be less then.
LESS_IF = {"rows together": "raster", "clusters in the grid": "cluster", "tiles of a cluster": "cluster"}


def tried(of: ProblemModel, candidate: Candidate) -> list[dict[str, Any]]:
    """For each reduced problem: its shape, "right" or a sentence on what is wrong or keeps it from being tried, which
    values had to differ, and for the right ones the wavefronts of shared memory over the least."""
    assert isinstance(of.problem, SassProblem)
    return [_tried(of, candidate, problem) for problem in of.problem.reduced]


def _tried(of: ProblemModel, candidate: Candidate, problem: SassProblem) -> dict[str, Any]:
    row: dict[str, Any] = {"shape": list(problem.shape)}
    small = problem_model(problem, of.target)
    try:
        again, changed = same_values(of, candidate, small)
        row["changed"] = changed
        source = job(small, again).source
        assert isinstance(source, GpuSource)
        with simulated_data(problem.dag()) as data:
            counted = data.check(source, EXAMINING, counted=True)
    except CandidateError as error:
        return row | {"said": f"{error.fault}: {error}"[:300]}
    except UsageError as error:
        return row | {"said": str(error)[:300]}
    least = counted.get("least_wavefronts", 0)
    return row | {"said": "right", "wavefronts": counted["wavefronts"] / least if least else None}


def same_values(of: ProblemModel, candidate: Candidate, small: ProblemModel) -> tuple[Candidate, list[str]]:
    """The candidate in the space of a smaller problem. How many rows of blocks go together may be less, and clusters
    be single blocks where they do not divide the grid: blocks compute the same, in another order. Raises UsageError
    where the sketch is not offered there, or the values are not legal."""
    name, values = of.sketches[candidate.sketch].name, named(of, candidate)
    i = next((n for n, sketch in enumerate(small.sketches) if sketch.name == name), None)
    if i is None:
        raise UsageError(f"{name} is not offered for {small.problem.label}")
    both = (of.sketches[candidate.sketch], small.sketches[i])
    orders = {p.name: p.kind for sketch in both for p in sketch.params if p.kind in LESS_IF.values()}
    wanted = {p.name for p in small.sketches[i].params}
    if strange := (wanted ^ set(values)) - set(orders):
        raise UsageError(f"{name} has other parameters for {small.problem.label}: {', '.join(sorted(strange))}")
    chosen = {p: values.get(p, 1) for p in (x.name for x in small.sketches[i].params)}
    changed: list[str] = []
    while broken := small.model.broken_rules(i, np.array(list(chosen.values()), np.int64)):
        kinds = {kind for rule, kind in LESS_IF.items() if any(name.endswith(rule) for name in broken)}
        larger = [p for p in chosen if orders.get(p) in kinds and chosen[p] > 1]
        if not larger:
            raise UsageError(f"for {small.problem.label} the values break {', '.join(broken)}")
        chosen |= {p: chosen[p] // 2 for p in larger}
        changed = [f"{p}={chosen[p]}" for p in chosen if p in orders]
    return Candidate(i, tuple(chosen.values())), changed

"""Candidates spread over what the analytic latency says of them: what a model is judged by, and fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from autosched.codegen import build_source
from autosched.ir.closed_forms.program import Ints, Program
from autosched.ir.expr import Expr
from autosched.ir.stmt import Func
from autosched.lower import lower
from autosched.measure import Job
from autosched.target import Target
from autosched.te.dag import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from autosched.tuner.protocols import Candidate
from autosched.tuner.search import Search
from cost_model import CostModel
from cost_model.gpu.latency import KernelCost
from cost_model.model import GpuSketchModel
from search_spaces import space
from search_spaces.gpu import sketches

ROWS = 4096  # of a sketch, from which candidates are drawn
SLOWEST = 30.0  # times the fastest prediction: what is said to be slower is not worth a device's time
PARTS = ("registers", "occupancy", "per_multiprocessor", "path", "on_chip", "l2", "dram", "seconds")
PIPES = ("arithmetic", "issue", "memory", "port")


@dataclass(frozen=True)
class CalibrationProblem:
    """A workload with as many candidates as it is worth."""

    workload: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    candidates: int = 24

    @property
    def label(self) -> str:
        return f"{self.workload}:{'x'.join(map(str, self.shape))} {self.dtype}"

    def dag(self) -> ComputeDAG:
        return build(self.workload, self.shape, {}, None, self.dtype)[0]


@dataclass(frozen=True, eq=False)
class ProblemModel:
    """The sketches of a problem on a GPU, and what the cost model says of them."""

    problem: CalibrationProblem
    target: Target
    sketches: tuple[space.Sketch, ...]
    nests: tuple[Func, ...]
    model: CostModel = field(repr=False)

    def forms(self, i: int) -> GpuSketchModel:
        found = self.model.sketches[i]
        assert isinstance(found, GpuSketchModel)
        return found

    def rows_of(self, candidates: Sequence[Candidate], i: int) -> Ints:
        rows = [c.values for c in candidates if c.sketch == i]
        return np.array(rows, np.int64).reshape(len(rows), len(self.sketches[i].params))


def problem_model(problem: CalibrationProblem, target: Target) -> ProblemModel:
    """Everything about a problem that needs no device; about a second."""
    found = tuple(sketches(collapse(problem.dag()), target))
    nests = tuple(lower(sketch.state) for sketch in found)
    names = [tuple(p.name for p in sketch.params) for sketch in found]
    return ProblemModel(problem, target, found, nests, CostModel(nests, names, target, 1))


def drawn(of: ProblemModel, seed: int) -> list[Candidate]:
    """At most `candidates` of the problem: a third are what the search would measure first, its best pick in front;
    the others have ranks among random legal rows of all sketches that grow by equal factors."""
    n, rng = of.problem.candidates, np.random.default_rng(seed)
    picks = list(Search(space, of.sketches, of.model, seed).propose(0, max(1, n // 3), "draft"))
    which, rows, seconds = [], [], []
    for i, sketch in enumerate(of.sketches):
        found = of.model.legal_rows(i, space.enumerate_grid(sketch, ROWS, rng))
        which += [i] * len(found)
        rows += list(map(tuple, found.tolist()))
        seconds += of.model.analytic_latency(i, found).tolist()
    order = np.argsort(seconds, kind="stable")
    worth = order[: int(np.searchsorted(np.array(seconds)[order], SLOWEST * min(seconds, default=0.0), "right"))]
    ranks = np.geomspace(1, max(1, len(worth)), 4 * n).astype(int) - 1
    spread = [Candidate(which[worth[r]], rows[worth[r]]) for r in ranks if r < len(worth)]
    return _spread(dict.fromkeys(picks), dict.fromkeys(spread), n)


def _spread(first: dict[Candidate, None], others: dict[Candidate, None], n: int) -> list[Candidate]:
    """All of `first` and of `others`, which are in order, so many at equal distances that there are `n`."""
    rest = [c for c in others if c not in first]
    places = np.unique(np.linspace(0, len(rest) - 1, max(0, min(n - len(first), len(rest)))).round().astype(int))
    return [*first, *(rest[p] for p in places)]


def job(of: ProblemModel, candidate: Candidate) -> Job:
    """The candidate's source; its key is the sketch and the values. Raises AutoschedError."""
    values = named(of, candidate)
    words = " ".join(f"{name}={value}" for name, value in values.items())
    source = build_source(of.nests[candidate.sketch], values, of.target)
    return Job(f"{of.sketches[candidate.sketch].name} {words}", source)


def named(of: ProblemModel, candidate: Candidate) -> dict[str, int]:
    """The candidate's values by the names of their parameters."""
    return dict(zip((p.name for p in of.sketches[candidate.sketch].params), candidate.values, strict=True))


def parts(of: ProblemModel, candidate: Candidate) -> list[dict[str, float]]:
    """What the prediction consists of, for each kernel: fields of `KernelCost`, cycles of a block and seconds."""
    forms = of.forms(candidate.sketch)
    costs = forms.latency.kernels
    program = Program([e for cost in costs for e in _forms_of(cost)], forms.params)
    values = program(np.array([candidate.values], np.int64))[:, 0]
    names = (*PARTS, *PIPES)
    return [dict(zip(names, map(float, row), strict=True)) for row in values.reshape(len(costs), len(names))]


def _forms_of(cost: KernelCost) -> list[Expr]:
    return [*(getattr(cost, name) for name in PARTS), *cost.pipes]


def card_facts(target: Target) -> dict[str, Any]:
    """Of the device, as JSON has it."""
    assert target.gpu is not None
    return asdict(target.gpu)

"""The cost model of one tuning session, for populations of all sketches of a workload.

    legal, legal_rows, analytic_latency, features, score (i, matrix)      update(sketches, rows, seconds)

`i` is the number of a sketch, `matrix` int64 `[n, n_params]`. A sketch is analysed when it is first asked about.
Processors and GPUs have their own rules, latency and features; everything else is the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autosched.errors import ExpressionError
from autosched.ir.closed_forms.arithmetic import sum_of
from autosched.ir.closed_forms.program import ExpressionGraph, Floats, Ints, Program
from autosched.ir.expr import Expr
from autosched.ir.stmt import Func
from autosched.target import Target
from autosched.target.far_weights import NEAR
from cost_model.analysis.access import Geometry
from cost_model.analysis.statements import Analysis, analyse
from cost_model.cpu import features, legality
from cost_model.cpu.latency import AnalyticLatency, analytic_latency
from cost_model.cpu.machine import Machine, machine
from cost_model.experience import Experience
from cost_model.gpu import machine as gpu_machine
from cost_model.gpu.features import GPU_FEATURES, gpu_symbolic
from cost_model.gpu.latency import GpuAnalyticLatency, gpu_analytic_latency
from cost_model.gpu.legality import gpu_rules
from cost_model.independent_nests import IndependentGroup, best_rows, connected, independent_parts, legal_rows
from cost_model.ranker import Ranker, labels

ROWS_OF_BEST = 8  # put together for a sketch


@dataclass(frozen=True, eq=False)
class ClosedForms(ABC):
    """The closed forms of one sketch as programs over its parameters, each made when first used.

    `graph` is shared by the sketches of a workload: more than half of what one computes another does, too.
    """

    func: Func
    params: tuple[str, ...]
    graph: ExpressionGraph = field(default_factory=ExpressionGraph, kw_only=True)

    @property
    @abstractmethod
    def rules(self) -> tuple[legality.Rule, ...]: ...

    @property
    @abstractmethod
    def seconds(self) -> Expr:
        """The analytic latency."""

    @property
    def nests(self) -> Mapping[int, Expr]:
        """The share of the latency of each nest, if known."""
        return {}

    @property
    def own_forms(self) -> Mapping[int, Sequence[Expr]]:
        """The terms that depend on the parameters of one nest alone."""
        return {}

    @property
    @abstractmethod
    def table(self) -> tuple[features.Feature, ...]: ...

    @property
    @abstractmethod
    def symbolic_features(self) -> Sequence[Expr]:
        """One for each row of `table`."""

    @cached_property
    def legal_program(self) -> Program:
        return Program([rule.holds for rule in self.rules], self.params, self.graph)

    @cached_property
    def parts(self) -> tuple[IndependentGroup, ...]:
        return independent_parts(self.rules, self.params)

    @cached_property
    def nest_parts(self) -> tuple[IndependentGroup, ...]:
        """Nests that share parameters."""
        return tuple(part for part in connected(self.own_forms, self.params) if part.columns)

    @cached_property
    def latency_program(self) -> Program:
        """Return the latency and, if there are several `nest_parts`, the share of each."""
        parts = self.nest_parts if len(self.nest_parts) > 1 else ()
        shares = [sum_of(self.nests[n] for n in part.members) for part in parts]
        return Program([self.seconds, *shares], self.params, self.graph)

    @cached_property
    def feature_program(self) -> Program:
        return Program(self.symbolic_features, self.params, self.graph)


@dataclass(frozen=True, eq=False)
class SketchModel(ClosedForms):
    """A sketch on a processor."""

    machine: Machine

    @cached_property
    def analysis(self) -> Analysis:
        return analyse(self.func, self.machine.geometry)

    @cached_property
    def latency(self) -> AnalyticLatency:
        return analytic_latency(self.analysis, self.machine)

    @cached_property
    def rules(self) -> tuple[legality.Rule, ...]:
        return legality.rules(self.analysis, self.machine)

    @property
    def seconds(self) -> Expr:
        return self.latency.seconds

    @property
    def nests(self) -> Mapping[int, Expr]:
        return self.latency.nests

    @property
    def own_forms(self) -> Mapping[int, Sequence[Expr]]:
        statements = self.analysis.statements
        return {n: [x.bound for s in statements if s.nest == n for x in s.loops] for n in self.nests}

    @property
    def table(self) -> tuple[features.Feature, ...]:
        return features.FEATURES

    @property
    def symbolic_features(self) -> Sequence[Expr]:
        return features.symbolic(self.analysis, self.latency, self.machine)


@dataclass(frozen=True, eq=False)
class GpuSketchModel(ClosedForms):
    """A sketch on a GPU."""

    machine: gpu_machine.GpuMachine

    @cached_property
    def analysis(self) -> Analysis:
        return analyse(self.func, Geometry(gpu_machine.SECTOR, larger=1.0))

    @cached_property
    def latency(self) -> GpuAnalyticLatency:
        return gpu_analytic_latency(self.analysis, self.machine)

    @cached_property
    def rules(self) -> tuple[legality.Rule, ...]:
        return gpu_rules(self.analysis, self.machine)

    @property
    def seconds(self) -> Expr:
        return self.latency.seconds

    @property
    def nests(self) -> Mapping[int, Expr]:
        return {n: kernel.seconds for n, kernel in enumerate(self.latency.kernels)}

    @property
    def own_forms(self) -> Mapping[int, Sequence[Expr]]:
        return {n: [seconds] for n, seconds in self.nests.items()}

    @property
    def table(self) -> tuple[features.Feature, ...]:
        return GPU_FEATURES

    @property
    def symbolic_features(self) -> Sequence[Expr]:
        return gpu_symbolic(self.latency, self.machine)


def sketch_model(
    func: Func,
    params: Sequence[str],
    target: Target,
    threads: int,
    graph: ExpressionGraph | None = None,
    weights_in: str = NEAR,
) -> SketchModel | GpuSketchModel:
    """The closed forms of a sketch for its kind of target, with its weights in a place of `target.far_weights`."""
    graph = graph or ExpressionGraph()
    if target.gpu is not None:
        return GpuSketchModel(func, tuple(params), gpu_machine.gpu_machine(target), graph=graph)
    weights = frozenset(b.name for b in func.prepared) if weights_in else frozenset()
    seen = replace(machine(target, threads), weights=weights, weights_in=weights_in)
    return SketchModel(func, tuple(params), seen, graph=graph)


class CostModel:
    """Analytic from the first candidate, learned from the measured ones."""

    def __init__(
        self,
        funcs: Sequence[Func],
        param_names: Sequence[tuple[str, ...]],
        target: Target,
        threads: int,
        *,
        analytic: bool = True,
        experience: Experience | None = None,
        weights_in: str = NEAR,
    ) -> None:
        """`funcs[i]`: symbolic nest of sketch i; `param_names[i]`: its parameters, in the order of the columns.

        Without `analytic` the score is learned from measurements alone, not as a correction of the analytic latency.
        With the `experience` of other tasks on the target the ranker learns from theirs too, and they from this one's.
        `weights_in`: where prepared weights lie when a kernel is called (`target.far_weights`).
        """
        graph = ExpressionGraph()
        self.sketches = tuple(
            sketch_model(f, p, target, threads, graph, weights_in) for f, p in zip(funcs, param_names, strict=True)
        )
        self.ranker = Ranker()
        self._analytic = analytic
        self._experience = Experience() if experience is None else experience
        self._task = self._experience.new_task()

    @property
    def n_rows(self) -> int:
        """The number of measured candidates of this task."""
        return self._experience.count(self._task)

    def legal(self, i: int, matrix: Ints) -> npt.NDArray[np.bool_]:
        """bool `[n]`: whether every rule of `cost_model.cpu.legality` holds."""
        if not self.sketches[i].rules:
            return np.ones(matrix.shape[0], bool)
        return np.asarray(self.sketches[i].legal_program(matrix).all(axis=0))

    def legal_rows(self, i: int, matrix: Ints) -> Ints:
        """`[m, n_params]`: the legal rows, and for sketches of independent parts also rows put together from the legal
        parts of others; `matrix` are random rows, so that much of it is of use however many kernels there are."""
        sketch = self.sketches[i]
        if not sketch.rules:
            return matrix
        found = legal_rows(matrix, sketch.legal_program(matrix) != 0, sketch.parts)
        together = len(sketch.parts) > 1 and any(rule.whole for rule in sketch.rules)
        return found[self.legal(i, found)] if together else found

    def broken_rules(self, i: int, row: Ints) -> tuple[str, ...]:
        """The names of the rules that one candidate breaks, to tell a user why."""
        holds = self.sketches[i].legal_program(row[None, :])[:, 0]
        return tuple(rule.name for rule, ok in zip(self.sketches[i].rules, holds, strict=True) if not ok)

    def analytic_latency(self, i: int, matrix: Ints) -> Floats:
        """float64 `[n]`: analytic latency in seconds."""
        seconds: Floats = self.sketches[i].latency_program(matrix)[0]
        return seconds

    def n_parts(self, i: int) -> int:
        """The number of nests, or groups of nests, with parameters of their own; 1 where that is unknown."""
        return max(1, len(self.sketches[i].nest_parts))

    def analytic_latency_with_best(self, i: int, matrix: Ints) -> tuple[Floats, Ints]:
        """`analytic_latency`, and legal rows `[m, n_params]` put together from what is best for each nest in the rows
        of `matrix`; none for sketches of a single nest."""
        sketch = self.sketches[i]
        seconds, *cost = sketch.latency_program(matrix)
        if not cost or not len(matrix):
            return seconds, matrix[:0]
        made = best_rows(matrix, np.stack(cost), sketch.nest_parts, ROWS_OF_BEST)
        return seconds, made[self.legal(i, made)]

    def features(self, i: int, matrix: Ints) -> npt.NDArray[np.float32]:
        """float32 `[n, F]`, columns as in `features.FEATURES`, for a GPU `gpu_features.GPU_FEATURES`."""
        found = features.evaluate(self.sketches[i].feature_program, matrix, self.sketches[i].table)
        if not self._analytic:
            found[:, features.ANALYTIC_COLUMN] = 0.0
        return found

    def score(self, i: int, matrix: Ints) -> Floats:
        """float64 `[n]`, higher is better, comparable between sketches: log2 of predicted executions a second."""
        if self._analytic and not self.ranker.fitted:
            return -np.log2(self.analytic_latency(i, matrix))
        return self.ranker.predict(self.features(i, matrix)).astype(np.float64)

    def prepare(self) -> None:
        """Imports the learner and derives the features of all sketches, to have it done at an idle moment."""
        self.ranker.prepare()
        for sketch in self.sketches if self._has_features else ():
            _ = sketch.feature_program

    @property
    def _has_features(self) -> bool:
        """Whether the kernel computes anything: one whose outputs have no elements has no statement to describe."""
        return bool(self.sketches[0].analysis.statements)

    def update(self, sketches: Sequence[int], rows: Sequence[Ints], seconds: Sequence[float | None]) -> bool:
        """Adds measured candidates (None or inf: failed); refits when the data has grown enough; says if it did."""
        if not len(sketches) == len(rows) == len(seconds):
            raise ExpressionError(
                f"update got {len(sketches)} sketches, {len(rows)} rows and {len(seconds)} times; they must be as many"
            )
        if not self._has_features:
            return False
        found = [np.inf if s is None else float(s) for s in seconds]
        by_sketch: dict[int, list[int]] = {}
        for n, i in enumerate(sketches):
            by_sketch.setdefault(i, []).append(n)
        table: dict[int, npt.NDArray[np.float32]] = {}
        for i, places in by_sketch.items():
            table.update(zip(places, self.features(i, np.stack([rows[n] for n in places])), strict=True))
        self._experience.add(self._task, [table[n] for n in range(len(found))], found)
        if not self._experience.has_time(self._task) or not self.ranker.should_refit(self.n_rows):
            return False
        features, measured, tasks = self._experience.known_to(self._task)
        self.ranker.fit(features, labels(measured, tasks), tasks, self.n_rows)
        return True

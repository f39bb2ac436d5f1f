"""Candidates of the GPU search space as a search makes them: random rows that pass the cost model's predicates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from autosched.codegen import build_source
from autosched.codegen.c.source import GpuSource
from autosched.ir.stmt import Func
from autosched.lower import lower
from autosched.target import Target
from autosched.te.dag import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.model import CostModel
from search_spaces.gpu import RULES, SketchRule, sketches
from search_spaces.space import Population, Sketch, sample, unique
from tests.codegen.gpu import run

SAMPLED = 1000  # rows of a sketch from which the legal ones are taken


def conv(name: str, shape: tuple[int, ...], dtype: str = "bfloat16", **settings: str | int) -> ComputeDAG:
    """An operator of images, of small floats."""
    return build(name, shape, settings, dtype=dtype)[0]


@dataclass(frozen=True)
class Drawn:
    """A sketch, its symbolic nest, what judges it, some random distinct rows, and the legal ones that were made of
    them."""

    sketch: Sketch
    func: Func
    model: CostModel
    rows: Population
    legal: Population

    @property
    def broken(self) -> str:
        """The rules that the first row breaks."""
        return ", ".join(self.model.broken_rules(0, self.rows[0]))

    @property
    def best_s(self) -> float:
        """The least analytic latency of the legal rows."""
        return float(self.model.analytic_latency(0, self.legal).min()) if len(self.legal) else np.inf

    def candidates(self, n: int) -> Iterator[dict[str, int]]:
        """The values of up to `n` legal rows."""
        for row in self.legal[:n]:
            yield {p.name: int(v) for p, v in zip(self.sketch.params, row, strict=True)}


def draw(
    dag: ComputeDAG,
    target: Target,
    sampled: int = SAMPLED,
    rules: tuple[SketchRule, ...] = RULES,
    mark: str = "",
    wanted: Callable[[Sketch], bool] = lambda _: True,
) -> Iterator[Drawn]:
    """Every sketch of a collapsed graph that is `wanted` and has `mark` in its name. Making the others takes long."""
    for sketch in (s for s in sketches(dag, target, rules) if mark in s.name and wanted(s)):
        yield drawn_of(sketch, target, sampled)


def drawn_of(sketch: Sketch, target: Target, sampled: int = SAMPLED) -> Drawn:
    """Rows of a sketch, the same ones each time."""
    func = lower(sketch.state)
    model = CostModel([func], [tuple(p.name for p in sketch.params)], target, 1)
    rng = np.random.default_rng(0)
    rows = unique(sample(sketch, sampled, rng)) if sketch.params else np.zeros((1, 0), np.int64)
    return Drawn(sketch, func, model, rows, model.legal_rows(0, rows))


def check_candidates(
    dag: ComputeDAG,
    drawn: Iterable[Drawn],
    target: Target,
    runs: int = 1,
    look: Callable[[GpuSource], None] = lambda _: None,
) -> None:
    """Up to `runs` candidates of each sketch compute what `dag` says. `look`: at what else a source must have."""
    inputs = make_inputs(dag, 0, "normal")
    references = evaluate(dag, inputs)
    for one in drawn:
        assert len(one.legal), f"{one.sketch.name}: no row is legal; the first breaks {one.broken}"
        for values in one.candidates(runs):
            source = build_source(one.func, values, target)
            look(source)
            outputs = run(source, one.func, inputs)
            for (name, got), reference in zip(outputs.items(), references, strict=True):
                wrong = ~within(reference, got.reshape(reference.value.shape))
                assert not wrong.any(), (
                    f"{one.sketch.name} {values}: {wrong.sum()} of {wrong.size} of {name} are wrong\n{source.text}"
                )


def best_with_and_without(dag: ComputeDAG, target: Target, mark: str, sampled: int = 300) -> tuple[float, float]:
    """The least analytic latency of random rows: of sketches with `mark` in their names, and of the others."""
    found = {True: np.inf, False: np.inf}
    for one in draw(collapse(dag), target, sampled):
        is_marked = mark in one.sketch.name
        found[is_marked] = min(found[is_marked], one.best_s)
    return found[True], found[False]

"""Candidates of the GPU search space as a search makes them: random rows that pass the cost model's predicates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autosched.ir.stmt import Func
from autosched.lower import lower
from autosched.target import Target
from autosched.te.dag import ComputeDAG
from autosched.te.operators.registry import build
from cost_model.model import CostModel
from search_spaces.gpu import RULES, SketchRule, sketches
from search_spaces.space import Population, Sketch, sample, unique

SAMPLED = 1000  # rows of a sketch from which the legal ones are taken


def conv(name: str, shape: tuple[int, ...], dtype: str = "bfloat16", **settings: str | int) -> ComputeDAG:
    """An operator of images, of small floats."""
    return build(name, shape, settings, dtype=dtype)[0]


@dataclass(frozen=True)
class Drawn:
    """A sketch, its symbolic nest, some random distinct rows, and the legal ones that were made of them."""

    sketch: Sketch
    func: Func
    rows: Population
    legal: Population
    broken: tuple[str, ...]  # the rules that the first row breaks

    def candidates(self, n: int) -> Iterator[dict[str, int]]:
        """The values of up to `n` legal rows."""
        for row in self.legal[:n]:
            yield {p.name: int(v) for p, v in zip(self.sketch.params, row, strict=True)}


def draw(
    dag: ComputeDAG,
    target: Target,
    sampled: int = SAMPLED,
    seed: int = 0,
    rules: tuple[SketchRule, ...] = RULES,
    mark: str = "",
) -> Iterator[Drawn]:
    """Every sketch of a collapsed graph that has `mark` in its name."""
    for sketch in (s for s in sketches(dag, target, rules) if mark in s.name):
        func = lower(sketch.state)
        model = CostModel([func], [tuple(p.name for p in sketch.params)], target, 1)
        rng = np.random.default_rng(seed)
        rows = unique(sample(sketch, sampled, rng)) if sketch.params else np.zeros((1, 0), np.int64)
        yield Drawn(sketch, func, rows, model.legal_rows(0, rows), model.broken_rules(0, rows[0]))

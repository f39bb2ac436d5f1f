"""Rules of one's own go before the built-in ones; the README of the package has one that is run (`tests/documents`)."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from autosched import te
from autosched.codegen.llvm.kernel import emit
from autosched.errors import ScheduleError
from autosched.ir.instructions.dots import dots_of
from autosched.ir.visit import depth
from autosched.lower import concretise, lower
from autosched.schedule import Parallel, Stage
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.checks import MAX_DEPTH
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu import MOST_OF_SEVERAL, RULES, PartialSketch, SketchContext, sketches
from search_spaces.gpu import sketches as gpu_sketches
from search_spaces.partial_sketch import Alternative
from search_spaces.space import sample
from tests.codegen.running import check_candidate, check_outputs, run
from tests.helpers import exact
from tests.schedule.graphs import dense_relu, matmul

TARGET = parse_target("llvm -mcpu=haswell")


def test_alternatives_that_are_left_out_are_not_made():
    made: list[str] = []

    class Many:
        """Twelve alternatives for a stage, each a function."""

        def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
            return True

        def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
            return [partial(self.make, sketch, stage, n) for n in range(12)]

        def make(self, sketch: PartialSketch, stage: Stage, n: int) -> PartialSketch:
            made.append(stage.name)
            return sketch.finish(stage.name, note=str(n))

    x = te.placeholder((5, 7), name="X")
    for n in range(4):
        k = te.reduce_axis(7, name="k")
        x = te.compute((5, 7), lambda i, j, x=x, k=k: te.sum(x[i, k] * 2.0, axis=k), name=f"s{n}")
    found = sketches(ComputeDAG(x), TARGET, 1, rules=(Many(),))
    assert len({s.name for s in found}) == len(found) == MOST_OF_SEVERAL
    assert [made.count(f"s{n}") for n in (3, 2, 1, 0)] == [12, *[MOST_OF_SEVERAL] * 3]


def test_a_rule_that_never_applies_changes_nothing():
    class Never:
        def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
            return False

        def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
            raise AssertionError("not asked")

    dag = dense_relu(5, 13, 3)
    assert sketches(dag, TARGET, 2, rules=(Never(), *RULES)) == sketches(dag, TARGET, 2)


def test_a_rule_that_makes_an_illegal_step_is_told_so():
    class Broken:
        def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
            return True

        def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
            return [sketch.apply(Parallel(stage.name, ("k",)))]

    with pytest.raises(ScheduleError, match=r"parallel\(C\): parallel loops must be the outermost ones"):
        sketches(matmul(5, 13, 3), TARGET, 2, rules=(Broken(),))


def test_without_rules_a_graph_still_has_a_sketch():
    x = te.placeholder((5, 7), name="X")
    dag = ComputeDAG(te.compute((5, 7), lambda i, j: x[i, j] * 2.0, name="Y"))
    (sketch,) = sketches(dag, TARGET, 1, rules=())
    exact(dag, sketch.state, {p.name: p.domain[0] for p in sketch.params})


def test_chains_of_stages_are_inlined_in_pieces_that_passes_can_walk():
    """A stage that reads the one before at two places has two to the number of stages paths below it, and one that is
    inlined into hundreds of others nests as deep."""
    x = te.placeholder((5,), name="X")
    y = x
    for n in range(100):
        y = te.compute((5,), lambda i, y=y: 0.5 * y[i] * y[i] + 0.25 * y[i], name=f"s{n}")
    dag, here = ComputeDAG(y), parse_target("cpu")
    (sketch, *_) = sketches(dag, here, 1)
    bodies = [stage.op.body[0] for stage in sketch.state.stages]
    assert 1 < len(bodies) < 10
    assert all(depth(body) <= MAX_DEPTH for body in bodies)
    row = {p.name: p.domain[0] for p in sketch.params}
    data = make_inputs(dag, 0, "normal")
    check_outputs(dag, data, run(emit(*concretise(lower(sketch.state), row), here, 1), dag, data, here), sketch.name)


@pytest.mark.parametrize("weights", [(), ("B",)])
def test_bytes_that_are_only_widened_are_not_stored_wide(weights):
    """A dot product of bytes is one however its operands come to be of 32 bits, and loads widen them for a stencil."""
    inputs = {name: te.placeholder((64, 64), "int8", name=name) for name in "AB"}
    a, b = (
        te.compute((64, 64), lambda i, j, x=x: te.cast(x[i, j], "int32"), name=f"{x.name}.wide")
        for x in inputs.values()
    )
    k = te.reduce_axis(64, name="k")
    product = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    taps = te.compute((60, 60), lambda i, j: sum((a[i, j + n] for n in range(1, 5)), a[i, j]), name="D")
    dag = ComputeDAG([product, taps], weights=weights)
    stages = [s for sketch in sketches(dag, parse_target("llvm -mcpu=znver4"), 1) for s in sketch.state.stages]
    assert not {"A.wide", "B.wide"} & {s.name for s in stages}
    assert any(dots_of(s.op.body) for s in stages)


@pytest.mark.parametrize(("terms", "is_stored"), [(1, False), (4, True)])
def test_tables_of_numbers_that_take_long_to_compute_are_stored(terms, is_stored):
    """Roots of as many terms for each of 1000 numbers, of which one is looked up for every element."""
    x = te.placeholder((40, 500), "int32", "X")
    root = lambda v, n: te.sqrt(te.cast(v, "float32") * (n + 0.5) + 1.0)  # noqa: E731
    table = te.compute((1000,), lambda v: te.cast(sum(root(v, n) for n in range(terms)), "uint8"), name="T")
    y = te.compute((40, 500), lambda i, j: table[x[i, j] & 1023], name="Y")
    dag = collapse(ComputeDAG(y))
    for target in ("llvm -mcpu=haswell", "cpu"):
        for sketch in sketches(dag, parse_target(target), 2):
            assert any(s.name == "T" for s in sketch.state.stages) == is_stored
            (row,) = sample(sketch, 1, np.random.default_rng(0))
            values = {p.name: int(v) for p, v in zip(sketch.params, row, strict=True)}
            check_candidate(dag, sketch, values, make_inputs(dag, 0, "integers"))
    on_gpu = gpu_sketches(dag, parse_target("cuda -arch=sm_80"))
    assert not any(s.name == "T" for sketch in on_gpu for s in sketch.state.stages), "one kernel less"


@pytest.mark.parametrize(("terms", "is_offered"), [(3, True), (9, False)])
def test_a_cheap_stage_of_two_nests_may_be_computed_in_both(terms, is_offered):
    """A sum of products that an image of half the size and the result read."""
    h, w = 37, 59
    x = te.placeholder((terms, 2 * h, 2 * w), name="X")
    product = lambda i, j: sum(x[n, i, j] * (i + 2 * n) for n in range(terms))  # noqa: E731
    full = te.compute((2 * h, 2 * w), product, name="full")
    near = lambda i, j, p, q: full[2 * i + p, 2 * j + q]  # noqa: E731
    half = te.compute((h, w), lambda i, j: sum(near(i, j, p, q) for p in (0, 1) for q in (0, 1)), name="half")
    turned = te.compute((2 * h, 2 * w), lambda i, j: full[i, j] + half[h - 1 - i // 2, w - 1 - j // 2] * 0.5, name="Y")
    dag = collapse(ComputeDAG(turned))
    found = sketches(dag, parse_target("cpu"), 2)
    inlined = [s for s in found if "full@inline" in s.name]
    assert bool(inlined) == is_offered
    for sketch in inlined[:2]:
        (row,) = sample(sketch, 1, np.random.default_rng(0))
        values = {p.name: int(v) for p, v in zip(sketch.params, row, strict=True)}
        check_candidate(dag, sketch, values, make_inputs(dag, 0, "normal"))

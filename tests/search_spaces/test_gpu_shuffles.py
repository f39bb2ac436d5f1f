"""Sketches for CUDA share reductions by shuffles; as OpenCL C the very same nests run without them."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.ir.closed_forms.arithmetic import sum_of
from autosched.ir.closed_forms.program import Program
from autosched.ir.stmt import Barrier, Shuffle, walk
from autosched.lower import concretise, lower
from autosched.schedule import CrossThread
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.statements import analyse
from cost_model.gpu.kernels import kernels
from search_spaces.gpu import sketches
from search_spaces.space import Sketch
from tests.codegen.gpu import TARGETS, dialects
from tests.search_spaces.gpu_candidates import check_candidates, draw

CUDA, OPENCL = parse_target("cuda -arch=sm_80"), parse_target("opencl")


def crossings(sketch: Sketch) -> list[CrossThread]:
    return [step for step in sketch.state.steps if isinstance(step, CrossThread)]


@dialects
@pytest.mark.parametrize(
    ("name", "shape"),
    [("sfm", (5, 300)), ("nrm", (1, 33, 65)), ("layer_norm", (5, 100))],
)  # fmt: skip
def test_sketches_with_shuffles_compute_what_the_operator_says(dialect: str, name: str, shape: tuple[int, ...]) -> None:
    dag = build(name, shape)[0]
    found = list(draw(collapse(dag), CUDA, 200, wanted=lambda sketch: bool(crossings(sketch))))
    assert found
    assert {step.warp for drawn in found for step in crossings(drawn.sketch)} == {32}
    check_candidates(dag, found, TARGETS[dialect])


def test_opencl_has_no_words_for_shuffles() -> None:
    found = [step for s in sketches(collapse(build("sfm", (7, 300))[0]), OPENCL) for step in crossings(s)]
    assert found
    assert {step.warp for step in found} == {0}


def test_the_cost_model_counts_what_a_thread_comes_by() -> None:
    dag = collapse(build("nrm", (1, 256, 256))[0])
    for sketch in [s for s in sketches(dag, CUDA) if crossings(s)]:
        func, names = lower(sketch.state), [p.name for p in sketch.params]
        found = kernels(analyse(func))
        meetings = Program([sum_of(k.shuffles for k in found), sum_of(k.barriers for k in found)], names)
        for threads in (32, 256):
            values = {p.name: threads if p.kind == "thread" else p.domain[0] for p in sketch.params}
            body = concretise(func, values)[0].body
            counted = [sum(isinstance(s, kind) for s in walk(body)) for kind in (Shuffle, Barrier)]
            modelled = meetings(np.array([[values[n] for n in names]], np.int64))[:, 0]
            assert modelled.tolist() == counted
            assert counted[0] >= 5

"""Sketches for CUDA share reductions by shuffles; as OpenCL C the very same nests run without them."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.codegen import build_source
from autosched.ir.closed_forms.arithmetic import sum_of
from autosched.ir.closed_forms.program import Program
from autosched.ir.stmt import Barrier, Shuffle, walk
from autosched.lower import concretise, lower
from autosched.schedule import CrossThread
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.statements import analyse
from cost_model.gpu.kernels import kernels
from search_spaces.gpu import sketches
from search_spaces.space import Sketch
from tests.codegen.gpu import TARGETS, dialects, run
from tests.search_spaces.gpu_candidates import draw

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
    slim, inputs = collapse(dag), make_inputs(dag, 0, "normal")
    references = evaluate(dag, inputs)
    done = 0
    for drawn in draw(slim, CUDA, 200):
        found = crossings(drawn.sketch)
        assert {step.warp for step in found} <= {32}
        for values in drawn.candidates(1 if found else 0):
            done += 1
            results = run(build_source(drawn.func, values, TARGETS[dialect]), drawn.func, inputs)
            for tensor, reference in zip(slim.outputs, references, strict=True):
                got = results[tensor.name].reshape(reference.value.shape)
                assert within(reference, got).all(), (drawn.sketch.name, values)
    assert done


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

"""The step WriteOut, and where the CPU's space takes it: short windows of pipelines."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.schedule import Split, WriteOut, initial_state, replay, steps_to_json
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces import cpu
from tests.codegen.running import check_candidate
from tests.helpers import check_nest, exact, little_rows

HASWELL = parse_target("llvm -mcpu=haswell")


def clamped(i, n):
    return te.min(te.max(i, 0), n - 1)


def window(image, size, along_rows, name, reducer=te.sum):
    """The sums, or the like, of `size` neighbours, of clamped indices."""
    h, w = image.shape
    k = te.reduce_axis(size, name=f"k_{name}")
    at = (lambda i, j: image[clamped(i + k - 1, h), j]) if along_rows else lambda i, j: image[i, clamped(j + k - 1, w)]
    return te.compute((h, w), lambda i, j: reducer(at(i, j), axis=k), name=name)


def blurred(h, w, size=3, reducer=te.sum, dtype="float32"):
    image = te.placeholder((h, w), dtype, name="A")
    return ComputeDAG(window(window(image, size, False, "rows", reducer), size, True, "both", reducer))


@pytest.mark.parametrize("reducer", [te.sum, te.max, te.min, te.prod])
@pytest.mark.parametrize(("h", "w", "size"), [(7, 11, 3), (1, 5, 5), (5, 1, 1), (4, 9, 7)])
def test_what_is_written_out_is_the_reduction(h, w, size, reducer):
    dag = blurred(h, w, size, reducer, "int32")
    state = initial_state(dag).apply(WriteOut("rows"), WriteOut("both"))
    assert all(s.op.reducer is None for s in state.stages)
    check_nest(exact(dag, state), dag)
    assert replay(dag, steps_to_json(state, {})) == state


def test_several_values_are_written_out():
    x, k = te.placeholder((6, 5), "int32", name="X"), te.reduce_axis(5, name="k")
    both = te.reducer(lambda p, q: (p[0] + q[0], p[1] * q[1]), (0, 1))
    dag = ComputeDAG(list(te.compute((6,), lambda i: both((x[i, k], x[i, k] + 1), axis=k), name="S")))
    check_nest(exact(dag, initial_state(dag).apply(WriteOut("S"))), dag)


def test_combinations_that_double_are_refused():
    """The expression of an argmax of 20 terms has a million leaves."""
    x, k = te.placeholder((6, 20), "int32", name="X"), te.reduce_axis(20, name="k")
    dag = ComputeDAG(list(te.compute((6,), lambda i: te.argmax(x[i, k], axis=k), name="S")))
    with pytest.raises(ScheduleError, match="combined once"):
        initial_state(dag).apply(WriteOut("S"))


def test_refusals():
    state = initial_state(blurred(8, 9, 33))
    with pytest.raises(ScheduleError, match="at most 32 terms"):
        state.apply(WriteOut("rows"))
    with pytest.raises(ScheduleError, match="before any other change"):
        initial_state(blurred(8, 9)).apply(Split("rows", "i", (2,)), WriteOut("rows"))


def test_pipelines_of_windows_are_computed_in_tiles():
    dag = collapse(blurred(67, 131, 5))
    found = [s for s in cpu.sketches(dag, HASWELL, 2) if "taps" in s.name]
    assert any(s.state.stage("rows").at is not None for s in found)
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(0)
    for sketch in found:
        (row,) = little_rows(sketch, 1, rng, 128)
        check_candidate(dag, sketch, row, inputs)


def test_a_lone_window_and_products_stay_reductions():
    x, w = te.placeholder((64, 96), name="X"), te.placeholder((3,), name="W")
    lone = ComputeDAG(window(x, 3, True, "S"))
    k, q = te.reduce_axis(3, name="k"), te.reduce_axis(3, name="q")
    y = te.compute((64, 94), lambda i, j: te.sum(x[i, j + k] * w[k], axis=k), name="Y")
    weighted = ComputeDAG(te.compute((62, 94), lambda i, j: te.sum(y[i + q, j] * w[q], axis=q), name="Z"))
    for dag in (lone, weighted):
        assert not any("taps" in s.name for s in cpu.sketches(collapse(dag), HASWELL, 2))

"""The step Flatten, and where the CPU's space takes it: outputs whose last dimension is shorter than a vector."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.codegen.llvm.kernel import emit
from autosched.errors import ScheduleError
from autosched.lower import concretise, lower
from autosched.schedule import Flatten, Split, initial_state
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces import cpu
from search_spaces.space import Sketch
from tests.codegen.running import check_candidate
from tests.helpers import exact

TARGETS = [parse_target(f"llvm -mcpu={name}") for name in ("haswell", "znver4")]


def channels_last(n: int, dtype: str = "float32", rows: int = 3, columns: int = 21) -> ComputeDAG:
    A = te.placeholder((n, rows, columns), dtype, "A")
    return collapse(ComputeDAG(te.compute((rows, columns, n), lambda i, j, c: A[c, i, j], "T")))


def complex_products(n: int) -> ComputeDAG:
    A, B = te.placeholder((n, 2), name="A"), te.placeholder((n, 2), name="B")

    def product(i, c):
        real = A[i, 0] * B[i, 0] - A[i, 1] * B[i, 1]
        return te.select(te.equal(c, 0), real, A[i, 0] * B[i, 1] + A[i, 1] * B[i, 0])

    return collapse(ComputeDAG(te.compute((n, 2), product, "T")))


def scaled(n: int, dtype: str) -> ComputeDAG:
    A, S = te.placeholder((5, 7, n), dtype, "A"), te.placeholder((n,), dtype, "S")
    return collapse(ComputeDAG(te.compute((5, 7, n), lambda i, j, c: A[i, j, c] * S[c], "T")))


def flat(dag: ComputeDAG, target) -> list[Sketch]:
    return [s for s in cpu.sketches(dag, target, 2) if any(isinstance(x, Flatten) for x in s.state.steps)]


@pytest.mark.parametrize(
    "dag",
    [
        channels_last(3),
        channels_last(7, "uint8"),
        channels_last(2, "float64", 1, 5),
        channels_last(5, "bfloat16", 2, 1),
        complex_products(23),
        complex_products(24),
        scaled(3, "float32"),
        scaled(6, "int8"),
    ],
)
def test_flat_outputs_are_the_reference(dag: ComputeDAG) -> None:
    exact(dag, initial_state(dag).apply(Flatten("T")))
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(0)
    for near in TARGETS:
        (sketch,) = flat(dag, near)
        for _ in range(3):
            row = {p.name: int(rng.choice(p.domain)) for p in sketch.params}
            check_candidate(dag, sketch, row, inputs)


def test_vectors_are_whole_where_rows_are_short() -> None:
    """Three vectors are whole rows of channels: stored as they are, not three elements at a time by a mask."""
    dag = channels_last(3, rows=4, columns=64)
    haswell = TARGETS[0]
    (sketch,) = flat(dag, haswell)
    func, simplify = concretise(lower(sketch.state), {p.name: p.domain[0] for p in sketch.params})
    text = emit(func, simplify, haswell, 1).ir
    assert "store <8 x float>" in text
    assert "masked" not in text
    assert "gather" not in text


def test_whole_vectors_are_read_where_the_buffer_consists_of_them() -> None:
    """Eight lanes of the real parts are seven elements apart: what follows the last one exists, if not by itself."""
    for n, narrow in ((64, False), (63, True)):
        (sketch,) = flat(complex_products(n), TARGETS[0])
        func, simplify = concretise(lower(sketch.state), {p.name: p.domain[0] for p in sketch.params})
        text = emit(func, simplify, TARGETS[0], 1).ir
        assert ("load <4 x float>" in text) is narrow


def test_long_rows_and_those_that_too_many_vectors_hold_stay() -> None:
    haswell = TARGETS[0]
    assert not flat(channels_last(8), haswell)
    assert flat(channels_last(8, "uint8"), haswell)
    assert not flat(channels_last(17, "uint8"), haswell), "17 vectors are whole rows"


def test_refusals() -> None:
    A = te.placeholder((4, 3), name="A")
    k = te.reduce_axis(3, name="k")
    B = te.compute((4, 3), lambda i, j: A[i, j] + 1.0, "B")
    dag = ComputeDAG([te.compute((4,), lambda i: te.sum(B[i, k], axis=k), "S"), te.compute((4, 3), lambda *i: -A[i])])
    state = initial_state(dag)
    for name in ("B", "S"):
        with pytest.raises(ScheduleError, match="only an output of two axes or more, without a reduction or readers"):
            state.apply(Flatten(name))
    with pytest.raises(ScheduleError, match="before any other change of its loops"):
        state.apply(Split("compute", "i0", (2,)), Flatten("compute"))

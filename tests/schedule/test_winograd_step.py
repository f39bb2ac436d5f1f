"""The step Winograd: any shape, any layout, compiled too; refused where its error is not accepted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from autosched.errors import ScheduleError
from autosched.ir.interpreter.interpret import interpret
from autosched.lower import concretise, lower
from autosched.schedule import (
    Reorder,
    Split,
    State,
    Vectorize,
    Winograd,
    initial_state,
    largest_tile,
    replay,
    steps_to_json,
)
from autosched.te import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.winograd import TILES
from tests.codegen.running import build as compiled
from tests.codegen.running import run, targets
from tests.te.test_winograd import transposed_layout


def accepting(name: str, **settings: Any) -> ComputeDAG:
    return collapse(build(name, settings=settings)[0].with_winograd())


def scheduled(dag: ComputeDAG, m: int) -> State:
    (stage,) = [s.name for s in dag.stages if s.reducer is not None]
    return initial_state(dag).apply(Winograd(stage, m))


def check(dag: ComputeDAG, m: int, seed: int = 0) -> None:
    inputs, target = make_inputs(dag, seed, "normal"), targets()[0]
    (got,) = run(compiled(scheduled(dag, m), target, 1), dag, inputs, target)
    (reference,) = evaluate(dag, inputs, m)
    assert within(reference, got).all(), (dag, m)


@pytest.mark.parametrize("pad", [0, 1, 2])
def test_images_of_every_small_size(pad: int) -> None:
    """Tiles that stick out below and to the right, or do not; odd channels; one image and two; a third of the sizes each."""
    done = 0
    for height, width in itertools.product(range(2, 8), repeat=2):  # of the output: one is no axis
        image = (height + 2 - 2 * pad, width + 2 - 2 * pad)
        if min(image) < 1 or (height + width) % 3 != pad:
            continue
        sizes = {"N": 1 + done // 2 % 2, "H": image[0], "W": image[1], "CI": 2 + done % 3, "CO": 1 + done % 4}
        check(accepting("c2d", **sizes, k=3, stride=1, pad=pad), TILES[(done + height) % 2], done)
        done += 1
    assert done >= 8


@pytest.mark.parametrize("m", TILES)
@pytest.mark.parametrize(
    "dag",
    [
        accepting("conv2d", N=2, H=6, W=5, CI=3, CO=4, layout="NCHW"),
        accepting("conv2d", N=1, H=4, W=4, CI=3, CO=4, dtype="float64"),
        accepting("conv2d", N=1, H=4, W=5, CI=3, CO=4, dtype="float16"),
        accepting("conv2d", N=1, H=4, W=5, CI=3, CO=4, dtype="bfloat16", out_dtype="float32"),
        accepting("cbr", N=2, H=5, W=4, CI=3, CO=2, k=3, stride=1, pad=1),
        accepting("cap", N=1, H=4, W=3, CI=2, CO=3, k=3, stride=1, pad=1),
        collapse(ComputeDAG(transposed_layout(), winograd=True)),
    ],
    ids=["NCHW", "float64", "float16", "bfloat16", "epilogue", "capsule", "own"],
)
def test_layouts_types_and_epilogues(dag: ComputeDAG, m: int) -> None:
    check(dag, m)


@pytest.mark.parametrize("m", TILES)
def test_in_vectors_and_interpreted(m: int) -> None:
    dag = accepting("c2d", N=2, H=5, W=7, CI=5, CO=6, k=3, stride=1, pad=1)
    inputs = make_inputs(dag, 3, "normal")
    (reference,) = evaluate(dag, inputs, m)
    last = next(s for s in scheduled(dag, m).stages if s.name == "conv.product").op.axes[-1].name
    loops = ("a", "b", "p", "ci", f"{last}.0", f"{last}.1")
    steps = (Split("conv.product", last, (4,)), Reorder("conv.product", loops), Vectorize("conv.product", loops[-1]))
    func, _ = concretise(lower(scheduled(dag, m)), {})
    (got,) = interpret(func, inputs)
    assert within(reference, got).all()
    for target in targets():
        state = scheduled(dag, m).apply(*steps)
        (got,) = run(compiled(state, target, 1), dag, inputs, target)
        assert within(reference, got).all()


def test_a_stored_schedule_is_the_same_again() -> None:
    dag = accepting("c2d", N=1, H=6, W=6, CI=3, CO=4, k=3, stride=1, pad=1)
    state = scheduled(dag, 4).apply(Split("conv.tiles", "p", (2,)))
    text = steps_to_json(state, {})
    assert largest_tile(state.steps) == 4
    assert largest_tile(()) == 0
    assert lower(replay(dag, text)) == lower(state)


@pytest.mark.parametrize(
    ("dag", "steps", "step", "message"),
    [
        (collapse(build("conv2d")[0]), (), Winograd("conv", 4), "does not accept"),
        (accepting("conv2d"), (), Winograd("conv", 3), "2 or 4 outputs"),
        (accepting("conv2d"), (), Winograd("pad", 2), "no 3x3 convolution"),
        (accepting("conv2d", stride=2), (), Winograd("conv", 2), "no 3x3 convolution"),
        (accepting("conv2d"), (Split("conv", "co", (4,)),), Winograd("conv", 2), "before any other change"),
        (accepting("conv2d"), (Winograd("conv", 2),), Winograd("conv", 2), "no 3x3 convolution"),
    ],
)
def test_refusals(dag: ComputeDAG, steps: tuple[Any, ...], step: Winograd, message: str) -> None:
    state = initial_state(dag).apply(*steps)
    with pytest.raises(ScheduleError, match=message):
        state.apply(step)


def test_a_record_cannot_bring_it_into_a_workload_that_does_not_accept_it() -> None:
    dag = accepting("conv2d", H=6, W=6, CI=3, CO=4)
    text = steps_to_json(scheduled(dag, 2), {})
    plain = collapse(build("conv2d", settings={"H": 6, "W": 6, "CI": 3, "CO": 4})[0])
    with pytest.raises(ScheduleError, match="does not accept"):
        replay(plain, text)

"""The steps Average, Spread and Online: what they make of a weighted sum, and what they refuse."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.ir.expr import Binary, Load
from autosched.ir.interpreter.interpret import interpret
from autosched.lower import lower
from autosched.schedule import Average, Mma, Online, Spread, State, initial_state
from autosched.te.operators.normalise import softmax
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from tests.codegen.gpu import TARGETS
from tests.weighted_sums import Sizes, weighted

SM_80 = TARGETS["cuda"]


def steps_before(kind: type) -> tuple[State, object]:
    """A schedule in one kernel up to its first step of this kind, and that step."""
    dag = collapse(weighted(Sizes(40, 48, 32, 24)))
    [sketch] = [s for s in sketches(dag, SM_80) if s.name.endswith(":online-mma.float16")]
    at = next(n for n, x in enumerate(sketch.state.steps) if isinstance(x, kind))
    return initial_state(dag).apply(*sketch.state.steps[:at]), sketch.state.steps[at]


def test_the_division_comes_last() -> None:
    state = initial_state(collapse(weighted(Sizes(5, 6, 3, 4)))).apply(Average("Y"))
    names = [s.name for s in state.stages]
    assert names[-4:] == ["Y.weights", "Y.acc", "Y", "Z"]
    assert not {"E", "W", "X"} & set(names)
    value = state.stage("Y").op.body[0]
    assert isinstance(value, Binary)
    assert value.op == "div"
    assert [x.buffer for x in (value.a, value.b) if isinstance(x, Load)] == ["Y.acc", "all"]


def test_it_is_a_schedule_of_its_own() -> None:
    """Without any further step, on a processor: the same values."""
    dag = collapse(weighted(Sizes(5, 6, 3, 4)))
    inputs = make_inputs(dag, 0, "normal")
    (reference,) = evaluate(dag, inputs)
    (got,) = interpret(lower(initial_state(dag).apply(Average("Y"))), inputs)
    assert within(reference, got).all()


@pytest.mark.parametrize(
    ("dag", "stage", "message"),
    [
        (te.ComputeDAG(softmax(4, 5)), "total", "its weights are no exponentials"),
        (te.ComputeDAG(softmax(4, 5)), "softmax", "its weights are no exponentials"),
        (weighted(Sizes(5, 6, 3, 4)), "P", "its weights are no exponentials"),
    ],
)
def test_what_is_no_average(dag: te.ComputeDAG, stage: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        initial_state(collapse(dag)).apply(Average(stage))


def test_loops_that_cannot_be_spread() -> None:
    state, step = steps_before(Spread)
    assert isinstance(step, Spread)
    for other, message in (
        (Spread(step.stage, step.loop, "blockIdx.x"), "must be one of"),
        (Spread("Y.acc", "s.0", "threadIdx.x"), "compute it inside, with scope 'warp', first"),
        (Spread(step.stage, step.loop, "threadIdx.x"), "another number of threads"),
    ):
        with pytest.raises(ScheduleError, match=message):
            state.apply(other)


def test_what_cannot_run_along() -> None:
    state, step = steps_before(Online)
    assert step == Online("Y.acc", "Y.weights", "top", "all")
    for other, message in (
        (Online("Z", "Y.weights", "top", "all"), "in registers of a kernel first"),
        (Online("Y.acc", "P", "top", "all"), "compute P in loop"),
        (Online("Y.acc", "Y.weights", "all", "top"), "no maximum, or no sum"),
    ):
        with pytest.raises(ScheduleError, match=message):
            state.apply(other)
    early, _ = steps_before(Spread)
    with pytest.raises(ScheduleError, match="over all threads"):
        early.apply(step)


def test_the_text_names_every_step() -> None:
    state, step = steps_before(Online)
    done = state.apply(step)
    assert done.stage("top").running == done.stage("all").running == "Y.weights"


def test_only_products_read_what_a_warp_holds() -> None:
    early, step = steps_before(Spread)
    with pytest.raises(ScheduleError, match="is computed with scope 'warp'; spread it over threads"):
        lower(early)
    assert isinstance(step, Spread)
    late, _ = steps_before(Mma)
    with pytest.raises(ScheduleError, match="let products of matrices"):
        lower(late)

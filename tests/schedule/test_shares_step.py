"""The step DivideLast: what it makes of an average, and what it refuses."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.ir.expr import Binary, Load
from autosched.ir.interpreter.interpret import interpret
from autosched.lower import lower
from autosched.schedule import (
    ComputeAt,
    ComputeInline,
    DivideLast,
    Split,
    WithinReach,
    initial_state,
    replay,
    steps_to_json,
)
from autosched.te.operators.normalise import softmax
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from tests.weighted_sums import Sizes, weighted


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_division_comes_last(dtype: str) -> None:
    """Weights that are rounded keep a stage of their own; others are read as they are."""
    dag = collapse(weighted(Sizes(5, 6, 3, 4), dtype))
    state = initial_state(dag).apply(DivideLast("Y"))
    names = [s.name for s in state.stages]
    assert ("W" in names) == (dtype == "float16")
    assert names.index("Y.acc") == names.index("Y") - 1
    value = state.stage("Y").op.body[0]
    assert isinstance(value, Binary)
    assert value.op == "div"
    assert [x.buffer for x in (value.a, value.b) if isinstance(x, Load)] == ["Y.acc", "all"]
    inputs = make_inputs(dag, 0, "normal")
    (reference,) = evaluate(dag, inputs)
    (got,) = interpret(lower(state), inputs)
    assert within(reference, got).all()
    again = replay(dag, steps_to_json(state, {}))
    assert again.stages == state.stages


@pytest.mark.parametrize(
    ("dag", "stage", "message"),
    [
        (te.ComputeDAG(softmax(4, 5)), "total", "its weights are no exponentials"),
        (weighted(Sizes(5, 6, 3, 4), "float32"), "P", "its weights are no exponentials"),
    ],
)
def test_what_is_no_average(dag: te.ComputeDAG, stage: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        initial_state(collapse(dag)).apply(DivideLast(stage))


def test_it_comes_before_the_loops_change() -> None:
    state = initial_state(collapse(weighted(Sizes(5, 6, 3, 4), "float32")))
    for stage, axis in (("Y", "s"), ("W", "i0")):
        with pytest.raises(ScheduleError, match="before any other change"):
            state.apply(Split(stage, axis, (2,)), DivideLast("Y"))


def test_rows_end_at_the_diagonal() -> None:
    """Blocks of two rows, of five: what is computed of columns that come later is never read."""
    dag = collapse(weighted(Sizes(5, 6, 3, 4), "float32", "causal"))
    state = initial_state(dag).apply(DivideLast("Y"), ComputeInline("Y"), Split("Z", "i0", (2,)))
    state = state.apply(WithinReach("Y.acc", "Z", "i0.0"))
    guarded = {s.name for s in state.stages if s.op.guards}
    assert guarded == {"X", "top", "E", "all", "Y.acc"}
    for name in ("Y.acc", "all", "E", "top", "X"):
        state = state.apply(ComputeAt(name, "Z", "i0.0"))
    inputs = make_inputs(dag, 0, "normal")
    (reference,) = evaluate(dag, inputs)
    (got,) = interpret(lower(state), inputs)
    assert within(reference, got).all()
    assert replay(dag, steps_to_json(state, {})).stages == state.stages


@pytest.mark.parametrize(
    ("masked", "root", "loop", "message"),
    [
        ("", "Z", "i0.0", "no condition hides"),
        ("causal", "P", "i0", "has other rows"),
        ("causal", "Z", "i1", "not along i0 alone"),
    ],
)
def test_where_no_row_ends(masked: str, root: str, loop: str, message: str) -> None:
    state = initial_state(collapse(weighted(Sizes(5, 6, 3, 4), "float32", masked))).apply(DivideLast("Y"))
    state = state.apply(ComputeInline("Y"), Split("Z", "i0", (2,)))
    with pytest.raises(ScheduleError, match=message):
        state.apply(WithinReach("Y.acc", root, loop))

"""The step Partition: two nests write one result, each its own points; and what it refuses."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.ir.printer import func_text
from autosched.lower import concretise, lower
from autosched.schedule import CacheWrite, ComputeAt, Partition, Split, State, initial_state, replay, steps_to_json
from tests.helpers import exact
from tests.matrix_products import biased, product


def in_two(dag: te.ComputeDAG, axis: str, at: int | str) -> State:
    return initial_state(dag).apply(CacheWrite("C"), Partition("C", "C.acc", axis, at))


@pytest.mark.parametrize(("m", "n", "axis", "at"), [(7, 13, "j", 8), (7, 13, "i", 1), (2, 1, "i", 1), (5, 17, "j", 16)])
def test_each_part_has_loops_of_its_own(m: int, n: int, axis: str, at: int) -> None:
    dag = product(m, n, 5)
    exact(dag, in_two(dag, axis, at))
    state = in_two(dag, axis, at).apply(
        Split("C", "j", (4,)), Split("C.rest", "i", (3,)), ComputeAt("C.acc", "C", "i"),
        ComputeAt("C.acc.rest", "C.rest", "j"),
    )  # fmt: skip
    exact(dag, state)


def test_an_epilogue_is_computed_for_both() -> None:
    dag = biased(6, 11, 4)
    state = initial_state(dag).apply(Partition("D", "C", "j", 5))
    assert [s.name for s in state.stages] == ["C", "D", "C.rest", "D.rest"]
    assert [s.op.buffers for s in state.stages] == [("C",), ("D",), ("C.rest",), ("D",)]
    exact(dag, state)


def test_where_it_is_cut_may_be_open() -> None:
    dag = product(4, 9, 3)
    state = in_two(dag, "j", "at")
    text = steps_to_json(state, {"at": 6})
    assert text.endswith('["Partition","C","C.acc","j",6]]')
    for at in (1, 6, 8):
        again = replay(dag, steps_to_json(state, {"at": at}))
        assert func_text(concretise(lower(again), {})[0]) == func_text(concretise(lower(state), {"at": at})[0])


@pytest.mark.parametrize(
    ("axis", "at", "message"),
    [
        ("j", 9, "j has no points from there on"),
        ("j", 0, "is not an integer from 1"),
        ("k", 1, "stage C has no axis 'k'"),
    ],
)
def test_parts_have_points(axis: str, at: int, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        in_two(product(4, 9, 3), axis, at)


def test_what_is_refused() -> None:
    dag = biased(4, 9, 3)
    state = initial_state(dag)
    with pytest.raises(ScheduleError, match="C is no elementwise output, or it is read"):
        state.apply(Partition("C", "C", "j", 2))
    with pytest.raises(ScheduleError, match="D is not all that reads D"):
        state.apply(Partition("D", "D", "j", 2))
    with pytest.raises(ScheduleError, match="do it before any other change of its loops"):
        state.apply(Split("D", "j", (2,)), Partition("D", "C", "j", 2))
    with pytest.raises(ScheduleError, match="do it before any other change of its loops"):
        state.apply(Partition("D", "C", "j", 2), Partition("D", "C", "i", 2))

"""From when to when values are needed: aliases, results in place of inputs, what stays."""

from __future__ import annotations

import pytest

from autosched.graph.liveness import Step, live

SIZES = {"a": 256, "b": 256, "c": 256, "w": 64}


def spans(found):
    return {t.name: (t.first, t.last) for t in found.tenants}


def test_from_the_writer_to_the_last_reader():
    steps = [Step(("x",), ("a",)), Step(("a",), ("b", "w")), Step(("a", "b"), ("c",))]
    found = live(steps, SIZES)
    assert spans(found) == {"a": (0, 2), "b": (1, 2), "w": (1, 1), "c": (2, 2)}
    assert {t.name: t.beside for t in found.tenants} == {"a": (), "b": ("a",), "w": ("a",), "c": ("a", "b")}


def test_what_nothing_writes_is_there_from_the_start_and_what_is_kept_stays():
    found = live([Step(("x",), ("y",)), Step(("a",), ("b",)), Step(("b",), ("c",))], SIZES, kept=("b",))
    assert spans(found) == {"a": (0, 1), "b": (1, 3), "w": (0, 0), "c": (2, 2)}


def test_views_are_their_base():
    steps = [Step((), ("a",)), Step(("view",), ("b",)), Step(("b",), ("c",)), Step(("far",), ())]
    found = live(steps, SIZES, aliases={"view": "a", "far": "view", "outside": "x"})
    assert spans(found) == {"a": (0, 3), "b": (1, 2), "w": (0, 0), "c": (2, 2)}
    assert found.homes == {"a": "a", "b": "b", "c": "c", "w": "w", "view": "a", "far": "a"}
    assert found.offsets({"a": 0, "b": 256, "c": 512, "w": 768})["far"] == 0


def test_a_view_of_itself():
    with pytest.raises(ValueError, match="a view of itself"):
        live([], SIZES, aliases={"v": "u", "u": "v"})


def test_results_in_place():
    steps = [Step((), ("a",)), Step(("a",), ("b",), (("b", "a"),)), Step(("b",), ("c",), (("c", "b"),))]
    found = live(steps, SIZES)
    assert spans(found) == {"a": (0, 2), "w": (0, 0)}
    assert found.homes["c"] == "a"


@pytest.mark.parametrize(
    ("step", "after", "more"),
    [
        (Step(("a",), ("b",), (("b", "a"),)), ("a",), {}),  # read later
        (Step(("view",), ("b",), (("b", "view"),)), ("a",), {}),  # so is its base
        (Step(("a",), ("b",), (("b", "a"),)), (), {"kept": ("a",)}),
        (Step(("a",), ("b",), (("b", "a"),)), (), {"kept": ("view",)}),
        (Step(("a",), ("w",), (("w", "a"),)), (), {}),  # of another size
        (Step(("a", "view"), ("b",), (("b", "a"),)), (), {}),  # read under another name too
        (Step(("x",), ("b",), (("b", "x"),)), (), {}),  # not in the arena
    ],
)
def test_results_that_may_not_be_in_place(step, after, more):
    found = live([Step((), ("a",)), step, Step(after, ("c",))], SIZES, aliases={"view": "a"}, **more)
    assert found.homes["b"] == "b"
    assert found.homes["w"] == "w"


def test_one_result_in_place_of_one_input():
    found = live([Step((), ("a",)), Step(("a",), ("b", "c"), (("b", "a"), ("c", "a")))], SIZES)
    assert (found.homes["b"], found.homes["c"]) == ("a", "c")

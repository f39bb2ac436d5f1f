"""From when to when values are needed: aliases, results in place of inputs, what stays."""

from __future__ import annotations

import pytest

from autosched.graph.memory.liveness import KernelRun, analyse_liveness

SIZES = {"a": 256, "b": 256, "c": 256, "w": 64}


def spans(found):
    return {t.name: (t.first, t.last) for t in found.buffers}


def test_from_the_writer_to_the_last_reader():
    steps = [KernelRun(("x",), ("a",)), KernelRun(("a",), ("b", "w")), KernelRun(("a", "b"), ("c",))]
    found = analyse_liveness(steps, SIZES)
    assert spans(found) == {"a": (0, 2), "b": (1, 2), "w": (1, 1), "c": (2, 2)}
    assert {t.name: t.read_with for t in found.buffers} == {"a": (), "b": ("a",), "w": ("a",), "c": ("a", "b")}


def test_what_nothing_writes_is_there_from_the_start_and_what_is_kept_stays():
    found = analyse_liveness(
        [KernelRun(("x",), ("y",)), KernelRun(("a",), ("b",)), KernelRun(("b",), ("c",))], SIZES, kept=("b",)
    )
    assert spans(found) == {"a": (0, 1), "b": (1, 3), "w": (0, 0), "c": (2, 2)}


def test_views_are_their_base():
    steps = [KernelRun((), ("a",)), KernelRun(("view",), ("b",)), KernelRun(("b",), ("c",)), KernelRun(("far",), ())]
    found = analyse_liveness(steps, SIZES, aliases={"view": "a", "far": "view", "outside": "x"})
    assert spans(found) == {"a": (0, 3), "b": (1, 2), "w": (0, 0), "c": (2, 2)}
    assert found.buffer_of == {"a": "a", "b": "b", "c": "c", "w": "w", "view": "a", "far": "a"}
    assert found.offsets({"a": 0, "b": 256, "c": 512, "w": 768})["far"] == 0


def test_a_view_of_itself():
    with pytest.raises(ValueError, match="a view of itself"):
        analyse_liveness([], SIZES, aliases={"v": "u", "u": "v"})


def test_results_in_place():
    steps = [KernelRun((), ("a",)), KernelRun(("a",), ("b",), (("b", "a"),)), KernelRun(("b",), ("c",), (("c", "b"),))]
    found = analyse_liveness(steps, SIZES)
    assert spans(found) == {"a": (0, 2), "w": (0, 0)}
    assert found.buffer_of["c"] == "a"


@pytest.mark.parametrize(
    ("step", "after", "more"),
    [
        (KernelRun(("a",), ("b",), (("b", "a"),)), ("a",), {}),  # read later
        (KernelRun(("view",), ("b",), (("b", "view"),)), ("a",), {}),  # so is its base
        (KernelRun(("a",), ("b",), (("b", "a"),)), (), {"kept": ("a",)}),
        (KernelRun(("a",), ("b",), (("b", "a"),)), (), {"kept": ("view",)}),
        (KernelRun(("a",), ("w",), (("w", "a"),)), (), {}),  # of another size
        (KernelRun(("a", "view"), ("b",), (("b", "a"),)), (), {}),  # read under another name too
        (KernelRun(("x",), ("b",), (("b", "x"),)), (), {}),  # not in the arena
    ],
)
def test_results_that_may_not_be_in_place(step, after, more):
    found = analyse_liveness(
        [KernelRun((), ("a",)), step, KernelRun(after, ("c",))], SIZES, aliases={"view": "a"}, **more
    )
    assert found.buffer_of["b"] == "b"
    assert found.buffer_of["w"] == "w"


def test_one_result_in_place_of_one_input():
    found = analyse_liveness([KernelRun((), ("a",)), KernelRun(("a",), ("b", "c"), (("b", "a"), ("c", "a")))], SIZES)
    assert (found.buffer_of["b"], found.buffer_of["c"]) == ("a", "c")

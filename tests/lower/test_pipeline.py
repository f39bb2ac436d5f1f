"""The list of passes: what runs in which order, what is seen of it, and that a nest is valid after each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Func, Store, walk
from autosched.ir.verify import IRError
from autosched.lower import concretise, lower, pipeline
from autosched.lower.pipeline import PASSES, PassContext
from autosched.passes import Pass
from autosched.schedule import Unroll, initial_state
from tests.replay.cases import Case, read
from tests.schedule.graphs import matmul

NEST = lower(initial_state(matmul(4, 16, 5)).apply(Unroll("C", "k")))


@pytest.mark.parametrize("case", read()[1::3], ids=lambda case: case.name)
def test_nests_are_valid_after_each_pass(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSCHED_DEBUG", "2")
    case.text()


def test_a_pass_that_breaks_the_nest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(body, context):
        store = next(s for s in walk(body) if isinstance(s, Store))
        return replace(store, buffers=("nowhere",))

    shorter = replace(pipeline.PIPELINE, passes=(*PASSES[:3], Pass("broken", broken, "")))
    monkeypatch.setattr(pipeline, "PIPELINE", shorter)
    concretise(NEST, {})  # nobody looks
    monkeypatch.setenv("AUTOSCHED_DEBUG", "2")
    with pytest.raises(IRError, match="nowhere"):
        concretise(NEST, {})


def for_processors() -> list[Pass]:
    context = PassContext(NEST, Simplifier())
    return [p for p in PASSES if p.when is None or p.when(context)]


def test_a_watcher_sees_the_passes_in_their_order() -> None:
    seen: list[tuple[str, bool]] = []

    def watch(name: str, func: Func, changed: bool, seconds: float) -> None:
        assert seconds >= 0
        assert func.name == NEST.name
        seen.append((name, changed))

    concretise(NEST, {}, watch)
    assert [name for name, _ in seen] == ["instantiate", *(p.name for p in for_processors())]
    assert ("check_limits", True) not in seen


def test_levels_of_debugging_say_more_and_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for level in range(5):
        monkeypatch.setenv("AUTOSCHED_DEBUG", str(level))
        concretise(NEST, {})
        said.append(capsys.readouterr().err)
    assert said[:3] == ["", "", ""]
    assert said[3].count(" ms\n") == len(for_processors()) + 1
    assert "for C.i in 0..4" in said[4]
    assert "for C.i in 0..4" not in said[3]

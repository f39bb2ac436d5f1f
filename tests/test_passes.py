"""Pass lists: what the runner does, that one page shows all four lists in order, and what `show` prints of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import autosched
from autosched.graph import passes as graph_passes
from autosched.lower import pipeline as lower_passes
from autosched.passes import Pass, PassPipeline, of_function, report
from autosched.planning import device_passes
from autosched.te.rewrites import collapse as te_passes
from tests.graph.drafts import Draft

PAGE = Path(__file__).resolve().parents[1] / "autosched" / "README.md"
LISTS = {
    "te": te_passes.PASSES,
    "graph": graph_passes.PASSES,
    "device": device_passes.PASSES,
    "lower": (*lower_passes.PASSES, *lower_passes.PACKING_PASSES),
}


def halve(value: int) -> int:
    return value // 2


def test_passes_run_in_order_where_their_context_is() -> None:
    passes = (
        Pass("add", lambda value, context: value + context, "", lambda context: context > 0),
        of_function(halve, ""),
        Pass("nothing", lambda value, context: value, ""),
    )
    pipeline = PassPipeline("test", passes, str, str, lambda value: None)
    seen: list[str] = []
    assert pipeline.run(10, 4, report(seen, str)) == 7
    assert [re.sub(r", [\d.]+ ms", "", line) for line in seen] == ["== add\n14", "== halve\n7", "== nothing: no change"]
    assert pipeline.run(10, 0) == 5


def test_what_is_verified_is_what_watchers_see(monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(value: str) -> None:
        assert value == "<5>"
        raise ValueError("not well-formed")

    pipeline = PassPipeline("test", (of_function(halve, ""),), str, str, verify)
    assert pipeline.run(10, None) == 5
    monkeypatch.setenv("AUTOSCHED_DEBUG", "2")
    with pytest.raises(ValueError, match="not well-formed"):
        pipeline.run(10, None, shown=lambda value: f"<{value}>")


@pytest.mark.parametrize("name", LISTS)
def test_one_page_has_the_passes_in_their_order(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(rf"^\| {name} \| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(step.name, step.why) for step in LISTS[name]]


def test_a_network_is_shown_after_each_pass() -> None:
    draft = Draft()
    x = draft.input(2, 3)
    text = autosched.show(draft.graph(draft.relu(draft.identity(x)), x), as_="passes", target="cpu", threads=1)
    names = re.findall(r"^== (\w+), ", text, re.MULTILINE)
    on_processors = [step.name for step in LISTS["device"] if step.when is not device_passes._is_gpu]
    assert names == [*(step.name for step in LISTS["graph"]), *on_processors]
    assert "== remove_identities, " in text
    assert re.search(r"== with_own_outputs, [\d.]+ ms\n", text), "the input that is an output is copied"
    assert "identity" in text.rpartition("== with_own_outputs")[2]

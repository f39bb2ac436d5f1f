"""The plan of the arena in the disk cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosched.graph.memory.liveness import LiveBuffer
from autosched.planning import cached_arena
from autosched.planning.cached_arena import find_arena

BUFFERS = [LiveBuffer("a", 640, 0, 1), LiveBuffer("b", 64, 1, 2, ("a",)), LiveBuffer("c", 320, 2, 3)]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_plan_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = find_arena(BUFFERS)
    planned = []
    monkeypatch.setattr(cached_arena, "plan_arena", lambda buffers: planned.append(buffers) or plan)
    assert find_arena(BUFFERS) == plan
    assert not planned
    find_arena(BUFFERS[:2])
    assert len(planned) == 1


def test_a_damaged_plan_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = find_arena(BUFFERS)
    for damaged in (
        {"offsets": [["a", 0]], "nbytes": 64, "bound_bytes": 64},
        {"offsets": [["a", 0], ["b", "x"], ["c", 0]], "nbytes": 64, "bound_bytes": 64},
        {"nbytes": 64},
    ):
        monkeypatch.setattr(cached_arena, "read", lambda key, damaged=damaged: (damaged, b""))
        assert find_arena(BUFFERS) == plan

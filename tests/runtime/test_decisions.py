"""Decisions in the disk cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosched.graph.memory import arena
from autosched.graph.memory.arena import find_arena
from autosched.graph.memory.liveness import LiveBuffer
from autosched.runtime.decisions import decided_once

BUFFERS = [LiveBuffer("a", 640, 0, 1), LiveBuffer("b", 64, 1, 2, ("a",)), LiveBuffer("c", 320, 2, 3)]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_an_arena_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = find_arena(BUFFERS)
    planned = []
    monkeypatch.setattr(arena, "plan_arena", lambda buffers: planned.append(buffers) or plan)
    assert find_arena(BUFFERS) == plan
    assert not planned
    find_arena(BUFFERS[:2])
    assert len(planned) == 1


def test_other_data_and_other_decisions_are_other_entries() -> None:
    decide = iter(range(9)).__next__
    assert [decided_once(what, [on], decide) for what in "ab" for on in (1, 1.0, True, "1")] == list(range(8))
    assert [decided_once(what, [on], decide) for what in "ab" for on in (1, 1.0, True, "1")] == list(range(8))


def test_a_damaged_entry_is_decided_again(tmp_path: Path) -> None:
    assert decided_once("a", [1], lambda: (1, 2)) == [1, 2]
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    file.write_bytes(file.read_bytes()[:-3] + b"9]}")
    assert decided_once("a", [1], lambda: [3]) == [3]

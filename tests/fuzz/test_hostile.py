"""The quick part of `python -m tests.fuzz --hostile N`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from autosched.codegen import build_source
from autosched.lower import lower
from autosched.target import parse_target
from tests.fuzz import hostile
from tests.fuzz.hostile import outcomes
from tests.schedule.random_steps import random_schedule


def test_they_are_refused_or_right() -> None:
    found = list(outcomes(0, 60))
    assert not [outcome for outcome in found if outcome.is_fault]
    assert {outcome.what for outcome in found} == {"refused", "right"}
    assert [outcome.seed for outcome in found] == list(range(60))


def test_a_crash_costs_its_own_seed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(seed: int) -> Any:
        if seed == 1:
            os._exit(3)
        return "right"

    monkeypatch.setattr(hostile, "_what_comes_of", work)
    assert [(o.seed, o.is_fault) for o in outcomes(0, 3)] == [(0, False), (1, True), (2, False)]


def test_one_element_in_a_register_is_written_out() -> None:
    """It has no row, and no lanes behind the last one of it."""
    _, state = random_schedule(2688, registers=True)
    assert "define i32" in build_source(lower(state), {}, parse_target("llvm -mcpu=haswell"), 1).ir

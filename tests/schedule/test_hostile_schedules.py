"""Random schedules with huge numbers: each is refused with a ScheduleError, or small enough to be written out."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autosched.codegen import build_source
from autosched.errors import ScheduleError
from autosched.lower import lower
from autosched.schedule import Pack, Rfactor, Split, Step, initial_state
from autosched.target import parse_target
from tests.schedule.random_steps import random_schedule

HUGE = (1 << 20, 1 << 31, 1 << 40, 1 << 63)
TARGET = parse_target("llvm -mcpu=haswell")
LONGEST = 16 << 20  # of a text


def hostile(rng: random.Random, step: Step) -> Step:
    match step:
        case Split():
            return replace(step, factors=tuple(rng.choice((f, *HUGE)) for f in step.factors) * rng.choice((1, 1, 4)))
        case Pack():
            return replace(step, tiles=tuple((d, rng.choice((f, *HUGE))) for d, f in step.tiles))
        case Rfactor():
            return replace(step, factor=rng.choice((step.factor, *HUGE)))
    return step


@pytest.mark.parametrize("batch", range(3))
def test_they_are_refused_or_written_out(batch: int) -> None:
    built = refused = 0
    for seed in range(batch * 12, (batch + 1) * 12):
        rng = random.Random(seed)
        dag, state = random_schedule(seed, registers=True)
        try:
            changed = initial_state(dag).apply(*(hostile(rng, step) for step in state.steps))
            source = build_source(lower(changed), {}, TARGET, 2)
        except ScheduleError:
            refused += 1
            continue
        built += 1
        assert len(source.ir) < LONGEST, seed
    assert built
    assert refused


def test_one_element_in_a_register_is_written_out() -> None:
    """It has no row, and no lanes behind the last one of it."""
    _, state = random_schedule(2688, registers=True)
    assert "define i32" in build_source(lower(state), {}, TARGET, 1).ir

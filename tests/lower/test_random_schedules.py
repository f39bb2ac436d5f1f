"""Whatever steps a schedule accepts, its nest is well-formed, computes the reference, and replays to itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosched.ir.printer import func_text
from autosched.ir.verify import verify
from autosched.lower import concretise, lower
from autosched.schedule import Pack, Partition, Rfactor, Split, State, Step, initial_state, replay, steps_to_json
from tests.helpers import check_nest
from tests.schedule.random_steps import random_schedule

BATCH = 40


@pytest.mark.parametrize("batch", range(8))
def test_random_schedules_compute_the_reference(batch):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        dag, state = random_schedule(seed)
        func = lower(state)
        verify(func)
        check_nest(concretise(func, {})[0], dag)
        again = replay(dag, steps_to_json(state, {}))
        assert again.steps == state.steps, seed
        assert func_text(lower(again)) == func_text(func), seed


def test_results_in_two_parts() -> None:
    found = [s for seed in range(BATCH) if is_parted((s := random_schedule(5000 + seed, parts=True))[1])]
    assert len(found) > BATCH // 20
    for dag, state in found:
        func = lower(state)
        verify(func)
        check_nest(concretise(func, {})[0], dag)


def is_parted(state: State) -> bool:
    return any(isinstance(step, Partition) for step in state.steps)


def with_parameters(steps: tuple[Step, ...]) -> tuple[list[Step], dict[str, int]]:
    """Every factor replaced by a parameter, and the parameters' values."""
    values: dict[str, int] = {}

    def name(value: int | str) -> str:
        values[f"p{len(values)}"] = int(value)
        return f"p{len(values) - 1}"

    changed: list[Step] = []
    for step in steps:
        match step:
            case Split():
                changed.append(replace(step, factors=tuple(map(name, step.factors))))
            case Rfactor():
                changed.append(replace(step, factor=name(step.factor)))
            case Pack():
                changed.append(replace(step, tiles=tuple((d, name(f)) for d, f in step.tiles)))
            case _:
                changed.append(step)
    return changed, values


@pytest.mark.parametrize("batch", range(4))
def test_parameters_with_values_are_the_same_as_integers(batch):
    for seed in range(1000 + batch * BATCH, 1000 + (batch + 1) * BATCH):
        dag, state = random_schedule(seed)
        steps, values = with_parameters(state.steps)
        symbolic: State = initial_state(dag).apply(*steps)
        func = lower(symbolic)
        verify(func)
        concrete = concretise(func, values)[0]
        verify(concrete, concrete=True)
        assert func_text(concrete) == func_text(concretise(lower(state), {})[0]), seed
        assert steps_to_json(symbolic, values) == steps_to_json(state, {}), seed

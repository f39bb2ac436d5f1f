"""Records of GPU schedules with a value exchanged, or a step dropped, moved, repeated or added: what replays must compute
what the operator says, all else is refused with a ScheduleError."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from autosched.errors import ScheduleError
from autosched.ir.verify import verify
from autosched.lower import concretise, lower
from autosched.schedule import replay, steps_to_json
from tests.gpu_schedules import cases
from tests.helpers import check_nest

CASES = {name: case for name, case in cases().items() if "whole tiles" not in name}  # those are long to interpret
DAMAGES = 12
ADDED: list[list[Any]] = [
    ["Atomic", "C"], ["Atomic", "R"], ["LaunchBounds", "C", 2], ["LaunchBounds", "R", 2], ["CrossThread", "R", "k", 32],
    ["AcrossLanes", "R", "k.1"], ["ComputeAt", "R", "Y", "j.1", "register"], ["Split", "R", "k", [4, 2]],
    ["Team", "R", 8], ["CacheWrite", "C"], ["Rfactor", "R", "k", 3, "outer"], ["Bind", "C", "i", "threadIdx.x"],
]  # fmt: skip


def damaged(rows: list[Any], rng: random.Random) -> list[Any]:
    result = json.loads(json.dumps(rows))
    at, to = rng.randrange(len(result)), rng.randrange(len(result))
    match rng.randrange(5):
        case 0:
            result[at][rng.randrange(len(result[at]))] = rng.choice([0, 1, 2, 7, 32, "C", "R", "i", "k", [1], ["i"]])
        case 1:
            del result[at]
        case 2:
            result.insert(to, result[at])
        case 3:
            result[at], result[to] = result[to], result[at]
        case 4:
            result.insert(rng.randrange(len(result) + 1), rng.choice(ADDED))
    return result  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_it_computes_or_is_refused(name: str) -> None:
    dag, state, values = CASES[name]
    rng = random.Random(name)
    rows = json.loads(steps_to_json(state, values))
    for _ in range(DAMAGES):
        try:
            changed = replay(dag, json.dumps(damaged(rows, rng)))
        except ScheduleError:
            continue
        func = lower(changed)
        verify(func)
        check_nest(concretise(func, {})[0], dag)

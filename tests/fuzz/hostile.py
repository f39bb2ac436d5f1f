"""Schedules of strangers: random steps with huge numbers, as they would come from a database, run as users' processes
run them, but between pages that fault.

Each is refused with a ScheduleError, or its kernel is right. Anything else is a fault: another error, a crash, a hang.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from autosched.codegen import build_source
from autosched.errors import ScheduleError
from autosched.lower import lower
from autosched.schedule import Bind, Pack, Rfactor, Split, Step, Team, check_target, replay
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from tests.codegen.elsewhere import HOST
from tests.codegen.running import check_outputs, run
from tests.fuzz.isolate import Send, conversation
from tests.schedule.random_steps import random_schedule

HUGE = (1 << 20, 1 << 31, 1 << 40, 1 << 63)
CHANGED = 0.15  # of the steps that have numbers: most schedules are refused for the first of them
FOREIGN = 0.02  # of the schedules get a step of another kind of device
DEADLINE_S = 120.0  # without a word: a kernel of the most code that is allowed takes LLVM 13 s


@dataclass(frozen=True)
class Outcome:
    """What came of the schedule of a seed: "refused", "right", or words that say what is wrong."""

    seed: int
    what: str

    @property
    def is_fault(self) -> bool:
        return self.what not in ("refused", "right")


def hostile_steps(seed: int) -> tuple[ComputeDAG, str]:
    """A graph, and steps for it as JSON that need not fit it."""
    rng = random.Random(seed)
    dag, state = random_schedule(seed, registers=True)
    steps = [_hostile(rng, step) if rng.random() < CHANGED else step for step in state.steps]
    if rng.random() < FOREIGN:
        stage = rng.choice(state.stages)
        steps.append(rng.choice((Team(stage.name, rng.choice(HUGE)), Bind(stage.name, "i", "threadIdx.x"))))
    rows = [[type(s).__name__, *(getattr(s, f.name) for f in fields(s))] for s in steps]  # type: ignore[arg-type]
    return dag, json.dumps(rows)


def _hostile(rng: random.Random, step: Step) -> Step:
    def number(old: Any) -> Any:
        return rng.choice((old, *HUGE))

    match step:
        case Split(factors=factors):
            return replace(step, factors=tuple(map(number, factors)) * rng.choice((1, 1, 4)))
        case Pack(tiles=tiles):
            return replace(step, tiles=tuple((dim, number(factor)) for dim, factor in tiles))
        case Rfactor(factor=factor):
            return replace(step, factor=number(factor))
    return step


def outcomes(first: int, n: int) -> Iterator[Outcome]:
    """Of the seeds from `first` on, in child processes; one that crashes or hangs costs its own seed only."""
    seed, end = first, first + n
    while seed < end:
        last = seed - 1
        for message in conversation(lambda send, start=seed: _work(send, start, end), DEADLINE_S):  # type: ignore[misc]
            if "what" in message:
                last = message["seed"]
                yield Outcome(last, message["what"])
            elif message["ended"] is not None:
                yield Outcome(last + 1, message["ended"])
                last += 1
        seed = last + 1


def _work(send: Send, first: int, end: int) -> None:
    for seed in range(first, end):
        send({"seed": seed, "what": _what_comes_of(seed)})


def _what_comes_of(seed: int) -> str:
    dag, steps = hostile_steps(seed)
    try:
        state = replay(dag, steps)
        check_target(state, HOST.kind)
        source = build_source(lower(state), {}, HOST, 2)
    except ScheduleError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    inputs = make_inputs(dag, seed)
    try:
        check_outputs(dag, inputs, run(source, dag, inputs, HOST), f"seed {seed}")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "right"

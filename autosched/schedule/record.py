"""Steps as data: JSON out and in. A record holds steps with integers in place of parameters, never code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from autosched.errors import ScheduleError
from autosched.schedule.loop_steps import Fuse, Parallel, Prefetch, Reorder, Split, Unroll, Vectorize
from autosched.schedule.stage_steps import CacheRead, CacheWrite, ComputeAt, ComputeInline, Pack, Rfactor
from autosched.schedule.state import State, Step, initial_state
from autosched.te.dag import ComputeDAG

STEPS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Split, Reorder, Fuse, Parallel, Vectorize, Unroll, Prefetch,
        ComputeAt, ComputeInline, CacheRead, CacheWrite, Pack, Rfactor,
    )
}  # fmt: skip

# Fields that hold a factor: an integer or a parameter's name.
_FACTORS = {("Split", "factors"), ("Pack", "tiles"), ("Rfactor", "factor")}


def _plain(value: object, values: Mapping[str, int], numeric: bool) -> object:
    if isinstance(value, tuple):
        return [_plain(v, values, numeric) for v in value]
    return values[value] if numeric and isinstance(value, str) else value


def steps_to_json(state: State, values: Mapping[str, int]) -> str:
    """The steps of `state` as canonical JSON, every parameter replaced by its value."""
    rows = []
    for step in state.steps:
        kind = type(step).__name__
        names = [f.name for f in fields(step)]  # type: ignore[arg-type]
        rows.append([kind, *(_plain(getattr(step, n), values, (kind, n) in _FACTORS) for n in names)])
    return json.dumps(rows, separators=(",", ":"))


def _typed(value: object, depth: int = 0) -> object:
    """Lists become tuples; nothing but integers and strings may occur, at most two levels deep."""
    if isinstance(value, list) and depth < 2:
        return tuple(_typed(v, depth + 1) for v in value)
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return value
    raise ScheduleError(f"a stored schedule holds {value!r}, which is not an integer, a name or a list of these")


def steps_from_json(text: str) -> tuple[Step, ...]:
    """The inverse of `steps_to_json`; ScheduleError if the text is not a list of known steps."""
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise ScheduleError(f"a stored schedule is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ScheduleError(f"a stored schedule must be a list of steps, got {type(rows).__name__}")
    return tuple(_step(row) for row in rows)


def _step(row: object) -> Step:
    if not isinstance(row, list) or not row or row[0] not in STEPS:
        raise ScheduleError(f"a stored schedule has the unknown step {row!r}; known are {', '.join(STEPS)}")
    cls = STEPS[row[0]]
    if len(row) - 1 != len(fields(cls)):
        raise ScheduleError(f"the stored step {row[0]} has {len(row) - 1} fields, expected {len(fields(cls))}")
    step: Step = cls(*(_typed(v) for v in row[1:]))
    return step


def replay(dag: ComputeDAG, text: str) -> State:
    """The schedule that the stored steps make of `dag`, through the same checks as when it was found."""
    return initial_state(dag).apply(*steps_from_json(text))

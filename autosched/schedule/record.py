"""JSON form of schedule steps. A record holds steps with integers in place of parameters, never code."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from autosched.backends import BACKENDS
from autosched.errors import ScheduleError
from autosched.ir.instructions.dots import INTRINSICS
from autosched.ir.stmt import Scope
from autosched.schedule.limits import MAX_FACTOR, MAX_STEPS
from autosched.schedule.state import State, Step, initial_state
from autosched.schedule.steps.atomic import Atomic
from autosched.schedule.steps.flatten import Flatten
from autosched.schedule.steps.gpu import (
    AcrossLanes,
    Bind,
    Cooperate,
    CrossThread,
    LaunchBounds,
    Pad,
    Pipeline,
    Raster,
    Team,
)
from autosched.schedule.steps.lengthen import Lengthen
from autosched.schedule.steps.loops import (
    FetchAhead,
    Fuse,
    Parallel,
    Prefetch,
    Reorder,
    Split,
    Stream,
    Unroll,
    Vectorize,
)
from autosched.schedule.steps.matrices import Mma
from autosched.schedule.steps.matricize import Matricize
from autosched.schedule.steps.online import Average, Online, Spread
from autosched.schedule.steps.partition import Partition
from autosched.schedule.steps.places import NarrowPlaces
from autosched.schedule.steps.running_sum import RunningSum
from autosched.schedule.steps.separate import Separate
from autosched.schedule.steps.shares import DivideLast, WithinReach
from autosched.schedule.steps.slide import Slide
from autosched.schedule.steps.stages import CacheRead, CacheWrite, ComputeAt, ComputeInline, Pack, Reindex, Rfactor
from autosched.schedule.steps.tensorize import Tensorize
from autosched.schedule.steps.warpgroups import ShareTiles, StoreTiles, WarpgroupMma
from autosched.schedule.steps.widen import Factor, Once, Widen
from autosched.schedule.steps.winograd import Winograd
from autosched.schedule.steps.write_out import WriteOut
from autosched.te.dag import ComputeDAG

STEPS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Split, Reorder, Fuse, Parallel, Vectorize, Unroll, Prefetch, FetchAhead, Stream,
        ComputeAt, ComputeInline, CacheRead, CacheWrite, Pack, Rfactor, Bind, Cooperate, CrossThread, Pad,
        Pipeline, Team, Atomic, LaunchBounds, Reindex, Tensorize, Winograd, NarrowPlaces,
        Flatten, Widen, RunningSum, Separate, Factor, Once, Raster,
        Mma, Matricize, Lengthen, Average, Spread, Online, WarpgroupMma, StoreTiles, ShareTiles, DivideLast,
        WithinReach, AcrossLanes, Partition, WriteOut, Slide,
    )
}  # fmt: skip

# Fields that hold a factor: an integer or a parameter's name.
_FACTORS = {
    ("Split", "factors"), ("Pack", "tiles"), ("Rfactor", "factor"),
    ("Cooperate", "vector"), ("Pad", "elements"), ("Team", "threads"),
    ("Pipeline", "stages"), ("LaunchBounds", "blocks"), ("CrossThread", "vector"),
    ("Raster", "rows"), ("ShareTiles", "down"), ("ShareTiles", "across"), ("ShareTiles", "turns"),
    ("Partition", "at"),
}  # fmt: skip

# Steps that mean something on one kind of device only.
_FOR_GPUS = (
    Bind, Cooperate, CrossThread, Pad, Pipeline, Team, Atomic, LaunchBounds, Raster, Mma, Spread, Online, WarpgroupMma,
    AcrossLanes, StoreTiles, ShareTiles,
)  # fmt: skip
_SCOPES_OF_GPUS = (Scope.SHARED.value, Scope.WARP.value)
_FOR_PROCESSORS = (Parallel, FetchAhead, Slide, Stream, Winograd)


def _plain(value: object, values: Mapping[str, int] | None, numeric: bool) -> object:
    if isinstance(value, tuple):
        return [_plain(v, values, numeric) for v in value]
    return values[value] if values is not None and numeric and isinstance(value, str) else value


def _row(step: Step, values: Mapping[str, int] | None) -> list[object]:
    """A step as its name and its fields, every parameter replaced by its value; by its name where `values` is None."""
    kind = type(step).__name__
    names = [f.name for f in fields(step)]  # type: ignore[arg-type]
    return [kind, *(_plain(getattr(step, n), values, (kind, n) in _FACTORS) for n in names)]


def steps_to_json(state: State, values: Mapping[str, int] | None) -> str:
    """The steps of `state` as canonical JSON, every parameter replaced by its value; by its name where
    `values` is None."""
    return json.dumps([_row(step, values) for step in state.steps], separators=(",", ":"))


def steps_text(steps: Sequence[Step], values: Mapping[str, int]) -> str:
    """Steps for readers, with the values of their parameters: one on a line, as `Split(C, i, [2, 16])`."""
    rows = [_row(step, values) for step in steps]
    return "\n".join(f"{kind}({', '.join(map(_word, numbers))})" for kind, *numbers in rows)


def largest_tile(steps: Sequence[Step]) -> int:
    """Return the outputs of a tile along a dimension in the Winograd convolutions among `steps`, the largest; 0 if
    there are none.
    """
    return max((step.m for step in steps if isinstance(step, Winograd)), default=0)


def _word(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_word, value))}]"
    return str(value)


def _typed(kind: str, value: object, where: str, params: Collection[str]) -> object:
    """`value` as what the annotation `kind` of a step's field says; lists become tuples, factors are integers or one
    of `params`."""
    if kind.startswith("tuple[") and isinstance(value, list):
        inner = kind[len("tuple[") : -1]
        if inner.endswith(", ..."):
            return tuple(_typed(inner[: -len(", ...")], v, where, params) for v in value)
        kinds = inner.split(", ")
        if len(kinds) == len(value):
            return tuple(_typed(k, v, where, params) for k, v in zip(kinds, value, strict=True))
    if kind == "str" and isinstance(value, str):
        return value
    if kind in ("int", "Num") and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > MAX_FACTOR:
            raise ScheduleError(f"the stored step {where} holds {reprlib.repr(value)}, beyond the {MAX_FACTOR} allowed")
        return value
    if kind == "Num" and isinstance(value, str) and value in params:
        return value
    expected = kind.replace("Num", "int")
    raise ScheduleError(f"the stored step {where} holds {reprlib.repr(value)} where {expected} is expected")


def steps_from_json(text: str, params: Collection[str] = ()) -> tuple[Step, ...]:
    """The inverse of `steps_to_json`; ScheduleError if the text is not a list of known steps, with integers or
    `params` as factors."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScheduleError(f"a stored schedule is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ScheduleError(f"a stored schedule must be a list of steps, got {type(rows).__name__}")
    if len(rows) > MAX_STEPS:
        raise ScheduleError(f"a stored schedule has {len(rows)} steps, more than the {MAX_STEPS} allowed")
    return tuple(_step(row, params) for row in rows)


def _step(row: object, params: Collection[str]) -> Step:
    if not isinstance(row, list) or not row or not isinstance(row[0], str) or row[0] not in STEPS:
        known = ", ".join(STEPS)
        raise ScheduleError(f"a stored schedule has the unknown step {reprlib.repr(row)}; known are {known}")
    cls = STEPS[row[0]]
    given, all_fields = row[1:], fields(cls)
    needed = sum(f.default is MISSING for f in all_fields)  # a record from before a step got a new field lacks that
    if not needed <= len(given) <= len(all_fields):
        raise ScheduleError(f"the stored step {row[0]} has {len(given)} fields, expected {len(all_fields)}")
    step: Step = cls(*(_typed(str(f.type), v, row[0], params) for f, v in zip(all_fields, given, strict=False)))
    return step


def replay(dag: ComputeDAG, text: str, params: Collection[str] = ()) -> State:
    """The schedule that the stored steps make of `dag`, through the same checks as when it was found; factors that are
    one of `params` stay open."""
    return initial_state(dag).apply(*steps_from_json(text, params))


def check_target(state: State, kind: str) -> None:
    """Raise ScheduleError for steps that a target of this kind, one of BACKENDS, does not support."""
    is_gpu = BACKENDS[kind].is_gpu
    foreign, meant = (_FOR_PROCESSORS, "processors") if is_gpu else (_FOR_GPUS, "GPUs")
    for step in state.steps:
        is_shared = not is_gpu and isinstance(step, ComputeAt) and step.scope in _SCOPES_OF_GPUS
        is_elsewhere = isinstance(step, Tensorize) and is_gpu is not INTRINSICS[step.intrinsic].is_of_gpus
        if isinstance(step, foreign) or is_shared or is_elsewhere:
            raise ScheduleError(f"the step {step} is for {meant}, but the target is {kind}")

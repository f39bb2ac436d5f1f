"""Objectives of tuning networks: functions of the latency of each network in seconds, which are minimised.

    sum                          sum of all latencies (the default)
    required:NAME=TIME,...       sum of latencies, each at least its required one; required:TIME is for all networks
    speedup[:NAME=TIME,...]      minus the geometric mean of the speedups over these times; without times, over the
                                 latencies before tuning
    early-stop                   sum of all latencies; a task whose last rounds gained nothing has no further round
    FILE.py:FUNCTION             a function of the user; in Python any callable

The first four are f1 to f4 of Ansor's paper (OSDI 2020, table 2).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TypeAlias

from autosched.errors import UsageError
from autosched.te.workload_file import called_by_us, find_function, is_of_file

Latencies: TypeAlias = Mapping[str, float]  # seconds of a call, by the network's name
Function: TypeAlias = Callable[[dict[str, float]], object]
DIFFERENCE = 1e-4  # step of the numerical derivatives, as a fraction of a latency
PATIENCE = 3  # rounds without a gain, after which `early-stop` ends a task
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
SYNTAX = "sum, required:NAME=TIME, speedup[:NAME=TIME], early-stop, FILE.py:FUNCTION or a function of latencies"


@dataclass(frozen=True)
class Objective:
    """`name`: as the user wrote it. `patience`: rounds without a gain after which a task ends; None: never."""

    name: str
    function: Function
    patience: int | None = None

    def value(self, latencies: Latencies) -> float:
        """Return the objective. Raises UsageError if the function fails or does not return a finite number."""
        with called_by_us(f"the objective {self.name}", self.function):
            value = self.function(dict(latencies))
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            arguments = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in latencies.items())
            raise UsageError(f"the objective {self.name} must return a finite number, got {value!r} for {arguments}")
        return float(value)

    def derivatives(self, latencies: Latencies) -> dict[str, float]:
        """Return the derivative by each network's latency: a backward difference, because latencies only fall.

        Raises what `value` raises.
        """
        value = self.value(latencies)
        slopes = {}
        for name, seconds in latencies.items():
            step = DIFFERENCE * max(seconds, 1e-9)
            slopes[name] = (value - self.value({**latencies, name: seconds - step})) / step
        return slopes


@dataclass(frozen=True)
class ObjectiveSpec:
    """An objective before the networks are loaded. `times`: the seconds written with it, by network; "" is all of
    them."""

    name: str
    times: Mapping[str, float]
    make: Callable[[Latencies], Function]
    patience: int | None = None

    def bind(self, start: Latencies) -> Objective:
        """Return the objective for networks of these latencies before tuning.

        Raises UsageError for times of unknown networks, and for an objective that grows when a network gets faster.
        """
        if unknown := [name for name in self.times if name and name not in start]:
            raise UsageError(
                f"the objective {self.name} names {unknown[0]}, but there are {', '.join(start)}: use these names"
            )
        times = {name: self.times.get(name, self.times.get("", seconds)) for name, seconds in start.items()}
        objective = Objective(self.name, self.make(times), self.patience)
        for name, slope in objective.derivatives(start).items():
            if slope < 0.0:
                raise UsageError(
                    f"the objective {self.name} grows when {name} gets faster, but what it returns is made small: "
                    "return its negative"
                )
        return objective


def _sum(times: Latencies) -> Function:
    return lambda latencies: sum(latencies.values())


def _required(times: Latencies) -> Function:
    return lambda latencies: sum(max(seconds, times[name]) for name, seconds in latencies.items())


def _speedup(times: Latencies) -> Function:
    def negative_mean(latencies: dict[str, float]) -> float:
        logs = [math.log(times[name] / seconds) for name, seconds in latencies.items()]
        return -math.exp(sum(logs) / len(logs))

    return negative_mean


@dataclass(frozen=True)
class _NamedObjective:
    """`times`: whether NAME=TIME is required (True), optional (None) or not allowed (False)."""

    make: Callable[[Latencies], Function]
    times: bool | None = False
    patience: int | None = None


OBJECTIVES: Mapping[str, _NamedObjective] = {
    "sum": _NamedObjective(_sum),
    "required": _NamedObjective(_required, times=True),
    "speedup": _NamedObjective(_speedup, times=None),
    "early-stop": _NamedObjective(_sum, patience=PATIENCE),
}


def parse_objective(objective: object) -> ObjectiveSpec:
    """Parse an objective: a name with its times, a function in a file, or a callable. Raises UsageError."""
    if callable(objective):
        function: Function = objective
        name = getattr(objective, "__name__", type(objective).__name__)
        return ObjectiveSpec(name, {}, lambda times: function)
    if not isinstance(objective, str):
        raise UsageError(f"objective must be {SYNTAX}, got {objective!r}")
    if is_of_file(objective):
        user_function = find_function(objective)
        return ObjectiveSpec(objective, {}, lambda times: user_function)
    word, colon, rest = objective.partition(":")
    named = OBJECTIVES.get(word)
    if named is None:
        raise UsageError(f"objective must be {SYNTAX}, got {objective!r}")
    if bool(colon) is not named.times and named.times is not None:
        takes = "NAME=TIME,..." if named.times else "no times"
        raise UsageError(f"the objective {word} takes {takes}, got {objective!r}")
    return ObjectiveSpec(objective, _parse_times(objective, rest) if colon else {}, named.make, named.patience)


def _parse_times(objective: str, text: str) -> dict[str, float]:
    """'resnet=4ms,bert=10ms' -> seconds by name; a time without a name is for all networks."""
    times: dict[str, float] = {}
    for item in text.split(","):
        name, _, time = item.rpartition("=")
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|)\s*", time)
        seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
        if not 0.0 < seconds < math.inf or times.setdefault(name.strip(), seconds) != seconds:
            raise UsageError(
                f"the times of an objective are written NAME=4ms,NAME=0.1s, each name once, got {objective!r}"
            )
    return times

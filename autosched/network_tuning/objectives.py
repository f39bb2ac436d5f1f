"""What a search for networks makes small: a function of the seconds that a call of each network takes, by its name.

    sum                          of all networks (the default)
    required:NAME=TIME,...       each network's time, but no less than is required; required:TIME for each
    speedup[:NAME=TIME,...]      minus the geometric mean of how many times as fast as that each network is; without
                                 times, as it was at the start
    early-stop                   as sum, but a task whose last rounds gained nothing has no further one
    FILE.py:FUNCTION             of your own; in Python any callable

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
DIFFERENCE = 1e-4  # of a latency, for derivatives
PATIENCE = 3  # rounds without a gain, after which `early-stop` leaves a task alone
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
FORMS = "sum, required:NAME=TIME, speedup[:NAME=TIME], early-stop, FILE.py:FUNCTION or a function of latencies"


@dataclass(frozen=True)
class Objective:
    """`name`: how it was asked for. A task has no more rounds after `patience` of them without a gain."""

    name: str
    function: Function
    patience: int | None = None

    def value(self, latencies: Latencies) -> float:
        """Raises UsageError where the function fails, or gives no finite number."""
        with called_by_us(f"the objective {self.name}", self.function):
            found = self.function(dict(latencies))
        if isinstance(found, bool) or not isinstance(found, Real) or not math.isfinite(found):
            said = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in latencies.items())
            raise UsageError(f"the objective {self.name} must return a finite number, got {found!r} for {said}")
        return float(found)

    def derivatives(self, latencies: Latencies) -> dict[str, float]:
        """What a second of each network is worth, by a difference downwards: what a faster one would gain. Raises what
        `value` does."""
        here = self.value(latencies)
        found = {}
        for name, seconds in latencies.items():
            step = DIFFERENCE * max(seconds, 1e-9)
            found[name] = (here - self.value({**latencies, name: seconds - step})) / step
        return found


@dataclass(frozen=True)
class AskedObjective:
    """An objective before the networks are known: `times` that were given with it, by their names; "" is all."""

    name: str
    times: Mapping[str, float]
    make: Callable[[Latencies], Function]
    patience: int | None = None

    def of(self, start: Latencies) -> Objective:
        """For networks that take so long at the start. Raises UsageError where it cannot be what is made small."""
        if unknown := [name for name in self.times if name and name not in start]:
            raise UsageError(
                f"the objective {self.name} names {unknown[0]}, but there are {', '.join(start)}: use these names"
            )
        times = {name: self.times.get(name, self.times.get("", seconds)) for name, seconds in start.items()}
        found = Objective(self.name, self.make(times), self.patience)
        for name, slope in found.derivatives(start).items():
            if slope < 0.0:
                raise UsageError(
                    f"the objective {self.name} grows when {name} gets faster, but what it returns is made small: "
                    "return its negative"
                )
        return found


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
class _Form:
    """`times`: whether NAME=TIME after it is needed (True), possible (None) or not (False)."""

    make: Callable[[Latencies], Function]
    times: bool | None = False
    patience: int | None = None


NAMED: Mapping[str, _Form] = {
    "sum": _Form(_sum),
    "required": _Form(_required, times=True),
    "speedup": _Form(_speedup, times=None),
    "early-stop": _Form(_sum, patience=PATIENCE),
}


def asked_objective(asked: object) -> AskedObjective:
    """What is said of an objective. Raises UsageError for what is none."""
    if callable(asked):
        function: Function = asked
        name = getattr(asked, "__name__", type(asked).__name__)
        return AskedObjective(name, {}, lambda times: function)
    if not isinstance(asked, str):
        raise UsageError(f"objective must be {FORMS}, got {asked!r}")
    if is_of_file(asked):
        own = find_function(asked)
        return AskedObjective(asked, {}, lambda times: own)
    word, colon, rest = asked.partition(":")
    form = NAMED.get(word)
    if form is None:
        raise UsageError(f"objective must be {FORMS}, got {asked!r}")
    if bool(colon) is not form.times and form.times is not None:
        raise UsageError(f"the objective {word} takes {'NAME=TIME,...' if form.times else 'no times'}, got {asked!r}")
    return AskedObjective(asked, _times(asked, rest) if colon else {}, form.make, form.patience)


def _times(asked: str, text: str) -> dict[str, float]:
    """'resnet=4ms,bert=10ms' -> seconds by name; a time alone is for all networks."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, time = part.rpartition("=")
        said = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|)\s*", time)
        seconds = float(said[1]) * UNITS[said[2]] if said else 0.0
        if not 0.0 < seconds < math.inf or found.setdefault(name.strip(), seconds) != seconds:
            raise UsageError(f"the times of an objective are written NAME=4ms,NAME=0.1s, each name once, got {asked!r}")
    return found

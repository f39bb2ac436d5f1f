"""What `options` of torch.compile may say to the backend."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from autosched.errors import UsageError
from autosched.kernel.device import find_device
from autosched.keywords import refuse_unknown

_MODES = (None, "default")
NONE, BACKGROUND, NOW = TUNES = ("none", "background", "now")


@dataclass(frozen=True)
class BackendOptions:
    """`threads`: all cores unless it says how many. `freeze`: weights are packed once, where no gradients are needed.
    `winograd`: the larger error of such convolutions is accepted. `tune`: measure kernels not at all, beside the
    program while it runs, or before its first call; `budget_s`: for how long, for each graph that torch makes."""

    threads: int | None = None
    freeze: bool = True
    winograd: bool = False
    tune: str = NONE
    budget_s: float = 60.0


def read_options(mode: str | None, options: Mapping[str, Any]) -> BackendOptions:
    """Raises UsageError for a mode or option that there is not, and DeviceError for threads that there are not."""
    if mode not in _MODES:
        known = ", ".join(str(name) for name in _MODES if name is not None)
        raise UsageError(f"the backend autosched has no mode {mode!r}, only {known}")
    refuse_unknown("the backend autosched", options, [*_EXPECTED], "option")
    for name, value in options.items():
        if not _is_one(name, value):
            raise UsageError(f"the option {name} of the backend autosched is {_EXPECTED[name]}, not {value!r}")
    found = replace(BackendOptions(), **options)
    find_device("cpu", found.threads)
    return found


_EXPECTED: Mapping[str, str] = {
    "threads": "a number of threads, at least 1",
    "freeze": "True or False",
    "winograd": "True or False",
    "tune": f"one of {', '.join(TUNES)}",
    "budget_s": "a number of seconds above 0",
}


def _is_one(name: str, value: object) -> bool:
    if name in ("freeze", "winograd"):
        return isinstance(value, bool)
    if name == "tune":
        return value in TUNES
    if isinstance(value, bool):
        return False
    if name == "threads":
        return isinstance(value, int) and value >= 1
    return isinstance(value, int | float) and 0 < value < math.inf


@cache
def warn_once(text: str) -> None:
    """Once in a process."""
    warnings.warn(text, stacklevel=3)

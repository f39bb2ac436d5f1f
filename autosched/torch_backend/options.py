"""Options of the backend: the `mode` and `options` of torch.compile."""

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
    """`threads`: None for all cores. `freeze`: weights are packed once, if no gradients are needed. `winograd`: accept
    the larger error of Winograd convolutions. `tune`: "none", "background" (while the program runs) or "now" (before
    its first call); `budget_s`: seconds of tuning for each graph of torch."""

    threads: int | None = None
    freeze: bool = True
    winograd: bool = False
    tune: str = NONE
    budget_s: float = 60.0


def read_options(mode: str | None, options: Mapping[str, Any]) -> BackendOptions:
    """Check and return the options. Raises UsageError for an unknown mode, option or value, DeviceError for too many
    threads."""
    if mode not in _MODES:
        modes = ", ".join(str(name) for name in _MODES if name is not None)
        raise UsageError(f"the backend autosched has no mode {mode!r}, only {modes}")
    refuse_unknown("the backend autosched", options, [*_EXPECTED], "option")
    for name, value in options.items():
        if not _is_valid(name, value):
            raise UsageError(f"the option {name} of the backend autosched is {_EXPECTED[name]}, not {value!r}")
    checked = replace(BackendOptions(), **options)
    find_device("cpu", checked.threads)
    return checked


_EXPECTED: Mapping[str, str] = {
    "threads": "a number of threads, at least 1",
    "freeze": "True or False",
    "winograd": "True or False",
    "tune": f"one of {', '.join(TUNES)}",
    "budget_s": "a number of seconds above 0",
}


def _is_valid(name: str, value: object) -> bool:
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
    """Give the warning once in a process."""
    warnings.warn(text, stacklevel=3)

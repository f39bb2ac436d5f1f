"""Workers by kind of target: how its candidates are built, run and timed. WORKERS has a row for each kind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from autosched.measure.protocol import Message, Setup

Handler: TypeAlias = Callable[[Message], Message]


@dataclass(frozen=True)
class Workers:
    """The builder and the runner of a kind of target, which import what they need when they are called.

    `builder`, `runner`: from a worker's setup to the function that handles its requests. `visible`: the environment
    variable that restricts the devices of this process; None if the timed device may be the processor.
    `launch_build_s`: seconds that the first launch may take longer, as the platform finishes compiling then.
    `has_limit`: whether the worker's memory is limited; a GPU driver maps far more than it uses.
    """

    builder: Callable[[Setup], Handler]
    runner: Callable[[Setup], Handler]
    visible: str | None = None
    launch_build_s: float = 0.0
    has_limit: bool = False


def lock_name(kind: str) -> str:
    """Return the name of the lock of the timed device. OpenCL may run on the processor, so it shares the processor's
    lock.
    """
    variable = WORKERS[kind].visible
    if variable is None:
        return "cpu"
    visible = os.environ.get(variable, "").split(",")[0].strip()
    return f"{kind}-{re.sub(r'[^A-Za-z0-9-]', '_', visible) or '0'}"


def _builder(setup: Setup) -> Handler:
    from autosched.measure.builder import Builder

    return Builder(setup).handle


def _runner(setup: Setup) -> Handler:
    from autosched.measure.runner import Runner

    return Runner(setup).handle


def _gpu_builder(setup: Setup) -> Handler:
    from autosched.measure.gpu.builder import GpuBuilder

    return GpuBuilder(setup).handle


def _gpu_runner(setup: Setup) -> Handler:
    from autosched.measure.gpu.runner import GpuRunner

    return GpuRunner(setup).handle


WORKERS: dict[str, Workers] = {
    "cpu": Workers(_builder, _runner, has_limit=True),
    "cuda": Workers(_gpu_builder, _gpu_runner, visible="CUDA_VISIBLE_DEVICES"),
    "opencl": Workers(_gpu_builder, _gpu_runner, launch_build_s=15.0),
}

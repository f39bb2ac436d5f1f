"""What is particular to each kind of target when its candidates are built, run and timed: a row of WORKERS."""

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
    """`builder` and `runner` make of a worker's setup what answers its requests; they import what they need.

    `visible`: the environment's variable that says which devices this process may use; without it what is timed may be
    the processor. `launch_build_s`: a platform may finish compiling at the first launch, for so long. `has_limit`: the
    worker's memory has a limit; a GPU driver maps far more than it uses.
    """

    builder: Callable[[Setup], Handler]
    runner: Callable[[Setup], Handler]
    visible: str | None = None
    launch_build_s: float = 0.0
    has_limit: bool = False


def lock_name(kind: str) -> str:
    """Of the device that is timed. OpenCL may mean the processor, so it shares that one's lock."""
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

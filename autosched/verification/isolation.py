"""Calls of a network's machine code in a forked process: code that writes outside its memory ends that process alone.

The process is a copy of this one, so it runs the very code, weights and inputs that are here. Its results and the
number of the kernel that it runs are in memory that both share.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

import numpy as np

from autosched.errors import AutoschedError
from autosched.executor.model import Model
from autosched.graph.graph import Array
from autosched.graph.steps import Group
from autosched.measure.worker import end_with, lower_limit
from autosched.planning.execution_plan import array_spec
from autosched.runtime.processes import StopWatch
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import ALIGNMENT

RUN_S = 600.0  # deadline of one call
# What a call raises by itself, apart from bugs.
_RAISED: tuple[type[Exception], ...] = (IndexError, *AutoschedError.__subclasses__())
_MESSAGE = 1 << 16  # bytes, as many as a pipe takes at once
_END_S = 10.0  # for the system to end a process that has said its last

Compute = Callable[[Callable[[int], None]], Mapping[str, Array]]  # given what notes the number of a step


class ProgramDied(Exception):
    """A process that ran a network's code ended, or had to be ended. `step`: what it noted last, -1 for nothing. The
    message is the end of a sentence: "died with signal 11 (SIGSEGV)"."""

    def __init__(self, reason: str, step: int) -> None:
        super().__init__(reason)
        self.step = step


def results(model: Model, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a network by their names in `original`. Raises ProgramDied, and what the call raises."""

    def compute(_: object) -> dict[str, Array]:
        found = model(*(arrays[name] for name in model.original.inputs))
        return dict(zip(model.original.outputs, found if isinstance(found, tuple) else (found,), strict=True))

    return _run(model, compute, dict(zip(model.original.outputs, model.outputs, strict=True)))


def run_step(model: Model, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """As `Model.run_step`. Raises ProgramDied."""
    graph, step = model.program.graph, model.program.steps[number]
    assert isinstance(step, Group)
    specs = {name: array_spec(graph, name) for name in step.outputs}
    return _run(model, lambda _: model.run_step(number, arrays), specs)


def step_that_dies(model: Model, arrays: Mapping[str, Array]) -> int:
    """The step in which the network dies when its kernels are called one after the other; -1 if it does not."""

    def compute(note: Callable[[int], None]) -> dict[str, Array]:
        for step, clock in model.clocks(arrays).kernels.items():
            note(step)
            clock(1)
        note(-1)
        return {}

    try:
        _run(model, compute, {})
    except ProgramDied as death:
        return death.step
    return -1


def _run(model: Model, compute: Compute, specs: Mapping[str, ArraySpec]) -> dict[str, Array]:
    """What `compute` returns, arrays as `specs` says. A GPU's driver does not work in a forked process, and no code
    for a GPU writes into this one's memory."""
    if sys.platform != "linux" or model.device.target.backend.is_gpu:
        return dict(compute(lambda _: None))
    places, size = dict[str, int](), ALIGNMENT
    for name, spec in specs.items():
        places[name] = size
        size += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
    shared = mmap.mmap(-1, size)
    step = ctypes.c_int64.from_buffer(shared)
    step.value = -1
    memory = np.frombuffer(shared, np.uint8)
    made = {
        name: memory[at : at + specs[name].nbytes].view(specs[name].numpy_dtype).reshape(specs[name].shape)
        for name, at in places.items()
    }

    def work() -> None:
        for name, array in compute(lambda number: setattr(step, "value", number)).items():
            made[name][...] = array

    if reason := _fork(work):
        raise ProgramDied(reason, step.value)
    return made


def _fork(work: Callable[[], None]) -> str:
    """Does `work` in a forked process; why that process did not come to an end, or nothing. Raises what `work` does."""
    parent, (answer, to) = os.getpid(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: the process does nothing but `work`
        pid = os.fork()
    if pid == 0:
        _in_child(work, parent, to)
    os.close(to)
    try:
        reason, message = _awaited(pid, answer)
    finally:
        os.close(answer)
    kind, _, text = message.partition("\n")
    if kind:
        raise next((c(text) for c in _RAISED if c.__name__ == kind), RuntimeError(text))
    return reason


def _in_child(work: Callable[[], None], parent: int, to: int) -> NoReturn:
    message = ""
    try:
        os.setsid()  # Ctrl-C is the parent's
        faulthandler.disable()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL):
            signal.signal(number, signal.SIG_DFL)
        lower_limit(resource.RLIMIT_CORE, 0)
        end_with(parent)
        work()
    except _RAISED as error:
        message = f"{type(error).__name__}\n{error}"
    except BaseException:
        message = f"RuntimeError\n{traceback.format_exc()}"
    finally:
        with suppress(OSError):
            os.write(to, message.encode()[:_MESSAGE])
        os._exit(0)


def _awaited(pid: int, answer: int) -> tuple[str, str]:
    """(why the process did not come to an end, what it wrote), once it has ended."""
    deadline, watch, message = time.monotonic() + RUN_S, StopWatch(pid), b""
    try:
        while True:
            pause = max(0.0, min(deadline, watch.next_look) - time.monotonic())
            if select.select([answer], [], [], pause)[0]:
                if not (data := os.read(answer, _MESSAGE)):
                    return _end_of(_reaped(pid)), message.decode(errors="replace")
                message += data
            elif watch.has_stopped():
                reason = "was stopped by a signal and did not go on"
                break
            elif time.monotonic() >= deadline:
                reason = f"did not end within {RUN_S:g} s, the deadline"
                break
    except BaseException:
        _kill(pid)
        raise
    _kill(pid)
    return reason, ""


def _reaped(pid: int) -> int:
    """The status of a process that is about to end."""
    give_up = time.monotonic() + _END_S
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > give_up:
            _kill(pid)
            return 0
        time.sleep(0.0005)
    return found[1]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _end_of(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return ""
    number = os.WTERMSIG(status)
    return f"died with signal {number} ({signal.Signals(number).name})"

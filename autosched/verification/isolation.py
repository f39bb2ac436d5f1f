"""Isolation of a network's machine code in a forked process, which survives code that writes outside its memory.

The forked process has the code, weights and inputs of this one. Results and the step that runs are in shared memory.
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
# Exceptions that the parent raises again; others are bugs.
_EXPECTED: tuple[type[Exception], ...] = (IndexError, *AutoschedError.__subclasses__())
_MESSAGE_BYTES = 1 << 16  # capacity of a pipe
_EXIT_S = 10.0  # time-out for the exit of a process that has closed its pipe

Compute = Callable[[Callable[[int], None]], Mapping[str, Array]]  # its argument is called with the number of each step


class ProgramDied(Exception):
    """A process that ran a network's code died or was killed. `step`: the last step noted, -1 for none. The message is
    the end of a sentence: "died with signal 11 (SIGSEGV)"."""

    def __init__(self, reason: str, step: int) -> None:
        super().__init__(reason)
        self.step = step


def results(model: Model, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Run a network and return its outputs by name. Raises ProgramDied, and what the call raises."""

    def compute(_: object) -> dict[str, Array]:
        outputs = model(*(arrays[name] for name in model.original.inputs))
        return dict(zip(model.original.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))

    return _run(model, compute, dict(zip(model.original.outputs, model.outputs, strict=True)))


def run_step(model: Model, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Run `Model.run_step`. Raises ProgramDied."""
    graph, step = model.program.graph, model.program.steps[number]
    assert isinstance(step, Group)
    specs = {name: array_spec(graph, name) for name in step.outputs}
    return _run(model, lambda _: model.run_step(number, arrays), specs)


def step_that_dies(model: Model, arrays: Mapping[str, Array]) -> int:
    """Return the step in which the process dies when the kernels are called one by one; -1 if it survives."""

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
    """Call `compute` in a forked process, and return its arrays, whose specs are `specs`.

    A GPU's driver does not work in a forked process, and a GPU's code cannot write into this process: it runs here.
    """
    if sys.platform != "linux" or model.device.target.backend.is_gpu:
        return dict(compute(lambda _: None))
    offsets, size = dict[str, int](), ALIGNMENT
    for name, spec in specs.items():
        offsets[name] = size
        size += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
    shared = mmap.mmap(-1, size)
    step = ctypes.c_int64.from_buffer(shared)
    step.value = -1
    memory = np.frombuffer(shared, np.uint8)
    arrays = {
        name: memory[at : at + specs[name].nbytes].view(specs[name].numpy_dtype).reshape(specs[name].shape)
        for name, at in offsets.items()
    }

    def work() -> None:
        for name, array in compute(lambda number: setattr(step, "value", number)).items():
            arrays[name][...] = array

    if reason := _fork(work):
        raise ProgramDied(reason, step.value)
    return arrays


def _fork(work: Callable[[], None]) -> str:
    """Call `work` in a forked process, and return why the process died, or an empty text. Raises what `work` raises."""
    parent, (reader, writer) = os.getpid(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: the process does nothing but `work`
        pid = os.fork()
    if pid == 0:
        _run_in_child(work, parent, writer)
    os.close(writer)
    try:
        reason, message = _wait(pid, reader)
    finally:
        os.close(reader)
    kind, _, text = message.partition("\n")
    if kind:
        raise next((c(text) for c in _EXPECTED if c.__name__ == kind), RuntimeError(text))
    return reason


def _run_in_child(work: Callable[[], None], parent: int, writer: int) -> NoReturn:
    message = ""
    try:
        os.setsid()  # Ctrl-C reaches the parent only
        faulthandler.disable()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL):
            signal.signal(number, signal.SIG_DFL)
        lower_limit(resource.RLIMIT_CORE, 0)
        end_with(parent)
        work()
    except _EXPECTED as error:
        message = f"{type(error).__name__}\n{error}"
    except BaseException:
        message = f"RuntimeError\n{traceback.format_exc()}"
    finally:
        with suppress(OSError):
            os.write(writer, message.encode()[:_MESSAGE_BYTES])
        os._exit(0)


def _wait(pid: int, reader: int) -> tuple[str, str]:
    """Wait for the end of the process, and return why it died, or an empty text, and its message."""
    deadline, watch, message = time.monotonic() + RUN_S, StopWatch(pid), b""
    try:
        while True:
            pause = max(0.0, min(deadline, watch.next_look) - time.monotonic())
            if select.select([reader], [], [], pause)[0]:
                if not (data := os.read(reader, _MESSAGE_BYTES)):
                    return _death_reason(_reap(pid)), message.decode(errors="replace")
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


def _reap(pid: int) -> int:
    """Return the exit status of a process that has closed its pipe; kill it after _EXIT_S seconds."""
    give_up = time.monotonic() + _EXIT_S
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > give_up:
            _kill(pid)
            return 0
        time.sleep(0.0005)
    return ended[1]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _death_reason(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return ""
    number = os.WTERMSIG(status)
    return f"died with signal {number} ({signal.Signals(number).name})"

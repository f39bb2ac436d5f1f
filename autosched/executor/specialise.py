"""Specialisation: kernels that took the schedule of other sizes get their own, beside the network that is in use.

A process at idle priority lets the analytic model choose the schedules and compiles the kernels into the disk cache.
When all are there, the program with them takes the place of the one in use, between two calls (hot swap).
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from autosched.executor.background_jobs import enqueue
from autosched.executor.model import Clocks, Model
from autosched.graph.graph import Array, Graph
from autosched.passes import DUMP, debug_level
from autosched.runtime.spec import ArraySpec

if TYPE_CHECKING:
    from autosched.kernel.spec import KernelSpec
    from autosched.planning.execution_plan import NetworkProgram

Keep: TypeAlias = Callable[[Model, bool], None]  # takes a model, and whether its kernels have schedules of their own
DELAY_S = 2.0  # before the first kernel: many networks are loaded, called once and dropped


class SpecialisingModel(Model):
    """A network whose program is replaced by one with kernels for its own sizes. `model`: the program in use. `keep`: a
    function that is called with the new program and True."""

    def __init__(self, model: Model, keep: Keep | None = None) -> None:
        self.model = model
        self._ended = threading.Event()
        enqueue(partial(_specialise, weakref.ref(self), self._ended, time.monotonic() + DELAY_S, keep))

    def wait(self, seconds: float | None = None) -> bool:
        return self._ended.wait(seconds)

    def finish(self) -> Model:
        """Give all kernels their own schedules now, and return the program with them."""
        from autosched.kernel.pool import build_kernels

        build_kernels(_transferred_specs(self.model))
        self.model = _with_own_kernels(self.model)
        return self.model

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not set yet
            raise AttributeError(name)
        return getattr(self.model, name)

    def __call__(self, *arrays: object, out: object = None, **named: object) -> Any:
        return self.model(*arrays, out=out, **named)

    def __repr__(self) -> str:
        return repr(self.model)

    def __reduce__(self) -> Any:
        return self.model.__reduce__()

    @property
    def original(self) -> Graph:  # type: ignore[override]
        return self.model.original

    @property
    def program(self) -> NetworkProgram:  # type: ignore[override]
        return self.model.program

    @property
    def inputs(self) -> tuple[ArraySpec, ...]:  # type: ignore[override]
        return self.model.inputs

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:  # type: ignore[override]
        return self.model.outputs

    @property
    def threads(self) -> int:
        return self.model.threads

    def launch(self, addresses: Sequence[int]) -> None:
        self.model.launch(addresses)

    def with_program(self, original: Graph, program: NetworkProgram) -> Model:
        return self.model.with_program(original, program)

    def with_shared_weights(self, original: Graph, program: NetworkProgram, other: Model) -> Model:
        return self.model.with_shared_weights(original, program, other)

    def link_program(self, original: Graph, program: NetworkProgram) -> Model:
        return self.model.link_program(original, program)

    def export(self, path: str | Path) -> list[Path]:
        return self.model.export(path)

    def run_step(self, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return self.model.run_step(number, arrays)

    def clocks(self, arrays: Mapping[str, Array]) -> Clocks:
        return self.model.clocks(arrays)


def has_transferred(model: Model) -> bool:
    """Whether kernels of the model have the schedule of other sizes."""
    return bool(_transferred_specs(model))


def _transferred_specs(model: Model) -> list[KernelSpec]:
    return [task.kernel_spec for task in model.tasks if task.kernel.name != task.kernel_spec.name]


def _specialise(
    reference: weakref.ref[SpecialisingModel], ended: threading.Event, start: float, keep: Keep | None = None
) -> None:
    """Replace the transferred kernels of a model that is still referred to at `start`, on `time.monotonic`.

    `ended` is set at the end.
    """
    try:
        while reference() is not None and (remaining_s := start - time.monotonic()) > 0:
            time.sleep(min(remaining_s, 0.1))
        if (specialising := reference()) is None:
            return
        model = specialising.model
        del specialising
        if specs := _transferred_specs(model):
            from autosched.kernel.pool import build_at_idle_priority

            build_at_idle_priority(specs, lambda: getattr(reference(), "model", None) is model)
        if (specialising := reference()) is not None and specialising.model is model:
            specialising.model = own = _with_own_kernels(model)
            if keep is not None:
                keep(own, True)
    except Exception as error:  # no caller waits for the thread, and the network in use does not depend on it
        if debug_level() >= DUMP:
            print(f"kernels of a network keep the schedules of other sizes: {error}", file=sys.stderr)
    finally:
        ended.set()


def _with_own_kernels(model: Model) -> Model:
    """Return the model with the kernels of its tasks that are in the disk cache."""
    from autosched.kernel.object_cache import find_object
    from autosched.planning.execution_plan import with_storage

    program = model.program
    tasks = tuple(replace(task, kernel=find_object(task.kernel_spec) or task.kernel) for task in program.tasks)
    kernels = {n: task.kernel for task in tasks for n in task.steps}
    stored = with_storage(program.graph, program.steps, kernels, program.backend, program.checks)
    own = replace(stored, tasks=tasks, split=program.split, fusion_choices=program.fusion_choices)
    return model.link_program(model.original, own)

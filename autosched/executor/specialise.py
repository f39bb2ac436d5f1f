"""Specialisation: kernels that took the schedule of other sizes get their own, beside the network that is in use.

A process at idle priority lets the analytic model choose the schedules and compiles the kernels into the disk cache.
When all are there, the program with them takes the place of the one in use (`hot_swap`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from autosched.executor.hot_swap import HotSwapModel, improve_later
from autosched.executor.model import Model

if TYPE_CHECKING:
    from autosched.kernel.spec import KernelSpec

Keep: TypeAlias = Callable[[Model, bool], None]  # takes a model, and whether its kernels have schedules of their own


def specialise(model: Model, keep: Keep | None = None) -> HotSwapModel:
    """Return a network whose kernels get schedules of their own in the background. `keep`: a function that is called
    with the new program and True."""
    specialising = HotSwapModel(model)
    improve_later(specialising, partial(_specialise, keep=keep), specialising.ended)
    return specialising


def with_own_schedules(specialising: HotSwapModel) -> Model:
    """Give all kernels of a network in use their own schedules now, and return the program with them."""
    from autosched.kernel.pool import build_kernels

    build_kernels(_transferred_specs(specialising.model))
    specialising.swap(_with_own_kernels(specialising.model))
    return specialising.model


def has_transferred(model: Model) -> bool:
    """Whether kernels of the model have the schedule of other sizes."""
    return bool(_transferred_specs(model))


def _transferred_specs(model: Model) -> list[KernelSpec]:
    return [task.kernel_spec for task in model.tasks if task.kernel.name != task.kernel_spec.name]


def _specialise(reference: weakref.ref[HotSwapModel], keep: Keep | None) -> None:
    """Replace the transferred kernels of a model, as long as it is referred to."""
    from autosched.kernel.pool import build_kernels, idle_builds

    if (specialising := reference()) is None:
        return
    model = specialising.model
    del specialising
    with idle_builds(lambda: getattr(reference(), "model", None) is model):
        build_kernels(_transferred_specs(model))
    if (specialising := reference()) is not None and specialising.model is model:
        own = _with_own_kernels(model)
        specialising.swap(own)
        if keep is not None:
            keep(own, True)


def _with_own_kernels(model: Model) -> Model:
    """Return the model with the kernels of its tasks that are in the disk cache."""
    from autosched.kernel.object_cache import find_object
    from autosched.planning.execution_plan import with_kernels

    own = with_kernels(model.program, lambda task: find_object(task.kernel_spec) or task.kernel)
    return model.link_program(model.original, own)

"""Task extraction: the kernels of a network, one for all steps that compute the same, whatever their values' names."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosched.backends import Backend
from autosched.graph.fusion.node_properties import weights_of
from autosched.graph.fusion.partition import dag_of
from autosched.graph.graph import Graph
from autosched.graph.group_description import describe
from autosched.graph.steps import Group, NetworkStep
from autosched.kernel.device import Device
from autosched.kernel.pool import UnbuiltKernel, build_kernels
from autosched.kernel.request import Request
from autosched.kernel.spec import KernelObject, Recipe
from autosched.kernel.transfer import NearestSchedules
from autosched.target.far_weights import weights_place

# Returns the given recipes in order, those with a known schedule with its steps.
ChooseSchedules = Callable[[Sequence[Recipe]], Sequence[Recipe]]


def keep_unscheduled(recipes: Sequence[Recipe]) -> Sequence[Recipe]:
    return recipes


def undecided(recipe: Recipe) -> bool | None:
    return None


@dataclass(frozen=True)
class Choices:
    """Schedules and fusion decisions for the kernels of a network; the analytic model makes those that are missing.

    `schedules` adds known schedules to recipes. `is_fused` maps the recipe of a `FusionChoice` to whether the fused
    kernel is faster, None if that was not measured. `nearest` transfers schedules from other sizes.
    """

    schedules: ChooseSchedules = keep_unscheduled
    is_fused: Callable[[Recipe], bool | None] = undecided
    nearest: NearestSchedules | None = None


BY_MODEL = Choices()


@dataclass(frozen=True)
class NetworkTask:
    """A kernel of a network. `steps`: the numbers of the steps that call it."""

    recipe: Recipe
    kernel: KernelObject
    steps: tuple[int, ...]

    @property
    def name(self) -> str:
        """The operators that the kernel fuses."""
        return self.request.problem.name

    @property
    def request(self) -> Request:
        return self.recipe.request

    @property
    def count(self) -> int:
        return len(self.steps)


def extract_tasks(
    graph: Graph, steps: Sequence[NetworkStep], target_text: str, device: Device, choices: Choices = BY_MODEL
) -> tuple[NetworkTask, ...]:
    """Return the tasks of the groups among `steps`, compiled. Raises UnbuiltKernel."""
    target, residency = device.target, weight_residency(graph, steps, device)
    numbers: dict[Recipe, list[int]] = {}
    for n, step in enumerate(steps):
        if isinstance(step, Group):
            recipe = Recipe(
                spec_of(graph, step, target.backend, residency), target_text, device.threads, gpu=target.gpu
            )
            numbers.setdefault(recipe, []).append(n)
    recipes = list(numbers)
    chosen = dict(zip(recipes, choices.schedules(recipes), strict=True))
    kernels = _build(chosen)
    return tuple(NetworkTask(chosen[recipe], kernels[chosen[recipe]], tuple(ns)) for recipe, ns in numbers.items())


def _build(chosen: dict[Recipe, Recipe]) -> dict[Recipe, KernelObject]:
    """Return the kernels of the recipes with schedules, the values of `chosen`.

    A schedule that gives no code, as one of other sizes may, is dropped: `chosen` then maps the recipe to itself.
    """
    while True:
        try:
            return build_kernels(list(chosen.values()))
        except UnbuiltKernel as failure:
            misfits = [recipe for recipe, own in chosen.items() if own == failure.recipe != recipe]
            if not misfits:
                raise
            chosen.update(zip(misfits, misfits, strict=True))


def objects_of(tasks: Sequence[NetworkTask]) -> list[bytes]:
    """Return the object files of all kernels, each shared compilation unit once."""
    units = {unit.key: unit.code for task in tasks for unit in task.kernel.parts}
    return [*(task.kernel.code for task in tasks), *units.values()]


def spec_of(graph: Graph, group: Group, backend: Backend, residency: str) -> str:
    """Return what the kernel of a group computes, as a recipe's spec; `residency`: the cache level of the weights."""
    name = "-".join(node.operator for node in group.nodes)
    dtype, described = graph.values[group.outputs[0]].dtype, describe(graph, group, backend.has_weights)
    accepted: dict[str, bool | str] = {"winograd": True} if graph.winograd and _may_transform(graph, group) else {}
    if residency and described["weights"]:
        accepted["weights_in"] = residency
    return json.dumps({"name": name, "args": {}, "dtype": dtype, "graph": described, **accepted}, sort_keys=True)


def weight_residency(graph: Graph, steps: Sequence[NetworkStep], device: Device) -> str:
    """Return the cache level in which kernels find their weights, by the bytes of weights that one call reads."""
    read = {x for step in steps if isinstance(step, Group) for x in weights_of(graph, step.nodes, step.inputs)}
    return weights_place(sum(graph.constants[name].nbytes for name in read), device.target)


def without_weight_residency(spec: str) -> str:
    """Return the spec of the same kernel with its weights in the nearest cache: schedules of one fit the other."""
    data = json.loads(spec)
    data.pop("weights_in", None)
    return json.dumps(data, sort_keys=True)


def _may_transform(graph: Graph, group: Group) -> bool:
    """Whether a reduction of the group is a convolution that Winograd's transforms compute."""
    from autosched.te.rewrites.winograd import match_stage

    return any(match_stage(op) is not None for op in dag_of(graph, group).stages)

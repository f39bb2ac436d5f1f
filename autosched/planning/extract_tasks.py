"""The kernels of a network as tasks: steps that compute the same are one, whatever their values are called."""

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

Choose = Callable[[Sequence[Recipe]], Sequence[Recipe]]  # the recipes in order, with a schedule or as they are


def as_they_are(recipes: Sequence[Recipe]) -> Sequence[Recipe]:
    return recipes


def not_known(recipe: Recipe) -> bool | None:
    return None


@dataclass(frozen=True)
class Choices:
    """What is known of a network's kernels before it is built. `schedules` gives recipes schedules; `is_joined` says of
    a part's `Alternative.recipe` whether the one kernel is faster than several, None where nobody has measured it. What
    neither knows is what the analytic model likes best."""

    schedules: Choose = as_they_are
    is_joined: Callable[[Recipe], bool | None] = not_known
    nearest: NearestSchedules | None = None


DRAFTED = Choices()


@dataclass(frozen=True)
class NetworkTask:
    """A kernel that steps of a network share. `steps`: their numbers."""

    recipe: Recipe
    kernel: KernelObject
    steps: tuple[int, ...]

    @property
    def name(self) -> str:
        """The operators in it."""
        return self.request.problem.name

    @property
    def request(self) -> Request:
        return self.recipe.request

    @property
    def count(self) -> int:
        return len(self.steps)


def tasks_of(
    graph: Graph, steps: Sequence[NetworkStep], target_text: str, device: Device, choices: Choices = DRAFTED
) -> tuple[NetworkTask, ...]:
    """The tasks of the steps that are kernels, built. Raises UnbuiltKernel."""
    target, place = device.target, place_of_weights(graph, steps, device)
    places: dict[Recipe, list[int]] = {}
    for n, step in enumerate(steps):
        if isinstance(step, Group):
            recipe = Recipe(spec_of(graph, step, target.backend, place), target_text, device.threads, gpu=target.gpu)
            places.setdefault(recipe, []).append(n)
    recipes = list(places)
    chosen = dict(zip(recipes, choices.schedules(recipes), strict=True))
    kernels = _built(chosen)
    return tuple(NetworkTask(chosen[recipe], kernels[chosen[recipe]], tuple(found)) for recipe, found in places.items())


def _built(chosen: dict[Recipe, Recipe]) -> dict[Recipe, KernelObject]:
    """The kernels of recipes, by their own with a schedule. One whose schedule gives no code, as that of other sizes
    need not fit, has none in `chosen` from here on."""
    while True:
        try:
            return build_kernels(list(chosen.values()))
        except UnbuiltKernel as failure:
            misfits = [recipe for recipe, own in chosen.items() if own == failure.recipe != recipe]
            if not misfits:
                raise
            chosen.update(zip(misfits, misfits, strict=True))


def objects_of(tasks: Sequence[NetworkTask]) -> list[bytes]:
    """The object files of all kernels, those of pieces that several have once."""
    parts = {part.key: part.code for task in tasks for part in task.kernel.parts}
    return [*(task.kernel.code for task in tasks), *parts.values()]


def spec_of(graph: Graph, group: Group, backend: Backend, place: str) -> str:
    """What the kernel of a group computes, as recipes say it; `place`: where the network's weights lie."""
    words = "-".join(node.operator for node in group.nodes)
    dtype, described = graph.values[group.outputs[0]].dtype, describe(graph, group, backend.has_weights)
    accepted: dict[str, bool | str] = {"winograd": True} if graph.winograd and _may_transform(graph, group) else {}
    if place and described["weights"]:
        accepted["weights_in"] = place
    return json.dumps({"name": words, "args": {}, "dtype": dtype, "graph": described, **accepted}, sort_keys=True)


def place_of_weights(graph: Graph, steps: Sequence[NetworkStep], device: Device) -> str:
    """Where a kernel of the network finds its weights, by the bytes of all that are read between two calls."""
    read = {x for step in steps if isinstance(step, Group) for x in weights_of(graph, step.nodes, step.inputs)}
    return weights_place(sum(graph.constants[name].nbytes for name in read), device.target)


def without_place(spec: str) -> str:
    """The spec of the same kernel with its weights near: a schedule for one is a schedule for the other."""
    data = json.loads(spec)
    data.pop("weights_in", None)
    return json.dumps(data, sort_keys=True)


def _may_transform(graph: Graph, group: Group) -> bool:
    """Whether a sum of the group is a convolution that Winograd's transforms compute."""
    from autosched.te.rewrites.winograd import match_stage

    return any(match_stage(op) is not None for op in dag_of(graph, group).stages)

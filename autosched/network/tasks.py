"""The kernels of a network as tasks: steps that compute the same are one, whatever their values are called."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosched.backends import Backend
from autosched.graph.description import describe
from autosched.graph.graph import Graph
from autosched.graph.partition import dag_of
from autosched.graph.steps import Group, NetworkStep
from autosched.network.build import build_kernels
from autosched.network.recipe import KernelObject, Recipe
from autosched.session.device import Device
from autosched.session.request import Request

Choose = Callable[[Sequence[Recipe]], Sequence[Recipe]]  # the recipes in order, with a schedule or as they are


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
    graph: Graph, steps: Sequence[NetworkStep], target_text: str, device: Device, choose: Choose | None = None
) -> tuple[NetworkTask, ...]:
    """The tasks of the steps that are kernels, built. Raises UnbuiltKernel."""
    target = device.target
    places: dict[Recipe, list[int]] = {}
    for n, step in enumerate(steps):
        if isinstance(step, Group):
            recipe = Recipe(spec_of(graph, step, target.backend), target_text, device.threads, gpu=target.gpu)
            places.setdefault(recipe, []).append(n)
    recipes = list(places)
    chosen = dict(zip(recipes, choose(recipes) if choose else recipes, strict=True))
    kernels = build_kernels(list(chosen.values()))
    return tuple(NetworkTask(chosen[recipe], kernels[chosen[recipe]], tuple(found)) for recipe, found in places.items())


def spec_of(graph: Graph, group: Group, backend: Backend) -> str:
    """What the kernel of a group computes, as recipes say it."""
    words = "-".join(node.operator for node in group.nodes)
    dtype, described = graph.values[group.outputs[0]].dtype, describe(graph, group, backend.has_weights)
    accepted = {"winograd": True} if graph.winograd and _may_transform(graph, group) else {}
    return json.dumps({"name": words, "args": {}, "dtype": dtype, "graph": described, **accepted}, sort_keys=True)


def _may_transform(graph: Graph, group: Group) -> bool:
    """Whether a sum of the group is a convolution that Winograd's transforms compute."""
    from autosched.te.rewrites.winograd import match_stage

    return any(match_stage(op) is not None for op in dag_of(graph, group).stages)

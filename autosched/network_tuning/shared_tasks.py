"""The tasks of one or several networks: kernels that compute the same are searched for once, whoever has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autosched.executor.model import Model
from autosched.kernel.request import Request
from autosched.kernel.task import without_numbers
from autosched.planning.extract_tasks import NetworkTask


@dataclass(frozen=True)
class SharedTask:
    """`members[n]`: the tasks of network n that compute this, none, one or more of all. `beside[n]`: those that do so
    in the other form of its parts alone."""

    members: tuple[tuple[NetworkTask, ...], ...]
    beside: tuple[tuple[NetworkTask, ...], ...]

    @cached_property
    def all_members(self) -> tuple[NetworkTask, ...]:
        return tuple(task for tasks in (*self.members, *self.beside) for task in tasks)

    @property
    def name(self) -> str:
        """The operators in it."""
        return self.all_members[0].name

    @property
    def request(self) -> Request:
        return self.all_members[0].request

    @property
    def counts(self) -> tuple[int, ...]:
        """How often it is called in a call of each network as it is."""
        return tuple(sum(task.count for task in tasks) for tasks in self.members)

    @property
    def has_steps(self) -> bool:
        """Whether every network has a schedule for it, and none what the analytic model likes."""
        return all(task.recipe.steps for task in self.all_members)

    def specs(self, network: int) -> tuple[str, ...]:
        """By which the network knows it, in either form of its parts."""
        return tuple(task.recipe.spec for task in (*self.members[network], *self.beside[network]))

    @cached_property
    def kind(self) -> str:
        """What it computes, whatever the sizes."""
        return json.dumps(without_numbers(json.loads(self.all_members[0].recipe.spec))[0], sort_keys=True)

    @property
    def flops(self) -> int:
        """Of a call."""
        return self.request.problem.dag.flops


def shared_tasks(models: Sequence[Model], others: Sequence[Model | None] = ()) -> tuple[SharedTask, ...]:
    """The tasks of all networks, in the order in which they come first. `others`: of each network the one with the
    other form of its open parts, where it has any."""
    members: dict[str, list[list[NetworkTask]]] = {}
    beside: dict[str, list[list[NetworkTask]]] = {}
    for found, networks in ((members, models), (beside, others)):
        for n, model in enumerate(networks):
            known = {task.recipe.spec for task in models[n].tasks} if found is beside else set()
            for task in model.tasks if model is not None else ():
                if task.recipe.spec not in known:
                    key = task.request.problem.dag.content_hash
                    for each in (members, beside):
                        each.setdefault(key, [[] for _ in models])
                    found[key][n].append(task)
    return tuple(SharedTask(tuple(map(tuple, members[key])), tuple(map(tuple, beside[key]))) for key in members)

"""Tasks shared by networks: kernels that compute the same are tuned once, whichever networks have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autosched.executor.model import Model
from autosched.kernel.request import Request
from autosched.planning.extract_tasks import NetworkTask
from autosched.tuner.workload_spec import WorkloadSpec


@dataclass(frozen=True)
class SharedTask:
    """`members[n]`: the tasks of network n that compute this; may be empty. `alternative_members[n]`: those that
    network n has only with the other choice of its undecided fusions."""

    members: tuple[tuple[NetworkTask, ...], ...]
    alternative_members: tuple[tuple[NetworkTask, ...], ...]

    @cached_property
    def all_members(self) -> tuple[NetworkTask, ...]:
        return tuple(task for tasks in (*self.members, *self.alternative_members) for task in tasks)

    @property
    def name(self) -> str:
        """The names of its operators."""
        return self.all_members[0].name

    @property
    def request(self) -> Request:
        return self.all_members[0].request

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of calls in a call of each network with its own fusion choices."""
        return tuple(sum(task.count for task in tasks) for tasks in self.members)

    @property
    def has_schedule(self) -> bool:
        """Whether every network has a given schedule for it, rather than the best by the analytic model."""
        return all(task.kernel_spec.steps for task in self.all_members)

    def specs(self, network: int) -> tuple[WorkloadSpec, ...]:
        """Return the specs of the network's tasks that compute this, of both fusion choices."""
        return tuple(task.kernel_spec.workload for task in (*self.members[network], *self.alternative_members[network]))

    @cached_property
    def similarity_key(self) -> str:
        """The computation without its sizes."""
        return json.dumps(self.all_members[0].kernel_spec.workload.numbers[0], sort_keys=True)

    @property
    def flops(self) -> int:
        """Operations of a call."""
        return self.request.problem.dag.flops


def shared_tasks(models: Sequence[Model], others: Sequence[Model | None] = ()) -> tuple[SharedTask, ...]:
    """Return the tasks of all networks, in the order of their first step.

    `others[n]`: network n with the other choice of its undecided fusions, None where it has none.
    """
    members: dict[str, list[list[NetworkTask]]] = {}
    fusion_choices: dict[str, list[list[NetworkTask]]] = {}
    for collected, networks in ((members, models), (fusion_choices, others)):
        for n, model in enumerate(networks):
            own_specs = (
                {task.kernel_spec.workload for task in models[n].tasks} if collected is fusion_choices else set()
            )
            for task in model.tasks if model is not None else ():
                if task.kernel_spec.workload not in own_specs:
                    key = task.request.problem.dag.content_hash
                    for each in (members, fusion_choices):
                        each.setdefault(key, [[] for _ in models])
                    collected[key][n].append(task)
    return tuple(SharedTask(tuple(map(tuple, members[key])), tuple(map(tuple, fusion_choices[key]))) for key in members)

"""The kernels of a network as tasks: steps that compute the same are one, whatever their values are called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autosched.codegen.source import KernelSource
from autosched.graph.graph import Graph
from autosched.graph.partition import Alias, Group, dag_of
from autosched.session.device import Device
from autosched.session.request import Request
from autosched.session.task import analytic_best, make_task
from autosched.tuner.definition import Definition

if TYPE_CHECKING:
    from autosched.te import ComputeDAG


@dataclass(frozen=True)
class NetworkTask:
    """A kernel that steps of a network share: their stages are the same, whatever the values are called."""

    name: str
    request: Request
    source: KernelSource
    steps: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.steps)


def tasks_of(graph: Graph, steps: Sequence[Group | Alias], device: Device) -> Iterator[NetworkTask]:
    found: dict[str, tuple[Request, list[int]]] = {}
    for n, step in enumerate(steps):
        if isinstance(step, Group):
            dag = dag_of(graph, step)
            if dag.content_hash not in found:
                found[dag.content_hash] = Request(_definition(step, dag), device), []
            found[dag.content_hash][1].append(n)
    for number, (request, places) in enumerate(found.values()):
        name = f"kernel{number}"
        made, _ = make_task(request, name=name)
        source = analytic_best(made, 1)[0][1]
        assert isinstance(source, KernelSource)
        yield NetworkTask(name, request, source, tuple(places))


def _definition(group: Group, dag: ComputeDAG) -> Definition:
    words = "-".join(node.operator for node in group.nodes)
    return Definition(words, (), dag.outputs[0].dtype, dag, json.dumps({"name": words, "args": {}}))

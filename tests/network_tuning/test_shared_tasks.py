"""Kernels that several networks have, and which are alike but for their sizes."""

from __future__ import annotations

import json

import autosched
from autosched.graph.graph import Graph
from autosched.kernel.task import nearest_shapes
from autosched.network_tuning.shared_tasks import shared_tasks
from autosched.store import WorkloadRow
from autosched.tuner.workload_spec import WorkloadSpec
from tests.graph import networks


def convolutions(*sizes: int) -> Graph:
    """One after the other, each with as many channels."""
    b = networks.Builder(x=(1, 3, 7, 5))
    value, channels = "x", 3
    for size in sizes:
        same = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1)}
        value = b.add("conv", value, b.constant(size, channels, 3, 3), None, **same)
        channels = size
    return b.graph(value)


def test_a_kernel_that_two_networks_have_is_one_task() -> None:
    models = [autosched.load(convolutions(*sizes), threads=1, records=False) for sizes in ((3, 3, 5), (3, 1))]
    tasks = shared_tasks(models)
    assert [task.counts for task in tasks] == [(2, 1), (1, 0), (0, 1)]
    assert [len(task.specs(1)) for task in tasks] == [1, 0, 1]
    assert len({task.similarity_key for task in tasks}) == 1
    assert tasks[0].flops == 2 * 35 * 3 * 3 * 9
    assert not any(task.has_schedule for task in tasks)


def test_other_sizes_of_a_kernel_are_near_it() -> None:
    sizes = [autosched.load(convolutions(3, n), threads=1, records=False) for n in (1, 5)]
    specs = [task.kernel_spec.workload for task in shared_tasks(sizes)[0].all_members[:1]]
    specs += [model.tasks[1].kernel_spec.workload for model in reversed(sizes)]
    rows = [WorkloadRow(str(n), "conv", spec.text) for n, spec in enumerate(specs)]
    found = nearest_shapes(specs[0], [*reversed(rows), WorkloadRow("old", "conv", '{"name": "conv"}')])
    assert [row.hash for row in found] == ["1", "2"]
    relu = json.loads(specs[0].text)
    relu["graph"]["nodes"].append(["relu", [2], [3], {}])
    assert nearest_shapes(WorkloadSpec.of(relu), rows) == []
    numbers = specs[0].numbers[1]
    assert nearest_shapes(specs[0], rows[:1]) == []  # itself
    assert [numbers[f"input 0 {n}"] for n in range(4)] == [1, 3, 7, 5]

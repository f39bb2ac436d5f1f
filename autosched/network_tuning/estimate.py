"""Ahead-of-time estimate of a network for another device: kernels, predicted latencies and cross-compiled code.

Nothing is measured, run or verified. The schedules are those that `autosched.load` takes without records: the best by
the analytic model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy.typing as npt

from autosched.artifacts.sources import make_output_directory, write_source
from autosched.codegen import Source
from autosched.executor.compile_graph import plan_graph
from autosched.executor.load import load_network
from autosched.graph.graph import Graph
from autosched.kernel.build import emit_source
from autosched.kernel.roofline import compulsory_bytes
from autosched.keywords import spelled_out
from autosched.planning.execution_plan import NetworkProgram
from autosched.planning.extract_tasks import NetworkTask

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class TaskEstimate:
    """A kernel that is called `count` times. `estimate_s`: predicted seconds of a call. `flops`: its operations,
    `n_bytes`: what it must read and write."""

    name: str
    count: int
    sketch: str
    estimate_s: float
    flops: int
    n_bytes: int

    @property
    def total_s(self) -> float:
        return self.count * self.estimate_s


@dataclass(frozen=True)
class NetworkPlan:
    """A network compiled for a device. `tasks`: in descending order of predicted time. `files`: the sources written."""

    name: str
    target: str
    threads: int
    tasks: tuple[TaskEstimate, ...]
    arena_bytes: int
    weights_bytes: int
    files: tuple[Path, ...] = ()

    @property
    def n_kernels(self) -> int:
        return sum(task.count for task in self.tasks)

    @property
    def estimate_s(self) -> float:
        """Predicted seconds of all kernels, one after the other."""
        return sum(task.total_s for task in self.tasks)

    def to_json(self) -> dict[str, object]:
        return {
            "schema_version": SCHEMA_VERSION,
            "network": self.name,
            "target": self.target,
            "threads": self.threads,
            "estimate_s": self.estimate_s,
            "kernels": self.n_kernels,
            "arena_bytes": self.arena_bytes,
            "weights_bytes": self.weights_bytes,
            "tasks": [asdict(task) for task in self.tasks],
            "files": [str(path) for path in self.files],
        }


@spelled_out()
def plan(
    model: str | Path | Graph,
    example_inputs: Sequence[object] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    target: str | None = "cpu",
    threads: int | None = None,
    out_dir: Path | str | None = None,
    winograd: bool = False,
) -> NetworkPlan:
    """Compile a network for a device that may be absent, and predict its latency by the analytic model.

    `model`, `example_inputs`, `sizes`, `inputs`, `target`, `threads` and `winograd` are those of `autosched.load`.
    `out_dir`: folder for the code of the tasks, a file each; None: none is written.

    Returns a `NetworkPlan` with predicted times in seconds. Raises what `load` raises, except for an absent device, and
    UsageError if files cannot be written.
    """
    directory = None if out_dir is None else make_output_directory(out_dir)
    graph = load_network(model, example_inputs, sizes, inputs, winograd)[0]
    program, device = plan_graph(graph, target, threads)
    tasks = sorted(program.all_tasks, key=lambda t: -t.count * t.kernel.schedule.estimate_s)
    files = () if directory is None else tuple(_write_sources(directory, tasks))
    text, memory = target or "cpu", program.memory.nbytes
    estimates = tuple(map(_estimate, tasks))
    return NetworkPlan(graph.name, text, device.threads, estimates, memory, program.weights_bytes, files)


def _write_sources(directory: Path, tasks: Sequence[NetworkTask]) -> Iterator[Path]:
    """Write a file for each task, `kernel-1.cu` for the first; a GPU's has a `.json` with the launch parameters."""
    for number, task in enumerate(tasks, start=1):
        yield write_source(directory, f"kernel-{number}", source_of(task), task.kernel_spec.workload.text)


def code_text(program: NetworkProgram) -> str:
    """Return the code of all tasks in the order of their first step, each below a comment with its operators."""
    return "\n".join(f"// {_describe(task)}\n{source_of(task).text}" for task in program.all_tasks)


def source_of(task: NetworkTask) -> Source:
    """Return the code of a task that was built."""
    return emit_source(replace(task.kernel_spec, steps=task.kernel.schedule.steps))


def _estimate(task: NetworkTask) -> TaskEstimate:
    dag, schedule = task.request.problem.dag, task.kernel.schedule
    return TaskEstimate(task.name, task.count, schedule.sketch, schedule.estimate_s, dag.flops, compulsory_bytes(dag))


def _describe(task: NetworkTask) -> str:
    times = f"{task.count} times, " if task.count > 1 else ""
    return f"{task.name.replace('-', ' ')}: {times}step {', '.join(map(str, task.steps))}"

"""A network for a device that need not be there: its kernels, what the analytic model expects of them, their code.

Nothing is measured, run or verified. Kernels are those that `autosched.load` makes where no records are.
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
from autosched.kernel.roofline import compulsory_bytes
from autosched.keywords import spelled_out
from autosched.planning.execution_plan import NetworkProgram
from autosched.planning.extract_tasks import NetworkTask

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PlannedTask:
    """A kernel that occurs `count` times. `sketch`, and the seconds of one of them, by the analytic model; operations
    and bytes that one must read and write."""

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
    """`tasks`: those first that take longest; `files`: what was written."""

    name: str
    target: str
    threads: int
    tasks: tuple[PlannedTask, ...]
    arena_bytes: int
    weights_bytes: int
    files: tuple[Path, ...] = ()

    @property
    def n_kernels(self) -> int:
        return sum(task.count for task in self.tasks)

    @property
    def estimate_s(self) -> float:
        """Of all kernels one after the other."""
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
    """What a network, as `autosched.load` takes it, becomes on a device that need not be there; the code of each task
    goes to a file of its own in `out_dir`. Raises what `load` does, but for a device that is absent, and UsageError
    where files cannot be written."""
    directory = None if out_dir is None else make_output_directory(out_dir)
    graph = load_network(model, example_inputs, sizes, inputs, winograd)[0]
    program, device = plan_graph(graph, target, threads)
    tasks = sorted(program.tasks, key=lambda t: -t.count * t.kernel.estimate_s)
    files = () if directory is None else tuple(_written(directory, tasks))
    text, memory = target or "cpu", program.memory.nbytes
    planned = tuple(map(_planned, tasks))
    return NetworkPlan(graph.name, text, device.threads, planned, memory, program.weights_bytes, files)


def _written(directory: Path, tasks: Sequence[NetworkTask]) -> Iterator[Path]:
    """A file for each task, `kernel-1.cu` that of what takes longest; of a GPU's `.json` says how it is launched."""
    for place, task in enumerate(tasks, start=1):
        yield write_source(directory, f"kernel-{place}", source_of(task), task.recipe.spec)


def code_text(program: NetworkProgram) -> str:
    """The code of all tasks, in the order in which they first run, each below a line that says what it computes."""
    return "\n".join(f"// {_said(task)}\n{source_of(task).text}" for task in program.tasks)


def source_of(task: NetworkTask) -> Source:
    """Of a task that was built, the code that its schedule gives."""
    return replace(task.recipe, steps=task.kernel.steps).source().code


def _planned(task: NetworkTask) -> PlannedTask:
    dag, kernel = task.request.problem.dag, task.kernel
    return PlannedTask(task.name, task.count, kernel.sketch, kernel.estimate_s, dag.flops, compulsory_bytes(dag))


def _said(task: NetworkTask) -> str:
    times = f"{task.count} times, " if task.count > 1 else ""
    return f"{task.name.replace('-', ' ')}: {times}step {', '.join(map(str, task.steps))}"

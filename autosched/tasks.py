"""From a request to what is searched and recorded: its sketches and the cost model over them, and a run of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from autosched.errors import NoValidCandidate
from autosched.kernels import Request

if TYPE_CHECKING:
    from autosched.codegen import GpuSource, KernelSource
    from autosched.device import Device
    from autosched.store import Database
    from autosched.te import ComputeDAG
    from autosched.tune.protocols import Candidate
    from autosched.tune.recorder import DatabaseRecorder
    from autosched.tune.task import Task
    from search_spaces.draft import SketchRule
    from search_spaces.space import Sketch

    Narrow = Callable[[tuple[Sketch, ...]], tuple[Sketch, ...]]


@dataclass(frozen=True)
class Space:
    """What is the user's in a search space: rules before the built-in ones, and what becomes of the sketches.

    Without `analytic` the cost model does not know its own analytic latency: it learns from nothing.
    """

    rules: tuple[SketchRule, ...] = ()
    narrow: Narrow | None = None
    analytic: bool = True


def make_task(request: Request, chosen: Space | None = None) -> tuple[Task, tuple[Sketch, ...]]:
    """The task: sketches, lowered once each, and the cost model over them."""
    from autosched.lower import lower
    from autosched.schedule import steps_to_json
    from autosched.tune.task import Task
    from cost_model import CostModel
    from search_spaces import space

    problem, device, chosen = request.problem, request.device, chosen or Space()
    found = _sketches(request.dag, device, chosen.rules)
    found = chosen.narrow(found) if chosen.narrow and found else found
    if not found:
        raise NoValidCandidate(
            f"no sketch rule of the target {request.target} applies to {problem.name}: report this workload"
        )
    names = [tuple(p.name for p in sketch.params) for sketch in found]
    nests = [lower(sketch.state) for sketch in found]
    model = CostModel(nests, names, device.target, device.threads, analytic=chosen.analytic)

    def emit(i: int, values: Mapping[str, int]) -> KernelSource | GpuSource:
        return request.source(nests[i], values, steps_to_json(found[i].state, values))

    numbers = (problem.name, problem.shape, problem.dtype, request.target, device.threads, problem.dag.flops)
    return Task(*numbers, found, space, model, emit, problem.dag.weights, problem.dag.winograd), found


def _sketches(dag: ComputeDAG, device: Device, rules: Sequence[SketchRule]) -> tuple[Sketch, ...]:
    """The search space of the device's kind."""
    if device.target.kind == "cpu":
        from search_spaces import cpu

        return cpu.sketches(dag, device.target, device.threads, (*rules, *cpu.RULES))
    from search_spaces import gpu

    return gpu.sketches(dag, device.target, (*rules, *gpu.RULES))


def task_key(request: Request) -> tuple[str, str, int]:
    """What the records of a task have in common: its workload's hash, its target's fingerprint, its threads."""
    device = request.device
    return request.problem.dag.content_hash, device.target.fingerprint, device.threads


def start_run(
    database: Database, request: Request, task: Task, sketches: tuple[Sketch, ...], seed: int, resume: bool
) -> DatabaseRecorder:
    """A new run in the database, starting from all records of its task if it resumes."""
    from autosched.schedule import steps_to_json
    from autosched.tune.recorder import DatabaseRecorder

    def steps(candidate: Candidate) -> str:
        return steps_to_json(sketches[candidate.sketch].state, task.values(candidate))

    problem, device, key = request.problem, request.device, task_key(request)
    resumed = tuple(database.records(*key)) if resume else ()
    known = database.best(*key)
    target_json = json.dumps(asdict(device.target), sort_keys=True)
    workload_hash, fingerprint, threads = key
    run_id = database.start_run(workload_hash, problem.name, problem.spec, fingerprint, target_json, threads, seed)
    return DatabaseRecorder(database, run_id, task, steps, resumed, known[0].seconds if known else None)

"""Tuning task of a request: its sketches and the cost model over them, and its run in the database."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from autosched.errors import NoValidCandidate, StoreError
from autosched.kernel.request import Request
from autosched.tuner.task_info import TaskInfo
from autosched.tuner.workload_spec import WEIGHTS_IN, WorkloadSpec, distance

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.store import Database, TargetRow, WorkloadRow
    from autosched.tuner.policy import Narrow, Policy
    from autosched.tuner.protocols import Candidate
    from autosched.tuner.recorder import DatabaseRecorder
    from autosched.tuner.task import Task
    from cost_model.experience import Experience
    from search_spaces.partial_sketch import SketchRule
    from search_spaces.space import Sketch

Made = TypeVar("Made")

NEAREST_SHAPES = 8  # nearest other shapes of an operator whose records a search starts from
BEST_OF_SHAPE = 8  # records of such a shape that are tried, as not all sketches apply to the new one


@dataclass(frozen=True)
class Space:
    """Changes of a search space by the user: `rules` come before the built-in ones, `narrow` selects from the sketches.

    Without `analytic` the cost model does not use the analytic latency: it starts without knowledge.
    """

    rules: tuple[SketchRule, ...] = ()
    narrow: Narrow | None = None
    analytic: bool = True


def make_task(
    request: Request, chosen: Space | None = None, name: str = "kernel", experience: Experience | None = None
) -> tuple[Task, tuple[Sketch, ...]]:
    """Return the task of a request and its sketches.

    The cost model learns from other tasks with the same `experience`. `name`: the name of the kernels. Raises
    NoValidCandidate if no sketch rule applies.
    """
    from autosched.lower import lower
    from autosched.tuner.task import Task
    from autosched.tuner.time_bound import bound_of
    from cost_model import CostModel
    from search_spaces import space

    problem, device, chosen = request.problem, request.device, chosen or Space()
    found = device.hardware.sketches(request.collapsed, device, chosen.rules)
    if request.in_network:  # in a network kernels are joined to be one nest
        found = tuple(s for s in found if s.fuses_reductions) or found
    found = chosen.narrow(found) if chosen.narrow and found else found
    if not found:
        raise NoValidCandidate(
            f"no sketch rule of the target {request.target_text} applies to {problem.name}: report this workload"
        )
    names = [tuple(p.name for p in sketch.params) for sketch in found]
    nests = [lower(sketch.state, name) for sketch in found]
    model = CostModel(
        nests, names, device.target, device.threads, analytic=chosen.analytic, experience=experience,
        weights_in=problem.dag.weights_in,
    )  # fmt: skip

    def emit(i: int, values: Mapping[str, int]) -> Source:
        return request.source(nests[i], found[i].state.steps, values)

    bound = bound_of(problem.dag, problem.dtype, device.target, device.threads)
    return Task(_subject(request), found, space, model, emit, request.load, bound), found


def analytic_best(
    task: Task, n: int, make: Callable[[Candidate], Made], policy: Policy | None = None
) -> list[tuple[Candidate, Made]]:
    """Return the best candidates by the analytic model for which `make`, code generation say, succeeds: 1 to `n`.

    Each comes with the result of `make`. `policy`: of the search, default FULL. Raises NoValidCandidate if there are
    none.
    """
    from autosched.tuner.policy import FULL
    from autosched.tuner.search import Search

    search = Search(task.space, task.sketches, task.model, seed=0, policy=policy or FULL)
    found: list[tuple[Candidate, Made]] = []
    error: Exception | None = None
    for candidate in search.propose(0, 2 * n, "draft"):
        try:
            found.append((candidate, make(candidate)))
        except Exception as failure:  # a bug of code generation costs its candidate only
            error = failure
        if len(found) == n:
            break
    if not found:
        beyond_limits = "is within the limits of a kernel: compute fewer or smaller stages"
        why = f"can be generated: {error}" if error else beyond_limits
        raise NoValidCandidate(f"no candidate of {task.info.workload} {why}") from error
    return found


def _subject(request: Request) -> TaskInfo:
    from autosched.te.rewrites.precision import allowed_precision

    problem, dag = request.problem, request.problem.dag
    return TaskInfo(
        workload=problem.name,
        shape=problem.shape,
        dtype=problem.dtype,
        target=request.target_text,
        threads=request.device.threads,
        flops=dag.flops,
        weights=dag.weights,
        winograd=dag.winograd,
        precision=allowed_precision(dag),
    )


def task_key(request: Request) -> tuple[str, str, int]:
    """Return the key of a task's records: its workload's hash, its target's fingerprint, its threads."""
    device = request.device
    return request.problem.dag.content_hash, device.target.fingerprint, device.threads


def rows_of(request: Request) -> tuple[WorkloadRow, TargetRow]:
    """Return what the database holds of a task's workload and target."""
    from autosched.store import TargetRow, WorkloadRow

    problem, target = request.problem, request.device.target
    described = json.dumps(asdict(target), sort_keys=True)
    return WorkloadRow(problem.dag.content_hash, problem.name, problem.spec), TargetRow(target.fingerprint, described)


def start_run(
    database: Database, request: Request, task: Task, sketches: tuple[Sketch, ...], seed: int, resume: bool
) -> DatabaseRecorder:
    """Start a run in the database; if it resumes, from all records of its task.

    Records that this installation has not verified are no times to beat: they only seed the search.
    """
    from autosched.schedule import steps_to_json
    from autosched.tuner.recorder import DatabaseRecorder

    def steps(candidate: Candidate) -> str:
        return steps_to_json(sketches[candidate.sketch].state, task.values(candidate))

    problem, key = request.problem, task_key(request)
    resumed = tuple(database.records(*key)) if resume else ()
    known = database.best(*key, n=None)
    ours, claims = [r for r in known if r.verified], tuple(r for r in known if not r.verified)
    _, fingerprint, threads = key
    near = nearest_shapes(WorkloadSpec(problem.spec), database.workloads())[:NEAREST_SHAPES]
    relatives = [tuple(database.best(w.hash, fingerprint, threads, BEST_OF_SHAPE)) for w in near]
    others = (claims[:BEST_OF_SHAPE], *relatives)
    run_id = database.start_run(*rows_of(request), threads, seed)
    return DatabaseRecorder(database, run_id, task, steps, resumed, ours[0].seconds if ours else None, others)


def nearest_shapes(spec: WorkloadSpec, workloads: Iterable[WorkloadRow]) -> list[WorkloadRow]:
    """Return the workloads that differ from `spec` only in sizes or in residency of weights, nearest first."""
    structure, sizes = spec.numbers
    near = []
    for workload in workloads:
        with suppress(StoreError, TypeError, AttributeError, KeyError):  # of another version, or from elsewhere
            other = WorkloadSpec.from_record(workload.spec)
            if other.numbers[0] != structure:
                continue
            numbers, residency = other.numbers[1], other.data.get(WEIGHTS_IN)
            if (numbers, residency) != (sizes, spec.data.get(WEIGHTS_IN)):
                near.append((distance(sizes.values(), (numbers[name] for name in sizes)), workload))
    return [workload for _, workload in sorted(near, key=lambda pair: pair[0])]

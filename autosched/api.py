"""The library as its users see it: define a workload, tune it, compile the best kernel, look at records.

Here everything is joined: the search space, the cost model, measurement, records and the session. Heavy modules are
imported where they are used, and the workers start while the sketches are made, so that a first verified kernel is
there within seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from autosched.errors import DeviceError, NoValidCandidate, TargetError, UsageError, VerificationError
from autosched.target import Target, parse_target
from autosched.tune.definition import Definition, Operator, Setting, Workload, arguments, define, redefine

if TYPE_CHECKING:
    from autosched.codegen.source import KernelSource
    from autosched.measure import Measurement
    from autosched.runtime.kernel import Kernel
    from autosched.store import Database, Record
    from autosched.te import ComputeDAG, Tensor
    from autosched.tune.callbacks import Callback
    from autosched.tune.protocols import Candidate
    from autosched.tune.recorder import DatabaseRecorder
    from autosched.tune.result import Result
    from autosched.tune.task import Task
    from search_spaces.space import Sketch

FORMS = ("steps", "ir", "llvm", "asm")
PEAK_SHARE = {"float32": 1.0, "float64": 0.5}  # of the single-precision peak; other types have none
WRITTEN = 4  # candidates whose sources go to `out_dir`


@dataclass(frozen=True)
class _Device:
    """What kernels are made for."""

    target: Target
    threads: int


F = TypeVar("F", bound=Operator)


def workload(function: F) -> F:
    """Decorator for a function that returns output tensors: checks that it can be tuned, and returns it unchanged.

    Its arguments are the workload's numbers. Raises UsageError if one has no name or no default.
    """
    arguments(function)
    return function


def tune(
    workload: Workload,
    *,
    shape: Sequence[int] | None = None,
    settings: Mapping[str, Setting] | None = None,
    batch: int | None = None,
    dtype: str = "float32",
    target: str | None = "cpu",
    threads: int | None = None,
    trials: int = 64,
    budget_s: float | None = None,
    seed: int = 0,
    db: Path | str | None = None,
    resume: bool = False,
    out_dir: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    started: float | None = None,
) -> Result:
    """Searches for the fastest kernel of `workload` with at most `trials` measurements and `budget_s` seconds.

    `workload`: a built-in name, "file.py:function", or a function. `shape` fills its arguments in order, `settings` by
    name, `batch` is the first. `resume` counts the records of earlier runs as trials. `out_dir` receives the LLVM IR of
    the best candidates. `started`: when the command began, on `time.monotonic`, default now.

    Raises UsageError, DeviceError, NoValidCandidate, and Interrupted for a Ctrl-C before the first verified kernel; a
    later one ends the search with what it has (`Result.interrupted`).
    """
    begun = time.monotonic() if started is None else started
    if trials < 1:
        raise UsageError(f"trials must be at least 1, got {trials}")
    problem = define(workload, shape, settings, batch, dtype)
    device = _device(target, threads)

    from autosched.measure import Measurer, make_problem
    from autosched.measure.host import ScratchDirectory
    from autosched.store import Database
    from autosched.te.collapse import collapse
    from autosched.tune.session import Settings, run

    with Database(db) as database, ScratchDirectory() as scratch:
        peak = _peak_gflops(device, problem.dtype)
        data = make_problem(problem.dag, scratch, seed)
        with Measurer(data, device.target, device.threads) as measurer:
            dag = collapse(problem.dag)
            task, sketches = _make_task(problem, dag, target or "cpu", device)
            result = run(
                task,
                Settings(trials, budget_s, seed),
                measurer,
                _recorder(database, problem, device, task, sketches, seed, resume),
                callbacks,
                peak_gflops=peak,
                started=begun,
                kernel=lambda candidate: _kernel(problem, device, task.source(candidate)),
            )
    if out_dir is not None:
        _write_sources(Path(out_dir), task, result)
    return result


def compile(
    workload: Workload,
    *,
    shape: Sequence[int] | None = None,
    settings: Mapping[str, Setting] | None = None,
    batch: int | None = None,
    dtype: str = "float32",
    target: str | None = "cpu",
    threads: int | None = None,
    db: Path | str | None = None,
) -> Kernel:
    """The stored best kernel of `workload`, or, where none is stored, the one that the analytic model likes best.

    The latter takes no measurement and has not been verified. Raises NoValidCandidate if there is neither.
    """
    from autosched.te.collapse import collapse

    problem = define(workload, shape, settings, batch, dtype)
    device = _device(target, threads)
    dag = collapse(problem.dag)
    for record in _stored(problem, device, db, n=1):
        return _kernel(problem, device, _stored_source(record, dag, device))
    task, _ = _make_task(problem, dag, target or "cpu", device)
    return _kernel(problem, device, _analytic_best(task))


def best(
    workload: Workload,
    *,
    shape: Sequence[int] | None = None,
    settings: Mapping[str, Setting] | None = None,
    batch: int | None = None,
    dtype: str = "float32",
    target: str | None = "cpu",
    threads: int | None = None,
    db: Path | str | None = None,
    n: int = 1,
) -> list[Record]:
    """The `n` best stored records of `workload`, best first; empty where nothing is stored."""
    return _stored(define(workload, shape, settings, batch, dtype), _device(target, threads), db, n)


def show(
    record_id: int,
    db: Path | str | None = None,
    as_: str = "steps",
    *,
    workload: Workload | None = None,
    target: str | None = None,
) -> str:
    """A stored candidate as text: schedule `steps` (one JSON array a line), loop nest (`ir`), `llvm` or `asm`.

    A record of a user's own function needs that function as `workload`, one of another machine its `target`.
    """
    if as_ not in FORMS:
        raise UsageError(f"a record is shown as {', '.join(FORMS)}, got {as_!r}")
    problem, record, device = _read_record(record_id, db, workload, target, needs_device=as_ in ("llvm", "asm"))
    if as_ == "steps":
        return "\n".join(json.dumps(step) for step in json.loads(record.steps))

    from autosched.te.collapse import collapse

    dag = collapse(problem.dag)
    if as_ == "ir":
        from autosched.ir.printer import func_text
        from autosched.lower import concretise, lower
        from autosched.schedule import replay

        concrete, _ = concretise(lower(replay(dag, record.steps)), {})
        return func_text(concrete)
    source = _stored_source(record, dag, device)
    if as_ == "llvm":
        return source.ir

    from autosched.runtime.jit import emit_assembly

    return emit_assembly(source.ir, device.target)


def verify(
    record_id: int,
    db: Path | str | None = None,
    *,
    workload: Workload | None = None,
    target: str | None = None,
    seed: int = 1,
) -> Measurement:
    """Builds a stored candidate again, checks it on fresh data derived from `seed` and times it.

    Raises VerificationError if it fails in any way.
    """
    from autosched.measure import Failure, Job, Measurer, make_problem
    from autosched.measure.host import ScratchDirectory
    from autosched.te.collapse import collapse

    problem, record, device = _read_record(record_id, db, workload, target, needs_device=True)
    with ScratchDirectory() as scratch:
        data = make_problem(problem.dag, scratch, seed)
        with Measurer(data, device.target, device.threads) as measurer:
            source = _stored_source(record, collapse(problem.dag), device)
            (answer,) = measurer.measure([Job("record", source)])
    if isinstance(answer, Failure):
        raise VerificationError(f"record {record_id} ({problem.name}) failed with {answer.kind}: {answer.message}")
    return answer


# Putting together


def _device(target: str | None, threads: int | None) -> _Device:
    device = parse_target(target)
    if device.kind != "cpu":
        raise DeviceError(f"the target {device.kind} is not supported by this build yet; use cpu")
    if not device.runs_here:
        raise DeviceError(f"kernels for {device.mcpu} ({device.arch}) cannot be measured on this machine; use cpu")
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}")
    return _Device(device, threads or device.cores)


def _peak_gflops(device: _Device, dtype: str) -> float | None:
    """What the processor can do at most, measured now, before any worker disturbs it; None for integer types."""
    if dtype not in PEAK_SHARE:
        return None

    from autosched.measure.host import device_lock
    from autosched.runtime.peak import measure_fma_gflops

    with device_lock("cpu"):
        return PEAK_SHARE[dtype] * measure_fma_gflops(device.target, device.threads)


def _make_task(problem: Definition, dag: ComputeDAG, target: str, device: _Device) -> tuple[Task, tuple[Sketch, ...]]:
    """The task of the collapsed `dag`: sketches, lowered once each, and the cost model over them."""
    from autosched.codegen import build_source
    from autosched.lower import lower
    from autosched.tune.task import Task
    from cost_model import CostModel
    from search_spaces import space
    from search_spaces.cpu import sketches

    found = sketches(dag, device.target, device.threads)
    if not found:
        raise NoValidCandidate(f"no sketch rule of the target {target} applies to {problem.name}: report this workload")
    names = [tuple(p.name for p in sketch.params) for sketch in found]
    nests = [lower(sketch.state) for sketch in found]
    model = CostModel(nests, names, device.target, device.threads)

    def emit(i: int, values: Mapping[str, int]) -> KernelSource:
        return build_source(nests[i], values, device.target, device.threads)

    task = Task(
        problem.name, problem.shape, problem.dtype, target, device.threads, problem.dag.flops, found, space, model, emit
    )
    return task, found


def _recorder(
    database: Database,
    problem: Definition,
    device: _Device,
    task: Task,
    sketches: tuple[Sketch, ...],
    seed: int,
    resume: bool,
) -> DatabaseRecorder:
    """A new run in the database, starting from all records of its task if it resumes."""
    from autosched.schedule import steps_to_json
    from autosched.tune.recorder import DatabaseRecorder

    def steps(candidate: Candidate) -> str:
        return steps_to_json(sketches[candidate.sketch].state, task.values(candidate))

    target, workload_hash = device.target, problem.dag.content_hash
    resumed = tuple(database.records(workload_hash, target.fingerprint, device.threads)) if resume else ()
    target_json = json.dumps(asdict(target), sort_keys=True)
    run_id = database.start_run(
        workload_hash, problem.name, problem.spec, target.fingerprint, target_json, device.threads, seed
    )
    return DatabaseRecorder(database, run_id, task, steps, resumed)


def _write_sources(directory: Path, task: Task, result: Result) -> None:
    """The LLVM IR of the fastest candidates, as `<workload>-<rank>.ll`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        timed = sorted((t for t in result.records if t.seconds is not None), key=lambda t: t.seconds or 0.0)
        first = [t for t in timed if t.record_id == result.record_id]
        rest = [t for t in timed if t.record_id != result.record_id]
        for rank, trial in enumerate((first + rest)[:WRITTEN], start=1):
            path = directory / f"{task.workload.rpartition(':')[2]}-{rank}.ll"
            path.write_text(task.source(trial.candidate).ir, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the sources cannot be written to {directory}: {error.strerror}") from error


# Records and kernels


def _stored(problem: Definition, device: _Device, db: Path | str | None, n: int) -> list[Record]:
    from autosched.store import Database, default_path

    path = default_path() if db is None else Path(db)
    if not path.expanduser().exists():
        return []
    with Database(path) as database:
        return database.best(problem.dag.content_hash, device.target.fingerprint, device.threads, n)


def _read_record(
    record_id: int, db: Path | str | None, workload: Workload | None, target: str | None, needs_device: bool
) -> tuple[Definition, Record, _Device]:
    """A record with the problem it solves and the device it is for. Checks that they belong together."""
    from autosched.store import Database

    with Database(db, create=False) as database:
        record = database.record(record_id)
        spec = database.workload(record.workload).spec
    problem = redefine(spec, workload)
    if problem.dag.content_hash != record.workload:
        raise UsageError(
            f"record {record_id} is of another workload than {problem.name} with the arguments stored for it"
        )
    device = _Device(parse_target(target), record.threads)
    if needs_device and device.target.fingerprint != record.target:
        raise TargetError(
            f"record {record_id} is for {record.target}, this is {device.target.fingerprint}: name its target"
        )
    return problem, record, device


def _stored_source(record: Record, dag: ComputeDAG, device: _Device) -> KernelSource:
    """A record's code, generated anew from its steps."""
    from autosched.codegen import build_source
    from autosched.lower import lower
    from autosched.schedule import replay

    return build_source(lower(replay(dag, record.steps)), {}, device.target, device.threads)


def _analytic_best(task: Task) -> KernelSource:
    """The code of the first candidate of the draft that can be expressed."""
    from autosched.tune.search import Search

    search = Search(task.space, task.sketches, task.model, seed=0)
    error: Exception | None = None
    for candidate in search.propose(0, 4, "draft"):
        try:
            return task.source(candidate)
        except Exception as failure:  # a bug of code generation costs its candidate only
            error = failure
    raise NoValidCandidate(f"no candidate of {task.workload} can be generated: {error}") from error


def _kernel(problem: Definition, device: _Device, source: KernelSource) -> Kernel:
    """A callable kernel over arrays of the user's shapes."""
    from autosched.runtime.kernel import build_kernel
    from autosched.runtime.tensors import ArraySpec

    def specs(tensors: Sequence[Tensor]) -> tuple[ArraySpec, ...]:
        return tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in tensors)

    inputs, outputs = specs(problem.dag.inputs), specs(problem.dag.outputs)
    return build_kernel(source.ir, source.name, device.target, inputs, outputs, source.workspace_bytes, source.threads)

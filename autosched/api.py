"""Public functions for workloads: define one, tune it, compile the best kernel, read records.

This module joins search space, cost model, measurement, records and search. Heavy modules are imported where they are
used, and the workers start while sketches are generated, so that a first verified kernel exists within seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from autosched.artifacts.sources import make_output_directory, write_fastest
from autosched.errors import UsageError
from autosched.inspection.estimate import estimate
from autosched.inspection_api import explain, export, show, verify
from autosched.kernel.device import find_device, peak_reader
from autosched.kernel.index_checked import IndexCheckedKernel, with_checks
from autosched.kernel.lookup import best_kernel, stored_records
from autosched.kernel.measuring import start_measurer
from autosched.kernel.request import Request
from autosched.kernel.task import Space, make_task, start_run
from autosched.kernel.trust import warn_without_key
from autosched.keywords import spelled_out
from autosched.network_api import is_network, load, loaded, tune_models
from autosched.network_tuning.results import Effort, check_tuning
from autosched.network_tuning.strategies import DEFAULT as STRATEGY
from autosched.tuner.definition import Operator, Workload, arguments, define
from autosched.tuner.options import WorkloadKeywords, WorkloadOptions
from autosched.tuner.policy import SearchSetup, check_search
from autosched.tuner.session import Settings

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

    from autosched.executor.model import Model
    from autosched.graph.graph import Graph
    from autosched.network_tuning.results import NetworkCallback, NetworkResult, NetworksResult
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel
    from autosched.store import Record
    from autosched.tuner.callbacks import Callback
    from autosched.tuner.result import Result
    from search_spaces.partial_sketch import SketchRule


TRIALS = 64

__all__ = ["best", "compile", "explain", "export", "load", "show", "tune", "verify", "workload"]

F = TypeVar("F", bound=Operator)


def workload(function: F) -> F:
    """Decorator for a function that returns output tensors: checks that it can be tuned, and returns it unchanged.

    Its arguments are the workload's numbers. Raises UsageError if one has no name or no default.
    """
    arguments(function)
    return function


@overload
def tune(
    workload: Workload,
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    resume: bool = False,
    db: Path | str | None = None,
    out_dir: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    rules: Sequence[SketchRule] = (),
    search: SearchSetup | None = None,
    **options: Unpack[WorkloadKeywords],
) -> Result: ...


@overload
def tune(
    workload: Path | Graph | Model,
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    resume: bool = False,
    db: Path | str | None = None,
    out_dir: Path | str | None = None,
    callbacks: Sequence[NetworkCallback] = (),
    search: SearchSetup | None = None,
    example_inputs: Sequence[object] | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, ArrayLike] | None = None,
    strategy: str = STRATEGY,
    objective: str | Callable[[dict[str, float]], float] = "sum",
    **options: Unpack[WorkloadKeywords],
) -> NetworkResult: ...


@overload
def tune(
    workload: list[Path | Graph | Model] | Mapping[str, Path | Graph | Model],
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    resume: bool = False,
    db: Path | str | None = None,
    callbacks: Sequence[NetworkCallback] = (),
    search: SearchSetup | None = None,
    strategy: str = STRATEGY,
    objective: str | Callable[[dict[str, float]], float] = "sum",
    **options: Unpack[WorkloadKeywords],
) -> NetworksResult: ...


@spelled_out(WorkloadOptions)
def tune(
    workload: Any,
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    resume: bool = False,
    db: Path | str | None = None,
    out_dir: Path | str | None = None,
    callbacks: Sequence[Any] = (),
    rules: Sequence[SketchRule] = (),
    search: SearchSetup | None = None,
    example_inputs: Sequence[object] | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, ArrayLike] | None = None,
    strategy: str = STRATEGY,
    objective: str | Callable[[dict[str, float]], float] = "sum",
    **options: Unpack[WorkloadKeywords],
) -> Result | NetworkResult | NetworksResult:
    """Searches for the fastest kernel of `workload`: a built-in name, "file.py:function", or a function; or for those
    of a network, what `load` takes with `example_inputs`, `sizes` and `inputs`, or of several, in a list or by names.

    What is asked for. `shape` fills the workload's numbers in order, `settings` any argument by name, `batch` replaces
    the first number (it multiplies one called M), `dtype` is that of the elements (float32, or the function's own).
    `weights` names inputs that never change: what depends on them alone is computed once, by `Kernel.bind`, and is not
    timed. `winograd` accepts the error of Winograd's transforms (`te.rewrites.winograd`), `precision` that of float32
    multiplied as "tf32" or "3xtf32" (`ir.precision`). Each makes another workload, with records of its own.
    `target`: "cpu", "cuda", "opencl", "llvm -mcpu=haswell" or "cuda -arch=sm_80"; `threads` of a processor: all cores.
    How long. At most `trials` measurements (64) and `budget_s` seconds, drawn by `seed`. `resume` counts the
    measurements of earlier runs as trials, and their failures but for candidates that could not be built.
    What stays. Records in `db` (`autosched db path`), in `out_dir` code of the best; `tuner.callbacks` see the search.
    How. `rules` are sketch rules of yours (`search_spaces.partial_sketch.SketchRule`), tried before the built-in ones.
    `search` is what experiments change, and a search without measurements (`tuner.policy.SearchSetup`).
    Networks. They take a target, threads, how long, a database, and other callbacks; besides, which task is next
    (`strategy`, `network_tuning.strategies`) and what is minimised (`objective`, see `network_tuning.objectives`, or
    a function of latencies by name). The result has the network as `model`; of several, theirs as `networks`.

    Raises UsageError, DeviceError, NoValidCandidate, and Interrupted for a Ctrl-C before the first verified kernel; a
    later one ends the search with what it has.
    """
    now, setup = time.monotonic(), search or SearchSetup()
    begun = now if (said := getattr(setup, "started", None)) is None else said
    if _is_whole_network(workload):
        check_tuning({**options, "out_dir": out_dir, "rules": rules}, setup, callbacks)
        effort = Effort(trials, budget_s, seed, resume, begun, strategy, objective)
        loading = {**options, "example_inputs": example_inputs, "sizes": sizes, "inputs": inputs, "db": db}
        return _tune_networks(workload, loading, effort, callbacks)
    if any(x is not None for x in (example_inputs, sizes, inputs)) or strategy != STRATEGY or objective != "sum":
        raise UsageError("example_inputs, sizes, inputs, strategy, objective are of networks, and the workload is none")
    check_search(rules, callbacks, setup, resume)
    settings = Settings(TRIALS if trials is None else trials, budget_s, seed, setup.policy, begun)
    if setup.measure and setup.policy.learned:
        _check_interpreter()
    request = _request(workload, WorkloadOptions(**options), runs=setup.measure)
    request.check()
    directory = None if out_dir is None else make_output_directory(out_dir)
    if setup.measure:
        space = Space(tuple(rules), setup.narrow, setup.policy.draft)
        return _search(request, space, settings, db, resume, callbacks, directory)
    return estimate(request, Space(tuple(rules), setup.narrow), directory, begun, setup.simulate)


@overload
def compile(
    workload: Workload, *, db: Path | str | None = None, **options: Unpack[WorkloadKeywords]
) -> Kernel | GpuKernel: ...


@overload
def compile(
    workload: Workload, *, db: Path | str | None = None, check_indices: bool, **options: Unpack[WorkloadKeywords]
) -> Kernel | GpuKernel | IndexCheckedKernel: ...


@spelled_out(WorkloadOptions)
def compile(
    workload: Workload,
    *,
    db: Path | str | None = None,
    check_indices: bool = False,
    **options: Unpack[WorkloadKeywords],
) -> Kernel | GpuKernel | IndexCheckedKernel:
    """Return the best stored kernel of `workload` that fits this version of autosched, or, if none is stored, the best
    by the analytic model.

    What this installation has not verified, a record from elsewhere or of a version without signatures, is used where
    there is no other, and a worker verifies it first. A RecordWarning tells of that, and of records that were passed
    over because they are wrong, cannot be built or do not fit. The analytic best takes no measurement and has not been
    verified. With `weights` it is the best with these inputs as weights, and has a `bind` that packs them once. With
    `check_indices` calls raise IndexError for indices out of range. Raises NoValidCandidate if there is neither.
    """
    request = _request(workload, WorkloadOptions(**options))
    request.check()
    kernel = best_kernel(request, db)
    return with_checks(kernel, request, workload, WorkloadOptions(**options)) if check_indices else kernel


@spelled_out(WorkloadOptions)
def best(
    workload: Workload, *, db: Path | str | None = None, n: int = 1, **options: Unpack[WorkloadKeywords]
) -> list[Record]:
    """Return the `n` best stored records of `workload`, best first; empty if there are none.

    Those that this installation has not verified (`Record.verified`) come last: they are claims.
    """
    return stored_records(_request(workload, WorkloadOptions(**options)), db, n)


# Putting together


def _request(workload: Workload, options: WorkloadOptions, *, runs: bool = True) -> Request:
    problem = define(workload, options)
    return Request(problem, find_device(options.target, options.threads, runs=runs), options.target or "cpu")


def _is_whole_network(workload: object) -> bool:
    """Return whether the argument of `tune` is a network or several, not a workload's name."""
    if isinstance(workload, str | Path):
        from autosched.executor.load import is_network_file

        return is_network_file(workload)
    return is_network(workload) or isinstance(workload, (list, Mapping))


def _tune_networks(
    networks: Any, loading: Mapping[str, Any], effort: Effort, callbacks: Sequence[NetworkCallback]
) -> NetworkResult | NetworksResult:
    _check_interpreter()
    if isinstance(networks, (list, Mapping)) and not (
        loading["example_inputs"] is loading["sizes"] is loading["inputs"] is None
    ):
        raise UsageError("example_inputs, sizes and inputs are of one network: load each of several with its own first")
    names = ("example_inputs", "sizes", "inputs", "target", "threads", "db", "winograd")
    of = {name: loading[name] for name in names if name in loading}
    return tune_models(networks, partial(loaded, **of), effort, loading["db"], callbacks)


def _check_interpreter() -> None:
    """Raise UsageError without docstrings (python -OO): XGBoost needs its own, and would fail after the first round."""
    if sys.flags.optimize > 1:
        raise UsageError(
            "Python runs without docstrings (PYTHONOPTIMIZE=2 or -OO), and XGBoost, which learns from measurements, "
            "cannot do without them: unset PYTHONOPTIMIZE, or set it to 1"
        )


def _search(
    request: Request,
    space: Space,
    settings: Settings,
    db: Path | str | None,
    resume: bool,
    callbacks: Sequence[Callback],
    directory: Path | None,
) -> Result:
    """Run one search with its database and workers; write the sources of the fastest to `directory`."""
    from autosched.measure.host import ScratchDirectory
    from autosched.store import Database
    from autosched.tuner.gc_pause import pause_gc
    from autosched.tuner.session import run

    problem, device = request.problem, request.device
    with (
        ScratchDirectory() as scratch,
        pause_gc(),
        start_measurer(request, scratch, settings.seed) as measurer,
        Database(db) as database,
    ):
        warn_without_key()
        task, sketches = make_task(request, space)
        recorder = start_run(database, request, task, sketches, settings.seed, resume)
        read_peak = peak_reader(device, problem.dtype, task.source, measurer)
        result = run(task, settings, measurer, recorder, callbacks, read_peak=read_peak)
    if directory is not None:
        write_fastest(directory, task, result, request.problem.spec, db)
    return result

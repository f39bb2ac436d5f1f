"""Public functions for workloads: define one, tune it, compile the best kernel, read records.

This module joins search space, cost model, measurement, records and search. Heavy modules are imported where they are
used, and the workers start while sketches are generated, so that a first verified kernel exists within seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from autosched.kernel.sizes.sized_kernel import SizedKernel, compile_sizes
from autosched.kernel.sizes.tuning import At, SizesResult, tune_sizes, weights_of
from autosched.kernel.task import Space, make_task, start_run
from autosched.kernel.trust import warn_without_key
from autosched.keywords import spelled_out
from autosched.network_api import is_network, load, loaded, tune_models
from autosched.network_tuning.results import Effort, check_tuning
from autosched.network_tuning.strategies import DEFAULT as STRATEGY
from autosched.tuner.definition import Operator, Workload, arguments, define, function_of
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
    from autosched.te import Tensor
    from autosched.tuner.callbacks import Callback
    from autosched.tuner.result import Result
    from search_spaces.partial_sketch import SketchRule


TRIALS = 64

__all__ = ["best", "compile", "explain", "export", "load", "show", "tune", "verify", "workload"]

F = TypeVar("F", bound=Operator)


def workload(function: F) -> F:
    """Declare a function that returns output tensors as a workload, and return it unchanged.

    Its arguments are the numbers of the workload. Raises UsageError for an argument without a name or a default.
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
    workload: Workload,
    *,
    sizes: Mapping[str, range | tuple[int, int]],
    at: At,
    trials: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    resume: bool = False,
    db: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    rules: Sequence[SketchRule] = (),
    search: SearchSetup | None = None,
    **options: Unpack[WorkloadKeywords],
) -> SizesResult: ...


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
    sizes: Mapping[str, Any] | None = None,
    at: At | None = None,
    inputs: Mapping[str, ArrayLike] | None = None,
    strategy: str = STRATEGY,
    objective: str | Callable[[dict[str, float]], float] = "sum",
    **options: Unpack[WorkloadKeywords],
) -> Result | SizesResult | NetworkResult | NetworksResult:
    """Search for the fastest kernel of a workload, or for the fastest kernels of networks, by measurements.

    Args:
        workload: name of a built-in operator, "file.py:function", or a function that returns output tensors; a network,
            as `load` takes it; a list of networks or a mapping from their names.
        trials: most measurements. None: 64 for a workload; for networks without `budget_s`, until little gain is left.
        budget_s: most seconds. `seed`: that of the random draws.
        resume: count measurements of earlier runs as trials, and skip candidates that failed, unless in building.
        db: database file of the records; None: the path that `autosched db path` prints.
        out_dir: folder for the code of the best kernel; not for networks.
        callbacks: observers, `tuner.callbacks.Callback` or `network_tuning.results.NetworkCallback`.
        rules: `SketchRule`s to try before the built-in ones (`search_spaces.partial_sketch`); not for networks.
        search: parameters for experiments, or a search without measurements.
        example_inputs, sizes, inputs: those of `load`, for one network.
        sizes, at: of a workload the ranges of `compile`, and sizes that count, as in {"M": [1, 7]} or with weights
            {"M": {1: 3, 64: 1}}, by which the classes of sizes share trials and seconds.
        strategy: how networks' next task is chosen: "gradient", "gain" or "round-robin".
        objective: what networks minimise: a name of `network_tuning.objectives`, or a function of seconds by name.
        options: the fields of `WorkloadOptions`; networks take `target`, `threads` and `winograd`.

    Returns a `Result`, over sizes a `SizesResult`, for networks a `NetworkResult` with `model`, or a `NetworksResult`.

    Raises UsageError, DeviceError, NoValidCandidate, for networks GraphError, and Interrupted for Ctrl-C before the
    first verified kernel; a later Ctrl-C ends the search with the results so far.
    """
    setup = search or SearchSetup()
    started = time.monotonic() if getattr(setup, "started", None) is None else setup.started
    if _is_whole_network(workload):
        check_tuning({**options, "out_dir": out_dir, "rules": rules, "at": at}, setup, callbacks)
        effort = Effort(trials, budget_s, seed, resume, started, strategy, objective)
        loading = {**options, "example_inputs": example_inputs, "sizes": sizes, "inputs": inputs, "db": db}
        return _tune_networks(workload, loading, effort, callbacks)
    if any(x is not None for x in (example_inputs, inputs)) or strategy != STRATEGY or objective != "sum":
        raise UsageError("example_inputs, inputs, strategy, objective are of networks, and the workload is none")
    check_search(rules, callbacks, setup, resume)
    settings = Settings(TRIALS if trials is None else trials, budget_s, seed, setup.policy, started)
    tuning = _Tuning(settings, setup, tuple(rules), callbacks, db, resume, out_dir)
    if sizes is not None or at is not None:
        return tuning.over_sizes(compile_sizes(workload, WorkloadOptions(**options), sizes, db), at or {})
    return tuning.of(_request(workload, WorkloadOptions(**options), runs=setup.measure))


@overload
def compile(
    workload: Workload | Sequence[Tensor], *, db: Path | str | None = None, **options: Unpack[WorkloadKeywords]
) -> Kernel | GpuKernel: ...


@overload
def compile(
    workload: Workload | Sequence[Tensor],
    *,
    db: Path | str | None = None,
    check_indices: bool,
    **options: Unpack[WorkloadKeywords],
) -> Kernel | GpuKernel | IndexCheckedKernel: ...


@overload
def compile(
    workload: Workload, *, sizes: Mapping[str, range | tuple[int, int]], **options: Unpack[WorkloadKeywords]
) -> SizedKernel: ...


@spelled_out(WorkloadOptions)
def compile(
    workload: Workload | Sequence[Tensor],
    *,
    db: Path | str | None = None,
    check_indices: bool = False,
    sizes: Mapping[str, range | tuple[int, int]] | None = None,
    **options: Unpack[WorkloadKeywords],
) -> Kernel | GpuKernel | IndexCheckedKernel | SizedKernel:
    """Return the best stored kernel of a workload, or, if none is stored, the best by the analytic model.

    Args:
        workload: name of a built-in operator, "file.py:function", a function that returns output tensors, or a list of
            tensors: outputs, after the inputs or alone. Where they declare sizes (`te.size`) the kernel is one for all.
        db: database file of the records; None: the path that `autosched db path` prints.
        check_indices: let calls raise OutOfRangeError, an IndexError, for indices in data that are out of range.
        sizes: integer arguments that the arrays of a call tell, each with its range, as in {"M": (1, 4096)}: the kernel
            is then one for all of them, with the schedules of records of some of them. For processors, without weights.
        options: the fields of `WorkloadOptions`. With `weights` the kernel has a method `bind`, which packs them once.

    Returns a `Kernel`, for a GPU a `GpuKernel`: functions of arrays. Only records that fit this version of autosched
    are used. A record that this installation has not verified is used only if there is no verified one, and is verified
    by a worker first. The best by the analytic model is neither measured nor verified.

    Raises UsageError, DeviceError, and NoValidCandidate if no kernel is legal. Warns (RecordWarning) of unverified
    records, and of records that were skipped because they are wrong, do not fit or cannot be built.
    """
    if isinstance(workload, Sequence) and not isinstance(workload, str):
        workload = function_of(workload)
    problem = None if sizes is not None else define(workload, WorkloadOptions(**options))
    if problem is None or problem.sizes:
        if check_indices:
            raise UsageError("a kernel of varying sizes takes no check_indices")
        return compile_sizes(workload, WorkloadOptions(**options), sizes, db)
    request = _request(workload, WorkloadOptions(**options))
    request.check()
    kernel = best_kernel(request, db)
    return with_checks(kernel, request, workload, WorkloadOptions(**options)) if check_indices else kernel


@spelled_out(WorkloadOptions)
def best(
    workload: Workload, *, db: Path | str | None = None, n: int = 1, **options: Unpack[WorkloadKeywords]
) -> list[Record]:
    """Return the `n` best stored records of a workload, best first; an empty list if there are none.

    `workload`, `db` and `options` are those of `compile`. Records that this installation has not verified
    (`Record.verified`) come last, whatever their times. Raises UsageError, DeviceError and StoreError.
    """
    return stored_records(_request(workload, WorkloadOptions(**options)), db, n)


# Putting together


def _request(workload: Workload, options: WorkloadOptions, *, runs: bool = True) -> Request:
    problem = define(workload, options)
    if problem.sizes:
        raise UsageError(f"{problem.name} declares sizes ({', '.join(problem.sizes)}), which only compile takes")
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


@dataclass(frozen=True)
class _Tuning:
    """Searches for kernels of workloads, with the arguments of `tune`."""

    settings: Settings
    setup: SearchSetup
    rules: tuple[SketchRule, ...]
    callbacks: Sequence[Callback]
    db: Path | str | None
    resume: bool
    out_dir: Path | str | None

    def of(self, request: Request) -> Result:
        """Run the search, or return the best candidate of the cost model for a setup without measurements."""
        setup, started = self.setup, self.settings.started
        if setup.measure and setup.policy.learned:
            _check_interpreter()
        request.check()
        directory = None if self.out_dir is None else make_output_directory(self.out_dir)
        if setup.measure:
            return self._measured(request, Space(self.rules, setup.narrow, setup.policy.draft), directory)
        assert started is not None
        return estimate(request, Space(self.rules, setup.narrow), directory, started, setup.simulate)

    def over_sizes(self, kernel: SizedKernel, at: At) -> SizesResult:
        """Search for the schedules of classes of sizes, each with a share of the trials and of the time."""
        if self.out_dir is not None or not self.setup.measure:
            raise UsageError("tuning over sizes measures, and writes no sources: tune one of the sizes for them")

        def search(request: Request, share: float) -> Result:
            trials, budget_s = self.settings.trials, self.settings.budget_s
            settings = replace(
                self.settings, trials=max(1, round(trials * share)), budget_s=budget_s and budget_s * share,
                started=time.monotonic(),
            )  # fmt: skip
            return replace(self, settings=settings).of(request)

        return tune_sizes(kernel, weights_of(at, kernel.ranges), search, self.settings.seed)

    def _measured(self, request: Request, space: Space, directory: Path | None) -> Result:
        """Run one search with its database and workers; write the sources of the fastest to `directory`."""
        from autosched.measure.host import ScratchDirectory
        from autosched.store import Database
        from autosched.tuner.gc_pause import pause_gc
        from autosched.tuner.session import run

        problem, device, settings = request.problem, request.device, self.settings
        with (
            ScratchDirectory() as scratch,
            pause_gc(),
            start_measurer(request, scratch, settings.seed) as measurer,
            Database(self.db) as database,
        ):
            warn_without_key()
            task, sketches = make_task(request, space)
            recorder = start_run(database, request, task, sketches, settings.seed, self.resume)
            read_peak = peak_reader(device, problem.dtype, task.source, measurer)
            result = run(task, settings, measurer, recorder, self.callbacks, read_peak=read_peak)
        if directory is not None:
            write_fastest(directory, task, result, request.problem.spec, self.db)
        return result

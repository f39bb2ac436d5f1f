"""Tuning of whole networks: one search over all of their kernels, guided by an objective of the networks' latencies.

The steps are the references of each network's outputs, a warm-up round for each task, rounds chosen by the task
scheduler, the final comparison of each task's fastest candidates, building the networks anew, the end-to-end comparison
before and after, and that of the undecided fusions. All of it is within the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median

from autosched.errors import UsageError
from autosched.executor.model import Model
from autosched.executor.profile import NetworkProfile, profile
from autosched.kernel.device import Device
from autosched.kernel.lookup import stored_schedules
from autosched.kernel.measured_roofline import MeasuredRooflines
from autosched.kernel.spec import KernelSpec
from autosched.kernel.trust import warn_without_key
from autosched.measure import WorkerPool
from autosched.measure.host import ScratchDirectory
from autosched.measure.results import median_interval
from autosched.network_tuning.budget import FinalisationTime
from autosched.network_tuning.context import TuningContext
from autosched.network_tuning.end_to_end import Arrays, LatencyComparison, Steps, choose_schedules, compare
from autosched.network_tuning.fusion_comparison import (
    FusionTimes,
    compare_fusions,
    fusion_comparison_s,
    store_fusion_decisions,
    undecided_kernels,
)
from autosched.network_tuning.last_verified import last_verified
from autosched.network_tuning.results import Effort, NetworkCallback, NetworkResult, NetworksResult, task_results
from autosched.network_tuning.search import NetworkSearch
from autosched.network_tuning.shared_tasks import SharedTask, shared_tasks
from autosched.network_tuning.task_tuner import TaskTuner
from autosched.network_tuning.undecided_fusion import find_undecided_fusions
from autosched.planning.extract_tasks import Choices, ChooseSchedules, NetworkTask, keep_unscheduled
from autosched.store import Database, Finding
from autosched.tuner.gc_pause import pause_gc
from autosched.tuner.progress import Stopwatch
from autosched.tuner.workload_spec import WorkloadSpec
from autosched.verification.sample_inputs import NORMAL, InputSet, input_sets
from autosched.verification.verify import references

PROFILE_S = 0.5  # duration of the runs whose profile gives the tasks their times before tuning
RESOLUTION_S = 1e-6  # of the profile, which calls kernels from Python
MIN_SEARCH_SHARE = 0.1  # of the budget: left to the search, however long loading and references took
LOAD_SHARE, LOAD_S = 0.1, 0.5  # of the budget at most, seconds at least: estimate of rebuilding the networks
N_RIVALS = 3  # schedules of a task that are timed within a network
LARGE_SHARE = 0.05  # of a network's time: a smaller task has one schedule timed


@dataclass(frozen=True)
class TimedModel:
    """A network and its profile."""

    model: Model
    times: NetworkProfile


@dataclass(frozen=True)
class TunedNetwork:
    """A network that is tuned, inputs, and the profile with these inputs before tuning. `other`: the network with its
    undecided fusions flipped, None where it has none."""

    name: str
    model: Model
    inputs: Arrays
    times: NetworkProfile
    other: TimedModel | None = None


@dataclass(frozen=True)
class _TimedTask:
    """A task, and the seconds `start_s` of its kernel in the networks before tuning."""

    task: SharedTask
    start_s: float


def tune_network(
    model: Model, effort: Effort | None = None, db: Path | str | None = None, callbacks: Sequence[NetworkCallback] = ()
) -> NetworkResult:
    """Tune a network and return the result with the faster network; see `tune_networks`."""
    return tune_networks(lambda: {model.original.name: model}, effort, db, callbacks).networks[0]


def tune_networks(
    load: Callable[[], Mapping[str, Model]],
    effort: Effort | None = None,
    db: Path | str | None = None,
    callbacks: Sequence[NetworkCallback] = (),
) -> NetworksResult:
    """Tune the networks that `load` returns by name, and return the result with the faster networks.

    The given networks are not changed. A kernel that several networks share is tuned once. The search has at least a
    tenth of the budget. Records go to the database `db`, from which `autosched.load` takes schedules. A task whose
    search fails keeps its schedule. Ctrl-C ends the search; its results so far are used.

    Raises UsageError for networks of several devices and for an objective that fails, before anything is written, and
    DeviceError when the device is lost.
    """
    effort = effort or Effort()
    started = time.monotonic() if effort.started is None else effort.started
    watch = Stopwatch(time.monotonic, started, effort.budget_s)
    models = load()
    loaded_s = watch.elapsed()
    device = _one_device(models)
    tuned = [_profiled(name, model, db) for name, model in models.items()]
    others = [None if s.other is None else s.other.model for s in tuned]
    tasks = [_TimedTask(task, _start_s(task, tuned)) for task in shared_tasks(list(models.values()), others)]
    objective = effort.objective_spec.bind(_latencies(models, tasks))
    expected = [references(network.model, network.inputs) for network in tuned]
    load_s = _load_s(loaded_s, effort.budget_s)
    finalisation = FinalisationTime(load_s, tuple(network.times.call for network in tuned), _fusion_s(tuned, load_s))
    most = None if effort.trials is None else effort.settings.trials
    with ScratchDirectory() as scratch, pause_gc(), Database(db) as database:
        warn_without_key()
        with WorkerPool(device.target, device.threads) as worker_pool:
            context = TuningContext(device, database, worker_pool, scratch, watch, effort.settings.seed, effort.resume)
            tuners = _tuners(tasks, context)
            if effort.budget_s is not None:
                watch.budget_s = max(effort.budget_s, watch.elapsed() + MIN_SEARCH_SHARE * effort.budget_s)
            fusions = find_undecided_fusions(
                [model.program.all_fusion_choices for model in models.values()], [t.task for t in tasks]
            )
            search = NetworkSearch(
                tuners, list(models), objective, effort.scheduler, finalisation, watch, most, callbacks, fusions
            )
            search.run()
        record_wrong = partial(_record_wrong, search, database)
        results = [
            _result(search, network, outputs, record_wrong) for network, outputs in zip(tuned, expected, strict=True)
        ]
        store_fusion_decisions(database, [part for result in results for part in result.parts])
    networks = tuple(replace(r, first_result_s=loaded_s, strategy=effort.strategy) for r in results)
    before = {network.name: network.start_latency_s for network in networks}
    after = {network.name: network.latency_s for network in networks}
    return NetworksResult(networks, objective.value(before), objective.value(after))


def _load_s(loaded_s: float, budget_s: float | None) -> float:
    return max(loaded_s if budget_s is None else min(loaded_s, LOAD_SHARE * budget_s), LOAD_S)


def _one_device(models: Mapping[str, Model]) -> Device:
    """Return the device of the networks. Raises UsageError if they are for different devices."""
    (name, first), *others = models.items()
    for other, model in others:
        if model.device != first.device:
            raise UsageError(
                f"networks that are tuned together must be for one device, but {name} is for "
                f"{_describe(first.device)} and {other} for {_describe(model.device)}: "
                "load them with the same target and threads"
            )
    return first.device


def _describe(device: Device) -> str:
    return f"{device.target.fingerprint} with {device.threads} threads"


def _profiled(name: str, model: Model, db: Path | str | None) -> TunedNetwork:
    normal, _ = input_sets(model.original)
    network = TunedNetwork(name, model, normal.arrays, profile(model, normal.arrays, PROFILE_S))
    if not (flipped := undecided_kernels(model)):
        return network
    with stored_schedules(db) as stored:
        other = _rebuilt(model, {}, flipped, stored or keep_unscheduled)
    return replace(network, other=TimedModel(other, profile(other, normal.arrays, PROFILE_S)))


def _fusion_s(tuned: Sequence[TunedNetwork], load_s: float) -> float:
    return sum(fusion_comparison_s(s.times.call, load_s) for s in tuned if s.other is not None)


def _start_s(task: SharedTask, tuned: Sequence[TunedNetwork]) -> float:
    """Return the mean seconds of the task's steps in all networks, with either fusion choice."""
    pairs = [(s.times, members) for s, members in zip(tuned, task.members, strict=True)]
    pairs += [
        (s.other.times, members)
        for s, members in zip(tuned, task.alternative_members, strict=False)
        if s.other is not None
    ]
    seconds = [times.kernels[n] for times, members in pairs for member in members for n in member.steps]
    return max(mean(seconds), RESOLUTION_S)


def _latencies(models: Mapping[str, Model], tasks: Sequence[_TimedTask]) -> dict[str, float]:
    return {name: sum(t.task.counts[n] * t.start_s for t in tasks) for n, name in enumerate(models)}


def _tuners(tasks: Sequence[_TimedTask], context: TuningContext) -> list[TaskTuner]:
    rooflines = MeasuredRooflines(context.device)
    return [
        TaskTuner(
            task=t.task,
            bound_s=rooflines.least_s(t.task.request),
            start_s=t.start_s,
            start_session=context.start_session,
            watch=context.watch,
            recorded=context.recorded_rounds(t.task),
        )
        for t in tasks
    ]


def _result(
    search: NetworkSearch,
    network: TunedNetwork,
    expected: tuple[Arrays, Arrays],
    record_wrong: Callable[[NetworkTask, str], None],
) -> NetworkResult:
    """Build one of the networks with its fastest schedules, compare it with the earlier one, and verify it."""
    index = list(search.networks).index(network.name)
    candidates = _schedules(search, index)
    choose = partial(
        choose_schedules,
        network.model, candidates, partial(_rebuilt, network.model), network.inputs, search.can_continue,
    )  # fmt: skip
    try:
        first = choose()
        last, parts = _with_faster_fusions(first, search, network)
    except KeyboardInterrupt:
        search.interrupted, parts = True, ()
        first = last = choose()  # compares whole calls only: `can_continue` is False now
    programs = [(LatencyComparison(network.model, last.before, last.before), ()), (first, ()), (last, parts)]
    kept = last_verified(network.name, programs, InputSet(NORMAL, network.inputs), expected, record_wrong)
    comparison, outputs = kept.comparison, kept.verification.all_outputs
    tasks = task_results(search.tuners, index, comparison.model.tasks)
    return NetworkResult(
        model=comparison.model,
        name=network.name,
        objective=search.objective.name,
        tasks=tasks,
        trials=search.n_trials,
        resumed=sum(tuner.n_resumed for tuner in search.tuners),
        failed=sum(trial.failure is not None for tuner in search.tuners for trial in tuner.trials),
        wall_s=search.watch.elapsed(),
        first_result_s=0.0,
        start_latency_s=median(comparison.before),
        latency_s=median(comparison.after),
        latency_ci_s=median_interval(comparison.after),
        kernels_s=sum(task.count * task.now_s for task in tasks),
        curve=tuple(point.of(index) for point in search.curve),
        interrupted=search.interrupted,
        verified=kept.verification.passed,
        max_error=max((output.error.largest for output in outputs), default=0.0),
        parts=kept.parts,
    )


def _record_wrong(search: NetworkSearch, database: Database, task: NetworkTask, reason: str) -> None:
    """Record that the kernel of a network's task is wrong, so that no later call uses its schedule."""
    for tuner in search.tuners:
        if tuner.running is not None and task.kernel_spec.workload in (
            member.kernel_spec.workload for member in tuner.task.all_members
        ):
            for trial in tuner.trials:
                if trial.record_id is not None and tuner.running.steps(trial.candidate) == task.kernel_spec.steps:
                    database.append_to(database.record(trial.record_id), Finding(None, (), "wrong_result", reason))


def _with_faster_fusions(
    comparison: LatencyComparison, search: NetworkSearch, network: TunedNetwork
) -> tuple[LatencyComparison, tuple[FusionTimes, ...]]:
    """Return the network with the faster side of each undecided fusion, and the times of both sides; unchanged if the
    budget does not allow the comparison."""
    load_s, call_s = search.finalisation.load_s, network.times.call
    if network.other is None or not search.has_time(fusion_comparison_s(call_s, load_s)):
        return comparison, ()
    index = list(search.networks).index(network.name)
    steps = {task.kernel_spec.workload: task.kernel_spec.steps for task in network.other.model.tasks}
    steps |= {spec: ranked[0] for spec, ranked in _schedules(search, index, is_flipped=True).items()}
    steps |= {task.kernel_spec.workload: task.kernel_spec.steps for task in comparison.model.tasks}
    flip = partial(_rebuilt, comparison.model, steps)
    kept, parts = compare_fusions(comparison.model, flip, network.inputs)
    if kept is not comparison.model:
        comparison = compare(network.model, kept, network.inputs)
    forms = comparison.model.fusion_decisions
    return comparison, tuple(replace(part, is_fused=forms[part.kernel_spec]) for part in parts)


def _schedules(search: NetworkSearch, network: int, is_flipped: bool = False) -> dict[WorkloadSpec, tuple[str, ...]]:
    """Return the fastest schedules of a network's tasks by their specs, up to N_RIVALS of tasks that take much of its
    time. `is_flipped`: of the tasks that it has only with its undecided fusions flipped."""
    latency_s = search.latencies[search.networks[network]]
    ranked: dict[WorkloadSpec, tuple[str, ...]] = {}
    for tuner in search.tuners:
        tasks = tuner.task.alternative_members[network] if is_flipped else tuner.task.members[network]
        task_s = tuner.task.counts[network] * tuner.now_s
        if tasks and (schedules := tuner.schedules(N_RIVALS if task_s >= LARGE_SHARE * latency_s else 1)):
            ranked |= dict.fromkeys((task.kernel_spec.workload for task in tasks), schedules)
    return ranked


def _rebuilt(
    model: Model,
    steps: Steps,
    flipped: AbstractSet[KernelSpec] = frozenset(),
    choose: ChooseSchedules = keep_unscheduled,
) -> Model:
    """Rebuild the network with these schedules, its other ones, and the fusion choices of `flipped` flipped.
    `choose` gives schedules to tasks that have none."""
    kept = {task.kernel_spec.workload: task.kernel_spec.steps for task in model.tasks} | dict(steps)
    forms = {
        kernel_spec: is_fused ^ (kernel_spec in flipped) for kernel_spec, is_fused in model.fusion_decisions.items()
    }

    def schedules(kernel_specs: Sequence[KernelSpec]) -> Sequence[KernelSpec]:
        return choose([replace(kernel_spec, steps=kept.get(kernel_spec.workload, "")) for kernel_spec in kernel_specs])

    return model.with_choices(Choices(schedules, forms.get))

"""Tuning whole networks: their tasks search by turns, and the time goes where it saves most of the objective.

Order of things: the reference of each network's outputs, a first round for each task, rounds by the strategy (`turns`,
`strategies`), the final comparison of each task's best few, the networks built anew, and whole calls before and after
side by side (`contest`). All of it is within the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median

from autosched.errors import UsageError
from autosched.measure import Workshop
from autosched.measure.host import ScratchDirectory
from autosched.measure.results import median_interval
from autosched.network.check import compare_outputs, references
from autosched.network.closing import Closing
from autosched.network.contest import Arrays, Steps, contest
from autosched.network.inputs import input_sets
from autosched.network.model import Model
from autosched.network.network_search import NetworkSearch
from autosched.network.place import Place
from autosched.network.profile import NetworkTimes, profile
from autosched.network.recipe import Recipe
from autosched.network.roofs import Roofs
from autosched.network.shared_tasks import SharedTask, shared_tasks
from autosched.network.task_search import TaskSearch
from autosched.network.tuned import Effort, NetworkCallback, NetworkResult, NetworksResult, task_results
from autosched.session.device import Device
from autosched.session.trust import tell_without_key
from autosched.store import Database
from autosched.tuner.garbage import rare_collections
from autosched.tuner.progress import Stopwatch

PROFILE_S = 0.5  # of runs, by which the tasks are ordered that nothing was measured of
RESOLUTION_S = 1e-6  # of these times: kernels that take less are called from Python
LEAST_SHARE = 0.1  # of a budget, for the search of networks whose loading and reference took long
LOAD_SHARE, LOAD_S = 0.1, 0.5  # of a budget, or seconds: most and least that making networks anew is taken to cost
RIVALS = 3  # schedules of a task that are timed inside a network
LARGE = 0.05  # of a network's time: a task whose schedules are


@dataclass(frozen=True)
class TunedNetwork:
    """A network, inputs for it, and its kernels' times with these before."""

    name: str
    model: Model
    inputs: Arrays
    times: NetworkTimes


@dataclass(frozen=True)
class _OpenTask:
    """What is to be searched for; `start_s`: what the kernel takes in the networks as they are."""

    task: SharedTask
    start_s: float


def tune_network(
    model: Model, effort: Effort | None = None, db: Path | str | None = None, callbacks: Sequence[NetworkCallback] = ()
) -> NetworkResult:
    """Searches for faster kernels of a network that runs, and gives the faster network; see `tune_networks`."""
    return tune_networks(lambda: {model.original.name: model}, effort, db, callbacks).networks[0]


def tune_networks(
    find: Callable[[], Mapping[str, Model]],
    effort: Effort | None = None,
    db: Path | str | None = None,
    callbacks: Sequence[NetworkCallback] = (),
) -> NetworksResult:
    """Searches for faster kernels of the networks that `find` loads, by name, and gives the faster networks; those that
    there were stay as they are. A kernel that several have is searched for once.

    At least a tenth of the budget is for the search. Records go to the database `db`, where `autosched.load` finds
    them. A task whose search fails keeps its schedule. Ctrl-C ends the search with what it has.

    Raises UsageError for networks of several devices and for an objective that fails, before anything is written, and
    DeviceError when the device is lost.
    """
    effort = effort or Effort()
    started = time.monotonic() if effort.started is None else effort.started
    watch = Stopwatch(time.monotonic, started, effort.budget_s)
    models = find()
    loaded_s = watch.elapsed()
    device = _one_device(models)
    subjects = [_subject(name, model) for name, model in models.items()]
    tasks = [_OpenTask(task, _start_s(task, subjects)) for task in shared_tasks(list(models.values()))]
    objective = effort.asked.of(_latencies(models, tasks))
    known = [references(subject.model, subject.inputs) for subject in subjects]
    closing = Closing(_load_s(loaded_s, effort.budget_s), tuple(subject.times.call for subject in subjects))
    most = None if effort.trials is None else effort.settings.trials
    with ScratchDirectory() as scratch, rare_collections(), Database(db) as database:
        tell_without_key()
        with Workshop(device.target, device.threads) as workshop:
            place = Place(device, database, workshop, scratch, watch, effort.settings.seed, effort.resume)
            searches = _searches(tasks, place)
            if effort.budget_s is not None:
                watch.budget_s = max(effort.budget_s, watch.elapsed() + LEAST_SHARE * effort.budget_s)
            search = NetworkSearch(searches, list(models), objective, effort.rules, closing, watch, most, callbacks)
            search.run()
        found = [_result(search, subject, outputs) for subject, outputs in zip(subjects, known, strict=True)]
    networks = tuple(replace(r, first_result_s=loaded_s, strategy=effort.strategy) for r in found)
    before = {network.name: network.start_latency_s for network in networks}
    after = {network.name: network.latency_s for network in networks}
    return NetworksResult(networks, objective.value(before), objective.value(after))


def _load_s(loaded_s: float, budget_s: float | None) -> float:
    return max(loaded_s if budget_s is None else min(loaded_s, LOAD_SHARE * budget_s), LOAD_S)


def _one_device(models: Mapping[str, Model]) -> Device:
    """Raises UsageError where the networks are for several."""
    (name, first), *others = models.items()
    for other, model in others:
        if model.device != first.device:
            raise UsageError(
                f"networks that are tuned together must be for one device, but {name} is for {_said(first.device)} and "
                f"{other} for {_said(model.device)}: load them with the same target and threads"
            )
    return first.device


def _said(device: Device) -> str:
    return f"{device.target.fingerprint} with {device.threads} threads"


def _subject(name: str, model: Model) -> TunedNetwork:
    normal, _ = input_sets(model.original)
    return TunedNetwork(name, model, normal.arrays, profile(model, normal.arrays, PROFILE_S))


def _start_s(task: SharedTask, subjects: Sequence[TunedNetwork]) -> float:
    """The mean over all its places in all networks."""
    pairs = zip(subjects, task.members, strict=True)
    return max(
        mean(s.times.kernels[n] for s, members in pairs for member in members for n in member.steps), RESOLUTION_S
    )


def _latencies(models: Mapping[str, Model], tasks: Sequence[_OpenTask]) -> dict[str, float]:
    return {name: sum(t.task.counts[n] * t.start_s for t in tasks) for n, name in enumerate(models)}


def _searches(tasks: Sequence[_OpenTask], place: Place) -> list[TaskSearch]:
    roofs = Roofs(place.device)
    return [
        TaskSearch(
            t.task, roofs.least_s(t.task.request), t.start_s, place.begin, place.watch, place.recorded_rounds(t.task)
        )
        for t in tasks
    ]


def _result(search: NetworkSearch, subject: TunedNetwork, known: tuple[Arrays, Arrays]) -> NetworkResult:
    """The end of a search for one of the networks: the faster one, timed and compared with its reference."""
    number = list(search.networks).index(subject.name)
    found = _schedules(search, number)
    build = partial(_rebuilt, subject.model)
    try:
        verdict = contest(subject.model, found, build, subject.inputs, search.may_go_on)
    except KeyboardInterrupt:
        search.interrupted = True
        verdict = contest(subject.model, found, build, subject.inputs, search.may_go_on)  # only whole calls
    compared = compare_outputs(verdict.model, subject.inputs, known)
    return NetworkResult(
        model=verdict.model,
        name=subject.name,
        objective=search.objective.name,
        tasks=task_results(search.searches, number),
        trials=search.n_trials,
        resumed=sum(s.n_resumed for s in search.searches),
        failed=sum(trial.failure is not None for s in search.searches for trial in s.trials),
        wall_s=search.watch.elapsed(),
        first_result_s=0.0,
        start_latency_s=median(verdict.before),
        latency_s=median(verdict.after),
        latency_ci_s=median_interval(verdict.after),
        kernels_s=search.latencies[subject.name],
        curve=tuple(point.of(number) for point in search.curve),
        interrupted=search.interrupted,
        verified=all(output.passed for output in compared),
        max_error=max((output.found.largest for output in compared), default=0.0),
    )


def _schedules(search: NetworkSearch, network: int) -> dict[str, tuple[str, ...]]:
    """What was found for a network's tasks, by their specs: several schedules of those that take much of its time."""
    whole_s = search.latencies[search.networks[network]]
    found: dict[str, tuple[str, ...]] = {}
    for s in search.searches:
        share = s.task.counts[network] * s.now_s
        if schedules := s.schedules(RIVALS if share >= LARGE * whole_s else 1):
            found |= dict.fromkeys(s.task.specs(network), schedules)
    return found


def _rebuilt(model: Model, steps: Steps) -> Model:
    """The network with these schedules; its other tasks keep theirs."""
    kept = {task.recipe.spec: task.recipe.steps for task in model.tasks} | dict(steps)

    def choose(recipes: Sequence[Recipe]) -> list[Recipe]:
        return [replace(recipe, steps=kept.get(recipe.spec, "")) for recipe in recipes]

    return model.with_schedules(choose)

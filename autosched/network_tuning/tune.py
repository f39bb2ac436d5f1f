"""Tuning whole networks: their tasks search by turns, and the time goes where it saves most of the objective.

Order of things: the reference of each network's outputs, a first round for each task, rounds by the strategy (`turns`,
`strategies`), the final comparison of each task's best few, the networks built anew, whole calls before and after
side by side (`contest`), and the same with open parts in their other form (`forms_contest`). All of it is within the
budget.
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
from autosched.executor.lookup import stored_schedules
from autosched.executor.model import Model
from autosched.executor.profile import NetworkTimes, profile
from autosched.kernel.device import Device
from autosched.kernel.measured_roofline import Roofs
from autosched.kernel.spec import Recipe
from autosched.kernel.trust import tell_without_key
from autosched.measure import Workshop
from autosched.measure.host import ScratchDirectory
from autosched.measure.results import median_interval
from autosched.network_tuning.budget import Closing
from autosched.network_tuning.context import Place
from autosched.network_tuning.end_to_end import Arrays, Steps, Verdict, contest, faster
from autosched.network_tuning.fusion_comparison import contest_of_forms, forms_contest_s, open_recipes
from autosched.network_tuning.last_verified import last_that_passes
from autosched.network_tuning.results import Effort, NetworkCallback, NetworkResult, NetworksResult, task_results
from autosched.network_tuning.search import NetworkSearch
from autosched.network_tuning.shared_tasks import SharedTask, shared_tasks
from autosched.network_tuning.task_tuner import TaskSearch
from autosched.network_tuning.undecided_fusion import open_parts
from autosched.planning.extract_tasks import Choices, ChooseSchedules, NetworkTask, keep_unscheduled
from autosched.planning.fusion_records import FusionTimes, store_fusion_decisions
from autosched.store import Database, Finding
from autosched.tuner.gc_pause import rare_collections
from autosched.tuner.progress import Stopwatch
from autosched.verification.sample_inputs import NORMAL, InputSet, input_sets
from autosched.verification.verify import references

PROFILE_S = 0.5  # of runs, by which the tasks are ordered that nothing was measured of
RESOLUTION_S = 1e-6  # of these times: kernels that take less are called from Python
LEAST_SHARE = 0.1  # of a budget, for the search of networks whose loading and reference took long
LOAD_SHARE, LOAD_S = 0.1, 0.5  # of a budget, or seconds: most and least that making networks anew is taken to cost
RIVALS = 3  # schedules of a task that are timed inside a network
LARGE = 0.05  # of a network's time: a task whose schedules are


@dataclass(frozen=True)
class TimedModel:
    """A network with its kernels' times."""

    model: Model
    times: NetworkTimes


@dataclass(frozen=True)
class TunedNetwork:
    """A network, inputs for it, and its kernels' times with these before; `other`: the network with its open parts in
    the form that they do not have, where there are any."""

    name: str
    model: Model
    inputs: Arrays
    times: NetworkTimes
    other: TimedModel | None = None


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
    subjects = [_subject(name, model, db) for name, model in models.items()]
    others = [None if s.other is None else s.other.model for s in subjects]
    tasks = [_OpenTask(task, _start_s(task, subjects)) for task in shared_tasks(list(models.values()), others)]
    objective = effort.asked.of(_latencies(models, tasks))
    known = [references(subject.model, subject.inputs) for subject in subjects]
    load_s = _load_s(loaded_s, effort.budget_s)
    closing = Closing(load_s, tuple(subject.times.call for subject in subjects), _forms_s(subjects, load_s))
    most = None if effort.trials is None else effort.settings.trials
    with ScratchDirectory() as scratch, rare_collections(), Database(db) as database:
        tell_without_key()
        with Workshop(device.target, device.threads) as workshop:
            place = Place(device, database, workshop, scratch, watch, effort.settings.seed, effort.resume)
            searches = _searches(tasks, place)
            if effort.budget_s is not None:
                watch.budget_s = max(effort.budget_s, watch.elapsed() + LEAST_SHARE * effort.budget_s)
            parts = open_parts([model.program.fusion_choices for model in models.values()], [t.task for t in tasks])
            search = NetworkSearch(
                searches, list(models), objective, effort.rules, closing, watch, most, callbacks, parts
            )
            search.run()
        refute = partial(_refute, search, database)
        found = [_result(search, subject, ends, refute) for subject, ends in zip(subjects, known, strict=True)]
        store_fusion_decisions(database, [part for result in found for part in result.parts])
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


def _subject(name: str, model: Model, db: Path | str | None) -> TunedNetwork:
    normal, _ = input_sets(model.original)
    found = TunedNetwork(name, model, normal.arrays, profile(model, normal.arrays, PROFILE_S))
    if not (flipped := open_recipes(model)):
        return found
    with stored_schedules(db) as stored:
        other = _rebuilt(model, {}, flipped, stored or keep_unscheduled)
    return replace(found, other=TimedModel(other, profile(other, normal.arrays, PROFILE_S)))


def _forms_s(subjects: Sequence[TunedNetwork], load_s: float) -> float:
    return sum(forms_contest_s(s.times.call, load_s) for s in subjects if s.other is not None)


def _start_s(task: SharedTask, subjects: Sequence[TunedNetwork]) -> float:
    """The mean over all its places in all networks, in either form of their parts."""
    pairs = [(s.times, members) for s, members in zip(subjects, task.members, strict=True)]
    pairs += [(s.other.times, beside) for s, beside in zip(subjects, task.beside, strict=False) if s.other is not None]
    found = [times.kernels[n] for times, members in pairs for member in members for n in member.steps]
    return max(mean(found), RESOLUTION_S)


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


def _result(
    search: NetworkSearch,
    subject: TunedNetwork,
    known: tuple[Arrays, Arrays],
    refute: Callable[[NetworkTask, str], None],
) -> NetworkResult:
    """The end of a search for one of the networks: the faster one, timed and compared with its reference."""
    number = list(search.networks).index(subject.name)
    found = _schedules(search, number)
    build = partial(_rebuilt, subject.model)
    try:
        first = contest(subject.model, found, build, subject.inputs, search.may_go_on)
        last, parts = _in_faster_forms(first, search, subject)
    except KeyboardInterrupt:
        search.interrupted, parts = True, ()
        first = last = contest(subject.model, found, build, subject.inputs, search.may_go_on)  # only whole calls
    made = [(Verdict(subject.model, last.before, last.before), ()), (first, ()), (last, parts)]
    kept = last_that_passes(subject.name, made, InputSet(NORMAL, subject.inputs), known, refute)
    verdict, outputs = kept.verdict, kept.verification.all_outputs
    tasks = task_results(search.searches, number, verdict.model.tasks)
    return NetworkResult(
        model=verdict.model,
        name=subject.name,
        objective=search.objective.name,
        tasks=tasks,
        trials=search.n_trials,
        resumed=sum(s.n_resumed for s in search.searches),
        failed=sum(trial.failure is not None for s in search.searches for trial in s.trials),
        wall_s=search.watch.elapsed(),
        first_result_s=0.0,
        start_latency_s=median(verdict.before),
        latency_s=median(verdict.after),
        latency_ci_s=median_interval(verdict.after),
        kernels_s=sum(task.count * task.now_s for task in tasks),
        curve=tuple(point.of(number) for point in search.curve),
        interrupted=search.interrupted,
        verified=kept.verification.passed,
        max_error=max((output.found.largest for output in outputs), default=0.0),
        parts=kept.parts,
    )


def _refute(search: NetworkSearch, database: Database, task: NetworkTask, reason: str) -> None:
    """Records of the candidate that a network's task has that its kernel is wrong, so that nobody takes it again."""
    for each in search.searches:
        if each.begun is not None and task.recipe.spec in (member.recipe.spec for member in each.task.all_members):
            for trial in each.trials:
                if trial.record_id is not None and each.begun.steps(trial.candidate) == task.recipe.steps:
                    database.append_to(database.record(trial.record_id), Finding(None, (), "wrong_result", reason))


def _in_faster_forms(
    verdict: Verdict, search: NetworkSearch, subject: TunedNetwork
) -> tuple[Verdict, tuple[FusionTimes, ...]]:
    """The network with its open parts in the forms that are faster in it, and their times; as it is where there is no
    time for that."""
    load_s, call_s = search.closing.load_s, subject.times.call
    if subject.other is None or not search.has_time(forms_contest_s(call_s, load_s)):
        return verdict, ()
    number = list(search.networks).index(subject.name)
    steps = {task.recipe.spec: task.recipe.steps for task in subject.other.model.tasks}
    steps |= {spec: known[0] for spec, known in _schedules(search, number, in_other_form=True).items()}
    steps |= {task.recipe.spec: task.recipe.steps for task in verdict.model.tasks}
    flip = partial(_rebuilt, verdict.model, steps)
    kept, parts = contest_of_forms(verdict.model, flip, subject.inputs)
    if kept is not verdict.model:
        verdict = faster(subject.model, kept, subject.inputs)
    forms = verdict.model.fusion_decisions
    return verdict, tuple(replace(part, is_fused=forms[part.recipe]) for part in parts)


def _schedules(search: NetworkSearch, network: int, in_other_form: bool = False) -> dict[str, tuple[str, ...]]:
    """What was found for a network's tasks, by their specs: several schedules of those that take much of its time.
    `in_other_form`: of the tasks that it would have in the other form of its parts."""
    whole_s = search.latencies[search.networks[network]]
    found: dict[str, tuple[str, ...]] = {}
    for s in search.searches:
        tasks = s.task.beside[network] if in_other_form else s.task.members[network]
        share = s.task.counts[network] * s.now_s
        if tasks and (schedules := s.schedules(RIVALS if share >= LARGE * whole_s else 1)):
            found |= dict.fromkeys((task.recipe.spec for task in tasks), schedules)
    return found


def _rebuilt(
    model: Model, steps: Steps, flipped: AbstractSet[Recipe] = frozenset(), choose: ChooseSchedules = keep_unscheduled
) -> Model:
    """The network with these schedules, and the parts of the recipes `flipped` in their other form; all else is as it
    was. `choose` gives tasks schedules that have none yet."""
    kept = {task.recipe.spec: task.recipe.steps for task in model.tasks} | dict(steps)
    forms = {recipe: is_fused ^ (recipe in flipped) for recipe, is_fused in model.fusion_decisions.items()}

    def schedules(recipes: Sequence[Recipe]) -> Sequence[Recipe]:
        return choose([replace(recipe, steps=kept.get(recipe.spec, "")) for recipe in recipes])

    return model.with_choices(Choices(schedules, forms.get))

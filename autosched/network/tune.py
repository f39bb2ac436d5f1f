"""Tuning a whole network: its tasks search by turns, and the time goes where it saves most of the network's.

Order of things: a first round for each task, rounds by expected gain (`turns`), the final comparison of each task's
best few, the network built anew, and whole calls before and after side by side (`contest`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median

from autosched.graph.graph import Array
from autosched.measure import Workshop
from autosched.measure.host import ScratchDirectory
from autosched.measure.results import median_interval
from autosched.network.check import compare_outputs
from autosched.network.contest import Steps, contest
from autosched.network.inputs import input_sets
from autosched.network.model import Model
from autosched.network.network_search import NetworkSearch
from autosched.network.place import Place
from autosched.network.profile import NetworkTimes, profile
from autosched.network.recipe import Recipe
from autosched.network.roofs import Roofs
from autosched.network.task_search import TaskSearch
from autosched.network.tasks import NetworkTask
from autosched.network.tuned import Effort, NetworkCallback, NetworkResult, task_results
from autosched.network.turns import network_s
from autosched.session.trust import tell_without_key
from autosched.store import Database
from autosched.tuner.garbage import rare_collections
from autosched.tuner.progress import Stopwatch
from autosched.tuner.session import Settings

PROFILE_S = 0.5  # of runs, by which the tasks are ordered that nothing was measured of
RESOLUTION_S = 1e-6  # of these times: kernels that take less are called from Python
LEAST_SHARE = 0.1  # of a budget, for the search of a network that took long to load


def tune_model(
    find: Callable[[], Model], effort: Effort, db: Path | str | None, callbacks: Sequence[NetworkCallback]
) -> NetworkResult:
    """Loads a network and tunes it, see `tune_network`, in what is left of the time since `effort.started`, but at
    least a tenth of it. Raises UsageError for numbers that make no sense, before anything is loaded."""
    trials, budget_s = effort.trials, effort.budget_s
    Settings(1 if trials is None else trials, budget_s, effort.seed)
    model = find()
    loaded_s = time.monotonic() - effort.started
    left_s = None if budget_s is None else max(budget_s - loaded_s, LEAST_SHARE * budget_s)
    found = tune_network(
        model, trials=trials, budget_s=left_s, seed=effort.seed, resume=effort.resume, db=db, callbacks=callbacks
    )
    return replace(found, wall_s=found.wall_s + loaded_s, first_result_s=loaded_s)


def tune_network(
    model: Model,
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    resume: bool = False,
    db: Path | str | None = None,
    callbacks: Sequence[NetworkCallback] = (),
) -> NetworkResult:
    """Searches for faster kernels of a network that runs, and gives the faster network; `model` stays as it is.

    At most `trials` measurements and `budget_s` seconds, drawn by `seed`; with neither, until no task promises half a
    percent of the network's time. `resume` goes on with the searches of earlier runs, whose measurements count for
    nothing here. Records go to the database
    `db`, where `autosched.load` finds them. A task whose search fails keeps its schedule. Ctrl-C ends the search with
    what it has. Comparing the network with its reference takes a few seconds more than the budget.

    Raises UsageError for numbers that make no sense, DeviceError when the device is lost.
    """
    settings = Settings(1 if trials is None else trials, budget_s, seed)
    watch = Stopwatch(time.monotonic, time.monotonic(), settings.budget_s)
    normal, _ = input_sets(model.original)
    times, roofs = profile(model, normal.arrays, PROFILE_S), Roofs(model.device)
    with ScratchDirectory() as scratch, rare_collections(), Database(db) as database:
        tell_without_key()
        with Workshop(model.device.target, model.device.threads) as workshop:
            place = Place(model.device, database, workshop, scratch, watch, settings.seed, resume)
            searches = [
                TaskSearch(task, roofs.least_s(task), _start_s(task, times), place.begin, watch) for task in model.tasks
            ]
            search = NetworkSearch(searches, watch, None if trials is None else settings.trials, callbacks)
            search.run()
        return _result(model, search, normal.arrays)


def _start_s(task: NetworkTask, times: NetworkTimes) -> float:
    return max(mean(times.kernels[n] for n in task.steps), RESOLUTION_S)


def _result(model: Model, search: NetworkSearch, inputs: Mapping[str, Array]) -> NetworkResult:
    """The end of a search: the faster network, timed and compared with its reference."""
    found = {s.task.recipe.spec: steps for s in search.in_order if (steps := s.best_steps) is not None}
    build = partial(_rebuilt, model)
    try:
        outcome = contest(model, found, build, inputs, search.may_go_on)
    except KeyboardInterrupt:
        search.interrupted = True
        outcome = contest(model, found, build, inputs, search.may_go_on)  # only whole calls, before and after
    compared = compare_outputs(outcome.model, inputs)
    return NetworkResult(
        model=outcome.model,
        tasks=task_results(search.searches),
        trials=search.n_measured,
        failed=sum(trial.failure is not None for s in search.searches for trial in s.trials),
        wall_s=search.watch.elapsed(),
        first_result_s=0.0,
        start_latency_s=median(outcome.before),
        latency_s=median(outcome.after),
        latency_ci_s=median_interval(outcome.after),
        kernels_s=network_s(search.standings),
        curve=tuple(search.curve),
        interrupted=search.interrupted,
        verified=all(output.passed for output in compared),
        max_error=max((output.found.largest for output in compared), default=0.0),
    )


def _rebuilt(model: Model, steps: Steps) -> Model:
    """The network with these schedules; its other tasks keep theirs."""
    kept = {task.recipe.spec: task.recipe.steps for task in model.tasks} | dict(steps)

    def choose(recipes: Sequence[Recipe]) -> list[Recipe]:
        return [replace(recipe, steps=kept.get(recipe.spec, "")) for recipe in recipes]

    return model.with_schedules(choose)

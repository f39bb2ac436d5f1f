"""A network with its schedules as one file, of data and text alone: kernels are built anew where it is loaded.

It holds the graph as it was imported, its constants, for each task that was tuned the steps of its schedule, and for
each part that may be one kernel or several which it is. These
hold for the processor and the number of threads that they were found for; elsewhere the analytic model chooses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autosched.errors import AutoschedWarning, GraphError, ScheduleError, UsageError
from autosched.graph.graph import Graph
from autosched.graph.saved import DIGEST, load_saved, save_graph
from autosched.kernel.device import Device
from autosched.kernel.spec import Recipe
from autosched.kernel.trust import tell
from autosched.planning.extract_tasks import Choices, NetworkTask, without_place
from autosched.schedule import check_target, replay

SUFFIX = ".asc"
_VERSION = "1"


def save_archive(
    path: Path, graph: Graph, tasks: tuple[NetworkTask, ...], forms: Mapping[Recipe, bool], device: Device
) -> None:
    """Raises UsageError for a path that cannot be written."""
    if path.suffix != SUFFIX:
        raise UsageError(f"a network is saved as a file *{SUFFIX}, got {path}")
    steps = {_hash(task.recipe): task.recipe.steps for task in tasks if task.recipe.steps}
    facts = {
        "autosched": _VERSION,
        "target": device.target.fingerprint,
        "threads": str(device.threads),
        "schedules": json.dumps(steps, sort_keys=True),
        "joined": json.dumps({_hash(recipe): is_joined for recipe, is_joined in forms.items()}, sort_keys=True),
    }
    try:
        save_graph(path, graph, facts)
    except OSError as error:
        raise UsageError(f"the network cannot be saved as {path}: {error.strerror or error}") from error


def load_archive(path: Path) -> tuple[Graph, Choices]:
    """The graph, and which schedules and forms its kernels have. Raises GraphError for a file that is no archive."""
    graph, facts = load_saved(path)
    if facts.get("autosched") != _VERSION:
        raise GraphError(f"{path} is an archive of version {facts.get('autosched')}, this autosched reads {_VERSION}")
    if DIGEST not in facts:
        tell(
            f"{path} has no digest, so that nobody can tell whether it is as it was written: it comes from an older "
            "autosched or from another program; save the network again",
            AutoschedWarning,
        )
    try:
        steps: Mapping[str, str] = {str(k): str(v) for k, v in json.loads(facts["schedules"]).items()}
        joined = {str(k): bool(v) for k, v in json.loads(facts.get("joined", "{}")).items()}
        threads = int(facts["threads"])
    except (KeyError, ValueError, AttributeError, RecursionError) as error:
        raise GraphError(f"{path} is damaged: its schedules cannot be read ({error})") from error

    def schedule(recipe: Recipe) -> Recipe:
        if (found := steps.get(_hash(recipe))) is None:
            return recipe
        try:
            check_target(replay(recipe.request.collapsed, found), recipe.device.target.kind)
        except ScheduleError as error:
            tell(f"a schedule in {path} does not fit this version of autosched ({error}): its task has another one")
            return recipe
        return replace(recipe, steps=found)

    def choose(recipes: Sequence[Recipe]) -> list[Recipe]:
        here = {(recipe.device.target.fingerprint, recipe.threads) for recipe in recipes}
        made_for = (facts.get("target"), threads)
        if not steps or here <= {made_for}:
            return [schedule(recipe) for recipe in recipes]
        tell(
            f"the schedules in {path} are for {made_for[0]} and {threads} thread(s), these kernels for "
            f"{' and '.join(f'{target} and {n}' for target, n in sorted(here))}: the analytic model chooses others"
        )
        return list(recipes)

    def is_joined(recipe: Recipe) -> bool | None:
        made_here = (recipe.device.target.fingerprint, recipe.threads) == (facts.get("target"), threads)
        return joined.get(_hash(recipe)) if made_here else None

    return graph, Choices(choose, is_joined)


def _hash(recipe: Recipe) -> str:
    return hashlib.sha256(without_place(recipe.spec).encode()).hexdigest()[:40]

"""The stored schedules of a network's kernels: the best that this installation has verified, where there are any.

A task is found by what it computes. That takes long to tell from its spec, so a spec that the database has word by word
is taken to be what it was; whoever builds the kernel anew sees whether it still is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from autosched.errors import AutoschedError, ScheduleError, StoreError
from autosched.executor.compile_graph import compile_graph, plan_graph
from autosched.executor.compile_options import CompileOptions
from autosched.executor.model import Model
from autosched.graph.graph import Graph
from autosched.kernel.object_cache import find_object
from autosched.kernel.spec import Recipe
from autosched.kernel.transfer import NearestSchedules, form_of
from autosched.kernel.trust import tell
from autosched.planning.execution_plan import NetworkProgram
from autosched.planning.extract_tasks import BY_MODEL, Choices, without_weight_residency
from autosched.planning.fusion_records import stored_fusion_decision
from autosched.store import Database, Record, default_path, named_path

REPORTED = 3  # records that were passed over are named
Inputs: TypeAlias = str  # shapes and types of a spec's inputs, as text


@contextmanager
def stored_schedules(db: Path | str | None) -> Iterator[StoredSchedules | None]:
    """What the database `db` (default: the user's) has of schedules; None where there is no such file. At the end a
    RecordWarning tells of records that do not fit any more."""
    path = default_path() if db is None else named_path(db)
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        yield None
        return
    with Database(path, create=False) as database:
        found = StoredSchedules(database)
        yield found
    if found.passed:
        more = f"; and {len(found.passed) - REPORTED} more" if len(found.passed) > REPORTED else ""
        tell(f"stored records of the network's kernels were passed over ({'; '.join(found.passed[:REPORTED])}{more})")


def compile_with_records(
    graph: Graph,
    target: str | None = "cpu",
    threads: int | None = None,
    choices: Choices = BY_MODEL,
    db: Path | str | None = None,
    *,
    simulate: bool = False,
) -> Model:
    """The network as one program, with the schedules that `choices` has, else with stored ones, else with what the
    analytic model likes best. Raises what `compile_graph` does, and StoreError for a file that is no database."""
    with stored_schedules(db) as stored:
        return compile_graph(graph, target, threads, _choices(stored, choices), simulate)


def plan_with_records(
    graph: Graph, target: str | None = "cpu", threads: int | None = None, choices: Choices = BY_MODEL
) -> NetworkProgram:
    """The program that `compile_with_records` links, with the user's records, for a device that need not be there."""
    with stored_schedules(None) as stored:
        return plan_graph(graph, target, threads, _choices(stored, choices))[0]


def _choices(stored: StoredSchedules | None, choices: Choices) -> Choices:
    """What is chosen, and else what is stored."""
    if stored is None:
        return choices

    def is_fused(recipe: Recipe) -> bool | None:
        known = choices.is_fused(recipe)
        return stored.is_fused(recipe) if known is None else known

    return Choices(lambda recipes: stored(choices.schedules(recipes)), is_fused)


def compile_varying(graph: Graph, nearest: NearestSchedules, options: CompileOptions) -> Model:
    """The network as one program, with stored schedules of its kernels, else those of kernels of nearly the same sizes
    that `nearest` knows or that are stored, else with what the analytic model likes best."""
    target, threads, simulate = options.target, options.threads, options.simulate
    with stored_schedules(options.db) if options.records else nullcontext() as stored:
        if stored is None:
            return compile_graph(graph, target, threads, Choices(nearest, nearest=nearest), simulate)

        def choose(recipes: Sequence[Recipe]) -> Sequence[Recipe]:
            found = stored(recipes)
            nearest.add(stored.alike([recipe for recipe in found if not recipe.steps]))
            return nearest(found)

        return compile_graph(graph, target, threads, Choices(choose, stored.is_fused, nearest), simulate)


@dataclass
class StoredSchedules:
    """Gives recipes their schedules from a database, and parts their forms. `passed`: what was passed over, and why."""

    database: Database
    passed: list[str] = field(default_factory=list)

    def __call__(self, recipes: Sequence[Recipe]) -> tuple[Recipe, ...]:
        """The recipes, those that have none with the steps of their best record; else, where weights are far, with
        those of the best one with its weights near."""
        found = self._found(recipes)
        near = {r: replace(r, spec=without_weight_residency(r.spec)) for r in found if not r.steps}
        near = {r: other for r, other in near.items() if other.spec != r.spec}
        known = dict(zip(near, self._found(list(near.values())), strict=True))
        return tuple(replace(r, steps=known[r].steps) if r in known else r for r in found)

    def is_fused(self, recipe: Recipe) -> bool | None:
        """Whether the fused kernel was faster in a network, as `store_fusion_decisions` has stored it."""
        return stored_fusion_decision(self.database, recipe)

    def _found(self, recipes: Sequence[Recipe]) -> tuple[Recipe, ...]:
        open_recipes = [recipe for recipe in recipes if not recipe.steps]
        hashes = {recipe: found for recipe in open_recipes if (found := self._hash(recipe)) is not None}
        if not hashes:
            return tuple(recipes)
        device = recipes[0].device
        best = self.database.best_of(set(hashes.values()), device.target.fingerprint, device.threads)
        return tuple(self._with_steps(r, best.get(hashes.get(r, ""), ())) for r in recipes)

    def alike(self, recipes: Sequence[Recipe]) -> list[tuple[str, str]]:
        """Specs that differ from those of `recipes` in sizes alone, with the steps of their best verified records."""
        if not recipes:
            return []
        wanted, device = {form_of(recipe.spec).structure for recipe in recipes}, recipes[0].device
        hashes = {spec: found for spec, found in self._known[0].items() if form_of(spec).structure in wanted}
        best = self.database.best_of(set(hashes.values()), device.target.fingerprint, device.threads)
        verified = {name: records[0].steps for name, records in best.items() if records[0].verified}
        return [(spec, verified[found]) for spec, found in hashes.items() if found in verified]

    def _with_steps(self, recipe: Recipe, records: Sequence[Record]) -> Recipe:
        for record in records:
            if not record.verified:  # the best come first, and claims last
                break
            found = replace(recipe, steps=record.steps)
            if find_object(found) is not None:
                return found
            try:
                _check_fits(found, record)
            except AutoschedError as error:
                self.passed.append(f"record {record.id}: {error}")
            else:
                return found
        return recipe

    @cached_property
    def _known(self) -> tuple[dict[str, str], set[Inputs]]:
        """The hashes of the specs that are kernels of networks, and the inputs that these have."""
        hashes, inputs = dict[str, str](), set[Inputs]()
        for workload in self.database.workloads():
            with suppress(StoreError, ValueError, TypeError, KeyError, RecursionError):
                inputs.add(_inputs(json.loads(workload.spec)))
                hashes[workload.spec] = workload.hash
        return hashes, inputs

    def _hash(self, recipe: Recipe) -> str | None:
        """The content hash of what a recipe computes; None where no record can have it."""
        hashes, inputs = self._known
        if (found := hashes.get(recipe.spec)) is not None:
            return found
        # The same may be computed by other operators, which are recorded under the first spec that came.
        return recipe.request.problem.dag.content_hash if _inputs(json.loads(recipe.spec)) in inputs else None


def _inputs(spec: Any) -> Inputs:
    return json.dumps([spec["graph"]["inputs"], spec["graph"]["weights"]])


def _check_fits(recipe: Recipe, record: Record) -> None:
    """Raises ScheduleError for steps that the kernel cannot have."""
    from autosched.schedule import check_target, replay

    if recipe.request.problem.dag.content_hash != record.workload:
        raise ScheduleError("what the network's operators compute has changed since")
    check_target(replay(recipe.request.collapsed, record.steps), recipe.device.target.kind)

"""Schedules of kernels that differ from one in their sizes alone: the steps of the one that is nearest will do.

A schedule holds for any sizes that it fits: what does not divide is guarded. To take it over needs a tenth of the time
that the analytic model takes to choose one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from autosched.errors import AutoschedError
from autosched.network.recipe import Recipe
from autosched.schedule import check_target, replay
from autosched.session.task import apart, without_numbers


@dataclass(frozen=True)
class SizedForm:
    """What a kernel computes, by its spec: `structure` without its sizes, but for those that are 1, as these have no
    loops; and `sizes`, in the order in which they stand there."""

    structure: str
    sizes: tuple[int, ...]


def form_of(spec: str) -> SizedForm:
    without, numbers = without_numbers(json.loads(spec))
    ones = {place: n for place, n in numbers.items() if n <= 1}
    return SizedForm(json.dumps([without, ones]), tuple(n for n in numbers.values() if n > 1))


@dataclass
class NearestSchedules:
    """Gives recipes that have no steps those of the nearest one that is known. Of those that are as near, the one that
    was added first."""

    _known: dict[str, dict[tuple[int, ...], str]] = field(default_factory=dict)  # steps, by structure and sizes

    def add(self, known: Iterable[tuple[str, str]]) -> None:
        """Pairs of a spec and steps."""
        for spec, steps in known:
            form = form_of(spec)
            self._known.setdefault(form.structure, {}).setdefault(form.sizes, steps)

    def __call__(self, recipes: Sequence[Recipe]) -> list[Recipe]:
        return [recipe if recipe.steps else self._nearest(recipe) for recipe in recipes]

    def _nearest(self, recipe: Recipe) -> Recipe:
        form = form_of(recipe.spec)
        known = self._known.get(form.structure)
        if not known:
            return recipe
        sizes = min(known, key=lambda sizes: apart(form.sizes, sizes))
        try:
            check_target(replay(recipe.request.collapsed, known[sizes]), recipe.device.target.kind)
        except AutoschedError:  # axes are merged, or not, by their sizes
            return recipe
        return replace(recipe, steps=known[sizes])

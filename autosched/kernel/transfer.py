"""Schedules of kernels that differ from one in their sizes alone: the steps of the one that is nearest will do.

A schedule holds for any sizes that it fits: what does not divide is guarded. To take it over needs a tenth of the time
that the analytic model takes to choose one. Whoever builds the kernel sees whether it fits: axes are merged, or not, by
their sizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from autosched.kernel.spec import Recipe
from autosched.kernel.task import apart, without_numbers


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
    was added first.

    It also knows what the analytic model expects of kernels. So many times as many images take so many times as long:
    whether kernels are faster joined is seen for one number of images.
    """

    _known: dict[str, dict[tuple[int, ...], str]] = field(default_factory=dict)  # steps, by structure and sizes
    _seconds: dict[str, dict[tuple[int, ...], float]] = field(default_factory=dict)
    _drafted: set[str] = field(default_factory=set)  # specs whose own draft is what the model likes best

    def add(self, known: Iterable[tuple[str, str]]) -> None:
        """Pairs of a spec and steps."""
        for spec, steps in known:
            form = form_of(spec)
            self._known.setdefault(form.structure, {}).setdefault(form.sizes, steps)

    def __call__(self, recipes: Sequence[Recipe]) -> list[Recipe]:
        return [recipe if recipe.steps else self._nearest(recipe) for recipe in recipes]

    def _nearest(self, recipe: Recipe) -> Recipe:
        if recipe.spec in self._drafted:
            return recipe
        form = form_of(recipe.spec)
        known = self._known.get(form.structure)
        if not known:
            return recipe
        return replace(recipe, steps=known[min(known, key=lambda sizes: apart(form.sizes, sizes))])

    def knows(self, spec: str) -> bool:
        """Whether there is a schedule for a spec."""
        return form_of(spec).structure in self._known

    def add_drafted(self, known: Iterable[tuple[str, str]]) -> None:
        """As `add`, with what the analytic model likes best."""
        for spec, steps in known:
            self._drafted.add(spec)
            self.add([(spec, steps)])

    def add_seconds(self, known: Iterable[tuple[str, float]]) -> None:
        """Pairs of a spec and seconds."""
        for spec, seconds in known:
            form = form_of(spec)
            self._seconds.setdefault(form.structure, {}).setdefault(form.sizes, seconds)

    def seconds_of(self, spec: str) -> float | None:
        """Of a kernel; None where none is known whose sizes are the same but for one factor."""
        form = form_of(spec)
        for sizes, seconds in self._seconds.get(form.structure, {}).items():
            factors = {Fraction(a, b) for a, b in zip(form.sizes, sizes, strict=True) if a != b}
            if len(factors) <= 1:
                return seconds * float(next(iter(factors), 1))
        return None

"""What kernels would take by the analytic model, to see whether some in a row are faster as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autosched.graph.graph import Graph
from autosched.graph.steps import Group
from autosched.kernel.device import Device
from autosched.kernel.pool import UnbuiltKernel, build_kernels
from autosched.kernel.spec import Recipe
from autosched.kernel.transfer import NearestSchedules
from autosched.kernel.versions import key_of
from autosched.planning.extract_tasks import spec_of
from autosched.planning.fusion_candidates import is_chain
from autosched.planning.fusion_choice import PricedGroup
from autosched.runtime.disk_cache import read, write


@dataclass(frozen=True)
class Prices:
    """Of groups of a graph, whose weights lie in `place`. `nearest`: what is known of other sizes, which is not drafted
    again: groups that are kernels there are none here, or the other way round, as they are there."""

    graph: Graph
    target_text: str
    device: Device
    place: str
    nearest: NearestSchedules

    def priced(self, groups: Sequence[Group]) -> list[PricedGroup]:
        """Groups with the seconds that their kernels take by the analytic model."""
        recipes = [self._recipe(group) for group in groups]
        seconds = {recipe: self.nearest.seconds_of(recipe.spec) for recipe in recipes}
        wanted = {recipe: math.inf for recipe, found in seconds.items() if found is None}
        unbuilt = dict[Recipe, float]()
        while wanted:
            try:
                kernels = build_kernels(list(wanted))
                self.nearest.add_drafted((recipe.spec, kernel.steps) for recipe, kernel in kernels.items())
                wanted = {recipe: kernel.estimate_s for recipe, kernel in kernels.items()}
                break
            except UnbuiltKernel as failure:
                unbuilt[failure.recipe] = wanted.pop(failure.recipe)
        made = wanted | unbuilt
        self.nearest.add_seconds((recipe.spec, found) for recipe, found in made.items())
        every = [made[recipe] if (found := seconds[recipe]) is None else found for recipe in recipes]
        return [PricedGroup(*each) for each in zip(groups, recipes, every, strict=True)]

    def may_join(self, joined: Group, parts: Sequence[Group]) -> bool:
        """Whether a group may be a kernel instead of its parts: a rule of the search space has a nest for it."""
        spec = self._recipe(joined).spec
        if (seconds := self.nearest.seconds_of(spec)) is not None:
            return math.isfinite(seconds)
        if all(self.nearest.knows(self._recipe(part).spec) for part in parts):
            return False
        key = key_of(f"chain {spec}", self.device.target)
        if (known := read(key)) is None:
            found = is_chain(self.graph, joined, self.device)
            write(key, {"is_chain": found}, b"")
        else:
            found = known[0].get("is_chain") is True
        if not found:
            self.nearest.add_seconds([(spec, math.inf)])
        return found

    def _recipe(self, group: Group) -> Recipe:
        target = self.device.target
        spec = spec_of(self.graph, group, target.backend, self.place)
        return Recipe(spec, self.target_text, self.device.threads, gpu=target.gpu)

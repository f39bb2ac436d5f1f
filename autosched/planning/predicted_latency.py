"""Predicted latency of groups by the analytic model, to compare fused kernels with unfused ones."""

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
from autosched.planning.fusion_candidates import has_fused_sketch
from autosched.planning.fusion_choice import PredictedGroup
from autosched.runtime.disk_cache import read, write


@dataclass(frozen=True)
class LatencyPredictor:
    """Predicts the latency of groups of a graph whose weights are in the cache level `residency`.

    `nearest` has the predictions and schedules of the same groups at other sizes, so that a network for another batch
    size makes the same fusion choices without new predictions.
    """

    graph: Graph
    target_text: str
    device: Device
    residency: str
    nearest: NearestSchedules

    def predict(self, groups: Sequence[Group]) -> list[PredictedGroup]:
        """Return the groups with the seconds that the analytic model predicts, infinity if no code can be made."""
        recipes = [self._recipe(group) for group in groups]
        earlier = {recipe: self.nearest.seconds_of(recipe.spec) for recipe in recipes}
        unbuilt = dict[Recipe, float]()
        predicted = {recipe: math.inf for recipe, seconds in earlier.items() if seconds is None}
        while predicted:
            try:
                kernels = build_kernels(list(predicted))
                self.nearest.add_drafted((recipe.spec, kernel.steps) for recipe, kernel in kernels.items())
                predicted = {recipe: kernel.estimate_s for recipe, kernel in kernels.items()}
                break
            except UnbuiltKernel as failure:
                unbuilt[failure.recipe] = predicted.pop(failure.recipe)
        predicted |= unbuilt
        self.nearest.add_seconds((recipe.spec, seconds) for recipe, seconds in predicted.items())
        every = [predicted[recipe] if (seconds := earlier[recipe]) is None else seconds for recipe in recipes]
        return [PredictedGroup(*each) for each in zip(groups, recipes, every, strict=True)]

    def can_fuse(self, fused: Group, unfused: Sequence[Group]) -> bool:
        """Whether a rule of the search space has a sketch for the fused group; kept in the disk cache."""
        spec = self._recipe(fused).spec
        if (seconds := self.nearest.seconds_of(spec)) is not None:
            return math.isfinite(seconds)
        if all(self.nearest.knows(self._recipe(group).spec) for group in unfused):
            return False
        key = key_of(f"chain {spec}", self.device.target)
        if (cached := read(key)) is None:
            has_sketch = has_fused_sketch(self.graph, fused, self.device)
            write(key, {"is_chain": has_sketch}, b"")
        else:
            has_sketch = cached[0].get("is_chain") is True
        if not has_sketch:
            self.nearest.add_seconds([(spec, math.inf)])
        return has_sketch

    def _recipe(self, group: Group) -> Recipe:
        target = self.device.target
        spec = spec_of(self.graph, group, target.backend, self.residency)
        return Recipe(spec, self.target_text, self.device.threads, gpu=target.gpu)

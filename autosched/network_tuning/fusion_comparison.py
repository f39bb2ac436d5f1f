"""The forms of a network's open parts, timed in the running network: one kernel where there were several, and back.

What is faster alone need not be faster there: a kernel for all of a part leaves other things in the caches than several
do, and the arena is another one. So the network runs with each open part in either form, those that were faster in the
other form go over to it, and whole calls decide whether the network is faster for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from statistics import mean

from autosched.executor.model import Model
from autosched.executor.profile import profile
from autosched.graph.steps import Group
from autosched.kernel.spec import Recipe
from autosched.network_tuning.end_to_end import PROFILE_S, PROFILES, SLOWER, Arrays, contest_s, side_by_side
from autosched.planning.fusion_records import FusionTimes

LEAST_S = 1e-9  # of a part: less is not measured
Flip = Callable[[AbstractSet[Recipe]], Model]  # the network with the other form of the parts of these recipes
Times = Mapping[Recipe, tuple[float, ...]]  # of each open part, by profiles


def forms_contest_s(call_s: float, load_s: float) -> float:
    """Seconds that it takes, of a network of which a call takes `call_s`, and making it anew `load_s`."""
    return 2 * (load_s + contest_s(call_s) + PROFILES * max(PROFILE_S, 2 * call_s))


def open_recipes(model: Model) -> frozenset[Recipe]:
    return frozenset(part.recipe for part in model.program.fusion_choices if part.is_undecided)


def contest_of_forms(model: Model, flip: Flip, inputs: Arrays) -> tuple[Model, tuple[FusionTimes, ...]]:
    """The network with its open parts in the forms that are faster in it, and their times in both."""
    flipped = open_recipes(model)
    other = flip(flipped)
    here, there = parts_inside([model, other], inputs)
    faster = frozenset(r for r in flipped if SLOWER * min(there[r]) < min(here[r]))
    kept = model
    if faster:
        rival = other if faster == flipped else flip(faster)
        mine, theirs = side_by_side([model, rival], inputs)
        kept = rival if min(theirs) < min(mine) else model
    forms = model.fusion_decisions
    pairs = {r: (here[r], there[r]) if forms[r] else (there[r], here[r]) for r in here}
    return kept, tuple(FusionTimes(r, joined, apart, kept.fusion_decisions[r]) for r, (joined, apart) in pairs.items())


def parts_inside(models: Sequence[Model], inputs: Arrays) -> list[Times]:
    """For each network the seconds of its open parts, in the forms that it has; of equal ones the mean."""
    found: list[dict[Recipe, tuple[float, ...]]] = [{} for _ in models]
    for _ in range(PROFILES):
        for known, model in zip(found, models, strict=True):
            for recipe, seconds in _parts_of(model, profile(model, inputs, PROFILE_S).kernels).items():
                known[recipe] = (*known.get(recipe, ()), seconds)
    return list(found)


def _parts_of(model: Model, kernels: Mapping[int, float]) -> dict[Recipe, float]:
    seconds = {step.outputs: kernels[n] for n, step in enumerate(model.program.steps) if isinstance(step, Group)}
    times: dict[Recipe, list[float]] = {}
    for part in model.program.fusion_choices:
        if part.is_undecided:
            whole = sum(seconds[kernel.group.outputs] for kernel in part.selected.kernels)
            times.setdefault(part.recipe, []).append(max(whole, LEAST_S))
    return {recipe: mean(each) for recipe, each in times.items()}

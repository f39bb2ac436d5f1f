"""End-to-end comparison of undecided fusion choices: a fused kernel against several, both within the network.

The choice that is faster alone need not be faster in the network: it leaves other data in the caches, and changes the
arena. So the network is timed with each choice, choices that are slower than the other one are flipped, and whole calls
decide whether the network with the flipped ones is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import mean

from autosched.executor.model import Model
from autosched.executor.profile import profile
from autosched.graph.steps import Group
from autosched.kernel.spec import KernelSpec
from autosched.kernel.task import rows_of, task_key
from autosched.network_tuning.end_to_end import PROFILE_S, PROFILES, SLOWER, Arrays, comparison_s, interleaved_samples
from autosched.store import Database, FusionDecision

MIN_S = 1e-9  # of the kernels of a choice: smaller times are not measured
Flip = Callable[[AbstractSet[KernelSpec]], Model]  # builds the network with these fusion choices flipped
Times = Mapping[KernelSpec, tuple[float, ...]]  # seconds of each undecided fusion, one for each profile


@dataclass(frozen=True)
class FusionTimes:
    """Seconds of a subgraph in the running network, fused and unfused, one per profile.

    `kernel_spec` is that of the fused kernel; `is_fused`: whether it was kept.
    """

    kernel_spec: KernelSpec
    fused_s: tuple[float, ...]
    unfused_s: tuple[float, ...]
    is_fused: bool

    @property
    def operators(self) -> str:
        return self.kernel_spec.request.problem.name

    def to_json(self) -> dict[str, object]:
        return {
            "operators": self.operators,
            "joined_s": min(self.fused_s),
            "apart_s": min(self.unfused_s),
            "is_joined": self.is_fused,
        }

    def __str__(self) -> str:
        kept = "one kernel" if self.is_fused else "kernels apart"
        return (
            f"{kept} of {self.operators.replace('-', ' ')}: "
            f"{1e6 * min(self.fused_s):.0f} us in the network as one, {1e6 * min(self.unfused_s):.0f} us apart"
        )


def fusion_comparison_s(call_s: float, load_s: float) -> float:
    """Return the seconds of a comparison: a call of the network takes `call_s`, rebuilding it `load_s`."""
    return 2 * (load_s + comparison_s(call_s) + PROFILES * max(PROFILE_S, 2 * call_s))


def undecided_kernels(model: Model) -> frozenset[KernelSpec]:
    return frozenset(part.kernel_spec for part in model.program.all_fusion_choices if part.is_undecided)


def compare_fusions(model: Model, flip: Flip, inputs: Arrays) -> tuple[Model, tuple[FusionTimes, ...]]:
    """Return the network with the faster side of each undecided fusion, and the times of both sides."""
    undecided = undecided_kernels(model)
    flipped = flip(undecided)
    own, other = fusion_times_in_network([model, flipped], inputs)
    slower = frozenset(r for r in undecided if SLOWER * min(other[r]) < min(own[r]))
    kept = model
    if slower:
        rival = flipped if slower == undecided else flip(slower)
        model_samples, rival_samples = interleaved_samples([model, rival], inputs)
        kept = rival if min(rival_samples) < min(model_samples) else model
    forms = model.fusion_decisions
    pairs = {r: (own[r], other[r]) if forms[r] else (other[r], own[r]) for r in own}
    return kept, tuple(FusionTimes(r, joined, apart, kept.fusion_decisions[r]) for r, (joined, apart) in pairs.items())


def store_fusion_decisions(database: Database, comparisons: Iterable[FusionTimes]) -> None:
    """Store the times and the decision of each comparison. Raises StoreError."""
    for comparison in comparisons:
        request = comparison.kernel_spec.request
        times = (comparison.fused_s, comparison.unfused_s)
        decision = FusionDecision(*task_key(request), comparison.is_fused, *times)
        database.add_fusion_decision(*rows_of(request), decision)


def fusion_times_in_network(models: Sequence[Model], inputs: Arrays) -> list[Times]:
    """Return for each network the seconds of its undecided fusions as it computes them; the mean of equal ones."""
    times: list[dict[KernelSpec, tuple[float, ...]]] = [{} for _ in models]
    for _ in range(PROFILES):
        for own, model in zip(times, models, strict=True):
            for kernel_spec, seconds in _fusion_times(model, profile(model, inputs, PROFILE_S).kernels).items():
                own[kernel_spec] = (*own.get(kernel_spec, ()), seconds)
    return list(times)


def _fusion_times(model: Model, kernels: Mapping[int, float]) -> dict[KernelSpec, float]:
    times: dict[KernelSpec, list[float]] = {}
    for program in model.program.programs:
        groups = ((program.first_step + n, step) for n, step in enumerate(program.steps) if isinstance(step, Group))
        seconds = {group.outputs: kernels[n] for n, group in groups}
        for part in program.fusion_choices:
            if part.is_undecided:
                total_s = sum(seconds[kernel.group.outputs] for kernel in part.selected.kernels)
                times.setdefault(part.kernel_spec, []).append(max(total_s, MIN_S))
    return {kernel_spec: mean(each) for kernel_spec, each in times.items()}

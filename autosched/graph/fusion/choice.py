"""Fusion choice: a chain of reductions as one fused kernel or as several unfused ones, which compute the same.

The analytic model selects one of the two. Where its predictions are close, it may be wrong, and the choice is
undecided: a search for the network measures both, the kernels alone and in the running network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from autosched.graph.steps import Group, NetworkStep

Kernel = TypeVar("Kernel")  # what identifies a kernel: groups that compute the same have equal ones

# A choice is undecided where the larger predicted latency is at most so many times the smaller one. The measured ratio
# of fused to unfused was 0.80, 0.92, 1.20 and 1.39 times the predicted ratio (four chains of MobileNet-V2, busy Xeon).
UNDECIDED_RATIO = 1.5


@dataclass(frozen=True)
class PredictedGroup(Generic[Kernel]):
    """A group, its kernel, and the predicted latency in seconds: infinity if no code can be generated."""

    group: Group
    kernel_spec: Kernel
    estimate_s: float


@dataclass(frozen=True)
class KernelSequence(Generic[Kernel]):
    """The kernels of a subgraph in the order in which they run."""

    kernels: tuple[PredictedGroup[Kernel], ...]

    @property
    def estimate_s(self) -> float:
        return sum(kernel.estimate_s for kernel in self.kernels)


@dataclass(frozen=True)
class FusionChoice(Generic[Kernel]):
    """A subgraph as one kernel, `fused`, and as several, `unfused`; `is_fused` says which of them is selected."""

    fused: KernelSequence[Kernel]
    unfused: KernelSequence[Kernel]
    is_fused: bool

    @property
    def kernel_spec(self) -> Kernel:
        """The specification of the fused kernel, which identifies equal subgraphs."""
        return self.fused.kernels[0].kernel_spec

    @property
    def selected(self) -> KernelSequence[Kernel]:
        return self.fused if self.is_fused else self.unfused

    @property
    def rejected(self) -> KernelSequence[Kernel]:
        return self.unfused if self.is_fused else self.fused

    @property
    def is_undecided(self) -> bool:
        """Whether the predicted latencies are so close that the analytic model may be wrong about the faster one."""
        less, more = sorted((self.fused.estimate_s, self.unfused.estimate_s))
        return more <= UNDECIDED_RATIO * less

    @property
    def operators(self) -> str:
        return " ".join(node.operator for node in self.fused.kernels[0].group.nodes)

    def to_json(self) -> dict[str, object]:
        return {
            "operators": self.operators,
            "is_joined": self.is_fused,
            "joined_s": self.fused.estimate_s,
            "apart_s": self.unfused.estimate_s,
            "is_open": self.is_undecided,
        }

    def __str__(self) -> str:
        n = len(self.unfused.kernels)
        selected = "one kernel" if self.is_fused else f"{n} kernels"
        predicted = f"{1e6 * self.fused.estimate_s:.0f} us of one and {1e6 * self.unfused.estimate_s:.0f} us of {n}"
        undecided = ", and tuning measures both" if self.is_undecided else ""
        return f"{self.operators}: {selected}; the analytic model expects {predicted}{undecided}"


def apply_fusion_choices(
    steps: Sequence[NetworkStep], choices: Sequence[FusionChoice[Kernel]]
) -> tuple[NetworkStep, ...]:
    """Replace the unfused kernels in `steps` by the fused one for each choice that selects it.

    The fused kernel stands where the last unfused one was, because its inputs may be computed between them.
    """
    fused = [choice for choice in choices if choice.is_fused]
    replacements = {choice.unfused.kernels[-1].group.outputs: choice.fused.kernels[0].group for choice in fused}
    removed = {kernel.group.outputs for choice in fused for kernel in choice.unfused.kernels[:-1]}
    kept = (step for step in steps if not (isinstance(step, Group) and step.outputs in removed))
    return tuple(replacements.get(step.outputs, step) if isinstance(step, Group) else step for step in kept)

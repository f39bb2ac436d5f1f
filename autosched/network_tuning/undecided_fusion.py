"""Undecided fusion choices in a search: the tasks of both choices, and the time that the other choice saves.

Tasks of the other choice are searched for as long as it is at most MAX_SLOWDOWN times as slow as the network's own. A
second that they save then counts as much as a second of the network's own kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autosched.graph.fusion.choice import FusionChoice
from autosched.kernel.spec import KernelSpec
from autosched.network_tuning.shared_tasks import SharedTask

MAX_SLOWDOWN = 1.25  # over the faster choice: tuning makes a kernel less than this times as fast, on average


@dataclass(frozen=True)
class UndecidedFusion:
    """A fusion choice that occurs `count` times in the network of this index. `present`: indices of the tasks of the
    network's own choice, `other`: of the other choice."""

    network: int
    count: int
    present: tuple[int, ...]
    other: tuple[int, ...]

    def gain_s(self, times: Sequence[float]) -> float:
        """Return the seconds of a network's call that the other choice saves, 0 if it is slower. `times`: seconds of
        each task."""
        return self.count * max(0.0, _sum(self.present, times) - _sum(self.other, times))

    def extra_calls(self, times: Sequence[float]) -> Iterator[tuple[int, int]]:
        """Yield (task, calls) to be added to the calls in the network, which weigh the tasks: the other choice's tasks
        unless it is beaten, and the own ones with a minus if that is beaten."""
        present_s, other_s = _sum(self.present, times), _sum(self.other, times)
        if other_s <= MAX_SLOWDOWN * present_s:
            yield from ((n, self.count) for n in self.other)
        if present_s > MAX_SLOWDOWN * other_s:
            yield from ((n, -self.count) for n in self.present)


def _sum(tasks: Sequence[int], times: Sequence[float]) -> float:
    return sum(times[n] for n in tasks)


def find_undecided_fusions(
    fusion_choices: Sequence[Sequence[FusionChoice[KernelSpec]]], tasks: Sequence[SharedTask]
) -> tuple[UndecidedFusion, ...]:
    """Return the undecided ones of each network's fusion choices, with the indices of their kernels in `tasks`. Equal
    choices of a network are counted in one."""
    undecided = []
    for network, choices in enumerate(fusion_choices):
        indices = {spec: n for n, task in enumerate(tasks) for spec in task.specs(network)}
        counts = Counter(choice.kernel_spec for choice in choices if choice.is_undecided)
        for choice in {choice.kernel_spec: choice for choice in choices if choice.is_undecided}.values():
            present, other = (
                tuple(indices[kernel.kernel_spec.workload] for kernel in sequence.kernels)
                for sequence in (choice.selected, choice.rejected)
            )
            undecided.append(UndecidedFusion(network, counts[choice.kernel_spec], present, other))
    return tuple(undecided)

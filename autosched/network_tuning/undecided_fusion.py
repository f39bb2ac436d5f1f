"""The open parts of networks in a search: which searches are for their kernels, and what their other form may save.

A form is searched for as long as it does not take much longer than the other one: what may be gained by going over to
it is worth as much as what may be gained of the form that there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autosched.network_tuning.shared_tasks import SharedTask
from autosched.planning.fusion_choice import FusionChoice

BEATEN = 1.25  # times as long as the other form: more than tuning gains of a kernel on average


@dataclass(frozen=True)
class OpenPart:
    """A part that occurs `count` times in the network of this number: the numbers of the searches for its kernels in
    the form that it has, and in the other one."""

    network: int
    count: int
    present: tuple[int, ...]
    other: tuple[int, ...]

    def gain_s(self, now: Sequence[float]) -> float:
        """What a call of the network saves in the faster form, where searches' kernels take `now`."""
        return self.count * max(0.0, _sum(self.present, now) - _sum(self.other, now))

    def calls(self, now: Sequence[float]) -> Iterator[tuple[int, int]]:
        """By how much more, or less, the kernels of searches are worth than by their calls in the network."""
        present_s, other_s = _sum(self.present, now), _sum(self.other, now)
        if other_s <= BEATEN * present_s:
            yield from ((n, self.count) for n in self.other)
        if present_s > BEATEN * other_s:
            yield from ((n, -self.count) for n in self.present)


def _sum(searches: Sequence[int], now: Sequence[float]) -> float:
    return sum(now[n] for n in searches)


def open_parts(fusion_choices: Sequence[Sequence[FusionChoice]], tasks: Sequence[SharedTask]) -> tuple[OpenPart, ...]:
    """The open ones of each network's parts, whose kernels are among the tasks; those that are equal as one."""
    found = []
    for network, parts in enumerate(fusion_choices):
        numbers = {spec: n for n, task in enumerate(tasks) for spec in task.specs(network)}
        counts = Counter(part.recipe for part in parts if part.is_undecided)
        for part in {part.recipe: part for part in parts if part.is_undecided}.values():
            present, other = (tuple(numbers[spec] for spec in form.specs) for form in (part.selected, part.rejected))
            found.append(OpenPart(network, counts[part.recipe], present, other))
    return tuple(found)

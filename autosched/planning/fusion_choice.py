"""Parts of a network that may be one kernel or several, which compute the same.

The analytic model says which form a part begins with. Where it sees little between the two it may be wrong, and the
part is open: a search for the network measures the kernels of both forms, alone and in the running network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosched.graph.steps import Group, NetworkStep
from autosched.kernel.spec import Recipe

# Times as long as the other one a form may be expected to take, for both to be searched for. The time of one form over
# that of the other, in the network, was 0.80, 0.92, 1.20 and 1.39 times what was expected (four parts of MobileNet-V2,
# busy Xeon).
OPEN = 1.5


@dataclass(frozen=True)
class PricedGroup:
    """A group, what its kernel is made from, and the seconds that the analytic model expects of it: infinity where none
    can be made."""

    group: Group
    recipe: Recipe
    seconds: float


@dataclass(frozen=True)
class PartForm:
    """Kernels that compute a part of a network, in the order in which they run."""

    kernels: tuple[PricedGroup, ...]

    @property
    def estimate_s(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def specs(self) -> tuple[str, ...]:
        return tuple(kernel.recipe.spec for kernel in self.kernels)


@dataclass(frozen=True)
class Alternative:
    """A part of a network as one kernel, `joined`, or as several, `apart`; `is_joined`: which of them it is."""

    joined: PartForm
    apart: PartForm
    is_joined: bool

    @property
    def recipe(self) -> Recipe:
        """By which parts that compute the same are known."""
        return self.joined.kernels[0].recipe

    @property
    def present(self) -> PartForm:
        return self.joined if self.is_joined else self.apart

    @property
    def other(self) -> PartForm:
        return self.apart if self.is_joined else self.joined

    @property
    def is_open(self) -> bool:
        """Whether the analytic model may be wrong about which form is faster."""
        less, more = sorted((self.joined.estimate_s, self.apart.estimate_s))
        return more <= OPEN * less

    @property
    def operators(self) -> str:
        return " ".join(node.operator for node in self.joined.kernels[0].group.nodes)

    def to_json(self) -> dict[str, object]:
        """JSON data."""
        return {
            "operators": self.operators,
            "is_joined": self.is_joined,
            "joined_s": self.joined.estimate_s,
            "apart_s": self.apart.estimate_s,
            "is_open": self.is_open,
        }

    def __str__(self) -> str:
        n = len(self.apart.kernels)
        form = "one kernel" if self.is_joined else f"{n} kernels"
        expected = f"{1e6 * self.joined.estimate_s:.0f} us of one and {1e6 * self.apart.estimate_s:.0f} us of {n}"
        both = ", and tuning measures both" if self.is_open else ""
        return f"{self.operators}: {form}; the analytic model expects {expected}{both}"


def with_forms(steps: Sequence[NetworkStep], alternatives: Sequence[Alternative]) -> tuple[NetworkStep, ...]:
    """The steps, which have all parts as several kernels, with those as one that are joined: where their last one was,
    because what it reads may be made between them."""
    joined = [a for a in alternatives if a.is_joined]
    ends = {a.apart.kernels[-1].group.outputs: a.joined.kernels[0].group for a in joined}
    gone = {kernel.group.outputs for a in joined for kernel in a.apart.kernels[:-1]}
    kept = (step for step in steps if not (isinstance(step, Group) and step.outputs in gone))
    return tuple(ends.get(step.outputs, step) if isinstance(step, Group) else step for step in kept)

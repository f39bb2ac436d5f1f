"""Variants of a sized kernel as data that can be printed: their guards, schedules, and the sizes that they served."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autosched.ir.expr import Expr
from autosched.ir.size import unit_of
from autosched.kernel.sizes.variants import KernelVariant

_SYMBOL = re.compile(r"\bs(\d+)\b")
_MULTIPLE = re.compile(r"\((\w+)/(\d+)\)\*\2\b")  # (N/8)*8 is N


@dataclass(frozen=True)
class VariantDescription:
    """A variant: the conditions on sizes for which it is right, its schedule in JSON, and sizes that it was used for.

    `sketch`: that of the analytic model's choice; empty for the schedule of a record.
    """

    guards: tuple[str, ...]
    steps: str
    sketch: str
    sizes: tuple[Mapping[str, int], ...]

    def __str__(self) -> str:
        served = ("  ".join(f"{name}={n}" for name, n in sizes.items()) for sizes in self.sizes)
        origin = f"by the analytic model, {self.sketch}" if self.sketch else "of a record"
        steps = self.steps.replace("],[", "],\n             [")
        return "\n".join(
            [
                f"guards     {' and '.join(self.guards) or 'none'}",
                f"served     {', '.join(served) or 'none yet'}",
                f"schedule   {origin}",
                f"            {steps}",
            ]
        )


def describe(
    variants: Iterable[KernelVariant], ranges: Mapping[str, range], served: Mapping[str, Sequence[Mapping[str, int]]]
) -> list[VariantDescription]:
    """Return the descriptions of variants. `served`: the sizes of calls, by the names of the kernels."""
    return [
        VariantDescription(
            tuple(form_text(guard, ranges) for guard in variant.sizes.guards),
            variant.kernel.schedule.steps,
            variant.kernel.schedule.sketch,
            tuple(served.get(variant.kernel.name, ())),
        )
        for variant in variants
    ]


def form_text(form: Expr, ranges: Mapping[str, range]) -> str:
    """Return a closed form over the symbols s0, s1 and so on of sizes, with the names of these."""
    units = [name if (unit := unit_of(r)) == 1 else f"({name}/{unit})" for name, r in ranges.items()]
    text = _SYMBOL.sub(lambda match: units[int(match[1])], str(form))
    return _MULTIPLE.sub(r"\1", text)

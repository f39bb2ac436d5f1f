"""One small kernel for each form of each PTX instruction that the simulator knows, with what it must give.

The simulator's tests execute them, and the step `instructions` on a card: where the two agree, kernels that are right
on the simulator have a right to be right on the card.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from experiments.gpu.forms import blocks, numbers, tiles, warpgroups, warps
from experiments.gpu.forms.form import InstructionForm


@cache
def all_forms() -> Mapping[str, InstructionForm]:
    """By name, the most doubtful ones first."""
    sources = (warpgroups, tiles, warps, blocks, numbers)
    return {form.name: form for source in sources for form in source.forms()}

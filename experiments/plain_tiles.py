"""An ablation of the search space, to measure what the rest of it is worth: no packed operands, tiles that divide.

at.tune("conv2d", search=SearchSetup(narrow=plain_tiles))
"""

from __future__ import annotations

from dataclasses import replace

from autosched.schedule import Pack
from search_spaces.space import Sketch, SketchParam


def plain_tiles(sketches: tuple[Sketch, ...]) -> tuple[Sketch, ...]:
    """The sketches that pack least (not at all if there are such), with tile counts that divide their axes.

    Counts of several levels of an axis are not tied to each other: their product may still not divide.
    """
    packs = [sum(isinstance(step, Pack) for step in sketch.state.steps) for sketch in sketches]
    least = min(packs, default=0)
    return tuple(
        replace(sketch, params=tuple(_with_divisors(p) for p in sketch.params))
        for sketch, n in zip(sketches, packs, strict=True)
        if n == least
    )


def _with_divisors(param: SketchParam) -> SketchParam:
    """The parameter with those of its values that divide its axis, or its smallest; unchanged if it has no axis."""
    if not param.extent:
        return param
    return replace(param, domain=tuple(v for v in param.domain if param.extent % v == 0) or param.domain[:1])

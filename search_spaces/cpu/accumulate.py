"""The accumulating stage of a tiled reduction."""

from __future__ import annotations

from autosched.schedule import Pack, Reorder, Split, Stage, Step, Unroll, Vectorize
from search_spaces.cpu.domains import unroll
from search_spaces.draft import Draft


def unroll_name(stage: str, axis: str) -> str:
    """The parameter that says how many steps of the reduction axis are written out."""
    return f"{stage}.{axis}.u"


def unrolled_accumulator(draft: Draft, acc: Stage, v: str) -> Draft:
    """Reduction loops outside, the last one partly unrolled; the register tile unrolled, `v` in vectors."""
    others = [a.name for a in acc.op.axes if a.name != v]
    reduced = [a.name for a in acc.op.reduce_axes]
    steps: list[Step] = []
    last = acc.op.reduce_axes[-1]
    factor = unroll(unroll_name(acc.name, last.name), last.extent)
    unrolled = []
    if len(factor.domain) > 1:
        draft = draft.with_params([factor])
        steps.append(Split(acc.name, last.name, (factor.name,)))
        reduced[-1:] = [f"{last.name}.0", f"{last.name}.1"]
        unrolled = [f"{last.name}.1"]
    steps.append(Reorder(acc.name, (*reduced, *others, v)))
    steps += [Unroll(acc.name, x) for x in (*unrolled, *others)]
    steps.append(Vectorize(acc.name, v))
    number = [a.name for a in acc.op.axes].index(v)
    if number != len(acc.op.axes) - 1:
        order = [n for n in range(len(acc.op.axes)) if n != number]
        steps.append(Pack(acc.name, (*order, number)))
    return draft.apply(*steps)

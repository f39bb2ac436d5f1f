"""Reductions to the first of the best that visit their places in order: whether two places are equal, and which of two
comes first, need not be asked then. They start at the first place, with the value that none is worse than.
"""

from __future__ import annotations

from autosched.ir.expr import Binary, Cast, Const, Expr, Param
from autosched.ir.linear import linear
from autosched.ir.stmt import ForKind
from autosched.ir.visit import free_vars
from autosched.schedule.stage import Stage, StageAxis
from autosched.te.rewrites.first_best import FirstBest, first_best


def in_order(stage: Stage) -> FirstBest | None:
    """What the stage keeps, if one thread visits the places of each of its points from the first to the last."""
    op = stage.op
    found = None if op.reducer is None else first_best(op.reducer)
    if found is None or not found.starts_anywhere() or len(op.reduce_axes) != 1:
        return None
    if stage.starts or stage.cross is not None or stage.into is not None or not _advances(stage):
        return None
    return found if _grows(op.body[found.place], op.reduce_axes[0]) else None


def _advances(stage: Stage) -> bool:
    """Whether the loops over the reduction are run one after the other, outer levels outside."""
    loops = [x for x in stage.loops if x.reduce]
    levels = [level for x in loops for _, level in x.parts]
    kinds = {ForKind.SERIAL, ForKind.UNROLL}
    return all(len(x.parts) == 1 and x.kind in kinds for x in loops) and levels == sorted(levels)


def _grows(place: Expr, axis: StageAxis) -> bool:
    form = linear(place.a if isinstance(place, Cast) else place)
    others = [a for a, _ in form.terms if a is not axis.var]
    return _is_positive(form.coefficient(axis.var)) and not any(axis.var in free_vars(a) for a in others)


def _is_positive(e: Expr) -> bool:
    """Products of positive numbers and parameters; nothing is known of sums."""
    if isinstance(e, Binary) and e.op == "mul":
        return _is_positive(e.a) and _is_positive(e.b)
    return isinstance(e, Param) or (isinstance(e, Const) and e.value > 0)

"""Step NarrowPlaces: compute the indices of argmax and argmin in 32 bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.errors import ScheduleError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Const, Expr, Load, Var, cast
from autosched.ir.types import integer_bounds
from autosched.ir.visit import subexpressions
from autosched.schedule.stage import StageOp
from autosched.schedule.state import State
from autosched.schedule.steps.stages import CacheWrite
from autosched.te.rewrites.first_best import FirstBest, first_best

NARROW = "int32"


@dataclass(frozen=True)
class NarrowPlaces:
    """An argmax or argmin is computed into `stage.acc` with places of 32 bits, as many as float32 values to a vector;
    the stage itself becomes the copy out of it, of what is an output or read by somebody.

    Refused for other reductions, and where a place may not fit.
    """

    stage: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"narrow_places({self.stage})"
        found = narrow_places(stage.op)
        if found is None:
            raise ScheduleError(f"{where}: it is no reduction to the first of the best, with places of 32 bits")
        state = CacheWrite(self.stage).apply(state)
        inner, copy = state.stage(f"{self.stage}.acc"), state.stage(self.stage)

        def kept(items: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(NARROW if n == found.place else x for n, x in enumerate(items))

        body = tuple(cast(v, NARROW) if n == found.place else v for n, v in enumerate(inner.op.body))
        op = replace(inner.op, body=body, reducer=found.with_places(NARROW), dtypes=kept(inner.op.dtypes))
        state = state.with_stage(replace(inner, op=op))
        outputs, read = {t.name for t in state.outputs}, {b for s in state.stages for b in s.op.reads}
        used = [n for n, b in enumerate(copy.op.buffers) if b in outputs | read]
        values = tuple(_copied(copy.op.body[n], op.dtypes[n]) for n in used)
        names, dtypes = (tuple(x[n] for n in used) for x in (copy.op.buffers, copy.op.dtypes))
        return state.with_stage(replace(copy, op=replace(copy.op, body=values, buffers=names, dtypes=dtypes)))


def narrow_places(op: StageOp) -> FirstBest | None:
    """Return the reduction whose indices, computed from the axes alone, fit in 32 bits; None for any other."""
    found = None if op.reducer is None else first_best(op.reducer)
    if found is None or op.dtypes[found.place] != INDEX or not _is_of_axes(op.body[found.place]):
        return None
    ranges = {a.var: (0, a.extent.number - 1) for a in op.all_axes if isinstance(a.extent, Const)}
    first, last = integer_bounds(op.body[found.place], ranges)
    low, high = DTYPES[NARROW].integer_range
    return found if low < first and last < high else None


def _is_of_axes(e: Expr) -> bool:
    ops = ("add", "sub", "mul")
    return all(isinstance(x, (Const, Var)) or (isinstance(x, Binary) and x.op in ops) for x in subexpressions(e))


def _copied(load: Expr, dtype: str) -> Expr:
    assert isinstance(load, Load)
    return cast(Load(load.buffer, load.indices, dtype), load.dtype)

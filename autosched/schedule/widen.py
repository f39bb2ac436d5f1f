"""The step Widen: an operand that is converted wherever it is read is converted once.

C[i, j] = sum over k of float32(A[i, k]) * B[k, j]

A.wide[i, k] = float32(A[i, k])                                                            a stage of its own
C[i, j] = sum over k of A.wide[i, k] * B[k, j]
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.ir.expr import DTYPES, Cast, Expr, Load, Var
from autosched.ir.visit import rebuild, subexpressions
from autosched.schedule.loop_steps import check
from autosched.schedule.stage import StageAxis, StageOp, default_stage
from autosched.schedule.stage_steps import check_untouched, insert, shape_of_buffer
from autosched.schedule.state import State


@dataclass(frozen=True)
class Widen:
    """`stage` reads `buffer` as `buffer.tag`, a copy in the type that it converts it to; refused where it reads it as
    anything but one wider type."""

    stage: str
    buffer: str
    tag: str = "wide"

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"widen({self.stage}, {self.buffer})"
        check_untouched(where, state, stage)
        dtype = widened(stage.op).get(self.buffer)
        check(dtype is not None, f"{where}: {self.buffer} is not converted to one wider type in all places")
        assert dtype is not None
        name = f"{self.buffer}.{self.tag}"
        check(not state.taken(name), f"{where}: {name} exists already; choose another tag")

        def go(e: Expr) -> Expr:
            if isinstance(e, Cast) and isinstance(e.a, Load) and e.a.buffer == self.buffer:
                return Load(name, e.a.indices, e.dtype)
            return rebuild(e, go) if e.children else e

        state = state.with_stage(replace(stage, op=replace(stage.op, body=tuple(go(v) for v in stage.op.body))))
        axes = tuple(StageAxis(Var(f"d{n}"), e) for n, e in enumerate(shape_of_buffer(state, self.buffer)))
        source = next(e for v in stage.op.body for e in subexpressions(v) if _is_read(e, self.buffer))
        plain: Load = Load(self.buffer, tuple(a.var for a in axes), source.dtype)
        op = StageOp(name, axes, (), (Cast(plain, dtype),), None, (name,), (dtype,))
        return insert(state, default_stage(op), self.stage)


def widened(op: StageOp) -> dict[str, str]:
    """The buffers that the stage converts to a wider type at once, the same in all places; with that type."""
    reads: dict[str, set[str]] = {}

    def visit(e: Expr, to: str) -> None:
        if isinstance(e, Load):
            reads.setdefault(e.buffer, set()).add(to if DTYPES[to][1] > DTYPES[e.dtype][1] else e.dtype)
            narrow[e.buffer] = e.dtype
            return
        for child in e.children:
            visit(child, e.dtype if isinstance(e, Cast) else child.dtype)

    narrow: dict[str, str] = {}
    for value in op.body:
        visit(value, value.dtype)
    return {b: next(iter(types)) for b, types in reads.items() if len(types) == 1 and types != {narrow[b]}}


def _is_read(e: Expr, buffer: str) -> bool:
    return isinstance(e, Load) and e.buffer == buffer

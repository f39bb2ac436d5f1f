"""Long sliding windows (`in_windows`) in a few operations per element.

    S[i] = sum over k of (X[k] where i - 31 < k <= i, else 0)             S[i] = sum over r < 31 of S.term[i + r]

    S.run5[i] = sum over r < 5 of S.term[i + r]            windows of 5, which those of 30 are made of, at each place
    S.most[i] = sum over r < 6 of S.run5[i + 5 r]          S[i] = S.most[i] + S.term[i + 30]

so that it takes 10 additions instead of 30, and windows of 1001 take 30 in four stages. Nothing is subtracted: sums are
as exact as in any other order, and all reducers do. What else a window is reduced over is so before, at each place: an
image in one dimension, then in the other. Windows that are written by conditions on the distance of two axes are found
as well: their elements become a stage, with what changes nothing before the first and after the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from autosched.ir.expr import INDEX, Load, const, select
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Reducer
from autosched.ir.visit import substitute
from autosched.te.dag import ComputeDAG
from autosched.te.rewrites.prefix_scan import Band, band, combined, elements, step_along
from autosched.te.tensor import Axis, ComputeOp, Tensor, fresh_name

STAGE = 2  # operations that cost as much as an element written and read in between
LESS = 0.75  # of the operations, for which more stages pay
MOST = 16  # parts that a window is made of


def in_windows(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with its long windows in parts; `dag` itself where there are none."""
    taken = dag.names

    def made(op: ComputeOp) -> tuple[Tensor, ...] | None:
        sliding = band(op)
        if sliding is not None and 0 < sliding.last - sliding.first < op.reduce_axes[sliding.k].extent:
            return _over_places(op, sliding, taken)
        window = _window(op)
        return None if window is None else window.result(taken)

    changed = dag.remade(made)
    return dag if changed is dag else in_windows(changed)


def _over_places(op: ComputeOp, sliding: Band, taken: set[str]) -> tuple[Tensor, ...]:
    """The stage over windows of a stage of the band's elements."""
    assert op.reducer is not None
    k, i, length = op.reduce_axes[sliding.k], op.axes[sliding.i], sliding.last - sliding.first + 1
    stage = elements(op, sliding, fresh_name(f"{op.name}.term", taken))
    axes = tuple(replace(a, extent=i.extent + length - 1) if a.var is k.var else a for a in stage.axes)
    there = k.var + sliding.first
    term = select((there >= 0) & (there < k.extent), substitute(sliding.term, {k.var: there}), op.reducer.identity[0])
    simplify = Simplifier({a.var: (0, a.extent - 1) for a in (*axes, *stage.reduce_axes)})
    (term_at,) = replace(stage, axes=axes, body=(simplify(term),)).outputs
    load: Load = Load(term_at.name, tuple(i.var + k.var if a.var is k.var else a.var for a in axes), term_at.dtype)
    window = replace(k, extent=length)
    return replace(op, reduce_axes=(window,), body=(load,), inputs=(term_at,)).outputs


@cache
def plan(length: int, multiple: int) -> tuple[int, int]:
    """(operations, elements of each part) for a window; parts begin at multiples. One part: as it is."""
    best = length, length
    for count in range(2, MOST + 1):
        part = length // count // multiple * multiple
        if part > 1:
            best = min(best, (plan(part, multiple)[0] + length - part * count + count + STAGE, part))
    return best


@dataclass(frozen=True)
class _Window:
    """A stage that is reduced along `k` as its elements `i` follow each other: i + `shift` is `part` further in k."""

    op: ComputeOp
    reducer: Reducer
    k: Axis
    i: Axis
    part: int
    shift: int

    def result(self, taken: set[str]) -> tuple[Tensor, ...]:
        op, k, i = self.op, self.k, self.i
        count, rest = divmod(k.extent, self.part)
        longer = {i: replace(i, extent=i.extent + self.shift * (count - 1)), k: replace(k, extent=self.part)}
        runs = replace(
            op,
            name=fresh_name(f"{op.name}.run{self.part}", taken),
            axes=tuple(longer.get(a, a) for a in op.axes),
            reduce_axes=tuple(longer.get(a, a) for a in op.reduce_axes),
        )
        at = tuple(i.var + k.var * self.shift if a is i else a.var for a in op.axes)
        run: Load = Load(runs.name, at, op.body[0].dtype)
        most = replace(op, reduce_axes=(replace(k, extent=count),), body=(run,), inputs=runs.outputs)
        if not rest:
            return most.outputs
        most = replace(most, name=fresh_name(f"{op.name}.most", taken))
        whole: Load = Load(most.name, tuple(a.var for a in op.axes), run.dtype)
        simplify = Simplifier({a.var: (0, a.extent - 1) for a in op.axes})
        last = [simplify(substitute(op.body[0], {k.var: const(n, INDEX)})) for n in range(k.extent - rest, k.extent)]
        body = combined(self.reducer, [whole, *last])
        return replace(op, reduce_axes=(), reducer=None, body=(body,), inputs=(*op.inputs, *most.outputs)).outputs


def _window(op: ComputeOp) -> _Window | None:
    """How the stage is made of shorter windows; None where that does not pay."""
    if op.reducer is None or len(op.body) != 1:
        return None
    others = [a for a in op.reduce_axes if a.extent > 1]
    for k in others:
        for i in (a for a in op.axes if a.extent > 1):
            by_k, by_i = step_along(op.body, k.var, i.var)
            if by_k <= 0 or by_i <= 0 or (by_i % by_k and by_k % by_i):
                continue
            multiple = max(1, by_i // by_k)
            operations, part = plan(k.extent, multiple)
            if part == k.extent or operations > LESS * k.extent or (len(others) > 1 and multiple > 1):
                continue
            part = part if len(others) == 1 else 1
            return _Window(op, op.reducer, k, i, part, part * by_k // by_i)
    return None

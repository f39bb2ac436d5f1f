"""The step Matricize: a sum of products over windows becomes a product of matrices (implicit GEMM).

    C[n, y, x, o] = sum over r, q, c of P[n, y + r, x + q, c] * W[r, q, c, o]

    C.left[m, k]  = P[n(m), y(m) + r(k), x(m) + q(k), c(k)]                  stages of their own
    C.right[k, o] = W[r(k), q(k), c(k), o]
    C[m, o]       = sum over k of C.left[m, k] * C.right[k, o]

Axes beside each other that move the same operand become one, m, and so do all reduction axes, k. Nothing moves: flat
memory of the result is the same. The stages of the operands are meant to be computed where their elements are copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosched.ir.expr import INDEX, Binary, Const, Expr, Load, Var
from autosched.ir.instructions.dots import factors
from autosched.ir.linear import ONE, linear
from autosched.ir.simplify import Simplifier
from autosched.ir.visit import bottom_up, free_vars, rebuild, substitute
from autosched.schedule.stage import StageAxis, StageOp, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.stages import check_untouched, insert
from autosched.te.tensor import fresh_name

SIDES = ("left", "right")  # ends of the operands' names
LEFT, RIGHT = (True, False), (False, True)  # whether an axis moves the two operands
Run = tuple[StageAxis, ...]


@dataclass(frozen=True)
class WindowAxes:
    """Of a sum of products: the axes beside each other that move the first of two operands alone (`rows`), those that
    move the second one alone, and the reduction's in the order in which they are counted. `is_along` says which
    operands are contiguous along the reduction."""

    operands: tuple[Load, Load]
    rows: Run
    columns: Run
    depth: Run
    is_along: tuple[bool, bool]


@dataclass(frozen=True)
class Matricize:
    """`stage`, and `reader` if it is named, over rows, columns and one reduction axis; refused for all but `windows`.

    The reader is elementwise, has the axes of the stage and reads it point by point: its axes become fewer as well.
    """

    stage: str
    reader: str = ""

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"matricize({self.stage})"
        check_untouched(where, state, stage)
        found = windows(stage.op)
        check(found is not None, f"{where}: it is no sum of products over several axes, each with outputs of its own")
        assert found is not None
        op, runs = stage.op, (found.rows, found.columns, found.depth)
        merged = _Merged.of((*op.axes, *found.depth), runs)
        operands = [_operand(f"{self.stage}.{SIDES[n]}", n, found, merged) for n in range(2)]
        for made in operands:
            check(not state.taken(made.name), f"{where}: {made.name} exists already")
            state = insert(state, default_stage(made), self.stage)
        reads = [Load(x.name, tuple(a.var for a in x.axes), x.dtypes[0]) for x in operands]
        table: dict[Expr, Expr] = dict(zip(found.operands, reads, strict=True))
        body = tuple(substitute(value, table) for value in op.body)
        axes = tuple(a for a in merged.axes if not a.reduce)
        product = replace(op, axes=axes, reduce_axes=merged.axes[len(axes) :], body=body)
        state = _with_readers(state.with_stage(default_stage(product, stage.scope)), op, merged)
        return self._with_reader(where, state, op, runs[:2]) if self.reader else state

    def _with_reader(self, where: str, state: State, op: StageOp, runs: Sequence[Run]) -> State:
        """The reader's axes in fewer, as those of the stage that was `op`."""
        reader = state.stage(self.reader)
        check_untouched(where, state, reader)
        found = reader.op.axes
        is_like = reader.op.is_elementwise and [a.extent for a in found] == [a.extent for a in op.axes]
        check(is_like, f"{where}: {self.reader} is not elementwise over the same axes")
        merged = _Merged.of(found, [tuple(found[op.axes.index(a)] for a in run) for run in runs])
        made = replace(reader.op, axes=merged.axes, body=tuple(map(merged.tidy, reader.op.body)))
        point = tuple(a.var for a in merged.axes)
        is_near = all(x.indices == point for x in made.loads_from(*op.buffers))
        check(is_near, f"{where}: {self.reader} does not read it point by point")
        return _with_readers(state.with_stage(default_stage(made, reader.scope)), reader.op, merged)


def windows(op: StageOp) -> WindowAxes | None:
    """The axes of a sum of products that `Matricize` takes; None where an output axis moves neither operand, a
    reduction axis only one, where an operand has no outputs of its own or the last axis moves both, or nothing would
    change."""
    pair = factors(op.body[0], op.body[0].dtype) if len(op.body) == 1 else None
    if pair is None or op.reducer is None or not op.reducer.is_sum or op.guards or not op.axes:
        return None
    if any(not isinstance(a.extent, Const) for a in op.all_axes) or pair[0].buffer == pair[1].buffer:
        return None
    pair = pair if op.axes[-1].var in _moved_by(pair[1]) else pair[::-1]
    moved = [_moved_by(load) for load in pair]
    sides = [(a.var in moved[0], a.var in moved[1]) for a in op.axes]
    if (False, False) in sides or sides[-1] != RIGHT or LEFT not in sides:
        return None
    if not all(a.var in m for a in op.reduce_axes for m in moved):
        return None
    rows = max(reversed(_runs(op.axes, sides, LEFT)), key=_points)
    columns = _runs(op.axes, sides, RIGHT)[-1]
    is_plain = all(isinstance(i, Var) for load in pair for i in load.indices)
    if is_plain and max(len(rows), len(columns), len(op.reduce_axes)) < 2:
        return None
    own = [{a.var for a, side in zip(op.axes, sides, strict=True) if side == kind} for kind in (LEFT, RIGHT)]
    along = [not free_vars(load.indices[-1]) & mine for load, mine in zip(pair, own, strict=True)]
    inner = [linear(load.indices[-1]) for load, is_along in zip(pair, along, strict=True) if is_along]
    near = [a for form in inner for a in op.reduce_axes if form.coefficient(a.var) is ONE][:1]
    depth = (*(a for a in op.reduce_axes if a not in near), *near)
    return WindowAxes(pair, rows, columns, depth, (along[0], along[1]))


def _moved_by(load: Load) -> frozenset[Var]:
    return frozenset[Var]().union(*(free_vars(i) for i in load.indices))


def _size(axis: StageAxis) -> int:
    assert isinstance(axis.extent, Const)
    return axis.extent.number


def _points(run: Run) -> int:
    return math.prod(map(_size, run))


def _runs(axes: Run, sides: Sequence[tuple[bool, bool]], wanted: tuple[bool, bool]) -> list[Run]:
    """The axes that move the `wanted` operand alone; those beside each other together."""
    runs: list[Run] = [()]
    for axis, side in zip(axes, sides, strict=True):
        if side == wanted:
            runs[-1] += (axis,)
        elif runs[-1]:
            runs.append(())
    return [run for run in runs if run]


@dataclass(frozen=True)
class _Merged:
    """Axes with those of each run in one: `digits` has the old variables in terms of the new ones, `ends` how far a
    run goes that begins at a place, `simplify` knows the extents."""

    axes: tuple[StageAxis, ...]
    digits: dict[Expr, Expr]
    ends: dict[int, int]
    simplify: Simplifier

    @staticmethod
    def of(axes: Sequence[StageAxis], runs: Sequence[Run]) -> _Merged:
        taken = {a.name for a in axes}
        digits: dict[Expr, Expr] = {}
        made: list[StageAxis] = []
        ends: dict[int, int] = {}
        for n, axis in enumerate(axes):
            run = next((r for r in runs if len(r) > 1 and axis in r), (axis,))
            if axis is run[0]:
                made.append(axis if len(run) == 1 else _in_one(run, taken, digits))
                ends[n] = n + len(run)
        ranges = {a.var: (0, _size(a) - 1) for a in made}
        return _Merged(tuple(made), digits, ends, Simplifier(ranges))

    def axis(self, run: Run) -> StageAxis:
        """The one that a run became."""
        found = free_vars(self.digits.get(run[0].var, run[0].var))
        return next(a for a in self.axes if a.var in found)

    def tidy(self, value: Expr) -> Expr:
        """`value` in terms of the new axes."""

        def go(e: Expr) -> Expr:
            if isinstance(e, Load) or (isinstance(e, Binary) and e.a.dtype == INDEX):
                return self.simplify(e)
            return rebuild(e, go) if e.children else e

        return go(substitute(value, self.digits))

    def places(self, indices: tuple[Expr, ...], axes: Sequence[StageAxis]) -> tuple[Expr, ...]:
        """Where an element is that was at `indices` over the old `axes`."""
        found: list[Expr] = []
        for n in range(len(indices)):
            if n in self.ends:
                flat = indices[n]
                for d in range(n + 1, self.ends[n]):
                    flat = flat * axes[d].extent + indices[d]
                found.append(flat)
        return tuple(found)


def _in_one(run: Run, taken: set[str], digits: dict[Expr, Expr]) -> StageAxis:
    """One axis for several, whose variables become its digits."""
    var: Var = Var(fresh_name("_".join(a.name for a in run), taken), INDEX)
    rest: Expr = var  # a quotient of a quotient, which stands beside its remainder where elements are counted again
    for axis in reversed(run[1:]):
        digits[axis.var], rest = rest % axis.extent, rest // axis.extent
    digits[run[0].var] = rest
    return StageAxis(var, Const(_points(run), INDEX), run[0].reduce)


def _operand(name: str, n: int, found: WindowAxes, merged: _Merged) -> StageOp:
    """The stage that has operand `n` by row or column and k; last is what its elements are contiguous along."""
    load = found.operands[n]
    value = merged.tidy(load)
    own, depth = merged.axis((found.rows, found.columns)[n]), merged.axis(found.depth)
    used = free_vars(value)
    others = [a for a in merged.axes if a.var in used and a not in (own, depth)]
    last = (own, depth) if found.is_along[n] else (depth, own)
    axes = tuple(replace(a, reduce=False) for a in (*others, *last))
    return StageOp(name, axes, (), (value,), None, (name,), (load.dtype,))


def _with_readers(state: State, op: StageOp, merged: _Merged) -> State:
    """The readers of the stage that was `op` find its elements by the new axes."""

    def moved(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in op.buffers:
            return Load(e.buffer, merged.places(e.indices, op.axes), e.dtype)
        return e

    for stage in state.stages:
        if not stage.op.reads.isdisjoint(op.buffers):
            body = tuple(bottom_up(v, moved) for v in stage.op.body)
            state = state.with_stage(replace(stage, op=replace(stage.op, body=body)))
    return state

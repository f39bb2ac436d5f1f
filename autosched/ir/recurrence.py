"""Recurrences: values that are computed from values of the same buffer at earlier positions of one axis (`te.scan`).

    Y[i, j] = 0.75 * select(i >= 1, Y[i - 1, j], X[0, j]) + 0.25 * X[i, j]

The body reads a buffer that the stage writes, at its own position but for a constant step along that one axis. Lines
along the axis do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from autosched.ir.expr import Const, Expr, Var
from autosched.ir.linear import linear
from autosched.ir.stmt import For, ForKind, Store
from autosched.ir.visit import free_vars, is_number, loads


@dataclass(frozen=True)
class Recurrence:
    """Values along the axis number `axis` depend on those of up to `order` positions before, or, where the recurrence
    goes `backwards`, after their own."""

    axis: int
    order: int
    backwards: bool


def find_recurrence(axes: Sequence[Var], body: Iterable[Expr], buffers: Collection[str]) -> Recurrence | None:
    """Return the recurrence of a stage that writes `buffers` at `axes`; None where it reads none of these."""
    own = [load.indices for value in body for load in loads(value) if load.buffer in buffers]
    if not own:
        return None
    steps = {(axis, step) for indices in own for axis, step in enumerate(steps_from(axes, indices)) if step != 0}
    numbers = [step for _, step in steps if step is not None]
    assert len({axis for axis, _ in steps}) == 1, "what a stage reads of itself is on its own line"
    assert len(numbers) == len(steps), "what a stage reads of itself is at constant steps"
    assert max(numbers) < 0 or min(numbers) > 0, "what a stage reads of itself is on one side"
    return Recurrence(next(axis for axis, _ in steps), max(map(abs, numbers)), numbers[0] > 0)


def order_problem(store: Store, loops: Iterable[For]) -> str | None:
    """Return why a store inside `loops`, outermost first, may read elements of its own before they are written; None
    where it does not.

    What it reads at a constant step along a dimension is written by an earlier iteration if the loops that move the
    dimension run one after the other, all away from the element that is read, and outer ones in steps that the loops
    inside of them do not exceed.
    """
    own = {load.indices for value in store.values for load in loads(value) if load.buffer in store.buffers}
    for indices in own:
        steps = {d: n for d, n in enumerate(steps_from(store.indices, indices)) if n}
        for dim, step in steps.items():
            problem = _loops_problem(store.indices[dim], step, loops)
            if problem is not None or len(steps) > 1:
                return problem or f"reads itself at steps along {len(steps)} dimensions"
    return None


def _loops_problem(index: Expr, step: int, loops: Iterable[For]) -> str | None:
    form, inner = linear(index), 1
    for loop in reversed([x for x in loops if x.var in free_vars(index)]):
        if loop.kind is not ForKind.SERIAL:
            return f"reads what earlier iterations of the {loop.kind.value} loop {loop.var.name} write"
        c = form.coefficient(loop.var)
        if isinstance(c, Const) and c.number and c.number * step > 0:
            return f"reads what later iterations of the loop {loop.var.name} write"
        if not isinstance(c, Const) or not c.number or not is_number(loop.bound) or not is_number(c):
            continue
        if abs(c.number) < inner:
            return f"reads what later iterations of loops inside of the loop {loop.var.name} write"
        inner += abs(c.number) * (loop.bound.number - 1)
    return None


def steps_from(axes: Sequence[Expr], indices: Sequence[Expr]) -> list[int | None]:
    """Return how far each index is from the axis of its dimension; None where that is no constant number."""
    forms = [linear(index - axis) for index, axis in zip(indices, axes, strict=True)]
    return [form.constant.number if not form.terms and is_number(form.constant) else None for form in forms]

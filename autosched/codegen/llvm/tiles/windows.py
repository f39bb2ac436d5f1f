"""Emission of register windows, with or without rolling accumulators, and of tiles with reordered loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from autosched.codegen.llvm.bindings import LaneRange
from autosched.codegen.llvm.emitters import StatementEmitter
from autosched.ir.expr import Var
from autosched.ir.stmt import For
from autosched.lower.register_tiles.context import Point, number_of
from autosched.lower.register_tiles.order import OrderPlan
from autosched.lower.register_tiles.rolling import WindowPlan, WindowResult
from autosched.lower.register_tiles.window import RegisterWindow


def emit_window(emitter: StatementEmitter, plan: WindowPlan) -> None:
    """Emit one window after another, or the only one step by step of its reduction."""
    if plan.keeps_loop_order:
        _emit_steps(emitter, plan.windows[0])
        return
    result = plan.result
    for n, window in enumerate(plan.windows):
        if n:
            _forget(emitter)
        after = None if result is None else _written_when_complete(emitter, window, result)
        _emit(emitter, plan, window, after)
    for var in () if result is None else result.loops:
        del emitter.bindings.env[var]


def _forget(emitter: StatementEmitter) -> None:
    """Emit a fence for the compiler alone, which keeps LLVM from holding what is loaded until it is needed again: there
    are no registers for that, it went to the stack and back."""
    emitter.writer.emit('fence syncscope("singlethread") acq_rel')
    emitter.values.forget()


def _written_when_complete(
    emitter: StatementEmitter, window: RegisterWindow, result: WindowResult
) -> Callable[[int, int], None]:
    """Return what writes, after a point of a vector, the output that is complete then."""
    complete = {n: result.points[place] for place, n in window.last.items()}

    def finish(n: int, first: int) -> None:
        if n in complete:
            emitter.values.in_window = False
            _vector_at(emitter, result.inner, result.loops, complete[n], first)
            emitter.values.in_window = True

    return finish


def _emit(
    emitter: StatementEmitter, plan: WindowPlan, window: RegisterWindow, after: Callable[[int, int], None] | None
) -> None:
    """Emit all points of each vector, or all vectors of each point where lanes share what passes by; `after` each of
    them with its number and the vector's first element. Where the accumulators are cleared, the first product is stored
    and not added: LLVM would copy operands for it."""
    emitter.values.in_window = True
    start = replace(window.inner, body=replace(window.store, reducer=None))
    begun: set[tuple[Point, int]] = set()
    numbers = range(len(window.points))
    vectors = range(0, number_of(window.inner.extent), emitter.context.width(window.inner))
    steps = sorted(product(numbers, vectors), key=lambda step: step[0 if window.is_broadcast else 1])
    for n, first in steps:
        point, place = window.points[n], window.places[n]
        if point not in plan.outside:
            inner = start if plan.is_cleared and (place, first) not in begun else window.inner
            begun.add((place, first))
            _vector_at(emitter, inner, window.loops, point, first)
        if after is not None:
            after(n, first)
    emitter.values.in_window = False
    for var in window.loops:
        emitter.bindings.env.pop(var, None)  # all points may be outside


def _emit_steps(emitter: StatementEmitter, window: RegisterWindow) -> None:
    """Emit all points in the order of the loops; each step of the reduction loads what it needs."""
    env, step = emitter.bindings.env, [n for n, v in enumerate(window.loops) if v not in window.outputs]
    before: Point | None = None
    for point in sorted(window.points):
        here = tuple(point[n] for n in step)
        if before not in (None, here):
            _forget(emitter)
        before = here
        env.update(zip(window.loops, point, strict=True))
        emitter.emit(window.inner)
    for var in window.loops:
        del env[var]


def emit_reordered(emitter: StatementEmitter, plan: OrderPlan) -> None:
    """Emit the vectors of a tile in the order of its plan."""
    variables = [var for var, _ in plan.order]
    emitter.writer.single = not plan.has_room
    for point in product(*(range(n) for _, n in plan.order)):
        at = dict(zip(variables, point, strict=True))
        if not plan.has_room and not any(at[v] for v in plan.loops):
            _forget(emitter)
        _vector_at(emitter, plan.inner, plan.loops, tuple(at[v] for v in plan.loops), at[plan.inner.var] * plan.width)
    emitter.writer.single = False
    for var in plan.loops:
        del emitter.bindings.env[var]


def _vector_at(emitter: StatementEmitter, inner: For, loops: tuple[Var, ...], point: Point, first: int) -> None:
    """Emit the vector from `first` on of one copy of the body, or what there is of it."""
    extent, width = number_of(inner.extent), emitter.context.width(inner)
    emitter.bindings.env.update(zip(loops, point, strict=True))
    if extent - first < width:
        emitter.vector_rest(inner, first, extent - first, width)
    else:
        emitter.vector(inner, LaneRange(first, width), None)

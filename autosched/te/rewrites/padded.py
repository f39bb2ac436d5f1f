"""Padding stages (`padded_reads`): reads of reductions under conditions on indices alone get a stage of their own.

    S[i] = sum over r of W[r] (X[i + r - 1] where 0 <= i + r - 1 < n, else 0)

    X.pad[j] = X[j - 1] where 0 <= j - 1 < n, else 0        S[i] = sum over r of W[r] X.pad[i + r]

as users write it who pad first. Where the stage is computed, and whether at all, is searched then, and whoever looks
for a convolution finds one. This holds for what is read several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from autosched.ir.conditions import MIRRORED, conjuncts, every, is_ordering
from autosched.ir.expr import INDEX, Expr, Load, Select, Var, const, select
from autosched.ir.simplify import Affine, Simplifier
from autosched.ir.visit import is_gathered, loads, moved
from autosched.te.checks import is_inside
from autosched.te.dag import ComputeDAG
from autosched.te.tensor import Axis, ComputeOp, Tensor, fresh_name, postorder, rewrite

MIN_READS = 2  # of each element, on average
MAX_GROWTH = 4  # times the elements of the tensor that is padded


def padded_reads(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with a stage for each padded read of a reduction; `dag` itself where there are none."""
    taken = dag.names
    return dag.remade(lambda op: _with_pads(op, taken) if op.reducer is not None else None)


def _with_pads(op: ComputeOp, taken: set[str]) -> tuple[Tensor, ...] | None:
    """What the stage gives, over stages for its padded reads; None where it has none."""
    simplify = Simplifier({a.var: (0, a.extent - 1) for a in (*op.axes, *op.reduce_axes)})
    sources = {t.name: t for t in op.inputs}
    points = prod(a.extent for a in (*op.axes, *op.reduce_axes))
    reads: dict[Expr, Expr] = {}
    made: dict[tuple[tuple[int, ...], Expr], Tensor] = {}
    for e in (e for e in postorder(op.body) if isinstance(e, Select)):
        place = _Place.of(e, simplify)
        if place is None:
            continue
        source, elements = sources[place.load.buffer], prod(a.extent for a in place.axes)
        if MIN_READS * elements > points or elements > MAX_GROWTH * prod(source.shape):
            continue
        key = (tuple(a.extent for a in place.axes), place.element)
        if key not in made:
            stage = ComputeOp(f"{source.name}.pad", place.axes, (), (place.element,), None, (source,))
            if not is_inside(stage):
                continue  # another condition around it keeps it there
            made[key] = replace(stage, name=fresh_name(stage.name, taken)).outputs[0]
        reads[e] = Load(made[key].name, place.indices, e.dtype)
    body = rewrite(op.body, lambda node, new: reads.get(node, new))
    used = {load.buffer for value in body for load in loads(value)}
    pads = tuple(t for t in made.values() if t.name in used)
    padded = {t.name for pad in pads if isinstance(pad.op, ComputeOp) for t in pad.op.inputs}
    inputs = (*(t for t in op.inputs if t.name in used or t.name not in padded), *pads)
    return replace(op, body=body, inputs=inputs).outputs if reads else None


@dataclass(frozen=True)
class _Place:
    """A padded read: element `indices` of a stage over `axes`, which is `element`."""

    load: Load
    axes: tuple[Axis, ...]
    element: Expr
    indices: tuple[Expr, ...]

    @staticmethod
    def of(value: Expr, simplify: Simplifier) -> _Place | None:
        """None where it is no element, or one under conditions on other things than its place."""
        load_and_condition = moved(value)
        if load_and_condition is None or load_and_condition[1] is None or is_gathered(load_and_condition[0]):
            return None
        load, cond = load_and_condition[0], simplify(load_and_condition[1])
        forms = [simplify.affine(i) for i in load.indices]
        ends = [simplify.bounds(i) for i in load.indices]
        axes = tuple(Axis(Var(f"i{d}", INDEX), high - low + 1) for d, (low, high) in enumerate(ends))
        places = tuple(a.var + low for a, (low, _) in zip(axes, ends, strict=True))
        parts = [_restated(part, forms, places, simplify) for part in conjuncts(cond)]
        inside = [part for part in parts if part is not None]
        if len(inside) < len(parts):
            return None
        element = select(every(inside), Load(load.buffer, places, load.dtype), const(0, load.dtype))
        return _Place(
            load, axes, element, tuple(simplify(i - low) for i, (low, _) in zip(load.indices, ends, strict=True))
        )


def _restated(part: Expr, forms: Sequence[Affine], places: Sequence[Expr], simplify: Simplifier) -> Expr | None:
    """A comparison of one of the indices `forms`, or a multiple of it, with a number: in terms of `places` instead."""
    if not is_ordering(part):
        return None
    difference = simplify.affine(part.a - part.b)
    for form, place in zip(forms, places, strict=True):
        times = difference.terms[0][1] // form.terms[0][1] if form.terms and difference.terms else 0
        if times and difference.terms == tuple((atom, times * c) for atom, c in form.terms):
            return _bounded(place, part.op, times, times * form.constant - difference.constant)
    return None


def _bounded(place: Expr, op: str, times: int, number: int) -> Expr:
    """`times` * `place` compared with a number, as a comparison of the place itself."""
    if times < 0:
        op, times, number = MIRRORED[op], -times, -number
    up = -(-number // times)
    return {"ge": place >= up, "gt": place > number // times, "le": place <= number // times, "lt": place < up}[op]

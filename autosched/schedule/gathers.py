"""Gathers by a GPU's copy engine: copies whose elements are in a tensor at the digits of the copy's axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autosched.ir.bounds import Bound, bound_of
from autosched.ir.conditions import conjuncts
from autosched.ir.expr import INDEX, Binary, Const, Expr, Load, Select, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Pixels
from autosched.ir.visit import free_vars, subexpressions
from autosched.schedule.stage import StageAxis, StageOp

CORNERS = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}  # by spatial dimensions: corners are from minus this to less than this
MOST_STEP = 8
MOST_DIMENSIONS = 5

Term = tuple[Expr, int]  # what an index has of an axis: an atom and how often


@dataclass(frozen=True)
class Gather:
    """`origin`: the index of the tile's first element, in terms of the copy's axes, and with pixels the offset of its
    window along each spatial dimension; `dims`: the dimension along which each axis steps, without pixels, -1 of one
    of a batch that has none for itself. `ends`: whether what is beyond an axis is outside of the tensor."""

    load: Load
    origin: tuple[Expr, ...]
    dims: tuple[int, ...]
    pixels: Pixels | None
    grains: tuple[int, ...]
    ends: tuple[bool, ...]

    @property
    def is_window(self) -> bool:
        """Whether its pixels are not simply all elements in their order."""
        pixels = self.pixels
        begins = () if pixels is None else self.origin[-len(pixels.counts) :]
        moves = any(not isinstance(e, Const) for e in begins)
        return pixels is not None and (moves or any(pixels.lower) or any(n > 1 for n in pixels.steps))

    def grain(self, op: StageOp, depth: int) -> int | None:
        """How many steps along axis `depth` of the copy lie together, 0 for all; None where a tile cannot go along the
        others as far as it wants."""
        whole = [n == _size(a) for n, a in zip(self.grains, op.axes, strict=True)]
        if not all(w for n, w in enumerate(whole) if n != depth):
            return None
        return 0 if whole[depth] and self.ends[depth] else self.grains[depth]


@dataclass(frozen=True)
class _Indices:
    """The indices of an element, each as its constant and its terms by axis."""

    axes: tuple[StageAxis, ...]
    constants: tuple[int, ...]
    terms: tuple[dict[Var, list[Term]], ...]

    @staticmethod
    def of(axes: tuple[StageAxis, ...], indices: Sequence[Expr], simplify: Simplifier) -> _Indices | None:
        known = {a.var for a in axes}
        terms: list[dict[Var, list[Term]]] = []
        forms = [simplify.affine(i) for i in indices]
        for form in forms:
            found: dict[Var, list[Term]] = {}
            for atom, count in form.terms:
                used = free_vars(atom)
                if len(used) != 1 or not used <= known:
                    return None
                found.setdefault(next(iter(used)), []).append((atom, count))
            terms.append(found)
        return _Indices(axes, tuple(f.constant for f in forms), tuple(terms))

    def part(self, dim: int, var: Var) -> Expr:
        """What an index has of an axis."""
        total: Expr = Const(0, INDEX)
        for atom, count in self.terms[dim].get(var, ()):
            total = total + atom * count
        return total

    def moved(self, axis: StageAxis) -> list[int]:
        """The dimensions that the axis moves."""
        return [d for d, found in enumerate(self.terms) if axis.var in found]

    def is_alone(self, axis: StageAxis) -> bool:
        """Whether nothing else moves the dimensions that the axis moves."""
        return all(len(self.terms[d]) == 1 for d in self.moved(axis))

    def straight(self, axis: StageAxis) -> tuple[int, int] | None:
        """The dimension along which the axis steps from element to element, alone, and for how many at a time; None
        where there is none."""
        var, extent = axis.var, _size(axis)
        steps = [(d, atom) for d, found in enumerate(self.terms) for atom, n in found.get(var, ()) if n == 1]
        inner = [(d, a) for d, a in steps if a is var or (isinstance(a, Binary) and a.op == "mod" and a.a is var)]
        if len(inner) != 1:
            return None
        dim, last = inner[0]
        count = extent if last is var else _number(last)
        others = [a for d, found in enumerate(self.terms) for a, _ in found.get(var, ()) if a is not last]
        divided = [e for a in others for e in subexpressions(a) if isinstance(e, Binary) and e.a is var]
        is_higher = all(e.op == "floordiv" and _number(e) % max(count, 1) == 0 for e in divided)
        is_whole = last is not var or not others
        return (dim, count) if count > 0 and is_higher and is_whole and len(self.terms[dim][var]) == 1 else None


def gather_of(op: StageOp, shape: Sequence[int]) -> Gather | None:
    """Return how the copy engine gathers the elements that a stage copies of a tensor of that shape; None if
    it cannot.
    """
    if len(op.body) != 1 or not op.is_elementwise or not all(isinstance(a.extent, Const) for a in op.axes):
        return None
    simplify = Simplifier({a.var: (0, _size(a) - 1) for a in op.axes})
    load = _only_outside(op.body[0], shape, simplify)
    if load is None or not 0 < len(load.indices) <= MOST_DIMENSIONS:
        return None
    found = _Indices.of(op.axes, load.indices, simplify)
    if found is None:
        return None
    pixels, box = _in_pixels(found, load, shape), _in_box(found, load)
    return pixels if box is None or (pixels is not None and pixels.is_window) else box


def _only_outside(value: Expr, shape: Sequence[int], simplify: Simplifier) -> Load | None:
    """The element that is copied, if it is one, and zero where its indices are outside of the tensor or nowhere."""
    bounds: list[Bound | None] = []
    while isinstance(value, Select):
        if not isinstance(value.b, Const) or str(value.b.value) not in ("0", "0.0"):
            return None
        bounds += [bound_of(c, simplify) for c in conjuncts(value.cond)]
        value = value.a
    load = value
    if not isinstance(load, Load):
        return None
    ends = [(True, simplify.affine(i)) for i in load.indices]
    ends += [(False, simplify.affine(i - e)) for i, e in zip(load.indices, shape, strict=True)]
    return load if all(b in ends for b in bounds) else None


def _in_box(found: _Indices, load: Load) -> Gather | None:
    """Each axis steps along a dimension of its own, the last one along the last."""
    straight = [found.straight(a) for a in found.axes]
    for n, axis in enumerate(found.axes[:-2]):
        if straight[n] is None or not found.is_alone(axis):
            straight[n] = (-1, _size(axis))
    dims = [s[0] for s in straight if s is not None]
    own = [d for d in dims if d >= 0]
    if len(dims) < len(straight) or len(set(own)) < len(own) or dims[-1:] != [len(load.indices) - 1]:
        return None
    grains = tuple(s[1] for s in straight if s is not None)
    return Gather(load, load.indices, tuple(dims), None, grains, tuple(map(found.is_alone, found.axes)))


def _in_pixels(found: _Indices, load: Load, shape: Sequence[int]) -> Gather | None:
    """The last two axes: rows are pixels, the other steps along the channels, which are the last dimension. Axes
    before them step along the images, or to another group of channels."""
    channel = len(load.indices) - 1
    if len(found.axes) < 2 or channel < 1:
        return None
    *batch, rows, depth = found.axes
    images = [a for a in batch if found.moved(a) != [channel]]
    if len(images) > 1:
        return None
    last = found.straight(depth)
    counting = images[0] if images else rows
    is_lead = channel > 1 and not found.constants[0] and set(found.terms[0]) == {counting.var}
    lead = 1 if is_lead and [n for _, n in found.terms[0][counting.var]] == [1] else 0
    if last is None or last[0] != channel or rows.var in found.terms[channel]:
        return None
    if images and (not lead or found.straight(images[0]) != (0, _size(images[0]))):
        return None
    counted = _counted(found, rows, lead, (lead if images else 0, channel))
    if counted is None:
        return None
    counts, steps = counted
    lower = found.constants[lead:channel]
    upper = [a - e + 1 + (n - 1) * s for a, e, n, s in zip(lower, shape[lead:channel], counts, steps, strict=True)]
    limit = CORNERS.get(len(counts), 0)
    if any(not -limit <= x < limit for x in (*lower, *upper)) or not all(0 < s <= MOST_STEP for s in steps):
        return None
    offsets = tuple(found.part(d, depth.var) for d in range(lead, channel))
    spatial = tuple(found.part(d, rows.var) + found.constants[d] for d in range(lead, channel))
    first = tuple(load.indices[:lead])
    if any(n < 0 for d in range(lead, channel) for _, n in found.terms[d].get(depth.var, ())):
        return None
    origin = (*first, *spatial, load.indices[channel], *offsets)
    grains = (*map(_size, (*batch, rows)), last[1])
    ends = tuple(map(found.is_alone, found.axes))
    return Gather(load, origin, (), Pixels(counts, steps, lower), grains, ends)


def _counted(
    found: _Indices, rows: StageAxis, lead: int, dims: tuple[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(counts, steps) of pixels along the spatial dimensions, where rows count them, the last dimension fastest, and
    images before them, if that is among the dimensions from `dims[0]` to before `dims[1]`."""
    counts: list[int] = []
    steps: list[int] = []
    inner = 1
    for dim in reversed(range(*dims)):
        terms = found.terms[dim].get(rows.var, [])
        if len(terms) != 1:
            return None
        (atom, step), is_first = terms[0], dim == dims[0]
        number: Expr = rows.var if inner == 1 else Binary("floordiv", rows.var, Const(inner, INDEX))
        count = _size(rows) // inner if is_first else _number(atom)
        wanted = number if is_first else Binary("mod", number, Const(count, INDEX))
        if atom is not wanted or (is_first and _size(rows) % inner):
            return None
        if dim >= lead:
            counts.insert(0, count)
            steps.insert(0, step)
        inner *= count
    return (tuple(counts), tuple(steps)) if math.prod(counts) > 0 else None


def _size(axis: StageAxis) -> int:
    assert isinstance(axis.extent, Const)
    return axis.extent.number


def _number(e: Expr) -> int:
    """The number by which it is divided; 0 of what is no division by one."""
    is_division = isinstance(e, Binary) and e.op in ("mod", "floordiv") and isinstance(e.b, Const)
    return e.b.number if isinstance(e, Binary) and is_division and isinstance(e.b, Const) else 0

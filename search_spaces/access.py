"""How the reads of a stage move with its axes: strides, reuse, and the axes along which lanes are adjacent.

A *read* is one load in the body of a stage. What it is asked for most is its stride along an axis: the elements by
which it moves when the axis advances by one. A stride of 0 is reuse, one of 1 can be a vector load.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from autosched.ir.expr import Binary, Const, Load, Var
from autosched.ir.linear import ONE, linear
from autosched.ir.stmt import ForKind
from autosched.ir.visit import free_vars, is_gathered, subexpressions
from autosched.schedule import Stage, State
from autosched.schedule.stage import StageAxis
from autosched.target import LONGEST_STEP

SHORT_REDUCTION = 32  # steps


def extent(axis: StageAxis) -> int:
    assert isinstance(axis.extent, Const), f"axis {axis.name} has no constant extent"
    return int(axis.extent.value)


def points(stage: Stage) -> int:
    """How many output points the stage has."""
    return math.prod(extent(a) for a in stage.op.axes)


def buffer_shape(state: State, name: str) -> tuple[int, ...]:
    """The shape of an input or of a stage's buffer, before any packing."""
    producer = state.producer(name)
    if producer is not None:
        return tuple(extent(a) for a in producer.op.axes)
    return next(t for t in state.inputs if t.name == name).shape


@dataclass(frozen=True)
class Read:
    """One load of a stage, with its stride along each axis; None where its indices are not linear in the axis."""

    load: Load
    strides: dict[str, int | None]

    def moves(self, axis: str) -> bool:
        return self.strides[axis] != 0

    def is_unit(self, axis: str) -> bool:
        return self.strides[axis] in (0, 1)

    def is_near(self, axis: str) -> bool:
        """Whether lanes along the axis are equal, adjacent or a few elements apart."""
        step = self.strides[axis]
        return step is not None and 0 <= step <= LONGEST_STEP

    def repeats(self, axis: Var) -> bool:
        """Whether the axis occurs only in quotients, and in the last dimension in a remainder.

        Neighbours along it are then equal or adjacent elements, except where the remainder starts again.
        """
        last = self.load.indices[-1:]
        atoms = [(a, i) for i in self.load.indices for a, _ in linear(i).terms if axis in free_vars(a)]
        return all(
            isinstance(a, Binary)
            and (
                (a.op == "floordiv" and linear(a.a).coefficient(axis) is ONE)
                or (a.op == "mod" and a.a is axis and i is last[0])
            )
            for a, i in atoms
        )

    def fills_lanes(self, axis: StageAxis) -> bool:
        """Whether neighbours along the axis are equal or adjacent elements, of one row."""
        elsewhere = (v for index in self.load.indices[:-1] for v in free_vars(index))
        return self.is_unit(axis.name) or (axis.var not in elsewhere and self.repeats(axis.var))

    @property
    def is_indirect(self) -> bool:
        """Whether data say which element is read: a copy of what a tile reads would have the whole dimension."""
        return is_gathered(self.load)

    @property
    def axes(self) -> frozenset[Var]:
        """The axes that occur in the indices."""
        return frozenset(v for index in self.load.indices for v in free_vars(index))

    def dim_of(self, axis: Var) -> int | None:
        """The dimension that the axis alone indexes; None if it occurs elsewhere as well, or the read is indirect."""
        if self.is_indirect:
            return None
        dims = [n for n, i in enumerate(self.load.indices) if axis in free_vars(i)]
        return dims[0] if len(dims) == 1 and self.load.indices[dims[0]] is axis else None


def reads_of(state: State, stage: Stage) -> tuple[Read, ...]:
    """The loads in the stage's body."""
    return tuple(Read(x, _strides(state, stage, x)) for x in stage.op.loads)


def _strides(state: State, stage: Stage, load: Load) -> dict[str, int | None]:
    result: dict[str, int | None] = {}
    steps: list[int] = []
    step = 1
    for size in reversed(buffer_shape(state, load.buffer)):
        steps.insert(0, step)
        step *= size
    for axis in stage.op.all_axes:
        total: int | None = 0
        for index, step in zip(load.indices, steps, strict=True):
            form = linear(index)
            if any(not isinstance(a, Var) and axis.var in free_vars(a) for a, _ in form.terms):
                total = None
                break
            coefficient = form.coefficient(axis.var)
            assert isinstance(coefficient, Const)
            assert total is not None
            total += int(coefficient.value) * step
        result[axis.name] = total
    return result


def last_digits(stage: Stage, axis: StageAxis) -> set[int]:
    """The numbers by which indices divide the axis itself, not a quotient of it: so many neighbours along it are
    neighbours where it is read."""
    nodes = (e for load in stage.op.loads for i in load.indices for e in subexpressions(i))
    divisions = (e for e in nodes if isinstance(e, Binary) and e.op in ("mod", "floordiv"))
    return {int(e.b.value) for e in divisions if isinstance(e.b, Const) and linear(e.a).coefficient(axis.var) is ONE}


def has_reuse(stage: Stage, reads: tuple[Read, ...]) -> bool:
    """Whether a read of a reduction stands still along an output axis, so that tiling pays (Ansor, section 4.1)."""
    wide = [a for a in stage.op.axes if extent(a) > 1]
    return stage.op.reducer is not None and any(not r.moves(a.name) for r in reads for a in wide)


def is_reused(read: Read, stage: Stage) -> bool:
    """Whether each element is read for several output points, so that a copy in a better order can pay."""
    return any(not read.moves(a.name) and extent(a) > 1 for a in stage.op.axes)


def reuse_count(read: Read, stage: Stage) -> int:
    """How many output points read the same element."""
    return math.prod(extent(a) for a in stage.op.axes if not read.moves(a.name))


def panel_dim(read: Read, stage: Stage, axis: StageAxis) -> int | None:
    """The dimension that can be stored in panels along `axis`: the axis alone indexes it, and the read is reused."""
    return read.dim_of(axis.var) if is_reused(read, stage) else None


@dataclass(frozen=True)
class RowTiles:
    """How an operand can be stored in tiles of the output axis `axis` and the last reduction axis: `dims` are the
    dimensions that the two index."""

    axis: StageAxis
    dims: tuple[int, int]


def row_tiles(read: Read, stage: Stage, v: StageAxis) -> RowTiles | None:
    """How the operand of a register tile's rows can be stored in tiles; None if it cannot.

    It stands still along the vectorised axis `v`, and the last reduction axis steps from element to element. The last
    of the axes that move it is tiled.
    """
    k = stage.op.reduce_axes[-1]
    k_dim = read.dim_of(k.var)
    moving = [a for a in stage.op.axes if read.moves(a.name)]
    dims = [panel_dim(read, stage, a) for a in moving]
    if v in moving or not moving or k_dim is None or read.strides[k.name] != 1 or None in dims:
        return None
    assert dims[-1] is not None
    return RowTiles(moving[-1], (dims[-1], k_dim))


def run_length(read: Read, stage: Stage, reads: tuple[Read, ...]) -> int | None:
    """How many adjacent elements a tile of rows reads before it jumps; None if all of its rows are adjacent.

    An axis that moves all reads (a batch, a head, a group) does not belong to the tile, for neighbours along it are
    elsewhere. The vectorised axis always belongs to it.
    """
    vector = {axis for x in stage.loops if x.kind is ForKind.VECTORIZE for axis, _ in x.parts}
    inside = (a for a in stage.op.axes if a.name in vector or not all(r.moves(a.name) for r in reads))
    own = (*stage.op.reduce_axes, *inside)
    steps = sorted((abs(s), extent(a)) for a in own if (s := read.strides[a.name]) and extent(a) > 1)
    run = 1
    for step, size in steps:
        if step > run:
            return run
        run = max(run, step * (size - 1) + run)
    return None


def has_indirect_lanes(read: Read, axis: StageAxis) -> bool:
    """Whether data say where each lane along the axis lies: no order of what is read brings them together."""
    return read.is_indirect and read.strides[axis.name] is None


def transposable_dim(read: Read, stage: Stage, axis: StageAxis) -> int | None:
    """The dimension that makes lanes along `axis` adjacent when it is stored innermost; None if there is none."""
    if not is_reused(read, stage) or read.strides[axis.name] is None or read.is_indirect:
        return None
    dims = [n for n, i in enumerate(read.load.indices) if axis.var in free_vars(i)]
    if len(dims) != 1:
        return None
    step = linear(read.load.indices[dims[0]]).coefficient(axis.var)
    return dims[0] if isinstance(step, Const) and step.value == 1 else None


def column_dim(read: Read, stage: Stage, axis: StageAxis) -> int | None:
    """The dimension along which a tile's columns can be copied: one step of the axis is one step of it.

    If more than the axis indexes it, that is other output axes: a group's g in W[g * 4 + c].
    """
    dim = transposable_dim(read, stage, axis)
    atoms = set() if dim is None else {a for a, _ in linear(read.load.indices[dim]).terms}
    return dim if atoms <= {a.var for a in stage.op.axes} else None


def vector_axes(stage: Stage, reads: tuple[Read, ...], lanes: int) -> tuple[StageAxis, ...]:
    """The output axes whose lanes are adjacent or equal in every read, best first. A copy in panels counts.

    Where the best is shorter than a vector, axes that fill one go first. Among them is the axis that a transposed copy
    would serve: an image of few channels is vectorised along its rows.

    Where no axis is good, lanes of the last axis may be a few elements apart, as the channels of an image are when the
    window moves in strides.
    """
    good = _vector_candidates(stage, reads, panel_dim)
    if good and extent(good[0]) >= lanes:
        return good
    extra = [a for a in _vector_candidates(stage, reads, transposable_dim) if a not in good and extent(a) >= lanes]
    filled = (*extra[:1], *(a for a in good if extent(a) >= lanes))
    found = (*filled, *(a for a in good if extent(a) < lanes and (not filled or 2 * extent(a) > lanes)))
    last = stage.op.axes[-1]
    return found or ((last,) if extent(last) > 1 and all(r.is_near(last.name) for r in reads) else ())


def short_last_axis(stage: Stage, reads: tuple[Read, ...], lanes: int) -> StageAxis | None:
    """The last axis where it fills more than a quarter of a vector and no more than one; else None.

    The reduction must be too short to pay for transposing operands and result: products of small matrices. Reads may
    need panels.
    """
    axis = stage.op.axes[-1]
    points = math.prod(extent(a) for a in stage.op.reduce_axes)
    if not lanes < 4 * extent(axis) <= 4 * lanes or points > SHORT_REDUCTION:
        return None
    return axis if axis in _vector_candidates(stage, reads, panel_dim) else None


_Ranked = tuple[int, int, int, StageAxis]  # by copies, length and place


def _vector_candidates(
    stage: Stage, reads: tuple[Read, ...], copy_dim: Callable[[Read, Stage, StageAxis], int | None]
) -> tuple[StageAxis, ...]:
    direct, indirect = list[_Ranked](), list[_Ranked]()
    for n, axis in enumerate(stage.op.axes):
        apart = [r for r in reads if not r.fills_lanes(axis)]
        bad = [r for r in apart if copy_dim(r, stage, axis) is None and not has_indirect_lanes(r, axis)]
        if not bad and extent(axis) > 1:
            packs = len(apart)
            scattered = n != len(stage.op.axes) - 1  # the output's lanes are apart
            ranked = indirect if any(has_indirect_lanes(r, axis) for r in apart) else direct
            ranked.append((packs + scattered, -min(extent(axis), 64), -n, axis))
    return tuple(f[3] for f in sorted(direct or indirect, key=lambda f: f[:3]))


def lane_reduction(stage: Stage, reads: tuple[Read, ...]) -> StageAxis | None:
    """The longest reduction axis along which the reads are adjacent; None if there is none.

    Some reads may repeat elements, as packed numbers and the scales of groups do, or read them indirectly.
    """
    good = [
        a
        for a in stage.op.reduce_axes
        if all(r.is_unit(a.name) or r.repeats(a.var) or has_indirect_lanes(r, a) for r in reads)
        and any(r.strides[a.name] == 1 for r in reads)
        and extent(a) > 1
    ]
    return max(good, key=extent, default=None)

"""Access analysis of a stage's reads: strides along its axes, reuse, and the axes along which lanes are adjacent.

A *read* is one load in the body of a stage. Its stride along an axis is the number of elements by which its address
advances when the axis advances by one: stride 0 is reuse, stride 1 can be a vector load.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Const, Load, Var
from autosched.ir.linear import ONE, linear
from autosched.ir.stmt import ForKind
from autosched.ir.visit import free_vars, is_gathered, loads, subexpressions
from autosched.schedule import Stage, State
from autosched.schedule.stage import StageAxis
from autosched.target import LONGEST_STEP

SHORT_REDUCTION = 32  # iterations


def extent(axis: StageAxis) -> int:
    assert isinstance(axis.extent, Const), f"axis {axis.name} has no constant extent"
    return axis.extent.number


def points(stage: Stage) -> int:
    """Return the number of output points of the stage."""
    return math.prod(extent(a) for a in stage.op.axes)


def computed_bytes(stage: Stage) -> int:
    """Return the bytes of an element of the widest type in which the stage computes; indices do not count."""
    nodes = (e for value in stage.op.body for e in subexpressions(value))
    return max(DTYPES[e.dtype].nbytes for e in nodes if e.dtype != INDEX or loads(e))


def buffer_shape(state: State, name: str) -> tuple[int, ...]:
    """Return the shape of an input or of a stage's buffer, before any packing."""
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
        """Whether lanes along the axis are equal, adjacent or at most `LONGEST_STEP` elements apart."""
        step = self.strides[axis]
        return step is not None and 0 <= step <= LONGEST_STEP

    def repeats(self, axis: Var) -> bool:
        """Whether the axis occurs only in quotients, and in the last dimension in a remainder.

        Neighbouring iterations then read equal or adjacent elements, except where the remainder wraps around.
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
        """Whether neighbouring iterations along the axis read equal or adjacent elements of one row."""
        elsewhere = (v for index in self.load.indices[:-1] for v in free_vars(index))
        return self.is_unit(axis.name) or (axis.var not in elsewhere and self.repeats(axis.var))

    @property
    def is_indirect(self) -> bool:
        """Whether an index is data: a copy of the elements that a tile reads would need the whole dimension."""
        return is_gathered(self.load)

    @property
    def axes(self) -> frozenset[Var]:
        """The axes that occur in the indices."""
        return frozenset(v for index in self.load.indices for v in free_vars(index))

    def dim_of(self, axis: Var) -> int | None:
        """Return the dimension that the axis alone indexes; None if others also do, or if the read is indirect."""
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
            total += coefficient.number * step
        result[axis.name] = total
    return result


def last_digits(stage: Stage, axis: StageAxis) -> set[int]:
    """Return the divisors of quotients and remainders whose dividend is linear in the axis with coefficient 1.

    As many neighbouring iterations of the axis read neighbouring elements.
    """
    nodes = (e for load in stage.op.loads for i in load.indices for e in subexpressions(i))
    divisions = (e for e in nodes if isinstance(e, Binary) and e.op in ("mod", "floordiv"))
    return {e.b.number for e in divisions if isinstance(e.b, Const) and linear(e.a).coefficient(axis.var) is ONE}


def has_reuse(stage: Stage, reads: tuple[Read, ...]) -> bool:
    """Whether a reduction reads an operand with stride 0 along an output axis: tiling pays (Ansor, section 4.1)."""
    wide = [a for a in stage.op.axes if extent(a) > 1]
    return stage.op.reducer is not None and any(not r.moves(a.name) for r in reads for a in wide)


def is_reused(read: Read, stage: Stage) -> bool:
    """Whether each element is read for several output points: only then can packing pay."""
    return any(not read.moves(a.name) and extent(a) > 1 for a in stage.op.axes)


def reuse_count(read: Read, stage: Stage) -> int:
    """Return the number of output points that read the same element."""
    return math.prod(extent(a) for a in stage.op.axes if not read.moves(a.name))


def panel_dim(read: Read, stage: Stage, axis: StageAxis) -> int | None:
    """Return the dimension that can be packed in panels along `axis`, which alone indexes it; None without reuse."""
    return read.dim_of(axis.var) if is_reused(read, stage) else None


@dataclass(frozen=True)
class RowTiles:
    """Tiling of an operand along the output axis `axis` and the last reduction axis.

    `dims`: the dimensions of the operand that these two axes index.
    """

    axis: StageAxis
    dims: tuple[int, int]


def row_tiles(read: Read, stage: Stage, v: StageAxis) -> RowTiles | None:
    """Return how the operand that a register tile's rows read can be packed in tiles; None if it cannot.

    Its stride is 0 along the vectorised axis `v` and 1 along the last reduction axis. The last output axis with a
    non-zero stride is tiled.
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
    """Return the number of adjacent elements that a tile of rows reads before a gap; None if all rows are adjacent.

    An axis along which all reads have a non-zero stride (a batch, a head, a group) does not belong to the tile. The
    vectorised axis always does.
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
    """Whether the read's index along the axis is data, so that no packing makes lanes adjacent."""
    return read.is_indirect and read.strides[axis.name] is None


def transposable_dim(read: Read, stage: Stage, axis: StageAxis) -> int | None:
    """Return the dimension that makes lanes along `axis` adjacent when it is packed innermost; None if none does."""
    if not is_reused(read, stage) or read.strides[axis.name] is None or read.is_indirect:
        return None
    dims = [n for n, i in enumerate(read.load.indices) if axis.var in free_vars(i)]
    if len(dims) != 1:
        return None
    step = linear(read.load.indices[dims[0]]).coefficient(axis.var)
    return dims[0] if isinstance(step, Const) and step.value == 1 else None


def column_dim(read: Read, stage: Stage, axis: StageAxis) -> int | None:
    """Return the dimension along which columns of a tile can be copied with unit stride; None if there is none.

    Only output axes may index this dimension beside `axis`, as the group g does in W[g * 4 + c].
    """
    dim = transposable_dim(read, stage, axis)
    atoms = set() if dim is None else {a for a, _ in linear(read.load.indices[dim]).terms}
    return dim if atoms <= {a.var for a in stage.op.axes} else None


def vector_axes(stage: Stage, reads: tuple[Read, ...], lanes: int) -> tuple[StageAxis, ...]:
    """Return the output axes whose lanes are adjacent or equal in every read, possibly after packing; the best first.

    Where the best is shorter than a vector, axes that fill a vector go first. Among these is the axis that a transposed
    copy would make contiguous: an image of few channels is vectorised along its rows.

    Where there is no such axis, the last axis is returned if its lanes are only a few elements apart, as the channels
    of an image are under a strided window.
    """
    good = _vector_candidates(stage, reads, panel_dim)
    if good and extent(good[0]) >= lanes:
        return good
    extra = [a for a in _vector_candidates(stage, reads, transposable_dim) if a not in good and extent(a) >= lanes]
    filled = (*extra[:1], *(a for a in good if extent(a) >= lanes))
    axes = (*filled, *(a for a in good if extent(a) < lanes and (not filled or 2 * extent(a) > lanes)))
    last = stage.op.axes[-1]
    return axes or ((last,) if extent(last) > 1 and all(r.is_near(last.name) for r in reads) else ())


def short_last_axis(stage: Stage, reads: tuple[Read, ...], lanes: int) -> StageAxis | None:
    """Return the last axis if it fills more than a quarter of a vector and at most one vector; else None.

    Products of small matrices: the reduction must be too short to pay for transposing operands and result. Reads may
    need packing in panels.
    """
    axis = stage.op.axes[-1]
    points = math.prod(extent(a) for a in stage.op.reduce_axes)
    if not lanes < 4 * extent(axis) <= 4 * lanes or points > SHORT_REDUCTION:
        return None
    return axis if axis in _vector_candidates(stage, reads, panel_dim) else None


_Ranked = tuple[int, int, int, StageAxis]  # number of copies, negated extent, negated position, axis


def _vector_candidates(
    stage: Stage, reads: tuple[Read, ...], copy_dim: Callable[[Read, Stage, StageAxis], int | None]
) -> tuple[StageAxis, ...]:
    direct, indirect = list[_Ranked](), list[_Ranked]()
    for n, axis in enumerate(stage.op.axes):
        apart = [r for r in reads if not r.fills_lanes(axis)]
        bad = [r for r in apart if copy_dim(r, stage, axis) is None and not has_indirect_lanes(r, axis)]
        if not bad and extent(axis) > 1:
            packs = len(apart)
            scattered = n != len(stage.op.axes) - 1  # the output's lanes are not adjacent
            ranked = indirect if any(has_indirect_lanes(r, axis) for r in apart) else direct
            ranked.append((packs + scattered, -min(extent(axis), 64), -n, axis))
    return tuple(f[3] for f in sorted(direct or indirect, key=lambda f: f[:3]))


def lane_reduction(stage: Stage, reads: tuple[Read, ...]) -> StageAxis | None:
    """Return the longest reduction axis along which the reads are adjacent; None if there is none.

    Some reads may repeat elements, as packed numbers and the scales of groups do, or be indirect.
    """
    good = [
        a
        for a in stage.op.reduce_axes
        if all(r.is_unit(a.name) or r.repeats(a.var) or has_indirect_lanes(r, a) for r in reads)
        and any(r.strides[a.name] == 1 for r in reads)
        and extent(a) > 1
    ]
    return max(good, key=extent, default=None)

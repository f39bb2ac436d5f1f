"""Stages of a schedule: an operation, its loops in order, and where it is computed.

    axis value = lo + sum over its loops of loop * stride,   strides from the split's inner factors

A loop is one level of a split axis (or several, when fused). Levels count from the outside; level 0
has no factor of its own, it runs as often as the extent needs. Factors are integers or parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from autosched.errors import ScheduleError
from autosched.ir.expr import INDEX, Const, Expr, Load, Param, Var, product
from autosched.ir.recurrence import Recurrence, find_recurrence
from autosched.ir.stmt import THREADS, ForKind, Layout, Reducer, Scope
from autosched.ir.visit import loads

Num = int | str  # an integer, or the name of a parameter


def closed(number: Num) -> Expr:
    return Param(number) if isinstance(number, str) else Const(number, INDEX)


@dataclass(frozen=True)
class StageAxis:
    var: Var
    extent: Expr  # closed form
    reduce: bool = False

    @property
    def name(self) -> str:
        return self.var.name


@dataclass(frozen=True)
class StageOp:
    """What a stage computes. `guards` are pairs (form over axes, closed form): only points with form < limit exist."""

    name: str
    axes: tuple[StageAxis, ...]
    reduce_axes: tuple[StageAxis, ...]
    body: tuple[Expr, ...]
    reducer: Reducer | None
    buffers: tuple[str, ...]  # one for each value; indexed by `axes`
    dtypes: tuple[str, ...]
    guards: tuple[tuple[Expr, Expr], ...] = ()

    @property
    def all_axes(self) -> tuple[StageAxis, ...]:
        return self.axes + self.reduce_axes

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """The distinct elements that the values are made of."""
        return tuple(dict.fromkeys(load for value in self.body for load in loads(value)))

    @cached_property
    def reads(self) -> frozenset[str]:
        """The buffers of these."""
        return frozenset(load.buffer for load in self.loads)

    @cached_property
    def recurrence(self) -> Recurrence | None:
        """How the stage reads its own buffers; None where it does not."""
        if self.reads.isdisjoint(self.buffers):
            return None
        return find_recurrence([a.var for a in self.axes], self.body, self.buffers)

    @property
    def is_elementwise(self) -> bool:
        """Whether no point depends on others of the stage, by a reduction or a recurrence."""
        return self.reducer is None and self.recurrence is None

    @property
    def ordered_axis(self) -> StageAxis | None:
        """The axis of the recurrence."""
        return None if self.recurrence is None else self.axes[self.recurrence.axis]

    def loads_from(self, *buffers: str) -> tuple[Load, ...]:
        return tuple(load for load in self.loads if load.buffer in buffers)

    def axis(self, name: str) -> StageAxis:
        for axis in self.all_axes:
            if axis.name == name:
                return axis
        names = ", ".join(a.name for a in self.all_axes)
        raise ScheduleError(f"stage {self.name} has no axis {name!r}; its axes are {names}")


@dataclass(frozen=True)
class Loop:
    """One loop: `parts` are (axis, level) pairs, more than one when fused (last varies fastest).

    `reduce`: it is over a reduction axis, or along a recurrence: its iterations depend on each other.
    Without parts, `count` threads share every point of the stage.
    """

    name: str
    parts: tuple[tuple[str, int], ...]
    reduce: bool
    kind: ForKind = ForKind.SERIAL
    count: Num = 1


@dataclass(frozen=True)
class At:
    """Computed inside loop `loop` of stage `stage`."""

    stage: str
    loop: str


@dataclass(frozen=True)
class PrefetchHint:
    buffer: str
    loop: str
    distance: int
    level: int


@dataclass(frozen=True)
class AheadHint:
    """In loop `loop`, a share of what `reader` will read of `buffer` `distance` tiles later is asked for, to be in the
    cache of `level`."""

    reader: str
    buffer: str
    loop: str
    distance: int
    level: int


@dataclass(frozen=True)
class Pipelined:
    """The shared buffers filled in `loop` have room for `stages` of its iterations."""

    loop: str
    stages: Num
    asynchronous: bool
    by_tiles: bool = False
    multiprocessors: int = 0


@dataclass(frozen=True)
class AxisPart:
    """The points of an axis before `at`, or from there on."""

    axis: str
    at: Num
    is_rest: bool


@dataclass(frozen=True)
class Stage:
    op: StageOp
    loops: tuple[Loop, ...]
    splits: tuple[tuple[str, tuple[Num, ...]], ...] = ()  # axis -> inner factors, innermost last
    at: At | None = None  # None: at the root
    slides: bool = False  # it computes there only what no earlier iteration of that loop computed, and keeps the rest
    scope: Scope = Scope.GLOBAL
    layout: Layout | None = None
    prefetches: tuple[PrefetchHint, ...] = field(default=())
    ahead: tuple[AheadHint, ...] = ()
    cross: str | None = None  # the reduction axis that the threads of a block share
    warp: int = 0  # threads that exchange their values of it by shuffles
    adjacent: Num = 1  # elements of it that a thread takes at a time
    into: str | None = None  # the stage whose result it updates with its values, which are not kept
    resident: Num | None = None  # blocks of its kernel that a multiprocessor should keep at a time
    raster: Num | None = None  # rows of its kernel's blocks that are started together
    sharing: tuple[Num, ...] = ()  # what its kernel's blocks share, see ShareTiles
    starts: bool = False  # its loops only write the start values of its reduction
    cooperate: Num | None = None  # elements that a thread moves at a time, in a buffer that a block fills together
    pipeline: Pipelined | None = None
    non_temporal: bool = False  # its values may go around the caches
    staged: bool = False  # its values go through shared memory, from where the copy engine writes them
    part: AxisPart | None = None  # the points that it computes, where another stage has the others, see Partition
    staged_in: str = ""  # the loop in each of whose iterations some of them do; "" for all at once
    matrix: str = ""  # the row of `ir/instructions/matrices.py` by which warps add up its products
    whole: tuple[tuple[str, int], ...] = ()  # axis -> its innermost loops that run in full even where it is shorter
    running: str = ""  # the stage beside which its reduction goes on, part by part: it has what came so far

    @property
    def name(self) -> str:
        return self.op.name

    def factors(self, axis: str) -> tuple[Num, ...]:
        return dict(self.splits).get(axis, ())

    @property
    def is_spread(self) -> bool:
        """Whether it is computed inside a kernel, by the threads that its loops name."""
        return self.at is not None and any(x.kind in THREADS for x in self.loops)

    @property
    def is_across_lanes(self) -> bool:
        """Whether neighbouring threads share its reduction, as AcrossLanes has it."""
        return any(x.reduce and x.kind in THREADS for x in self.loops)

    def stride(self, axis: str, level: int) -> Expr:
        """How far one step of the loop (axis, level) moves along the axis."""
        return product([closed(f) for f in self.factors(axis)[level:]])

    def loop(self, name: str) -> Loop:
        for loop in self.loops:
            if loop.name == name:
                return loop
        raise ScheduleError(
            f"stage {self.name} has no loop {name!r}; its loops are {', '.join(x.name for x in self.loops)}"
        )

    def position(self, name: str) -> int:
        return self.loops.index(self.loop(name))


def default_stage(op: StageOp, scope: Scope = Scope.GLOBAL) -> Stage:
    """One loop for each axis, spatial ones outside, computed at the root."""
    loops = tuple(Loop(a.name, ((a.name, 0),), a.reduce or a is op.ordered_axis) for a in op.all_axes)
    return Stage(op, loops, scope=scope)

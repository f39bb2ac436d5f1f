"""What the rules ask about a stage: how its reads move with an axis, who consumes it, what can be fused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from autosched.ir.expr import Binary, Call, Const, Expr, Load, Select, Var
from autosched.ir.linear import ONE, linear
from autosched.ir.stmt import ForKind
from autosched.ir.visit import depth, free_vars, is_data, is_looked_up, loads, subexpressions
from autosched.schedule import Stage, State
from autosched.schedule.stage import StageAxis
from autosched.target import LONGEST_STEP
from autosched.te.checks import MAX_DEPTH
from autosched.te.rewrites.prefix_scan import running

EXPENSIVE = frozenset({"exp", "exp_negative", "log", "tanh", "erf", "sigmoid", "sin", "cos", "sqrt", "rsqrt"})
MAX_SWITCH = 16
MIN_REPEATS = 16  # how often arithmetic on parameters would be repeated, for it to be done once beforehand
MOST_NODES = 4096  # of an expression: inlined stages that read one another at two places double it each time
COSTLY = 8  # additions that take as long as a division or one of `EXPENSIVE`
WORTH_STORING = 1.5  # times the work of storing values and reading them that computing them where they are read takes
SHORT_REDUCTION = 32  # steps
MAX_GROWTH = 4  # times the elements of the weights that it comes from: Winograd's transforms, but no broadcasting


def extent(axis: StageAxis) -> int:
    assert isinstance(axis.extent, Const), f"axis {axis.name} has no constant extent"
    return int(axis.extent.value)


def points(stage: Stage) -> int:
    """Output points of a stage."""
    return math.prod(extent(a) for a in stage.op.axes)


def buffer_shape(state: State, name: str) -> tuple[int, ...]:
    """The shape of an input or of a stage's buffer, before any packing."""
    producer = state.producer(name)
    if producer is not None:
        return tuple(extent(a) for a in producer.op.axes)
    return next(t for t in state.inputs if t.name == name).shape


@dataclass(frozen=True)
class Read:
    """One load of a stage, and the elements it moves by when an axis advances by one (None: not linear)."""

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
        """Whether all that depends on the axis is quotients of it and others, and in the last dimension its remainder:
        neighbours are equal, or one apart, but where the remainder begins again."""
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
    def is_looked_up(self) -> bool:
        """Whether data say which element is read: a copy of what a tile reads would have the whole dimension."""
        return is_looked_up(self.load)

    @property
    def axes(self) -> frozenset[Var]:
        """The axes that occur in the indices."""
        return frozenset(v for index in self.load.indices for v in free_vars(index))

    def dim_of(self, axis: Var) -> int | None:
        """The one dimension that is indexed by the axis alone, if that is all the axis does; of no lookup."""
        if self.is_looked_up:
            return None
        dims = [n for n, i in enumerate(self.load.indices) if axis in free_vars(i)]
        return dims[0] if len(dims) == 1 and self.load.indices[dims[0]] is axis else None


def reads_of(state: State, stage: Stage) -> tuple[Read, ...]:
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


def has_reuse(stage: Stage, rows: tuple[Read, ...]) -> bool:
    """A read that stands still along an output axis: tiling pays (Ansor, section 4.1: data reuse)."""
    wide = [a for a in stage.op.axes if extent(a) > 1]
    return stage.op.reducer is not None and any(not r.moves(a.name) for r in rows for a in wide)


def is_reused(read: Read, stage: Stage) -> bool:
    """Whether each element is read for several output points, so that a copy in better order can pay."""
    return any(not read.moves(a.name) and extent(a) > 1 for a in stage.op.axes)


def users(read: Read, stage: Stage) -> int:
    """Output points that read the same element."""
    return math.prod(extent(a) for a in stage.op.axes if not read.moves(a.name))


def panel_dim(read: Read, stage: Stage, axis: StageAxis) -> int | None:
    """The dimension that can be stored in panels along `axis`: indexed by the axis alone, and reused."""
    return read.dim_of(axis.var) if is_reused(read, stage) else None


@dataclass(frozen=True)
class RowTiles:
    """An operand that can be stored in tiles of the output axis `axis` and the reduction: its `dims` of the two."""

    axis: StageAxis
    dims: tuple[int, int]


def row_tiles(read: Read, stage: Stage, v: StageAxis) -> RowTiles | None:
    """How the operand of a register tile's rows can be stored in tiles: it stands still along the vectorised axis `v`,
    and the last reduction axis steps from element to element. The last of the axes that move it is tiled."""
    k = stage.op.reduce_axes[-1]
    k_dim = read.dim_of(k.var)
    moving = [a for a in stage.op.axes if read.moves(a.name)]
    dims = [panel_dim(read, stage, a) for a in moving]
    if v in moving or not moving or k_dim is None or read.strides[k.name] != 1 or None in dims:
        return None
    assert dims[-1] is not None
    return RowTiles(moving[-1], (dims[-1], k_dim))


def run_length(read: Read, stage: Stage, rows: tuple[Read, ...]) -> int | None:
    """Adjacent elements that a tile of rows reads before it jumps; None if all of its rows are adjacent.

    An axis that moves all reads (a batch, a head, a group) is none of the tile's, but for the one in vectors:
    neighbours along it are elsewhere.
    """
    vector = {axis for x in stage.loops if x.kind is ForKind.VECTORIZE for axis, _ in x.parts}
    inside = (a for a in stage.op.axes if a.name in vector or not all(r.moves(a.name) for r in rows))
    own = (*stage.op.reduce_axes, *inside)
    steps = sorted((abs(s), extent(a)) for a in own if (s := read.strides[a.name]) and extent(a) > 1)
    run = 1
    for step, size in steps:
        if step > run:
            return run
        run = max(run, step * (size - 1) + run)
    return None


def is_scattered(read: Read, axis: StageAxis) -> bool:
    """Whether data say where each lane along the axis lies: no order of what is read brings them together."""
    return read.is_looked_up and read.strides[axis.name] is None


def transposable_dim(read: Read, stage: Stage, axis: StageAxis) -> int | None:
    """The dimension that makes lanes along `axis` adjacent when it is stored innermost."""
    if not is_reused(read, stage) or read.strides[axis.name] is None or read.is_looked_up:
        return None
    dims = [n for n, i in enumerate(read.load.indices) if axis.var in free_vars(i)]
    if len(dims) != 1:
        return None
    step = linear(read.load.indices[dims[0]]).coefficient(axis.var)
    return dims[0] if isinstance(step, Const) and step.value == 1 else None


def column_dim(read: Read, stage: Stage, axis: StageAxis) -> int | None:
    """The dimension along which a tile's columns can be copied: a step of the axis is one of it, and if it is indexed
    by more than the axis, by other output axes, as W[g * 4 + c] by a group's."""
    dim = transposable_dim(read, stage, axis)
    atoms = set() if dim is None else {a for a, _ in linear(read.load.indices[dim]).terms}
    return dim if atoms <= {a.var for a in stage.op.axes} else None


def vector_axes(stage: Stage, rows: tuple[Read, ...], lanes: int) -> tuple[StageAxis, ...]:
    """Spatial axes whose lanes are adjacent or equal in every read (a copy in panels counts), best first.

    Where the best is shorter than a vector, those that fill one go first, with the axis that a transposed copy would
    serve: few channels are vectorised along the rows of the image. Where there is none, lanes of the last axis may be a
    few elements apart: images of channels, in strides.
    """
    good = _vector_candidates(stage, rows, panel_dim)
    if good and extent(good[0]) >= lanes:
        return good
    extra = [a for a in _vector_candidates(stage, rows, transposable_dim) if a not in good and extent(a) >= lanes]
    filled = (*extra[:1], *(a for a in good if extent(a) >= lanes))
    found = (*filled, *(a for a in good if extent(a) < lanes and (not filled or 2 * extent(a) > lanes)))
    last = stage.op.axes[-1]
    return found or ((last,) if extent(last) > 1 and all(r.is_near(last.name) for r in rows) else ())


def short_last_axis(stage: Stage, rows: tuple[Read, ...], lanes: int) -> StageAxis | None:
    """The last axis where it fills more than a quarter of a vector and no more than one, and the reduction is too short
    to pay for transposing what it reads and what it gives: products of small matrices. Reads may need panels."""
    axis = stage.op.axes[-1]
    points = math.prod(extent(a) for a in stage.op.reduce_axes)
    if not lanes < 4 * extent(axis) <= 4 * lanes or points > SHORT_REDUCTION:
        return None
    return axis if axis in _vector_candidates(stage, rows, panel_dim) else None


_Ranked = tuple[int, int, int, StageAxis]  # by copies, length and place


def _vector_candidates(
    stage: Stage, rows: tuple[Read, ...], copy_dim: Callable[[Read, Stage, StageAxis], int | None]
) -> tuple[StageAxis, ...]:
    found, looked_up = list[_Ranked](), list[_Ranked]()
    for n, axis in enumerate(stage.op.axes):
        apart = [r for r in rows if not r.fills_lanes(axis)]
        bad = [r for r in apart if copy_dim(r, stage, axis) is None and not is_scattered(r, axis)]
        if not bad and extent(axis) > 1:
            packs = len(apart)
            scattered = n != len(stage.op.axes) - 1  # the output's lanes are apart
            places = looked_up if any(is_scattered(r, axis) for r in apart) else found
            places.append((packs + scattered, -min(extent(axis), 64), -n, axis))
    return tuple(f[3] for f in sorted(found or looked_up, key=lambda f: f[:3]))


def lane_reduction(stage: Stage, rows: tuple[Read, ...]) -> StageAxis | None:
    """A reduction axis along which the reads are adjacent, the longest; None if there is none. Some may repeat
    elements, as packed numbers and scales of groups do, or look them up."""
    good = [
        a
        for a in stage.op.reduce_axes
        if all(r.is_unit(a.name) or r.repeats(a.var) or is_scattered(r, a) for r in rows)
        and any(r.strides[a.name] == 1 for r in rows)
        and extent(a) > 1
    ]
    return max(good, key=extent, default=None)


def fused_consumer(state: State, stage: Stage) -> Stage | None:
    """The one elementwise stage that reads `stage` point by point and nothing else of it (Ansor's R4)."""
    consumers = state.consumers(stage)
    if len(consumers) != 1 or state.is_output(stage) or consumers[0].op.reducer is not None:
        return None
    host = consumers[0]
    found = host.op.loads_from(*stage.op.buffers)
    axes = tuple(a.var for a in host.op.axes)
    same = all(x.indices == axes for x in found)
    shapes = [extent(a) for a in stage.op.axes] == [extent(a) for a in host.op.axes]
    return host if same and shapes else None


def is_copy(stage: Stage) -> bool:
    """Moves data without arithmetic or conditions: a transpose, a slice, a broadcast."""
    return stage.op.reducer is None and all(isinstance(v, Load) for v in stage.op.body)


def looks_up(stage: Stage) -> bool:
    """Whether the stage reads something at indices that are data."""
    return any(map(is_looked_up, stage.op.loads))


def is_table(state: State, stage: Stage) -> bool:
    """Whether data say which points of the stage are read, so that nobody can compute only those that will be."""
    found = [x for r in state.consumers(stage) for x in r.op.loads_from(*stage.op.buffers)]
    return any(is_data(i) for x in found for i in x.indices)


def is_prepared_once(state: State, stage: Stage) -> bool:
    """What weights become for stages that depend on more than weights; one that only repeats them is none of it."""
    if not state.is_constant(stage) or all(state.is_constant(r) for r in state.consumers(stage)):
        return False
    return points(stage) <= MAX_GROWTH * sum(math.prod(buffer_shape(state, name)) for name in stage.op.reads)


def divisors_of(stage: Stage, axis: StageAxis) -> set[int]:
    """The numbers that indices and their comparisons divide something with the axis by."""
    nodes = (e for v in stage.op.body for e in subexpressions(v))
    divisions = (
        e for e in nodes if isinstance(e, Binary) and e.op in ("mod", "floordiv") and axis.var in free_vars(e.a)
    )
    return {int(e.b.value) for e in divisions if isinstance(e.b, Const) and not loads(e.a)}


def has_condition(stage: Stage) -> bool:
    return any(isinstance(e, Select) for v in stage.op.body for e in subexpressions(v))


def is_expensive(stage: Stage) -> bool:
    return any(_is_costly(e) and not _is_index(e) for v in stage.op.body for e in subexpressions(v))


def _is_costly(e: Expr) -> bool:
    return (isinstance(e, Call) and e.fn in EXPENSIVE) or (
        isinstance(e, Binary) and e.op in ("pow", "div", "mod", "floordiv")
    )


def is_shared(state: State, stage: Stage) -> bool:
    """Whether a reader needs so many elements of the stage for each of its own, as a step in time of a stencil does,
    that they are better stored than computed for each that needs them."""
    readers = [(r, len(set(r.op.loads_from(*stage.op.buffers)))) for r in state.consumers(stage)]
    if all(places < 2 for _, places in readers):
        return False
    work = [e for v in stage.op.body for e in subexpressions(v) if not _is_index(e) and not isinstance(e, Const)]
    operations = sum(COSTLY if _is_costly(e) else 1 for e in work)
    needed = sum(points(r) * places for r, places in readers)
    return needed * operations > WORTH_STORING * (points(stage) * (operations + 1) + needed)


def is_too_large(state: State, stage: Stage) -> bool:
    """Whether a reader would become a longer or a deeper expression than passes are made for, with `stage` inlined."""
    deepest = max(map(depth, stage.op.body))
    nodes = sum(len(list(subexpressions(v))) for v in stage.op.body)
    for reader in state.consumers(stage):
        length = sum(len(list(subexpressions(v))) for v in reader.op.body)
        length += nodes * len(reader.op.loads_from(*stage.op.buffers))
        if length > MOST_NODES or deepest + max(map(depth, reader.op.body)) > MAX_DEPTH:
            return True
    return False


def is_folded(state: State, stage: Stage) -> bool:
    """Arithmetic on inputs alone, with far fewer points than what reads it: the scale and shift of a normalisation."""
    plain = stage.op.reducer is None and not is_copy(stage) and not reads_nothing(stage) and not has_condition(stage)
    readers = state.consumers(stage)
    if not plain or not readers or any(r.op.reducer is not None for r in readers):
        return False
    if MIN_REPEATS * points(stage) > max(points(r) for r in readers):
        return False
    producers = [p for b in stage.op.reads if (p := state.producer(b)) is not None]
    return all(p.op.reducer is None and points(p) <= points(stage) and not state.is_output(p) for p in producers)


def is_part(state: State, stage: Stage) -> bool:
    """Whether a reader of a reduction, or of what is fused to it, goes on with the reduction."""
    whole = fused_consumer(state, stage) or stage
    readers = (r.op for r in state.consumers(whole) if r.op.reducer is stage.op.reducer)
    return any(all(isinstance(v, Load) and v.buffer in whole.op.buffers for v in op.body) for op in readers)


def ends_part(state: State, stage: Stage) -> bool:
    """Whether the stage gives the results of a part of a reduction to what goes on with it."""
    return any(fused_consumer(state, s) is stage and is_part(state, s) for s in state.stages if s.op.reducer)


def ends_blocks(state: State, stage: Stage) -> bool:
    """Whether the stage gives the results of a running reduction in blocks to readers that index them otherwise."""
    inner = (s for s in state.stages if running(s.op) is not None)
    return fused_consumer(state, stage) is None and any(fused_consumer(state, s) is stage for s in inner)


def is_repeated(state: State, stage: Stage) -> bool:
    """Whether a reader would compute expensive values of the stage again and again: it has many more points, and they
    are not those of its rows, for which they are computed once."""
    if not is_expensive(stage):
        return False
    many = [r for r in state.consumers(stage) if points(r) >= MIN_REPEATS * points(stage)]
    found = [(r, x) for r in many for x in r.op.loads_from(*stage.op.buffers)]
    return any(x.indices != tuple(a.var for a in r.op.axes[: len(x.indices)]) for r, x in found)


def _is_index(e: Expr) -> bool:
    return e.dtype == "int64" and not loads(e)


def switch_axes(stage: Stage) -> tuple[str, ...]:
    """Short axes that a select compares with constants, as in Winograd's transforms: unrolled, the selects fold."""
    compared: set[Expr] = set()
    for value in stage.op.body:
        for e in subexpressions(value):
            if isinstance(e, Binary) and e.op == "eq" and isinstance(e.b, Const):
                compared.add(e.a)
    return tuple(a.name for a in stage.op.axes if a.var in compared and extent(a) <= MAX_SWITCH)


def loses_switch(stage: Stage, readers: tuple[Stage, ...]) -> bool:
    """Whether a short axis that selects what is computed would be an index that no loop unrolls."""
    short = set(switch_axes(stage))
    dims = [n for n, a in enumerate(stage.op.axes) if a.name in short]
    found = [x for r in readers for x in r.op.loads_from(*stage.op.buffers)]
    return any(not isinstance(x.indices[d], Var) for x in found for d in dims)


def reads_nothing(stage: Stage) -> bool:
    return not stage.op.reads

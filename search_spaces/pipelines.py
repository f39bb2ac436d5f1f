"""Pipelines of stages: which stages can be computed in tiles of a stage that reads them, with their halos.

for each tile:  Y[tile] from B[tile and halo] from A[tile and larger halo]          instead of A, then B, then Y
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.conditions import border_reads
from autosched.ir.expr import INDEX, Const, Load, Var
from autosched.ir.linear import ONE, linear
from autosched.ir.visit import free_vars, is_gathered
from autosched.schedule import Stage, State, can_write_out
from autosched.schedule.stage import StageAxis
from search_spaces.access import buffer_shape, extent, has_reuse, reads_of
from search_spaces.fusion import is_read_indirectly

FEW_PLANES = 4  # of a short axis, as colours, which a tile has all of where one of its producers is the same for all


def tile_producers(state: State, stage: Stage, done: frozenset[str], with_reductions: bool = False) -> list[Stage]:
    """Return the stages that could be computed in tiles of `stage`, directly read by it or not: elementwise, or
    reductions whose lanes have their own operands, read by nothing else, and not `done`. Readers come before what they
    read, so that the first few are a choice as well."""
    group, found = {stage.name}, list[Stage]()
    for candidate in reversed(state.stages):
        readers = {r.name for r in state.consumers(candidate)}
        is_kind = candidate.op.is_elementwise or (with_reductions and has_own_lanes(candidate))
        is_free = candidate.name not in done and is_kind and candidate.at is None
        fits = is_free and readers and readers <= group and not state.is_output(candidate)
        if fits and not state.is_constant(candidate) and not is_read_indirectly(state, candidate):
            group.add(candidate.name)
            found.append(candidate)
    return found


def shared_intermediates(state: State, producers: list[Stage]) -> list[Stage]:
    """Return the elementwise ones of `producers` that a reduction and another stage read, as a mean and a sum of
    weights read the weights: computed in tiles with both, they are never stored as a whole."""
    readers = ((p, state.consumers(p)) for p in producers if p.op.is_elementwise)
    return [p for p, found in readers if len(found) > 1 and any(r.op.reducer is not None for r in found)]


def has_own_lanes(stage: Stage) -> bool:
    """Whether the stage is a reduction in whose lanes, along its last axis, no operand is used twice."""
    if stage.op.reducer is None or not stage.op.axes:
        return False
    return all(is_gathered(x) or _moves_along(x, stage.op.axes[-1].var) for x in stage.op.loads)


def _moves_along(load: Load, axis: Var) -> bool:
    """Whether neighbours along the axis are neighbours in memory."""
    *outer, last = load.indices or (Const(0, INDEX),)
    return linear(last).coefficient(axis) is ONE and all(axis not in free_vars(i) for i in outer)


@dataclass(frozen=True)
class TileAxes:
    """Axes of a stage in tiles: those `tiled`, as producers are read at several places along them; those `outer`,
    around all tiles; and those `inner` of each, along which producers do not vary, or one of them and the axis is
    short: it is computed once for all."""

    tiled: tuple[StageAxis, ...]
    outer: tuple[StageAxis, ...]
    inner: tuple[StageAxis, ...]


def tile_axes(stage: Stage, producers: list[Stage], axes: tuple[StageAxis, ...]) -> TileAxes:
    """Return how the `axes` of `stage` serve tiles of it in which the producers are computed."""
    buffers = [b for p in producers for b in p.op.buffers]
    indices = [i for r in (stage, *producers) for x in r.op.loads_from(*buffers) for i in x.indices]
    tiled, outer, inner = list[StageAxis](), list[StageAxis](), list[StageAxis]()
    for axis in axes:
        used = [i for i in indices if axis.var in free_vars(i)]
        is_in_place = all(i is axis.var for i in used)
        is_shared = not used or (extent(axis) <= FEW_PLANES and not _all_vary(stage, producers, axis))
        kind = tiled if not is_in_place else inner if is_shared else outer
        kind.append(axis)
    return TileAxes(tuple(tiled), tuple(outer), tuple(inner))


def _all_vary(stage: Stage, producers: list[Stage], axis: StageAxis) -> bool:
    """Whether each of the producers, readers first, has other values elsewhere along an axis of `stage`."""
    moved = {axis.var}
    for producer in producers:
        reads = [x for r in (stage, *producers) for x in r.op.loads_from(*producer.op.buffers)]
        own = {a.var for x in reads for a, i in zip(producer.op.axes, x.indices, strict=True) if free_vars(i) & moved}
        if not own:
            return False
        moved |= own
    return True


def short_windows(state: State) -> list[str]:
    """Return the reductions of a pipeline that are written out in one of its initial sketches: windows of few elements
    without an operand that is used again, and other reductions as long as they, which their readers' tiles can compute
    like any elementwise stage.

    A pipeline has several of them. A lone window, as of a pooling, has sketches of its own.
    """
    stages = [s for s in state.stages if s.op.reducer is not None and _reads_neighbours(state, s)]
    lengths = {_lengths(s) for s in stages if _has_window(s)}
    found = [s.name for s in stages if _lengths(s) in lengths and can_write_out(s.op)]
    return found if len(found) > 1 else []


def sums_of_stencils(state: State) -> list[str]:
    """Return the reductions that can be written out and whose readers are elementwise, of which one is a stencil: a
    brightness as a sum over colours, with weights, that is blurred."""
    return [
        s.name
        for s in state.stages
        if can_write_out(s.op)
        and not state.is_output(s)
        and all(r.op.is_elementwise for r in state.consumers(s))
        and any(is_stencil_of(r, s) for r in state.consumers(s))
    ]


def is_stencil_of(reader: Stage, stage: Stage) -> bool:
    """Whether the reader reads the stage at several places."""
    return len(set(reader.op.loads_from(*stage.op.buffers))) > 1


def _lengths(stage: Stage) -> tuple[int, ...]:
    return tuple(extent(a) for a in stage.op.reduce_axes)


def _has_window(stage: Stage) -> bool:
    """Whether an index moves along an output axis and along the reduction."""
    axes, steps = ({a.var for a in part} for part in (stage.op.axes, stage.op.reduce_axes))
    used = (free_vars(i) for x in stage.op.loads for i in x.indices)
    return any(not axes.isdisjoint(v) and not steps.isdisjoint(v) for v in used)


def _reads_neighbours(state: State, stage: Stage) -> bool:
    """Whether lanes along the last axis read neighbours, and no operand but borders is used for several outputs."""
    borders = _borders(state, stage)
    reads = tuple(r for r in reads_of(state, stage) if r.load not in borders)
    lanes = bool(stage.op.axes) and all(r.strides[stage.op.axes[-1].name] == 1 for r in reads)
    return lanes and not has_reuse(stage, reads)


def _borders(state: State, stage: Stage) -> set[Load]:
    """Return the reads of border elements that happen only where a clamped index is outside."""
    shapes = {b: tuple(Const(n, INDEX) for n in buffer_shape(state, b)) for b in stage.op.reads}
    return {load for b, shape in shapes.items() for load, _ in border_reads(stage.op.body, frozenset({b}), shape)}

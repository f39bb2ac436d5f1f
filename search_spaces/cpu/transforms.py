"""Initial sketches before the rules (`initial_sketches`), and the rule for Winograd's transforms.

A transform is two stages, one for each dimension of the tile. Their short axes are unrolled:

    parallel p.0, p.1, c.0            the second dimension's nest
      rows of the transform           the first dimension, for one tile and one vector or two of channels
      a, b unrolled, c.1 in vectors   so that selects between rows of a matrix fold
"""

from __future__ import annotations

import math

from autosched.ir.expr import Call, Cast, Const, Expr, Load
from autosched.ir.visit import free_vars, is_gathered, loads, subexpressions
from autosched.schedule import (
    ComputeAt,
    Factor,
    NarrowPlaces,
    Once,
    Parallel,
    Reindex,
    Reorder,
    RunningSum,
    Separate,
    Split,
    Stage,
    State,
    Step,
    Unroll,
    Vectorize,
    Widen,
    Winograd,
    WriteOut,
    factors,
    initial_state,
    repeated_parts,
    running_window,
    widened,
    window_axes,
)
from autosched.schedule.steps.places import narrow_places
from autosched.schedule.steps.winograd import convolution
from autosched.te.dag import ComputeDAG
from autosched.te.rewrites.winograd import TILES
from search_spaces.access import buffer_shape, extent, is_reused, points, reads_of, reuse_count
from search_spaces.cpu.domains import tile_count, vector_width
from search_spaces.cpu.elementwise import FEW_POINTS
from search_spaces.cpu.intrinsics import has_instruction
from search_spaces.cpu.scatter import scatter_axes
from search_spaces.cpu.tile_products import has_tiles
from search_spaces.fusion import MAX_GROWTH, MIN_REPEATS, has_condition, switch_axes
from search_spaces.partial_sketch import PartialSketch, SketchContext
from search_spaces.pipelines import short_windows

WIDE_USERS = 32  # points that read an element, from which it is converted in a stage of its own
LEAST_RUN = 8  # elements of a window that is a running sum, which takes two operations for each
LESS = 0.5  # ratio of operations in two stages; their intermediate costs a store and a load of each row
VECTORS = (1, 2)  # vectors of channels in a transform: a tile of them fills the registers several times


def initial_sketches(dag: ComputeDAG, context: SketchContext) -> list[PartialSketch]:
    """Return the partial sketches that the rules start from.

    The first is the graph as written, with the indices of an argmax in 32 bits, and with stages for repeated work:
    arithmetic on operands, indirect reads, conversions. The second has windows in two stages, the third long windows
    of integers as running sums. Where the processor has tiles for operands that are otherwise converted, one more has
    no conversion. Pipelines have one with their short windows written out, as sums of reads at several places. Where
    Winograd's error is accepted, there is one more for each size of his tiles.
    """
    sketch = PartialSketch(initial_state(dag))
    narrowed = [NarrowPlaces(s.name) for s in sketch.state.stages if narrow_places(s.op) is not None]
    sketch = sketch.apply(*narrowed)
    for name in [s.name for s in sketch.state.stages]:
        while (factor := _factor(sketch.state, sketch.state.stage(name))) is not None:
            sketch = sketch.apply(factor)
        while (step := _once(sketch.state, sketch.state.stage(name))) is not None:
            sketch = sketch.apply(step)
    for stage in sketch.state.stages:
        sketch = sketch.apply(*_lookups(sketch.state, stage))
    tiles = sketch
    for stage in sketch.state.stages:
        wider = _conversions(sketch.state, stage, context)
        sketch = sketch.apply(*wider)
        tiles = tiles if has_tiles(tiles, tiles.state.stage(stage.name), context) else tiles.apply(*wider)
    convolutions = [s.name for s in sketch.state.stages if dag.winograd and convolution(s) is not None]
    windows = [step for s in sketch.state.stages for step in _in_parts(s)]
    variants = [sketch.apply(*windows).finish(note="parts")] if windows else []
    running = sketch.apply(*_recurrent_windows(sketch.state))
    variants += [running.finish(note="running")] if running.state != sketch.state else []
    variants += [tiles.finish(note="tiles")] if tiles.state != sketch.state else []
    taps = short_windows(running.state)  # parts of a long window are none: running sums take less time than strips
    variants += [running.apply(*map(WriteOut, taps)).finish(note="taps")] if taps else []
    if not convolutions:
        return [sketch, *variants]
    by_tiles = [sketch.apply(*(Winograd(name, m) for name in convolutions)).finish(note=f"F{m}") for m in TILES]
    return [sketch, *variants, *by_tiles]


def _in_parts(stage: Stage) -> list[Step]:
    """Return the step for a window that takes at most `LESS` of the operations in two stages; [] if there is none."""
    for axis, shared in window_axes(stage.op).items():
        by, length = shared.step, extent(stage.op.axis(axis))
        whole = math.prod(extent(a) for a in stage.op.reduce_axes)
        if by * (whole // length - 1) + length - 1 <= LESS * (whole - 1):
            return [Separate(stage.name, axis)]
    return []


def _recurrent_windows(state: State) -> list[RunningSum]:
    """Return the steps for long windows of integers in an input along another axis than the last one: running sums,
    with lanes along the last one.

    A window in two dimensions has none, on Zen 4: computing the sums along the rows for each strip of columns takes
    longer than the additions that its columns save.
    """
    steps = list[RunningSum]()
    inputs, dropped = {t.name for t in state.inputs}, set[str]()
    for stage in reversed(state.stages):
        for axis in stage.op.axes[:-1] if stage.name not in dropped else ():
            window = running_window(state, stage, axis.name)
            if window is None or not LEAST_RUN <= window.length <= extent(axis):
                continue
            if all(x.buffer in inputs for x in loads(window.term)):
                steps.append(RunningSum(stage.name, axis.name))
                dropped |= {stage.name, *window.parts}
                break
    return steps


def _lookups(state: State, stage: Stage) -> list[Step]:
    """Return the steps for indirect reads whose elements several points of a reduction use: a stage for each.

    The stage has the elements in the order of their use. It may be packed, computed for each task, or inlined again.
    """
    reads = reads_of(state, stage)
    once = [r for r in reads if sum(x.load.buffer == r.load.buffer for x in reads) == 1]
    buffers = [r.load.buffer for r in once if r.is_indirect and is_reused(r, stage)]
    if stage.op.reducer is None or stage.op.guards or has_condition(stage):
        return []
    return [Reindex(b, stage.name, f"{stage.name}.found" if state.taken(f"{b}.found") else "found") for b in buffers]


def _factor(state: State, stage: Stage) -> Factor | None:
    """Return the step for an operand of a sum of products with arithmetic on it that many points repeat.

    Weights that are stored in few bits, with scales of groups, are such operands. Windows are not: the stage would have
    each of their elements several times.
    """
    operands = () if stage.op.guards or has_condition(stage) else factors(stage.op)
    for factor in operands:
        used = free_vars(factor)
        own, moving = [f for f in operands if free_vars(f) <= used], [a for a in stage.op.all_axes if a.var in used]
        size = {x: math.prod(buffer_shape(state, x.buffer)) for f in own for x in loads(f)}
        repeated = math.prod(extent(a) for a in stage.op.axes if a not in moving)
        plain = _is_plain([f for f in own if free_vars(f)]) or len(own) == len(operands) or not size
        if plain or repeated < WIDE_USERS or math.prod(map(extent, moving)) > MAX_GROWTH * sum(size.values()):
            continue
        main = max(size, key=lambda x: size[x])
        order = [v for i in main.indices for v in free_vars(i)]
        axes = sorted(moving, key=lambda a: order.index(a.var) if a.var in order else -1)
        tag = f"{stage.name}.factor" if state.taken(f"{main.buffer}.factor") else "factor"
        if not state.taken(f"{main.buffer}.{tag}"):
            return Factor(stage.name, main.buffer, tuple(a.name for a in axes), tag)
    return None


def _once(state: State, stage: Stage) -> Once | None:
    """Return the step for expensive arithmetic of an elementwise stage that many of its points repeat.

    The arithmetic on a column's variance, for example, is repeated by all rows. Arithmetic on values of the first axes,
    the rows, is not repeated: it stays in a register. Divisions by the result of a reduction stay in the reader, which
    decides where the reduction is computed.
    """
    for expression in () if stage.op.guards else repeated_parts(stage.op):
        axes = [a for a in stage.op.axes if a.var in free_vars(expression)]
        rows = axes == list(stage.op.axes[: len(axes)])
        is_input = all(state.producer(x.buffer) is None for x in loads(expression))
        repeated = is_input or any(isinstance(e, Call) for e in subexpressions(expression))
        if not rows and repeated and MIN_REPEATS * math.prod(map(extent, axes)) <= points(stage):
            tags = (f"once{n or ''}" for n in range(len(state.stages) + 1))
            tag = next(t for t in tags if not state.taken(f"{stage.name}.{t}"))
            return Once(stage.name, tuple(a.name for a in axes), tag)
    return None


def _is_plain(parts: list[Expr]) -> bool:
    """Whether the factors are one element as it is stored, or as `Widen` converts it."""
    operands = [f.a if isinstance(f, Cast) else f for f in parts]
    return all(isinstance(f, Load) and not is_gathered(f) for f in operands) and len(operands) < 2


def _conversions(state: State, stage: Stage, context: SketchContext) -> list[Step]:
    """Return the steps that convert operands of small types which many points of a reduction read.

    In the middle of the reduction they would be converted again for every register tile, and an element that is
    broadcast to a vector by itself.
    """
    if stage.op.reducer is None or scatter_axes(stage) or has_instruction(state, stage, context):
        return []
    types = widened(stage.op)
    most = {r.load.buffer: reuse_count(r, stage) for r in reads_of(state, stage)}
    tables = {r.load.buffer for r in reads_of(state, stage) if r.is_indirect}
    buffers = [b for b in sorted(types) if most[b] >= WIDE_USERS and b not in tables]
    return [Widen(stage.name, b, f"{stage.name}.wide" if state.taken(f"{b}.wide") else "wide") for b in buffers]


class WinogradTransform:
    """A stage whose short axes select rows of a small matrix; in the nest of the transform that reads it, if any."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        if not stage.op.is_elementwise or sketch.state.is_output(stage):
            return False
        written = _written_out(sketch.state, stage)
        return bool(switch_axes(stage)) and stage.op.axes[-1].name not in written

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        readers = sketch.state.consumers(stage)
        row = sketch.row_loop(readers[0].name) if len(readers) == 1 else None
        if row is not None and switch_axes(readers[0]):
            return [_inside(sketch, stage, readers[0], row.loop)]
        return [_nest(sketch, stage, context)]


def _written_out(state: State, stage: Stage) -> list[str]:
    """Return the axes to unroll: those that select a row of a matrix, here or in the transform that is read, and those
    that readers index with constants."""
    axes = list(switch_axes(stage))
    for load in stage.op.loads:
        producer = state.producer(load.buffer)
        chosen = () if producer is None else switch_axes(producer)
        rows = [i for a, i in zip(producer.op.axes, load.indices, strict=True) if a.name in chosen] if producer else []
        axes += [a.name for a in stage.op.axes if a.var in rows]
    for reader in state.consumers(stage) if switch_axes(stage) else ():
        read = reader.op.loads_from(*stage.op.buffers)
        axes += [a.name for n, a in enumerate(stage.op.axes) if all(isinstance(x.indices[n], Const) for x in read)]
    return list(dict.fromkeys(axes))


def _nest(sketch: PartialSketch, stage: Stage, context: SketchContext) -> PartialSketch:
    """Schedule the transform in a nest of its own."""
    name, last = stage.name, stage.op.axes[-1]
    short = _written_out(sketch.state, stage)
    outer = [a.name for a in stage.op.axes[:-1] if a.name not in short]
    group = f"{name}.{last.name}"
    lanes = context.lanes_of(stage)
    params = [vector_width(f"{group}.r", extent(last), lanes, group, VECTORS)]
    steps: list[Step] = [Split(name, last.name, (params[0].name,))]
    middle = [f"{last.name}.0"]
    if outer:
        rows = tile_count(f"{name}.{outer[-1]}.m", extent(stage.op.axis(outer[-1])), "")
        params.append(rows)
        steps.append(Split(name, outer[-1], (rows.name,)))
        middle.insert(0, f"{outer[-1]}.1")
        outer[-1] = f"{outer[-1]}.0"
    steps.append(Reorder(name, (*outer, *middle, *short, f"{last.name}.1")))
    if points(stage) > FEW_POINTS and outer:
        steps.append(Parallel(name, tuple(outer)))
    steps += [*(Unroll(name, x) for x in short), Vectorize(name, f"{last.name}.1")]
    sketch = sketch.with_params(params).apply(*steps).finish(name, note=f"{name}@root")
    return sketch.with_row_loop(name, middle[-1])


def _inside(sketch: PartialSketch, stage: Stage, reader: Stage, loop: str) -> PartialSketch:
    """Compute the transform for each tile and vector of its reader."""
    name, last = stage.name, stage.op.axes[-1].name
    short = _written_out(sketch.state, stage)
    outer = [a.name for a in stage.op.axes[:-1] if a.name not in short]
    (width,) = reader.factors(reader.op.axes[-1].name)
    steps: list[Step] = [
        ComputeAt(name, reader.name, loop),
        Split(name, last, (width,)),
        Reorder(name, (*outer, f"{last}.0", *short, f"{last}.1")),
        *(Unroll(name, x) for x in short),
        Vectorize(name, f"{last}.1"),
    ]
    return sketch.apply(*steps).finish(name)

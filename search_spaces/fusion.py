"""Inlining and fusion decisions for a stage: inlined into its readers, fused to a reduction, or stored.

Inlining saves a pass over memory. It does not pay where an expensive value would be recomputed many times, where
the switch axis of a transform could no longer be unrolled, or where the expression would grow too large.
"""

from __future__ import annotations

import math

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Call, Cast, Const, Expr, Load, Select, Var
from autosched.ir.instructions.dots import Word
from autosched.ir.visit import depth, free_vars, is_data, is_gathered, loads, subexpressions
from autosched.schedule import Stage, State
from autosched.schedule.stage import StageAxis
from autosched.schedule.steps.stages import places_in
from autosched.te.checks import MAX_DEPTH
from autosched.te.rewrites.prefix_scan import find_prefix_scan
from search_spaces.access import buffer_shape, extent, points

EXPENSIVE = frozenset({"exp", "exp_negative", "log", "tanh", "erf", "sigmoid", "sin", "cos", "sqrt", "rsqrt"})
MAX_SWITCH = 16  # iterations of an axis whose value selects the expression that is computed
MIN_REPEATS = 16  # reads of each value from which arithmetic on parameters alone gets a stage of its own
MOST_NODES = 4096  # nodes of an expression: inlined stages that each read another one twice double it every time
COSTLY = 8  # additions that take as long as a division or one of `EXPENSIVE`
LOOKUP = 24  # additions of a vector that take as long as a load for each of its lanes, about 1.2 cycles each
STORED = 32  # additions in vectors for which an element may be computed anew, assumed: memory takes as long or longer
WORTH_STORING = 1.5  # ratio of the work of recomputing to that of storing and loading, from which a stage is stored
SHORT_ROW = 16  # elements of a row up to which it is less than a vector
MAX_GROWTH = 4  # elements of prepared weights per element of the weights: Winograd's transforms, but no broadcasts


def fused_consumer(state: State, stage: Stage) -> Stage | None:
    """Return the only reader of `stage` if it is elementwise and reads point by point (Ansor's R4); else None."""
    consumers = state.consumers(stage)
    if len(consumers) != 1 or state.is_output(stage) or not consumers[0].op.is_elementwise:
        return None
    consumer = consumers[0]
    reads = consumer.op.loads_from(*stage.op.buffers)
    axes = tuple(a.var for a in consumer.op.axes)
    same = all(x.indices == axes for x in reads)
    shapes = [extent(a) for a in stage.op.axes] == [extent(a) for a in consumer.op.axes]
    return consumer if same and shapes else None


def permuted_consumer(state: State, stage: Stage) -> Stage | None:
    """Return the only reader of `stage` if it is elementwise and reads it with permuted axes; else None."""
    consumers = state.consumers(stage)
    if len(consumers) != 1 or state.is_output(stage) or not consumers[0].op.is_elementwise:
        return None
    indices = places_in(consumers[0], stage)
    is_turned = indices != consumers[0].op.axes and list(map(extent, indices)) == list(map(extent, stage.op.axes))
    return consumers[0] if indices and is_turned else None


def is_continued(state: State, stage: Stage) -> bool:
    """Return whether a reader of `stage`, or of its fused consumer, reduces the results by the same reducer."""
    whole = fused_consumer(state, stage) or stage
    readers = (r.op for r in state.consumers(whole) if r.op.reducer is stage.op.reducer)
    return any(all(isinstance(v, Load) and v.buffer in whole.op.buffers for v in op.body) for op in readers)


def feeds_continuation(state: State, stage: Stage) -> bool:
    """Return whether the stage is the fused consumer of a reduction that another stage continues (`is_continued`)."""
    return any(fused_consumer(state, s) is stage and is_continued(state, s) for s in state.stages if s.op.reducer)


def feeds_padding(state: State, stage: Stage) -> bool:
    """Return whether the stage is the fused consumer of a reduction, and all of its readers only pad or move values.

    Inlined into the reduction that reads the padded values, the stage would be recomputed for each window.
    """
    readers = state.consumers(stage)
    if not readers or not all(map(has_condition, readers)) or not all(map(_only_moves, readers)):
        return False
    return any(fused_consumer(state, s) is stage for s in state.stages if s.op.reducer is not None)


def _only_moves(stage: Stage) -> bool:
    return stage.op.is_elementwise and all(
        isinstance(e, (Load, Const)) for v in stage.op.body if isinstance(v, Select) for e in (v.a, v.b)
    )


def feeds_readers_of_scan(state: State, stage: Stage) -> bool:
    """Return whether the stage is the fused consumer of a blocked prefix scan that its readers index differently."""
    inner = (s for s in state.stages if find_prefix_scan(s.op) is not None)
    return fused_consumer(state, stage) is None and any(fused_consumer(state, s) is stage for s in inner)


def is_copy(stage: Stage) -> bool:
    """Return whether the stage only moves data, without conditions: a transpose, a slice, a broadcast."""
    return stage.op.reducer is None and all(isinstance(v, Load) for v in stage.op.body)


def is_widening(stage: Stage) -> bool:
    """Return whether the stage only converts integers to a type that has all their numbers, which a load can do."""
    casts = [v for v in stage.op.body if isinstance(v, Cast) and isinstance(v.a, Load) and DTYPES[v.dtype].is_integer]
    are_kept = all(DTYPES[v.a.dtype].is_integer and DTYPES[v.dtype].holds(DTYPES[v.a.dtype]) for v in casts)
    return stage.op.is_elementwise and len(casts) == len(stage.op.body) and are_kept


def is_words(stage: Stage) -> bool:
    """Return whether the stage only packs data into words."""
    return stage.op.reducer is None and all(isinstance(v, Word) for v in stage.op.body)


def has_condition(stage: Stage) -> bool:
    """Return whether the stage computes different expressions at different points, as padding does."""
    return any(isinstance(e, Select) for v in stage.op.body for e in subexpressions(v))


def has_indirect_read(stage: Stage) -> bool:
    """Return whether the stage has a read whose index is data."""
    return any(map(is_gathered, stage.op.loads))


def is_read_indirectly(state: State, stage: Stage) -> bool:
    """Return whether a reader indexes the stage by data: no task can compute only the points that it reads."""
    reads = [x for r in state.consumers(stage) for x in r.op.loads_from(*stage.op.buffers)]
    return any(is_data(i) for x in reads for i in x.indices)


def is_table(state: State, stage: Stage) -> bool:
    """Return whether the stage is a table that readers with many more points look up, of numbers that take longer to
    compute."""
    is_small = all(points(r) >= MIN_REPEATS * points(stage) for r in state.consumers(stage))
    return is_small and _operations(stage) > LOOKUP and is_read_indirectly(state, stage)


def is_expensive(stage: Stage) -> bool:
    """Return whether the stage divides or calls a function of `EXPENSIVE`; index arithmetic does not count."""
    return any(_is_costly(e) and not _is_index(e) for v in stage.op.body for e in subexpressions(v))


def _is_costly(e: Expr) -> bool:
    return (isinstance(e, Call) and e.fn in EXPENSIVE) or (
        isinstance(e, Binary) and e.op in ("pow", "div", "mod", "floordiv", "fmod")
    )


def _is_index(e: Expr) -> bool:
    return e.dtype == INDEX and not loads(e)


def is_too_large_inlined(state: State, stage: Stage) -> bool:
    """Return whether inlining `stage` would make a reader longer or deeper than the passes can handle."""
    deepest = max(map(depth, stage.op.body))
    nodes = sum(len(list(subexpressions(v))) for v in stage.op.body)
    for reader in state.consumers(stage):
        length = sum(len(list(subexpressions(v))) for v in reader.op.body)
        length += nodes * len(reader.op.loads_from(*stage.op.buffers))
        if length > MOST_NODES or deepest + max(map(depth, reader.op.body)) > MAX_DEPTH:
            return True
    return False


def would_be_recomputed(state: State, stage: Stage) -> bool:
    """Return whether inlining the stage would recompute expensive values many times.

    This is so where a reader has many more points than the stage and does not read it by its leading axes, along which
    values are computed once.
    """
    if not is_expensive(stage):
        return False
    many = [r for r in state.consumers(stage) if points(r) >= MIN_REPEATS * points(stage)]
    reads = [(r, x) for r in many for x in r.op.loads_from(*stage.op.buffers)]
    return any(x.indices != tuple(a.var for a in r.op.axes[: len(x.indices)]) for r, x in reads)


def is_cheaper_stored(state: State, stage: Stage) -> bool:
    """Return whether the stage's values are cheaper to store than to recompute for each reader.

    A time step of a stencil, for example, reads several elements of the previous step for each of its own, and three
    colours of an image read one brightness.
    """
    readers = [(r, len(set(r.op.loads_from(*stage.op.buffers)))) for r in state.consumers(stage)]
    if all(places < 2 and not _is_repeated(r, stage) for r, places in readers):
        return False
    work, needed = _operations(stage), _values_read(state, stage)
    return needed * work > WORTH_STORING * (points(stage) * (work + 1) + needed)


def is_cheap_repeated(state: State, stage: Stage) -> bool:
    """Return whether computing the stage's values for each reader may take less time than memory takes to keep them."""
    return not is_expensive(stage) and _values_read(state, stage) * _operations(stage) <= STORED * points(stage)


def _values_read(state: State, stage: Stage) -> int:
    """Return how many of the stage's values its readers take, counted again at each point and place."""
    return sum(points(r) * len(set(r.op.loads_from(*stage.op.buffers))) for r in state.consumers(stage))


def _operations(stage: Stage) -> int:
    """Return the operations for a value of the stage, in additions, without those of indices."""
    work = [e for v in stage.op.body for e in subexpressions(v) if not _is_index(e) and not isinstance(e, Const)]
    return sum(COSTLY if _is_costly(e) else 1 for e in work)


def _is_repeated(reader: Stage, stage: Stage) -> bool:
    """Whether the reader uses each value of `stage`, of two axes or more, at several points that are not lanes of one
    vector: for those one value is computed (`lower/passes/hoist_invariants.py`)."""
    if len(stage.op.axes) < 2 or not reader.op.axes:
        return False
    last = reader.op.axes[-1]
    is_in_lanes = any(last.var not in free_vars(x.indices[-1]) for x in reader.op.loads_from(*stage.op.buffers))
    return not (is_in_lanes and extent(last) > SHORT_ROW) and points(reader) > points(stage)


def is_worth_precomputing(state: State, stage: Stage) -> bool:
    """Return whether the stage is arithmetic on inputs with far fewer points than its readers.

    The scale and the shift of a normalisation are: they are computed once, before the kernel.
    """
    plain = stage.op.is_elementwise and not is_copy(stage) and bool(stage.op.reads) and not has_condition(stage)
    readers = state.consumers(stage)
    if not plain or not readers or any(r.op.reducer is not None for r in readers):
        return False
    if MIN_REPEATS * points(stage) > max(points(r) for r in readers):
        return False
    producers = [p for b in stage.op.reads if (p := state.producer(b)) is not None]
    return all(p.op.is_elementwise and points(p) <= points(stage) and not state.is_output(p) for p in producers)


def prepares_weights(state: State, stage: Stage) -> bool:
    """Return whether the stage depends on weights alone and feeds a stage that does not.

    A stage that only repeats its weights, a broadcast, does not count.
    """
    if not state.is_constant(stage) or all(state.is_constant(r) for r in state.consumers(stage)):
        return False
    return points(stage) <= MAX_GROWTH * sum(math.prod(buffer_shape(state, name)) for name in stage.op.reads)


def index_divisors(stage: Stage, axis: StageAxis) -> set[int]:
    """Return the divisors of index expressions, and of comparisons of indices, that contain the axis."""
    nodes = (e for v in stage.op.body for e in subexpressions(v))
    divisions = (
        e for e in nodes if isinstance(e, Binary) and e.op in ("mod", "floordiv") and axis.var in free_vars(e.a)
    )
    return {int(e.b.value) for e in divisions if isinstance(e.b, Const) and not loads(e.a)}


def switch_axes(stage: Stage) -> tuple[str, ...]:
    """Return the short axes that a select compares with constants: unrolled, selects fold (Winograd's transforms)."""
    compared: set[Expr] = set()
    for value in stage.op.body:
        for e in subexpressions(value):
            if isinstance(e, Binary) and e.op == "eq" and isinstance(e.b, Const):
                compared.add(e.a)
    return tuple(a.name for a in stage.op.axes if a.var in compared and extent(a) <= MAX_SWITCH)


def would_lose_switch(stage: Stage, readers: tuple[Stage, ...]) -> bool:
    """Return whether inlining `stage` would leave a switch axis as an index of a loop that is not unrolled."""
    short = set(switch_axes(stage))
    dims = [n for n, a in enumerate(stage.op.axes) if a.name in short]
    reads = [x for r in readers for x in r.op.loads_from(*stage.op.buffers)]
    return any(not isinstance(x.indices[d], Var) for x in reads for d in dims)

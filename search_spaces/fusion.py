"""What may happen to a stage as a whole: inlined into its readers, fused to a reduction, or stored.

Inlining saves a pass over memory. It does not pay where a value would be computed again and again, where a transform
would lose its switch, or where the expression would grow too large.
"""

from __future__ import annotations

import math

from autosched.ir.expr import Binary, Call, Const, Expr, Load, Select, Var
from autosched.ir.instructions.dots import Word
from autosched.ir.visit import depth, free_vars, is_data, is_gathered, loads, subexpressions
from autosched.schedule import Stage, State
from autosched.schedule.stage import StageAxis
from autosched.schedule.steps.stages import places_in
from autosched.te.checks import MAX_DEPTH
from autosched.te.rewrites.prefix_scan import find_prefix_scan
from search_spaces.access import buffer_shape, extent, points

EXPENSIVE = frozenset({"exp", "exp_negative", "log", "tanh", "erf", "sigmoid", "sin", "cos", "sqrt", "rsqrt"})
MAX_SWITCH = 16  # iterations of an axis that selects what is computed
MIN_REPEATS = 16  # how often arithmetic on parameters would be repeated, for it to be done once beforehand
MOST_NODES = 4096  # of an expression: inlined stages that read one another at two places double it each time
COSTLY = 8  # additions that take as long as a division or one of `EXPENSIVE`
WORTH_STORING = 1.5  # times the work of storing values and reading them that computing them where they are read takes
MAX_GROWTH = 4  # times the elements of the weights that it comes from: Winograd's transforms, but no broadcasting


def fused_consumer(state: State, stage: Stage) -> Stage | None:
    """The one elementwise stage that reads `stage` point by point, and is its only reader (Ansor's R4); else None."""
    consumers = state.consumers(stage)
    if len(consumers) != 1 or state.is_output(stage) or consumers[0].op.reducer is not None:
        return None
    consumer = consumers[0]
    found = consumer.op.loads_from(*stage.op.buffers)
    axes = tuple(a.var for a in consumer.op.axes)
    same = all(x.indices == axes for x in found)
    shapes = [extent(a) for a in stage.op.axes] == [extent(a) for a in consumer.op.axes]
    return consumer if same and shapes else None


def turned_consumer(state: State, stage: Stage) -> Stage | None:
    """The one elementwise stage that reads `stage`, as its only reader, with its axes in another order; else None."""
    consumers = state.consumers(stage)
    if len(consumers) != 1 or state.is_output(stage) or consumers[0].op.reducer is not None:
        return None
    places = places_in(consumers[0], stage)
    is_turned = places != consumers[0].op.axes and list(map(extent, places)) == list(map(extent, stage.op.axes))
    return consumers[0] if is_turned else None


def is_continued(state: State, stage: Stage) -> bool:
    """Whether a reader goes on with the reduction `stage`; what is fused to the stage may stand in between."""
    whole = fused_consumer(state, stage) or stage
    readers = (r.op for r in state.consumers(whole) if r.op.reducer is stage.op.reducer)
    return any(all(isinstance(v, Load) and v.buffer in whole.op.buffers for v in op.body) for op in readers)


def feeds_continuation(state: State, stage: Stage) -> bool:
    """Whether the stage is fused to a reduction that another stage goes on with (`is_continued`)."""
    return any(fused_consumer(state, s) is stage and is_continued(state, s) for s in state.stages if s.op.reducer)


def feeds_padding(state: State, stage: Stage) -> bool:
    """Whether the stage is fused to a reduction, and all that its readers do is to move its values or put others in
    their place, as padding does: where these are read, it would be computed for each window that has them."""
    readers = state.consumers(stage)
    if not readers or not all(map(has_condition, readers)) or not all(map(_only_moves, readers)):
        return False
    return any(fused_consumer(state, s) is stage for s in state.stages if s.op.reducer is not None)


def _only_moves(stage: Stage) -> bool:
    return stage.op.reducer is None and all(
        isinstance(e, (Load, Const)) for v in stage.op.body if isinstance(v, Select) for e in (v.a, v.b)
    )


def feeds_readers_of_scan(state: State, stage: Stage) -> bool:
    """Whether the stage is fused to a prefix scan in blocks, and its readers index the results in another way."""
    inner = (s for s in state.stages if find_prefix_scan(s.op) is not None)
    return fused_consumer(state, stage) is None and any(fused_consumer(state, s) is stage for s in inner)


def is_copy(stage: Stage) -> bool:
    """Whether the stage moves data without arithmetic or conditions: a transpose, a slice, a broadcast."""
    return stage.op.reducer is None and all(isinstance(v, Load) for v in stage.op.body)


def is_words(stage: Stage) -> bool:
    """Whether the stage moves data into words, and does nothing else."""
    return stage.op.reducer is None and all(isinstance(v, Word) for v in stage.op.body)


def has_condition(stage: Stage) -> bool:
    """Whether the stage computes different things at different points, as padding does."""
    return any(isinstance(e, Select) for v in stage.op.body for e in subexpressions(v))


def has_indirect_read(stage: Stage) -> bool:
    """Whether the stage reads something at indices that are data."""
    return any(map(is_gathered, stage.op.loads))


def is_read_indirectly(state: State, stage: Stage) -> bool:
    """Whether data say which points of the stage are read: no task can compute just those that it needs."""
    found = [x for r in state.consumers(stage) for x in r.op.loads_from(*stage.op.buffers)]
    return any(is_data(i) for x in found for i in x.indices)


def is_expensive(stage: Stage) -> bool:
    """Whether the stage divides or calls a function of `EXPENSIVE`; index arithmetic does not count."""
    return any(_is_costly(e) and not _is_index(e) for v in stage.op.body for e in subexpressions(v))


def _is_costly(e: Expr) -> bool:
    return (isinstance(e, Call) and e.fn in EXPENSIVE) or (
        isinstance(e, Binary) and e.op in ("pow", "div", "mod", "floordiv", "fmod")
    )


def _is_index(e: Expr) -> bool:
    return e.dtype == "int64" and not loads(e)


def is_too_large_inlined(state: State, stage: Stage) -> bool:
    """Whether a reader would become longer or deeper than the passes can handle if `stage` were inlined."""
    deepest = max(map(depth, stage.op.body))
    nodes = sum(len(list(subexpressions(v))) for v in stage.op.body)
    for reader in state.consumers(stage):
        length = sum(len(list(subexpressions(v))) for v in reader.op.body)
        length += nodes * len(reader.op.loads_from(*stage.op.buffers))
        if length > MOST_NODES or deepest + max(map(depth, reader.op.body)) > MAX_DEPTH:
            return True
    return False


def would_be_recomputed(state: State, stage: Stage) -> bool:
    """Whether a reader would compute expensive values of the stage again and again.

    It has many more points than the stage, and they are not the points of its rows, for which values are computed once.
    """
    if not is_expensive(stage):
        return False
    many = [r for r in state.consumers(stage) if points(r) >= MIN_REPEATS * points(stage)]
    found = [(r, x) for r in many for x in r.op.loads_from(*stage.op.buffers)]
    return any(x.indices != tuple(a.var for a in r.op.axes[: len(x.indices)]) for r, x in found)


def is_cheaper_stored(state: State, stage: Stage) -> bool:
    """Whether the stage's values are better stored than computed again for each reader.

    A step in time of a stencil, for example, reads several elements of the step before for each of its own.
    """
    readers = [(r, len(set(r.op.loads_from(*stage.op.buffers)))) for r in state.consumers(stage)]
    if all(places < 2 for _, places in readers):
        return False
    work = [e for v in stage.op.body for e in subexpressions(v) if not _is_index(e) and not isinstance(e, Const)]
    operations = sum(COSTLY if _is_costly(e) else 1 for e in work)
    needed = sum(points(r) * places for r, places in readers)
    return needed * operations > WORTH_STORING * (points(stage) * (operations + 1) + needed)


def is_worth_precomputing(state: State, stage: Stage) -> bool:
    """Whether the stage is arithmetic on inputs with far fewer points than its readers.

    The scale and the shift of a normalisation are: they are computed once, beforehand.
    """
    plain = stage.op.reducer is None and not is_copy(stage) and bool(stage.op.reads) and not has_condition(stage)
    readers = state.consumers(stage)
    if not plain or not readers or any(r.op.reducer is not None for r in readers):
        return False
    if MIN_REPEATS * points(stage) > max(points(r) for r in readers):
        return False
    producers = [p for b in stage.op.reads if (p := state.producer(b)) is not None]
    return all(p.op.reducer is None and points(p) <= points(stage) and not state.is_output(p) for p in producers)


def prepares_weights(state: State, stage: Stage) -> bool:
    """Whether the stage is made of weights alone, and feeds a stage that is not.

    One that only repeats its weights, a broadcast, does not count.
    """
    if not state.is_constant(stage) or all(state.is_constant(r) for r in state.consumers(stage)):
        return False
    return points(stage) <= MAX_GROWTH * sum(math.prod(buffer_shape(state, name)) for name in stage.op.reads)


def index_divisors(stage: Stage, axis: StageAxis) -> set[int]:
    """The numbers by which indices, and comparisons of indices, divide an expression of the axis."""
    nodes = (e for v in stage.op.body for e in subexpressions(v))
    divisions = (
        e for e in nodes if isinstance(e, Binary) and e.op in ("mod", "floordiv") and axis.var in free_vars(e.a)
    )
    return {int(e.b.value) for e in divisions if isinstance(e.b, Const) and not loads(e.a)}


def switch_axes(stage: Stage) -> tuple[str, ...]:
    """The short axes that a select compares with constants. Unrolled, the selects fold: Winograd's transforms."""
    compared: set[Expr] = set()
    for value in stage.op.body:
        for e in subexpressions(value):
            if isinstance(e, Binary) and e.op == "eq" and isinstance(e.b, Const):
                compared.add(e.a)
    return tuple(a.name for a in stage.op.axes if a.var in compared and extent(a) <= MAX_SWITCH)


def would_lose_switch(stage: Stage, readers: tuple[Stage, ...]) -> bool:
    """Whether a reader would use a switch axis as an index that no loop unrolls, if `stage` were inlined."""
    short = set(switch_axes(stage))
    dims = [n for n, a in enumerate(stage.op.axes) if a.name in short]
    found = [x for r in readers for x in r.op.loads_from(*stage.op.buffers)]
    return any(not isinstance(x.indices[d], Var) for x in found for d in dims)

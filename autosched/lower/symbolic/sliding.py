"""Sliding: along a loop, a stage computes only the rows that no earlier iteration computed.

    for i:  A at rows i - 1, i, i + 1; Y[i] from them      becomes      for i:  A at row i + 1, which is kept; Y[i]

Readers read some consecutive rows in an iteration, and in the next one as many rows further on, of which the last ones
are new. The buffer is folded: it has room for the rows of an iteration, and a row is stored at its number modulo these.
Before the first iteration, which reads more than its new rows, a few run in which only the sliding stages compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from autosched.errors import ScheduleError
from autosched.ir.conditions import border_reads
from autosched.ir.expr import Binary, Expr, Load, Var, binary, ceildiv, imax, imin
from autosched.ir.linear import ONE, ZERO, Interval, combined, interval, is_negative, linear
from autosched.ir.stmt import ForKind
from autosched.ir.visit import free_vars, is_number, substitute
from autosched.lower.symbolic.regions import Domain, Region, SlidingRows
from autosched.schedule.stage import Stage, StageAxis, StageOp
from autosched.schedule.state import State, directly_read_by


def sliding_region(
    state: State, stage: Stage, domains: Mapping[str, Domain], ranging: Mapping[Var, Expr]
) -> dict[str, Region]:
    """Return the region of the axis along which a stage computes only what no earlier iteration computed, by its name.

    `domains`: of its readers. `ranging`: the bounds of the loops that vary in an iteration. Raises ScheduleError where
    an iteration does not read the next rows of one dimension.
    """
    assert stage.at is not None
    around = state.stage(stage.at.stage).loop(stage.at.loop)
    is_serial = around.kind is ForKind.SERIAL and not state.on_gpu(stage)
    _check(is_serial, f"loop {around.name} of {stage.at.stage} is not serial")
    loop, shape = domains[stage.at.stage].loop_var(around), tuple(a.extent for a in stage.op.axes)
    readers = directly_read_by(state, stage)
    reads = [r for reader in readers for r in _reads(state, stage, reader, domains, ranging)]
    dims = {r.dim for r in reads if r.rows is not None}
    _check(len(dims) == 1, "not one index moves along the loop")
    (dim,) = dims
    for read in reads:
        if read.rows is None:
            is_border = (read.load, dim) in border_reads(read.reader.body, frozenset(stage.op.buffers), shape)
            _check(is_border and len(read.along) == 1, "an index does not move along the loop")
            _check_border(read, stage.op.buffers, dim, shape[dim])
    found = _sliding_rows([(r.rows, r.ahead) for r in reads if r.rows is not None], loop)
    lo, rows = imax(found.new.lo, ZERO), found.new.extent
    limit = imin(found.new.lo + rows, shape[dim]) - lo
    return {stage.op.axes[dim].name: Region(lo, rows, limit, shape[dim], sliding=found, unclipped=found.new)}


def iterations_ahead(state: State, stage: Stage, domains: Mapping[str, Domain], regions: Mapping[str, Region]) -> Expr:
    """Return how many iterations of the loop around it a stage runs before the first: as many as its readers, or as
    many as give it the rows that the first one reads."""
    own = [r.sliding.ahead for r in regions.values() if r.sliding is not None]
    return most([*own, *(_ahead_of(state, r, stage, domains) for r in state.consumers(stage))])


def _ahead_of(state: State, reader: Stage, stage: Stage, domains: Mapping[str, Domain]) -> Expr:
    """Return how many iterations of the loop around `stage` its reader runs before the first: none, or as many as the
    stage has in whose loops the reader is computed."""
    while reader.at is not None and reader.at != stage.at:
        reader = state.stage(reader.at.stage)
    return ZERO if reader.at is None else domains[reader.name].ahead


def reached(
    state: State, reader: Domain, domains: Mapping[str, Domain], ranging: Mapping[Var, Expr]
) -> tuple[dict[Expr, Expr], dict[Var, Expr]]:
    """Return the values of a reader's axes, and the ranges of what they vary with.

    Loops over a whole region end with it, though together they could reach further: a row in vectors, of which the last
    one is shorter. A stage that slides along a loop begins ahead of its first iteration.
    """
    values, ranges = dict(reader.values), dict(ranging)
    for axis in reader.stage.op.axes:
        region, loops = reader.regions[axis.name], [x for x in reader.stage.loops if axis.name in dict(x.parts)]
        is_whole = len(loops) > 1 and all(reader.loop_var(x) in ranging for x in loops)
        if is_whole and not region.digits and not region.backwards and axis.name not in dict(reader.stage.whole):
            values[axis.var], ranges[axis.var] = region.lo + axis.var, region.extent
    stage = reader.stage
    while stage.at is not None:
        ahead, host = domains[stage.name].ahead, state.stage(stage.at.stage)
        loop = domains[host.name].loop_var(host.loop(stage.at.loop))
        if loop in ranging and ahead is not ZERO:
            values = {axis: substitute(value, {loop: loop - ahead}) for axis, value in values.items()}
            ranges[loop] = ranges[loop] + ahead
        stage = host
    return values, ranges


@dataclass(frozen=True)
class _Read:
    """A read of a stage. `rows`: those that an iteration of the reader reaches in dimension `dim`, not clipped, where
    an index moves along the loop. `along`: the axes of the reader that move. `ahead`: its iterations before the first.
    """

    reader: StageOp
    load: Load
    along: tuple[StageAxis, ...]
    ahead: Expr
    dim: int = -1
    rows: Interval | None = None


def _reads(
    state: State, stage: Stage, reader: Stage, domains: Mapping[str, Domain], ranging: Mapping[Var, Expr]
) -> Iterator[_Read]:
    """Yield the reads of a stage by a reader, one for each index that moves along the loop around the stage."""
    assert stage.at is not None
    loop = domains[stage.at.stage].loop_var(state.stage(stage.at.stage).loop(stage.at.loop))
    domain = domains[reader.name]
    values, ranges = reached(state, domain, domains, ranging)
    ahead = _ahead_of(state, reader, stage, domains)
    for axis in reader.op.axes:
        inner = domain.regions[axis.name].sliding
        if inner is not None:
            values[axis.var], ranges[axis.var] = inner.new.lo + axis.var, inner.new.extent
    along = tuple(a for a in reader.op.axes if loop in free_vars(values[a.var]))
    if reader.name == stage.at.stage:  # an iteration has as many rows as it steps over, if not fewer at the end
        ((_, level),) = reader.loop(stage.at.loop).parts
        for axis in along:
            rows = interval(values[axis.var], ranges)
            values[axis.var] = rows.lo + axis.var
            ranges[axis.var] = _at_most(rows.extent, reader.stride(axis.name, level))
    for load in reader.op.loads_from(*stage.op.buffers):
        places = {n: substitute(i, values) for n, i in enumerate(load.indices)}
        moving = {n: place for n, place in places.items() if loop in free_vars(place)}
        for n, place in moving.items():
            yield _Read(reader.op, load, along, ahead, n, interval(place, ranges))
        if not moving:
            yield _Read(reader.op, load, along, ahead)


def _at_most(extent: Expr, step: Expr) -> Expr:
    """`extent` with equal terms added up, or a bound of it that is shorter to write."""
    extent = combined(extent)
    is_bounded = isinstance(extent, Binary) and extent.op == "min" and step in (extent.a, extent.b)
    return step if is_bounded else extent


def _sliding_rows(readings: Sequence[tuple[Interval, Expr]], loop: Var) -> SlidingRows:
    """Return the rows of a stage along `loop`: of those that iterations of its readers read, each with how many of
    these run before the first.

    Raises ScheduleError unless all move by the same positive number of rows, at constant distances.
    """
    start = linear(readings[0][0].lo)
    step = start.coefficient(loop)
    is_linear = all(loop not in free_vars(a) for a, _ in start.terms if a is not loop)
    _check(is_linear, "it is not read row by row")
    _check(step is not ZERO and not is_negative(step), "it is not read forward")
    low, high, needed = list[Expr](), list[Expr](), dict[Expr, list[Expr]]()
    for rows, _ in readings:
        distance = linear(rows.lo - readings[0][0].lo)
        _check(not distance.terms, "it is read at different steps")
        low.append(combined(distance.constant))
        high.append(combined(distance.constant + rows.extent))
    end = most(high)
    for first, (_, before) in zip(low, readings, strict=True):
        needed.setdefault(before, []).append(combined(end - first))
    ahead = most([ceildiv(most(rows), step) + (before - ONE) for before, rows in needed.items()])
    kept = most([combined(end - reduce(lambda a, b: either("min", a, b), low)), step])
    return SlidingRows(Interval(start.plus(combined(end - step)), step), kept, ahead)


def _check_border(read: _Read, buffers: Sequence[str], dim: int, extent: Expr) -> None:
    """Raise ScheduleError unless the row at a border that clamped indices read is kept wherever it is read.

    `extent`: of the rows in dimension `dim`. At each point of the reader, some index has to be at least the first row,
    so that this has been computed, and some index at most the last one, so that no strip begins after it.
    """
    (along,), border, last = read.along, read.load.indices[dim], extent - ONE
    forms = [linear(x.indices[dim]) for x in read.reader.loads_from(*buffers) if free_vars(x.indices[dim])]
    offsets = [f.constant.number for f in forms if is_number(f.constant)]
    is_plain = len(offsets) == len(forms) and all([a for a, _ in f.terms] == [along.var] for f in forms)
    _check(is_plain and bool(forms), "a clamped index is not an axis and a number")
    room = linear(last - (along.extent - ONE) * forms[0].coefficient(along.var)).constant
    is_first = is_number(border) and border.number == 0
    _check(not is_first or max(offsets) >= 0, "the first row is read before it is computed")
    is_near = is_number(room) and room.number >= min(offsets)
    _check(border is not last or is_near, "the last row is read long after it was computed")


def most(values: Sequence[Expr]) -> Expr:
    """Return the largest of some closed forms."""
    return reduce(lambda a, b: either("max", a, b), dict.fromkeys(values))


def either(op: str, a: Expr, b: Expr) -> Expr:
    """Return the smaller (`op` "min") or the larger of two closed forms: one of them where they differ by a number."""
    form = linear(a - b)
    difference = combined(form.constant)
    if form.terms or not is_number(difference):
        return binary(op, a, b)
    return b if (difference.number < 0) is (op == "max") else a


def _check(is_legal: bool, why: str) -> None:
    if not is_legal:
        raise ScheduleError(f"a stage cannot slide along its loop: {why}")

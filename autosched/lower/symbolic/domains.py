"""Bounds inference: the region of every stage, in closed form, consumers first.

A stage at the root covers its whole shape. A stage computed inside a loop covers the elements that its readers access
there: with the enclosing loops fixed and all others ranging, each index runs over an interval (`ir.linear.interval`);
the readers' intervals are united and clipped to the shape, or, where an index is an axis of the reader, to the reader's
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from autosched.ir.conditions import border_reads
from autosched.ir.expr import INDEX, Binary, Const, Expr, Load, Var, ceildiv, imax, imin, product
from autosched.ir.linear import ONE, ZERO, Interval, combined, interval, is_negative, linear
from autosched.ir.stmt import THREADS, ForKind, Scope
from autosched.ir.visit import free_vars, is_number, substitute
from autosched.lower.symbolic.regions import BufferVersion, Digit, Domain, Region, Threads
from autosched.lower.symbolic.sliding import either, iterations_ahead, reached, sliding_region
from autosched.schedule.stage import At, Loop, Stage, closed
from autosched.schedule.state import State, directly_read_by


def part_bound(stage: Stage, region: Region, axis: str, level: int) -> Expr:
    """Return the closed-form trip count of one level of a split axis."""
    factors = stage.factors(axis)
    if level > len(factors) - dict(stage.whole).get(axis, 0):
        return closed(factors[level - 1])
    needed = ceildiv(region.extent, stage.stride(axis, level))
    return needed if level == 0 else _bound_of_both(closed(factors[level - 1]), needed)


def _bound_of_both(a: Expr, b: Expr) -> Expr:
    """Return the smaller bound, or, beside a size, the number: what is allocated and unrolled does not vary."""
    numbers = [e for e in (a, b) if is_number(e)]
    has_size = any(isinstance(e, Const) for e in (a, b) if not is_number(e))
    return numbers[0] if has_size and numbers and numbers[0].value != 1 else imin(a, b)


def _bound(stage: Stage, regions: Mapping[str, Region], loop: Loop) -> Expr:
    return product([part_bound(stage, regions[a], a, n) for a, n in loop.parts]) if loop.parts else closed(loop.count)


def digits(stage: Stage, regions: Mapping[str, Region], loop: Loop, var: Expr) -> list[tuple[str, int, Expr]]:
    """Return the value of each (axis, level) of the loop; a fused loop is decomposed by div and mod."""
    result: list[tuple[str, int, Expr]] = []
    inner: Expr = Const(1, INDEX)
    for n, (axis, level) in reversed(list(enumerate(loop.parts))):
        bound = part_bound(stage, regions[axis], axis, level)
        digit = var // inner
        result.append((axis, level, digit if n == 0 else digit % bound))
        inner = inner * bound
    return result[::-1]


def infer_domains(state: State, of: str = "") -> dict[str, Domain]:
    """Return the domain of every stage; with `of`, only of this stage and the stages that its domain depends on."""
    domains: dict[str, Domain] = {}
    ranges: dict[Var, Expr] = {}
    wanted = _followed(state, state.stage(of)) if of else None
    for stage in reversed(state.stages):
        if wanted is not None and stage.name not in wanted:
            continue
        if stage.at is None:
            domain = _at_root(stage)
        else:
            regions = _regions(state, stage, domains, ranges)
            threads = _threads(domains[state.root(stage).name]) if stage.is_spread else {}
            domain = _domain(stage, regions, _places(state, stage, domains), threads)
            domain = replace(domain, ahead=iterations_ahead(state, stage, domains, regions))
        domains[stage.name] = domain
        ranges.update((domain.loop_var(x), domain.bounds[x.name]) for x in stage.loops)
    return domains


def _followed(state: State, stage: Stage) -> set[str]:
    """Return the stages that the domain of `stage` depends on: itself, its readers and the stages around it, up to the
    root."""
    found, stack = {stage.name}, [stage]
    while stack:
        stage = stack.pop()
        if stage.at is not None:
            near = {s.name: s for s in (*state.consumers(stage), state.stage(stage.at.stage))}
            stack += [s for name, s in near.items() if name not in found]
            found.update(near)
    return found


@lru_cache(maxsize=256)  # partial sketches and sketches have most of these in common
def _at_root(stage: Stage) -> Domain:
    regions = _whole(stage)
    if stage.part is not None:
        at, end = closed(stage.part.at), regions[stage.part.axis].end
        lo, extent = (at, end - at) if stage.part.is_rest else (ZERO, at)
        regions[stage.part.axis] = Region(lo, extent, extent, lo + extent)
    return _domain(stage, regions)


def _threads(kernel: Domain) -> Threads:
    loops = [x for x in kernel.stage.loops if x.kind in THREADS]
    return {x.kind: (kernel.loop_var(x), kernel.bounds[x.name]) for x in loops}


def _domain(
    stage: Stage, regions: Mapping[str, Region], places: tuple[BufferVersion, ...] = (), threads: Threads | None = None
) -> Domain:
    around = threads or {}
    bounds = {x.name: around[x.kind][1] if x.kind in around else _bound(stage, regions, x) for x in stage.loops}
    domain = Domain(stage, regions, bounds, {}, places, around)
    local: dict[str, Expr] = {a.name: ZERO for a in stage.op.all_axes}
    for loop in stage.loops:
        for axis, level, digit in digits(stage, regions, loop, domain.loop_var(loop)):
            local[axis] = local[axis] + digit * stage.stride(axis, level)
    values: dict[Expr, Expr] = {
        a.var: regions[a.name].value(regions[a.name].visited(local[a.name])) for a in stage.op.all_axes
    }
    return replace(domain, values=values)


def pipelined_loops(state: State, stage: Stage) -> tuple[Loop, ...]:
    """Return the loops that number a pipeline's iterations, outermost first: its own, and reduction loops directly
    around it whose trip counts equal their bounds, so that iterations are numbered without gaps."""
    if stage.pipeline is None:
        return ()
    at = stage.position(stage.pipeline.loop)
    loops = [stage.loops[at]]
    for outer in reversed(stage.loops[:at]):
        hinted = any(hint.loop == outer.name for hint in stage.prefetches)
        alone = (
            outer.reduce and outer.kind is ForKind.SERIAL and not hinted and not state.attached(stage.name, outer.name)
        )
        if stage.op.guards or not alone or any(n > 0 for x in (outer, loops[0]) for _, n in x.parts):
            break
        loops.insert(0, outer)
    return tuple(loops)


def _places(state: State, stage: Stage, domains: Mapping[str, Domain]) -> tuple[BufferVersion, ...]:
    """Return the stage dimension of a pipeline's shared buffer: a copy for each iteration in flight."""
    host = None if stage.at is None else state.stage(stage.at.stage)
    if host is None or host.pipeline is None or stage.scope is not Scope.SHARED or stage.at is None:
        return ()
    if stage.at.loop != host.pipeline.loop:
        return ()
    domain, stages = domains[host.name], closed(host.pipeline.stages)
    number: Expr = ZERO
    for loop in pipelined_loops(state, host):
        number = number * domain.bounds[loop.name] + domain.loop_var(loop)
    return (BufferVersion(number % stages, stages),)


def _whole(stage: Stage) -> dict[str, Region]:
    regions = {a.name: Region(ZERO, a.extent, a.extent, a.extent) for a in stage.op.all_axes}
    return {**regions, **_along_recurrence(stage)}


def _along_recurrence(stage: Stage) -> dict[str, Region]:
    """Return the region along a recurrence: each position needs all before it, wherever the stage is computed."""
    axis, recurrence = stage.op.ordered_axis, stage.op.recurrence
    if axis is None or recurrence is None:
        return {}
    return {axis.name: Region(ZERO, axis.extent, axis.extent, axis.extent, backwards=recurrence.backwards)}


def _regions(
    state: State, stage: Stage, domains: Mapping[str, Domain], ranges: Mapping[Var, Expr]
) -> dict[str, Region]:
    whole, gpu = _whole(stage), state.on_gpu(stage)
    if stage.running:
        return {**whole, **_rows_of(state, stage, domains)}
    fixed = enclosing_vars(state, stage.at)
    if stage.scope in (Scope.SHARED, Scope.WARP):
        fixed -= thread_vars(state, stage)
    ranging = {v: b for v, b in ranges.items() if v not in fixed}
    reads: list[list[Interval | None]] = []  # of each read and axis; None: where another index is clamped
    ends: list[tuple[Expr | None, ...]] = []
    points = set(range(len(stage.op.axes)))  # axes along which every reader reads a single point, not yet clipped
    clamped = set[int]()  # axes along which an index is clamped to the axis
    shape = tuple(a.extent for a in stage.op.axes)
    for reader in directly_read_by(state, stage):
        domain = domains[reader.name]
        values, ranges = (dict(domain.values), dict(ranging)) if gpu else reached(state, domain, domains, ranging)
        at_border = border_reads(reader.op.body, frozenset(stage.op.buffers), shape)
        around = _around_clamped(reader, stage, at_border)
        reads += [[interval(values[around[n]], ranges) if n in around else None for n in range(len(shape))]]
        clamped |= {n for _, n in at_border if n not in around}
        for load in reader.op.loads_from(*stage.op.buffers):
            places = [substitute(i, values) for i in load.indices]
            points -= {n for n, place in enumerate(places) if not ranges.keys().isdisjoint(free_vars(place))}
            borders = [(load, n) in at_border for n in range(len(places))]
            reads.append([None if b else interval(p, ranges) for b, p in zip(borders, places, strict=True)])
            ends.append(tuple(_end(domains[reader.name], i, fixed) for i in load.indices))
    for n, axis in enumerate(stage.op.axes):
        united = _unite([part for r in reads if (part := r[n]) is not None])
        if united is not None and n in clamped:
            region = _clamped(united, axis.extent)
            whole[axis.name] = replace(region, limit=region.extent, is_cut=True) if gpu else region
        elif gpu and united is not None:  # threads run whole tiles; what is beyond an axis is never used
            whole[axis.name] = Region(united.lo, united.extent, united.extent, axis.extent)
        else:
            ended = {e[n] for e in ends}
            end = ended.pop() if len(ended) == 1 else None
            region = replace(_clip(united, axis.extent, axis.extent if end is None else end), is_cut=gpu)
            whole[axis.name] = replace(region, limit=ONE) if end is not None and n in points else region
    if gpu and stage.scope is Scope.REGISTER:
        whole.update(_compact(state, stage, domains, ranging))
    if stage.slides:
        whole.update(sliding_region(state, stage, domains, ranging))
    return {**whole, **_along_recurrence(stage)}


def _around_clamped(reader: Stage, stage: Stage, at_border: frozenset[tuple[Load, int]]) -> dict[int, Expr]:
    """Return the reader's axis along each dimension in which it clamps that axis plus a number, and `stage` is as long.

    A region that the axis' own values are added to has the clamped ones as well, wherever it begins: if the reader has
    a point in it, it reaches into the stage. So it need not be clamped, which would make regions of other readers
    incomparable."""
    found = dict[int, Expr]()
    for dim in {n for _, n in at_border}:
        indices = {x.indices[dim] for x in reader.op.loads_from(*stage.op.buffers) if free_vars(x.indices[dim])}
        moving = {linear(i).terms for i in indices}
        axis = next((a for a in reader.op.axes if moving == {((a.var, ONE),)}), None)
        if axis is not None:
            longer = combined(stage.op.axes[dim].extent - axis.extent)
            found |= {dim: axis.var} if is_number(longer) and longer.number >= 0 else {}
    return found


def _rows_of(state: State, stage: Stage, domains: Mapping[str, Domain]) -> dict[str, Region]:
    """Return the regions of a running maximum or sum: the rows of the weighted sum that it runs along with."""
    sums = state.stage(stage.running).at
    assert sums is not None
    domain = domains[sums.stage]
    rows = domain.stage.op.axes[: len(stage.op.axes)]
    return {a.name: domain.regions[b.name] for a, b in zip(stage.op.axes, rows, strict=True)}


def _end(reader: Domain, index: Expr, fixed: set[Var]) -> Expr | None:
    """Return an upper bound of an index that is an axis of the reader: the end of the reader's region or of the axis,
    whichever depends only on the variables `fixed`."""
    name = next((a.name for a in reader.stage.op.all_axes if a.var is index), None)
    if name is None or reader.regions[name].digits:
        return None
    region = reader.regions[name]
    return next((e for e in (region.lo + region.limit, region.end) if free_vars(e) <= fixed), None)


def thread_vars(state: State, stage: Stage) -> set[Var]:
    """Return the variables of the thread loops around a stage."""
    root = state.root(stage)
    return {Var(f"{root.name}.{x.name}") for x in root.loops if x.kind in THREADS}


def _compact(
    state: State, stage: Stage, domains: Mapping[str, Domain], ranging: Mapping[Var, Expr]
) -> dict[str, Region]:
    """Return regions of only a thread's points in registers: an axis that the reader steps through in several loops is
    stored as the digits of these loops."""
    reader, *more = directly_read_by(state, stage)
    if more:
        return {}
    values: dict[Expr, Expr] = dict(domains[reader.name].values)
    load, *others = reader.op.loads_from(*stage.op.buffers)
    if any(x.indices != load.indices for x in others):  # a stage of several values is read at one point
        return {}
    result: dict[str, Region] = {}
    for axis, index in zip(stage.op.axes, load.indices, strict=True):
        form = linear(substitute(index, values))
        moving = [(a, c) for a, c in form.terms if isinstance(a, Var) and a in ranging]
        if len(moving) < 2 and all(c is ONE for _, c in moving):  # neighbours already
            continue
        lo: Expr = form.constant
        for atom, c in form.terms:
            lo = lo if (atom, c) in moving else lo + atom * c
        digits: list[Digit] = []
        inner: Expr = ONE
        for var, c in reversed(moving):
            digits.insert(0, Digit(var, ranging[var], c, inner))
            inner = inner * ranging[var]
        result[axis.name] = Region(lo, inner, inner, axis.extent, tuple(digits))
    return result


def enclosing_vars(state: State, at: At | None) -> set[Var]:
    """The loop variables that stand still inside the place `at`."""
    fixed: set[Var] = set()
    while at is not None:
        stage = state.stage(at.stage)
        fixed |= {Var(f"{stage.name}.{x.name}") for x in stage.loops[: stage.position(at.loop) + 1]}
        at = stage.at
    return fixed


def _unite(parts: list[Interval]) -> Interval | None:
    """The union of intervals that differ by constants; None (the whole dimension) when they move apart."""
    forms = [linear(p.lo) for p in parts]
    if any(dict(f.terms) != dict(forms[0].terms) for f in forms):
        return None
    lo = forms[0].constant
    hi = lo + parts[0].extent
    for form, part in zip(forms[1:], parts[1:], strict=True):
        lo = either("min", lo, form.constant)
        hi = either("max", hi, form.constant + part.extent)
    return Interval(parts[0].lo - forms[0].constant + lo, hi - lo)


def _clip(part: Interval | None, extent: Expr, end: Expr) -> Region:
    """The part of an axis of `extent` points, which its readers follow to `end` at most."""
    if part is None:
        return Region(ZERO, extent, extent, extent)
    size = _bound_of_both(part.extent, extent)
    if _is_nonnegative(part.lo):
        return Region(part.lo, size, imin(size, end - part.lo), end, unclipped=part)
    lo = imax(part.lo, ZERO)
    return Region(lo, size, imin(part.lo + part.extent, end) - lo, end, unclipped=part)


def _clamped(part: Interval, extent: Expr) -> Region:
    """The part of an axis from its first value to its last, each clamped to the axis."""
    last = extent - ONE
    lo = imin(imax(part.lo, ZERO), last)
    end = imin(imax(part.lo + (part.extent - ONE), ZERO), last) + ONE
    return Region(lo, _bound_of_both(part.extent, extent), end - lo, extent)


def _is_nonnegative(lo: Expr) -> bool:
    form = linear(lo)
    constant = form.constant
    positive = isinstance(constant, Const) and constant.value >= 0
    return positive and all(not is_negative(c) and _is_nonnegative_atom(a) for a, c in form.terms)


def _is_nonnegative_atom(atom: Expr) -> bool:
    match atom:
        case Var() | Binary(op="mod"):
            return True
        case Binary(op="max", a=a, b=b):
            return _is_nonnegative(a) or _is_nonnegative(b)
        case Binary(op="floordiv", a=a):
            return _is_nonnegative(a)
    return False

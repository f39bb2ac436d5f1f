"""Bounds inference: the region of every stage, in closed form, consumers first.

A stage at the root covers its whole shape. A stage computed inside a loop covers what its readers
touch there: with the loops around that place fixed and all others ranging, each index runs over an
interval (`ir.linear.interval`); the readers' intervals are united and clipped to the shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosched.ir.expr import INDEX, Binary, Const, Expr, Load, Var, ceildiv, imax, imin, product
from autosched.ir.linear import ZERO, Interval, interval, is_negative, linear
from autosched.ir.visit import loads, substitute
from autosched.schedule.stage import At, Loop, Stage, closed
from autosched.schedule.state import State


@dataclass(frozen=True)
class Region:
    """Along one axis: values lo .. lo + limit - 1; `extent` is the closed-form upper bound of `limit`."""

    lo: Expr
    extent: Expr
    limit: Expr


@dataclass(frozen=True)
class Domain:
    """Where a stage runs: one region and value for each axis, one variable and bound for each loop."""

    stage: Stage
    regions: Mapping[str, Region]
    bounds: Mapping[str, Expr]  # loop name -> closed form
    values: Mapping[Expr, Expr]  # axis variable -> its value over the loop variables

    def loop_var(self, loop: Loop) -> Var:
        return Var(f"{self.stage.name}.{loop.name}")

    def origin(self) -> tuple[Expr, ...]:
        """The smallest index of each spatial dimension of the stage's buffer."""
        return tuple(self.regions[a.name].lo for a in self.stage.op.axes)


def part_bound(stage: Stage, region: Region, axis: str, level: int) -> Expr:
    """The closed-form trip count of one level of a split axis."""
    factors = stage.factors(axis)
    whole = ceildiv(region.extent, stage.stride(axis, level))
    return whole if level == 0 else imin(closed(factors[level - 1]), whole)


def digits(stage: Stage, regions: Mapping[str, Region], loop: Loop, var: Expr) -> list[tuple[str, int, Expr]]:
    """The value of each (axis, level) that the loop carries; a fused loop is taken apart by div and mod."""
    result: list[tuple[str, int, Expr]] = []
    inner: Expr = Const(1, INDEX)
    for n, (axis, level) in reversed(list(enumerate(loop.parts))):
        bound = part_bound(stage, regions[axis], axis, level)
        digit = var // inner
        result.append((axis, level, digit if n == 0 else digit % bound))
        inner = inner * bound
    return result[::-1]


def infer_domains(state: State) -> dict[str, Domain]:
    """The domain of every stage."""
    domains: dict[str, Domain] = {}
    ranges: dict[Var, Expr] = {}
    for stage in reversed(state.stages):
        regions = _regions(state, stage, domains, ranges)
        bounds = {x.name: product([part_bound(stage, regions[a], a, n) for a, n in x.parts]) for x in stage.loops}
        local: dict[str, Expr] = {a.name: ZERO for a in stage.op.all_axes}
        for loop in stage.loops:
            var = Var(f"{stage.name}.{loop.name}")
            ranges[var] = bounds[loop.name]
            for axis, level, digit in digits(stage, regions, loop, var):
                local[axis] = local[axis] + digit * stage.stride(axis, level)
        values: dict[Expr, Expr] = {a.var: regions[a.name].lo + local[a.name] for a in stage.op.all_axes}
        domains[stage.name] = Domain(stage, regions, bounds, values)
    return domains


def _regions(
    state: State, stage: Stage, domains: Mapping[str, Domain], ranges: Mapping[Var, Expr]
) -> dict[str, Region]:
    whole = {a.name: Region(ZERO, a.extent, a.extent) for a in stage.op.all_axes}
    if stage.at is None:
        return whole
    fixed = enclosing_vars(state, stage.at)
    ranging = {v: b for v, b in ranges.items() if v not in fixed}
    reads: list[tuple[Interval, ...]] = []
    for reader in state.consumers(stage):
        values: dict[Expr, Expr] = dict(domains[reader.name].values)
        for load in _loads_of(reader, stage):
            reads.append(tuple(interval(substitute(i, values), ranging) for i in load.indices))
    for n, axis in enumerate(stage.op.axes):
        whole[axis.name] = _clip(_unite([r[n] for r in reads]), axis.extent)
    return whole


def _loads_of(reader: Stage, producer: Stage) -> list[Load]:
    found = [x for v in reader.op.body for x in loads(v) if x.buffer in producer.op.buffers]
    return list(dict.fromkeys(found))


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
        lo = imin(lo, form.constant)
        hi = imax(hi, form.constant + part.extent)
    return Interval(parts[0].lo - forms[0].constant + lo, hi - lo)


def _clip(part: Interval | None, extent: Expr) -> Region:
    if part is None:
        return Region(ZERO, extent, extent)
    size = imin(part.extent, extent)
    if _is_nonnegative(part.lo):
        return Region(part.lo, size, imin(size, extent - part.lo))
    lo = imax(part.lo, ZERO)
    return Region(lo, size, imin(part.lo + part.extent, extent) - lo)


def _is_nonnegative(lo: Expr) -> bool:
    form = linear(lo)
    constant = form.constant
    positive = isinstance(constant, Const) and constant.value >= 0
    return positive and all(not is_negative(c) and _is_nonnegative_atom(a) for a, c in form.terms)


def _is_nonnegative_atom(atom: Expr) -> bool:
    match atom:
        case Var() | Binary(op="mod"):
            return True
        case Binary(op="floordiv", a=a):
            return _is_nonnegative(a)
    return False

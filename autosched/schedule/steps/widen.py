"""Steps Widen, Factor and Once: compute a common part of a stage once instead of at each use: conversions and factors
of operands of a sum of products, repeated parts of an elementwise stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import FLOAT_CALLS, Binary, Call, Cast, Expr, Load, Select, Var, binary, const
from autosched.ir.visit import free_vars, rebuild, subexpressions, substitute
from autosched.schedule.stage import Stage, StageAxis, StageOp
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.stages import check_untouched, dimensions, read_from, shape_of_buffer


@dataclass(frozen=True)
class Widen:
    """`stage` reads `buffer` as `buffer.tag`, a copy in the type that it converts it to; refused where it reads it as
    anything but one wider type."""

    stage: str
    buffer: str
    tag: str = "wide"

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"widen({self.stage}, {self.buffer})"
        check_untouched(where, state, stage)
        dtype = widened(stage.op).get(self.buffer)
        check(dtype is not None, f"{where}: {self.buffer} is not converted to one wider type in all places")
        assert dtype is not None
        name, axes = f"{self.buffer}.{self.tag}", dimensions(shape_of_buffer(state, self.buffer))

        def go(e: Expr) -> Expr:
            if isinstance(e, Cast) and isinstance(e.a, Load) and e.a.buffer == self.buffer:
                return Load(name, e.a.indices, e.dtype)
            return rebuild(e, go) if e.children else e

        source = next(e for v in stage.op.body for e in subexpressions(v) if _is_read(e, self.buffer))
        plain: Load = Load(self.buffer, tuple(a.var for a in axes), source.dtype)
        return read_from(where, state, stage, tuple(map(go, stage.op.body)), name, axes, Cast(plain, dtype))


@dataclass(frozen=True)
class Factor:
    """All factors of the products that `stage` sums up which depend on no axes but `axes` are read from the stage
    `buffer.tag`, their product, with a dimension for each of `axes`; refused where there is no such factor, or no
    other one."""

    stage: str
    buffer: str
    axes: tuple[str, ...]
    tag: str = "factor"

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"factor({self.stage}, {', '.join(self.axes)})"
        check_untouched(where, state, stage)
        axes = [stage.op.axis(name) for name in self.axes]
        inside = {a.var for a in axes}
        every = factors(stage.op)
        own = [f for f in every if free_vars(f) <= inside]
        others = [f for f in every if not free_vars(f) <= inside]
        check(bool(own and others) and not stage.op.guards, f"{where}: no product of these and of others is summed up")
        name = f"{self.buffer}.{self.tag}"
        read: Load = Load(name, tuple(a.var for a in axes), own[0].dtype)
        return _read_apart(where, state, stage, (_product([*others, read]),), name, axes, _product(own))


@dataclass(frozen=True)
class Once:
    """The first of the elementwise `stage`'s `repeated_parts` over `axes` is read from the stage `stage.tag`, which has
    a dimension for each of them; its reciprocal where it only divides. Refused where there is no such part."""

    stage: str
    axes: tuple[str, ...]
    tag: str = "once"

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"once({self.stage}, {', '.join(self.axes)})"
        check_untouched(where, state, stage)
        axes = [stage.op.axis(name) for name in self.axes]
        part = next((e for e in repeated_parts(stage.op) if free_vars(e) == {a.var for a in axes}), None)
        check(part is not None and not stage.op.guards, f"{where}: no part of it is over these axes alone")
        assert part is not None
        name = f"{self.stage}.{self.tag}"
        read: Load = Load(name, tuple(a.var for a in axes), part.dtype)
        divides = _only_divides(part, stage.op)

        def go(e: Expr) -> Expr:
            if divides and isinstance(e, Binary) and e.b is part:
                return binary("mul", go(e.a), read)
            return read if e is part else rebuild(e, go) if e.children else e

        value = binary("div", const(1, part.dtype), part) if divides else part
        return _read_apart(where, state, stage, tuple(map(go, stage.op.body)), name, axes, value)


def _read_apart(
    where: str, state: State, stage: Stage, body: tuple[Expr, ...], name: str, axes: Sequence[StageAxis], value: Expr
) -> State:
    """`stage` with `body`, which reads `value` of the stage's `axes` from a new stage `name` with these dimensions."""
    dims = dimensions(a.extent for a in axes)
    at: dict[Expr, Expr] = {a.var: d.var for a, d in zip(axes, dims, strict=True)}
    return read_from(where, state, stage, body, name, dims, substitute(value, at))


def _only_divides(part: Expr, op: StageOp) -> bool:
    """Whether its reciprocal is enough: 49 * (1 / 49) is less than 1, which nothing here takes for 0."""
    nodes = {e for v in op.body for e in subexpressions(v)}
    users = [e for e in nodes if part in e.children]
    smooth = part not in op.body and not any(map(_jumps, nodes))
    return smooth and all(isinstance(e, Binary) and e.op == "div" and e.a is not part for e in users)


def _jumps(e: Expr) -> bool:
    """Whether the least change of a float may make a large one."""
    rounds = isinstance(e, Call) and e.fn in ("floor", "ceil", "round")
    return rounds or (not DTYPES[e.dtype].is_float and any(DTYPES[x.dtype].is_float for x in e.children))


def repeated_parts(op: StageOp) -> tuple[Expr, ...]:
    """The largest parts of an elementwise stage that are computed in every case, from some of its axes alone, and only
    divide or have a root, an exponential or the like in them."""
    every, seen = {a.var for a in op.axes}, set[Expr]()
    return () if op.reducer is not None else tuple(e for v in op.body for e in _parts(v, op, every, seen))


def _parts(e: Expr, op: StageOp, every: set[Var], seen: set[Expr]) -> Iterator[Expr]:
    if e in seen or isinstance(e, Load | Select):
        return
    seen.add(e)
    if free_vars(e) < every and any(isinstance(x, Call) and x.fn in FLOAT_CALLS for x in subexpressions(e)):
        yield e
        return
    divisor = e.b if isinstance(e, Binary) and e.op == "div" and DTYPES[e.dtype].is_float else None
    if divisor is not None and divisor not in seen and free_vars(divisor) < every and _only_divides(divisor, op):
        seen.add(divisor)
        yield divisor
    for child in e.children:
        yield from _parts(child, op, every, seen)


def factors(op: StageOp) -> tuple[Expr, ...]:
    """Return the factors of the product that is summed up; none if the stage computes anything else."""
    if op.reducer is None or not op.reducer.is_sum or len(op.body) != 1:
        return ()

    def flat(e: Expr) -> tuple[Expr, ...]:
        return (*flat(e.a), *flat(e.b)) if isinstance(e, Binary) and e.op == "mul" else (e,)

    return flat(op.body[0])


def _product(parts: list[Expr]) -> Expr:
    return reduce(lambda a, b: binary("mul", a, b), parts)


def widened(op: StageOp) -> dict[str, str]:
    """Return the buffers that the stage converts to one wider type at each read, with that type."""
    reads: dict[str, set[str]] = {}

    def visit(e: Expr, to: str) -> None:
        if isinstance(e, Load):
            reads.setdefault(e.buffer, set()).add(to if DTYPES[to].nbytes > DTYPES[e.dtype].nbytes else e.dtype)
            narrow[e.buffer] = e.dtype
            return
        for child in e.children:
            visit(child, e.dtype if isinstance(e, Cast) else child.dtype)

    narrow: dict[str, str] = {}
    for value in op.body:
        visit(value, value.dtype)
    return {b: next(iter(types)) for b, types in reads.items() if len(types) == 1 and types != {narrow[b]}}


def _is_read(e: Expr, buffer: str) -> bool:
    return isinstance(e, Load) and e.buffer == buffer

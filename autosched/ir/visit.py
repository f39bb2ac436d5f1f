"""Visitors and rewriters of expressions and statements; each pass overrides only what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TypeGuard

from autosched.ir.bitcast import Bitcast, bitcast
from autosched.ir.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Select,
    Var,
    binary,
    call,
    cast,
    precision_of,
    select,
)
from autosched.ir.instructions.dots import Dot, Word
from autosched.ir.stmt import (
    Allocate,
    Barrier,
    Buffer,
    Commit,
    For,
    ForKind,
    If,
    Layout,
    Prefetch,
    Seq,
    Shuffle,
    Stmt,
    Store,
    TileCopy,
    Wait,
    changed,
)
from autosched.ir.symbolic import SymbolicInteger

KNOWN = 1 << 14  # expressions whose variables and loads are remembered: code generation asks for the same ones again


def rebuild(expr: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """`expr` with `fn` applied to its children; constants fold again."""
    match expr:
        case Binary(op=op, a=a, b=b):
            x, y = fn(a), fn(b)
            return expr if x is a and y is b else binary(op, x, y)
        case Call(fn=name, args=args):
            return call(name, *(fn(a) for a in args))
        case Select(cond=c, a=a, b=b):
            return select(fn(c), fn(a), fn(b))
        case Cast(a=a, dtype=dtype):
            return cast(fn(a), dtype)
        case Bitcast(a=a, dtype=dtype):
            return bitcast(fn(a), dtype)
        case Load(buffer=name, indices=indices, dtype=dtype):
            return Load(name, tuple(fn(i) for i in indices), dtype)
        case Word(parts=parts):
            return Word(tuple(fn(p) for p in parts))
        case Dot(intrinsic=name, a=a, b=b):
            return Dot(name, fn(a), fn(b))
    return expr


def bottom_up(expr: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """`expr` with `fn` applied to every node, children first; to what is shared once, or stages that read one another
    twice and are inlined would take twice as long each."""
    done: dict[Expr, Expr] = {}

    def go(e: Expr) -> Expr:
        new = done.get(e)
        if new is None:
            new = done[e] = fn(rebuild(e, go) if e.children else e)
        return new

    return go(expr)


def substitute(expr: Expr, mapping: Mapping[Expr, Expr], memo: dict[Expr, Expr] | None = None) -> Expr:
    """Replace every node that is a key of `mapping` (outermost first)."""
    table: dict[Expr, Expr] = {} if memo is None else memo

    def go(e: Expr) -> Expr:
        done = mapping.get(e)
        if done is None:
            done = table.get(e)
        if done is None:
            if isinstance(e, Binary):  # what most nodes are
                x, y = go(e.a), go(e.b)
                done = e if x is e.a and y is e.b else binary(e.op, x, y)
            else:
                done = rebuild(e, go) if e.children else e
            table[e] = done
        return done

    return go(expr)


def subexpressions(expr: Expr) -> Iterator[Expr]:
    """All distinct nodes of `expr`, outermost first."""
    seen = {expr}
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        for child in reversed(node.children):
            if child not in seen:
                seen.add(child)
                stack.append(child)


@lru_cache(maxsize=KNOWN)
def depth(expr: Expr) -> int:
    """How many nodes stand in one another at most."""
    return 1 + max(map(depth, expr.children), default=0)


@lru_cache(maxsize=KNOWN)
def free_vars(expr: Expr) -> frozenset[Var]:
    return frozenset(e for e in subexpressions(expr) if isinstance(e, Var))


@lru_cache(maxsize=KNOWN)
def named_params(expr: Expr) -> frozenset[str]:
    """The names of the parameters in a closed form."""
    return frozenset(e.name for e in subexpressions(expr) if isinstance(e, Param))


@lru_cache(maxsize=KNOWN)
def is_closed(expr: Expr) -> bool:
    """Whether only constants and parameters occur."""
    return not any(isinstance(e, (Var, Load)) for e in subexpressions(expr))


@lru_cache(maxsize=KNOWN)
def loads(expr: Expr) -> tuple[Load, ...]:
    return tuple(e for e in subexpressions(expr) if isinstance(e, Load))


_INDEX_OPS = frozenset({"add", "sub", "min", "max"})


@lru_cache(maxsize=KNOWN)
def is_data(index: Expr) -> bool:
    """Whether an index is, or is computed as, data are: of more than sums, quotients and extremes of loop variables.
    What stands for an element where its stage is inlined need not read one."""
    return not all(_is_of_loops(e) for e in subexpressions(index))


def _is_of_loops(e: Expr) -> bool:
    match e:
        case Const() | Var() | Param() | Call(fn="neg"):
            return True
        case Binary(op="mul", a=a, b=b):
            return is_closed(a) or is_closed(b)
        case Binary(op="floordiv" | "mod" | "ceildiv", b=b):
            return is_closed(b)
        case Binary(op=op):
            return op in _INDEX_OPS
    return False


@lru_cache(maxsize=KNOWN)
def is_gathered(load: Load) -> bool:
    """Whether an index of the load is data."""
    return any(map(is_data, load.indices))


def elements(value: Expr) -> Iterator[Expr]:
    """The distinct nodes of `value`, without those of indices."""
    seen = {value}
    stack = [value]
    while stack:
        node = stack.pop()
        yield node
        children = () if isinstance(node, Load) else node.children
        stack.extend(child for child in children if child not in seen)
        seen.update(children)


def moved(value: Expr) -> tuple[Load, Expr | None] | None:
    """The element that a value is, and the condition without which it is zero; None for anything else."""
    match value:
        case Load():
            return value, None
        case Select(cond=cond, a=a, b=Const(value=other)) if str(other) in ("0", "0.0"):
            element = moved(a)
            if element is None or (element[1] is not None and loads(element[1])):  # read only where `cond` holds
                return None
            return element[0], cond if element[1] is None else cond & element[1]
    return None


def is_copy(store: Store, outside: Callable[[str], bool]) -> bool:
    """Whether what is stored are elements of global memory (buffers that are `outside`), or zeros, in one type."""
    element = moved(store.values[0]) if len(store.values) == 1 else None
    return element is not None and store.reducer is None and outside(element[0].buffer)


def reduces_lanes(loop: For) -> bool:
    """Whether the loop is one store that all lanes update together."""
    store = loop.body
    return (
        isinstance(store, Store)
        and store.reducer is not None
        and not any(loop.var in free_vars(i) for i in store.indices)
    )


def is_number(expr: Expr) -> TypeGuard[Const]:
    """Whether an integer expression is known when code is generated, which sizes are not."""
    return isinstance(expr, Const) and not isinstance(expr.value, SymbolicInteger)


def vector_tile(stmt: Stmt) -> tuple[list[tuple[Var, int]], For] | None:
    """The unrolled loops from `stmt` on with their extents, and the vectorised one directly inside; None without it."""
    unrolled: list[tuple[Var, int]] = []
    while isinstance(stmt, For) and stmt.kind is ForKind.UNROLL and is_number(stmt.extent):
        unrolled.append((stmt.var, stmt.extent.number))
        stmt = stmt.body
    if isinstance(stmt, For) and stmt.kind is ForKind.VECTORIZE and is_number(stmt.extent):
        return unrolled, stmt
    return None


def _mapped(exprs: tuple[Expr, ...], fn: Callable[[Expr], Expr]) -> tuple[Expr, ...]:
    """`fn` of each; the tuple itself where that changes none."""
    mapped = tuple(map(fn, exprs))
    return exprs if mapped == exprs else mapped


def map_layout(layout: Layout | None, fn: Callable[[Expr], Expr]) -> Layout | None:
    if layout is None:
        return None
    pad = None if layout.pad is None else fn(layout.pad)
    tiles = tuple((dim, fn(factor)) for dim, factor in layout.tiles)
    return changed(layout, tiles=layout.tiles if tiles == layout.tiles else tiles, pad=pad)


def map_buffer(buffer: Buffer, fn: Callable[[Expr], Expr]) -> Buffer:
    return changed(buffer, shape=_mapped(buffer.shape, fn), layout=map_layout(buffer.layout, fn))


def map_exprs(stmt: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """`stmt` with `fn` applied to every expression in it (extents, bounds, indices, values, shapes).

    A statement that this changes nothing in is returned itself, unless it is a sequence or a branch.
    """
    match stmt:
        case For():
            overlap = None if stmt.overlap is None else changed(stmt.overlap, stages=fn(stmt.overlap.stages))
            body = map_exprs(stmt.body, fn)
            resident = None if stmt.resident is None else fn(stmt.resident)
            raster = None if stmt.raster is None else fn(stmt.raster)
            share = stmt.sharing
            if share is not None:
                share = changed(share, down=fn(share.down), across=fn(share.across), turns=fn(share.turns))
            extent, bound = fn(stmt.extent), fn(stmt.bound)
            usual = {"extent": extent, "bound": bound, "body": body, "overlap": overlap}
            return changed(stmt, **usual, resident=resident, raster=raster, sharing=share)
        case Seq(stmts=stmts):
            return Seq(tuple(map_exprs(s, fn) for s in stmts))
        case If(cond=c, then=t, otherwise=o):
            return If(fn(c), map_exprs(t, fn), None if o is None else map_exprs(o, fn))
        case Allocate(buffer=b, body=body):
            return changed(stmt, buffer=map_buffer(b, fn), body=map_exprs(body, fn))
        case Store():
            return changed(stmt, indices=_mapped(stmt.indices, fn), values=_mapped(stmt.values, fn))
        case Prefetch(indices=indices):
            return changed(stmt, indices=_mapped(indices, fn))
        case Shuffle():
            indices, values = _mapped(stmt.indices, fn), _mapped(stmt.values, fn)
            return changed(stmt, indices=indices, values=values, lane=fn(stmt.lane))
        case TileCopy():
            place, origin, shape = (_mapped(x, fn) for x in (stmt.place, stmt.origin, stmt.shape))
            return changed(stmt, place=place, origin=origin, shape=shape)
        case Barrier() | Commit() | Wait():
            return stmt
    raise TypeError(f"unknown statement {type(stmt).__name__}")


def exprs_of(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand directly in `stmt`, not in its body."""
    match stmt:
        case For(extent=e):
            return (e,)
        case If(cond=c):
            return (c,)
        case Store(indices=indices, values=values):
            return (*indices, *values)
        case Shuffle(indices=indices, values=values, lane=lane):
            return (*indices, *values, lane)
        case Prefetch(indices=indices):
            return indices
        case TileCopy(place=place, origin=origin):
            return (*place, *origin)
    return ()


def exactly(value: Expr) -> Expr:
    """`value` without leave to be less precise (`ir/instructions/precision.py`)."""
    return bottom_up(value, lambda e: e.args[0] if isinstance(e, Call) and precision_of(e) else e)

"""Strength reduction of divisions: a loop-invariant divisor of a GPU thread is inverted once, before the loop.

    for j: y[i, j] = x[i, j] / total[0]   ->   t = 1 / total[0]; for j: y[i, j] = x[i, j] * t

A quotient that is rounded to an integer stays a division: rounded twice it may be below the exact integer. A correctly
rounded division takes a GPU about ten instructions, a multiplication one. The error bound allows for it
(`te/reference/error_bounds.py`), as for vectors on processors (`codegen/llvm/arithmetic.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, STEPS, Binary, Call, Cast, Const, Expr, Load, binary, const
from autosched.ir.stmt import BLOCKS, THREADS, Allocate, Barrier, Buffer, For, If, Scope, Seq, Stmt, Store, walk
from autosched.ir.visit import bottom_up, exprs_of, free_vars, loads, map_exprs, rebuild, subexpressions

MOST = 4  # registers for reciprocals in a loop
FIRST = (Const(0, INDEX),)
NEAR = (Scope.REGISTER, Scope.LOCAL, Scope.SHARED, Scope.WARP)


def divide_once(stmt: Stmt, near: frozenset[str] = frozenset()) -> Stmt:
    """Return `stmt` with reciprocals in registers. `near`: buffers of the thread and the block."""
    match stmt:
        case Seq(stmts=stmts):
            return Seq(tuple(divide_once(s, near) for s in stmts))
        case If(then=then, otherwise=other):
            return replace(
                stmt, then=divide_once(then, near), otherwise=None if other is None else divide_once(other, near)
            )
        case Allocate(buffer=buffer, body=body):
            inside = near | {buffer.name} if buffer.scope in NEAR else near
            return replace(stmt, body=divide_once(body, inside))
        case For(body=body):
            divisors = () if stmt.kind in BLOCKS or stmt.kind in THREADS else tuple(_invariant_divisors(stmt, near))
            if 0 < len(divisors) <= MOST:
                return _with_reciprocals(stmt, divisors)
            return replace(stmt, body=divide_once(body, near))
    return stmt


def _invariant_divisors(loop: For, near: frozenset[str]) -> Iterator[Expr]:
    """Yield the divisors that are invariant in the loop and computed before it."""
    inside = list(walk(loop))
    if any(isinstance(s, Barrier) for s in inside):
        return
    moving = {s.var for s in inside if isinstance(s, For)}
    written = {b for s in inside if isinstance(s, Store) for b in s.buffers}
    own = {s.buffer.name for s in inside if isinstance(s, Allocate)}
    invariant = near - written - own
    divisors = (e.b for s in inside for e in _divisions(s) if not free_vars(e.b) & moving)
    yield from dict.fromkeys(b for b in divisors if loads(b) and all(x.buffer in invariant for x in loads(b)))


def _divisions(stmt: Stmt) -> Iterator[Binary]:
    if isinstance(stmt, Store):
        nodes = [e for value in exprs_of(stmt) for e in subexpressions(value)]
        stepped = {e.children[0] for e in nodes if _is_step(e)}
        divisions = (e for e in nodes if isinstance(e, Binary) and e.op == "div" and e not in stepped)
        yield from (e for e in divisions if DTYPES[e.dtype].is_float)


def _is_step(e: Expr) -> bool:
    """Whether the node rounds an operand to an integer."""
    return e.fn in STEPS if isinstance(e, Call) else isinstance(e, Cast) and DTYPES[e.dtype].is_integer


def _with_reciprocals(loop: For, divisors: tuple[Expr, ...]) -> Stmt:
    held = {b: Load(f"{loads(b)[0].buffer}.reciprocal{n or ''}", FIRST, b.dtype) for n, b in enumerate(divisors)}

    divided = {x: b for b, x in held.items()}

    def product(e: Expr) -> Expr:
        match e:
            case Binary(op="div", a=a, b=b) if b in held:
                return a * held[b]
            case Call(args=(Binary(op="mul", a=a, b=b),)) | Cast(a=Binary(op="mul", a=a, b=b)) if b in divided:
                return rebuild(e, lambda _: binary("div", a, divided[b])) if _is_step(e) else e
        return e

    result: Stmt = map_exprs(loop, lambda e: bottom_up(e, product))
    before = (Store((x.buffer,), FIRST, (binary("div", const(1.0, b.dtype), b),)) for b, x in held.items())
    result = Seq((*before, result))
    for x in held.values():
        result = Allocate(Buffer(x.buffer, (Const(1, INDEX),), x.dtype, Scope.REGISTER), result)
    return result

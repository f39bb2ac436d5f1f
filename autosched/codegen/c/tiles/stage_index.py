"""The stage index of a pipeline, carried from one iteration to the next.

    for k: .. A[k % 3] ..          int place = 0; for k: { .. A[place] ..; place = place == 2 ? 0 : place + 1; }

A remainder by a number that is no power of two takes several instructions, the iteration's own and that of what is
filled ahead; the counters take a comparison and a choice each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autosched.ir.expr import INDEX, Binary, Const, Expr
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import For, ForKind, Store, walk
from autosched.ir.visit import exprs_of, free_vars, loads, substitute

ZERO = Const(0, INDEX)


@dataclass(frozen=True)
class CarriedStage:
    """`expr`, the remainder of a division by `count`, is one more in the next iteration; `first`: in the first one."""

    expr: Expr
    first: Expr
    count: int


def carried_stages(loop: For, places: Callable[[str], int], simplify: Simplifier) -> list[CarriedStage]:
    """Return the stage indices that the loop's body uses and that advance by one with the loop. `places`: stages of a
    buffer, 1 for most.
    """
    if loop.kind is not ForKind.SERIAL:
        return []
    inner = {s.var for s in walk(loop.body) if isinstance(s, For)}
    found: list[CarriedStage] = []
    for expr in dict.fromkeys(_named(loop, places, simplify)):
        match expr:
            case Binary(op="mod", a=a, b=Const(value=count)) if not free_vars(expr) & inner:
                moves = dict(simplify.affine(a).terms).get(loop.var) == 1
                rest = simplify(substitute(a, {loop.var: ZERO}))
                if moves and int(count).bit_count() > 1 and loop.var not in free_vars(rest):
                    found.append(CarriedStage(expr, simplify(rest % int(count)), int(count)))
    return found


def _named(loop: For, places: Callable[[str], int], simplify: Simplifier) -> Iterator[Expr]:
    for stmt in walk(loop.body):
        if isinstance(stmt, Store) and places(stmt.buffers[0]) > 1:
            yield simplify(stmt.indices[0])
        yield from (simplify(x.indices[0]) for e in exprs_of(stmt) for x in loads(e) if places(x.buffer) > 1)

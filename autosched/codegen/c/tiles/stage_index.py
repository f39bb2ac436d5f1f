"""The stage index of a pipeline, carried from one iteration to the next.

    for k: .. A[k % 3] ..          int place = 0; for k: { .. A[place] ..; place = place == 2 ? 0 : place + 1; }

A remainder by a number that is no power of two takes several instructions, for the stage that is read and again for the
one that is filled; a carried index takes a comparison and a select.
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
    """A stage index `expr`, a remainder by `count`, that advances by one per iteration; `first`: its initial value."""

    expr: Expr
    first: Expr
    count: int


def carried_stages(loop: For, n_stages: Callable[[str], int], simplify: Simplifier) -> list[CarriedStage]:
    """Return the stage indices in the loop's body that advance by one per iteration. `n_stages`: stages of a buffer, 1
    outside of pipelines.
    """
    if loop.kind is not ForKind.SERIAL:
        return []
    inner = {s.var for s in walk(loop.body) if isinstance(s, For)}
    carried: list[CarriedStage] = []
    for expr in dict.fromkeys(_stage_indices(loop, n_stages, simplify)):
        match expr:
            case Binary(op="mod", a=a, b=Const(value=count)) if not free_vars(expr) & inner:
                moves = dict(simplify.affine(a).terms).get(loop.var) == 1
                offset = simplify(substitute(a, {loop.var: ZERO}))
                if moves and int(count).bit_count() > 1 and loop.var not in free_vars(offset):
                    carried.append(CarriedStage(expr, simplify(offset % int(count)), int(count)))
    return carried


def _stage_indices(loop: For, n_stages: Callable[[str], int], simplify: Simplifier) -> Iterator[Expr]:
    for stmt in walk(loop.body):
        if isinstance(stmt, Store) and n_stages(stmt.buffers[0]) > 1:
            yield simplify(stmt.indices[0])
        yield from (simplify(x.indices[0]) for e in exprs_of(stmt) for x in loads(e) if n_stages(x.buffer) > 1)

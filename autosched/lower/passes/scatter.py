"""Scatter: a loop of which the data select one iteration runs only that iteration.

    for n:  for s:  for d:  o[s, d] += select(ids[n] == s, x[n, d], 0)

    for n:  if 0 <= ids[n] and ids[n] < S:  for d:  o[ids[n], d] += x[n, d]

All other iterations would combine the reducer's identity with the results.
"""

from __future__ import annotations

from autosched.ir.conditions import every, iteration_by_data
from autosched.ir.expr import INDEX, Const, Expr, binary, const
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Allocate, For, ForKind, If, Seq, Stmt, changed
from autosched.ir.symbolic import is_known
from autosched.ir.types import integer_bounds
from autosched.ir.visit import map_exprs, substitute
from autosched.lower.passes.instantiate import simplify_stmt


def scatter_by_data(stmt: Stmt, simplify: Simplifier) -> Stmt:
    """Return `stmt` with the serial loops in it transformed."""
    match stmt:
        case For(kind=ForKind.SERIAL, reduce=False):
            iteration = _chosen(stmt, simplify)
            if iteration is not None:
                return scatter_by_data(iteration, simplify)
            return changed(stmt, body=scatter_by_data(stmt.body, simplify))
        case Allocate() | For(kind=ForKind.SERIAL | ForKind.PARALLEL | ForKind.UNROLL):
            return changed(stmt, body=scatter_by_data(stmt.body, simplify))
        case If(cond=cond, then=then, otherwise=other):
            other = None if other is None else scatter_by_data(other, simplify)
            return If(cond, scatter_by_data(then, simplify), other)
        case Seq(stmts=stmts):
            return Seq(tuple(scatter_by_data(s, simplify) for s in stmts))
    return stmt


def _chosen(loop: For, simplify: Simplifier) -> Stmt | None:
    """Return the selected iteration; None where the data do not select one."""
    selection = iteration_by_data(loop)
    if selection is None:
        return None
    comparison, at = selection
    values: dict[Expr, Expr] = {comparison: const(True, "bool"), loop.var: at}
    body = simplify_stmt(map_exprs(loop.body, lambda e: substitute(e, values)), simplify) or Seq(())
    low, high = integer_bounds(at, simplify.ranges)
    tests = [] if is_known("ge", low, 0) else [binary("ge", at, Const(0, INDEX))]
    if not (isinstance(loop.extent, Const) and is_known("lt", high, loop.extent.value)):
        tests.append(binary("lt", at, loop.extent))
    return If(simplify(every(tests)), body) if tests else body  # none for a byte among 256 places

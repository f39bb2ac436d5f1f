"""Loop unswitching: a vectorised loop over parts of a concatenation has branches between blocks, not masks.

    for v in 64 (vectorised):                       for b in 2:
        Y[c*64 + v] = select(c*64 + v < 96,             if c*2 + b < 3:  for v in 32:  Y[..] = A[c*64 + b*32 + v]
            A[c*64 + v], select(..., B[..], C[..]))     else:  if ...:   for v in 32:  Y[..] = B[..]
                                                               else:     for v in 32:  Y[..] = C[..]

A block is as long as all conditions allow that hold for the whole block or for none of it: the greatest common divisor
of the lengths of the parts and of the loop.
"""

from __future__ import annotations

import math
from functools import reduce

from autosched.ir.conditions import LIMITS, comparisons, given, outside
from autosched.ir.expr import INDEX, Binary, Const, Expr, Var, imin
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Allocate, For, ForKind, If, Scope, Seq, Stmt, Store, changed, walk
from autosched.ir.symbolic import SymbolicInteger, common_divisor
from autosched.ir.visit import free_vars, map_exprs, substitute
from autosched.lower.passes.instantiate import simplify_stmt

LEAST_BLOCK = 8  # elements, a vector of float32 in AVX2: shorter blocks would have a branch for a part of a vector
LEAST_TESTS = 2  # for a single one `partition_interior` has versions without masks for most blocks


def unswitch_blocks(stmt: Stmt, simplify: Simplifier) -> Stmt:
    """Return `stmt` with its vectorised loops outside of register tiles transformed."""
    match stmt:
        case Allocate(buffer=buffer) if buffer.scope is Scope.REGISTER:
            return stmt
        case For(kind=ForKind.VECTORIZE):
            return _unswitched(stmt, simplify)
        case Allocate() | For():
            return changed(stmt, body=unswitch_blocks(stmt.body, simplify))
        case Seq(stmts=stmts):
            return Seq(tuple(unswitch_blocks(s, simplify) for s in stmts))
        case If(cond=cond, then=then, otherwise=other):
            other = None if other is None else unswitch_blocks(other, simplify)
            return If(cond, unswitch_blocks(then, simplify), other)
    return stmt


def _unswitched(loop: For, simplify: Simplifier) -> Stmt:
    stores = [s for s in walk(loop.body) if isinstance(s, Store)]
    inner = {s.var for s in walk(loop.body) if isinstance(s, For)}
    tests = [c for c in comparisons(stores) if not free_vars(c) & inner]
    n_masks = sum(loop.var in free_vars(c) for c in tests)
    if n_masks < LEAST_TESTS or any(s.reducer is not None for s in stores):
        return loop
    ends = _ends(loop.extent)
    divisors = [
        *(_divisor(end, simplify) for end in (*ends, loop.bound)),
        *(_period(c, loop.var, simplify) for c in tests),
    ]
    length = math.gcd(*divisors)
    if length < LEAST_BLOCK:
        return loop
    block, lane = Var(f"{loop.var.name}.block", INDEX), Var(f"{loop.var.name}.lane", INDEX)
    number = Const(length, INDEX)
    at_block: dict[Expr, Expr] = {loop.var: block * length}
    first = {c: simplify(substitute(c, at_block)) for c in tests}  # what holds for the first element does for all
    inside: dict[Expr, Expr] = {loop.var: block * length + lane}

    def blocks(body: Stmt, remaining: list[Binary]) -> Stmt:
        if not remaining:
            leaf = map_exprs(body, lambda e: substitute(e, inside))
            return changed(loop, var=lane, extent=number, bound=number, body=leaf)
        test, *_ = remaining
        cases = [map_exprs(body, lambda e: given(e, {test})), map_exprs(body, lambda e: outside(e, test))]
        then, otherwise = (blocks(case, _left(case, tests)) for case in cases)
        return If(first[test], then, otherwise)

    extent = reduce(imin, (end // length for end in ends))
    body = blocks(loop.body, _left(loop.body, tests))
    outer = changed(loop, var=block, extent=extent, bound=loop.bound // length, kind=ForKind.SERIAL, body=body)
    return simplify_stmt(outer, simplify) or Seq(())


def _left(body: Stmt, tests: list[Binary]) -> list[Binary]:
    """Return those of the tests that the body depends on, outer ones first."""
    known = set(tests)
    return [c for c in comparisons(s for s in walk(body) if isinstance(s, Store)) if c in known]


def _ends(extent: Expr) -> tuple[Expr, ...]:
    """Return the numbers of which an extent is the least."""
    return (extent.a, extent.b) if isinstance(extent, Binary) and extent.op == "min" else (extent,)


def _divisor(expr: Expr, simplify: Simplifier) -> int:
    form = simplify.affine(expr)
    return common_divisor(form.constant, *(c for _, c in form.terms))


def _period(test: Binary, var: Var, simplify: Simplifier) -> int:
    """Return the greatest length of blocks, counted from the first iteration, in which `test` holds always or never; 0
    for any length."""
    if var not in free_vars(test):
        return 0
    at_least, limit = LIMITS[test.op]
    form = simplify.affine(test.a - test.b)
    sign = dict(form.terms).get(var, 0)
    others = [(atom, c) for atom, c in form.terms if atom is not var]
    if isinstance(sign, SymbolicInteger) or abs(sign) != 1 or any(var in free_vars(atom) for atom, _ in others):
        return 1
    # The first value of `var` with the other answer is sign * this, less the other terms.
    constant = form.constant - limit if at_least == (sign == 1) else form.constant - limit + (1 if at_least else -1)
    return common_divisor(constant, *(c for _, c in others))

"""Guard merging: adjacent statements under the same condition, a whole reduction included, share one guard.

    if c: s1 else: s2                       if c: s1
    for k, reduce:                  ->            for k, reduce: t1
        if c: t1 else: t2                   else: s2
                                                  for k, reduce: t2

The initialisation of sums is then beside their reduction, in full tiles and in others, and both may keep the sums in
registers from one step of the reduction to the next.
"""

from __future__ import annotations

from autosched.ir.stmt import Allocate, For, If, Seq, Stmt, changed, only_fetches
from autosched.ir.visit import free_vars, loads


def merge_equal_guards(stmt: Stmt) -> Stmt:
    """Return `stmt` with such guards merged. No statement may change an element that the condition reads."""
    match stmt:
        case For():
            return _outside(changed(stmt, body=merge_equal_guards(stmt.body)))
        case Allocate(buffer=b, body=body):
            return Allocate(b, merge_equal_guards(body))
        case If(cond=c, then=t, otherwise=o):
            return If(c, merge_equal_guards(t), None if o is None else merge_equal_guards(o))
        case Seq(stmts=stmts):
            return _sequence([merge_equal_guards(s) for s in stmts])
    return stmt


def _outside(loop: For) -> Stmt:
    """Move a condition that is invariant in a reduction loop out of it; prefetches are copied into both cases."""
    *ahead, inner = _flat(loop.body)
    if not loop.reduce or not isinstance(inner, If) or loop.var in free_vars(inner.cond) or loads(inner.cond):
        return loop
    if not all(map(only_fetches, ahead)):
        return loop

    def whole(case: Stmt) -> Stmt:
        return _outside(changed(loop, body=Seq((*ahead, *_flat(case))) if ahead else case))

    return If(inner.cond, whole(inner.then), None if inner.otherwise is None else whole(inner.otherwise))


def _sequence(stmts: list[Stmt]) -> Stmt:
    merged: list[Stmt] = []
    for s in stmts:
        previous = merged[-1] if merged else None
        if isinstance(previous, If) and isinstance(s, If) and previous.cond is s.cond and not loads(s.cond):
            merged[-1] = _merged(previous, s)
        else:
            merged.append(s)
    return merged[0] if len(merged) == 1 else Seq(tuple(merged))


def _merged(before: If, after: If) -> If:
    others = [s for s in (before.otherwise, after.otherwise) if s is not None]
    return If(before.cond, _sequence(_flat(before.then, after.then)), _sequence(_flat(*others)) if others else None)


def _flat(*stmts: Stmt) -> list[Stmt]:
    return [x for s in stmts for x in (s.stmts if isinstance(s, Seq) else (s,))]

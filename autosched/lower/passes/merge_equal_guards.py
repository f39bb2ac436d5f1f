"""What stands under the same condition is done together, a reduction as a whole.

    if c: s1 else: s2                       if c: s1
    for k, reduce:                  ->            for k, reduce: t1
        if c: t1 else: t2                   else: s2
                                                  for k, reduce: t2

What clears sums then stands beside what adds them up, in a tile that is full and in one that is not, and the sums of
both may stay where they are made from one step of the reduction to the next.
"""

from __future__ import annotations

from autosched.ir.stmt import Allocate, For, If, Seq, Stmt, changed, only_fetches
from autosched.ir.visit import free_vars, loads


def join_cases(stmt: Stmt) -> Stmt:
    """`stmt` with such neighbours joined. What the condition tests is no element that they may change."""
    match stmt:
        case For():
            return _outside(changed(stmt, body=join_cases(stmt.body)))
        case Allocate(buffer=b, body=body):
            return Allocate(b, join_cases(body))
        case If(cond=c, then=t, otherwise=o):
            return If(c, join_cases(t), None if o is None else join_cases(o))
        case Seq(stmts=stmts):
            return _sequence([join_cases(s) for s in stmts])
    return stmt


def _outside(loop: For) -> Stmt:
    """A loop of a reduction without the condition that is the same in all of its steps; what it asks for ahead of time
    is asked for in both cases."""
    *ahead, inner = _flat(loop.body)
    if not loop.reduce or not isinstance(inner, If) or loop.var in free_vars(inner.cond) or loads(inner.cond):
        return loop
    if not all(map(only_fetches, ahead)):
        return loop

    def whole(case: Stmt) -> Stmt:
        return _outside(changed(loop, body=Seq((*ahead, *_flat(case))) if ahead else case))

    return If(inner.cond, whole(inner.then), None if inner.otherwise is None else whole(inner.otherwise))


def _sequence(stmts: list[Stmt]) -> Stmt:
    found: list[Stmt] = []
    for s in stmts:
        before = found[-1] if found else None
        if isinstance(before, If) and isinstance(s, If) and before.cond is s.cond and not loads(s.cond):
            found[-1] = _joined(before, s)
        else:
            found.append(s)
    return found[0] if len(found) == 1 else Seq(tuple(found))


def _joined(before: If, after: If) -> If:
    others = [s for s in (before.otherwise, after.otherwise) if s is not None]
    return If(before.cond, _sequence(_flat(before.then, after.then)), _sequence(_flat(*others)) if others else None)


def _flat(*stmts: Stmt) -> list[Stmt]:
    return [x for s in stmts for x in (s.stmts if isinstance(s, Seq) else (s,))]

"""Divisions by what a loop of a thread does not change."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.ir.expr import INDEX, Binary, Const, Expr, Var, call, cast, select
from autosched.ir.interpreter.interpret import interpret
from autosched.ir.stmt import Allocate, Barrier, ForKind, Func, If, Scope, Seq, Stmt, Store, walk
from autosched.ir.verify import verify
from autosched.ir.visit import exprs_of, subexpressions
from autosched.lower.passes.divide_once import divide_once
from tests.ir.nests import F32, buffer, func, load, loop, reducer, store

t, k, j = (Var(name, INDEX) for name in "tkj")
ZERO, ONE = Const(0.0, F32), Const(1.0, F32)
X, TOTAL = load("A", t, k), load("total", 0)


def kernel(*inside: Stmt, scope: Scope = Scope.REGISTER) -> Func:
    """Rows of A by a thread each: their sum, then `inside` for each element."""
    add = loop(k, 5, store("total", (0,), X, reducer("add")))
    body = Seq((store("total", (0,), ZERO), add, loop(k, 5, *inside)))
    nest = loop(t, 3, Allocate(buffer("total", (1,), scope=scope), body), kind=ForKind.THREAD_X)
    return func([buffer("A", (3, 5)), buffer("B", (3, 5))], [buffer("C", (3, 5))], nest)


def divisions(f: Func) -> int:
    stores = [s for s in walk(f.body) if isinstance(s, Store)]
    nodes = [e for s in stores for v in exprs_of(s) for e in subexpressions(v)]
    return sum(isinstance(e, Binary) and e.op == "div" and e.a is not ONE for e in nodes)


def out(value: Expr) -> Store:
    return store("C", (t, k), value)


ONCE = {
    "by the sum": (out(X / TOTAL),),
    "twice by the same": (out(X / (TOTAL + 1.0) + load("B", t, k) / (TOTAL + 1.0)),),
    "by two": (out(X / TOTAL + 2.0 / (TOTAL + 3.0)),),
    "under a condition": (If(k < 3, out(X / TOTAL), out(ZERO)),),
    "in an inner loop": (loop(j, 2, out(select(k < 1, X, X / TOTAL)), kind=ForKind.UNROLL),),
}
ALWAYS = {
    "by what moves": (out(TOTAL / X),),
    "by what is written": (out(X / TOTAL), store("total", (0,), TOTAL + 1.0)),
    "by what others have": (out(X / load("B", t, 0)),),
    "by a constant": (out(X / 3.0),),
    "whose whole part is taken": (out(call("floor", X / TOTAL) + cast(cast(X / TOTAL, "int32"), F32)),),
    "between meetings": (Barrier(), out(X / TOTAL)),
}


@pytest.mark.parametrize("name", [*ONCE, *ALWAYS])
def test_a_divisor_that_stands_still(name: str) -> None:
    """It is read before the loop only where that is the same: nobody writes it meanwhile."""
    before = kernel(*(ONCE | ALWAYS)[name])
    after = Func(before.name, before.params, before.n_outputs, divide_once(before.body))
    verify(after, concrete=True)
    assert (divisions(after) == 0) == (name in ONCE)
    rng = np.random.default_rng(0)
    arrays = {n: (1 + rng.random((3, 5))).astype(np.float32) for n in "AB"}
    (expected,), (found,) = interpret(before, arrays), interpret(after, arrays)
    np.testing.assert_allclose(found, expected, rtol=3e-7)


def test_loops_over_blocks_and_threads_are_no_loops_of_a_thread() -> None:
    shared = Allocate(
        buffer("total", (1,), scope=Scope.SHARED), Seq((store("total", (0,), Const(2.0, F32)), out(X / TOTAL)))
    )
    nest = loop(k, 5, loop(t, 3, shared, kind=ForKind.THREAD_X), kind=ForKind.BLOCK_X)
    f = func([buffer("A", (3, 5))], [buffer("C", (3, 5))], nest)
    assert divide_once(f.body) == f.body

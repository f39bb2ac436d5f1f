"""Asynchronous copies to shared memory: a pipeline that is right, and every wait and barrier of it that is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autosched.ir.expr import Const, Var, const, select
from autosched.ir.interpreter.blocks import runs_in_blocks
from autosched.ir.interpreter.interpret import InterpretError, interpret
from autosched.ir.printer import func_text
from autosched.ir.stmt import Allocate, Barrier, Commit, For, ForKind, Func, If, Scope, Seq, Stmt, Store, Wait
from autosched.ir.verify import IRError, verify
from tests.ir.nests import F32, I64, buffer, func, load, loop, num, reducer, store

b, t, k = (Var(name, I64) for name in "btk")
ZERO = Const(0.0, F32)
THREADS = 4


def start(name, indices, value) -> Stmt:
    return replace(store(name, indices, value), asynchronous=True)


def pipeline(n: int, stages: int) -> Func:
    """C[t] = sum over k < n of A[k, 3 - t]: each thread copies an element of a row, another one reads it.

    Rows from n on, which are started where n < stages - 1, are zeros that nobody reads.
    """
    ahead = k + (stages - 1)

    def copy(row):
        inside = num(0).__le__(row) & (row < n)
        return start("s", (row % stages, t), select(inside, load("A", row, t), ZERO))

    prologue = [stmt for row in range(stages - 1) for stmt in (copy(num(row)), Commit())]
    add = store("own", (0,), load("s", k % stages, 3 - t), reducer("add"))
    rows = loop(k, n, Wait(stages - 2), Barrier(), If(ahead < n, copy(ahead)), Commit(), add)
    body = Seq((*prologue, store("own", (0,), ZERO), rows, store("C", (t,), load("own", 0))))
    body = Allocate(buffer("own", (1,), scope=Scope.REGISTER), body)
    body = Allocate(buffer("s", (stages, THREADS), scope=Scope.SHARED), body)
    kernel = loop(b, 1, loop(t, THREADS, body, kind=ForKind.THREAD_X), kind=ForKind.BLOCK_X)
    return func([buffer("A", (n, THREADS))], [buffer("C", (THREADS,))], kernel)


def orders():
    rng = np.random.default_rng(0)
    return [None, lambda n: range(n - 1, -1, -1), lambda n: rng.permutation(n).tolist()]


def check(f: Func) -> None:
    a = np.arange(1, 1 + f.params[0].shape[0].value * THREADS, dtype=F32).reshape(-1, THREADS)  # type: ignore[attr-defined]
    for order in orders():
        (result,) = interpret(f, {"A": a}, parallel_order=order)
        np.testing.assert_array_equal(result, a.sum(0)[::-1])


def fails(f: Func, text: str) -> None:
    a = np.ones((f.params[0].shape[0].value, THREADS), F32)  # type: ignore[attr-defined]
    for order in orders():
        with pytest.raises(InterpretError, match=text):
            interpret(f, {"A": a}, parallel_order=order)


def changed(f: Func, fn) -> Func:
    """`f` with `fn` applied to its innermost statements; None drops one."""

    def go(s: Stmt) -> Stmt:
        match s:
            case For() | Allocate():
                return replace(s, body=go(s.body))
            case Seq(stmts):
                return Seq(tuple(x for x in map(go, stmts) if x is not None))
            case If():
                return replace(s, then=go(s.then))
        return fn(s)

    return replace(f, body=go(f.body))


SIZES = [(n, stages) for n in (1, 2, 3, 5) for stages in (2, 3, 4)]


@pytest.mark.parametrize(("n", "stages"), SIZES)
def test_a_pipeline_with_one_barrier_in_an_iteration(n: int, stages: int) -> None:
    f = pipeline(n, stages)
    assert runs_in_blocks(f)
    check(f)


def test_stores_that_are_not_asynchronous_need_no_wait() -> None:
    def plain(s: Stmt) -> Stmt | None:
        return replace(s, asynchronous=False) if isinstance(s, Store) else None if isinstance(s, (Wait, Commit)) else s

    for n, stages in SIZES:
        check(changed(pipeline(n, stages), plain))


UNDER_WAY = "is used while an asynchronous copy to it is under way"


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_without_a_wait(stages: int) -> None:
    fails(changed(pipeline(5, stages), lambda s: None if isinstance(s, Wait) else s), UNDER_WAY)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_wait_for_one_group_too_few(stages: int) -> None:
    fails(changed(pipeline(5, stages), lambda s: Wait(s.pending + 1) if isinstance(s, Wait) else s), UNDER_WAY)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_copies_that_were_not_committed_are_not_waited_for(stages: int) -> None:
    fails(changed(pipeline(5, stages), lambda s: None if isinstance(s, Commit) else s), UNDER_WAY)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_without_the_barrier(stages: int) -> None:
    text = f"race: |{UNDER_WAY}|is read before it is written"
    fails(changed(pipeline(5, stages), lambda s: None if isinstance(s, Barrier) else s), text)


@pytest.mark.parametrize("stages", [2, 3])
def test_the_wait_must_come_before_the_barrier(stages: int) -> None:
    """A thread that has waited sees its own copies; those of others only after the barrier."""
    f = pipeline(5, stages)

    def swap(s: Stmt) -> Stmt:
        match s:
            case For() | Allocate():
                return replace(s, body=swap(s.body))
            case Seq((Wait() as wait, Barrier() as barrier, *rest)):
                return Seq((barrier, wait, *rest))
            case Seq(stmts):
                return Seq(tuple(map(swap, stmts)))
        return s

    fails(replace(f, body=swap(f.body)), f"race: a copy to s.* ends|race: a thread reads|{UNDER_WAY}")


def test_a_copy_into_what_others_still_read() -> None:
    """As many slots as rows under way, and one less: the copy ahead writes what this iteration reads."""
    f = pipeline(5, 3)

    def too_few(s: Stmt) -> Stmt:
        return replace(s, indices=(s.indices[0] % 2, *s.indices[1:])) if isinstance(s, Store) and s.asynchronous else s

    fails(changed(f, too_few), f"race: |{UNDER_WAY}|is read before it is written")


def test_the_text_of_a_pipeline() -> None:
    lines = [line.strip() for line in func_text(pipeline(5, 3)).splitlines()]
    assert "start s[(k + 2)%3, t] = select(0 <= k + 2 and k + 2 < 5, A[k + 2, t], 0.0)" in lines
    assert "wait 1" in lines
    assert "commit" in lines


def test_what_cannot_be_asynchronous() -> None:
    def rejected(text: str, stmt: Stmt, dtype: str = F32, scope: Scope = Scope.SHARED) -> None:
        body = Allocate(buffer("s", (4,), dtype, scope), Seq((stmt, store("C", (t,), ZERO))))
        f = func([buffer("A", (4,), dtype)], [buffer("C", (4,))], loop(t, 4, body, kind=ForKind.THREAD_X))
        with pytest.raises(IRError, match=text):
            verify(f, concrete=True)

    copy = load("A", t)
    rejected("not a copy of global memory", start("s", (t,), copy + copy))
    rejected("not a copy of global memory", start("s", (t,), select(t < 2, copy, Const(1.0, F32))))
    rejected("not a copy of global memory", start("s", (t,), load("s", t)))
    rejected("not one element of shared memory", start("s", (t,), copy), scope=Scope.LOCAL)
    rejected("not one element of shared memory", replace(start("s", (t,), copy), reducer=reducer("add")))
    rejected("1 bytes cannot be copied", start("s", (t,), load("A", t, dtype="int8")), dtype="int8")
    rejected("-1 groups cannot be under way", Wait(-1))
    with pytest.raises(IRError, match="outside of blocks and threads"):
        verify(func([], [buffer("C", (4,))], Seq((Commit(), loop(k, 4, store("C", (k,), const(0.0)))))))

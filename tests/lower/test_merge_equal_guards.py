"""Statements under one condition, joined."""

from __future__ import annotations

from autosched.ir.expr import INDEX, Const, Load, Var, const
from autosched.ir.printer import stmt_text
from autosched.ir.stmt import For, ForKind, If, Prefetch, Seq, Stmt, Store
from autosched.lower.passes.merge_equal_guards import merge_equal_guards

i, k = Var("i", INDEX), Var("k", INDEX)


def store(n: int) -> Store:
    return Store(("C",), (i,), (const(float(n), "float32"),), None)


def over(body: Stmt, reduce: bool) -> For:
    return For(k, Const(4, INDEX), Const(4, INDEX), ForKind.SERIAL, body, reduce)


def test_neighbours_are_joined_and_reductions_as_a_whole() -> None:
    full = i < 3
    found = merge_equal_guards(Seq((If(full, store(1), store(2)), over(If(full, store(3), store(4)), True), store(5))))
    assert stmt_text(found) == stmt_text(
        Seq((If(full, Seq((store(1), over(store(3), True))), Seq((store(2), over(store(4), True)))), store(5)))
    )


def test_what_is_asked_for_ahead_is_asked_for_in_both_cases() -> None:
    full, ahead = i < 3, Prefetch("C", (k,))
    found = merge_equal_guards(over(Seq((ahead, If(full, store(3), store(4)))), True))
    cases = (over(Seq((ahead, store(n))), True) for n in (3, 4))
    assert stmt_text(found) == stmt_text(If(full, *cases))


def test_cases_of_which_one_is_empty_are_joined() -> None:
    full = i < 3
    found = merge_equal_guards(Seq((If(full, store(1), None), If(full, store(3), store(4)))))
    assert stmt_text(found) == stmt_text(If(full, Seq((store(1), store(3))), store(4)))


def test_other_conditions_stay_where_they_are() -> None:
    tests = [over(If(k < 3, store(1), None), True), over(If(i < 3, store(1), None), False)]
    tests += [Seq((If(i < 3, store(1), None), If(i < 4, store(2), None)))]
    of_data = Load("C", (const(0, INDEX),), "float32") < 1.0
    tests += [Seq((If(of_data, store(1), None), If(of_data, store(2), None)))]
    for stmt in tests:
        assert stmt_text(merge_equal_guards(stmt)) == stmt_text(stmt)

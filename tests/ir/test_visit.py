"""Walking and rebuilding: every node once, sharing kept, statements mapped wherever they hold expressions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosched.ir.expr import Call, Cast, Const, Expr, Load, Param, Select, Var
from autosched.ir.stmt import Allocate, For, ForKind, If, Layout, Prefetch, Scope, Seq, Stmt, changed, walk
from autosched.ir.visit import (
    exprs_of,
    free_vars,
    is_closed,
    loads,
    map_buffer,
    map_exprs,
    rebuild,
    subexpressions,
    substitute,
)
from tests.ir.nests import F32, buffer, i, j, k, load, loop, num, reducer, store

t = Param("t")
A = load("A", i, j)
VALUE = Select(i < j, Cast(A, "float64"), Call("exp", (Cast(A, "float64"),)))


def doubled() -> Expr:
    """2**64 paths through 64 nodes."""
    e: Expr = i
    for _ in range(64):
        e = e + e
    return e


def test_rebuilding_with_the_same_children_gives_the_same_node():
    for node in subexpressions(VALUE):
        assert rebuild(node, lambda e: e) is node


def test_rebuilding_folds_constants():
    assert rebuild(i + 3, lambda e: num(4) if e is i else e) is num(7)
    assert rebuild(Select(i < j, i, j), lambda e: Const(True, "bool") if e.dtype == "bool" else e) is i
    assert rebuild(Cast(i, F32), lambda e: num(2)) is Const(2.0, F32)


def test_a_statement_that_does_not_change_is_returned_itself():
    stmt = loop(i, 4, store("A", (i, j), VALUE, reducer("add")))
    assert map_exprs(stmt, lambda e: e) is stmt
    other = map_exprs(stmt, lambda e: substitute(e, {j: num(1)}))
    assert other == replace(stmt, body=replace(stmt.body, indices=(i, num(1)), values=other.body.values))
    assert changed(stmt, kind=ForKind.UNROLL) == replace(stmt, kind=ForKind.UNROLL)
    assert changed(stmt, kind=stmt.kind) is stmt


def test_substitution():
    assert substitute(i * 4 + j, {i: j, j: num(1)}) is j * 4 + 1
    assert substitute(VALUE, {}) is VALUE
    assert substitute(A, {A: Const(0.0, F32)}) is Const(0.0, F32)


def test_the_outermost_key_is_replaced_and_its_replacement_is_not_looked_into():
    assert substitute(i + j, {i + j: i, i: k}) is i
    assert substitute(i, {i: i + 1}) is i + 1


def test_shared_nodes_are_visited_once():
    e = doubled()
    assert len(list(subexpressions(e))) == 65
    assert free_vars(e) == {i}
    assert free_vars(substitute(e, {i: j})) == {j}


def test_subexpressions_come_outermost_first():
    assert [str(e) for e in subexpressions(A)] == ["A[i, j]", "i", "j"]
    assert next(iter(subexpressions(VALUE))) is VALUE


def test_a_memo_may_be_shared_by_substitutions_of_the_same_mapping():
    memo: dict[Expr, Expr] = {}
    mapping: dict[Expr, Expr] = {i: num(2)}
    assert substitute(i * 4 + j, mapping, memo) is j.__radd__(8)
    assert substitute(i * 4, mapping, memo) is num(8)


def test_what_an_expression_holds():
    assert free_vars(VALUE) == {i, j}
    assert loads(VALUE) == (A,)
    assert is_closed(t * 3 + 1)
    assert not is_closed(t + i)
    assert not is_closed(Load("n", (), "int64"))


def bump(e: Expr) -> Expr:
    """Every constant of an index grows by 100."""
    return (
        rebuild(e, bump)
        if e.children
        else num(int(e.value) + 100)
        if isinstance(e, Const) and e.dtype == "int64"
        else e
    )


PRIVATE = replace(buffer("T", (4,), scope=Scope.LOCAL), layout=Layout((0,), ((0, num(2)),)))
NEST = loop(
    i, 4,
    Allocate(PRIVATE, Seq((
        store("T", (1,), load("A", 2, i), reducer("add"), "S"),
        If(i < 3, Prefetch("A", (num(5), i)), store("T", (6,), load("T", 7))),
        loop(j, imin_expr, store("T", (j,), Const(0.0, F32)), kind=ForKind.VECTORIZE, bound=9),
    ))),
) if (imin_expr := i + 8) is not None else None  # fmt: skip


def test_every_expression_of_a_nest_is_mapped():
    before = [str(e) for s in walk(NEST) for e in exprs_of(s)]
    after = [str(e) for s in walk(map_exprs(NEST, bump)) for e in exprs_of(s)]
    assert before == ["4", "1", "A[2, i]", "i < 3", "5", "i", "6", "T[7]", "i + 8", "j", "0.0"]
    assert after == ["104", "101", "A[102, i]", "i < 103", "105", "i", "106", "T[107]", "i + 108", "j", "0.0"]


def test_bounds_shapes_and_layouts_are_mapped_and_the_rest_is_kept():
    changed = map_exprs(NEST, bump)
    (allocate,) = [s for s in walk(changed) if isinstance(s, Allocate)]
    assert allocate.buffer == Replaced
    inner = [s for s in walk(changed) if isinstance(s, For)][1]
    assert inner.bound is num(109)
    assert inner.kind is ForKind.VECTORIZE
    assert map_exprs(NEST, lambda e: e) == NEST


Replaced = replace(PRIVATE, shape=(num(104),), layout=Layout((0,), ((0, num(102)),)))


def test_a_buffer_is_mapped_with_its_layout():
    assert map_buffer(PRIVATE, bump) == Replaced
    plain = buffer("A", (t, 3))
    assert map_buffer(plain, lambda e: num(5) if e is t else e).shape == (num(5), num(3))


def test_a_branch_without_an_else():
    only = If(i < 3, store("A", (i,), Const(0.0, F32)))
    assert map_exprs(only, lambda e: e) == only


def test_an_unknown_statement_is_refused():
    with pytest.raises(TypeError, match="unknown statement Stmt"):
        map_exprs(Stmt(), lambda e: e)


def test_variables_are_told_apart_by_name_and_type():
    assert free_vars(i + Cast(Var("i", "int32"), "int64")) == {i, Var("i", "int32")}

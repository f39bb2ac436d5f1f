"""One must-fail case for each rule of the verifier, and nests that pass."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autosched.errors import AutoschedError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Call, Cast, Const, Load, Param, Select, Var, const, imin
from autosched.ir.stmt import (
    Allocate,
    Barrier,
    Commit,
    ForKind,
    Func,
    If,
    Layout,
    Prefetch,
    Reducer,
    Scope,
    Seq,
    Store,
    Wait,
)
from autosched.ir.types import type_problem
from autosched.ir.verify import IRError, verify
from tests.ir.nests import F32, F64, I64, argmax, buffer, func, i, j, k, load, loop, num, reducer, store

A, B, C = buffer("A", (4, 5)), buffer("B", (5, 6)), buffer("C", (4, 6))
ZERO = Const(0.0, F32)
PARALLEL, UNROLL, VECTORIZE = ForKind.PARALLEL, ForKind.UNROLL, ForKind.VECTORIZE
t = Param("t")


def matmul(**kinds: ForKind) -> Func:
    kind = {name: kinds.get(name, ForKind.SERIAL) for name in "ijk"}
    update = store("C", (i, j), load("A", i, k) * load("B", k, j), reducer("add"))
    init = loop(i, 4, loop(j, 6, store("C", (i, j), ZERO)))
    nest = loop(i, 4, loop(k, 5, loop(j, 6, update, kind=kind["j"]), kind=kind["k"]), kind=kind["i"])
    return func((A, B), (C,), init, nest)


def copy_with(*body, extra=()):
    """C is written everywhere, then comes `body`."""
    return func((A, B), (C, *extra), loop(i, 4, loop(j, 6, store("C", (i, j), ZERO))), *body)


@pytest.mark.parametrize("kinds", [{}, {"i": PARALLEL}, {"k": UNROLL, "j": VECTORIZE}, {"i": PARALLEL, "j": VECTORIZE}])
def test_a_matmul_passes(kinds):
    verify(matmul(**kinds), concrete=True)


def test_a_symbolic_nest_passes_and_is_not_concrete():
    tile = loop(i, Binary("ceildiv", num(4), t), loop(j, imin(t, 4 - i * t), store("C", (i * t + j, 0), ZERO), bound=4))
    symbolic = func((A, B), (C,), tile)
    verify(symbolic)
    with pytest.raises(IRError, match="the parameter t is left in a concrete function"):
        verify(symbolic, concrete=True)


def test_tuple_reducers_and_scoped_buffers_pass():
    V, N = buffer("V", (4,)), buffer("N", (4,), I64)
    best = Store(("V", "N"), (i,), (load("A", i, k), k), argmax())
    init = Store(("V", "N"), (i,), (Const(-1e38, F32), num(0)))
    acc = buffer("acc", (4,), scope=Scope.REGISTER)
    body = loop(i, 4, init, loop(k, 5, best), kind=PARALLEL)
    use = Allocate(acc, loop(i, 4, store("acc", (i,), ZERO), kind=UNROLL))
    verify(func((A,), (V, N), body, use), concrete=True)


def test_copies_of_a_nest_may_each_allocate_the_same_buffer():
    local = buffer("T", (4,), scope=Scope.LOCAL)
    part = Allocate(local, store("T", (0,), ZERO))
    verify(copy_with(loop(i, 4, If(i < 2, part, part))), concrete=True)


def test_it_is_a_bug_and_not_the_users_fault():
    assert issubclass(IRError, AssertionError)
    assert not issubclass(IRError, AutoschedError)


def test_all_violations_are_listed_with_their_place():
    bad = copy_with(loop(i, 4, loop(j, 6, store("C", (i, k), load("X", i)))))
    with pytest.raises(IRError) as caught:
        verify(bad)
    assert str(caught.value).splitlines() == [
        "kernel: 2 violations",
        "  - for i / for j: C[i, k] = X[i]: the variable k is not bound by an enclosing loop",
        "  - for i / for j: C[i, k] = X[i]: the buffer X is neither a parameter nor allocated here",
    ]


local = buffer("T", (4,), scope=Scope.LOCAL)
registers = buffer("R", (4,), scope=Scope.REGISTER)
shared = buffer("S", (4,), scope=Scope.GLOBAL)
set_c = store("C", (0, 0), ZERO)
set_local = store("T", (0,), ZERO)


def shifted(step, *loops):
    """C[index, 0] = C[index + step, 0] inside loops, outermost first, each as (variable, extent, what it adds)."""
    index = sum((var * factor for var, _, factor in loops), num(0))
    body = store("C", (index, 0), load("C", index + step, 0))
    for var, extent, _ in reversed(loops):
        body = loop(var, extent, body)
    return body


ORDER = [
    (
        copy_with(loop(i, 4, store("C", (i, 0), load("C", i - 1, 0)), kind=PARALLEL)),
        "iterations of the parallel loop i",
    ),
    (copy_with(loop(i, 4, store("C", (i, 0), load("C", i - 2, 0)), kind=VECTORIZE)), "the vectorize loop i"),
    (copy_with(loop(i, 4, store("C", (i, 0), load("C", i - 1, 0)), kind=UNROLL)), "the unroll loop i"),
    (copy_with(shifted(1, (i, 4, 1))), "reads what later iterations of the loop i write"),
    (copy_with(shifted(-1, (i, 4, -1))), "reads what later iterations of the loop i write"),
    (copy_with(shifted(-1, (j, 2, 1), (i, 2, 2))), "reads what later iterations of loops inside of the loop j write"),
    (copy_with(loop(i, 4, store("C", (i, i), load("C", i - 1, i - 1)))), "reads itself at steps along 2 dimensions"),
]


def test_recurrences_in_order_pass():
    verify(copy_with(shifted(-1, (i, 4, 1))), concrete=True)
    verify(copy_with(shifted(2, (i, 4, -1))), concrete=True)
    verify(copy_with(shifted(-3, (i, 2, 2), (j, 2, 1))), concrete=True)
    lines = loop(j, 6, store("C", (i, j), load("C", i - 1, j)), kind=VECTORIZE)
    verify(copy_with(loop(i, 4, lines)), concrete=True)
    verify(copy_with(loop(j, 6, loop(i, 4, store("C", (i, j), load("C", i - 1, j))), kind=PARALLEL)), concrete=True)


BINDING = [
    (copy_with(store("C", (k, 0), ZERO)), "the variable k is not bound by an enclosing loop"),
    (copy_with(loop(i, 4, loop(i, 4, set_c))), "the loop variable i is already bound by an enclosing loop"),
    (copy_with(loop(Var("n", "int32"), 4, set_c)), "the loop variable n is int32, not int64"),
    (
        copy_with(loop(i, 4, store("C", (Cast(Var("i", "int32"), I64), 0), ZERO))),
        "the variable i is int32 but its loop",
    ),
    (copy_with(store("X", (0, 0), ZERO)), "the buffer X is neither a parameter nor allocated here"),
    (copy_with(Seq((Allocate(local, set_local), set_local))), "the buffer T is neither a parameter nor allocated here"),
    (copy_with(Prefetch("X", (num(0),))), "the buffer X is neither"),
    (copy_with(Prefetch("A", (num(0),))), "A has 2 dimensions but is indexed with 1"),
    (
        copy_with(Allocate(local, set_local), Allocate(replace(local, dtype=F64), set_c)),
        "the buffer name T means two different buffers",
    ),
    (copy_with(Allocate(replace(local, name="A"), set_c)), "the buffer A exists here already"),
    (copy_with(Allocate(local, Allocate(local, set_local))), "the buffer T exists here already"),
    (func((A, A), (C,), set_c), "two parameters have the same name"),
    (copy_with(store("A", (0, 0), ZERO)), "the input A is stored to"),
    (func((A,), (C,), loop(i, 4, Prefetch("A", (i, i)))), "output C is never stored"),
    (Func("kernel", (C,), 0, set_c), "0 outputs among 1 parameters"),
    (Func("kernel", (C,), 2, set_c), "2 outputs among 1 parameters"),
]

LOOPS = [
    (copy_with(loop(i, Const(4, "int32"), set_c)), "the extent is int32, not int64"),
    (copy_with(loop(i, 4, loop(j, i, set_c))), "the bound i depends on a loop variable"),
    (copy_with(loop(i, load("A", 0, 0, dtype=I64), set_c)), "the extent depends on the contents of a tensor"),
    (copy_with(loop(i, 7, set_c, bound=6)), "the extent 7 exceeds the bound 6"),
    (copy_with(loop(i, 4, loop(j, 6, set_c), kind=VECTORIZE)), "a loop stands inside a vectorized loop"),
    (copy_with(loop(i, 4, loop(j, 6, set_c, kind=UNROLL), kind=VECTORIZE)), "a loop stands inside a vectorized loop"),
    (copy_with(loop(i, 4, loop(j, 6, set_c, kind=PARALLEL), kind=UNROLL)), "a parallel loop stands inside an unrolled"),
    (
        copy_with(loop(i, 4, set_c, loop(j, 6, set_c, kind=PARALLEL), kind=PARALLEL)),
        "a parallel loop inside another must be the whole body of it",
    ),
    (copy_with(If(load("A", 0, 0), set_c)), "the condition is float32, not bool"),
]

SCOPES = [
    (
        copy_with(Allocate(local, loop(i, 4, set_local, kind=PARALLEL))),
        "T is private to the thread outside the parallel",
    ),
    (
        copy_with(Allocate(registers, loop(i, 4, store("C", (i, 0), load("R", 0)), kind=PARALLEL))),
        "R is private to the thread outside the parallel loop that uses it",
    ),
    (
        copy_with(loop(i, 4, Allocate(shared, store("S", (0,), ZERO)), kind=PARALLEL)),
        "S is shared by all threads but allocated inside a parallel loop",
    ),
    (copy_with(Allocate(buffer("P", (4,)), set_c)), "the allocated buffer P has scope param"),
    (func((local,), (C,), set_c), "parameter T has scope local"),
    (
        copy_with(Allocate(registers, loop(i, 4, store("R", (i,), ZERO)))),
        "R is in registers but indexed with i, not a constant",
    ),
]

BUFFERS = [
    (copy_with(Allocate(buffer("T", (0,), scope=Scope.LOCAL), set_c)), "the size 0 of T is not positive"),
    (
        copy_with(loop(i, 4, Allocate(buffer("T", (i,), scope=Scope.LOCAL), set_c))),
        "the size i of T is not a closed form",
    ),
    (copy_with(Allocate(buffer("T", (t,), scope=Scope.LOCAL), set_c)), "the size t of T is not a constant"),
    (copy_with(Allocate(buffer("T", (4,), "float8", Scope.LOCAL), set_c)), "T has the unknown dtype 'float8'"),
    (
        copy_with(Allocate(replace(local, layout=Layout((1, 0))), set_c)),
        "the layout order (1, 0) of T is not a permutation",
    ),
    (
        copy_with(Allocate(replace(local, layout=Layout((0,), ((1, num(2)),))), set_c)),
        "the layout of T tiles the dimensions",
    ),
    (
        copy_with(Allocate(replace(local, layout=Layout((0,), ((0, num(0)),))), set_c)),
        "the size 0 of T is not positive",
    ),
]

x, y = Var("x", F32), Var("y", F32)
STORES = [
    (copy_with(store("C", (0,), ZERO)), "C has 2 dimensions but is indexed with 1"),
    (copy_with(store("C", (0, 0), load("A", 0))), "A has 2 dimensions but is indexed with 1"),
    (copy_with(store("C", (0, 0), Const(0.0, F64))), "C holds float32 but is accessed as float64"),
    (
        copy_with(store("C", (0, 0), Cast(load("A", 0, 0, dtype=F64), F32))),
        "A holds float32 but is accessed as float64",
    ),
    (copy_with(store("C", (Const(0, "int32"), 0), ZERO)), "an index of C is not int64"),
    (copy_with(Store(("C",), (num(0), num(0)), ())), "0 values are stored to 1 buffers"),
    (copy_with(Store(("C", "C"), (num(0), num(0)), (ZERO, ZERO))), "one buffer is stored to twice"),
    (
        copy_with(Store(("C",), (num(0), num(0)), (ZERO,), argmax())),
        "the reducer argmax combines 2 with 2 values into 2 with 2 identities, for 1 buffers",
    ),
    (copy_with(store("C", (0, 0), ZERO, reducer("add", F64))), "lhs 0 of the reducer add is float64 but the value is"),
    (
        copy_with(store("C", (0, 0), ZERO, Reducer("odd", (x,), (x,), (x + x,), (ZERO,)))),
        "the operands x, x of the reducer odd are not distinct",
    ),
    (
        copy_with(store("C", (0, 0), ZERO, Reducer("odd", (x,), (y,), (x + Var("z", F32),), (ZERO,)))),
        "the reducer odd uses z, not one of its operands",
    ),
    (
        copy_with(store("C", (0, 0), ZERO, Reducer("odd", (x,), (y,), (x + load("A", 0, 0),), (ZERO,)))),
        "the reducer odd uses A[0, 0], not one of its operands",
    ),
]


@pytest.mark.parametrize(("bad", "message"), BINDING + ORDER + LOOPS + SCOPES + BUFFERS + STORES)
def test_must_fail(bad, message):
    with pytest.raises(IRError, match=re.escape(message)):
        verify(bad, concrete=True)


@pytest.mark.parametrize(
    ("e", "problem"),
    [
        (Const(300, "int8"), "the constant 300 does not fit int8 (8 bits)"),
        (Const(-1, "uint8"), "the constant -1 does not fit uint8 (8 bits)"),
        (Const(2**63, I64), f"the constant {2**63} does not fit int64 (64 bits)"),
        (Const(1, F32), "a constant of float32 holds the int 1"),
        (Const(1.0, I64), "a constant of int64 holds the float 1.0"),
        (Const(True, "int32"), "a constant of int32 holds the bool True"),
        (Const(1, "float8"), "unknown dtype 'float8'"),
        (Binary("add", i, load("A", 0, 0)), "add of int64 and float32"),
        (Binary("plus", i, i), "unknown operation 'plus'"),
        (Binary("and", i, i), "and needs bool operands, not int64"),
        (Binary("mod", load("A", 0, 0), load("A", 0, 0)), "mod needs integers, not float32"),
        (Binary("shl", i < 1, i < 2), "shl needs integers, not bool"),
        (Binary("div", i, j), "div needs floats, not int64"),
        (Binary("add", i < 1, i < 2), "add needs numbers, not bool"),
        (Call("gamma", (i,)), "unknown function 'gamma'"),
        (Call("exp", (i,)), "exp needs a float, not int64"),
        (Call("abs", (i, j)), "abs takes 1 argument, not 2"),
        (Call("not", (i,)), "not does not take int64"),
        (Call("neg", (i < 1,)), "neg does not take bool"),
        (Select(i, j, k), "the condition of select is int64, not bool"),
        (Select(i < 1, i, load("A", 0, 0)), "select of int64 and float32"),
        (Load("A", (i < 1,), F32), "an index of A is bool, not int64"),
        (Cast(i, "float8"), "unknown dtype 'float8'"),
    ],
)
def test_ill_typed_nodes(e, problem):
    assert type_problem(e) == problem


def test_ill_typed_nodes_are_found_inside_statements():
    wrong = store("C", (0, 0), Cast(Binary("add", i < 1, i < 2), F32))
    with pytest.raises(IRError, match=re.escape("add needs numbers, not bool in (i < 1) + (i < 2)")):
        verify(copy_with(loop(i, 4, wrong)))


def test_min_and_max_of_bools_and_every_comparison_pass():
    assert type_problem(Binary("max", i < 1, i < 2)) is None
    assert type_problem(Binary("lt", i < 1, i < 2)) is None


def test_register_indices_may_still_be_loops_before_unrolling():
    verify(copy_with(Allocate(registers, loop(i, 4, store("R", (i,), ZERO)))))


@pytest.mark.parametrize(
    ("dtype", "bounds"), [("int8", (-128, 127)), ("uint8", (0, 255)), ("int32", (-(2**31), 2**31 - 1))]
)
def test_integer_ranges(dtype, bounds):
    assert DTYPES[dtype].integer_range == bounds
    assert all(type_problem(const(b, dtype)) is None for b in bounds)


@pytest.mark.parametrize(("lanes", "fits"), [(4, True), (2, False)])
def test_small_elements_are_copied_asynchronously_with_their_neighbours(lanes: int, fits: bool) -> None:
    lane, thread = Var("lane", I64), Var("t", I64)
    start = replace(store("s", (lane,), load("A", lane, dtype="int8")), asynchronous=True)
    fill = loop(lane, lanes, start, kind=ForKind.UNROLL)
    read = store("C", (thread,), load("s", thread, dtype="int8"))
    body = Allocate(buffer("s", (lanes,), "int8", Scope.SHARED), Seq((fill, Commit(), Wait(0), Barrier(), read)))
    f = func([buffer("A", (8,), "int8")], [buffer("C", (1,), "int8")], loop(thread, 1, body, kind=ForKind.THREAD_X))
    if fits:
        verify(f)
    else:
        with pytest.raises(IRError, match="an element of 1 bytes cannot be copied asynchronously"):
            verify(f)

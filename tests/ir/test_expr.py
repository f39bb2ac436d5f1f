"""Building expressions: interning, promotion, folding, neutral elements, refusals."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest

from autosched.errors import ExpressionError
from autosched.ir.dtype import DTYPES, promote
from autosched.ir.expr import (
    COMPARISON,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Select,
    Var,
    binary,
    call,
    cast,
    ceildiv,
    const,
    imax,
    imin,
    product,
    select,
)

i, j, t = Var("i", "int64"), Var("j", "int64"), Param("t")
x, y = Load("X", (i,), "float32"), Load("Y", (i, j), "float32")
p, q = i < 3, j < 3


# Interning


@pytest.mark.parametrize(
    "build",
    [
        lambda: Var("i", "int64"),
        lambda: Param("t"),
        lambda: Const(0.1, "float32"),
        lambda: (Var("i", "int64") + 1) * Param("t"),
        lambda: Load("X", (Var("i", "int64") + 1,), "float32"),
        lambda: call("exp", Load("X", (i,), "float32") * 2.0),
        lambda: select(Var("i", "int64") < 3, Load("X", (i,), "float32"), 0.0),
        lambda: cast(Var("i", "int64"), "float32"),
    ],
)
def test_equal_nodes_are_one_object(build):
    assert build() is build()
    assert build() == build()
    assert hash(build()) == hash(build())


@pytest.mark.parametrize(("short", "full"), [((Const, 2), (Const, 2, "int64")), ((Var, "i"), (Var, "i", "int64"))])
def test_a_default_dtype_left_out_is_the_same_node(short, full):
    assert short[0](*short[1:]) is full[0](*full[1:])


def test_zeros_of_both_signs_are_two_constants():
    negative, positive = const(-0.0, "float32"), const(0.0, "float32")
    assert negative is not positive
    assert math.copysign(1.0, negative.value) == -1.0
    assert math.copysign(1.0, positive.value) == 1.0


def test_nan_is_one_constant():
    assert const(float("nan"), "float32") is const(-float("nan"), "float32")


def test_truth_is_not_one():
    assert const(True, "bool") is not const(1)
    assert const(1, "bool") is const(True, "bool")
    assert const(1, "bool").value is True
    assert const(1, "float32") is const(1.0, "float32")
    assert type(const(1, "float32").value) is float
    assert const(1, "int32") is not const(1, "int64")


def test_names_and_kinds_do_not_mix():
    assert Var("n", "int64") is not Param("n")
    assert Var("n", "int64") is not Var("n", "int32")
    assert Load("X", (i,), "float32") is not Load("X", (j,), "float32")


@pytest.mark.parametrize(
    "node", [i, Const(3), Param("t"), i + 1, Load("X", (i,), "float32"), abs(i), i.astype("int32")], ids=str
)
def test_classes_of_nodes_are_asked_for_without_a_hook(node):
    """A metaclass, even one without `__instancecheck__`, makes `isinstance` and `match` twice as long."""
    assert type(type(node)) is type


def test_a_node_made_again_is_left_as_it_is():
    node = Binary("lt", i, j)
    again = Binary("lt", i, j)
    assert again is node
    assert (again.op, again.a, again.b, again.dtype) == ("lt", i, j, "bool")
    with pytest.raises(ValueError, match="zip"):
        Load("X", (i,))  # a field is missing


def test_unused_nodes_are_freed():
    from autosched.ir.interning import TABLE

    gc.collect()  # what other tests left, or it may go while the nodes are made
    before = len(TABLE)
    nodes = [Var(f"only here {n}", "int64") + n for n in range(2, 50)]
    assert len(TABLE) > before
    del nodes
    gc.collect()
    assert len(TABLE) <= before


# Promotion


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        ("int8", "uint8", "int32"),
        ("uint8", "int8", "int32"),
        ("int8", "int32", "int32"),
        ("int64", "float32", "float32"),
        ("float32", "float64", "float64"),
        ("bool", "int8", "int8"),
        ("bool", "float32", "float32"),
    ],
)
def test_promotion(a, b, result):
    assert promote(a, b) == result


def test_promotion_is_symmetric_and_operands_are_cast():
    signed = [name for name, row in DTYPES.items() if row.kind == "i"]
    for a, b in ((a, b) for a in DTYPES for b in DTYPES):
        if "uint64" in (a, b) and {a, b} & {*signed}:
            continue  # refused: `tests/ir/test_dtype.py`
        assert promote(a, b) == promote(b, a), (a, b)
        total = binary("max", Var("a", a), Var("b", b))
        computed = DTYPES[promote(a, b)].computes_in
        assert total.dtype == computed, (a, b)
        assert {child.dtype for child in total.children} == {computed}, (a, b)


@pytest.mark.parametrize(
    ("e", "dtype"),
    [
        (x + 1, "float32"),
        (x + 1.5, "float32"),
        (Load("D", (i,), "float64") * 0.5, "float64"),
        (Load("B", (i,), "uint8") + 1, "uint8"),
        (Load("B", (i,), "uint8") * 0.5, "float32"),
        (2 - i, "int64"),
        (1 / x, "float32"),
        (p + 1, "int64"),
    ],
)
def test_python_numbers_take_the_dtype_of_the_other_side(e, dtype):
    assert e.dtype == dtype
    assert {child.dtype for child in e.children} == {dtype}


@pytest.mark.parametrize("op", sorted(COMPARISON))
def test_comparisons_are_bool(op):
    assert binary(op, x, 1.0).dtype == "bool"
    assert binary(op, i, j).dtype == "bool"


def test_a_cast_to_the_same_dtype_and_of_a_constant_vanishes():
    assert cast(x, "float32") is x
    assert cast(const(3), "float64") is const(3.0, "float64")
    assert isinstance(cast(x, "int32"), Cast)
    assert isinstance(cast(const(2.5, "float32"), "int32"), Cast)


@pytest.mark.parametrize("value", [-129, -128, -1, 0, 127, 128, 255, 256, 2**31, -(2**31) - 1])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_a_constant_is_cast_as_an_array_is(value, dtype):
    assert cast(const(value), dtype) is const(np.array(value).astype(dtype).item(), dtype)


# Folding


@pytest.mark.parametrize(
    ("op", "a", "b", "value"),
    [
        ("add", 7, -2, 5),
        ("sub", 7, -2, 9),
        ("mul", 7, -2, -14),
        ("floordiv", 7, -2, -4),
        ("floordiv", -7, 2, -4),
        ("mod", -7, 2, 1),
        ("mod", 7, -2, -1),
        ("ceildiv", 7, 2, 4),
        ("ceildiv", -7, 2, -3),
        ("min", 7, -2, -2),
        ("max", 7, -2, 7),
    ],
)
def test_index_constants_fold_as_python_does(op, a, b, value):
    assert binary(op, const(a), const(b)) is const(value)
    assert binary(op, a, b) is const(value)


@pytest.mark.parametrize(
    ("op", "value"), [("eq", False), ("ne", True), ("lt", False), ("le", False), ("gt", True), ("ge", True)]
)
def test_comparisons_of_index_constants_fold(op, value):
    assert binary(op, const(7), const(-2)) is const(value, "bool")


@pytest.mark.parametrize("op", ["floordiv", "mod", "ceildiv"])
def test_division_by_a_zero_constant_is_kept(op):
    assert isinstance(binary(op, const(7), const(0)), Binary)


def test_only_index_arithmetic_folds():
    assert isinstance(binary("add", const(0.1, "float32"), const(0.2, "float32")), Binary)
    assert isinstance(binary("add", const(100, "int8"), const(100, "int8")), Binary)


@pytest.mark.parametrize(
    ("build", "result"),
    [
        (lambda: i + 0, i),
        (lambda: 0 + i, i),
        (lambda: i - 0, i),
        (lambda: i - i, const(0)),
        (lambda: i * 1, i),
        (lambda: 1 * i, i),
        (lambda: i * 0, const(0)),
        (lambda: i // 1, i),
        (lambda: ceildiv(i, 1), i),
        (lambda: i % 1, const(0)),
        (lambda: imin(i, i), i),
        (lambda: imax(i, i), i),
        (lambda: p & const(True, "bool"), p),
        (lambda: p & const(False, "bool"), const(False, "bool")),
        (lambda: p | const(False, "bool"), p),
        (lambda: p | const(True, "bool"), const(True, "bool")),
        (lambda: product(()), const(1)),
        (lambda: product([i, const(1), t]), i * t),
        (lambda: -const(3), const(-3)),
    ],
)
def test_neutral_elements_vanish(build, result):
    assert build() is result


@pytest.mark.parametrize("build", [lambda: x + 0.0, lambda: x * 1.0, lambda: x * 0.0, lambda: x - x])
def test_float_arithmetic_stays_as_written(build):
    """x + 0.0 is not x for x = -0.0, x * 0.0 is not 0 for x = inf: the result must be the reference's."""
    assert isinstance(build(), Binary)


def test_select_folds_only_what_is_sure():
    assert select(const(True, "bool"), x, y) is x
    assert select(const(False, "bool"), x, y) is y
    assert select(p, x, x) is x
    chosen = select(p, x, 0)
    assert isinstance(chosen, Select)
    assert chosen.b is const(0.0, "float32")


# Structure and operators


def test_children():
    assert (x + y).children == (x, y)
    assert y.children == (i, j)
    assert Select(p, x, y).children == (p, x, y)
    assert Cast(x, "int32").children == (x,)
    assert call("exp", x).children == (x,)
    assert i.children == t.children == const(1).children == ()


def test_operators_follow_the_dtype():
    bits = Load("B", (i,), "uint8")
    assert [(p & q).op, (p | q).op] == ["and", "or"]
    assert [(bits & 1).op, (bits | 1).op, (bits ^ 1).op, (bits << 1).op, (bits >> 1).op] == [
        "bitand", "bitor", "bitxor", "shl", "shr",
    ]  # fmt: skip
    assert [str(n) for n in (1 << bits, 8 >> bits)] == [str(binary(op, n, bits)) for op, n in (("shl", 1), ("shr", 8))]
    assert (~bits, ~i) == (bits ^ 255, i ^ -1)
    assert ((p ^ q).op, divmod(i, 7), divmod(7, i)) == ("ne", (i // 7, i % 7), (7 // i, 7 % i))
    assert {(1 & bits).op, (1 | bits).op, (1 ^ bits).op} == {"bitand", "bitor", "bitxor"}
    assert [(i.equal(j)).op, (i.not_equal(j)).op, (~p).fn, abs(x).fn, (-x).fn] == ["eq", "ne", "not", "abs", "neg"]
    assert [(2**x).op, (x**2).op, (7 // i).op, (7 % i).op] == ["pow", "pow", "floordiv", "mod"]


def test_a_call_takes_the_dtype_of_its_argument():
    assert call("exp", Load("D", (i,), "float64")).dtype == "float64"
    assert isinstance(call("abs", i), Call)
    assert call("abs", i).dtype == "int64"


# Refusals


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: bool(x), r"X\[i\] has no truth value.*te\.select"),
        (lambda: 1 if i < 2 else 0, r"i < 2 has no truth value"),
        (lambda: x // 2, r"floordiv needs integers but got float32"),
        (lambda: x % 2, r"mod needs integers but got float32"),
        (lambda: x << 1, r"shl needs integers but got float32"),
        (lambda: i / 2, r"/ needs floats but got int64 in \(i\) / \(2\)"),
        (lambda: binary("and", i, j), r"and needs bool operands but got int64"),
        (lambda: call("exp", i), r"exp needs a float but got int64 in exp\(i\)"),
        (lambda: call("not", i), r"~ needs a bool but got int64"),
        (lambda: ~x, r"bitxor needs integers but got float32"),
        (lambda: call("gamma", x), r"unknown function 'gamma'"),
        (lambda: select(i, x, y), r"condition of select must be bool but i is int64"),
        (lambda: cast(x, "float8"), r"dtype 'float8' is not supported; use one of bool"),
        (lambda: const(1.5), r"the constant 1.5 is not an integer but int64 was expected"),
    ],
)
def test_refusals_are_sentences(build, message):
    with pytest.raises(ExpressionError, match=message):
        build()


def test_text_of_every_node_kind():
    e: Expr = select(p, cast(i, "float32") + x, call("exp", y) * 2.0)
    assert str(e) == "select(i < 3, float32(i) + X[i], exp(Y[i, j]) * 2.0)"

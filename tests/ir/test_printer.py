"""Golden text of expressions, statements and functions."""

from __future__ import annotations

import ast

import pytest

from autosched.ir.expr import Binary, Const, Load, Param, Var, binary, call, cast, ceildiv, const, imax, imin, select
from autosched.ir.printer import buffer_text, expr_text, func_text, headline, stmt_text
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, Func, If, Layout, Prefetch, Reducer, Scope, Seq, Store

i, j, k, t = Var("i", "int64"), Var("j", "int64"), Var("k", "int64"), Param("t")
a = Load("A", (i, k), "float32")
d = Load("D", (i,), "float64")
u = Load("U", (i,), "uint8")
f32 = "float32"


def c(value: int) -> Const:
    return Const(value, "int64")


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (13 - 4 * j, "13 - 4*j"),
        (imin(4, 13 - 4 * j), "min(4, 13 - 4*j)"),
        ((i + 1) * 3, "(i + 1)*3"),
        (i + 3 * j + 2, "i + 3*j + 2"),
        (i + (j + 2), "i + (j + 2)"),
        (i - (j - 2), "i - (j - 2)"),
        ((i - j) - 2, "i - j - 2"),
        (i * 2 // 3 % 4, "i*2//3%4"),
        (i * (j // 2), "i*(j//2)"),
        (i // (j * 2), "i//(j*2)"),
        (i + -4, "i - 4"),
        (i + j * -4, "i - j*4"),
        (i + -1 * j, "i - j"),
        (-4 + i, "i - 4"),
        (j * -8 + 21, "21 - j*8"),
        (j * -8 + i * -2, "j*-8 - i*2"),
        (-1 * j + (i + 2), "i + 2 - j"),
        (-(i + j), "-(i + j)"),
        (-i * j, "-i*j"),
        (-(i * j), "-(i*j)"),
        (ceildiv(i + 1, t), "ceildiv(i + 1, t)"),
        (imax(i, imin(j, t)), "max(i, min(j, t))"),
        (a * 2.0 + 0.1, "A[i, k] * 2.0 + 0.1"),
        (a / (a + 1.0), "A[i, k] / (A[i, k] + 1.0)"),
        (a**2, "pow(A[i, k], 2.0)"),
        (call("exp", -a), "exp(-A[i, k])"),
        (a - -a, "A[i, k] - -A[i, k]"),
        ((u & 3) | (u << 1), "U[i] & 3 | U[i] << 1"),
        ((u ^ 3) >> 1, "(U[i] ^ 3) >> 1"),
        ((i >= 1) & ((i < 3) | j.equal(2)), "i >= 1 and (i < 3 or j == 2)"),
        (~((i < 1) | (j < 1)), "not (i < 1 or j < 1)"),
        (~(i < 1), "not i < 1"),
        ((i < 1).equal(j < 1), "(i < 1) == (j < 1)"),
        (select(i < 3, a, 0.0), "select(i < 3, A[i, k], 0.0)"),
        (cast(i, f32) * 0.5, "float32(i) * 0.5"),
        (Load("S", (), f32), "S[]"),
        (const(True, "bool"), "True"),
    ],
)
def test_expressions(e, text):
    assert expr_text(e) == text
    assert str(e) == expr_text(e)


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (const(0.1, "float32"), "0.1"),
        (const(0.1, "float64"), "0.1_f64"),
        (const(1e-30, "float32"), "1e-30"),
        (const(float("inf"), "float32"), "inf"),
        (const(float("-inf"), "float64"), "-inf_f64"),
        (const(float("nan"), "float32"), "nan"),
        (const(-0.0, "float32"), "-0.0"),
        (const(3), "3"),
        (const(3, "int32"), "3_i32"),
        (const(3, "uint8"), "3_u8"),
        (d + 0.1, "D[i] + 0.1"),
        (0.1 - d, "0.1 - D[i]"),
        (u + 1, "U[i] + 1"),
        (select(i < 1, const(1.0, "float64"), const(2.0, "float64")), "select(i < 1, 1.0_f64, 2.0_f64)"),
        (select(i < 1, const(1.0, "float64"), const(2.0, "float64")) * d, "select(i < 1, 1.0, 2.0) * D[i]"),
        (binary("add", const(1.0, "float64"), const(2.0, "float64")) * d, "(1.0 + 2.0) * D[i]"),
        (binary("lt", const(1.0, "float64"), const(2.0, "float64")), "1.0_f64 < 2.0_f64"),
        (call("exp", const(2.0, "float64")), "exp(2.0_f64)"),
        (cast(const(2.5, "float32"), "int32"), "int32(2.5)"),
    ],
)
def test_constants_carry_a_dtype_only_where_it_cannot_be_seen(e, text):
    assert expr_text(e) == text


def test_the_text_has_the_tree_of_the_expression():
    """Python parses the text back to the same tree, for all pairs of operators in both orders."""
    ops = ["add", "sub", "mul", "floordiv", "mod", "bitand", "bitor", "bitxor", "shl", "shr"]
    names = {
        ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod",
        ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor", ast.LShift: "shl", ast.RShift: "shr",
    }  # fmt: skip

    def tree(e):
        return (e.op, tree(e.a), tree(e.b)) if isinstance(e, Binary) else e.name

    def parsed(node):
        if isinstance(node, ast.BinOp):
            return names[type(node.op)], parsed(node.left), parsed(node.right)
        return node.id

    for outer in ops:
        for inner in ops:
            for e in (Binary(outer, Binary(inner, i, j), k), Binary(outer, i, Binary(inner, j, k))):
                assert parsed(ast.parse(expr_text(e), mode="eval").body) == tree(e), expr_text(e)


def reducer(name: str, op: str) -> Reducer:
    x, y = Var("x", f32), Var("y", f32)
    return Reducer(name, (x,), (y,), (binary(op, x, y),), (Const(0.0, f32),))


@pytest.mark.parametrize(
    ("combine", "text"),
    [
        (None, "C[i, j] = A[i, k]"),
        (reducer("sum", "add"), "C[i, j] += A[i, k]"),
        (reducer("prod", "mul"), "C[i, j] *= A[i, k]"),
        (reducer("maximum", "max"), "C[i, j] = max(C[i, j], A[i, k])"),
        (reducer("first", "sub"), "C[i, j] = first(C[i, j], A[i, k])"),
    ],
)
def test_stores(combine, text):
    if combine is not None and combine.name == "first":
        x, y = combine.lhs[0], combine.rhs[0]
        combine = Reducer("first", (x,), (y,), (select(x < y, x, y),), combine.identity)
    assert stmt_text(Store(("C",), (i, j), (a,), combine)) == text


def test_store_of_a_tuple():
    v, w, m, n = Var("v", f32), Var("w", f32), Var("m", "int64"), Var("n", "int64")
    argmax = Reducer(
        "argmax", (v, m), (w, n), (imax(v, w), select(v >= w, m, n)), (Const(-1e38, f32), Const(0, "int64"))
    )
    text = stmt_text(Store(("V", "I"), (i,), (a, k), argmax))
    assert text == "(V[i], I[i]) = argmax((V[i], I[i]), (A[i, k], k))"
    assert stmt_text(Store(("V", "I"), (i,), (a, k))) == "(V[i], I[i]) = (A[i, k], k)"


def test_a_store_names_its_stage_where_the_buffer_does_not():
    assert stmt_text(Store(("C",), (i,), (a,), None, "C")) == "C[i] = A[i, k]"
    assert stmt_text(Store(("C.acc",), (i,), (a,), None, "C")) == "C.acc[i] = A[i, k]  # C"


def test_a_stored_constant_has_the_dtype_of_its_buffer():
    assert stmt_text(Store(("D",), (i,), (Const(0.5, "float64"),))) == "D[i] = 0.5"


def test_buffers():
    layout = Layout((1, 0), ((1, c(16)),))
    packed = Buffer("A.pack", (c(16), c(4)), f32, Scope.LOCAL, layout)
    assert buffer_text(packed) == "A.pack: float32[16, 4] local layout(1,0; 1:16)"
    assert buffer_text(Buffer("S", (), "int64", Scope.PARAM)) == "S: int64[]"
    two = Buffer("W", (t * 2, c(8)), "int8", Scope.GLOBAL, Layout((0, 1), ((0, t), (1, c(4)))))
    assert buffer_text(two) == "W: int8[t*2, 8] global layout(0,1; 0:t, 1:4)"
    assert buffer_text(Buffer("T", (c(3), c(8)), f32, Scope.PARAM, Layout((1, 0)))) == "T: float32[3, 8] layout(1,0)"


GOLDEN = """\
kernel matmul
in  A: float32[13, 8]
in  B: float32[8, t]
out C: float32[13, t]

for i.0 in 0..4  # parallel
    alloc B.pack: float32[8, t] local layout(1,0; 1:4)
        for k in 0..8
            prefetch B[k + 1, 0]
            B.pack[k, 0] = B[k, 0]
    for i.1 in 0..min(4, 13 - 4*i.0)  # at most 4
        for k in 0..8  # unroll, reduce
            C[4*i.0 + i.1, 0] += A[4*i.0 + i.1, k] * B[k, 0]
        if i.1 < 2
            C[i.1, 0] = 0.0
        else
            C[i.1, 0] = 1.0"""


def test_a_function():
    i0, i1 = Var("i.0", "int64"), Var("i.1", "int64")
    row = 4 * i0 + i1
    pack = Buffer("B.pack", (c(8), t), f32, Scope.LOCAL, Layout((1, 0), ((1, c(4)),)))
    copy = Seq((Prefetch("B", (k + 1, c(0))), Store(("B.pack",), (k, c(0)), (Load("B", (k, c(0)), f32),))))
    update = Store(
        ("C",), (row, c(0)), (Load("A", (row, k), f32) * Load("B", (k, c(0)), f32),), reducer("sum", "add"), "C"
    )
    edge = If(i1 < 2, Store(("C",), (i1, c(0)), (Const(0.0, f32),)), Store(("C",), (i1, c(0)), (Const(1.0, f32),)))
    rows = For(
        i1, imin(4, 13 - 4 * i0), c(4), ForKind.SERIAL, Seq((For(k, c(8), c(8), ForKind.UNROLL, update, True), edge))
    )
    body = Seq((Allocate(pack, For(k, c(8), c(8), ForKind.SERIAL, copy)), rows))
    func = Func(
        "matmul",
        (
            Buffer("A", (c(13), c(8)), f32, Scope.PARAM),
            Buffer("B", (c(8), t), f32, Scope.PARAM),
            Buffer("C", (c(13), t), f32, Scope.PARAM),
        ),
        1,
        For(i0, c(4), c(4), ForKind.PARALLEL, body),
    )
    assert func_text(func) == GOLDEN
    assert headline(func.body) == "for i.0 in 0..4  # parallel"
    assert str(rows) == stmt_text(rows)


def test_an_allocation_around_the_rest_does_not_indent():
    buffer = Buffer("T", (c(4),), f32, Scope.LOCAL)
    write = Store(("T",), (c(0),), (Const(0.0, f32),))
    read = Store(("C",), (c(0),), (Load("T", (c(0),), f32),))
    assert stmt_text(Allocate(buffer, Seq((write, read)))) == ("alloc T: float32[4] local\nT[0] = 0.0\nC[0] = T[0]")
    assert stmt_text(Seq((Allocate(buffer, write), read))) == ("alloc T: float32[4] local\n    T[0] = 0.0\nC[0] = T[0]")


def test_an_extent_that_is_a_sum_has_parentheses():
    assert stmt_text(For(i, 13 - t, t, ForKind.SERIAL, Seq(()))) == "for i in 0..(13 - t)  # at most t"
    assert stmt_text(For(i, 4 * t, 4 * t, ForKind.VECTORIZE, Seq(()))) == "for i in 0..4*t  # vectorize"


def test_what_is_neither_expression_nor_statement_is_refused():
    with pytest.raises(TypeError, match="str is not an expression"):
        expr_text("i")
    with pytest.raises(TypeError, match="str is not a statement"):
        stmt_text("for")

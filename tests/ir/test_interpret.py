"""What the interpreter says the IR means: arithmetic, undefined behaviour, races, counts."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from autosched.ir.expr import Binary, Call, Cast, Const, Param, Select, Var, binary, call, cast, const, imin, select
from autosched.ir.interpreter.interpret import InterpretError, interpret
from autosched.ir.stmt import Allocate, For, ForKind, If, Layout, Prefetch, Scope, Seq, Store
from autosched.ir.verify import IRError, verify
from tests.ir.nests import F32, F64, I64, argmax, buffer, func, i, j, k, load, loop, num, reducer, store

PARALLEL, UNROLL, VECTORIZE = ForKind.PARALLEL, ForKind.UNROLL, ForKind.VECTORIZE
ZERO = Const(0.0, F32)


def backwards(n):
    return range(n - 1, -1, -1)


def value_of(e, dtype, **scalars):
    """The value of an expression over S[0], T[0] of the dtypes of the arrays given."""
    arrays = {name: np.atleast_1d(a) for name, a in scalars.items()}
    inputs = [buffer(name, (1,), str(a.dtype)) for name, a in arrays.items()]
    (result,) = interpret(func(inputs, [buffer("out", (1,), dtype)], store("out", (0,), e)), arrays)
    assert result.dtype == dtype
    return result[0]


def S(dtype):
    return load("S", 0, dtype=dtype)


def T(dtype):
    return load("T", 0, dtype=dtype)


# Whole nests


def matmul(n=13, tile=4, kind=ForKind.SERIAL):
    """C = A B with rows in tiles, the last one short, and the init beside the update."""
    i0, i1 = Var("i.0", I64), Var("i.1", I64)
    row = i0 * tile + i1
    rows = imin(tile, n - i0 * tile)
    init = loop(i1, rows, loop(j, 6, store("C", (row, j), ZERO, stage="C.init")), bound=tile)
    update = store("C", (row, j), load("A", row, k) * load("B", k, j), reducer("add"), "C")
    nest = loop(k, 5, loop(i1, rows, loop(j, 6, update, kind=VECTORIZE), bound=tile))
    outer = loop(i0, -(-n // tile), init, nest, kind=kind)
    return func([buffer("A", (n, 5)), buffer("B", (5, 6))], [buffer("C", (n, 6))], outer)


def matmul_inputs(n=13):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (n, 5)), rng.integers(-4, 5, (5, 6))
    return {"A": a.astype(F32), "B": b.astype(F32)}


@pytest.mark.parametrize("kind", [ForKind.SERIAL, PARALLEL, UNROLL])
@pytest.mark.parametrize("n", [1, 4, 13])
def test_a_tiled_matmul_with_a_tail(n, kind):
    counts: dict[str, int] = {}
    data = matmul_inputs(n)
    (c,) = interpret(matmul(n, kind=kind), data, parallel_order=backwards, counts=counts)
    assert c.dtype == np.float32
    np.testing.assert_array_equal(c, data["A"] @ data["B"])
    assert counts == {"C.init": 6 * n, "C": 30 * n}


def test_inputs_are_left_alone_and_may_be_views():
    data = matmul_inputs()
    strided = {"A": np.asfortranarray(data["A"]), "B": data["B"][::1]}
    before = {name: a.copy() for name, a in strided.items()}
    (c,) = interpret(matmul(), strided)
    np.testing.assert_array_equal(c, data["A"] @ data["B"])
    for name, a in strided.items():
        np.testing.assert_array_equal(a, before[name])


def test_layout_changes_nothing():
    pack = buffer("P", (4, 6), scope=Scope.LOCAL)
    packed = type(pack)("P", pack.shape, F32, Scope.LOCAL, Layout((1, 0), ((1, num(4)),)))
    copy = loop(i, 4, loop(j, 6, store("P", (i, j), load("A", i, j))))
    back = loop(i, 4, loop(j, 6, store("C", (i, j), load("P", i, j))))
    a = np.arange(24, dtype=F32).reshape(4, 6)
    (c,) = interpret(func([buffer("A", (4, 6))], [buffer("C", (4, 6))], Allocate(packed, Seq((copy, back)))), {"A": a})
    np.testing.assert_array_equal(c, a)


def test_several_outputs_and_a_scalar():
    outputs = [buffer("C", (3,)), buffer("D", (), I64)]
    c, d = interpret(func([], outputs, loop(i, 3, store("C", (i,), cast(i, F32))), store("D", (), num(7))), {})
    np.testing.assert_array_equal(c, [0, 1, 2])
    assert d.shape == ()
    assert d == 7


def test_if_and_else():
    body = If(i < 2, store("C", (i,), Const(1.0, F32)), store("C", (i,), Const(2.0, F32)))
    (c,) = interpret(func([], [buffer("C", (4,))], loop(i, 4, body)), {})
    np.testing.assert_array_equal(c, [1, 1, 2, 2])
    lone = Seq((loop(i, 4, store("C", (i,), ZERO)), loop(i, 4, If(i < 2, store("C", (i,), Const(1.0, F32))))))
    (c,) = interpret(func([], [buffer("C", (4,))], lone), {})
    np.testing.assert_array_equal(c, [1, 1, 0, 0])


def test_an_empty_tail_runs_no_iteration():
    body = Seq((store("C", (0,), ZERO), loop(i, 2, loop(j, 1 - i * 5, store("C", (0,), Const(1.0, F32)), bound=1))))
    counts: dict[str, int] = {}
    (c,) = interpret(func([], [buffer("C", (1,))], body), {}, counts=counts)
    assert c[0] == 1.0
    assert counts == {}


def test_prefetch_has_no_effect_even_out_of_bounds():
    body = Seq((Prefetch("A", (num(99),)), loop(i, 4, Prefetch("A", (i + 3,))), store("C", (0,), load("A", 1))))
    (c,) = interpret(func([buffer("A", (4,))], [buffer("C", (1,))], body), {"A": np.arange(4, dtype=F32)})
    assert c[0] == 1.0


def test_loop_variables_of_neighbouring_loops_may_share_a_name():
    body = [loop(i, 2, store("C", (i,), ZERO)), loop(i, 2, store("C", (i + 2,), cast(i, F32)))]
    (c,) = interpret(func([], [buffer("C", (4,))], *body), {})
    np.testing.assert_array_equal(c, [0, 0, 0, 1])


# Reducers


def reduce_all(combine, values, dtype=F32):
    identity = combine.identity[0]
    body = Seq((store("C", (), identity), loop(i, len(values), store("C", (), load("A", i, dtype=dtype), combine))))
    f = func([buffer("A", (len(values),), dtype)], [buffer("C", (), dtype)], body)
    (c,) = interpret(f, {"A": np.array(values, dtype)})
    return c[()]


def test_reducers_of_one_value():
    assert reduce_all(reducer("add"), [1, 2, 4]) == 7
    assert reduce_all(reducer("mul", identity=1), [3, 2, 4]) == 24
    assert reduce_all(reducer("max", identity=-math.inf), [3, 9, 4]) == 9
    assert reduce_all(reducer("min", "int32", 2**31 - 1), [3, 9, -4], "int32") == -4
    assert reduce_all(reducer("or", "bool"), [False, True], "bool")


def test_a_reducer_that_is_more_than_one_operation():
    x, y = Var("x", F32), Var("y", F32)
    longest = reducer("max")
    absolute = type(longest)("absmax", (x,), (y,), (binary("max", abs(x), abs(y)),), (ZERO,))
    assert reduce_all(absolute, [3, -9, 4]) == 9


def test_a_reducers_operand_may_be_called_as_a_loop():
    lhs, rhs = Var("i", F32), Var("j", F32)
    shadow = type(reducer("add"))("sub", (lhs,), (rhs,), (lhs - rhs * 1.0,), (ZERO,))
    assert reduce_all(shadow, [1, 2, 4]) == -7


@pytest.mark.parametrize("row", list(itertools.permutations([1.0, 5.0, 5.0, 2.0])))
def test_argmax(row):
    init = Store(("V", "N"), (), argmax().identity)
    body = Seq((init, loop(k, 4, Store(("V", "N"), (), (load("A", k), k), argmax()))))
    f = func([buffer("A", (4,))], [buffer("V", ()), buffer("N", (), I64)], body)
    value, position = interpret(f, {"A": np.array(row, F32)})
    assert value == max(row)
    assert position == row.index(max(row))


def test_a_tuple_store_computes_all_values_first():
    body = Seq(
        (Store(("X", "Y"), (), (Const(1.0, F32), Const(2.0, F32))), Store(("X", "Y"), (), (load("Y"), load("X"))))
    )
    x, y = interpret(func([], [buffer("X", ()), buffer("Y", ())], body), {})
    assert (x, y) == (2.0, 1.0)


# Arithmetic


def test_float32_rounds_after_every_operation():
    big, one = np.float32(2**24), np.float32(1)
    assert value_of((S(F32) + T(F32)) + T(F32), F32, S=big, T=one) == 2**24
    assert value_of(cast((S(F32) + T(F32)) + T(F32), F64), F64, S=big, T=one) == 2**24
    assert value_of((cast(S(F32), F64) + cast(T(F32), F64)), F64, S=big, T=one) == 2**24 + 1
    third = value_of(S(F32) / T(F32), F32, S=one, T=np.float32(3))
    assert third == np.float32(1) / np.float32(3)


def test_a_float32_constant_is_rounded_and_a_float64_one_is_not():
    assert value_of(Cast(Const(0.1, F32), F64), F64) == np.float64(np.float32(0.1))
    assert value_of(Const(0.1, F64), F64) == 0.1


def test_float32_accumulation_matches_numpy_step_by_step():
    values = np.random.default_rng(1).standard_normal(100).astype(F32)
    expected = np.float32(0)
    for v in values:
        expected = expected + v
    assert reduce_all(reducer("add"), values) == expected


@pytest.mark.parametrize("dtype", [F32, F64])
def test_float_specials(dtype):
    zero, one, huge = (np.array(v, dtype) for v in (0.0, 1.0, np.finfo(dtype).max))
    assert value_of(S(dtype) / T(dtype), dtype, S=one, T=zero) == math.inf
    assert math.isnan(value_of(S(dtype) / T(dtype), dtype, S=zero, T=zero))
    assert value_of(S(dtype) * T(dtype), dtype, S=huge, T=huge) == math.inf
    assert value_of(S(dtype) + S(dtype), dtype, S=huge) == math.inf
    assert math.copysign(1, value_of(-S(dtype), dtype, S=zero)) == -1
    assert value_of(abs(-S(dtype)), dtype, S=one) == 1


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("op", ["min", "max"])
def test_min_and_max_of_floats_hand_nan_on(dtype, op):
    nan, one = np.array(math.nan, dtype), np.array(1.0, dtype)
    assert math.isnan(value_of(binary(op, S(dtype), T(dtype)), dtype, S=nan, T=one))
    assert math.isnan(value_of(binary(op, S(dtype), T(dtype)), dtype, S=one, T=nan))


@pytest.mark.parametrize("dtype", [F32, F64])
def test_remainders_of_floats_are_exact(dtype):
    for a, b in ((1e9, 3.0), (1.0, 0.1), (-5.5, 2.0), (3.0, math.inf), (1e30, 1e-30)):
        x, y = np.array(a, dtype), np.array(b, dtype)
        assert value_of(binary("fmod", S(dtype), T(dtype)), dtype, S=x, T=y) == math.fmod(x, y)
    for a, b in ((math.inf, 1.0), (1.0, 0.0), (math.nan, 1.0)):
        assert math.isnan(
            value_of(binary("fmod", S(dtype), T(dtype)), dtype, S=np.array(a, dtype), T=np.array(b, dtype))
        )


FUNCTIONS = {
    "exp": math.exp,
    "exp2": lambda v: 2**v,
    "log": math.log,
    "tanh": math.tanh,
    "sqrt": math.sqrt,
    "rsqrt": lambda v: 1 / math.sqrt(v),
    "erf": math.erf,
    "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "sin": math.sin,
    "cos": math.cos,
}


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("v", [0.5, 1.5, 2.5, 0.75])
def test_functions(fn, v, dtype):
    result = value_of(call(fn, S(dtype)), dtype, S=np.array(v, dtype))
    np.testing.assert_allclose(result, np.array(FUNCTIONS[fn](v), dtype), rtol=2 * np.finfo(dtype).eps)


def test_functions_at_the_edge_are_ieee():
    assert value_of(call("exp", S(F32)), F32, S=np.float32(1000)) == math.inf
    assert value_of(call("sigmoid", S(F32)), F32, S=np.float32(-1000)) == 0
    assert value_of(call("log", S(F32)), F32, S=np.float32(0)) == -math.inf
    assert math.isnan(value_of(call("sqrt", S(F64)), F64, S=np.float64(-1)))
    assert value_of(S(F32) ** T(F32), F32, S=np.float32(2), T=np.float32(0.5)) == np.float32(math.sqrt(2))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "bitand", "bitor", "bitxor", "min", "max"])
def test_integers_wrap_as_numpys(dtype, op):
    numpy_op = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "bitand": np.bitwise_and, "bitor": np.bitwise_or,
        "bitxor": np.bitwise_xor, "min": np.minimum, "max": np.maximum,
    }[op]  # fmt: skip
    info = np.iinfo(dtype)
    for s, u in itertools.product([info.min, info.max, 0, 1, 100, 3], repeat=2):
        a, b = np.array([s], dtype), np.array([u], dtype)
        assert value_of(Binary(op, S(dtype), T(dtype)), dtype, S=a, T=b) == numpy_op(a, b)[0]


def test_negation_and_abs_wrap():
    assert value_of(-S("int8"), "int8", S=np.int8(-128)) == -128
    assert value_of(abs(S("int8")), "int8", S=np.int8(-128)) == -128
    assert value_of(-S("uint8"), "uint8", S=np.uint8(1)) == 255


def test_index_arithmetic_wraps_at_64_bits():
    top = const(2**63 - 1)
    body = loop(i, 2, store("C", (i,), Binary("add", top, i)))
    (c,) = interpret(func([], [buffer("C", (2,), I64)], body), {})
    assert c.tolist() == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize(("a", "b"), [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (0, 5)])
def test_division_rounds_as_python_does(a, b):
    s, u = np.int32(a), np.int32(b)
    assert value_of(S("int32") // T("int32"), "int32", S=s, T=u) == a // b
    assert value_of(S("int32") % T("int32"), "int32", S=s, T=u) == a % b
    assert value_of(binary("ceildiv", S("int32"), T("int32")), "int32", S=s, T=u) == math.ceil(a / b)


def test_shifts_and_powers():
    assert value_of(S("int8") << 7, "int8", S=np.int8(1)) == -128
    assert value_of(S("int8") >> 1, "int8", S=np.int8(-3)) == -2
    assert value_of(S("uint8") >> 1, "uint8", S=np.uint8(255)) == 127
    assert value_of(S("int32") ** 5, "int32", S=np.int32(-3)) == -243
    assert value_of(S("uint8") ** 200, "uint8", S=np.uint8(3)) == pow(3, 200, 256)


@pytest.mark.parametrize(
    ("source", "dtype", "value", "result"),
    [
        ("float32", "int8", -1.9, -1),
        ("float64", "int64", 2.0**62, 2**62),
        ("int32", "int8", 300, 44),
        ("int8", "uint8", -1, 255),
        ("int64", "float32", 2**53 + 2**29 + 1, float(np.float32(2**53 + 2**30))),
        ("int32", "float32", 2**24 + 1, 2.0**24),
        ("float64", "float32", 0.1, float(np.float32(0.1))),
        ("float64", "float32", 1e300, math.inf),
        ("float32", "bool", 0.5, True),
        ("float32", "bool", -0.0, False),
        ("bool", "float32", True, 1.0),
        ("bool", "int64", True, 1),
    ],
)
def test_casts(source, dtype, value, result):
    assert value_of(Cast(S(source), dtype), dtype, S=np.array(value, source)) == result


def test_comparisons_and_logic_store_as_bool():
    e = Binary("and", S(F32) < 2.0, Call("not", (T(F32).equal(1.0),)))
    assert value_of(e, "bool", S=np.float32(1), T=np.float32(0))
    assert not value_of(e, "bool", S=np.float32(1), T=np.float32(1))
    assert value_of(cast(S(F32) < 2.0, I64) + 1, I64, S=np.float32(1)) == 2


# What has no meaning


def fails(message, body, inputs=None, outputs=None, arrays=None, **options):
    f = func(inputs or [buffer("A", (4,))], outputs or [buffer("C", (4,))], body)
    with pytest.raises(InterpretError, match=re.escape(message)):
        interpret(f, arrays or {"A": np.arange(4, dtype=F32)}, **options)


def test_a_load_out_of_bounds_names_everything():
    fails(
        "index [4] is outside A, whose shape is [4], in  C[i] = A[i + 1]  at i = 3",
        loop(i, 4, store("C", (i,), load("A", i + 1))),
    )


def test_a_store_out_of_bounds_names_everything():
    fails(
        "index [0, -1] is outside C, whose shape is [2, 4], in  C[i, j - 1] = A[j]  at i = 0, j = 0",
        loop(i, 2, loop(j, 4, store("C", (i, j - 1), load("A", j)))),
        outputs=[buffer("C", (2, 4))],
    )


def test_each_dimension_is_checked_not_only_the_address():
    fails("index [0, 4] is outside C", loop(i, 2, loop(j, 5, store("C", (i, j), ZERO))), outputs=[buffer("C", (2, 4))])


def test_select_does_not_look_at_the_branch_not_taken():
    body = loop(i, 4, store("C", (i,), select(i >= 1, load("A", i - 1), 0.0)))
    (c,) = interpret(func([buffer("A", (4,))], [buffer("C", (4,))], body), {"A": np.arange(4, dtype=F32)})
    np.testing.assert_array_equal(c, [0, 0, 1, 2])


def test_both_operands_of_and_are_looked_at():
    guard = Binary("and", i >= 1, load("A", i - 1) > 0.0)
    fails("index [-1] is outside A", loop(i, 4, store("C", (i,), Select(guard, ZERO, ZERO))))


def test_an_element_never_written_is_not_read():
    local = buffer("T", (4,), scope=Scope.LOCAL)
    fails(
        "T[0] is read before it is written in  C[i] = T[i]", Allocate(local, loop(i, 4, store("C", (i,), load("T", i))))
    )
    fails("C[2] is read before it is written", loop(i, 4, store("C", (i,), load("C", 2))))
    fails("C[0] is read before it is written", loop(i, 4, store("C", (i,), load("A", i), reducer("add"))))


def test_an_allocation_is_undefined_again_at_each_entry():
    local = buffer("T", (1,), scope=Scope.LOCAL)
    first = If(i < 1, store("T", (0,), ZERO))
    fails(
        "T[0] is read before it is written", loop(i, 4, Allocate(local, Seq((first, store("C", (i,), load("T", 0))))))
    )


def test_an_output_element_never_written_is_found():
    fails("the output element C[3] is never written", loop(i, 3, store("C", (i,), ZERO)))


def test_a_loop_longer_than_its_bound_is_found():
    body = loop(i, 2, loop(j, 3 - i, store("C", (j,), ZERO), bound=2))
    fails("the extent 3 exceeds the bound 2 in  for j in 0..(3 - i)  # at most 2  at i = 0", body)


@pytest.mark.parametrize(
    ("e", "message"),
    [
        (Binary("floordiv", num(7), i), "floordiv of int64 has no value for 7, 0"),
        (Binary("mod", num(7), i), "mod of int64 has no value for 7, 0"),
        (Binary("ceildiv", num(7), i), "ceildiv of int64 has no value for 7, 0"),
        (Binary("shl", num(7), i + 64), "a shift must be at least 0 and less than 64"),
        (Binary("shr", num(7), i - 1), "a shift must be at least 0 and less than 64"),
        (Binary("pow", num(7), i - 1), "an integer power must not be negative"),
        (Cast(load("A", i) + 1e30, "int32"), "the cast to int32 has no value for 1e+30: it does not fit int32"),
        (Cast(load("A", i) / load("A", 0), "int32"), "the cast to int32 has no value for nan"),
    ],
)
def test_operations_without_a_result(e, message):
    fails(message, loop(i, 4, store("C", (i,), cast(e, F32))))


def test_inputs_must_match():
    body = loop(i, 4, store("C", (i,), load("A", i)))
    fails("the input A is missing; given are B", body, arrays={"B": np.zeros(4, F32)})
    fails("the input A is float32[4] but got float32[5]", body, arrays={"A": np.zeros(5, F32)})
    fails("the input A is float32[4] but got float64[4]", body, arrays={"A": np.zeros(4)})


def test_a_malformed_function_is_refused_first():
    symbolic = func([], [buffer("C", (4,))], For(i, Param("t"), Param("t"), ForKind.SERIAL, store("C", (i,), ZERO)))
    verify(symbolic)
    with pytest.raises(IRError, match="the parameter t is left"):
        interpret(symbolic, {})


# Races


def races(message, body, **more):
    """The nest is fine in order and a race by rule, whichever order its tasks run in."""
    f = func([buffer("A", (4,))], [buffer("C", (4,))], body)
    interpret(f, {"A": np.arange(4, dtype=F32)})
    for order in (range, backwards):
        with pytest.raises(InterpretError, match=re.escape(message)):
            interpret(f, {"A": np.arange(4, dtype=F32)}, parallel_order=order)


def runs(body, outputs=None):
    f = func([buffer("A", (4,))], outputs or [buffer("C", (4,))], body)
    data = {"A": np.arange(4, dtype=F32)}
    expected = interpret(f, data)
    for order in (range, backwards, lambda n: np.random.default_rng(0).permutation(n).tolist()):
        for got, want in zip(interpret(f, data, parallel_order=order), expected, strict=True):
            np.testing.assert_array_equal(got, want)


init = loop(i, 4, store("C", (i,), ZERO))
scratch = buffer("S", (4,), scope=Scope.GLOBAL)


def test_two_tasks_writing_one_element_race():
    races(
        "race: a task writes C[0], which another task", Seq((init, loop(i, 2, store("C", (0,), ZERO), kind=PARALLEL)))
    )


def test_a_parallel_reduction_races():
    body = Seq((init, loop(i, 4, store("C", (0,), load("A", i), reducer("add")), kind=PARALLEL)))
    races("race: a task writes C[0]", body)


def test_reading_what_another_task_writes_races():
    turned = Seq((init, loop(i, 3, store("C", (i,), load("C", (i + 1) % 4)), kind=PARALLEL)))
    races("which another task of the parallel loop uses", turned)
    pulled = loop(i, 3, store("C", ((i + 1) % 4,), load("C", i)), kind=PARALLEL)
    races("which another task of the parallel loop uses", Seq((init, pulled)))


def test_a_write_after_two_other_reads_races():
    peek = store("C", (i + 1,), load("C", 0))
    last = If(i.equal(2), store("C", (0,), ZERO), peek)
    races("C[0], which another task", Seq((init, loop(i, 3, last, kind=PARALLEL))))


def test_tasks_of_collapsed_loops_are_told_apart():
    body = loop(i, 2, loop(j, 2, store("C", (i * 2,), ZERO), kind=PARALLEL), kind=PARALLEL)
    races("race: a task writes C[", Seq((init, body)))


def test_disjoint_tasks_do_not_race():
    runs(loop(i, 2, loop(j, 2, store("C", (i * 2 + j,), load("A", j)), kind=PARALLEL), kind=PARALLEL))


def test_a_task_may_read_what_it_wrote_and_all_may_read_inputs():
    both = Seq((store("C", (i,), load("A", 0)), store("C", (i,), load("A", 3), reducer("add"))))
    runs(loop(i, 4, both, kind=PARALLEL))


def test_a_region_ends_with_its_loop():
    write = loop(i, 4, store("S", (i,), load("A", i)), kind=PARALLEL)
    read = loop(i, 4, store("C", (i,), load("S", 3 - i)), kind=PARALLEL)
    runs(Allocate(scratch, Seq((write, read))))
    runs(Allocate(scratch, loop(j, 2, write, read)))
    runs(Allocate(scratch, Seq((loop(i, 4, store("S", (i,), ZERO)), read))))


def test_buffers_of_a_task_are_its_own():
    own = buffer("T", (1,), scope=Scope.LOCAL)
    runs(
        loop(i, 4, Allocate(own, Seq((store("T", (0,), load("A", i)), store("C", (i,), load("T", 0))))), kind=PARALLEL)
    )

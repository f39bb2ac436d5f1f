"""Every operation on every type, compiled: in scalars, in vectors with a short end, unrolled; on extreme data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched import te
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr, binary
from autosched.runtime.jit import emit_assembly
from autosched.schedule import CacheWrite, ComputeAt, Reorder, Rfactor, Split, State, Unroll, Vectorize, initial_state
from autosched.target import host_arch, parse_target
from autosched.te import ComputeDAG
from tests.codegen.running import HOST, build, check_kernel, run, targets_in_turn

Array = npt.NDArray[Any]
ROWS, COLUMNS = 3, 37  # not a whole number of vectors of any type
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float32", "float64")
RNG = np.random.default_rng(11)
Function = Callable[..., Expr]


def graph(functions: Sequence[Function], dtypes: Sequence[str]) -> ComputeDAG:
    """One output for each of `functions` (row, column, elements of the inputs)."""
    inputs = [te.placeholder((ROWS, COLUMNS), d, f"X{n}") for n, d in enumerate(dtypes)]
    outputs = [
        te.compute((ROWS, COLUMNS), lambda i, j, f=f: f(i, j, *(x[i, j] for x in inputs)), name=f"Y{n}")
        for n, f in enumerate(functions)
    ]
    return ComputeDAG(outputs)


def scalars(state: State) -> State:
    return state


def vectors(state: State) -> State:
    for stage in state.stages:
        state = state.apply(Vectorize(stage.name, "j"))
    return state


def short_vectors(state: State) -> State:
    """8 elements at a time, the last 5 alone; rows unrolled."""
    for stage in state.stages:
        name = stage.name
        state = state.apply(Split(name, "j", (8,)), Reorder(name, ("j.0", "i", "j.1")), Unroll(name, "i"))
        state = state.apply(Vectorize(name, "j.1"))
    return state


def columns_unrolled(state: State) -> State:
    for stage in state.stages:
        state = state.apply(Split(stage.name, "j", (4,)), Unroll(stage.name, "j.1"))
    return state


def lanes_apart(state: State) -> State:
    """Vectors down the columns: every access is a gather or a scatter."""
    for stage in state.stages:
        state = state.apply(Reorder(stage.name, ("j", "i")), Vectorize(stage.name, "i"))
    return state


WAYS = (scalars, vectors, short_vectors, columns_unrolled, lanes_apart)
way = pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)


def anything(dtype: str) -> Array:
    """Values of the whole range, its ends among them; floats with NaN, infinities and zeros of both signs."""
    kind = DTYPES[dtype].kind
    if kind == "b":
        return RNG.integers(0, 2, (ROWS, COLUMNS)).astype(bool)
    if kind == "f":
        array = RNG.normal(0, 3, ROWS * COLUMNS)
        edges = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, -2.5, 2.5, 1e-40, 3e38]
    else:
        info = np.iinfo(dtype)
        array = RNG.integers(info.min, info.max, ROWS * COLUMNS, dtype, endpoint=True)
        edges = [info.min, info.max, 0, 1, info.max - 1, *((-1,) if kind == "i" else ())]
    at = RNG.permutation(array.size)[: 3 * len(edges)]
    with np.errstate(over="ignore"):
        array = array.astype(dtype)
        array[at] = np.tile(np.array(edges, None if kind == "f" else dtype), 3).astype(dtype)
    return array.reshape(ROWS, COLUMNS)


def check(
    way: Callable[[State], State], functions: Sequence[Function], *inputs: Array, among: tuple[str, ...] = ()
) -> None:
    """`among`: the types that take turns on the targets."""
    dag = graph(functions, [a.dtype.name for a in inputs])
    data = {t.name: inputs[int(t.name[1:])] for t in dag.inputs}
    column = among.index(inputs[0].dtype.name) if among else 0
    on = targets_in_turn(WAYS.index(way), column, max(len(among), 1))
    check_kernel(dag, way(initial_state(dag)), data, threads=(1,), on=on)


@way
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic_wraps(dtype, way):
    def number(value: int) -> Expr:
        return te.const(value, dtype)

    functions: list[Function] = [
        lambda i, j, x, y: x + y * x - y,
        lambda i, j, x, y: (x & y) ^ (x | number(5)),
        lambda i, j, x, y: (x << number(2)) + (x >> number(1)),
        lambda i, j, x, y: te.minimum(x, y) - te.maximum(x, number(7)) * te.maximum(y, x),
        lambda i, j, x, y: te.abs(x) + (-y),
        lambda i, j, x, y: te.select((x < y) | x.equal(y) & (y >= number(3)), x, y + number(1)),
        lambda i, j, x, y: (x <= y) & x.not_equal(y) | (x > number(9)),
        lambda i, j, x, y: te.pow(x, number(2)) + te.pow(y, number(3)),
        lambda i, j, x, y: number(np.iinfo(dtype).max) - x,
        lambda i, j, x, y: (x * number(4)) // number(4),  # not x
        lambda i, j, x, y: (x + number(1) > x) & (x * number(3) - y < x * number(2) + x),
    ]
    check(way, functions, anything(dtype), anything(dtype), among=INTEGERS)


@way
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_rounds_down(dtype, way):
    """Also the smallest number by -1, which processors trap on, and any by 0, which gives 0 as in NumPy."""
    functions: list[Function] = [
        lambda i, j, x, y: x // y,
        lambda i, j, x, y: x % y,
        lambda i, j, x, y: x // te.const(5, dtype) + x % te.const(7, dtype),
        lambda i, j, x, y: x // (te.const(COLUMNS, dtype) - j.astype(dtype)),  # 0 in the first lane that is not there
    ]
    if DTYPES[dtype].kind == "i":
        functions.append(lambda i, j, x, y: x // te.const(-3, dtype) + x % te.const(-4, dtype))
        functions.append(lambda i, j, x, y: x // te.const(-1, dtype) + x % te.const(-1, dtype))
    check(way, functions, anything(dtype), anything(dtype), among=INTEGERS)


@way
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_divided_by_numbers(dtype, way):
    """Also by powers of two and by the largest number, in which no multiplication is exact."""
    high = np.iinfo(dtype).max
    divisors = [n for n in (1, 2, 3, 7, 8, 10, 64, 127, 255, 2**15, high // 2 + 1, high) if n <= high]
    ops = ("floordiv", "mod", "ceildiv")
    values = [lambda i, j, x, d=d, op=op: binary(op, x, te.const(d, dtype)) for d in divisors for op in ops]
    check(way, values, anything(dtype), among=INTEGERS)


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
def test_a_signed_quotient_takes_one_product():
    """And no correction: neither a remainder nor a comparison."""
    target = parse_target("llvm -mcpu=haswell")
    a = te.placeholder((64,), "int16", name="A")
    for divisor, products, shifts in ((3, 4, 4), (4, 0, 4)):
        dag = ComputeDAG(te.compute((64,), lambda i, d=divisor: a[i] // d, name="B"))
        text = emit_assembly(build(vectors_of(initial_state(dag)), target, 1).ir, target)
        assert text.count("vpmulhuw") == products
        assert text.count("vpsraw") == shifts
        assert not text.count("vpcmp") + text.count("vpmullw")


def vectors_of(state: State) -> State:
    return state.apply(Vectorize("B", "i"))


@way
@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_division_in_the_branch_not_taken_does_not_trap(dtype, way):
    functions: list[Function] = [
        lambda i, j, x, y: te.select(y.not_equal(0), x // y, x),
        lambda i, j, x, y: te.select(y.equal(0), x, x % y),
        lambda i, j, x, y: te.select((i % 3).not_equal(0), x // (i % 3).astype(dtype), x),
    ]
    check(way, functions, anything(dtype), anything(dtype), among=INTEGERS)


@way
def test_arithmetic_of_axes(way):
    """Index arithmetic is shared and hoisted, but not where it could trap."""
    functions: list[Function] = [
        lambda i, j: ((j - 7) // 3 + (i * 5 - j) % 4).astype("float32"),
        lambda i, j: ((j - 7) // -2 + (i * 5 - j) % -3).astype("int32"),
        lambda i, j: (j - 7) // (i + 1) + (j - 3) % (i - 5),
        lambda i, j: te.select((i % 3).not_equal(0), 12 // (i % 3), 0),
        lambda i, j: te.select((j % 3).not_equal(0), 12 % (j % 3), 5).astype("int8"),
        lambda i, j: (j & 3) + ((j ^ i) | 1) * 2 - (((j << 2) >> 1) & -3),
        lambda i, j: te.abs(i * 9 - j) * 2 + te.select(i < 1, j, -i) % 5,
        lambda i, j: te.minimum(i * 3, j - 4) + te.maximum(j % 5, i),
        lambda i, j: te.pow(j - 9, 2),
        lambda i, j: (i * 3 + j < 20) & ((j // 2) % 2).equal(0),
        lambda i, j: te.const(1.5, "float64"),
        lambda i, j: te.const(True, "bool"),
        lambda i, j: te.select(j < 5, 1.0, 2.0),
    ]
    check(way, functions)


@way
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_arithmetic(dtype, way):
    functions: list[Function] = [
        lambda i, j, x, y: x * y + y * x - x * x + (y - x * y) - (x * x - y),
        lambda i, j, x, y: x - y * 2.0,
        lambda i, j, x, y: -(x * y),
        lambda i, j, x, y: x / (te.abs(y) + 1.0),
    ]
    x, y = (RNG.normal(0, 3, (ROWS, COLUMNS)).astype(dtype) for _ in range(2))
    check(way, functions, x, y, among=FLOATS)


@way
@pytest.mark.parametrize("dtype", FLOATS)
def test_not_a_number_goes_through_minima_and_maxima(dtype, way):
    functions: list[Function] = [
        lambda i, j, x, y: te.maximum(x, y),
        lambda i, j, x, y: te.minimum(x, y),
        lambda i, j, x, y: te.maximum(x, 0.0),
        lambda i, j, x, y: te.maximum(te.const(0.5, dtype), x),
        lambda i, j, x, y: te.minimum(te.maximum(x, 0.0), 6.0),
        lambda i, j, x, y: te.maximum(x, te.const(np.nan, dtype)),
    ]
    check(way, functions, anything(dtype), anything(dtype), among=FLOATS)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [te.max, te.min])
def test_not_a_number_goes_through_reductions(dtype, op):
    x, k = te.placeholder((5, COLUMNS), dtype, "X"), te.reduce_axis(COLUMNS, "k")
    dag = ComputeDAG(te.compute((5,), lambda i: op(x[i, k], axis=k), name="R"))
    data = RNG.normal(0, 1, (5, COLUMNS)).astype(dtype)
    data[1, 0] = data[2, COLUMNS - 1] = data[3, 17] = np.nan
    state = initial_state(dag)
    check_kernel(dag, state, {"X": data}, threads=(1,))
    check_kernel(dag, state.apply(Vectorize("R", "k")), {"X": data}, threads=(1,))
    check_kernel(dag, state.apply(Reorder("R", ("k", "i")), Vectorize("R", "i")), {"X": data}, threads=(1,))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [te.max, te.min])
@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_not_a_number_goes_through_reductions_in_lanes(dtype, op, width):
    """In the first and the last place, among infinities, and where a number comes after it."""
    columns = 3 * width
    x, k = te.placeholder((6, columns), dtype, "X"), te.reduce_axis(columns, "k")
    dag = ComputeDAG(te.compute((6,), lambda i: op(x[i, k], axis=k), name="R"))
    data = RNG.normal(0, 1, (6, columns)).astype(dtype)
    data[1, 0] = data[2, columns - 1] = data[3, width + 1] = -np.float32(np.nan)
    data[3:5] = np.where(np.isnan(data[3:5]), np.nan, RNG.choice([np.inf, -np.inf, 0.0, -0.0], (2, columns)))
    state = initial_state(dag).apply(Rfactor("R", "k", width, "inner"))
    state = state.apply(Reorder("R.rf", ("i", "k.o", "k.i")), Vectorize("R.rf", "k.i"))
    state = state.apply(ComputeAt("R.rf", "R", "i", "register"), Vectorize("R", "k.i"))
    check_kernel(dag, state, {"X": data}, threads=(1,))


@pytest.mark.parametrize("op", [te.max, te.min])
def test_not_a_number_goes_through_chains(op):
    """In every place of an unrolled column; two operands at a time are asked whether they are numbers."""
    x, k = te.placeholder((9, 16), "float32", "X"), te.reduce_axis(9, "k")
    dag = ComputeDAG(te.compute((16,), lambda j: op(x[k, j], axis=k), name="R"))
    data = RNG.choice(np.float32([np.inf, -np.inf, 0.0, -0.0, 1.5]), (9, 16))
    data[range(9), range(9)] = -np.float32(np.nan)
    data[[0, 7, 1, 8], [10, 10, 11, 11]] = np.nan
    state = initial_state(dag).apply(CacheWrite("R"), Split("R", "j", (16,)), Vectorize("R", "j.1"))
    state = state.apply(ComputeAt("R.acc", "R", "j.0", "register"), Reorder("R.acc", ("k", "j")))
    state = state.apply(Unroll("R.acc", "k"), Vectorize("R.acc", "j"))
    check_kernel(dag, state, {"X": data}, threads=(1,))
    if host_arch() == "x86_64":
        target = parse_target("llvm -mcpu=haswell")
        assert emit_assembly(build(state, target, 1).ir, target).count("vcmpunordps") == 2 * 5


@way
@pytest.mark.parametrize("dtype", FLOATS)
def test_comparisons_with_what_is_not_a_number(dtype, way):
    functions: list[Function] = [
        lambda i, j, x, y: (x < y) | x.not_equal(y),
        lambda i, j, x, y: (x >= y) & te.logical_not(x.equal(y)),
        lambda i, j, x, y: te.select(x <= y, 1.0, 2.0),
        lambda i, j, x, y: te.logical_not(x > y),
        lambda i, j, x, y: x.astype("bool"),
    ]
    check(way, functions, anything(dtype), anything(dtype), among=FLOATS)


FUNCTIONS = ("exp", "tanh", "erf", "sigmoid", "log", "sqrt", "rsqrt", "floor", "ceil", "round", "abs")


@way
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_are_within_the_reference_bound(dtype, way):
    functions: list[Function] = [lambda i, j, x, y, fn=fn: getattr(te, fn)(x) for fn in FUNCTIONS]
    functions += [lambda i, j, x, y: te.sin(y), lambda i, j, x, y: te.cos(y)]
    check(way, functions, anything(dtype), anything(dtype), among=FLOATS)


@way
@pytest.mark.parametrize("dtype", FLOATS)
def test_remainders_of_floats_are_exact(dtype, way):
    functions: list[Function] = [
        lambda i, j, x, y: te.fmod(x, y),
        lambda i, j, x, y: te.fmod(x, 0.1),
        lambda i, j, x, y: te.fmod(te.fmod(x, (i + 3).astype(dtype)), y * 0.0 + 0.25),
        lambda i, j, x, y: te.fmod(j.astype(dtype), y),
    ]
    x, y = anything(dtype), anything(dtype)
    check(way, functions, x, y, among=FLOATS)
    largest = np.finfo(dtype).max
    check(way, functions[:1], np.resize([1e9, -largest, largest, 7.0], x.shape).astype(dtype), y, among=FLOATS)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_whole_part_of_a_quotient_by_one_number_in_all_lanes(dtype):
    """By the number's reciprocal a multiple may come out below the whole number that it is."""
    steps: list[Function] = [
        lambda i, j, x: te.floor(x / 49.0),
        lambda i, j, x: te.ceil(-x / 49.0),
        lambda i, j, x: (x / 49.0).astype("int32"),
        lambda i, j, x: te.round(x / 98.0),
    ]
    dag = graph(steps, [dtype])
    x = (np.arange(ROWS * COLUMNS) * 49.0).astype(dtype).reshape(ROWS, COLUMNS)
    got = run(build(vectors(initial_state(dag)), HOST, 1), dag, {"X0": x}, HOST)
    for found, expected in zip(got, (x / 49, -x / 49, x / 49, np.rint(x / 98)), strict=True):
        np.testing.assert_array_equal(found, expected)


@way
@pytest.mark.parametrize("dtype", FLOATS)
def test_powers(dtype, way):
    numbers: list[Function] = [
        lambda i, j, x, y, e=e: te.pow(x, e) for e in (2.0, 3.0, 4.0, -1.0, -2.0, 0.5, 2.5, 0.0, 1.0)
    ]
    x = RNG.normal(0, 3, (ROWS, COLUMNS)).astype(dtype)
    positive = (np.abs(RNG.normal(0, 3, (ROWS, COLUMNS))) + 0.5).astype(dtype)
    check(way, numbers, x, positive, among=FLOATS)
    check(way, [lambda i, j, x, y: te.pow(x, y)], positive, x, among=FLOATS)


@way
@pytest.mark.parametrize("dtype", ["bool", *INTEGERS])
def test_casts_of_integers(dtype, way):
    others = [d for d in DTYPES if d != dtype]
    check(way, [lambda i, j, x, d=d: x.astype(d) for d in others], anything(dtype), among=("bool", *INTEGERS))


@way
@pytest.mark.parametrize("dtype", FLOATS)
def test_casts_of_floats_cut_the_fraction(dtype, way):
    x = RNG.normal(0, 30, (ROWS, COLUMNS)).astype(dtype)
    others = [d for d in ("int8", "int16", "int32", "int64", *FLOATS) if d != dtype]
    np.clip(x, -120, 120, out=x)
    check(way, [lambda i, j, x, d=d: x.astype(d) for d in others], x, among=FLOATS)
    unsigned = [d for d in INTEGERS if DTYPES[d].kind == "u"]
    check(way, [lambda i, j, x, d=d: x.astype(d) for d in unsigned], np.abs(x), among=FLOATS)
    large = np.resize(np.array([2.0**63, 2.0**64 - 2.0**40, 2.0**63 + 2.0**40, 0.0, 1e19], dtype), x.shape)
    check(way, [lambda i, j, x: x.astype("uint64")], large, among=FLOATS)


SAME_SIZE = [
    ("float32", "int32"), ("float32", "uint32"), ("float64", "int64"), ("float64", "uint64"), ("float16", "int16"),
    ("bfloat16", "uint16"), ("float8_e5m2", "uint8"), ("bfloat16", "float16"),
]  # fmt: skip


@way
@pytest.mark.parametrize(("a", "b"), SAME_SIZE)
def test_bits_are_taken_for_another_number(a, b, way):
    """In both directions, and after arithmetic; what reads a number of bits is the number that NumPy sees there."""
    bits = anything(f"uint{DTYPES[a].bits}")
    x, y = (bits.view(DTYPES[d].numpy_dtype) for d in (a, b))
    functions: list[Function] = [
        lambda i, j, x, y: te.bitcast(x, b),
        lambda i, j, x, y: te.bitcast(y, a),
        lambda i, j, x, y: te.bitcast(te.bitcast(y, bits.dtype.name) ^ te.bitcast(x, bits.dtype.name), bits.dtype.name),
        lambda i, j, x, y: te.bitcast(te.bitcast(x, bits.dtype.name) >> te.const(1, bits.dtype.name), a),
    ]
    dag = graph(functions, [a, b])
    data = {"X0": x, "X1": y}
    got = run(build(way(initial_state(dag)), HOST, 1), dag, {t.name: data[t.name] for t in dag.inputs}, HOST)
    expected = [bits, bits, bits ^ bits, bits >> 1]
    for result, wanted in zip(got, expected, strict=True):
        np.testing.assert_array_equal(result.view(bits.dtype), wanted)


@way
def test_truth_values(way):
    functions: list[Function] = [
        lambda i, j, x, y: (x & y) | te.logical_not(x),
        lambda i, j, x, y: te.minimum(x, y).equal(te.maximum(x, y)),
        lambda i, j, x, y: (x < y) | (x <= y) & x.not_equal(y),
        lambda i, j, x, y: te.select(x, y, te.const(True, "bool")),
        lambda i, j, x, y: te.select(x & (j > 3), 1.0, 2.0),
        lambda i, j, x, y: x,
    ]
    check(way, functions, anything("bool"), anything("bool"))


@way
def test_types_of_different_widths_in_one_expression(way):
    functions: list[Function] = [
        lambda i, j, x, y, z: x.astype("float32") * y + z.astype("float32"),
        lambda i, j, x, y, z: te.select(x > te.const(0, "int8"), y.astype("float64"), z.astype("float64")),
        lambda i, j, x, y, z: (x.astype("int64") + z).astype("int8"),
        lambda i, j, x, y, z: (y > 0.0) & (z > 3),
    ]
    small = RNG.integers(-100, 100, (ROWS, COLUMNS))
    floats = RNG.normal(0, 3, (ROWS, COLUMNS)).astype("float32")
    check(way, functions, small.astype("int8"), floats, small.astype("int64"))

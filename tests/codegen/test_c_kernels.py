"""Whole kernels in C: run in both dialects and compared with the reference, how they read, which names they use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autosched.codegen.c.kernel import emit
from autosched.codegen.c.names import RESERVED, identifier
from autosched.codegen.c.source import GpuSource
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const, Expr, Var, const, imin, select
from autosched.ir.interpreter.interpret import interpret
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Allocate, Barrier, For, ForKind, Func, If, Scope, Seq, Store, walk
from autosched.lower import concretise, lower
from autosched.schedule import Pipeline
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from tests.codegen.gpu import dialects, run
from tests.gpu_schedules import (
    Case,
    cases,
    conv,
    conv_state,
    matmul,
    matmul_state,
    parameters,
    random_values,
    softmax,
    softmax_state,
)
from tests.ir.nests import F32, I64, buffer, func, load, loop, num, reducer, store

CASES = cases()
BX, TX = ForKind.BLOCK_X, ForKind.THREAD_X
ZERO = Const(0.0, F32)
b, t, k = (Var(name, I64) for name in "btk")


def source_of(case: Case, dialect: str = "opencl") -> tuple[Func, GpuSource]:
    _, state, values = case
    concrete, simplify = concretise(lower(state), values)
    return concrete, emit(concrete, simplify, dialect)


def plain(f: Func, dialect: str = "opencl", head: str = "") -> GpuSource:
    """The text of a nest that was written by hand."""
    simplify = Simplifier()
    for s in walk(f.body):
        if isinstance(s, For):
            assert isinstance(s.bound, Const)
            simplify.ranges[s.var] = (0, int(s.bound.value) - 1)
    return emit(f, simplify, dialect, head)


# Run


@dialects
@pytest.mark.parametrize("name", CASES)
def test_schedules_compute_what_the_operators_say(dialect: str, name: str) -> None:
    dag = CASES[name][0]
    concrete, source = source_of(CASES[name], dialect)
    for kind in ("integers", "normal"):
        inputs = make_inputs(dag, 0, kind)
        results = run(source, concrete, inputs, optimised=True)
        for tensor, reference in zip(dag.outputs, evaluate(dag, inputs), strict=True):
            seen = results[tensor.name].reshape(tensor.public_shape)
            wrong = ~within(reference, seen)
            assert not wrong.any(), (
                f"{name}: {int(wrong.sum())} of {wrong.size} of {tensor.name} are wrong\n{source.text}"
            )


def agrees(dialect: str, f: Func, **arrays: np.ndarray) -> None:
    """The kernel of a nest computes what the interpreter says."""
    results = run(plain(f, dialect), f, arrays, optimised=True)
    for p, expected in zip(f.params[len(f.params) - f.n_outputs :], interpret(f, arrays), strict=True):
        np.testing.assert_array_equal(results[p.name], expected)


@dialects
def test_a_loop_ends_at_the_smaller_of_two_numbers(dialect: str) -> None:
    """`k < min(4, n)` needs its parentheses."""
    rest = imin(num(4), 7 - t * 2)
    body = loop(k, rest, store("C", (t,), load("A", k), reducer("add")), bound=4)
    f = func([buffer("A", (4,))], [buffer("C", (3,))], loop(t, 3, store("C", (t,), ZERO), body, kind=TX))
    agrees(dialect, f, A=np.array([1, 2, 4, 8], F32))


@dialects
def test_a_tuple_is_stored_after_all_its_values_are_known(dialect: str) -> None:
    """(C, D) = (D, C)."""
    swap = Store(("C", "D"), (t,), (load("D", t), load("C", t)))
    first = Store(("C", "D"), (t,), (load("A", t), load("A", 3 - t)))
    agrees(
        dialect,
        func([buffer("A", (4,))], [buffer("C", (4,)), buffer("D", (4,))], loop(t, 4, first, swap, kind=TX)),
        A=np.arange(4, dtype=F32),
    )


@dialects
def test_conditions_are_bytes_in_memory(dialect: str) -> None:
    flag = load("P", t, dtype="bool")
    shared = buffer("s", (4,), "bool", Scope.SHARED)
    body = Seq((store("s", (t,), ~flag), Barrier(), store("C", (t,), load("s", 3 - t, dtype="bool") & flag)))
    f = func([buffer("P", (4,), "bool")], [buffer("C", (4,), "bool")], loop(t, 4, Allocate(shared, body), kind=TX))
    agrees(dialect, f, P=np.array([True, False, True, True]))
    assert "__local uchar s[4];" in plain(f).text
    assert "unsigned char* __restrict__ C" in plain(f, "cuda").text


def test_large_buffers_are_indexed_with_64_bits() -> None:
    far = (b * 1024 + t) * (1 << 22) + k
    body = loop(k, 1 << 22, store("C", (far,), ZERO))
    f = func([], [buffer("C", (1 << 33,))], loop(b, 2, loop(t, 1024, body, kind=TX), kind=BX))
    text = plain(f, "cuda").text
    assert "const long long b = blockIdx.x;" in text
    assert "for (long long k = 0;" in text
    assert "const long b = get_group_id(0);" in plain(f).text


# Names

ODD = (
    "float",
    "2nd",
    "C-3",
    "\N{GREEK SMALL LETTER ALPHA}.\N{GREEK SMALL LETTER BETA}",
    "a b",
    "max_float",
    "template",
)


def oddly_named() -> Func:
    """C's words, other scripts and punctuation as names of tensors, buffers and loops; all tensors are added up."""
    threads, local = Var("for", I64), buffer("kernel.acc", (1,), scope=Scope.REGISTER)
    rounds = Var("\N{GREEK SMALL LETTER KAPPA}.0", I64)
    total = load(ODD[0], threads)
    for name in ODD[1:]:
        total = total + load(name, threads)
    body = Seq(
        (
            store("kernel.acc", (0,), ZERO),
            loop(rounds, 3, store("kernel.acc", (0,), total, reducer("add"))),
            store("double", (threads,), load("kernel.acc", 0)),
        )
    )
    inputs = [buffer(name, (4,)) for name in ODD]
    return func(inputs, [buffer("double", (4,))], loop(threads, 4, Allocate(local, body), kind=TX))


@dialects
def test_odd_names_become_identifiers(dialect: str) -> None:
    agrees(dialect, oddly_named(), **{name: np.arange(n, n + 4, dtype=F32) for n, name in enumerate(ODD)})
    assert all(ord(letter) < 128 for letter in plain(oddly_named()).text)


def test_identifiers() -> None:
    taken: set[str] = set(RESERVED)
    names = ["C.acc", "C_acc", "C acc", "int", "3x", "_x", "\N{GREEK SMALL LETTER ALPHA}", "", "A"]
    expected = ["C_acc", "C_acc_2", "C_acc_3", "int_2", "v3x", "v_x", "v_", "v", "A"]
    assert [identifier(name, taken) for name in names] == expected
    assert {"float", "class", "kernel", "global", "threadIdx", "expf", "exp", "uchar", "max_float"} <= RESERVED


def test_the_names_of_the_operator_are_in_the_text() -> None:
    text = source_of(CASES["matmul"], "cuda")[1].text
    for name in ("A_shared", "B_shared", "C_acc", "C_i_0", "C_j_2", "C_acc_k_1"):
        assert name in text


# How they read


def scaled_row_sums() -> Func:
    """Four rows of A in each block, times B; a second kernel takes the greatest row."""
    i, acc = b * 4 + t, buffer("sum", (1,), scope=Scope.REGISTER)
    add = store("sum", (0,), load("A", i, k) * load("scale", k), reducer("add"), "C")
    scale = If(t < 3, store("scale", (t,), load("B", t)))
    body = Seq((store("sum", (0,), ZERO), scale, Barrier(), If(i < 7, loop(k, 3, add, kind=ForKind.UNROLL))))
    body = Seq((body, If(i < 7, store("C", (i,), load("sum", 0)))))
    first = loop(t, 4, Allocate(acc, Allocate(buffer("scale", (3,), scope=Scope.SHARED), body)), kind=TX)
    best = store("D", (0,), load("C", k), reducer("max"))
    second = loop(t, 1, store("D", (t,), Const(float("-inf"), F32)), loop(k, 7, best), kind=TX)
    inputs, outputs = [buffer("A", (7, 3)), buffer("B", (3,))], [buffer("C", (7,)), buffer("D", (1,))]
    return func(inputs, outputs, loop(b, 2, first, kind=BX), second)


@pytest.mark.parametrize(("dialect", "suffix"), [("cuda", "cu"), ("opencl", "cl")])
def test_the_text_of_a_small_kernel(dialect: str, suffix: str) -> None:
    expected = Path(__file__).with_name(f"row_sums.{suffix}").read_text(encoding="ascii")
    assert plain(scaled_row_sums(), dialect, "CacheWrite C\nBind C i.0 blockIdx.x").text == expected


@dialects
def test_the_small_kernel_computes(dialect: str) -> None:
    agrees(dialect, scaled_row_sums(), A=np.arange(21, dtype=F32).reshape(7, 3), B=np.array([1, -2, 3], F32))


def test_the_head_is_a_comment_whatever_it_holds() -> None:
    f = func([], [buffer("C", (4,))], loop(t, 4, store("C", (t,), ZERO), kind=TX))
    head = "split(C, i)\nends in a backslash \\\n*/ \N{GREEK SMALL LETTER ALPHA}"
    lines = emit(f, Simplifier(), "cuda", head).text.splitlines()
    assert [line[:3] for line in lines[:3]] == ["// "] * 3
    assert not any(line.endswith("\\") for line in lines)


def test_launches_say_blocks_threads_arguments_and_shared_bytes() -> None:
    whole = {"iv": 2, "it": 8, "is": 2, "jv": 2, "jt": 8, "js": 4, "k1": 4, "k2": 4, "va": 4, "vb": 4}
    dag = matmul(64, 100, 30)
    _, source = source_of((dag, matmul_state(dag), whole))
    (launch,) = source.launches
    assert launch.kernel == "kernel_0"
    assert (launch.grid, launch.block) == ((2, 2, 1), (8, 8, 1))
    assert launch.arguments == ("A", "B", "C")
    assert launch.shared_bytes == 4 * (32 * 16 + 16 * 64)  # once, though the last round over k is a nest of its own
    assert (source.inputs, source.outputs, source.workspace) == (("A", "B"), ("C",), ())


def test_shared_memory_beyond_the_static_limit_is_taken_at_the_launch() -> None:
    """CUDA: arrays of known size have up to 48 KB; others are parts of one that the launch gives its size."""
    dag = matmul(256, 128, 64)
    values = {"iv": 2, "it": 16, "is": 4, "jv": 2, "jt": 16, "js": 4, "k1": 8, "k2": 4, "va": 4, "vb": 4}
    for stages, names in ((1, 2), (3, 1)):
        case = (dag, matmul_state(dag).apply(Pipeline("C.acc", "k.0", stages)), values)
        source = source_of(case, "cuda")[1]
        assert source.launches[0].shared_bytes == min(stages, 2) * 4 * 2 * 128 * 32  # there are two chunks
        assert source.text.count("__shared__") == names
        assert ("extern __shared__ __align__(16) unsigned char shared_memory[];" in source.text) == (stages > 1)
        assert ("float (* const B_shared)[4096] = (float (*)[4096])(shared_memory + 32768);" in source.text) == (
            stages > 1
        )
        assert source_of(case)[1].text.count("__local float") == 2


@dialects
def test_places_of_a_pipeline_are_carried_where_a_remainder_is_not_one_instruction(dialect: str) -> None:
    """Also through two loops: the place at the beginning of the inner one."""
    dag = conv(1, 6, 7, 9, 5, 3, pad=1)
    state, values = conv_state(dag, inline=False), parameters(conv_state(dag, inline=False))
    for stages in (2, 3, 4, 5):
        piped = state.apply(Pipeline("Y.acc", "rc.0", stages))
        f, source = source_of((dag, piped, random_values(1, values) | {"rc1": 1}), dialect)
        assert ("int place" in source.text) == (stages in (3, 5)), source.text
        assert (f"% {stages}]" in source.text) == (stages in (2, 4))
        inputs = make_inputs(dag, 0, "integers")
        (reference,) = evaluate(dag, inputs)
        assert within(reference, run(source, f, inputs, optimised=True)["Y"]).all()


def test_shared_arrays_start_where_vectors_do() -> None:
    body = Seq((store("r", (0,), ZERO), store("s", (t,), ZERO), store("C", (t,), load("s", t))))
    for name, size in (("s", 1 << 15), ("r", 3)):
        body = Allocate(buffer(name, (size,), scope=Scope.SHARED), body)
    source = plain(func([], [buffer("C", (4,))], loop(t, 4, body, kind=TX)), "cuda")
    assert source.launches[0].shared_bytes == 16 + 4 * (1 << 15)
    assert "float* const s = (float*)(shared_memory + 16);" in source.text


def test_stages_between_kernels_are_workspace() -> None:
    _, source = source_of(CASES["matmul in parts"])
    assert [launch.arguments for launch in source.launches] == [("A", "B", "C.rf"), ("C", "C.rf")]
    assert source.workspace == (("C.rf", 4 * 9 * 11 * 4),)


def test_whole_aligned_copies_are_vector_accesses() -> None:
    cuda = source_of(CASES["matmul whole tiles"], "cuda")[1].text
    assert cuda.count("*(const float4*)") >= 2
    assert "__shared__ __align__(16) float A_shared" in cuda
    opencl = source_of(CASES["matmul whole tiles"])[1].text
    assert "vload4(0, &A[" in opencl
    assert "vstore4(" in opencl
    odd = source_of(CASES["matmul"], "cuda")[1].text  # 29 columns: rows are not aligned
    assert "const float2*" not in odd


def test_a_single_block_has_no_index() -> None:
    dag = softmax(1, 8)
    _, source = source_of((dag, softmax_state(dag), {"jt": 4}))
    assert "get_group_id" not in source.text
    assert source.launches[0].grid == (1, 1, 1)


def test_every_parameter_of_the_cases_has_a_value() -> None:
    for dag, state, values in CASES.values():
        assert dag.outputs
        assert set(parameters(state)) <= set(values)


@dialects
def test_constants_of_the_kinds_of_numbers(dialect: str) -> None:
    wide = const(2**40, I64)
    f = func([], [buffer("C", (4,), I64)], loop(t, 4, store("C", (t,), wide + t), kind=TX))
    agrees(dialect, f)


# Vectors


def lane_kernel(value: Expr, extent: int = 4, index: Expr | None = None) -> Func:
    """Four threads, each writes `extent` neighbours of what `value` says of A and B."""
    lane = Var("lane", I64)
    body = loop(lane, extent, store("C", (index if index is not None else t * extent + lane,), value), kind=UNROLL)
    shapes = [buffer("A", (64,)), buffer("B", (64,))]
    return func(shapes, [buffer("C", (4 * extent,))], loop(b, 1, loop(t, 4, body, kind=TX), kind=BX))


UNROLL = ForKind.UNROLL
LANE = Var("lane", I64)
AT = t * 4 + LANE
GUARDED = select(t < 3, load("A", AT), ZERO)
VECTORS: dict[str, tuple[Expr, Expr | None, int, int]] = {
    # value, index, vector loads and stores in the text
    "two operands": (load("A", AT) * load("B", AT + 4) + load("B", LANE), None, 3, 1),
    "the same for all lanes": (load("A", AT) * load("B", t), None, 1, 1),
    "not aligned": (load("A", AT + 2) + load("B", AT + 1), None, 0, 1),
    "stored along a column": (load("A", AT), LANE * 4 + t, 1, 0),
    "loaded along a column": (load("A", LANE * 4 + t), None, 0, 1),
    "where a condition holds": (select(t < 2, load("A", AT), ZERO), None, 1, 1),
    "where two conditions hold": (select(t < 3, select(t >= 1, load("A", AT), ZERO), ZERO), None, 1, 1),
    "minus zero elsewhere": (select(t < 2, load("A", AT), Const(-0.0, F32)), None, 1, 1),
    "under a condition and elsewhere": (select(t < 2, load("A", AT) * 2.0, load("A", AT)), None, 0, 1),
    "under two conditions": (
        select(t < 2, load("A", AT) + 1.0, ZERO) + select(t >= 1, load("A", AT) * 2.0, ZERO), None, 0, 1
    ),
    "guarded itself, then under a condition": (
        select(t < 2, GUARDED + 1.0, 2.0) + select(t < 1, ZERO, GUARDED), None, 0, 1
    ),
    "under a condition of the lane": (select(AT < 7, load("A", AT), ZERO), None, 0, 1),
    "under a condition on data": (select(load("B", AT) < 1.0, load("A", AT), ZERO), None, 1, 1),
}  # fmt: skip


@dialects
@pytest.mark.parametrize("name", VECTORS)
def test_loops_over_lanes_are_vector_accesses(dialect: str, name: str) -> None:
    value, index, n_loads, n_stores = VECTORS[name]
    f = lane_kernel(value, index=index)
    text = plain(f, "cuda").text
    assert (text.count("*(const float"), text.count("*(float")) == (n_loads, n_stores), text
    rng = np.random.default_rng(0)
    agrees(dialect, f, A=rng.integers(-9, 9, 64).astype(F32), B=rng.integers(-9, 9, 64).astype(F32))


@dialects
@pytest.mark.parametrize(("extent", "n_loads"), [(8, 2), (6, 3), (2, 1), (3, 0)])
def test_long_loops_are_several_vectors(dialect: str, extent: int, n_loads: int) -> None:
    f = lane_kernel(load("A", t * extent + LANE) * 2.0, extent)
    text = plain(f, "cuda").text
    assert text.count("*(const float") == text.count("*(float") == n_loads
    agrees(dialect, f, A=np.arange(64, dtype=F32), B=np.zeros(64, F32))


@dialects
@pytest.mark.parametrize(
    ("dtype", "vector"),
    [
        ("int32", "int4"), ("float64", "double2"), ("int8", "unsigned"), ("int16", "uint2"), ("uint16", "uint2"),
        ("uint32", "uint4"), ("int64", "longlong2"), ("uint64", "ulonglong2"),
    ],
)  # fmt: skip
def test_vectors_of_other_types(dialect: str, dtype: str, vector: str) -> None:
    """Copied, and computed: signed numbers of 8 and 16 bits do not overwrite the others of their word."""
    body = loop(LANE, 4, store("C", (AT,), load("A", AT, dtype=dtype)), kind=UNROLL)
    f = func([buffer("A", (64,), dtype)], [buffer("C", (16,), dtype)], loop(t, 4, body, kind=TX))
    text = plain(f, "cuda").text
    assert f"*(const {vector}*)" in text
    agrees(dialect, f, A=np.arange(64).astype(dtype))
    if DTYPES[dtype].is_integer:
        value = load("A", AT, dtype=dtype) - Const(7, dtype)
        body = loop(LANE, 4, store("C", (AT,), value), kind=UNROLL)
        f = func([buffer("A", (64,), dtype)], [buffer("C", (16,), dtype)], loop(t, 4, body, kind=TX))
        assert f"*({vector}*)" in plain(f, "cuda").text
        agrees(dialect, f, A=np.arange(64).astype(dtype))

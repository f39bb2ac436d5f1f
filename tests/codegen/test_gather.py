"""Indices that are data: every kind of lookup computes the reference, in vectors where what is read is contiguous."""

from __future__ import annotations

import re

import numpy as np
import pytest

from autosched import te
from autosched.ir.dtype import DTYPES
from autosched.runtime.jit import emit_assembly
from autosched.schedule import Reorder, Split, Unroll, Vectorize, initial_state
from autosched.target import host_arch, parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import KINDS, make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu import sketches
from tests.codegen.running import build, check_candidate, check_kernel
from tests.codegen.test_assembly import innermost_loops
from tests.helpers import little_rows

HASWELL = parse_target("llvm -mcpu=haswell")
MOST = 4  # sketches of a case


def embedding(rows=11, places=5, width=19, index="int32", dtype="float32"):
    table, ids = te.placeholder((rows, width), dtype, "E"), te.placeholder((places,), index, "ids")
    return te.compute((places, width), lambda b, d: table[ids[b], d], name="C")


def bag(rows=13, places=3, length=7, width=17):
    """Embeddings summed up, each with a weight."""
    table, ids = te.placeholder((rows, width), name="E"), te.placeholder((places, length), "int64", "ids")
    weight, t = te.placeholder((places, length), name="w"), te.reduce_axis(length, "t")
    return te.compute((places, width), lambda b, d: te.sum(table[ids[b, t], d] * weight[b, t], axis=t), name="C")


def along(rows=5, size=13, places=21, index="int32"):
    """NumPy's take_along_axis."""
    x, at = te.placeholder((rows, size), name="X"), te.placeholder((rows, places), index, "at")
    return te.compute((rows, places), lambda i, j: x[i, at[i, j]], name="C")


def down(rows=13, places=5, width=21, index="int32"):
    """The same along the first axis."""
    x, at = te.placeholder((rows, width), name="X"), te.placeholder((places, width), index, "at")
    return te.compute((places, width), lambda i, j: x[at[i, j], j], name="C")


def chosen(rows=21, classes=10):
    """An element of each row."""
    x, label = te.placeholder((rows, classes), name="X"), te.placeholder((rows,), "uint8", "label")
    return te.compute((rows,), lambda i: x[i, label[i]], name="C")


def packed_product(m=9, n=21, k=40):
    """Numbers of four bits that a table says what they mean, times a matrix."""
    codes, table = te.placeholder((m, k // 2), "uint8", "W"), te.placeholder((16,), name="T")
    x, r = te.placeholder((k, n), name="X"), te.reduce_axis(k, "k")

    def weight(i, p):
        return table[(te.cast(codes[i, p // 2], "int32") >> te.cast(4 * (p % 2), "int32")) & 15]

    return te.compute((m, n), lambda i, j: te.sum(weight(i, r) * x[r, j], axis=r), name="C")


def matrix_vector(m=9, k=40):
    codes, table = te.placeholder((m, k), "uint8", "W"), te.placeholder((256,), name="T")
    x, r = te.placeholder((k,), name="X"), te.reduce_axis(k, "k")
    return te.compute((m,), lambda i: te.sum(table[codes[i, r]] * x[r], axis=r), name="C")


def pages(places=3, size=4, heads=2, depth=16, tokens=9):
    """Scores of a query with keys that lie in pages, of which a table says where."""
    keys, where = te.placeholder((7, size, heads, depth), name="K"), te.placeholder((places,), "int32", "table")
    q, d = te.placeholder((tokens, heads, depth), name="Q"), te.reduce_axis(depth, "d")

    def score(h, t, p):
        return te.sum(q[t, h, d] * keys[where[p // size], p % size, h, d], axis=d)

    return te.compute((heads, tokens, places * size), score, name="S")


def experts(tokens=5, n=18, k=12):
    """Each token's product with the matrix that it is sent to."""
    weights, which = te.placeholder((3, k, n), name="W"), te.placeholder((tokens,), "int8", "which")
    x, r = te.placeholder((tokens, k), name="X"), te.reduce_axis(k, "k")
    return te.compute((tokens, n), lambda t, j: te.sum(x[t, r] * weights[which[t], r, j], axis=r), name="C")


def fused(rows=7, places=6, width=33):
    """A table that is computed, numbers that are computed, and what is done with rows of it."""
    x, ids = te.placeholder((rows, width), name="X"), te.placeholder((places,), "int32", "ids")
    table = te.compute((rows, width), lambda v, d: te.tanh(x[v, d]) * 2.0, name="table")
    turned = te.compute((places,), lambda b: ids[places - 1 - b] + 1, name="turned")
    k = te.reduce_axis(width, "k")
    mean = te.compute((places,), lambda b: te.sum(table[turned[b], k], axis=k) / width, name="mean")
    return te.compute((places, width), lambda b, d: table[turned[b], d] - mean[b], name="C")


def rows_of_a_product(rows=11, m=9, n=20, k=16, dtype="float32", total="float32"):
    table, ids = te.placeholder((rows, k), dtype, "E"), te.placeholder((m,), "int32", "ids")
    w, r = te.placeholder((k, n), dtype, "W"), te.reduce_axis(k, "r")

    def term(i, j):
        return te.cast(table[ids[i], r], total) * te.cast(w[r, j], total)

    return te.compute((m, n), lambda i, j: te.sum(term(i, j), axis=r), name="C")


def nearest(rows=5, size=9, width=18):
    """The rows of a table that an argmax chooses."""
    x, table = te.placeholder((rows, size), name="X"), te.placeholder((size, width), name="E")
    k = te.reduce_axis(size, "k")
    best = te.compute((rows,), lambda i: te.argmax(x[i, k], axis=k)[0], name="best")
    return te.compute((rows, width), lambda i, d: table[best[i], d], name="C")


def twice(places=9):
    """A permutation of a permutation, and a place that depends on the axis as well."""
    v, a, b = (te.placeholder((places,), t, n) for t, n in (("float32", "V"), ("int32", "a"), ("int64", "b")))
    return te.compute((places,), lambda i: v[a[b[i]]] + v[te.min(a[i], 3) + i], name="C")


def computed(places=19):
    """Numbers of places that no element says, once the stages that make them are inlined."""
    v = te.placeholder((7,), name="V")
    one = te.compute((places,), lambda i: te.const(1, "int32"), name="one")
    own = te.compute((places,), lambda i: te.cast(i * i, "int32") - 2, name="own")
    return te.compute((places,), lambda i: v[one[i]] + v[own[i]], name="C")


def guarded(places=10):
    """Numbers that exist inside a border only."""
    v, at = te.placeholder((7,), name="V"), te.placeholder((places - 2,), "int32", "at")
    return te.compute((places, 6), lambda i, j: te.select(te.all(i > 0, i < places - 1), v[at[i - 1] + j], 0.0))


def warped(rows=13, width=21):
    """Bilinear samples of an image at affine positions, which are outside of it at times."""
    x = te.placeholder((rows, width), name="X")

    def sample(i, j):
        i, j = te.cast(i, "float32"), te.cast(j, "float32")
        across, down = j * 1.1 - i * 0.125 - 0.5, j * 0.125 + i * 0.8 - 1.0
        left, top = te.floor(across), te.floor(down)
        u, v = te.cast(left, "int32"), te.cast(top, "int32")
        upper = x[v, u] + (x[v, u + 1] - x[v, u]) * (across - left)
        lower = x[v + 1, u] + (x[v + 1, u + 1] - x[v + 1, u]) * (across - left)
        return upper + (lower - upper) * (down - top)

    return te.compute((rows, width), sample, name="C")


def products_of_axes(places=9):
    """Elements at products, quotients by axes, powers and bits of axes, some of them outside, and a sum of such."""
    v, x, k = te.placeholder((37,), name="V"), te.placeholder((5, 64), name="X"), te.reduce_axis(7, "k")
    one = te.compute((places, 19), lambda i, j: v[i * j] + v[j // (i + 1)] + v[i * 7 % (j + 1)], name="one")
    two = te.compute((places, 19), lambda i, j: x[i & 3, (j << 2) ^ 5] - v[i * i - j], name="two")
    total = te.compute((19,), lambda j: te.sum(x[k % 5, j * k - 3], axis=k), name="total")
    return te.compute((places, 19), lambda i, j: one[i, j] * two[i, j] + total[j], name="C")


CASES = {
    **{f.__name__: f for f in (
        embedding, bag, along, down, chosen, packed_product, matrix_vector, pages, experts, fused, rows_of_a_product, nearest, twice,
        computed, guarded, warped, products_of_axes,
    )},
    "products of bytes": lambda: rows_of_a_product(k=24, dtype="int8", total="int32"),
    "products of halves": lambda: rows_of_a_product(k=24, dtype="bfloat16"),
    "one row": lambda: embedding(1, 1, 1),
    "one place": lambda: embedding(3, 1, 64, "int8"),
    "bytes beyond the table": lambda: embedding(200, 9, 5, "uint8", "int8"),
    "bytes within the table": lambda: embedding(300, 9, 16, "uint8", "bfloat16"),
    "numbers of 16 bits": lambda: embedding(9, 4, 21, "int64", "float16"),
    "places of 64 bits": lambda: along(3, 5, 40, "int64"),
    "places of bytes": lambda: along(3, 5, 40, "int8"),
    "one place along": lambda: along(1, 1, 17),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_lookups_as_written(case):
    dag = collapse(ComputeDAG(CASES[case]()))
    for kind in KINDS:
        check_kernel(dag, initial_state(dag), make_inputs(dag, 1, kind))


@pytest.mark.parametrize("case", CASES)
def test_lookups_of_a_search(case):
    dag = collapse(ComputeDAG(CASES[case]()))
    rng = np.random.default_rng(0)
    inputs = make_inputs(dag, 2, "integers")
    found = sketches(dag, HASWELL, 2)
    for n in rng.permutation(len(found))[:MOST]:
        for row in little_rows(found[n], 1, rng, 128):
            check_candidate(dag, found[n], row, inputs)


@pytest.mark.parametrize("index", [name for name, row in DTYPES.items() if row.is_integer])
def test_numbers_outside_of_a_dimension_mean_its_ends(index):
    dag = collapse(ComputeDAG([embedding(11, 40, 17, index), along(2, 11, 20, index)]))
    info = np.iinfo(index)
    ends = np.array([info.min, info.max, 0, 10, 11 if info.max > 11 else 0, max(-1, info.min)], index)
    data = make_inputs(dag, 0, "normal")
    for name in ("ids", "at"):
        data[name] = np.resize(ends, data[name].shape)
    state = initial_state(dag)
    for stage in state.stages:
        last = stage.op.axes[-1].name
        state = state.apply(Split(stage.name, last, (8,)), Vectorize(stage.name, f"{last}.1"))
    check_kernel(dag, state, data)


def vectorised(dag: ComputeDAG, lanes: int = 16, rows: int = 1):
    outer, last = (a.name for a in dag.stages[0].axes)
    return initial_state(dag).apply(
        Split("C", last, (lanes,)),
        Split("C", outer, (rows,)),
        Reorder("C", (f"{outer}.0", f"{last}.0", f"{outer}.1", f"{last}.1")),
        *([Unroll("C", f"{outer}.1")] if rows > 1 else []),
        Vectorize("C", f"{last}.1"),
    )


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize("index", ["int8", "int32", "int64"])
def test_rows_are_copied_in_vectors_and_their_number_is_loaded_once_a_row(index):
    dag = collapse(ComputeDAG(embedding(100, 40, 256, index)))
    assembly = emit_assembly(build(vectorised(dag), HASWELL, 1).ir, HASWELL)
    (hot,) = [x for x in innermost_loops(assembly) if x.count("vmovups")]
    assert hot.count("vmovups") == 4, hot.lines  # two loads, two stores: vectors are as long as floats are, not numbers
    assert not any(re.search(r"movs|cmov|imul|cmp[lb]", line) for line in hot.lines), hot.lines


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
def test_a_clamp_that_the_type_makes_needless_is_left_out():
    for size, clamps in ((256, 0), (255, 1)):
        dag = collapse(ComputeDAG(embedding(size, 40, 64, "uint8")))
        text = build(vectorised(dag), HASWELL, 1).ir
        assert text.count("icmp ugt i8") + text.count("llvm.umin") == clamps, text
        assert "slt i8" not in text, "no unsigned number is below zero"


def short_table(size, dtype="float32", codes=15):
    code, table = te.placeholder((16, 256), "uint8", "W"), te.placeholder((size,), dtype, "T")
    return te.compute((16, 256), lambda i, j: table[te.cast(code[i, j] & codes, "int32")], name="C")


SHUFFLED = [
    ("haswell", "float32", 16, 2),
    ("haswell", "float32", 8, 1),
    ("haswell", "int8", 16, 1),
    ("znver4", "float32", 16, 1),
]


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(("mcpu", "dtype", "size", "shuffles"), SHUFFLED)
def test_short_tables_are_picked_by_shuffles(mcpu, dtype, size, shuffles):
    target = parse_target(f"llvm -mcpu={mcpu}")
    dag = collapse(ComputeDAG(short_table(size, dtype)))
    lanes = target.vector_bytes // (4 if dtype == "float32" else 1)
    state = initial_state(dag).apply(Split("C", "i_j", (lanes,)), Vectorize("C", "i_j.1"))
    assembly = emit_assembly(build(state, target, 1).ir, target)
    (hot,) = [x for x in innermost_loops(assembly) if x.count("vperm") + x.count("vpshufb")]
    assert hot.count("vperm") + hot.count("vpshufb") == shuffles, hot.lines
    assert not any(hot.count(word) for word in ("pinsr", "insert", "extr", "vpcmp")), hot.lines


@pytest.mark.parametrize(
    ("size", "dtype"), [(1, "float32"), (2, "int32"), (17, "float32"), (33, "int8"), (31, "uint8")]
)
def test_tables_of_any_length(size, dtype):
    dag = collapse(ComputeDAG(short_table(size, dtype, 63)))
    state = initial_state(dag).apply(Split("C", "i_j", (24,)), Vectorize("C", "i_j.1"))
    for kind in KINDS:
        check_kernel(dag, state, make_inputs(dag, 0, kind))


@pytest.mark.skipif(host_arch() != "x86_64", reason="builds for x86")
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "int16"])
@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 129, 320, 1000, 1024, 1025])
def test_long_tables_of_bytes_are_picked_from_registers(size, dtype):
    """By one instruction for every two registers, of at most 16; a table ends with its last element."""
    table, at = te.placeholder((size,), dtype, "T"), te.placeholder((450,), "int32", "at")
    dag = ComputeDAG(te.compute((450,), lambda i: table[at[i]], name="Y"))
    state = initial_state(dag).apply(Split("Y", "i", (64,)), Vectorize("Y", "i.1"))
    numbers = (np.arange(450, dtype="int32") * 7) % (size + 40) - 20
    check_kernel(dag, state, {"T": make_inputs(dag, 0, "integers")["T"], "at": numbers.astype("int32")})
    picks = build(state, parse_target("llvm -mcpu=znver4"), 1).ir.count("call <64 x i8> @llvm.x86.avx512.vpermi2var")
    assert (picks > 0) == (size <= 1024 and dtype != "int16")


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_fewer_lanes_than_a_register_has(lanes):
    x, at = te.placeholder((17, 32, lanes), name="X"), te.placeholder((32, lanes), "int8", "at")
    dag = ComputeDAG(te.compute((32, lanes), lambda i, j: x[at[i, j] * 2 - 1, i, j], name="C"))
    check_kernel(dag, initial_state(dag).apply(Vectorize("C", "j")))


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
def test_lanes_are_loaded_one_by_one_where_the_hardware_gathers_slowly_if_at_all():
    state = vectorised(collapse(ComputeDAG(along(8, 100, 64))), 8)
    for mcpu, words, none in (
        ("haswell", "vinsertps", "vgather"), ("znver4", "vinsertps", "vgather"),
        ("icelake-server", "vgather", "vinsertps"),
    ):  # fmt: skip
        target = parse_target(f"llvm -mcpu={mcpu}")
        assembly = emit_assembly(build(state, target, 1).ir, target)
        assert words in assembly
        assert none not in assembly
    assert "vpaddq" not in emit_assembly(build(state, HASWELL, 1).ir, HASWELL), (
        "pointers are made of numbers, not of vectors"
    )


@pytest.mark.parametrize("lookup", [along(8, 100, 64), down(8, 100, 64)])
@pytest.mark.parametrize("mcpu", ["haswell", "znver4"])
def test_lanes_are_clamped_in_32_bits(mcpu, lookup):
    target = parse_target(f"llvm -mcpu={mcpu}")
    text = build(vectorised(collapse(ComputeDAG(lookup))), target, 1).ir
    lanes = target.vector_bytes // 4
    assert f"<{lanes} x i32>" in text
    assert not re.search(rf"(icmp|mul nsw|select) <{lanes} x i64>", text), text

"""Integers that fit in 8 or 16 bits are computed in them: only where all of them fit, and with the same results."""

from __future__ import annotations

import random

import numpy as np
import pytest

from autosched import te
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.ir.size import Guards
from autosched.runtime.jit import emit_assembly
from autosched.schedule import Parallel, Split, Vectorize, initial_state
from autosched.target import host_arch, parse_target
from autosched.te.reference.evaluate import evaluate
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.short_integers import shorten_integers
from autosched.te.text import dag_text
from search_spaces.partial_sketch import SketchContext
from tests.codegen.running import build
from tests.codegen.test_assembly import innermost_loops

WIDE = ("int32", "int32", "int64", "uint32", "uint64", "int16", "uint16")
NARROW = ("uint8", "int8", "uint16", "int16")
NUMBERS = (0, 1, 2, 3, 5, 100, 255, 300, -1, -3, -300)


def wide(x: Expr) -> Expr:
    return te.cast(x, "int32")


def blur(n: int = 40) -> te.ComputeDAG:
    """Means of three bytes along both axes."""
    image = te.placeholder((n + 2, n + 2), "uint8", name="A")
    at = lambda i, j: wide(image[i, j])  # noqa: E731
    rows = te.compute((n + 2, n), lambda i, j: (at(i, j) + at(i, j + 1) + at(i, j + 2)) // 3, name="B")
    mean = lambda i, j: (rows[i, j] + rows[i + 1, j] + rows[i + 2, j]) // 3  # noqa: E731
    return te.ComputeDAG(te.compute((n, n), lambda i, j: te.cast(mean(i, j), "uint8"), name="C"))


def scaled(factor: int, kind: str = "uint8") -> te.ComputeDAG:
    """Bytes times a number, rounded down to bytes by a stage of its own."""
    image = te.placeholder((40,), kind, name="A")
    product = te.compute((40,), lambda i: wide(image[i]) * factor, name="B")
    return te.ComputeDAG(
        te.compute((39,), lambda i: te.cast((product[i] + product[i + 1] * 0) >> 8, "uint8"), name="C")
    )


def types(dag: te.ComputeDAG) -> list[str]:
    return [op.outputs[0].dtype for op in dag.stages]


def test_a_stage_that_only_short_sums_read_is_stored_short():
    assert dag_text(shorten_integers(blur())).splitlines()[1:3] == [
        "B[i:42, j:40] = (uint16(A[i, j]) + uint16(A[i, j + 1]) + uint16(A[i, j + 2]))//3",
        "C[i:40, j:40] = uint8((B[i, j] + B[i + 1, j] + B[i + 2, j])//3)",
    ]


@pytest.mark.parametrize(
    ("kind", "factor", "stored"),
    [("uint8", 257, "uint16"), ("uint8", 258, "int32"), ("int8", 256, "int16"), ("int8", 257, "int32")],
)
def test_no_product_may_leave_16_bits(kind, factor, stored):
    dag = scaled(factor, kind)
    new = shorten_integers(dag)
    assert types(new) == [stored, "uint8"]
    assert shorten_integers(new) is new
    for end in DTYPES[kind].integer_range:
        data = {"A": np.full(40, end, kind)}
        assert np.array_equal(evaluate(dag, data)[0].value, evaluate(new, data)[0].value)


@pytest.mark.parametrize(("terms", "kind"), [(257, "uint16"), (258, "int32")])
def test_reductions_are_short_where_all_partial_sums_fit(terms, kind):
    x, k = te.placeholder((4, terms), "uint8", name="X"), te.reduce_axis(terms, name="k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="S")
    dag = te.ComputeDAG(te.compute((4,), lambda i: te.cast(total[i] // terms, "uint8"), name="M"))
    assert types(shorten_integers(dag)) == [kind, "uint8"]


def test_sums_of_products_keep_the_type_of_their_instructions():
    x, k = te.placeholder((4, 3), "int8", name="X"), te.reduce_axis(3, name="k")
    y = te.placeholder((3,), "int8", name="Y")
    total = te.compute((4,), lambda i: te.sum(wide(x[i, k]) * wide(y[k]), axis=k), name="S")
    dag = te.ComputeDAG(te.compute((4,), lambda i: te.cast(total[i] >> 9, "int8"), name="M"))
    assert types(shorten_integers(dag)) == ["int32", "int8"]


@pytest.mark.parametrize(
    "last",
    [
        lambda b, i: te.cast(b[i], "float32"),
        lambda b, i: b[i],
        lambda b, i: te.cast(b[i] * 1000, "uint8"),
        lambda b, i: te.cast(b[i] % b[i + 1], "uint8"),  # which may be 0
    ],
    ids=["float", "output", "too large", "division by data"],
)
def test_stages_that_are_read_wide_stay_wide(last):
    a = te.placeholder((9,), "uint8", name="A")
    b = te.compute((9,), lambda i: wide(a[i]) - 5, name="B")
    dag = te.ComputeDAG(te.compute((8,), lambda i: last(b, i), name="C"))
    assert types(shorten_integers(dag))[0] == "int32"


def test_a_byte_that_wraps_around_is_not_taken_for_the_number():
    a, b = te.placeholder((9,), "uint8", name="A"), te.placeholder((9,), "int32", name="B")
    out = te.compute((9,), lambda i: te.cast(te.cast(wide(te.cast(b[i], "uint8")) < wide(a[i]), "int32"), "int8"))
    dag = te.ComputeDAG(out)
    data = {"A": np.full(9, 200, np.uint8), "B": np.arange(9, dtype=np.int32) * 1000}
    assert np.array_equal(evaluate(dag, data)[0].value, evaluate(shorten_integers(dag), data)[0].value)


def test_quotients_of_what_is_never_negative_are_unsigned():
    a = te.placeholder((9,), "uint16", name="A")
    value = lambda i: (wide(a[i]) * 2 + 1) // 3  # noqa: E731
    dag = te.ComputeDAG(te.compute((9,), value, name="B"))
    assert "uint32(int32(A[i])*2 + 1)//3" in dag_text(shorten_integers(dag))
    signed = te.ComputeDAG(te.compute((9,), lambda i: (wide(a[i]) - 1) // 3, name="B"))
    assert shorten_integers(signed) is signed


@pytest.mark.parametrize(("whole", "fits"), [(255, True), (257, True), (258, False)])
def test_weights_that_add_up_are_taken_together(whole, fits):
    """A mixture of two images: by the intervals of its products it would be twice as large."""
    a, b, m = (te.placeholder((9,), "uint8", name=name) for name in "ABM")
    weight = lambda i: te.minimum(wide(m[i]), whole)  # noqa: E731
    mixed = lambda i: (wide(a[i]) * weight(i) + wide(b[i]) * (whole - weight(i))) // whole  # noqa: E731
    dag = te.ComputeDAG(te.compute((9,), lambda i: te.cast(mixed(i), "uint8"), name="C"))
    assert ("uint32" not in dag_text(shorten_integers(dag))) is fits


BYTES = {
    "minimum": (lambda a, b: te.minimum(a, b), "min(A[i], B[i])"),
    "median": (
        lambda a, b: te.maximum(te.minimum(a, b), te.minimum(te.maximum(a, b), 9)),
        "max(min(A[i], B[i]), min(max(A[i], B[i]), 9))",
    ),
    "threshold": (lambda a, b: te.select(a > 100, b, te.const(0, "int32")), "select(A[i] > 100, B[i], 0)"),
    "distance": (lambda a, b: te.abs(a - b), "max(A[i], B[i]) - min(A[i], B[i])"),
    "sum": (lambda a, b: te.minimum(a + b, 255), "select(A[i] + B[i] < A[i], 255, A[i] + B[i])"),
    "smaller sum": (lambda a, b: te.minimum(a + b, 9), "min(select(A[i] + B[i] < A[i], 255, A[i] + B[i]), 9)"),
    "difference": (lambda a, b: te.maximum(a - b, 0), "max(A[i], B[i]) - B[i]"),
    "average": (lambda a, b: (a + b + 1) >> 1, "(A[i] | B[i]) - ((A[i] ^ B[i]) >> 1)"),
    "motion": (
        lambda a, b: te.select(te.abs(a - b) > 25, te.const(255, "int32"), te.const(0, "int32")),
        "select(max(A[i], B[i]) - min(A[i], B[i]) > 25, 255_u8, 0_u8)",
    ),
}


@pytest.mark.parametrize("case", BYTES)
def test_what_vectors_of_bytes_have_instructions_for_is_in_bytes(case):
    value, text = BYTES[case]
    a, b = (te.placeholder((1 << 16,), "uint8", name=name) for name in "AB")
    dag = te.ComputeDAG(te.compute((1 << 16,), lambda i: te.cast(value(wide(a[i]), wide(b[i])), "uint8"), name="C"))
    new = shorten_integers(dag)
    assert f"C[i:65536] = {text}\n" in dag_text(new)
    every = np.arange(1 << 16, dtype=np.uint16)
    data = {"A": (every >> 8).astype(np.uint8), "B": every.astype(np.uint8)}
    assert np.array_equal(evaluate(dag, data)[0].value, evaluate(new, data)[0].value)


@pytest.mark.parametrize(
    "value",
    [
        lambda a, b: te.minimum(a + b, 256),
        lambda a, b: te.minimum(a + wide(te.cast(b, "int8")), 255),
        lambda a, b: (a + b) >> 1,
        lambda a, b: te.minimum(a * b, 255),
    ],
    ids=["too large", "signed", "rounded down", "product"],
)
def test_other_numbers_stay_in_16_bits(value):
    a, b = (te.placeholder((9,), "uint8", name=name) for name in "AB")
    dag = te.ComputeDAG(te.compute((9,), lambda i: te.cast(value(wide(a[i]), wide(b[i])), "uint8"), name="C"))
    assert "int16" in dag_text(shorten_integers(dag))


def test_a_stage_of_minima_in_32_bits_is_stored_in_bytes():
    image = te.placeholder((40,), "uint8", name="A")
    least = te.compute((39,), lambda i: te.minimum(wide(image[i]), wide(image[i + 1])), name="B")
    dag = te.ComputeDAG(te.compute((38,), lambda i: te.cast(te.minimum(least[i], least[i + 1]), "uint8"), name="C"))
    assert types(shorten_integers(dag)) == ["uint8", "uint8"]


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(
    ("case", "instruction"),
    [("sum", "vpaddusb"), ("difference", "vpsubusb"), ("average", "vpavgb"), ("minimum", "vpminub")],
)
def test_saturated_sums_and_averages_are_one_instruction(case, instruction):
    a, b = (te.placeholder((512, 64), "uint8", name=name) for name in "AB")
    value = lambda i, j: te.cast(BYTES[case][0](wide(a[i, j]), wide(b[i, j])), "uint8")  # noqa: E731
    state = initial_state(shorten_integers(te.ComputeDAG(te.compute((512, 64), value, name="C"))))
    target = parse_target("llvm -mcpu=haswell")
    assembly = emit_assembly(build(state.apply(Vectorize("C", "j")), target, 1).ir, target)
    (hot,) = [x for x in innermost_loops(assembly) if x.count(instruction)]
    assert hot.count(instruction) == 2
    assert not any(hot.count(word) for word in ("vpaddw", "vpminuw", "vpackuswb", "vpmovzxbw"))


def test_sizes_are_not_asked_for_their_values():
    with Guards() as guards:
        n = guards.symbol("n", 40, low=1)
        dag = blur(n=n)
        given = set(guards.conditions)
        assert types(shorten_integers(dag)) == ["uint16", "uint8"]
        position = te.compute((n,), lambda i: te.cast(wide(i) + n, "uint8"), name="P")
        shorten_integers(te.ComputeDAG(position))
        assert set(guards.conditions) == given


class _Program:
    """A few stages of integers, of one wide type, over inputs of narrow ones."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.wide = self.rng.choice(WIDE)

    def dag(self) -> te.ComputeDAG:
        n = self.rng.choice((1, 7, 29))
        images = [te.placeholder((n + 4,), self.rng.choice((*NARROW, "int32")), name=name) for name in "AB"]
        for number in range(self.rng.randint(1, 4)):
            images.append(self.stage(f"s{number}", [self.rng.choice(images) for _ in range(2)]))
        return te.ComputeDAG(
            self.stage("out", [images[-1], self.rng.choice(images)], self.rng.choice((*NARROW, "int32")))
        )

    def stage(self, name: str, read: list[te.Tensor], narrow: str | None = None) -> te.Tensor:
        n = min(t.shape[0] for t in read)
        if narrow is None and n > 3 and self.rng.random() < 0.3:
            k = te.reduce_axis(3, name=f"k_{name}")
            return te.compute((n - 2,), lambda i: te.sum(self.value(1, read, i, k), axis=k), name=name)
        kind = narrow or (self.rng.choice(NARROW) if self.rng.random() < 0.4 else self.wide)
        return te.compute(
            (max(1, n - 1),), lambda i: te.cast(self.value(self.rng.randint(1, 3), read, i), kind), name=name
        )

    def value(self, depth: int, read: list[te.Tensor], i: Expr, k: Expr | int = 0) -> Expr:
        rng, go = self.rng, lambda: self.value(depth - 1, read, i, k)
        if depth == 0 or rng.random() < 0.15:
            leaf = rng.choice((read[0][i + k], read[1][i], i))
            least = DTYPES[self.wide].integer_range[0]
            number = te.const(rng.choice([x for x in NUMBERS if x >= least]), self.wide)
            return te.cast(leaf, self.wide) if rng.random() < 0.75 else number
        a, b = go(), go()
        divisor, bits = rng.choice((1, 2, 3, 7, 256)), rng.choice((0, 1, 4, 8, 15, 16, 20))
        conditions = (a < b, te.equal(a, b), te.logical_not(a >= b), (a < b) & (b > 3))
        ways = (
            *(a + b, a - b, a * b, te.minimum(a, b), te.maximum(a, b), a & b, a | b, a ^ b),
            *(a // divisor, a % divisor, a >> bits, a << bits, te.abs(a)),
            *(te.minimum(a + b, 255), te.maximum(a - b, 0), te.abs(a - b), (a + b + 1) >> 1),
            a if self.wide.startswith("u") else -a,
            te.cast(te.cast(a, rng.choice(NARROW)), self.wide),
            te.cast(rng.choice(conditions), self.wide) * 3,
            te.select(rng.choice(conditions), go(), b),
        )
        return rng.choice(ways)


@pytest.mark.parametrize("part", range(4))
def test_random_programs_have_the_same_results(part):
    changed = 0
    for seed in range(100 * part, 100 * part + 100):
        dag, rng = _Program(str(seed)).dag(), np.random.default_rng(seed)
        new = shorten_integers(dag)
        changed += new is not dag
        for _ in range(2 if new is not dag else 0):
            ends = {t.name: DTYPES[t.dtype].integer_range for t in dag.inputs}
            drawn = {t.name: rng.integers(*ends[t.name], t.shape, t.dtype, endpoint=True) for t in dag.inputs}
            extreme = {t.name: rng.choice(np.array([*ends[t.name], 0], t.dtype), t.shape) for t in dag.inputs}
            for data in (drawn, extreme):
                assert np.array_equal(evaluate(dag, data)[0].value, evaluate(new, data)[0].value), dag_text(dag)
    assert changed > 20


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(("mcpu", "register"), [("haswell", "ymm"), ("znver4", "zmm")])
def test_the_hot_loop_has_no_lanes_of_32_bits(mcpu, register):
    """The stage of the rows, written in int32: sums of words, and a high product instead of a division."""
    dag = collapse(blur(n=512))
    state = initial_state(dag).apply(Split("B", "j", (64,)), Vectorize("B", "j.1"), Parallel("B", ("i",)))
    target = parse_target(f"llvm -mcpu={mcpu}")
    hot = [x for x in innermost_loops(emit_assembly(build(state, target, 1).ir, target)) if x.count("vpmulhuw")]
    assert len(hot) == 1
    vectors = 64 * 16 // {"ymm": 256, "zmm": 512}[register]
    assert hot[0].count("vpmulhuw") == hot[0].count("vpaddw") // 2 == vectors
    assert not any(hot[0].count(word) for word in ("vpaddd", "vpmulld", "vpmuludq", "vpmovzxbd", "vpsubw", "vpblend"))


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(("mcpu", "lanes"), [("haswell", 16), ("znver4", 32)])
def test_vectors_are_whole_ones_of_16_bits_where_a_float_is_stored(mcpu, lanes):
    """Half a vector of words would take as many instructions as a vector of floats."""
    image = te.placeholder((67, 514), "uint8", name="A")
    at = lambda i, j: wide(image[i, j])  # noqa: E731
    slope = lambda i, j: sum((at(i + n, j + 2) - at(i + n, j) for n in range(1, 4)), at(i, j + 2) - at(i, j))  # noqa: E731
    dag = te.ComputeDAG(te.compute((64, 512), lambda i, j: te.cast(slope(i, j), "float32"), name="C"))
    target = parse_target(f"llvm -mcpu={mcpu}")
    assert SketchContext(target, 1).lanes_of(initial_state(collapse(dag)).stage("C")) == lanes
    state = initial_state(collapse(dag)).apply(Split("C", "j", (64,)), Vectorize("C", "j.1"))
    (hot,) = (x for x in innermost_loops(emit_assembly(build(state, target, 1).ir, target)) if x.count("vpsubw"))
    assert hot.count("vpsubw") == 4 * 64 // lanes
    assert hot.count("vcvtdq2ps") == 2 * 64 // lanes

"""Sketches with dot products of words: against the interpreter, and compiled, with and without the instruction."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.codegen.llvm.kernel import emit
from autosched.errors import ScheduleError
from autosched.ir.expr import Load
from autosched.ir.instructions.dots import INTRINSICS, Dot, packed, unpacked
from autosched.lower import concretise, lower
from autosched.schedule import Tensorize, Widen, initial_state, replay, steps_to_json
from autosched.target import Target, parse_target
from autosched.te import ComputeDAG
from autosched.te.operators import registry
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.statements import analyse
from search_spaces import cpu
from search_spaces.space import Sketch
from tests.codegen.running import check_candidate, check_outputs, run, targets
from tests.helpers import check_nest, little_rows

TARGET = parse_target("llvm -mcpu=znver4")
HASWELL = parse_target("llvm -mcpu=haswell")
BFLOAT = ("bfloat16", {})
BYTES = ("uint8", {"w_dtype": "int8"})
CASES = [
    ("matmul", (5, 33, 8), *BFLOAT),
    ("matmul", (3, 17, 7), *BFLOAT),
    ("matmul", (2, 1, 1), *BFLOAT),
    ("matmul", (1, 17, 3), *BFLOAT),
    ("matmul", (6, 31, 12), *BYTES),
    ("matmul", (3, 19, 13), *BYTES),
    ("matmul", (3, 19, 5), "int8", {"w_dtype": "uint8"}),
    ("matmul", (6, 31, 13), "int8", {}),
    ("matmul", (3, 19, 16), "uint8", {}),
    ("matmul", (6, 31, 13), "int16", {}),
    ("matmul", (3, 19, 6), "int16", {}),
    ("conv2d", (1, 5, 6, 3, 17, 3, 2, 1), *BFLOAT),
    ("conv2d", (1, 4, 5, 8, 17, 3, 1, 1), *BYTES),
    ("conv2d", (1, 4, 5, 8, 17, 3, 1, 1), "int8", {}),
    ("conv2d", (1, 4, 5, 8, 17, 3, 1, 1), "int16", {}),
    ("dense", (5, 18, 9), "uint8", {}),
    ("gmm", (2, 3, 17, 5), *BFLOAT),
]


def sketches_with_words(dag: ComputeDAG, target: Target = TARGET) -> list[Sketch]:
    """Those that multiply words by vectors; tiles have a page of their own."""
    words = [
        (s, [INTRINSICS[x.intrinsic] for x in s.state.steps if isinstance(x, Tensorize)])
        for s in cpu.sketches(dag, target, 2)
    ]
    return [s for s, rows in words if any(row.tile is None for row in rows)]


@pytest.mark.parametrize(("name", "shape", "dtype", "settings"), CASES)
def test_sketches_compute_the_reference(
    name: str, shape: tuple[int, ...], dtype: str, settings: dict[str, str]
) -> None:
    dag = collapse(registry.build(name, shape, settings, dtype=dtype)[0])
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(len(name) + sum(shape))
    found = sketches_with_words(dag)
    assert bool(found) is (min(shape[:3]) > 1 or name != "matmul")
    for sketch in found[::2]:
        (row,) = little_rows(sketch, 1, rng, 128)
        check_candidate(dag, sketch, row, inputs)


@pytest.mark.parametrize(("name", "shape", "dtype", "settings"), [c for c in CASES if c[2] != "bfloat16"])
def test_integers_are_multiplied_in_16_bits(
    name: str, shape: tuple[int, ...], dtype: str, settings: dict[str, str]
) -> None:
    dag = collapse(registry.build(name, shape, settings, dtype=dtype)[0])
    rng = np.random.default_rng(sum(shape))
    ends = {"int8": [-128, -1, 127], "uint8": [0, 200, 255], "int16": [-(2**15), -1, 2**15 - 1], "int32": [-9, 7]}
    inputs = {t.name: rng.choice(ends[t.dtype], t.shape).astype(t.dtype) for t in dag.inputs}
    found = sketches_with_words(dag, HASWELL)
    assert found
    for sketch in found[::2]:
        (row,) = little_rows(sketch, 1, rng, 128)
        check_candidate(dag, sketch, row, inputs)


def test_bytes_along_the_reduction_are_read_as_they_lie() -> None:
    """A row by a matrix that is contiguous along the reduction: 16 bytes become a vector of words, no copy."""
    A, W = te.placeholder((2, 256), "int8", name="A"), te.placeholder((19, 256), "uint8", name="W")
    k = te.reduce_axis(256, name="k")
    dag = ComputeDAG(
        te.compute((2, 19), lambda i, j: te.sum(te.cast(A[i, k], "int32") * te.cast(W[j, k], "int32"), axis=k), "C")
    )
    (sketch,) = [s for s in sketches_with_words(dag, HASWELL) if "dots" in s.name]
    func, simplify = concretise(lower(sketch.state), {p.name: p.domain[-1] for p in sketch.params})
    text = emit(func, simplify, HASWELL, 1).ir
    assert "avx2.pmadd.wd" in text
    assert "sext <16 x i8>" in text
    assert "zext <16 x i8>" in text
    inputs = make_inputs(dag, 1, "normal")
    for target in targets():
        check_outputs(dag, inputs, run(emit(func, simplify, target, 1), dag, inputs, target), target.mcpu)


@pytest.mark.parametrize(
    ("dtype", "accumulator"), [("bfloat16", "float32"), ("int8", "int32"), ("uint8", "int32"), ("int16", "int32")]
)
@pytest.mark.parametrize("K", [16, 13])
def test_operands_contiguous_along_the_reduction_are_copied_across(dtype: str, accumulator: str, K: int) -> None:
    """A[i, k] W[j, k]: no operand has its lanes beside each other."""
    A, W = te.placeholder((6, K), dtype, name="A"), te.placeholder((19, K), dtype, name="W")
    k = te.reduce_axis(K, name="k")

    def product(i, j):
        return te.sum(te.cast(A[i, k], accumulator) * te.cast(W[j, k], accumulator), axis=k)

    dag = collapse(ComputeDAG(te.compute((6, 19), product, name="C")))
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(K)
    found = sketches_with_words(dag)
    assert found
    for sketch in found[::2]:
        (row,) = little_rows(sketch, 1, rng, 128)
        func, simplify = concretise(lower(sketch.state), row)
        check_nest(func, dag)
        for target in targets():
            check_outputs(
                dag, inputs, run(emit(func, simplify, target, 2), dag, inputs, target), f"{sketch.name} {row}"
            )


@pytest.mark.parametrize(("dtype", "accumulator"), [("bfloat16", "float32"), ("int8", "int32")])
@pytest.mark.parametrize("across", [False, True])
def test_products_that_share_an_operand_have_words_of_their_own(dtype: str, accumulator: str, across: bool) -> None:
    """X U and X V or X' V: both make words of X, along the same axis or along another one."""
    X, U, V = (te.placeholder((18, 18), dtype, name=name) for name in "XUV")

    def product(V: te.Tensor, name: str, across: bool) -> te.Tensor:
        k = te.reduce_axis(18, name="k")

        def step(i, j):
            x = X[k, i] if across else X[i, k]
            return te.sum(te.cast(x, accumulator) * te.cast(V[k, j], accumulator), axis=k)

        return te.compute((18, 18), step, name=name)

    dag = collapse(ComputeDAG([product(U, "P", False), product(V, "Q", across)]))
    inputs, rng = make_inputs(dag, 1, "normal"), np.random.default_rng(0)
    found = [s for s in sketches_with_words(dag) if sum(isinstance(x, Tensorize) for x in s.state.steps) == 2]
    assert found
    for sketch in found[::9]:
        (row,) = little_rows(sketch, 1, rng, 128)
        check_candidate(dag, sketch, row, inputs)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_least_and_greatest_bytes_are_multiplied_exactly(dtype: str) -> None:
    dag = collapse(registry.build("matmul", (4, 16, 8), dtype=dtype)[0])
    ends = [-128, 127] if dtype == "int8" else [0, 255]
    rng = np.random.default_rng(0)
    inputs = {t.name: rng.choice(ends, t.shape).astype(dtype) for t in dag.inputs}
    sketch = sketches_with_words(dag)[0]
    func, simplify = concretise(lower(sketch.state), {p.name: p.domain[-1] for p in sketch.params})
    for target in targets():
        check_outputs(dag, inputs, run(emit(func, simplify, target, 1), dag, inputs, target), target.mcpu)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_what_flipped_bits_add_is_taken_off_once(dtype: str) -> None:
    """Not in every step of the reduction, nor are they flipped there: its body is the instruction alone."""
    dag = collapse(registry.build("matmul", (4, 16, 8), dtype=dtype)[0])
    found = sketches_with_words(dag)
    assert found
    for sketch in found:
        reduced, consumer = sketch.state.stage("matmul.acc"), sketch.state.stage("matmul")
        (dot,) = reduced.op.body
        assert isinstance(dot, Dot)
        assert dot.intrinsic == "vpdpbusd"
        assert {x.buffer for x in dot.children if isinstance(x, Load)} == {"A.words", "B.words"}
        (packed,) = (step.packed for step in sketch.state.steps if isinstance(step, Tensorize))
        assert consumer.op.reads == {"matmul.acc", f"{packed}.sums"}
        assert sketch.state.stage(f"{packed}.sums").at == sketch.state.stage(f"{packed}.words").at


def test_a_slow_instruction_is_for_what_is_used_once() -> None:
    """Of Sapphire Rapids' VDPBF16PS: operands that many points use are converted ahead."""
    target = parse_target("llvm -mcpu=sapphirerapids")
    product = collapse(registry.build("matmul", (40, 64, 64), dtype="bfloat16")[0])
    assert sketches_with_words(product)
    assert not sketches_with_words(product, target)
    found = cpu.sketches(product, target, 2)
    assert any(isinstance(step, Widen) for sketch in found for step in sketch.state.steps)
    for rows, is_used in ((1, True), (5, False)):
        A, W = te.placeholder((rows, 256), "bfloat16", name="A"), te.placeholder((40, 256), "bfloat16", name="W")
        k = te.reduce_axis(256, name="k")
        dag = ComputeDAG(te.compute((rows, 40), lambda i, j, A=A, W=W, k=k: te.sum(A[i, k] * W[j, k], axis=k), "C"))
        assert bool(sketches_with_words(dag, target)) is is_used


@pytest.mark.parametrize("K", [2, 64])
def test_only_sums_of_products_are_in_words(K: int) -> None:
    A, B = te.placeholder((3, K), "uint8", "A"), te.placeholder((5, K), "uint8", "B")
    k = te.reduce_axis(K, "k")
    products = te.compute(
        (3, 5), lambda i, j: te.min(te.cast(A[i, k], "int32") * te.cast(B[j, k], "int32"), axis=k), "C"
    )
    dag = ComputeDAG([products])
    assert cpu.sketches(dag, TARGET, 2)
    assert not sketches_with_words(dag)


def test_code_uses_the_instruction_where_there_is_one() -> None:
    dag = collapse(registry.build("matmul", (8, 64, 64), dtype="bfloat16")[0])
    sketch = sketches_with_words(dag)[0]
    row = {p.name: p.domain[0] for p in sketch.params}
    func, simplify = concretise(lower(sketch.state), row)
    assert "dpbf16ps.512" in emit(func, simplify, TARGET, 1).ir
    assert "dpbf16ps" not in emit(func, simplify, HASWELL, 1).ir
    assert not sketches_with_words(dag, HASWELL)
    again = replay(dag, steps_to_json(sketch.state, row))
    assert concretise(lower(again), {})[0] == func


def test_the_model_counts_the_products_and_loads_a_word_once() -> None:
    dag = collapse(registry.build("matmul", (8, 64, 64), BYTES[1], dtype="uint8")[0])
    sketch = sketches_with_words(dag)[0]
    statements = analyse(lower(sketch.state)).statements
    update = next(s for s in statements if s.updates)
    assert update.ops.count("int_mad") == INTRINSICS["vpdpbusd"].depth
    assert [a.count for a in update.accesses if a.buffer.name == "A"] == [1]


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [("bfloat16", [-1.5, 3e38]), ("uint8", [0, 1, 128, 255]), ("int8", [-128, -1, 0, 127]), ("int16", [-(2**15), 9])],
)
def test_words_keep_their_numbers(dtype: str, numbers: list[object]) -> None:
    word = packed(numbers, dtype)
    assert -(2**31) <= word < 2**31
    got = unpacked(word, dtype, len(numbers))
    np.testing.assert_allclose(got, np.array(numbers, float), rtol=2.0**-8)


def test_refusals() -> None:
    a, b = te.placeholder((4, 4), "uint8", name="A"), te.placeholder((4, 4), "int8", name="B")
    k = te.reduce_axis(4, name="k")
    wide = te.compute((4, 4), lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), axis=k), name="C")
    state = initial_state(ComputeDAG(wide))
    for step, message in (
        (Tensorize("C", "k", "vdpwssd", "B"), "known are"),
        (Tensorize("C", "i", "vpdpbusd", "B"), "reduction axis"),
        (Tensorize("C", "k", "vdpbf16ps", "B"), "not a sum of products in float32"),
        (Tensorize("C", "k", "vpdpbusd", "D"), "D is not one of two operands"),
        (Tensorize("C", "k", "vpdpbusd", ""), "B has no whole words along k"),
    ):
        with pytest.raises(ScheduleError, match=message):
            state.apply(step)

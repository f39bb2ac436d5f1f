"""float16 and bfloat16: conversions bit by bit on every processor, operators against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched import te
from autosched.codegen.llvm.kernel import emit
from autosched.errors import UsageError
from autosched.ir.dtype import DTYPES
from autosched.lower import concretise, lower
from autosched.runtime.jit import emit_assembly
from autosched.schedule import Vectorize, initial_state
from autosched.target import host_arch, parse_target
from autosched.te import ComputeDAG
from autosched.te.operators import registry
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from search_spaces import cpu
from tests.codegen.running import build, can_run, check_outputs, run, targets
from tests.helpers import exact
from tests.runtime.test_dlpack import Shared

HALVES = ("float16", "bfloat16")
BYTES = ("float8_e4m3fn", "float8_e5m2")
SMALL = (*HALVES, *BYTES)
EVERY = np.arange(1 << 16, dtype=np.uint16)


def every(dtype: str) -> np.ndarray[Any, Any]:
    """All numbers of a dtype of 16 bits; of 8 bits, again and again."""
    row = DTYPES[dtype]
    return EVERY.astype(row.bits_dtype).view(row.numpy_dtype)


def _floats() -> np.ndarray[Any, Any]:
    """Any bits, all numbers of float16, the points halfway between them, and their neighbours."""
    rng = np.random.default_rng(0)
    some = rng.integers(0, 2**32, 4096, dtype=np.uint64).astype(np.uint32).view(np.float32)
    exact = np.sort(EVERY.view(np.float16)[np.isfinite(EVERY.view(np.float16))].astype(np.float32))
    middle = (exact[1:] + exact[:-1]) / 2
    both = [np.nextafter(middle, np.float32(side), dtype=np.float32) for side in (-np.inf, np.inf)]
    return np.concatenate([some, exact, middle, *both])[:-3]


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("dtype", SMALL)
def test_conversions_are_numpys(dtype: str, vectorised: bool) -> None:
    numbers = _floats()
    a, b = te.placeholder(EVERY.shape, dtype, name="A"), te.placeholder(numbers.shape, "float32", name="B")
    wide = te.compute(a.shape, lambda i: te.cast(a[i], "float32"), name="C")
    short = te.compute(b.shape, lambda i: te.cast(b[i], dtype), name="D")
    dag = ComputeDAG((wide, short))
    state = initial_state(dag)
    state = state.apply(Vectorize("C", "i"), Vectorize("D", "i")) if vectorised else state
    with np.errstate(all="ignore"):
        narrowed = numbers.astype(DTYPES[dtype].numpy_dtype)
        widened = every(dtype).astype(np.float32)
    for target in targets():
        c, d = run(build(state, target, 1), dag, {"A": every(dtype), "B": numbers}, target)
        np.testing.assert_array_equal(c, widened)
        same = d.view(DTYPES[dtype].bits_dtype) == narrowed.view(DTYPES[dtype].bits_dtype)
        same |= np.isnan(d.astype(np.float32)) & np.isnan(numbers)
        if dtype == "bfloat16":  # AVX512-BF16 takes subnormals for zero, which the reference's bound allows
            same |= np.abs(numbers) < 2.0**-126
        assert same.all(), (target.mcpu, numbers[~same][:5], d[~same][:5])


CASES = [
    ("matmul", (1, 1, 1)),
    ("matmul", (7, 13, 11)),
    ("matmul", (17, 33, 1)),
    ("conv2d", (1, 5, 7, 3, 17, 3, 1, 1)),
    ("conv2d", (2, 5, 5, 1, 1, 3, 2, 1)),
    ("softmax", (3, 37)),
    ("max_pool2d", (1, 7, 7, 19, 3, 2, 1)),
    ("transpose", (5, 19)),
    ("tbg", (1, 7, 3, 5)),
]


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_operators_on_every_processor(name: str, shape: tuple[int, ...], dtype: str) -> None:
    dag, _ = registry.build(name, shape, dtype=dtype)
    assert {t.dtype for t in dag.outputs} == {dtype}
    inputs = make_inputs(dag, 3, "normal")
    for target in targets():
        sketch = cpu.sketches(dag, target, 2)[0]
        row = {p.name: p.domain[len(p.domain) // 3] for p in sketch.params}
        func, simplify = concretise(lower(sketch.state), row)
        outputs = run(emit(func, simplify, target, 2), dag, inputs, target)
        check_outputs(dag, inputs, outputs, f"{name} {target.mcpu}")


@pytest.mark.parametrize("dtype", HALVES)
def test_the_interpreter_agrees(dtype: str) -> None:
    dag, _ = registry.build("dense", (3, 5, 7), dtype=dtype)
    exact(dag, initial_state(dag))


def test_arithmetic_is_that_of_float32() -> None:
    a, b = te.placeholder((4,), "bfloat16", name="A"), te.placeholder((4,), "float16", name="B")
    k = te.reduce_axis(4, name="k")
    assert (a[0] * 0.1).dtype == (a[0] + b[0]).dtype == te.exp(b[1]).dtype == "float32"
    assert te.max(a[k], axis=k).dtype == te.sum(b[k], axis=k).dtype == "float32"
    assert te.select(a[0] < 1, a[0], 0.1).dtype == "bfloat16"
    assert te.cast(te.const(0.1, "bfloat16"), "float32").value == 0.10009765625


def test_types_of_results() -> None:
    dag, _ = registry.build("matmul", (2, 3, 4), {"out_dtype": "float32"}, dtype="bfloat16")
    assert dag.outputs[0].dtype == "float32"
    dag, spec = registry.build("matmul", (2, 3, 4), {"w_dtype": "int8"}, dtype="uint8")
    assert [t.dtype for t in (*dag.inputs, *dag.outputs)] == ["uint8", "int8", "int32"]
    assert registry.resolve(spec).content_hash == dag.content_hash
    with pytest.raises(UsageError, match="out_dtype for float32"):
        registry.build("matmul", (2, 3, 4), {"out_dtype": "bfloat16"})
    with pytest.raises(UsageError, match="w_dtype"):
        registry.build("softmax", (2, 3), {"w_dtype": "int8"})


def test_tensors_of_other_libraries() -> None:
    """A DLPack tensor of bfloat16 is read and written where it lies."""
    kernel = at.compile("relu", shape=(3, 5), dtype="bfloat16")
    given = np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5).astype(DTYPES["bfloat16"].numpy_dtype)
    expected = np.maximum(given.astype(np.float32), 0)
    np.testing.assert_array_equal(kernel(given).astype(np.float32), expected)
    out = np.zeros((3, 5), DTYPES["bfloat16"].numpy_dtype)
    kernel(Shared(given), out=Shared(out))
    np.testing.assert_array_equal(out.astype(np.float32), expected)
    with pytest.raises(UsageError, match="must be bfloat16"):
        kernel(Shared(given.astype(np.float16)))


def test_subnormal_operands_may_count_as_zero() -> None:
    """As VDPBF16PS takes them: 2^-130 * 2^100 is 2^-30, or nothing."""
    dag, _ = registry.build("matmul", (2, 16, 2), {"out_dtype": "float32"}, dtype="bfloat16")
    a, b = np.full((2, 2), 2.0**-130), np.full((2, 16), 2.0**100)
    inputs = {"A": a.astype(DTYPES["bfloat16"].numpy_dtype), "B": b.astype(DTYPES["bfloat16"].numpy_dtype)}
    (expected,) = evaluate(dag, inputs)
    exact = np.full((2, 16), 2.0**-29)
    assert within(expected, exact).all()
    assert within(expected, 0 * exact).all()
    assert not within(expected, 3 * exact).any()


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
def test_bfloat16_is_rounded_without_a_choice_on_avx2():
    target = parse_target("llvm -mcpu=haswell")
    b = te.placeholder((64,), name="B")
    state = initial_state(ComputeDAG(te.compute((64,), lambda i: te.cast(b[i], "bfloat16"), name="D")))
    text = emit_assembly(build(state.apply(Vectorize("D", "i")), target, 1).ir, target)
    assert "vcmpunordps" in text
    assert "vblendv" not in text


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(("mcpu", "together"), [("haswell", "vpblendw"), ("cooperlake", "vcvtne2ps2bf16")])
def test_bfloat16_is_taken_in_pairs_where_lanes_need_no_order(mcpu: str, together: str) -> None:
    """The sum's registers and the scaled row; not a row that is float32 in memory as well."""
    target = parse_target(f"llvm -mcpu={mcpu}")
    dag, _ = registry.build("rms_norm", (3, 64), dtype="bfloat16")
    texts = []
    for sketch in cpu.sketches(dag, target, 1):
        row = {p.name: p.domain[len(p.domain) // 2] for p in sketch.params}
        texts.append(emit_assembly(emit(*concretise(lower(sketch.state), row), target, 1).ir, target))
    assert any(together in text and "vpmovzxwd" not in text and "vpackus" not in text for text in texts)

    a, b = te.placeholder((64,), "bfloat16", name="A"), te.placeholder((64,), name="B")
    state = initial_state(ComputeDAG(te.compute((64,), lambda i: a[i] * b[i], name="C")))
    assert "vpmovzxwd" in emit_assembly(build(state.apply(Vectorize("C", "i")), target, 1).ir, target)


@pytest.mark.parametrize("mcpu", ["haswell", "cooperlake"])
@pytest.mark.parametrize(("name", "shape"), [("layer_norm", (3, 96)), ("softmax", (2, 64))])
def test_pairs_of_bfloat16_in_every_sketch(name: str, shape: tuple[int, ...], mcpu: str) -> None:
    target = parse_target(f"llvm -mcpu={mcpu}")
    if not can_run(target):
        pytest.skip("not here")
    dag, _ = registry.build(name, shape, dtype="bfloat16")
    inputs = make_inputs(dag, 3, "normal")
    for sketch in cpu.sketches(dag, target, 1):
        row = {p.name: p.domain[len(p.domain) // 2] for p in sketch.params}
        outputs = run(emit(*concretise(lower(sketch.state), row), target, 1), dag, inputs, target)
        check_outputs(dag, inputs, outputs, f"{name} {row}")

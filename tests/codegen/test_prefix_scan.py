"""Running reductions of blocks: the steps of shifted vectors give what adding under masks gives, in any block."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.runtime.jit import emit_assembly
from autosched.schedule import Reorder, Unroll, Vectorize, initial_state
from autosched.target import host_arch, parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from tests.codegen.running import build, check_outputs, run, targets
from tests.te.test_scans import ORDERS, running

LOOPS = (Reorder("Y", ("i0", "k", "i1")), Unroll("Y", "k"), Vectorize("Y", "i1"))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 12, 16, 21, 24, 32, 33])
def test_any_block_in_any_direction(n: int, order: str) -> None:
    dag = ComputeDAG(running((3, n), order=order, term=lambda x: x * 0.5))
    inputs = make_inputs(dag, n, "normal")
    for target in targets():
        outputs = run(build(initial_state(dag).apply(*LOOPS), target, 1), dag, inputs, target)
        check_outputs(dag, inputs, outputs, f"{n} {target.mcpu}")


@pytest.mark.parametrize(
    ("reducer", "start", "dtype"),
    [("max", -np.inf, "float32"), ("min", np.inf, "float64"), ("prod", 1.0, "float32"), ("sum", 0, "int8"),
     ("sum", 0.0, "bfloat16"), ("max", -(2**31), "int32")],
)  # fmt: skip
def test_other_reducers_and_types(reducer: str, start: float, dtype: str) -> None:
    for order in ("k <= i", "k + 1 > i + 1"):
        dag = ComputeDAG(running((2, 21), order=order, reducer=reducer, start=start, dtype=dtype))
        inputs = make_inputs(dag, 1, "normal")
        for target in targets():
            outputs = run(build(initial_state(dag).apply(*LOOPS), target, 1), dag, inputs, target)
            check_outputs(dag, inputs, outputs, f"{order} {target.mcpu}")


def test_nan_and_infinities_reach_what_follows() -> None:
    for reducer, start in (("max", -np.inf), ("sum", 0.0)):
        dag = ComputeDAG(running((1, 16), reducer=reducer, start=start))
        x = np.arange(16, dtype=np.float32)[None]
        x[0, 5], x[0, 9] = np.inf, np.nan
        with np.errstate(invalid="ignore"):
            expected = (np.maximum if reducer == "max" else np.add).accumulate(x, axis=1)
        for target in targets():
            (y,) = run(build(initial_state(dag).apply(*LOOPS), target, 1), dag, {"X": x}, target)
            np.testing.assert_array_equal(y, expected)


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(("mcpu", "n", "most"), [("haswell", 8, 4), ("skylake-avx512", 16, 5)])
def test_a_vector_is_added_to_itself_shifted(mcpu: str, n: int, most: int) -> None:
    target = parse_target(f"llvm -mcpu={mcpu}")
    dag = ComputeDAG(running((3, n)))
    text = emit_assembly(build(initial_state(dag).apply(*LOOPS), target, 1).ir, target)
    assert 0 < text.count("vaddps") <= most


def test_what_reads_its_own_place_is_added_one_by_one() -> None:
    x, k = te.placeholder((2, 16), name="X"), te.reduce_axis(16, name="k")
    y = te.compute((2, 16), lambda i, j: te.sum(te.select(k <= j, x[i, k] * x[i, j], 0.0), axis=k), name="Y")
    dag = ComputeDAG(y)
    loops = (Reorder("Y", ("i", "k", "j")), Unroll("Y", "k"), Vectorize("Y", "j"))
    inputs = make_inputs(dag, 1, "normal")
    for target in targets():
        outputs = run(build(initial_state(dag).apply(*loops), target, 1), dag, inputs, target)
        check_outputs(dag, inputs, outputs, target.mcpu)

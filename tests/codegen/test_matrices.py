"""Products of matrices as CUDA C: what the simulator makes of it, and what NVIDIA's compiler does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autosched.codegen import build_source
from autosched.codegen.c.kernel import emit
from autosched.errors import ScheduleError
from autosched.lower import concretise, lower
from autosched.schedule import State
from autosched.te.dag import ComputeDAG
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from tests.codegen import cuda
from tests.codegen.gpu import TARGETS
from tests.codegen.nvcc import resources
from tests.matrix_products import ORDERS, matrix_state, product

SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def right(dag: ComputeDAG, state: State) -> str:
    """The text, which the simulator has found right."""
    func = lower(state)
    source = build_source(func, {}, TARGETS["cuda"])
    inputs = make_inputs(dag, 0, "normal")
    outputs = cuda.run(source, func, inputs)
    for tensor, reference in zip(dag.outputs, evaluate(dag, inputs), strict=True):
        assert within(reference, outputs[tensor.name]).all(), source.text
    return source.text


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_order_of_operands(order: str, dtype: str) -> None:
    dag = product(33, 23, 37, order, dtype)
    text = right(dag, matrix_state(dag, (2, 1), (1, 3), 2))
    assert ("load_rows_4(&a_fragments" in text) == (order[0] == "n")
    assert ("load_rows_4(&b_fragments" in text) == (order[1] == "t")
    assert ("load_rows_2(&b_fragments" in text) == (order[1] == "t")  # of three tiles the last one is alone
    assert f".{'f16' if dtype == 'float16' else 'bf16'}.f32 " in text


@pytest.mark.parametrize(
    ("shape", "warps", "tiles", "stages"),
    [
        ((9, 7, 16), (1, 1), (1, 1), 1),
        ((64, 64, 64), (2, 2), (2, 4), 3),
        ((100, 17, 50), (2, 1), (2, 2), 4),
        ((17, 130, 129), (1, 4), (1, 4), 2),
    ],
)
def test_ragged_tiles(shape: tuple[int, int, int], warps: tuple[int, int], tiles: tuple[int, int], stages: int) -> None:
    dag = product(*shape)
    right(dag, matrix_state(dag, warps, tiles, stages))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fn*float8_e5m2"])
def test_floats_of_8_bits(order: str, dtype: str) -> None:
    dag = product(33, 23, 71, order, dtype)
    text = right(dag, matrix_state(dag, (2, 1), (1, 3), 2, 16))
    assert "m16n8k32" in text
    assert "load_columns" not in text


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_products_of_float32(order: str, precision: str) -> None:
    dag = product(33, 23, 37, order, precision)
    text = right(dag, matrix_state(dag, (2, 1), (1, 3), 2, 4))
    assert ("load_rows_4(&a_fragments" in text) == (order[0] == "n")
    assert ("load_rows_4(&b_fragments" in text) == (order[1] == "t")
    assert "load_columns" not in text
    assert text.count("multiply_matrices_") - 1 == (1 if precision == "tf32" else 3)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint8*int8", "int8*uint8"])
def test_integers(order: str, dtype: str) -> None:
    dag = product(33, 23, 71, order, dtype)
    text = right(dag, matrix_state(dag, (2, 1), (1, 3), 2, 16))
    assert "m16n8k32" in text
    assert "load_columns" not in text


@pytest.mark.parametrize("order", ORDERS)
def test_padded_rows_are_in_different_banks(order: str) -> None:
    dag = product(64, 64, 64, order)
    func, inputs = lower(matrix_state(dag, (2, 2), (2, 4), pad=8)), make_inputs(dag, 0, "normal")
    padded = cuda.counted(build_source(func, {}, TARGETS["cuda"]), func, inputs)
    func = lower(matrix_state(dag, (2, 2), (2, 4), pad=0))
    dense = cuda.counted(build_source(func, {}, TARGETS["cuda"]), func, inputs)
    assert padded["wavefronts"] == padded["least_wavefronts"] < dense["wavefronts"]


def test_rows_that_are_no_whole_lines_are_refused() -> None:
    dag = product(32, 16, 32)
    func, simplify = concretise(lower(matrix_state(dag, pad=4)), {})
    with pytest.raises(ScheduleError, match=r"rows of A\.shared are 72 bytes"):
        emit(func, simplify, "cuda")


def test_opencl_c_has_plain_loops() -> None:
    dag = product(32, 16, 32)
    assert "mma" not in emit(*concretise(lower(matrix_state(dag)), {}), "opencl").text


@pytest.mark.parametrize(("dtype", "vector"), [("float16", 8), ("int8", 16)])
def test_nvcc_keeps_all_in_registers(dtype: str, vector: int, tmp_path: Path) -> None:
    dag = product(256, 256, 256, "nt", dtype)
    source = emit(*concretise(lower(matrix_state(dag, (2, 2), (4, 8), 3, vector, vector)), {}), "cuda")
    assert SPILLED.findall(resources(source.text, "sm_80", tmp_path)) == [("0", "0")]

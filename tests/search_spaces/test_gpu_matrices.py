"""Sketches for tensor cores: where they are offered, and that what is drawn from them is right in the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosched import te
from autosched.codegen import build_source
from autosched.codegen.c.source import GpuSource
from autosched.target import Target, parse_target
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from tests.codegen.gpu import TARGETS
from tests.codegen.nvcc import resources
from tests.matrix_products import ORDERS, biased, product
from tests.search_spaces.gpu_candidates import Drawn, best_with_and_without, check_candidates, draw

MARK = ":mma."
SM_80 = TARGETS["cuda"]


def by_warps(dag: te.ComputeDAG, target: str = "cuda -arch=sm_80") -> list[str]:
    return [s.name for s in sketches(collapse(dag), parse_target(target)) if MARK in s.name]


def drawn(dag: te.ComputeDAG, target: Target) -> list[Drawn]:
    found = list(draw(collapse(dag), target, mark=MARK))
    assert found
    return found


def check(dag: te.ComputeDAG, runs: int = 2, target: Target = SM_80) -> None:
    def look(source: GpuSource) -> None:
        assert "mma.sync" in source.text

    check_candidates(dag, drawn(dag, target), target, runs, look)


@pytest.mark.parametrize("order", ORDERS)
def test_orders_and_batches(order: str) -> None:
    check(product(33, 24, 40, order, "bfloat16"))
    check(product(17, 15, 23, order, batch=2), 1)
    check(product(33, 24, 64, order, "int8"), 1)
    check(product(17, 15, 37, order, "uint8", batch=2), 1)
    check(product(13, 20, 67, order, "uint8*int8"), 1)


@pytest.mark.parametrize("order", ORDERS)
def test_products_of_float32(order: str) -> None:
    check(product(17, 15, 23, order, "tf32"), 1)
    check(product(33, 10, 150, order, "3xtf32"), 1)


@pytest.mark.parametrize("order", ORDERS)
def test_floats_of_8_bits(order: str) -> None:
    check(product(33, 24, 64, order, "float8_e4m3fn"), 1, parse_target("cuda -arch=sm_89"))
    check(product(17, 15, 37, order, "float8_e5m2*float8_e4m3fn", batch=2), 1, parse_target("cuda -arch=sm_90"))
    assert not by_warps(product(64, 64, 64, order, "float8_e5m2"))


@pytest.mark.parametrize("order", ORDERS)
def test_the_first_cards(order: str) -> None:
    """Of compute capability 7.5: instructions that take half as much of k, and copies through registers."""
    for dag in (product(33, 24, 19, order), product(17, 15, 37, order, "int8*uint8")):
        check(dag, 1, parse_target("cuda -arch=sm_75"))
    check(product(5, 40, 200, order, "uint8"), 1, parse_target("cuda -arch=sm_75"))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_nvcc_takes_what_the_first_cards_get(dtype: str, tmp_path: Path) -> None:
    target = parse_target("cuda -arch=sm_75")
    one = drawn(product(64, 64, 64, "nt", dtype), target)[0]
    source = build_source(one.func, next(one.candidates(1)), target)
    assert "mma.sync" in source.text
    resources(source.text, "sm_75", tmp_path)


def test_prologue_and_epilogue() -> None:
    check(biased(40, 24, 48, prologue=True), 1)
    check(biased(19, 21, 35, "bfloat16", prologue=True), 1)


def test_where_they_are_offered() -> None:
    dag = product(64, 64, 64)
    assert by_warps(dag) == ["C:mma.float16"]
    assert by_warps(dag, "cuda -arch=sm_90")
    assert by_warps(dag, "cuda -arch=sm_75") == ["C:mma.float16.k8"]
    assert not by_warps(product(64, 64, 64, dtype="bfloat16"), "cuda -arch=sm_75")
    assert not by_warps(dag, "opencl")
    assert not by_warps(product(64, 64, 64, dtype="float32"))
    assert by_warps(product(64, 64, 64, dtype="tf32")) == ["C:mma.tf32"]
    assert not by_warps(product(64, 64, 64, dtype="tf32"), "cuda -arch=sm_75")
    assert by_warps(product(2, 64, 64)) == ["C:mma.float16"]
    assert not by_warps(product(1, 64, 64))
    assert not by_warps(product(3, 3, 64))
    assert not by_warps(product(64, 64, 7))


@pytest.mark.parametrize("shape", [(5, 24, 40), (2, 9, 257), (12, 3, 200), (17, 40, 300), (16, 8, 8)])
def test_few_rows_columns_and_terms(shape: tuple[int, int, int]) -> None:
    for order in ("nn", "tt") if shape[2] > 100 else ORDERS:
        check(product(*shape, order), 1)


def test_parts_of_a_long_reduction() -> None:
    dag = product(17, 40, 300, "nt", "bfloat16")
    (sketch,) = (s for s in sketches(collapse(dag), SM_80) if "split-k" in s.name and MARK in s.name)
    assert sketch.name == "C.rf:mma.bfloat16/split-k"
    assert {p.name: p.domain for p in sketch.params}["C.k.b"] == (128, 192)
    check(product(33, 9, 389, "tn", "uint8"), 1)
    check(biased(5, 11, 323, prologue=True), 1)


def test_what_lies_beyond_a_sum_is_not_added() -> None:
    """Copies of the operands are zero beyond their last element, not beyond the reduction's."""
    A, B = te.placeholder((16, 40), "float16", name="A"), te.placeholder((40, 16), "float16", name="B")
    k = te.reduce_axis(35, name="k")
    function = lambda i, j: te.sum(te.cast(A[i, k], "float32") * te.cast(B[k, j], "float32"), axis=k)  # noqa: E731
    assert not by_warps(te.ComputeDAG(te.compute((16, 16), function, name="C")))


def test_the_draft_prefers_them_where_there_is_much_to_do() -> None:
    """The best of random rows by the analytic latency, against the best of threads for themselves."""
    by_warps_s, others_s = best_with_and_without(product(2048, 2048, 2048), SM_80, MARK)
    assert by_warps_s < others_s / 3

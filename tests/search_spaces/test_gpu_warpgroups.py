"""Sketches for warpgroups: where they are offered, and that what is drawn from them is right in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autosched import te
from autosched.codegen import build_source
from autosched.codegen.c.source import GpuSource
from autosched.lower import lower
from autosched.target import Target, parse_target
from autosched.te.rewrites.collapse import collapse
from cost_model.model import CostModel
from search_spaces.gpu import sketches
from tests.matrix_products import ORDERS, biased, product
from tests.search_spaces.gpu_candidates import Drawn, best_with_and_without, check_candidates, draw

MARK = "wgmma."
SM_90 = parse_target("cuda -arch=sm_90")


def by_warpgroups(dag: te.ComputeDAG, target: str = "cuda -arch=sm_90") -> list[str]:
    return [s.name for s in sketches(collapse(dag), parse_target(target)) if MARK in s.name]


def drawn(dag: te.ComputeDAG) -> list[Drawn]:
    found = list(draw(collapse(dag), SM_90, mark=MARK))
    assert found
    return found


def small_device(multiprocessors: int) -> Target:
    assert SM_90.gpu is not None
    return replace(SM_90, gpu=replace(SM_90.gpu, multiprocessors=multiprocessors))


def check(dag: te.ComputeDAG) -> None:
    check_rows(dag, drawn(dag))


def check_rows(dag: te.ComputeDAG, found: Sequence[Drawn]) -> None:
    """The first legal row of each sketch."""

    def look(source: GpuSource) -> None:
        assert "wgmma.mma_async" in source.text
        assert source.is_arch_specific

    check_candidates(dag, found, SM_90, look=look)


@pytest.mark.parametrize("order", ORDERS)
def test_orders_and_batches(order: str) -> None:
    check(product(136, 104, 72, order, "bfloat16"))
    check(product(72, 40, 40, order, batch=3))


@pytest.mark.parametrize("order", ORDERS)
def test_bytes_lie_along_k(order: str) -> None:
    """Other operands are turned by a kernel before."""
    check(product(80, 48, 96, order, "int8"))
    check(product(72, 32, 48, order, "uint8", batch=2))
    check(product(72, 32, 64, order, "float8_e4m3fn"))
    check(product(72, 32, 32, order, "float8_e5m2*float8_e4m3fn"))


def test_rows_that_are_no_multiples() -> None:
    """M is prime; what the copy engine reads has whole rows of 16 bytes."""
    check(product(131, 24, 24, "nn", "bfloat16"))
    check(product(67, 37, 136, "nt"))
    check(product(64, 1024, 16, "nn"))


def test_blocks_that_share_tiles() -> None:
    """Of each sketch a row with clusters along either axis, if there is one."""
    dag = product(192, 136, 72, "nn", "bfloat16")
    for one in drawn(dag):
        for column in [n for n, p in enumerate(one.sketch.params) if p.kind == "cluster"]:
            together = one.legal[one.legal[:, column] > 1]
            assert len(together), one.sketch.name
            check_rows(dag, [replace(one, legal=together)])


@pytest.mark.parametrize(("order", "k"), [("nn", 131), ("tt", 50), ("tn", 68), ("nt", 46)])
def test_rows_that_the_engine_refuses(order: str, k: int) -> None:
    """Threads copy tiles of one element, 4 or 8 bytes at a time, or a kernel before makes rows of another length."""
    dag = product(69, 44 if k == 68 else 37, k, order, "bfloat16", batch=2 if order == "tt" else 0)
    names = by_warpgroups(dag)
    assert any("-copied" in name for name in names)
    assert any(".long" in name or ".turned" in name for name in names)
    check(dag)


def test_bytes_in_rows_that_the_engine_refuses() -> None:
    """Those that lie across k are turned; threads copy what lies along it."""
    assert any("-copied" in name for name in by_warpgroups(product(72, 33, 40, "nt", "int8")))
    check(product(72, 33, 40, "nt", "int8"))
    check(product(67, 37, 45, "nn", "uint8"))
    check(product(67, 37, 46, "tt", "float8_e4m3fn"))


@pytest.mark.parametrize("order", ORDERS)
def test_float32_of_less_precision_lies_along_k(order: str) -> None:
    """Its bits beyond tf32 are cut off; in two parts it is left to warps."""
    check(product(72, 40, 48, order, "tf32"))
    check(product(67, 37, 33, order, "tf32"))
    assert not by_warpgroups(product(72, 40, 48, order, "3xtf32"))


def test_epilogues() -> None:
    check(biased(72, 72, 48))
    check(biased(67, 40, 40, "bfloat16"))
    check(biased(67, 45, 52, "bfloat16"))


def test_a_prologue_has_a_kernel_of_its_own() -> None:
    m, n, k = 72, 40, 64
    A, B = te.placeholder((m, k), "float32", name="A"), te.placeholder((k, n), "float16", name="B")
    axis = te.reduce_axis(k, name="k")
    P = te.compute((m, k), lambda i, j: te.cast(te.max(A[i, j], 0.0), "float16"), name="P")
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(te.cast(P[i, axis], "float32") * te.cast(B[axis, j], "float32"), axis=axis),
        name="C",
    )
    check(te.ComputeDAG(C))


def test_parts_of_a_long_reduction() -> None:
    """Each has blocks of its own; the last one ends where k does."""
    dag = product(72, 40, 1096, "nn", "bfloat16")
    assert any("split-k" in name for name in by_warpgroups(dag))
    check(dag)


@pytest.mark.parametrize(
    "dag",
    [
        biased(257, 272, 40),
        product(131, 528, 72, "nn", "bfloat16"),
        product(1032, 72, 24, "tn"),
        product(267, 261, 40, "nt"),
    ],
    ids=["epilogue", "columns", "rows", "direct"],
)
def test_what_fills_a_device_several_times_is_two_kernels_as_well(dag: te.ComputeDAG) -> None:
    """Of a device with two multiprocessors, which is small enough for the simulator."""
    (one,) = draw(collapse(dag), small_device(2), mark=".rest:")
    assert {p.kind for p in one.sketch.params if p.name.endswith(".at")} == {"end"}
    check_rows(dag, [one])


def test_two_kernels_are_offered_for_large_results_alone() -> None:
    names = by_warpgroups(product(2560, 2560, 64, dtype="bfloat16"))
    assert [n for n in names if ".rest:" in n] == ["C.acc:wgmma.bfloat16-staged/C.acc.rest:wgmma.bfloat16-staged"]
    assert not any(".rest:" in n for n in by_warpgroups(product(1024, 4096, 64, dtype="bfloat16")))


def test_the_model_knows_what_the_last_wave_costs() -> None:
    """8192 columns are 43 of 192, 1376 blocks of 256 rows for 132 multiprocessors: 10 times all of them, and then 56.
    With 41 of them in the first kernel these are 1312, and 96 smaller ones, or somewhat less, in the second."""
    first = {"D.i.g": 2, "D.i.s": 2, "D.j.s": 12, "D.j.p": 2, "D.resident": 1, "D.raster": 8, "C.k.c": 2}
    first |= {"C.stages": 5, "D.i.cluster": 2, "D.j.cluster": 1, "D.turns": 1}
    values = {**first, "D.j.at": 41 * 192, "D.rest.i.g": 2, "D.rest.i.s": 1, "D.rest.j.s": 12}
    seconds = dict[str, float]()
    for sketch in sketches(collapse(biased(8192, 8192, 8192, "bfloat16")), SM_90):
        if "staged" in sketch.name:
            model = CostModel([lower(sketch.state)], [tuple(p.name for p in sketch.params)], SM_90, 1)
            row = [[values[p.name] for p in sketch.params]]
            assert not model.broken_rules(0, np.array(row[0], np.int64))
            seconds[sketch.name] = float(model.analytic_latency(0, np.array(row, np.int64))[0])
    one, two = (seconds[n] for n in sorted(seconds, key=len))
    assert two < 0.99 * one


def test_where_they_are_offered() -> None:
    dag = product(64, 64, 64)
    assert by_warpgroups(dag) == ["C:wgmma.float16-staged", "C:wgmma.float16"]
    for target in ("cuda -arch=sm_80", "cuda -arch=sm_120", "opencl"):
        assert not by_warpgroups(dag, target)
    assert not by_warpgroups(product(64, 64, 64, dtype="float32"))
    assert not by_warpgroups(product(8, 64, 64))
    direct = [s for s in by_warpgroups(product(64, 60, 64)) if "staged" not in s]
    assert direct == ["B.turned:shared/C:wgmma.float16", "C:wgmma.float16-copied"], "rows of B are 120 bytes"
    assert by_warpgroups(product(64, 64, 60))[0] == "A.long@root/C:wgmma.float16-staged", "rows of A are 120 bytes"
    assert by_warpgroups(product(64, 60, 64, "nt"))
    assert not by_warpgroups(product(26, 5, 11, "tn", "uint8", batch=3)), "that is less than one step of k"


def test_the_draft_prefers_them_where_there_is_much_to_do() -> None:
    """The best of random rows by the analytic latency, against the best of other sketches; a block has 128 columns or
    more, since each of its warpgroups reads all of them."""
    by_warpgroups_s, others_s = best_with_and_without(product(4096, 4096, 4096), SM_90, MARK)
    assert by_warpgroups_s < others_s / 1.5


def test_the_text_says_which_maps_the_kernel_takes() -> None:
    one = drawn(product(64, 48, 40, "nn", "bfloat16"))[-1]
    source = build_source(one.func, next(iter(one.candidates(1))), SM_90)
    assert "launch kernel_0(A_map, B_map, " in source.text
    assert "//   A_map: tensor map of A, bfloat16(40, 64) innermost first, strides (80,) bytes, box " in source.text

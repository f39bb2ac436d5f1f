"""Figures of compiled kernels without a card: the loop that multiplies is found, candidates are tried at small sizes."""

from __future__ import annotations

import pytest

from autosched.errors import UsageError
from autosched.runtime.simulator.build import find_compiler
from autosched.target import parse_target
from experiments.gpu.drawn import drawn, named, problem_model
from experiments.gpu.hot_loop import HotLoop, hot_loop, parsed
from experiments.gpu.reduced import SassProblem, same_values
from experiments.gpu.sass import CASES, SassCase, Tools, find_tools, measured, recorded, table, tensor_peak
from experiments.tuning import write_results

PRINTED = """
		Function : kernel_0
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;          /* 0x00000a00ff017624 */
                                                                                    /* 0x000fe400078e00ff */
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;                          /* 0x0 */
        /*0020*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR16].tnspB, R24 ;  /* 0x0 */
        /*0030*/             @!UP0 UIADD3 UR4, UR4, 0x40, URZ ;                     /* 0x0 */
        /*0040*/              @!P3 BRA 0x20 ;                                       /* 0x0 */
        /*0050*/               @P0 BRA 0x10 ;                                       /* 0x0 */
        /*0060*/                   NANOSLEEP 0x20 ;                                 /* 0x0 */
        /*0070*/              @!P0 BRA 0x60 ;                                       /* 0x0 */
        /*0080*/                   EXIT ;                                           /* 0x0 */
        /*0090*/                   BRA 0x90;                                        /* 0x0 */
        /*00a0*/                   NOP;                                             /* 0x0 */
		Function : kernel_1
        /*0000*/                   HMMA.16816.F32 R4, R8, R20, R4 ;                 /* 0x0 */
        /*0010*/                   EXIT ;                                           /* 0x0 */
        /*0020*/                   BRA 0x20;                                        /* 0x0 */
        /*0030*/                   NOP;                                             /* 0x0 */
"""
TINY = SassProblem("gmm", (1, 128, 128, 64), "bfloat16")


def tools() -> Tools:
    if find_compiler() is None:
        pytest.skip("g++ is not installed (on Debian: g++)")
    try:
        return find_tools()
    except UsageError as error:
        pytest.skip(str(error))


def test_the_innermost_loop_with_products_is_the_hot_one() -> None:
    kernels = parsed(PRINTED)
    assert [len(them) for them in kernels.values()] == [11, 4]
    assert [x.target for x in kernels["kernel_0"] if x.target is not None] == [0x20, 0x10, 0x60, 0x90]
    assert hot_loop(kernels) == HotLoop("kernel_0", "HGMMA.64x256x16", 3, 1, True)
    assert hot_loop({"kernel_1": kernels["kernel_1"]}) == HotLoop("kernel_1", "HMMA.16816", 3, 1, False)
    assert hot_loop({}) is None


def test_values_are_those_of_the_large_problem_but_for_the_order_of_blocks() -> None:
    problem = SassProblem("gmm", (1, 4096, 4096, 4096), "bfloat16", candidates=1)
    of = problem_model(problem, parse_target("cuda -arch=sm_90"))
    (large,) = drawn(of, 0)
    orders = {p.name for p in of.sketches[large.sketch].params if p.kind in ("raster", "cluster")}
    small = problem_model(problem.reduced[0], of.target)
    again, changed = same_values(of, large, small)
    before, after = named(of, large), named(small, again)
    assert {k: v for k, v in after.items() if k not in orders} == {k: v for k, v in before.items() if k not in orders}
    assert any(after[order] < before[order] for order in orders) == bool(changed)
    with pytest.raises(UsageError, match="is not offered for"):
        same_values(of, large, problem_model(SassProblem("gmm", (1, 63, 61, 59)), of.target))


def test_all_that_is_said_of_a_tiny_product(tmp_path) -> None:
    case = SassCase(TINY, "sm_80")
    row = measured(case, tools())
    assert row["loop"]["products"]
    assert row["spilled"] == 0
    assert 0 < row["of_peak"] < 1
    assert [x["said"] for x in row["reduced"]] == ["right", "right"]
    path = tmp_path / "sass.json"
    write_results(path, {"rows": {CASES[0].label: row, CASES[1].label: {"error": "refused"}}})
    text = table(recorded(path))
    assert f"`{row['sketch']}`" in text
    assert "| refused |" in text
    assert len({line.count(" | ") for line in text.splitlines()}) == 1


def test_attention_and_convolutions_have_reduced_sizes() -> None:
    assert {case.problem.workload for case in CASES} == {"gmm", "c2d", "attention"}
    for case in CASES:
        whole = case.problem.dag().flops
        assert all(problem.dag().flops <= min(whole, 1 << 28) for problem in case.problem.reduced)


def test_peaks_of_tensor_cores() -> None:
    gpu = parse_target("cuda -arch=sm_80").gpu
    assert gpu is not None
    assert tensor_peak(gpu, "bfloat16") == pytest.approx(312e12, rel=0.01)

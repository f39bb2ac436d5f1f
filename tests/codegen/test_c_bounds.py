"""What the emitter tells the compiler about registers and loops."""

from __future__ import annotations

import json
import re

import pytest

from autosched.codegen.c.bounds import REGISTERS, WARP, resident_blocks
from autosched.codegen.c.kernel import emit
from autosched.lower import concretise, lower
from autosched.schedule import replay
from autosched.te.operators.registry import build
from tests.gpu_schedules import matmul, matmul_state


@pytest.mark.parametrize(
    ("threads", "results", "operands", "blocks"),
    [
        (256, 64, 16, 2),  # 112 registers: 4 warps in each of 4 partitions
        (256, 128, 24, 1),
        (128, 64, 40, 3),
        (32, 200, 30, 8),  # as many registers as a thread can have
        (1024, 64, 16, 1),
        (7, 20, 4, 16),  # no device keeps fewer blocks
        (256, 16, 8, 4),  # no more threads than every device keeps
        (256, 8, 8, None),  # few
    ],
)
def test_registers_of_results_and_operands_are_there(
    threads: int, results: int, operands: int, blocks: int | None
) -> None:
    found = resident_blocks(threads, 4 * results, 4 * operands)
    assert found == blocks
    if found is not None and found > 1:
        warps = -(-(-(-threads // WARP) * found) // 4)
        assert REGISTERS // (warps * WARP) >= min(255, results + operands)


def cuda(**values: int) -> str:
    dag = matmul(64, 64, 64)
    base = {"iv": 1, "it": 8, "is": 8, "jv": 1, "jt": 8, "js": 8, "k1": 2, "k2": 4, "va": 4, "vb": 4}
    concrete, simplify = concretise(lower(matmul_state(dag)), {**base, **values})
    return emit(concrete, simplify, "cuda").text


def test_fills_are_unrolled_a_few_times_and_large_bodies_not_again() -> None:
    text = cuda()
    loops = {name: times for times, name in re.findall(r"#pragma unroll ?(\d*)\n *for \(int (\w+) ", text)}
    assert loops["A_shared_each"] == loops["B_shared_each"] == "4"
    assert loops["C_acc_k_0"] == loops["C_acc_k_1"] == "1"
    assert loops["C_acc_k_2"] == loops["C_acc_i"] == loops["C_acc_j"] == ""


def test_copies_that_divide_are_written_out() -> None:
    """Rows of 12 elements and 64 threads: each copy of a thread is at another column."""
    dag = matmul(64, 64, 48)
    values = {"iv": 1, "it": 8, "is": 8, "jv": 1, "jt": 8, "js": 8, "k1": 3, "k2": 4, "va": 1, "vb": 4}
    text = emit(*concretise(lower(matmul_state(dag)), values), "cuda").text
    loops = {name: times for times, name in re.findall(r"#pragma unroll ?(\d*)\n *for \(int (\w+) ", text)}
    assert loops["A_shared_each"] == "4", "too many"
    wide = emit(*concretise(lower(matmul_state(dag)), values | {"va": 4}), "cuda").text
    loops = {name: times for times, name in re.findall(r"#pragma unroll ?(\d*)\n *for \(int (\w+) ", wide)}
    assert (loops["A_shared_each"], loops["B_shared_each"]) == ("3", "4")


def test_small_bodies_are_unrolled_further_and_the_smallest_left_to_the_compiler() -> None:
    assert "#pragma unroll 4\n    for (int C_acc_k_1 " in cuda(**{"is": 1, "js": 2})  # 4 steps of 2 points
    assert re.search(r"[^0-9]\n *for \(int C_acc_k_1 ", cuda(**{"is": 1, "js": 1, "k2": 2}))


def test_launch_bounds_follow_the_results() -> None:
    assert "__launch_bounds__(64, 6)" in cuda()
    assert "__launch_bounds__(64)" in cuda(**{"is": 1, "js": 2})


def test_a_plain_loop_around_the_results_of_a_thread() -> None:
    """How often a loop shall be unrolled is asked before what is allocated inside it has a place."""
    dag, _ = build("matmul", (8, 8, 8))
    steps = [["CacheWrite", "matmul"], ["Split", "matmul", "i", [4]]]
    attached = ["ComputeAt", "matmul.acc", "matmul", "i.0", "register"]
    concrete, simplify = concretise(lower(replay(dag, json.dumps([*steps, attached]))), {})
    assert "float matmul_acc[32];" in emit(concrete, simplify, "cuda").text

"""Kernels with a fault planted in their text, each of which the simulator or the result must show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched.codegen.c.kernel import emit
from autosched.codegen.c.source import GpuSource
from autosched.lower import concretise, lower
from autosched.runtime.simulator.build import find_compiler
from autosched.runtime.simulator.execute import EXTREMES, Mode, build, execute
from autosched.schedule import Pipeline, State
from autosched.te import ComputeDAG
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from tests.gpu_schedules import (
    atomic_team_state,
    matmul,
    matmul_state,
    one_reduction,
    softmax,
    softmax_state,
    team_state,
)
from tests.runtime.tensor_core_kernels import Product, mma_product, wgmma_product

Array = npt.NDArray[Any]
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="g++ is not installed (on Debian: g++)")
EXAMINED = Mode(checked=True)


@dataclass(frozen=True)
class Fault:
    """`before` is a regular expression, found once or more; the first becomes `after`. `mistake`: what must be found
    with accesses examined, "" where only the result is wrong."""

    before: str
    after: str
    mistake: str = ""


# Kernels of today's schedules


def emitted(state: State, values: Mapping[str, int]) -> GpuSource:
    return emit(*concretise(lower(state), values), "cuda")


@cache
def simt(name: str) -> tuple[ComputeDAG, GpuSource]:
    match name:
        case "pipeline":
            dag = matmul(13, 24, 29)
            values = {"iv": 2, "it": 2, "is": 2, "jv": 1, "jt": 4, "js": 4, "k1": 2, "k2": 2, "va": 1, "vb": 4}
            return dag, emitted(matmul_state(dag).apply(Pipeline("C.acc", "k.0", 3)), values)
        case "team":
            dag = one_reduction("sum", 3, 100)
            return dag, emitted(team_state(dag, 64, 32), {})
        case "atomic":
            dag = one_reduction("sum", 3, 100)
            return dag, emitted(atomic_team_state(dag, 40, 32), {})
    dag = softmax(5, 33)
    return dag, emitted(softmax_state(dag), {"jt": 4})


SIMT: dict[str, tuple[str, Fault]] = {
    "nobody waits for copies": ("pipeline", Fault(r"wait_for_all_copies_but_1\(\);", "", "under way")),
    "one group too many is left under way": ("pipeline", Fault(r"wait_group 1", "wait_group 2", "under way")),
    "copies make no group": ("pipeline", Fault(r"    commit_copies\(\);\n  }\n  int", "  }\n  int", "under way")),
    "copies are seen by the thread that made them only": ("pipeline", Fault(r"__syncthreads\(\);", "", "race")),
    "the barrier comes before the wait": (
        "pipeline",
        Fault(r"(wait_for_all_copies_but_1\(\);)\s*(__syncthreads\(\);)", r"\2 \1", "race"),
    ),
    "a stage is filled one place off": ("pipeline", Fault(r"int place = 2;", "int place = 0;", "race")),
    "a stage is read one place off": ("pipeline", Fault(r"int place_2 = 0;", "int place_2 = 1;", "under way")),
    "one place less": ("pipeline", Fault(r"place == 2 \? 0", "place == 1 ? 0", "")),
    "one place more": ("pipeline", Fault(r"place == 2 \? 0", "place == 3 ? 0", "outside")),
    "more results than a thread has": ("pipeline", Fault(r"C_acc_i < 4", "C_acc_i < 5", "outside")),
    "nothing is zero beyond the edge": ("pipeline", Fault(r"inside \? 4 : 0", "4", "outside")),
    "a bound is one too large": ("pipeline", Fault(r"< 13 && C_acc_k_0", "< 14 && C_acc_k_0", "outside")),
    "the last row is not filled": ("pipeline", Fault(r"C_i_2 < 13\);", "C_i_2 < 12);")),
    "a copy of 16 bytes from 4 further": ("pipeline", Fault(r"\(const float4\*\)&B\[", "(const float4*)&B[1 + ", "misaligned")),
    "a part of shared memory is not filled": ("pipeline", Fault(r"A_shared_each < 4", "A_shared_each < 3", "unwritten")),
    "sums begin with what is there": ("pipeline", Fault(r"= 0\.0f;", "+= 0.0f;")),
    "the result is stored beyond the edge": ("pipeline", Fault(r"C_i_3 < 13\)", "C_i_3 < 14)", "outside")),
    "a part of the result is not stored": ("pipeline", Fault(r"C_i_3 < 13\)", "C_i_3 < 12)")),
    "another lane": ("team", Fault(r"R_acc_own\[0\], 16\)", "R_acc_own[0], 8)")),
    "a lane that is not in the mask": ("team", Fault(r"0xffffffff", "0x7fffffff", "diverged")),
    "some lanes go another way": (
        "team",
        Fault(r"R_acc_own_other\[0\] = (__shfl_xor_sync\(0xffffffff, R_acc_own\[0\], 4\));", r"if (R_team % 2) R_acc_own_other[0] = \1;", "deadlock"),
    ),
    "warps do not wait for each other": ("team", Fault(r"__syncthreads\(\);", "", "race")),
    "only a warp waits": ("team", Fault(r"__syncthreads\(\);", "__syncwarp();", "race")),
    "half of the block waits": ("team", Fault(r"__syncthreads\(\);", "if (R_team < 32) __syncthreads();", "race")),
    "a warp's part goes to the wrong place": ("team", Fault(r"\[R_team / 32\]", "[R_team / 64]", "race")),
    "all threads store": ("team", Fault(r"if \(R_team < 1\)", "if (R_team < 2)", "race")),
    "a shuffle goes up, not down": ("atomic", Fault(r"__shfl_down_sync", "__shfl_up_sync")),
    "a lane that is not there is added": ("atomic", Fault(r"if \(R_rf_team % 32 \+ 8 < 32 && R_rf_team \+ 8 < 40\)", "")),
    "an update that is not atomic": ("atomic", Fault(r"atomicAdd\(&R\[R_rf_i\], R_rf_acc\[0\]\);", "R[R_rf_i] += R_rf_acc[0];", "race")),
    "the first kernel leaves an element out": ("atomic", Fault(r"R\[R_i_init\] =", "if (R_i_init) R[R_i_init] =", "unwritten")),
    "a step of a tree without a barrier": ("softmax", Fault(r"__syncthreads\(\);", "", "race")),
    "the tree's root is overwritten too early": (
        "softmax",
        Fault(r"__syncthreads\(\);\s*top_own\[0\] =", "__syncthreads();\n  top_own_all[0] = 0.0f;\n  top_own[0] =", "race"),
    ),
    "a column is left out": ("softmax", Fault(r"total_m_each \* 4 < 33", "total_m_each * 4 < 32")),
    "the larger is the smaller": ("softmax", Fault(r"max\.NaN", "min.NaN")),
}  # fmt: skip


def planted(text: str, fault: Fault) -> str:
    made, n = re.subn(fault.before, fault.after, text, count=1)
    assert n == 1, f"{fault.before} is not in the text\n{text}"
    return made


def buffer(nbytes: int, content: Array | None = None) -> Array:
    raw = np.full(nbytes + 512, 0xFF, np.uint8)
    begin = -raw.ctypes.data % 256
    made: Array = raw[begin : begin + nbytes].view(np.float32)
    if content is not None:
        made[:] = content.reshape(-1)
    return made


def outcome(source: GpuSource, dag: ComputeDAG, mode: Mode, capability: int = 90) -> tuple[list[str], bool]:
    """(kinds of mistakes, whether the result is right)"""
    inputs = make_inputs(dag, 0, "normal")
    memory = {t.name: buffer(4 * int(np.prod(t.shape)), inputs.get(t.name)) for t in (*dag.inputs, *dag.outputs)}
    ran = execute(build(source.text, mode.checked, capability), source.launches, memory, frozenset(source.inputs), mode)
    right = [
        within(r, memory[t.name].reshape(r.value.shape)).all()
        for t, r in zip(dag.outputs, evaluate(dag, inputs), strict=True)
    ]
    return [mistake.kind for mistake in ran.mistakes], all(right)


@pytest.mark.parametrize("capability", [75, 90])
@pytest.mark.parametrize("name", ["pipeline", "team", "atomic", "softmax"])
def test_kernels_without_a_fault_are_right(name: str, capability: int) -> None:
    """Before compute capability 8.0 threads copy themselves, and numbers are compared."""
    dag, source = simt(name)
    assert all(outcome(source, dag, mode, capability) == ([], True) for mode in (EXAMINED, *EXTREMES))


@pytest.mark.parametrize("name", SIMT)
def test_faults_of_simt_kernels(name: str) -> None:
    kernel, fault = SIMT[name]
    dag, source = simt(kernel)
    kinds, right = outcome(replace(source, text=planted(source.text, fault)), dag, EXAMINED)
    assert fault.mistake in kinds if fault.mistake else not right, (kinds, right)


# Kernels for tensor cores

PRODUCTS: dict[str, Callable[[], Product]] = {
    "mma": lambda: mma_product(128, 256, 128),
    "wgmma": lambda: wgmma_product(200, 264, 200),
}
TENSOR_CORES: dict[str, tuple[str, Fault]] = {
    "mma: nobody waits for copies": ("mma", Fault(r"wait_for_all_copies_but_1\(\);", "", "under way")),
    "mma: copies are seen by the thread that made them only": ("mma", Fault(r"__syncthreads\(\);", "", "race")),
    "mma: a chunk is read where it was not written": ("mma", Fault(r"\(chunk \^ row % 8\)", "chunk")),
    "mma: the matrix is not transposed": ("mma", Fault(r"x4\.trans", "x4")),
    "mma: a stage is filled one place off": ("mma", Fault(r"\(k \+ 2\) % 3", "(k + 1) % 3", "under way")),
    "mma: fragments of the next tile": ("mma", Fault(r"b\[j\]\);", "b[j ^ 1]);")),
    "mma: results one column off": ("mma", Fault(r"lane % 4 \* 2", "lane % 4")),
    "mma: rows of the wrong half": ("mma", Fault(r"h \* 8 \+ lane / 4", "h * 8 + lane % 8", "race")),
    "mma: a lane less": ("mma", Fault(r"    multiply_add\(", "    if (lane) multiply_add(", "diverged")),
    "wgmma: the ring begins with the other parity": ("wgmma", Fault(r"parity \^ 1\)", "parity)", "deadlock")),
    "wgmma: the producer does not wait": (
        "wgmma", Fault(r"while \(!barrier_try_wait\(full \+ 8, parity \^ 1\)\) { }", "", "protocol"),
    ),
    "wgmma: the consumers do not wait": ("wgmma", Fault(r"while \(!barrier_try_wait\(full, parity\)\) { }", "", "race")),
    "wgmma: the last product is not waited for": ("wgmma", Fault(r"matrix_wait_0\(\);", "")),
    "wgmma: a stage is given back too early": ("wgmma", Fault(r"matrix_wait_1\(\);", "", "under way")),
    "wgmma: nothing is given back": ("wgmma", Fault(r"if \(threadIdx\.x % 128 == 0\) barrier_arrive\([^;]*;", "", "deadlock")),
    "wgmma: every thread gives back": ("wgmma", Fault(r"if \(threadIdx\.x % 128 == 0\) barrier_arrive", "barrier_arrive", "race")),
    "wgmma: less is announced than comes": ("wgmma", Fault(r"barrier_expect\(full, \d+\)", "barrier_expect(full, 16384)", "race")),
    "wgmma: more is announced than comes": ("wgmma", Fault(r"barrier_expect\(full, \d+\)", "barrier_expect(full, 65536)", "deadlock")),
    "wgmma: a tile goes to the wrong half": ("wgmma", Fault(r"load_tile\(base \+ s", "load_tile(base + 1024 + s", "")),
    "wgmma: a tile that is not aligned": ("wgmma", Fault(r"load_tile\(base \+ s", "load_tile(base + 512 + s", "misaligned")),
    "wgmma: groups of rows are nearer than they lie": (
        "wgmma", Fault(r"\(unsigned long long\)64 << 32", "(unsigned long long)32 << 32"),
    ),
    "wgmma: another swizzle": ("wgmma", Fault(r"\(unsigned long long\)1 << 62", "(unsigned long long)2 << 62")),
    "wgmma: B along the other dimension": ("wgmma", Fault(r"p, 1, 1, 0, 1;", "p, 1, 1, 0, 0;")),
    "wgmma: sums are never begun": ("wgmma", Fault(r"k \+ kk > 0", "1")),
    "wgmma: sums are begun anew": ("wgmma", Fault(r"k \+ kk > 0", "kk > 0")),
    "wgmma: no fence before the first product": ("wgmma", Fault(r"matrix_fence\(\);", "", "unfenced")),
    "wgmma: barriers are used before they are there": ("wgmma", Fault(r"__syncthreads\(\);", "", "race")),
    "wgmma: a slice of k is left out": ("wgmma", Fault(r"a \+ kk \* 2", "a")),
    "wgmma: threads give different descriptors": (
        "wgmma", Fault(r"a \+ kk \* 2", "a + (kk ^ threadIdx.x % 2) * 2", "diverged"),
    ),
    "wgmma: results one column off": ("wgmma", Fault(r"lane % 4 \* 2", "(lane + 1) % 4 * 2")),
}  # fmt: skip


def product_outcome(product: Product, text: str, mode: Mode) -> tuple[list[str], bool]:
    memory, expected, bound = product.memory()
    ran = execute(build(text, mode.checked), [product.launch], memory, frozenset("AB"), mode)
    return [mistake.kind for mistake in ran.mistakes], bool((np.abs(memory["C"] - expected) <= bound).all())


@pytest.mark.parametrize("mode", [EXAMINED, *EXTREMES])
@pytest.mark.parametrize("kernel", PRODUCTS)
def test_tensor_core_kernels_without_a_fault_are_right(kernel: str, mode: Mode) -> None:
    product = PRODUCTS[kernel]()
    assert product_outcome(product, product.text, mode) == ([], True)


def test_chunks_that_change_places_have_no_bank_conflicts() -> None:
    """Each matrix of ldmatrix is one wavefront; in rows of 64 bytes as they come it is four, of 256 bytes eight."""
    product = mma_product(128, 128, 64)
    plain = product.text.replace(" ^ a_row / 2 % 4", "").replace(" ^ row / 2 % 4", "")
    plain = plain.replace(" ^ b_row % 8", "").replace(" ^ row % 8", "")
    counts = []
    for text in (product.text, plain):
        memory, _, _ = product.memory()
        mode = Mode(checked=True, counted=True)
        counts.append(execute(build(text, True), [product.launch], memory, frozenset("AB"), mode).numbers)
    assert [c["least_wavefronts"] for c in counts] == [counts[0]["wavefronts"]] * 2
    assert counts[1]["wavefronts"] > 4 * counts[0]["wavefronts"]


@pytest.mark.parametrize("name", TENSOR_CORES)
def test_faults_of_tensor_core_kernels(name: str) -> None:
    kernel, fault = TENSOR_CORES[name]
    product = PRODUCTS[kernel]()
    kinds, right = product_outcome(product, planted(product.text, fault), EXAMINED)
    assert fault.mistake in kinds if fault.mistake else not right, (kinds, right)

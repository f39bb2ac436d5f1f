"""Emitted kernels with a fault planted in their text that breaks a rule of the hardware or of its compiler, and that a
processor's execution alone would not show: each is found, as what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosched.codegen.c.source import GpuSource
from autosched.errors import UsageError
from autosched.runtime.gpu.compile import CompileError
from autosched.runtime.simulator.build import find_compiler
from autosched.runtime.simulator.execute import Execution
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from tests.codegen import cuda
from tests.runtime.emitted_kernels import emitted_kernel
from tests.runtime.test_planted_faults import SIMT, Fault, planted
from tests.runtime.test_planted_ring_faults import CLUSTERS, TURNS

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="g++ is not installed (on Debian: g++)")

KERNELS = ("parts", "ring", "promoted", "copied", "cluster", "copies", "rows")
NOT_BUILT = "build_error"  # in place of a mistake: the text does not compile


def movable(kernel: str, instruction: str, name: str) -> dict[str, tuple[str, Fault]]:
    """The statement with an instruction, without what keeps it in its place."""
    inside = r"(?:(?!asm)[\s\S])*?"
    statement = rf"asm volatile(\({inside}{instruction}{inside}) ?::?:? ?\"memory\"\)"
    return {
        f"{name} does not name memory": (kernel, Fault(statement, r"asm volatile\1)", "movable")),
        f"{name} is not volatile": (kernel, Fault(rf"asm volatile(\({inside}{instruction})", r"asm\1", "movable")),
    }


# What the kernels before may still write or read, and pointers that deny it
EARLY: dict[str, tuple[str, Fault]] = {
    "nobody waits for the kernel before": ("parts", Fault(r"  wait_for_kernels_before\(\);\n", "", "early")),
    "the wait comes at the end": (
        "parts", Fault(r"  wait_for_kernels_before\(\);\n([\s\S]*)\n}", r"\1\n  wait_for_kernels_before();\n}", "early"),
    ),
    "the wait is the signal": ("parts", Fault(r"griddepcontrol\.wait", "griddepcontrol.launch_dependents", "early")),
    "the wait is for a later architecture": (
        "parts", Fault(r"#if __CUDA_ARCH__ >= 900\n(.*\.wait)", r"#if __CUDA_ARCH__ >= 1000\n\1", "early"),
    ),
    "the wait depends on the data": (
        "parts", Fault(r"  wait_for_kernels_before\(\);", "  if (C_rf[0] > 2.0f) wait_for_kernels_before();", "early"),
    ),
    "what the kernel before writes is said to be constant": (
        "parts", Fault(r"const float\* C_rf\)", "const float* __restrict__ C_rf)", "early"),
    ),
    "an update before the wait": ("rows", Fault(r"  wait_for_kernels_before\(\);\n", "", "early")),
    "some threads do not wait": (
        "rows", Fault(r"  wait_for_kernels_before\(\);", "  if (threadIdx.x > 7) wait_for_kernels_before();", "early"),
    ),
    "what others update is said to be the kernel's own": (
        "rows", Fault(r"(kernel_1\([^)]*)float\* R", r"\1float* __restrict__ R", "early"),
    ),
}  # fmt: skip

# mbarriers, and what threads and the copy engine see of each other
SEEN: dict[str, tuple[str, Fault]] = {
    "the engine does not see new barriers": ("ring", Fault(r"    show_barriers\(\);\n", "", "unfenced")),
    "the engine does not see new barriers of 8-bit floats": (
        "promoted", Fault(r"    show_barriers\(\);\n", "", "unfenced"),
    ),
    "the engine does not see new barriers beside copies": (
        "copied", Fault(r"    show_barriers\(\);\n", "", "unfenced"),
    ),
    "the engine does not see new barriers of a cluster": (
        "cluster", Fault(r"    show_barriers\(\);\n", "", "unfenced"),
    ),
    "another thread shows the barriers": (
        "ring", Fault(r"    show_barriers\(\);\n  }", "  }\n  if (threadIdx.x == 1) show_barriers();", "unfenced"),
    ),
    "barriers are shown before they are made": (
        "ring", Fault(r"(    for \(int n[\s\S]*?    }\n)(    show_barriers\(\);\n)", r"\2\1", "unfenced"),
    ),
    "barriers are used before they are there": ("ring", Fault(r"  __syncthreads\(\);\n  int place", "  int place", "race")),
    "a barrier waits for one more": ("ring", Fault(r"\[n \* 2 \+ 1\], 1\)", "[n * 2 + 1], 2)", "deadlock")),
    "the engine does not see results": (
        "ring", Fault(r"show_to_engine\(\);(\s*if \(.*\{\s*wait_for_stores\(\);\s*}\s*if \(.*\{\s*meet_1\(\);\s*}\s*if)", r"\1", "unfenced"),
    ),
    "the engine stores before all have written": (
        "ring", Fault(r"meet_1\(\);(\s*}\s*if \(C_i)", r"\1", "race"),
    ),
    "products do not see copies of threads": (
        "copied", Fault(r"show_to_engine\(\);(\s*__syncwarp\(\);\s*if [^}]*}\s*copied = [^}]*}\s*if)", r"\1", "unfenced"),
    ),
    "products do not see the last copies of threads": (
        "copied", Fault(r"(while \(copied != place\) {\s*)show_to_engine\(\);", r"\1", "unfenced"),
    ),
    "a warp arrives before all its threads have copied": (
        "copied", Fault(r"(while \(copied != place\) {\s*show_to_engine\(\);\s*)__syncwarp\(\);", r"\1", "race"),
    ),
    "no fence before products": ("promoted", Fault(r"begin_products\(\);", "", "unfenced")),
}  # fmt: skip

# What is under way when threads end
UNFINISHED: dict[str, tuple[str, Fault]] = {
    "a block ends while its results are stored": (
        "ring", Fault(r"wait_for_stores\(\);(\s*}\s*}\s*}\s*)$", r"\1", "unfinished"),
    ),
    "the last wait is for all stores but one": (
        "ring", Fault(r"bulk\.wait_group\.read 0", "bulk.wait_group.read 1", "unfinished"),
    ),
    "stores make no group": ("ring", Fault(r"commit_stores\(\);(\s*}\s*if)", r"\1", "unfinished")),
    "the wait for stores comes from another thread": (
        "ring", Fault(r"threadIdx\.x == 0( && threadIdx\.y == 0 && threadIdx\.z % 4 == 0\) \{\s*wait_for_stores\(\);\s*}\s*}\s*}\s*)$", r"threadIdx.x == 1\1", "unfinished"),
    ),
    "products are under way at the end": (
        "ring", Fault(r"wait_for_all_products_but_0\(\);", "", "unfinished"),
    ),
    "one tile more is loaded than is read": (
        "ring", Fault(r"C_acc_k_0 < 3", "C_acc_k_0 < 4", "unfinished"),
    ),
    "copies of threads are under way at the end": (
        "copies", Fault(r"wait_group 1", "wait_group 3", "under way"),
    ),
    "partial sums are added before they are there": (
        "promoted", Fault(r"wait_for_all_products_but_0\(\);(\s*#pragma)", r"\1", ""),
    ),
    "partial sums are added too late": ("promoted", Fault(r"C_acc_k_0_3 == 4", "C_acc_k_0_3 == 5", "")),
    "partial sums are never begun anew": ("promoted", Fault(r"C_acc_k_0_3 % 2 > 0 \|\| C_acc_k_1 > 0", "1", "")),
    "partial sums are begun in each stage": ("promoted", Fault(r"C_acc_k_0_3 % 2 > 0 \|\| ", "", "")),
}  # fmt: skip

# What a compiler may move or leave out
MOVABLE: dict[str, tuple[str, Fault]] = {
    **movable("ring", r"wgmma\.wait_group\.sync\.aligned 0", "the wait for products"),
    **movable("ring", r"wgmma\.fence", "the fence before products"),
    **movable("ring", r"wgmma\.commit_group", "the group of products"),
    **movable("ring", r"fence\.proxy\.async", "the fence for the engine"),
    **movable("ring", r"mbarrier\.init", "the making of a barrier"),
    **movable("ring", r"mbarrier\.arrive\.expect_tx", "the announcement of bytes"),
    **movable("ring", r"mbarrier\.try_wait", "the wait for a barrier"),
    **movable("ring", r"cp\.async\.bulk\.wait_group", "the wait for stores"),
    **movable("ring", r"bar\.sync", "a barrier of a warpgroup"),
    **movable("copies", r"cp\.async\.wait_group", "the wait for copies"),
    **movable("copies", r"cp\.async\.commit_group", "the group of copies"),
    **movable("copies", r"cp\.async\.ca", "a copy"),
    **movable("parts", r"ldmatrix", "a read of matrices"),
    **movable("parts", r"griddepcontrol\.wait", "the wait for kernels"),
    **movable("cluster", r"barrier\.cluster\.wait", "the wait for the cluster"),
    "a product of a warp is not volatile": ("parts", Fault(r"asm volatile\(\"mma\.sync", 'asm("mma.sync', "movable")),
    "a product of a warpgroup is not volatile": (
        "ring", Fault(r"asm volatile\((\"{ \.reg \.pred add)", r"asm(\1", "movable"),
    ),
    "registers are kept by a statement that is not volatile": (
        "ring", Fault(r"asm volatile\(\"\" :", 'asm("" :', "movable"),
    ),
    "results are not kept behind the wait": (
        "ring", Fault(r"    #pragma unroll\n.*\n      keep_float\(.*\n    }\n", "", "movable"),
    ),
    "partial sums are not kept behind the wait": (
        "promoted", Fault(r"        #pragma unroll\n.*\n          keep_float\(.*\n        }\n", "", "movable"),
    ),
    "others than the partial sums are kept": ("promoted", Fault(r"keep_float\(C_acc_part", "keep_float(C_acc", "movable")),
    "an operand has another size": ("promoted", Fault(r", int adds\)", ", bool adds)", NOT_BUILT)),
}  # fmt: skip

# Alignment, and what a launch may ask for
LAUNCHED: dict[str, tuple[str, Fault]] = {
    "tiles are aligned to 16 bytes": ("ring", Fault(r"__align__\(1024\) unsigned char", "__align__(16) unsigned char", "misaligned")),
    "tiles are aligned to 128 bytes": ("ring", Fault(r"__align__\(1024\) unsigned char", "__align__(128) unsigned char", "misaligned")),
    "tiles of a cluster are aligned to 512 bytes": (
        "cluster", Fault(r"__align__\(1024\) unsigned char", "__align__(512) unsigned char", "misaligned"),
    ),
    "tiles have no alignment": ("promoted", Fault(r"__shared__ __align__\(1024\)", "__shared__", "misaligned")),
    "a shared array of vectors is aligned to its elements": (
        "copies", Fault(r"__shared__ __align__\(16\) (float B_shared)", r"__shared__ __align__(4) \1", "misaligned"),
    ),
    "rows of matrices are not aligned": (
        "parts", Fault(r"__shared__ __align__\(16\) (unsigned short A)", r"__shared__ __align__(2) \1", "misaligned"),
    ),
    "a staged tile lies 512 bytes further": ("ring", Fault(r"shared_memory \+ 13312\)", "shared_memory + 13824)", "outside")),
    "bounds of half a block": ("ring", Fault(r"__launch_bounds__\(256", "__launch_bounds__(128", "refused")),
    "bounds without the producer": ("cluster", Fault(r"__launch_bounds__\(256", "__launch_bounds__(128", "refused")),
    "bounds of one thread less": ("parts", Fault(r"__launch_bounds__\(32", "__launch_bounds__(31", "refused")),
    "bounds of a warp": ("copies", Fault(r"__launch_bounds__\(\d+", "__launch_bounds__(1", "refused")),
    "a cluster that the grid is no multiple of": ("cluster", Fault(r"__cluster_dims__\(2", "__cluster_dims__(3", NOT_BUILT)),
}  # fmt: skip
FAULTS = {**EARLY, **SEEN, **UNFINISHED, **MOVABLE, **LAUNCHED}


def outcome(kernel: str, source: GpuSource) -> tuple[list[str], bool]:
    """(kinds of mistakes, whether the result is right)"""
    emitted = emitted_kernel(kernel)
    inputs = make_inputs(emitted.dag, 0, "normal")
    try:
        outputs, ran = cuda.once(source, emitted.func, inputs, cuda.CHECKED)
    except (CompileError, UsageError):
        return [NOT_BUILT], False
    references = evaluate(emitted.dag, inputs)
    found = [outputs[t.name].reshape(r.value.shape) for t, r in zip(emitted.dag.outputs, references, strict=True)]
    return kinds_of(ran), all(within(r, x).all() for r, x in zip(references, found, strict=True))


def kinds_of(ran: Execution) -> list[str]:
    return [mistake.kind for mistake in ran.mistakes]


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_without_a_fault_are_right(kernel: str) -> None:
    assert outcome(kernel, emitted_kernel(kernel).source) == ([], True)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    kernel, fault = FAULTS[name]
    source = emitted_kernel(kernel).source
    kinds, right = outcome(kernel, replace(source, text=planted(source.text, fault)))
    assert fault.mistake in kinds if fault.mistake else not right, (kinds, right)


def test_there_are_many() -> None:
    assert len(FAULTS) + len(SIMT) + len(CLUSTERS) + len(TURNS) > 130

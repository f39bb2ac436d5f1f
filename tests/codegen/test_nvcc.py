"""The CUDA C of schedules of every kind compiles: with nvcc for two architectures, a sample of it with NVRTC."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from autosched.codegen.c.kernel import emit
from autosched.codegen.c.source import GpuSource
from autosched.lower import concretise, lower
from autosched.runtime.gpu.compile import (
    CompileError,
    Compiler,
    DeviceCode,
    NvccCompiler,
    NvrtcCompiler,
    compile_source,
    find_nvcc,
    nvrtc_version,
)
from autosched.schedule import Pipeline
from tests.codegen.nvcc import ptx, resources
from tests.codegen.test_c_kernels import oddly_named, plain
from tests.gpu_schedules import cases, matmul, matmul_state
from tests.runtime.tensor_core_kernels import wgmma_product

SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@cache
def sources() -> list[GpuSource]:
    found = []
    for n, (_, state, values) in enumerate(cases().values()):
        concrete, simplify = concretise(lower(state, f"case{n}"), values)
        found.append(emit(concrete, simplify, "cuda"))
    return [*found, plain(oddly_named(), "cuda")]


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_nvcc_compiles_all_kernels(arch: str, tmp_path: Path) -> None:
    texts = [f"namespace part{n} {{\n{source.text}}}\n" for n, source in enumerate(sources())]
    said = resources("".join(texts), arch, tmp_path)
    spills = [(int(a), int(b)) for a, b in SPILLED.findall(said)]
    assert len(spills) == sum(len(source.launches) for source in sources())
    assert not any(a or b for a, b in spills), said
    warnings = [line for line in said.splitlines() if "warning" in line]
    assert not warnings, "\n".join(warnings)


def test_more_shared_memory_than_arrays_of_known_size_may_have(tmp_path: Path) -> None:
    dag = matmul(128, 128, 128)
    state = matmul_state(dag).apply(Pipeline("C.acc", "k.0", 4))
    values = {"iv": 2, "it": 16, "is": 4, "jv": 2, "jt": 16, "js": 4, "k1": 8, "k2": 4, "va": 4, "vb": 4}
    source = emit(*concretise(lower(state), values), "cuda")
    assert source.launches[0].shared_bytes == 128 << 10
    assert SPILLED.findall(resources(source.text, "sm_80", tmp_path)) == [("0", "0")]


def test_operands_are_read_as_vectors_from_every_place_of_a_pipeline(tmp_path: Path) -> None:
    dag = matmul(128, 128, 128)
    values = {"iv": 2, "it": 16, "is": 4, "jv": 2, "jt": 16, "js": 4, "k1": 1, "k2": 4, "va": 4, "vb": 4}
    texts = []
    for stages in (1, 2, 3, 4):
        state = matmul_state(dag).apply(Pipeline("C.acc", "k.0", stages))
        text = emit(*concretise(lower(state), values), "cuda").text
        texts.append(f"namespace part{stages} {{\n{text.replace('kernel_0', f'stages{stages}')}}}\n")
    _, *kernels = ptx("".join(texts), "sm_80", tmp_path).split(".entry")
    assert [text.count("ld.shared.v4") for text in kernels] == [8 + 4 * 2] * 4  # A along k for 8 rows, B for each k
    assert not any(re.search(r"ld\.shared\.[fb]32", text) for text in kernels)


def test_pipelines_copy_asynchronously_from_compute_capability_8_on(tmp_path: Path) -> None:
    _, state, values = cases()["matmul in a pipeline, whole tiles"]
    concrete, simplify = concretise(lower(state), values)
    text = emit(concrete, simplify, "cuda").text
    found = {arch: ptx(text, arch, tmp_path) for arch in ("sm_75", "sm_80")}
    assert "cp.async" not in found["sm_75"]
    for words in ("cp.async.cg.shared.global", "cp.async.commit_group", "cp.async.wait_group 2"):
        assert words in found["sm_80"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvrtc_compiles_a_sample(arch: str) -> None:
    version = nvrtc_version()
    if version is None:
        pytest.skip("NVRTC is not installed")
    names = list(cases())
    for name in ("matmul whole tiles", "softmax", "argmax"):
        binary = NvrtcCompiler(arch, version).compile(sources()[names.index(name)])
        assert binary.code
        assert binary.spills is None


def compilers(arch: str) -> list[Compiler]:
    version, nvcc = nvrtc_version(), find_nvcc()
    found: list[Compiler] = [] if version is None else [NvrtcCompiler(arch, version)]
    if nvcc is not None:
        found.append(NvccCompiler(arch, nvcc, ""))
    if not found:
        pytest.skip("neither NVRTC nor nvcc is installed")
    return found


def warpgroups(before: str = "", after: str = "", *, is_arch_specific: bool = True) -> GpuSource:
    """A product by warpgroups with maps; `before` in its text becomes `after`."""
    product = wgmma_product(256, 256, 256)
    text = product.text.replace(before, after) if before else product.text
    return GpuSource("gemm", "cuda", text, (product.launch,), ("A", "B"), ("C",), (), is_arch_specific)


def test_instructions_of_one_architecture_are_compiled_for_it_alone() -> None:
    for compiler in compilers("sm_90"):
        binary = compiler.compile(warpgroups())
        assert (binary.spills, binary.warnings) == (None, ())
        with pytest.raises(CompileError, match=r"not supported on \.target 'sm_90'"):
            compiler.compile(warpgroups(is_arch_specific=False))


@pytest.mark.parametrize(("before", "after", "words"), [
    ("__launch_bounds__(384, 1) ", "", "'setmaxnreg' ignored"),
    ("matrix_commit();\n", "acc[0] *= 1.5f; matrix_commit(); acc[3] += 1.0f;\n", "is injected"),
    ("      matrix_wait_0();\n", "", "is injected"),  # a wait, by the names that CUDA 13.0 or 13.5 has for it
    ("matrix_wait_0();", "matrix_wait_0(); acc[blockIdx.x % 64] = 1.0f;", "instructions are serialized"),
])  # fmt: skip
def test_products_that_wait_for_each_other_are_told(before: str, after: str, words: str) -> None:
    for compiler in compilers("sm_90"):
        binary = compiler.compile(warpgroups(before, after))
        assert any(words in warning for warning in binary.warnings)
        assert DeviceCode.from_bytes(binary.to_bytes()) == binary


def test_what_is_kept_depends_on_the_architecture_that_a_source_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler = compilers("sm_90")[0]
    source = plain(oddly_named(), "cuda")
    general, specific = (compile_source(replace(source, is_arch_specific=x), compiler) for x in (False, True))
    assert general.code != specific.code
    assert compile_source(replace(source, is_arch_specific=True), compiler) == specific

"""The yardsticks of tensor cores: right in the simulator, nothing but products in the loop, for each kind of
operand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched.errors import DeviceError
from autosched.ir.instructions.matrices import MATRICES
from autosched.runtime.gpu.fake import FakeDevice
from autosched.runtime.gpu.peak import measure_gpu_peak
from autosched.runtime.gpu.tensor_pipes import (
    OPERAND_BYTES,
    PIPES,
    STEPS,
    PeakKernel,
    TensorPipe,
    mma_kernel,
    peak_kernels,
    pipes_of,
    wgmma_kernel,
)
from autosched.runtime.simulator.build import find_compiler
from autosched.runtime.simulator.execute import EXTREMES, Mode, build, execute
from autosched.target import CUDA_CARDS
from experiments.gpu.forms.form import aligned
from tests.codegen.nvcc import ptx, resources

Array = npt.NDArray[Any]
THREADS = 256
VALUES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "bf16": "bfloat16"}
DTYPES = {"f16": np.float16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8}
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="g++ is not installed (on Debian: g++)")


def operands(pipe: TensorPipe, load: PeakKernel) -> tuple[Array, Array]:
    """(words, their elements as numbers): small whole ones, so that sums are exact, and zeros."""
    n = 4 // pipe.nbytes
    numbers = np.random.default_rng(1).integers(0, 4, (load.n_operand_words + load.n_zero_words, n)).astype(np.float64)
    numbers[load.n_operand_words :] = 0
    if pipe.operand in VALUES:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        small = numbers.astype(getattr(ml_dtypes, VALUES[pipe.operand]))
    else:
        small = numbers.astype(DTYPES[pipe.operand])
    return aligned(np.frombuffer(small.tobytes(), np.uint32)), numbers


def summed(pipe: TensorPipe, load: PeakKernel, words: Array, mode: Mode) -> Array:
    launch = load.source.launches[0]
    end = aligned(np.zeros(launch.grid[0] * THREADS, np.uint32))
    ran = execute(
        build(load.source.text, mode.checked), [launch], {"start": words, "end": end}, frozenset({"start"}), mode
    )
    assert not ran.mistakes, ran.mistakes
    return end.view(np.int32 if pipe.is_integer else np.float32)


@needs_compiler
@pytest.mark.parametrize("mode", [Mode(checked=True), *EXTREMES], ids=["checked", "late", "early"])
@pytest.mark.parametrize("name", [name for name in PIPES if name.startswith("mma")])
def test_warps_multiply(name: str, mode: Mode) -> None:
    """Register r of A: rows from 8 (r % 2), k from half of it (r / 2); r of B: k from half of it r."""
    pipe, tiles, rounds = PIPES[name], 3, 2
    load = mma_kernel(pipe, tiles, 2, rounds)
    words, x = operands(pipe, load)
    product = [sum(4 * (x[half + 2 * part] @ x[4 + part]) for part in range(2)) for half in range(2)]
    got = summed(pipe, load, words, mode)
    assert (got == 2 * sum(product) * tiles * STEPS * rounds).all()
    assert (
        load.operations == 2 * 16 * 8 * pipe.k * tiles * STEPS * rounds * (got.size // 32) / pipe.instructions_per_fma
    )


@needs_compiler
@pytest.mark.parametrize("mode", [Mode(checked=True), *EXTREMES], ids=["checked", "late", "early"])
@pytest.mark.parametrize("name", [name for name in PIPES if name.startswith("wgmma")])
def test_warpgroups_multiply(name: str, mode: Mode) -> None:
    """Each part of a row of A meets the part of B with the same k."""
    pipe, rounds = PIPES[name], 2
    load = wgmma_kernel(pipe, 1, rounds)
    words, x = operands(pipe, load)
    product = float((x[:32] * x[32:]).sum()) * STEPS * rounds / (128 // OPERAND_BYTES)
    got = summed(pipe, load, words, mode)
    assert (got == 128 * product).all()
    assert load.operations == 2 * 64 * 256 * pipe.k * STEPS * rounds * (got.size // 128)


COMPILED = ("mma.float8_e4m3fn", "mma.int8", "wgmma.float16", "wgmma.int8")


def test_sources_compile_without_spills_and_without_waiting(tmp_path: Path) -> None:
    loads = [load for name in COMPILED for load in peak_kernels(PIPES[name], CUDA_CARDS["sm_90"], 1e-3)]
    texts = [
        f"namespace part{n} {{\n{load.source.text.replace('matrix_peak', f'peak{n}')}}}\n"
        for n, load in enumerate(loads)
    ]
    said = resources("".join(texts), "sm_90a", tmp_path)
    assert "C75" not in said
    assert said.count("0 bytes spill stores, 0 bytes spill loads") == len(texts)


@pytest.mark.parametrize(("name", "arch"), [("mma.bfloat16", "sm_80"), ("wgmma.int8", "sm_90a")])
def test_nothing_but_products_in_the_loop(name: str, arch: str, tmp_path: Path) -> None:
    load = peak_kernels(PIPES[name], CUDA_CARDS["sm_90"], 1e-3)[0]
    text = ptx(load.source.text, arch, tmp_path)
    word = name.split(".")[0]
    loop = max(text.split("$L__BB0_"), key=lambda part: part.count(f"{word}."))
    products = len(re.findall(rf"\b{word}\.(?:sync|mma_async\.sync)", loop))
    assert products >= STEPS
    assert products % STEPS == 0
    others = [line for line in loop.splitlines() if line.strip().endswith(";") and f"{word}." not in line]
    assert len([line for line in others if "setp.ne" not in line]) < products


def test_pipes_are_those_of_the_card() -> None:
    assert pipes_of(CUDA_CARDS["sm_75"]) == ()
    assert not any(name.startswith("wgmma") for name in pipes_of(CUDA_CARDS["sm_100"]))
    assert {row.pipe for row in MATRICES.values()} <= set(pipes_of(CUDA_CARDS["sm_90"]))
    for row in MATRICES.values():
        assert PIPES[row.pipe].operand in row.instruction
        assert PIPES[row.pipe].instructions_per_fma == row.times * row.rows // row.m
    assert "mma.float8_e4m3fn" not in pipes_of(CUDA_CARDS["sm_80"])


def test_a_launch_takes_about_what_is_asked_for() -> None:
    facts = CUDA_CARDS["sm_90"]
    peak = 2 * 2048 * facts.multiprocessors * 1e9 * facts.clock_ghz
    (load,) = peak_kernels(PIPES["wgmma.bfloat16"], facts, 1e-3)
    assert 0.4e-3 < load.operations / peak < 1.1e-3


def test_what_a_device_lacks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"spec": {}}')
    monkeypatch.setenv("AUTOSCHED_DEVICE_SCRIPT", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = FakeDevice.read(str(script), "cuda")
    assert measure_gpu_peak(device, "wgmma.bfloat16") > 0
    with pytest.raises(DeviceError, match=r"scripted device has no mma\.int3: it has float32, float64, mma\.float16"):
        measure_gpu_peak(device, "mma.int3")

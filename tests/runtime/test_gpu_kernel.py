"""Kernels on an OpenCL device as Python functions of NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autosched.codegen.c.source import GpuSource
from autosched.errors import DeviceError, UsageError
from autosched.runtime.gpu.kernel import GpuKernel, build_gpu_kernel
from autosched.runtime.spec import ArraySpec
from autosched.target import parse_target
from tests.helpers import in_threads
from tests.measure.gpu_kernels import STAGED, gpu_source, opencl_target

SHAPE = (32, 32)
A, B, C = (ArraySpec(name, SHAPE, "float32") for name in "ABC")
RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal(SHAPE).astype(np.float32) for _ in range(2))


def built(source: GpuSource) -> GpuKernel:
    return build_gpu_kernel(source, opencl_target(), (A, B), (C,))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def add() -> GpuKernel:
    return built(gpu_source())


@pytest.fixture(scope="module")
def staged() -> GpuKernel:
    return built(STAGED)


def test_numpy_in_and_out(add: GpuKernel) -> None:
    result = add(X, Y)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, X + Y)
    strided = np.repeat(X, 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(add(strided, Y), X + Y)


def test_out_is_written_and_returned(add: GpuKernel) -> None:
    out = np.zeros(SHAPE, np.float32)
    assert add(X, Y, out=out) is out
    np.testing.assert_array_equal(out, X + Y)
    assert add(X, Y, out=[out])[0] is out


def test_several_launches_share_a_workspace_that_stays(staged: GpuKernel) -> None:
    assert staged.workspace_bytes == 4096
    np.testing.assert_array_equal(staged(X, Y), X + Y)
    kept = staged._scratch
    np.testing.assert_array_equal(staged(Y, Y), Y + Y)
    assert staged._scratch is kept


def test_calls_from_several_threads(staged: GpuKernel) -> None:
    wrong: list[int] = []

    def call(number: int) -> None:
        x = X + np.float32(number)
        for _ in range(5):
            if not np.array_equal(staged(x, Y), x + Y):
                wrong.append(number)

    in_threads(call, range(4))
    assert not wrong


@pytest.mark.parametrize(
    ("arrays", "out", "words"),
    [
        ((X,), None, r"takes 2 arrays \(A, B\), but got 1"),
        ((X, Y[:3]), None, r"input B must be float32\[32, 32\], but got float32\[3, 32\]"),
        ((X.astype(np.float64), Y), None, r"input A must be float32\[32, 32\], but got float64"),
        ((X, Y), (X, Y), "out must hold 1 arrays"),
        ((X, Y), X, "output C overlaps A in memory"),
        ((X, "no array"), None, r"B must be an array of float32\[32, 32\]"),
    ],
)
def test_what_does_not_fit_is_refused(add: GpuKernel, arrays: tuple[object, ...], out: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        add(*arrays, out=out)


def test_too_little_memory_is_refused_with_sizes() -> None:
    kernel = built(replace(STAGED, workspace=(("T", 1 << 45),)))
    with pytest.raises(DeviceError, match=r"workspace T 35184\.37 GB.* are free"):
        kernel(X, Y)


def test_code_that_does_not_compile() -> None:
    with pytest.raises(DeviceError, match="add does not compile for opencl"):
        built(replace(gpu_source(), text="__kernel void add_0( {"))


def test_a_binary_costs_no_compilation_that_nothing_runs() -> None:
    opencl_target()
    from autosched.runtime.gpu.opencl import OpenClDevice

    device, source = OpenClDevice(), gpu_source()
    if not device.identity.startswith("opencl Portable Computing Language"):
        pytest.skip("only PoCL compiles for work-groups of any size, and again when a kernel is launched")
    assert device.compile(source).code.decode() == source.text


def test_a_device_without_float64_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    opencl_target()
    from autosched.runtime.gpu.opencl import OpenClDevice

    device, source = OpenClDevice(), gpu_source()
    monkeypatch.setattr(OpenClDevice, "_has_doubles", lambda _: False)
    assert device.compile(source).code
    with pytest.raises(DeviceError, match="has no float64, in which add computes: use another type"):
        device.compile(replace(source, text=source.text.replace("float", "double")))


def test_code_of_another_generation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"spec": {"name": "matmul", "args": {"M": 8, "N": 8, "K": 8}, "dtype": "float32"}}')
    monkeypatch.setenv("AUTOSCHED_DEVICE_SCRIPT", str(script))
    with pytest.raises(
        DeviceError, match="sm_80 cannot run on scripted device, which is sm_90; tune for cuda -arch=sm_90"
    ):
        build_gpu_kernel(replace(gpu_source(), dialect="cuda"), parse_target("cuda -arch=sm_80"), (A, B), (C,))

"""Arrays in device memory on OpenCL: made, moved, passed to kernels, given back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.errors import DeviceError, UsageError
from autosched.runtime.gpu import dlpack
from autosched.runtime.gpu.arrays import DeviceArray
from autosched.runtime.gpu.devices import shared_device
from autosched.runtime.gpu.kernel import GpuKernel, build_gpu_kernel
from autosched.runtime.kernel import Kernel
from autosched.runtime.spec import ArraySpec
from tests.measure.gpu_kernels import STAGED, gpu_source, opencl_target

SHAPE = (32, 32)
A, B, C = (ArraySpec(name, SHAPE, "float32") for name in "ABC")
RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal(SHAPE).astype(np.float32) for _ in range(2))


@pytest.fixture(scope="module")
def add(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuKernel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield build_gpu_kernel(gpu_source(), opencl_target(), (A, B), (C,))


@pytest.fixture(scope="module")
def staged(add: GpuKernel) -> GpuKernel:
    return build_gpu_kernel(STAGED, opencl_target(), (A, B), (C,))


def on_device(array: Any) -> DeviceArray:
    made = at.to_device(array, device="opencl")
    assert isinstance(made, DeviceArray)
    return made


@pytest.mark.usefixtures("add")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (13,), (3, 1, 5)])
def test_there_and_back(dtype: str, shape: tuple[int, ...]) -> None:
    host = (RNG.random(shape) * 9).astype(dtype)
    array = on_device(host)
    assert (array.shape, array.dtype, array.nbytes, array.device) == (shape, host.dtype, host.nbytes, "opencl")
    back = array.numpy()
    assert back.dtype == host.dtype
    np.testing.assert_array_equal(back, host)
    np.testing.assert_array_equal(at.to_device(array, device="cpu"), host)
    assert at.to_device(array, device="opencl") is array


@pytest.mark.usefixtures("add")
def test_strided_arrays_and_lists_become_dense() -> None:
    np.testing.assert_array_equal(on_device(X.T[::2]).numpy(), X.T[::2])
    np.testing.assert_array_equal(on_device([[1, 2], [3, 4]]).numpy(), [[1, 2], [3, 4]])


def test_kernels_take_and_give_arrays_of_the_device(add: GpuKernel, staged: GpuKernel) -> None:
    x, y = on_device(X), on_device(Y)
    total = add(x, y)
    assert repr(total) == "DeviceArray(float32[32, 32] on opencl)"
    out = at.empty(SHAPE, "float32", device="opencl")
    assert staged(total, y, out=out) is out
    assert isinstance(out, DeviceArray)
    np.testing.assert_array_equal(out.numpy(), (X + Y) + Y)


def test_the_callers_queue(staged: GpuKernel) -> None:
    import pyopencl as cl

    x, y = on_device(X), on_device(Y)
    queue = cl.CommandQueue(x.stream.context)
    total = staged(x, y, stream=queue)
    again = staged(total, y)  # on the device's own queue, behind the other
    np.testing.assert_array_equal(again.numpy(), (X + Y) + Y)
    np.testing.assert_array_equal(total.numpy(), X + Y)
    np.testing.assert_array_equal(staged(X, Y, stream=queue), X + Y)
    other = cl.CommandQueue(cl.Context([x.stream.device]))
    for wrong in (other, 3, "queue"):
        with pytest.raises(UsageError, match=r"stream must be a pyopencl\.CommandQueue of the kernel's context"):
            staged(x, y, stream=wrong)


def test_arrays_and_buffers_of_pyopencl(staged: GpuKernel) -> None:
    import pyopencl as cl
    import pyopencl.array

    own = on_device(Y)
    queue = cl.CommandQueue(own.stream.context)
    x, out = pyopencl.array.to_device(queue, X), pyopencl.array.zeros(queue, SHAPE, np.float32)
    assert staged(x, own, out=out) is out
    np.testing.assert_array_equal(out.get(), X + Y)
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, X.nbytes)
    staged(x, own, out=buffer)
    result = np.empty(SHAPE, np.float32)
    cl.enqueue_copy(queue, result, buffer)
    np.testing.assert_array_equal(result, X + Y)
    np.testing.assert_array_equal(on_device(x).numpy(), X)
    with pytest.raises(UsageError, match="of 100 bytes, which are fewer than 4096"):
        staged(x, own, out=cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 100))
    with pytest.raises(UsageError, match="output C overlaps A in memory"):
        staged(x, own, out=x)
    elsewhere = pyopencl.array.to_device(cl.CommandQueue(cl.Context([queue.device])), X)
    with pytest.raises(UsageError, match="cannot be shared: it is of another OpenCL context"):
        staged(elsewhere, own)


def test_what_does_not_fit_is_refused(add: GpuKernel) -> None:
    x, y = on_device(X), on_device(Y)
    with pytest.raises(
        UsageError, match=r"B is a numpy.ndarray in host .* A is on opencl:0; give at.to_device\(B, dev"
    ):
        add(x, Y)
    with pytest.raises(UsageError, match=r'A is a numpy.ndarray .*give at.to_device\(A, device="opencl"\)'):
        add(X, y)
    with pytest.raises(UsageError, match=r'C is a numpy.ndarray .*give at.empty\(\(32, 32\), "float32", device="open'):
        add(x, y, out=np.empty(SHAPE, np.float32))
    with pytest.raises(UsageError, match=r"input B must be float32\[32, 32\], but got float32\[32, 31\]"):
        add(x, at.empty((32, 31), device="opencl"))
    with pytest.raises(UsageError, match=r"output C must be float32\[32, 32\], but got float64\[32, 32\]"):
        add(x, y, out=at.empty(SHAPE, "float64", device="opencl"))
    with pytest.raises(UsageError, match="output C overlaps B in memory"):
        add(x, y, out=y)
    np.testing.assert_array_equal(y.numpy(), Y)
    with pytest.raises(
        UsageError, match=r"A is a .*DeviceArray .*runs on the CPU; give at.to_device\(A, device=\"cpu\"\)"
    ):
        Kernel(SimpleNamespace(address=0, threads=1), (A, B), (C,), 0)(x, y)  # type: ignore[arg-type]


def test_no_silent_copy_to_the_host(add: GpuKernel) -> None:
    x = on_device(X)
    with pytest.raises(TypeError, match=r"call its numpy\(\)"):
        np.asarray(x)
    with pytest.raises(BufferError, match="not shared through DLPack"):
        x.__dlpack__()
    assert not hasattr(x, "__cuda_array_interface__")
    assert dlpack.read_capsule(x.__dlpack__(dl_device=(1, 0))).device == dlpack.CPU
    with pytest.raises(BufferError, match="without a copy"):
        x.__dlpack__(dl_device=(1, 0), copy=False)


@pytest.mark.usefixtures("add")
def test_memory_is_freed_with_the_last_reference() -> None:
    gc.collect()
    device = shared_device("opencl")
    free = device.memory()[0]
    array = at.empty((1 << 20,), device="opencl")
    assert device.memory()[0] == free - (4 << 20)
    del array
    gc.collect()
    assert device.memory()[0] == free


@pytest.mark.usefixtures("add")
def test_refusals_of_the_makers() -> None:
    with pytest.raises(DeviceError, match=r"float32\[1000000, 1000000\] 4000\.00 GB\), but .* are free"):
        at.empty((10**6, 10**6), device="opencl")
    with pytest.raises(UsageError, match="there is no device 'gpu'; write cuda, opencl or cpu"):
        at.empty((1,), device="gpu")
    for shape in ((-1,), -1, (2, 1.5), "x", None):
        with pytest.raises(UsageError, match="a shape is whole numbers of at least 0, got"):
            at.empty(shape, device="opencl")  # type: ignore[arg-type]
    assert at.empty(np.int64(3), device="cpu").shape == (3,)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="list cannot be read as an array: "):
        at.to_device([[1], [2, 3]], device="opencl")
    with pytest.raises(UsageError, match="its elements must be numbers"):
        at.to_device(np.array(["a"]), device="opencl")
    with pytest.raises(UsageError, match="choose that one by CUDA_VISIBLE_DEVICES"):
        at.empty((1,), device="cuda:1")
    assert at.empty((1,), device="opencl:0").device == "opencl"
    assert isinstance(at.empty((2, 3), device="cpu"), np.ndarray)

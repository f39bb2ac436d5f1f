"""The driver over pycuda, on a stand-in for the package: which calls it makes, in which order, in which context."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from autosched.codegen.c.source import GpuSource, Launch, TensorMap
from autosched.errors import DeviceError
from autosched.runtime.gpu import tensor_maps
from autosched.runtime.gpu.arrays import DeviceArray, allocate
from autosched.runtime.gpu.compile import DeviceCode
from autosched.runtime.gpu.device import DeviceFault
from autosched.runtime.gpu.kernel import GpuKernel, LoadedCode
from autosched.runtime.gpu.pycuda import PyCudaDevice
from autosched.runtime.spec import ArraySpec
from tests.runtime.pycuda_stand_in import StandIn, installed

A, B, C = (ArraySpec(name, (64,), "float32") for name in "ABC")
X = np.arange(64, dtype=np.float32)


def source(shared_bytes: int = 0, entry: str = "add", text: str = "text") -> GpuSource:
    launch = Launch(entry, (2, 1, 1), (32, 1, 1), ("A", "B", "C"), shared_bytes)
    return GpuSource("add", "cuda", text, (launch,), ("A", "B"), ("C",), ())


def loaded(device: PyCudaDevice, code: GpuSource, binary: bytes = b"") -> GpuKernel:
    return GpuKernel(LoadedCode(device, DeviceCode(binary), code), code, (A, B), (C,))


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with installed() as found:
        yield found
        assert found.depth == 0, "a context was left on the stack, at which pycuda aborts the process"


@pytest.fixture
def device(stand_in: StandIn) -> PyCudaDevice:
    made = PyCudaDevice()
    assert stand_in.log == [("retain_primary_context",), ("Stream", 1), ("Event", 0), ("Event", 0)]
    stand_in.log.clear()
    return made


def test_kernel_over_numpy_arrays(stand_in: StandIn, device: PyCudaDevice) -> None:
    kernel = loaded(device, source(), b"\x7fELF")
    assert stand_in.log == [("module_from_buffer", b"\x7fELF"), ("get_function", "add"), ("prepare", ["P", "P", "P"])]
    stand_in.log.clear()
    np.testing.assert_array_equal(kernel(X, X), 2 * X)
    names = [name for name, *_ in stand_in.log if name not in ("mem_get_info", "Stream.synchronize")]
    upload = ["memcpy_htod_async"] * 2
    assert names == ["mem_alloc"] * 3 + upload + ["launch", "memcpy_dtoh_async"] + ["free"] * 3
    assert ("launch", (2, 1, 1), (32, 1, 1), 0x20, 0) in stand_in.log
    assert stand_in.memory == {}


EXTERN, STATIC = "extern __shared__ unsigned char s[];", "__shared__ float s[8];"


@pytest.mark.parametrize("nbytes", [32, 64 << 10])
@pytest.mark.parametrize(("own", "other"), [(EXTERN, STATIC), (STATIC, EXTERN)])
def test_shared_memory_is_asked_for_where_it_is_extern(
    stand_in: StandIn, device: PyCudaDevice, nbytes: int, own: str, other: str
) -> None:
    """However little it is, and of the kernel itself and not of another one in the text."""
    heads = ("__launch_bounds__(32, 1) add", "__cluster_dims__(2, 1, 1) __launch_bounds__(32) adds")
    text = "\n".join(
        f'extern "C" __global__ void {head}(float* A)\n{{\n  {line}\n}}'
        for head, line in zip(heads, (own, other), strict=True)
    )
    kernel = loaded(device, source(nbytes, text=text))
    asked = nbytes if own == EXTERN else 0
    assert (("set_attribute", 8, nbytes) in stand_in.log) == (asked > 0)
    kernel(X, X)
    assert ("launch", (2, 1, 1), (32, 1, 1), 0x20, asked) in stand_in.log


def test_maps_are_packed_at_multiples_of_64(
    stand_in: StandIn, device: PyCudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(wanted: TensorMap, address: int) -> tensor_maps.EncodedMap:
        made = tensor_maps.EncodedMap()
        made.words[0] = address
        return made

    monkeypatch.setattr(tensor_maps, "encode", encode)
    mapped = TensorMap("map_A", "A", "float32", (64,), (), (64,))
    launch = Launch("add", (2, 1, 1), (32, 1, 1), ("B", mapped, "C"), 0)
    made = replace(source(), launches=(launch,))
    kernels = device.load(DeviceCode(b""), made)
    assert ("prepare", ["P", "56x", "128s", "P"]) in stand_in.log
    memory = {name: device.allocate(256) for name in "ABC"}
    (bound,) = device.prepare(kernels, made, memory).launches
    packed = struct.pack("P56x128sP", *bound.values)
    assert len(packed) == 200
    assert struct.unpack_from("P", packed, 64) == (memory["A"].handle,)


def test_callers_stream_is_met_by_waiting(stand_in: StandIn, device: PyCudaDevice) -> None:
    kernel = loaded(device, source())
    x, y = (DeviceArray(block, (64,), "float32") for block in allocate(device, {"x": 256, "y": 256}).values())
    device.upload(x.block.memory, X)
    device.upload(y.block.memory, X)
    stand_in.log.clear()
    result = kernel(x, y, stream=0x99)
    names = [name for name, *_ in stand_in.log if name not in ("mem_get_info", "mem_alloc")]
    assert names == ["Context.synchronize", "launch", "Stream.synchronize", "Context.synchronize"]
    np.testing.assert_array_equal(result.numpy(), 2 * X)


def test_events_time_the_launches_between_them(stand_in: StandIn, device: PyCudaDevice) -> None:
    kernels = device.load(DeviceCode(b""), source())
    memory = {name: device.allocate(256) for name in "ABC"}
    call = device.prepare(kernels, source(), memory)
    stand_in.log.clear()
    assert device.time([call], 3) == pytest.approx(3e-5)
    assert [name for name, *_ in stand_in.log] == [
        "record",
        "launch",
        "launch",
        "launch",
        "record",
        "Event.synchronize",
    ]


def test_order_of_streams(stand_in: StandIn, device: PyCudaDevice) -> None:
    device.wait(device.record())
    assert stand_in.log == [("Event", 2), ("record",), ("wait_for_event", 2)]
    stand_in.log.clear()
    device.wait(device.record(), 0x99)  # another's stream: the host waits before it goes on
    device.wait(device.record(0x99))
    assert [name for name, *_ in stand_in.log] == ["Event", "record", "Event.synchronize", "Context.synchronize"]


@pytest.mark.parametrize(("pattern", "expected"), [(b"\xa5", (0xA5, 256, 1)), (b"\xfb\x7f", (0x7FFB, 128, 2))])
def test_fill(stand_in: StandIn, device: PyCudaDevice, pattern: bytes, expected: tuple[int, ...]) -> None:
    memory, got = device.allocate(256), np.zeros(256, np.uint8)
    device.fill(memory, pattern, 0, 256)
    assert ("memset", *expected) in stand_in.log
    device.download(memory, got)
    assert got.tobytes() == pattern * (256 // len(pattern))
    other = device.allocate(256)
    device.copy(other, memory)
    device.download(device.view(other, 4, 8), got[:8])
    assert ("memcpy_dtod_async", 256) in stand_in.log


def test_threads_leave_no_context_behind(stand_in: StandIn, device: PyCudaDevice) -> None:
    kernel = loaded(device, source())
    seen: list[tuple[bool, int]] = []

    def work() -> None:
        seen.append((np.array_equal(kernel(X, X), 2 * X), stand_in.depth))

    for _ in range(3):  # one after the other: the system gives a thread's number again
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [(True, 0)] * 3


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("mem_alloc", "out of memory", "out_of_memory"),
        ("launch", "too many resources requested for launch", "launch_refused"),
        ("Stream.synchronize", "an illegal memory access was encountered", "illegal_address"),
        ("Stream.synchronize", "misaligned address", "misaligned_address"),
        ("Stream.synchronize", "words of a later release", "launch_failure"),
    ],
)
def test_errors_have_their_class(stand_in: StandIn, device: PyCudaDevice, name: str, words: str, kind: str) -> None:
    kernel = loaded(device, source())
    stand_in.fail[name] = words
    with pytest.raises(DeviceError, match=words):
        kernel(X, X)
    with pytest.raises(DeviceFault) as caught:
        _run_once(device)
    assert caught.value.kind == kind


def _run_once(device: PyCudaDevice) -> None:
    memory = {name: device.allocate(256) for name in "ABC"}
    device.run(device.prepare(device.load(DeviceCode(b""), source()), source(), memory))
    device.synchronise()


def test_missing_kernel_is_a_build_error(device: PyCudaDevice) -> None:
    with pytest.raises(DeviceFault) as caught:
        device.load(DeviceCode(b""), source(entry="other"))
    assert caught.value.kind == "build_error"


def test_machine_without_a_device(stand_in: StandIn) -> None:
    stand_in.n_devices = 0
    with pytest.raises(DeviceError, match="CUDA finds no NVIDIA GPU on this machine"):
        PyCudaDevice()


def test_facts_and_the_end(stand_in: StandIn, device: PyCudaDevice) -> None:
    facts = device.facts()
    assert (facts.name, facts.arch, facts.multiprocessors) == ("stand-in", "sm_90", 132)
    assert device.memory() == (1 << 30, 1 << 31)
    device.close()
    assert stand_in.log[-1] == ("detach",)

"""Kernels as Python functions: what they accept, refuse and give back."""

from __future__ import annotations

import copy
import gc
import sys
import tracemalloc
import types
from typing import Any

import numpy as np
import pytest

from autosched.errors import DeviceError, UsageError
from autosched.runtime.kernel import Kernel, build_kernel
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import ALIGNMENT, address_of, aligned_empty
from autosched.target import parse_target
from tests.helpers import in_threads

# C = A + B and, with two outputs, D = A - B, over {n} floats; the sum passes through the workspace.
ADD = """
define i32 @add(ptr %args, ptr %workspace, i64 %threads) {{
entry:
  %a = load ptr, ptr %args
  %b.p = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %b.p
  %c.p = getelementptr ptr, ptr %args, i64 2
  %c = load ptr, ptr %c.p
  %d.p = getelementptr ptr, ptr %args, i64 {last}
  %d = load ptr, ptr %d.p
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %ai = getelementptr float, ptr %a, i64 %i
  %bi = getelementptr float, ptr %b, i64 %i
  %ci = getelementptr float, ptr %c, i64 %i
  %di = getelementptr float, ptr %d, i64 %i
  %x = load float, ptr %ai
  %y = load float, ptr %bi
  %difference = fsub float %x, %y
  store float %difference, ptr %di
  %sum = fadd float %x, %y
  store volatile float %sum, ptr %workspace, align 64
  %kept = load volatile float, ptr %workspace, align 64
  store float %kept, ptr %ci
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, {n}
  br i1 %more, label %loop, label %done
done:
  ret i32 {status}
}}
"""
SHAPE = (4, 6)
A, B, C, D = (ArraySpec(name, SHAPE, "float32") for name in "ABCD")


def _kernel(outputs: tuple[ArraySpec, ...] = (C,), status: int = 0, workspace_bytes: int = 64) -> Kernel:
    ir = ADD.format(n=24, last=len(outputs) + 1, status=status)
    return build_kernel(ir, "add", parse_target("cpu"), (A, B), outputs, workspace_bytes, threads=1)


@pytest.fixture(scope="module", params=["gate", "python"])
def add(request: pytest.FixtureRequest) -> Kernel:
    """Called through the gate, and as where there is none."""
    kernel = _kernel()
    assert kernel._gate is not None
    if request.param == "python":
        kernel._gate = None
    return kernel


@pytest.fixture
def arrays() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal(SHAPE, np.float32), rng.standard_normal(SHAPE, np.float32)


def test_one_output_is_an_array(add: Kernel, arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    result = add(a, b)
    assert result.dtype == np.float32
    assert address_of(result) % ALIGNMENT == 0
    np.testing.assert_array_equal(result, a + b)


def test_a_kernel_stays_in_its_process(add: Kernel) -> None:
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match=r"machine code of this process.*at\.compile"):
            copied(add)


def test_two_outputs_are_a_tuple(arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    kernel = _kernel((C, D))
    shape = "float32[4, 6]"
    assert repr(kernel) == f"<kernel (A: {shape}, B: {shape}) -> C: {shape}, D: {shape}, 1 thread>"
    total, difference = kernel(a, b)
    np.testing.assert_array_equal(total, a + b)
    np.testing.assert_array_equal(difference, a - b)
    out = (np.empty(SHAPE, np.float32), np.empty(SHAPE, np.float32))
    assert kernel(a, b, out=out) is out
    np.testing.assert_array_equal(out[1], a - b)


def test_a_small_result_is_used_again_when_nobody_has_it(add: Kernel, arrays: tuple[Any, Any]) -> None:
    first = add(*arrays)
    place, value = id(first), first.copy()
    second = add(*arrays)
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, value)
    del first
    third = add(*arrays)
    assert id(third) == place or add._gate is None
    third.shape = (third.size,)
    third.flags.writeable = False
    del second, third
    for _ in range(3):
        np.testing.assert_array_equal(add(*arrays), value)


def test_out_is_written_and_returned(add: Kernel, arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    out = np.zeros(SHAPE, np.float32)
    assert add(a, b, out=out) is out
    np.testing.assert_array_equal(out, a + b)


def test_inputs_may_be_strided_read_only_or_foreign(add: Kernel, arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    strided = np.asfortranarray(a)
    frozen = b.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(add(strided, frozen), a + b)
    np.testing.assert_array_equal(add(np.repeat(a, 2, axis=1)[:, ::2], b), a + b)

    class Foreign:
        __array_interface__ = a.__array_interface__

    class Exchange:
        def __dlpack__(self, **options: Any) -> object:
            return a.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    np.testing.assert_array_equal(add(Foreign(), Exchange()), a + a)
    unaligned = np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(np.float32).reshape(SHAPE)
    np.testing.assert_array_equal(add(unaligned, b), a + b)


def test_refusals_name_the_array(add: Kernel, arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    cases: list[tuple[tuple[Any, ...], Any, str]] = [
        ((a,), None, r"takes 2 arrays \(A, B\), but got 1"),
        ((a, b.astype(np.float64)), None, r"input B must be float32\[4, 6\], but got float64\[4, 6\]"),
        ((a.T, b), None, r"input A must be float32\[4, 6\], but got float32\[6, 4\]"),
        ((a, b.astype(">f4")), None, r"input B must be float32"),
        ((a, [1.0, 2.0]), None, r"B must be an array of float32\[4, 6\], but got a builtins.list"),
        ((a, b), np.empty((4, 5), np.float32), r"output C must be float32\[4, 6\]"),
        ((a, b), np.empty((6, 4), np.float32).T, r"output C is not C-contiguous"),
        ((a, b), np.broadcast_to(np.float32(0), SHAPE), r"output C is read-only"),
        ((a, b), a, r"output C overlaps A"),
        ((a, b), (np.empty(SHAPE, np.float32),) * 2, r"out must hold 1 arrays"),
    ]
    for inputs, out, message in cases:
        with pytest.raises(UsageError, match=message):
            add(*inputs, out=out)


def test_inputs_are_given_by_name_as_well(add: Kernel, arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    for result in (add(a, B=b), add(B=b, A=a), add(B=b, A=a, out=np.empty(SHAPE, np.float32))):
        np.testing.assert_array_equal(result, a + b)
    for inputs, named, got in (((a,), {"W": b}, "1 and W"), ((a, b), {"B": b}, "2 and B"), ((), {"B": b}, "0 and B")):
        with pytest.raises(UsageError, match=rf"takes 2 arrays \(A, B\), but got {got}"):
            add(*inputs, **named)


def test_outputs_must_not_share_memory(arrays: tuple[Any, Any]) -> None:
    same = np.empty(SHAPE, np.float32)
    with pytest.raises(UsageError, match="output D overlaps C"):
        _kernel((C, D))(*arrays, out=(same, same))


def test_device_memory_is_refused(add: Kernel, arrays: tuple[Any, Any]) -> None:
    class OnDevice:
        def __dlpack__(self, **options: Any) -> object:
            raise AssertionError("not to be called")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(UsageError, match="device memory"):
        add(OnDevice(), arrays[1])

    class Nowhere(OnDevice):  # a torch tensor on the device "meta"
        def __dlpack_device__(self) -> tuple[int, int]:
            raise ValueError("Unknown device type meta for Dlpack")

    with pytest.raises(UsageError, match="cannot be shared through DLPack: Unknown device type meta"):
        add(Nowhere(), arrays[1])


class Tensor:
    """Stands for torch's where that is not installed. `sign` is what torch has put off."""

    def __init__(self, array: Any, sign: int = 1, has_memory: bool = True) -> None:
        self.array, self.sign, self.has_memory = array, sign, has_memory

    def __dlpack__(self, **options: Any) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def numpy(self) -> Any:
        if self.sign < 0 or not self.has_memory:
            raise RuntimeError("its memory does not hold its elements")
        return self.array

    def is_neg(self) -> bool:
        return self.sign < 0

    def _is_zerotensor(self) -> bool:
        return not self.has_memory

    def clone(self) -> Tensor:
        return Tensor(self.sign * self.array if self.has_memory else np.zeros_like(self.array))


class Subclass(Tensor):
    pass


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = types.ModuleType("torch")
    made.Tensor, made.from_numpy = Tensor, Tensor
    monkeypatch.setitem(sys.modules, "torch", made)


def test_torch_in_torch_out(add: Kernel, arrays: tuple[Any, Any], torch: None) -> None:
    a, b = arrays
    for kind in (Tensor, Subclass):
        result = add(kind(a), Tensor(b))
        assert type(result) is Tensor
        np.testing.assert_array_equal(result.array, a + b)
    assert type(add(Tensor(a), b)) is np.ndarray  # mixed callers get NumPy
    out = Tensor(np.empty(SHAPE, np.float32))
    assert add(a, b, out=out) is out
    np.testing.assert_array_equal(out.array, a + b)


def test_what_torch_has_put_off_is_done_first(add: Kernel, arrays: tuple[Any, Any], torch: None) -> None:
    a, b = arrays
    np.testing.assert_array_equal(add(Tensor(a), Tensor(b, sign=-1)).array, a - b)
    np.testing.assert_array_equal(add(Tensor(a), Tensor(b, has_memory=False)).array, a)
    with pytest.raises(
        UsageError, match=r"C is a .*Tensor whose memory does not hold its elements; give its clone\(\)"
    ):
        add(a, b, out=Tensor(b, sign=-1))


def test_tensors_of_torch_itself(add: Kernel) -> None:
    torch = pytest.importorskip("torch")
    complex_numbers = torch.randn(SHAPE, dtype=torch.complex64)
    a, b = torch.randn(SHAPE), complex_numbers.conj().imag
    assert b.is_neg()
    assert torch.equal(add(a, b), a + b)
    assert torch.equal(add(a, torch._efficientzerotensor(SHAPE)), a)
    assert type(add(a.as_subclass(type("Own", (torch.Tensor,), {})), a)) is torch.Tensor
    with pytest.raises(UsageError, match="whose memory does not hold its elements"):
        add(a, a, out=b)
    with pytest.raises(UsageError, match="require"):
        add(torch.nn.Parameter(a), a)


def test_a_call_that_an_exception_ends_takes_no_workspace_along(arrays: tuple[Any, Any]) -> None:
    kernel = _kernel(workspace_bytes=1 << 20)

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt  # as a signal's handler may

    gate, kernel._gate = kernel._gate, interrupted
    tracemalloc.start()
    try:
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                kernel(*arrays)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
    kernel._gate = gate
    np.testing.assert_array_equal(kernel(*arrays), arrays[0] + arrays[1])


def test_calls_from_several_threads_have_their_own_workspace(add: Kernel) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        a = np.full(SHAPE, seed, np.float32)
        for _ in range(300):
            if not (add(a, a) == 2 * seed).all():
                wrong.append(seed)

    in_threads(work, range(4))
    assert not wrong


def test_a_kernel_that_reports_failure_raises(arrays: tuple[Any, Any]) -> None:
    with pytest.raises(DeviceError, match="code 7"):
        _kernel(status=7)(*arrays)


def test_code_for_another_machine_is_not_run() -> None:
    other = "neoverse-n1" if parse_target("cpu").arch == "x86_64" else "haswell"
    with pytest.raises(DeviceError, match=other):
        build_kernel("", "add", parse_target(f"llvm -mcpu={other}"), (A, B), (C,), 0, 1)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4)])
def test_aligned_empty(dtype: str, shape: tuple[int, ...]) -> None:
    array = aligned_empty(shape, dtype)
    assert (array.shape, array.dtype.name) == (shape, dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.ctypes.data % 64 == 0

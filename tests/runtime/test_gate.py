"""The gate: what passes it, and that calls which do are as many at a time as there are callers."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from autosched.errors import DeviceError, UsageError
from autosched.runtime import gate
from autosched.runtime.kernel import Kernel, build_kernel
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import aligned_empty
from autosched.target import parse_target

# Writes its pointers to the memory at the last of them.
TELL = """
define i32 @tell(ptr %args, ptr %workspace, i64 %threads) {
  %out.p = getelementptr ptr, ptr %args, i64 INDEX
  %out = load ptr, ptr %out.p
  call void @llvm.memcpy.p0.p0.i64(ptr %out, ptr %args, i64 BYTES, i1 false)
  ret i32 CODE
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
# Says that it is there (out[0] = 1), waits until it is let go (in[0] != 0), and writes its workspace's address.
WAIT = """
define i32 @wait(ptr %args, ptr %workspace, i64 %threads) {
entry:
  %in = load ptr, ptr %args
  %out.p = getelementptr ptr, ptr %args, i64 1
  %out = load ptr, ptr %out.p
  %address = ptrtoint ptr %workspace to i64
  %second = getelementptr i64, ptr %out, i64 1
  store i64 %address, ptr %second
  store atomic i64 1, ptr %out release, align 8
  br label %loop
loop:
  %go = load atomic i64, ptr %in acquire, align 8
  %still = icmp eq i64 %go, 0
  br i1 %still, label %loop, label %done
done:
  ret i32 0
}
"""
HOST = parse_target("cpu")


def spec(name: str, *shape: int, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(name, shape, dtype)


def telling(inputs: tuple[ArraySpec, ...], code: int = 0) -> Kernel:
    """Writes the pointers that it was called with to its last argument."""
    n = len(inputs) + 1
    ir = TELL.replace("INDEX", str(n - 1)).replace("BYTES", str(8 * n)).replace("CODE", str(code))
    return build_kernel(ir, "tell", HOST, inputs, (spec("pointers", n, dtype="int64"),), 0, 1)


@pytest.fixture
def only_the_gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What does not pass is a failure of the test."""

    def refuse(self: Kernel, arrays: object, results: object) -> None:
        raise AssertionError("the gate refused")

    with monkeypatch.context() as patch:
        patch.setattr(Kernel, "_run", refuse)
        yield


@pytest.mark.usefixtures("only_the_gate")
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 1, 5), (0, 4), (1,) * 9])
def test_plain_arrays_pass(shape: tuple[int, ...], dtype: str) -> None:
    kernel = telling((spec("A", *shape, dtype=dtype), spec("B", 3)))
    a, b = aligned_empty(shape, dtype), np.zeros(3, np.float32)
    b.flags.writeable = False
    assert list(kernel(a, b)[:2]) == [a.ctypes.data, b.ctypes.data]
    out = np.zeros(3, np.int64)
    assert kernel(a, b, out=out) is out
    assert list(out) == [a.ctypes.data, b.ctypes.data, out.ctypes.data]
    assert kernel(a, b, out=[out])[0] is out


@pytest.mark.usefixtures("only_the_gate")
def test_a_kernel_without_inputs() -> None:
    out = np.zeros(1, np.int64)
    assert telling(())(out=out)[0] == out.ctypes.data


def _unlike() -> list[tuple[str, Any]]:
    base = np.zeros((4, 12), np.float32)
    return [
        ("another shape", base[:, :6].copy().reshape(6, 4)),
        ("another rank", np.zeros((4, 6, 1), np.float32)),
        ("too small a rank", np.zeros(24, np.float32)),
        ("another dtype", np.zeros((4, 6), np.int32)),
        ("another byte order", np.zeros((4, 6), ">f4")),
        ("strides", base[:, ::2]),
        ("Fortran's order", np.zeros((4, 6), np.float32, order="F")),
        ("no alignment", np.frombuffer(b"x" + bytes(96), np.uint8)[1:].view(np.float32).reshape(4, 6)),
        ("a subclass", np.zeros((4, 6), np.float32).view(np.recarray)),
        ("a number", 1.0),
        ("None", None),
        ("a scalar", np.float32(1)),
    ]


@pytest.mark.parametrize(("what", "value"), _unlike(), ids=[what for what, _ in _unlike()])
def test_whatever_is_not_plain_is_refused(what: str, value: object) -> None:
    kernel = telling((spec("A", 4, 6),))
    out = np.zeros(2, np.int64)
    assert kernel._gate is not None
    assert kernel._gate((value, out), 0) == gate.REFUSED
    assert not out.any()  # nothing has run


def test_outputs_are_asked_for_more() -> None:
    kernel = telling((spec("A", 2, dtype="int64"), spec("B", 4, dtype="int64")))
    assert kernel._gate is not None
    memory = np.zeros(9, np.int64)
    a, b, out = memory[:2], memory[2:6], memory[6:]
    frozen = out.view()
    frozen.flags.writeable = False
    warns = np.broadcast_arrays(out, np.zeros((2, 1)))[0][0]
    refused = [(a, b, frozen), (a, b, warns), (a, b, memory[1:4]), (a, b, memory[5:8]), (a, b, memory[3:6]), (a, b)]
    assert [kernel._gate(arrays, 0) for arrays in refused] == [gate.REFUSED] * len(refused)
    assert kernel._gate((a, a, out), 0) == gate.REFUSED  # another shape
    assert kernel._gate((a, b, out), 0) == 0  # neighbours
    with pytest.raises(UsageError, match="overlaps B"):
        kernel(a, b, out=memory[5:8])


def test_arrays_too_many_and_too_few_do_not_make_up_for_each_other() -> None:
    kernel = telling((spec("A", 2, dtype="int64"),))
    out = np.zeros(2, np.int64)
    with pytest.raises(UsageError, match=r"takes 1 arrays \(A\), but got 0"):
        kernel(out=(out.copy(), out))
    with pytest.raises(UsageError, match="out must hold 1 arrays"):
        kernel(out, out=())
    with pytest.raises(UsageError, match="out must hold 1 arrays"):
        kernel(out, out=(out, out))


@pytest.mark.parametrize("code", [7, -3, -(2**31)])
def test_codes_have_their_sign(code: int) -> None:
    with pytest.raises(DeviceError, match=f"code {code}$"):
        telling((), code)()


def test_calls_in_flight_have_their_own_workspace_and_python_goes_on() -> None:
    kernel = build_kernel(WAIT, "wait", HOST, (spec("go", 1, dtype="int64"),), (spec("out", 2, dtype="int64"),), 64, 1)
    assert kernel._gate is not None
    go, outs = np.zeros(1, np.int64), [np.zeros(2, np.int64) for _ in range(3)]
    callers = [threading.Thread(target=kernel, args=(go,), kwargs={"out": out}) for out in outs]
    try:
        for caller in callers:
            caller.start()
        while not all(out[0] for out in outs):  # this thread runs although the kernels do
            threading.Event().wait(0.001)
    finally:
        go[0] = 1
        for caller in callers:
            caller.join()
    workspaces = {int(out[1]) for out in outs}
    assert len(workspaces) == 3
    kernel(go, out=outs[0])
    assert int(outs[0][1]) in workspaces  # used again


def test_an_array_that_calls_the_kernel_itself() -> None:
    kernel = telling((spec("A", 1, dtype="int64"),))
    a, inner = np.zeros(1, np.int64), np.zeros(2, np.int64)

    class Calls:
        @property
        def __array_interface__(self) -> object:
            kernel(a, out=inner)
            return a.__array_interface__

    assert kernel(Calls())[0] == inner[0] == a.ctypes.data


def test_without_a_gate_kernels_are_called_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_is_as_expected", lambda: False)
    gate._gate.cache_clear()
    try:
        kernel = telling((spec("A", 1, dtype="int64"),))
        assert kernel._gate is None
        a = np.zeros(1, np.int64)
        assert kernel(a)[0] == a.ctypes.data
    finally:
        gate._gate.cache_clear()


@pytest.mark.usefixtures("only_the_gate")
def test_a_gate_holds_what_it_is_made_of() -> None:
    kernel = telling((spec("A", 1, dtype="int64"),))
    gate._gate.cache_clear()
    gc.collect()
    a = np.zeros(1, np.int64)
    assert kernel(a)[0] == a.ctypes.data
    assert telling((spec("A", 1, dtype="int64"),))(a)[0] == a.ctypes.data
    del kernel
    gc.collect()


def test_a_layout_of_another_kind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate._is_as_expected()
    fields = [(name, kind) for name, kind in gate._Array._fields_ if name != "base"]
    monkeypatch.setattr(gate, "_Array", type("_Array", (ctypes.Structure,), {"_fields_": fields}))
    assert not gate._is_as_expected()

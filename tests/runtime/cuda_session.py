"""What the cases of test_gpu_cuda.py have at hand: a kernel, stand-ins for other libraries' arrays, a log.

The stand-in for libcuda keeps device memory on the host and knows one kernel, `add`.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

import autosched as at
from autosched.codegen.c.source import GpuSource, Launch
from autosched.executor.gpu_model import GpuModel, LoadedSource
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.steps import Group
from autosched.kernel.device import find_device
from autosched.kernel.spec import ChosenSchedule, KernelObject
from autosched.planning.execution_plan import with_storage
from autosched.runtime.gpu import dlpack
from autosched.runtime.gpu.compile import DeviceCode
from autosched.runtime.gpu.devices import shared_device
from autosched.runtime.gpu.kernel import GpuKernel, LoadedCode
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import Array, aligned_empty

SHAPE = (8, 8)
X = np.arange(64, dtype=np.float32).reshape(SHAPE)
Y = 2 * X
A, B, C = (ArraySpec(name, SHAPE, "float32") for name in "ABC")


def kernel(entry: str = "add", workspace: tuple[tuple[str, int], ...] = ()) -> GpuKernel:
    """C = A + B; with `entry` "illegal" it makes the context sticky."""
    launch = Launch(entry, (2, 1, 1), (32, 1, 1), ("A", "B", "C"), 0)
    source = GpuSource(entry, "cuda", "", (launch,), ("A", "B"), ("C",), workspace)
    return GpuKernel(LoadedCode(shared_device("cuda"), DeviceCode(b"\x7fELF"), source), source, (A, B), (C,))


def log(*words: object) -> None:
    print(*words, file=sys.stderr, flush=True)


def refused(kind: type[Exception], function: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Prints the error that the call must end with."""
    try:
        function(*args, **kwargs)
    except kind as error:
        print(error)
    else:
        raise AssertionError("not refused")


def aligned(array: Array) -> Array:
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


class Interface:
    """An array of a library that speaks `__cuda_array_interface__`."""

    def __init__(self, array: Array, **changed: Any) -> None:
        self.array, self.changed = array, changed

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        a = self.array
        form = {"shape": a.shape, "typestr": a.dtype.str, "data": (a.ctypes.data, False), "version": 3}
        return form | {"strides": None if a.flags.c_contiguous else a.strides} | self.changed


class Tensor:
    """An array of a library that speaks DLPack, and tells which stream it was given."""

    def __init__(self, array: Array, place: tuple[int, int] = (dlpack.CUDA, 0), old: bool = False) -> None:
        self.array, self.place, self.old = array, place, old

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("unexpected keyword")
        log("dlpack", stream)
        a = self.array
        strides = tuple(n // a.itemsize for n in a.strides)
        assert a.flags.c_contiguous, strides
        tensor = dlpack.DLTensor(a.ctypes.data, *self.place, a.shape, a.dtype, None, False)
        return dlpack.export(tensor, self, "max_version" in options)


def stand_in_for_torch(stream: int) -> type[Interface]:
    """A module `torch` whose current stream is `stream`; the type of its tensors on the device."""
    torch: Any = types.ModuleType("torch")

    class TorchTensor(Interface):
        device, layout = types.SimpleNamespace(index=0), "strided"
        is_cuda, requires_grad = True, False
        shape = property(lambda self: self.array.shape)
        dtype = property(lambda self: self.array.dtype)

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            log("asked")
            return super().__cuda_array_interface__

        def get_device(self) -> int:
            return 0

        def is_contiguous(self) -> bool:
            return bool(self.array.flags.c_contiguous)

        def data_ptr(self) -> int:
            return int(self.array.ctypes.data)

        def is_neg(self) -> bool:
            return False

        def _is_zerotensor(self) -> bool:
            return False

        def __dlpack_device__(self) -> tuple[int, int]:
            return (dlpack.CUDA, 0)

    def empty(shape: tuple[int, ...], dtype: Any, device: object) -> Interface:
        assert device is TorchTensor.device
        return TorchTensor(aligned_empty(shape, dtype))

    torch.Tensor = TorchTensor
    torch.empty, torch.float32, torch.strided = empty, np.dtype("float32"), "strided"
    torch.from_dlpack = lambda array: ("from_dlpack", array)
    torch.cuda = types.SimpleNamespace(current_stream=lambda index: types.SimpleNamespace(cuda_stream=stream))
    sys.modules["torch"] = torch
    return TorchTensor


def device_arrays() -> tuple[Any, Any]:
    return at.to_device(X), at.to_device(Y)


def network() -> GpuModel:
    """C = A + W, D = C + W: two kernels, with C in the arena and W among the weights."""
    values = {name: Value(name, SHAPE, "float32") for name in "AWCD"}
    nodes = (Node("add", ("A", "W"), ("C",)), Node("add", ("C", "W"), ("D",)))
    graph = Graph(("A",), ("D",), nodes, values, {"W": np.full(SHAPE, 100, np.float32)})
    steps = tuple(Group((node,), node.used, node.outputs) for node in nodes)
    device = find_device("cuda", None)
    code = KernelObject("add", (4 * SHAPE[0] * SHAPE[1],) * 3, 0, 0, 0, ChosenSchedule(""), b"")
    program = with_storage(graph, steps, {0: code, 1: code}, device.target.backend)
    launch = Launch("add", (2, 1, 1), (32, 1, 1), ("A", "B", "C"), 0)
    source = GpuSource("add", "cuda", "", (launch,), ("A", "B"), ("C",), ())
    gpu = shared_device("cuda")
    loaded = {"add": LoadedSource(source, gpu.load(DeviceCode(b"\x7fELF"), source))}
    return GpuModel(graph, program, device, gpu, loaded)

"""A compiled kernel as a Python function of arrays."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autosched.errors import DeviceError, UsageError
from autosched.runtime.jit import LoadedKernel, compile_object, load_object
from autosched.runtime.tensors import (
    Array,
    ArraySpec,
    address_of,
    aligned_empty,
    as_input,
    as_output,
    check_apart,
)
from autosched.target import Target


@dataclass(frozen=True)
class _Frame:
    """What one call in flight owns: the array of pointers and the scratch memory."""

    pointers: ctypes.Array[ctypes.c_void_p]
    pointers_address: int
    workspace: Array
    workspace_address: int


class Kernel:
    """`kernel(A, B)` returns a new array (a tuple for several outputs); `kernel(A, B, out=C)` writes C and returns it.

    Takes what `runtime.tensors` accepts; gives torch tensors back when every input was one. May be called from several
    Python threads at a time.
    """

    def __init__(
        self, loaded: LoadedKernel, inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec], workspace_bytes: int
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.workspace_bytes = workspace_bytes
        self._loaded = loaded
        self._idle: list[_Frame] = []  # append and pop are atomic

    @property
    def threads(self) -> int:
        return self._loaded.threads

    def __call__(self, *arrays: object, out: object = None) -> Any:
        if len(arrays) != len(self.inputs):
            names = ", ".join(spec.name for spec in self.inputs)
            raise UsageError(f"the kernel takes {len(self.inputs)} arrays ({names}), but got {len(arrays)}")
        given = [as_input(spec, array) for spec, array in zip(self.inputs, arrays, strict=True)]
        if out is not None:
            self._launch(given, self._checked_out(out, given))
            return out
        results = [aligned_empty(spec.shape, spec.numpy_dtype) for spec in self.outputs]
        self._launch(given, results)
        wrapped = _like_inputs(arrays, results)
        return wrapped[0] if len(wrapped) == 1 else tuple(wrapped)

    def _checked_out(self, out: object, given: Sequence[Array]) -> list[Array]:
        items = out if isinstance(out, (tuple, list)) else (out,)
        if len(items) != len(self.outputs):
            raise UsageError(f"out must hold {len(self.outputs)} arrays, one for each output, but has {len(items)}")
        results = [as_output(spec, item) for spec, item in zip(self.outputs, items, strict=True)]
        check_apart(
            list(zip(self.outputs, results, strict=True)),
            list(zip(self.inputs, given, strict=True)),
        )
        return results

    def _launch(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = self._new_frame()
        pointers = frame.pointers
        for i, array in enumerate((*inputs, *outputs)):
            pointers[i] = address_of(array)
        code = self._loaded(frame.pointers_address, frame.workspace_address)
        self._idle.append(frame)
        if code:
            raise DeviceError(f"the kernel {self._loaded.entry} stopped with code {code}")

    def _new_frame(self) -> _Frame:
        pointers = (ctypes.c_void_p * (len(self.inputs) + len(self.outputs)))()
        workspace = aligned_empty((max(self.workspace_bytes, 1),), "uint8")
        return _Frame(pointers, ctypes.addressof(pointers), workspace, address_of(workspace))


def build_kernel(
    ir: str,
    entry: str,
    target: Target,
    inputs: Sequence[ArraySpec],
    outputs: Sequence[ArraySpec],
    workspace_bytes: int,
    threads: int,
) -> Kernel:
    """Compile a module of IR text in this process and wrap its function `entry`."""
    if not target.runs_here:
        lacks = ", ".join(target.missing_features) or f"the architecture {target.arch or target.kind}"
        raise DeviceError(f"code for {target.mcpu or target.kind} cannot run on this machine, which lacks {lacks}")
    return Kernel(load_object(compile_object(ir, target), entry, threads), inputs, outputs, workspace_bytes)


def _like_inputs(arrays: Sequence[object], results: list[Array]) -> list[Any]:
    """torch tensors for a caller whose inputs all are; torch is never imported for it."""
    torch = sys.modules.get("torch")
    if torch is None or not arrays or not all(type(a).__module__.partition(".")[0] == "torch" for a in arrays):
        return list(results)
    return [torch.from_dlpack(result) for result in results]

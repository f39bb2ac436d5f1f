"""A compiled kernel as a Python function of arrays."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    new_output,
)
from autosched.target import Target


@dataclass(frozen=True)
class _Frame:
    """What one call in flight owns: the array of pointers and the scratch memory."""

    pointers: Any  # a ctypes array of size_t
    pointers_address: int
    workspace: Array
    workspace_address: int


class Kernel:
    """`kernel(A, B)` returns a new array (a tuple for several outputs); `kernel(A, B, out=C)` writes C and returns it.

    Takes what `runtime.tensors` accepts; gives torch tensors back when every input was one. May be called from several
    Python threads at a time. `weights` names the inputs that it was tuned to have as weights, see `bind`.
    """

    weights: tuple[str, ...] = ()

    def __init__(
        self, loaded: LoadedKernel, inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec], workspace_bytes: int
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.workspace_bytes = workspace_bytes
        self._specs = self.inputs + self.outputs
        self._loaded = loaded
        self._idle: list[_Frame] = []  # append and pop are atomic

    @property
    def threads(self) -> int:
        return self._loaded.threads

    def bind(self, **weights: object) -> Kernel:
        """The kernel of the other inputs, with these weights packed once and for all; see `runtime.weights`."""
        raise UsageError('this kernel has no weights to bind; tune or compile it with weights=["NAME"]')

    def __call__(self, *arrays: object, out: object = None) -> Any:
        if len(arrays) != len(self.inputs):
            names = ", ".join(spec.name for spec in self.inputs)
            raise UsageError(f"the kernel takes {len(self.inputs)} arrays ({names}), but got {len(arrays)}")
        given = [as_input(spec, array) for spec, array in zip(self.inputs, arrays, strict=True)]
        addresses = [address_of(array) for array in given]  # `given` and `results` hold the memory until the end
        if out is not None:
            results = self._checked_out(out)
            addresses += [address_of(array) for array in results]
            check_apart(self._specs, addresses, len(given))
            self._launch(addresses)
            return out
        results = []
        for spec in self.outputs:
            array, address = new_output(spec)
            results.append(array)
            addresses.append(address)
        self._launch(addresses)
        wrapped = like_inputs(arrays, results)
        return wrapped[0] if len(wrapped) == 1 else tuple(wrapped)

    def _checked_out(self, out: object) -> list[Array]:
        items = out if isinstance(out, (tuple, list)) else (out,)
        if len(items) != len(self.outputs):
            raise UsageError(f"out must hold {len(self.outputs)} arrays, one for each output, but has {len(items)}")
        return [as_output(spec, item) for spec, item in zip(self.outputs, items, strict=True)]

    def _launch(self, addresses: list[int]) -> None:
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = self._new_frame(len(addresses))
        frame.pointers[:] = addresses
        code = self._loaded(frame.pointers_address, frame.workspace_address)
        self._idle.append(frame)
        if code:
            raise DeviceError(f"the kernel {self._loaded.entry} stopped with code {code}")

    def _new_frame(self, n_pointers: int) -> _Frame:
        pointers = (ctypes.c_size_t * n_pointers)()
        workspace = aligned_empty((max(self.workspace_bytes, 1),), "uint8")
        return _Frame(pointers, ctypes.addressof(pointers), workspace, address_of(workspace))


def build_object(ir: str, target: Target) -> bytes:
    """The object code of a module of IR text that is to run in this process."""
    if not target.runs_here:
        lacks = ", ".join(target.missing_features) or f"the architecture {target.arch or target.kind}"
        raise DeviceError(f"code for {target.mcpu or target.kind} cannot run on this machine, which lacks {lacks}")
    return compile_object(ir, target)


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
    return Kernel(load_object(build_object(ir, target), entry, threads), inputs, outputs, workspace_bytes)


def torch_of(arrays: Sequence[object]) -> Any:
    """The module torch when every one of `arrays` is its tensor, else None; torch is never imported for it."""
    torch = sys.modules.get("torch")
    if torch is None or not arrays:
        return None
    if any(type(array) is np.ndarray or type(array).__module__.partition(".")[0] != "torch" for array in arrays):
        return None
    return torch


def like_inputs(arrays: Sequence[object], results: list[Array]) -> list[Any]:
    """torch tensors for a caller whose inputs all are."""
    torch = torch_of(arrays)
    if torch is None:
        return results
    plain = [result.view(np.int16) if result.dtype.name == "bfloat16" else result for result in results]
    tensors = [torch.from_dlpack(array) for array in plain]
    return [t if p is r else t.view(torch.bfloat16) for t, p, r in zip(tensors, plain, results, strict=True)]

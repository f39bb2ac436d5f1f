"""Compiled kernels for processors as Python functions of arrays."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np

from autosched.errors import AutoschedError, DeviceError, UsageError
from autosched.ir.dtype import is_foreign
from autosched.runtime.gate import REFUSED, gate_of
from autosched.runtime.jit import LoadedKernel, compile_interruptibly, load_object
from autosched.runtime.results import Spare, Spares
from autosched.runtime.spec import ArraySpec, in_order, largest
from autosched.runtime.tensors import (
    ALIASED_BYTES,
    Array,
    address_of,
    aligned_empty,
    as_input,
    as_numpy,
    as_output,
    check_apart,
    is_torch,
    materialised,
    new_outputs,
)
from autosched.target import Target

_Workspace: TypeAlias = tuple[int, Array]  # its address, and what owns it


class Kernel:
    """`kernel(A, B)` returns a new array (a tuple for several outputs); `kernel(A, B, out=C)` writes C and returns it.
    Inputs may be given by name: `kernel(A, B=b)`.

    Takes what `runtime.tensors` accepts; returns torch tensors if all inputs are torch tensors. May be called from
    several Python threads at a time. `weights`: the inputs that it was tuned to have as weights, see `bind`.

    `fixed`: the kernel's pointers that are the same at every call, None for each that an array gives; without it, the
    arrays give all of them. `in_place`: from the number of an output to that of the input which `out` may alias, and
    which is overwritten then.
    """

    weights: tuple[str, ...] = ()

    def __init__(
        self,
        loaded: LoadedKernel,
        inputs: Sequence[ArraySpec],
        outputs: Sequence[ArraySpec],
        workspace_bytes: int,
        fixed: Sequence[int | None] | None = None,
        in_place: Mapping[int, int] | None = None,
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.workspace_bytes = workspace_bytes
        self._specs = self.inputs + self.outputs
        self._largest = largest(self.inputs)
        self._apart = bool(self.inputs) and self.outputs[largest(self.outputs)].nbytes >= ALIASED_BYTES
        self._spares = Spares(sum(spec.nbytes for spec in outputs))
        self._loaded = loaded
        self._fixed = tuple(fixed or (None,) * len(self._specs))
        self._gate = gate_of(loaded, self._specs, len(self.inputs), self._fixed, in_place or {})
        self._in_place = in_place
        self._idle: list[_Workspace] = []  # as many as there were calls at a time; append and pop are atomic

    def __repr__(self) -> str:
        taken, given = (", ".join(f"{s.name}: {s}" for s in specs) for specs in (self.inputs, self.outputs))
        return f"<kernel ({taken}) -> {given}, {self.threads} thread{'s' if self.threads > 1 else ''}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a kernel is machine code of this process, which can be neither copied nor pickled: compile it where it is "
            "needed (at.compile finds the record), or export it"
        )

    @property
    def threads(self) -> int:
        return self._loaded.threads

    def bind(self, **weights: object) -> Kernel:
        """Return the kernel of the other inputs, with these weights packed once; see `runtime.weights`."""
        raise UsageError('this kernel has no weights to bind; tune or compile it with weights=["NAME"]')

    def __call__(self, *arrays: object, out: object = None, **named: object) -> Any:
        if named or len(arrays) != len(self.inputs):
            arrays = in_order([spec.name for spec in self.inputs], arrays, named)
        if out is not None:
            given = tuple(out) if isinstance(out, (tuple, list)) else (out,)
            if not self.passes((*arrays, *given)):
                self._run(arrays, given)
            return out
        key = id(arrays[self._largest]) if arrays else 0
        spare = self._spares.take(key)
        if spare is None or not self.passes((*arrays, *spare.results)):
            results = new_outputs(self.outputs, self._input_address(arrays) if self._apart else 0)
            if not self.passes((*arrays, *results)):
                self._run(arrays, results)
                wrapped = like_inputs(arrays, results)
                return wrapped[0] if len(wrapped) == 1 else tuple(wrapped)
            spare = Spare(key, results)
        given = tuple(spare.results)  # holds them from before they can be taken again
        self._spares.keep(spare)
        return given[0] if len(given) == 1 else given

    def _input_address(self, arrays: Sequence[object]) -> int:
        """Return the address of the largest input; 0 if it is not a plain array."""
        array = arrays[self._largest]
        return address_of(array) if type(array) is np.ndarray else 0

    def passes(self, arrays: tuple[object, ...]) -> bool:
        """Return whether the gate accepted the arrays, so that the kernel has run."""
        if self._gate is None:
            return False
        workspace = self._workspace()
        code = self._gate(arrays, workspace[0])
        if code and code != REFUSED:
            raise self._failure(code, workspace[0])
        self._idle.append(workspace)
        return code == 0

    def _run(self, arrays: tuple[object, ...], results: Sequence[object]) -> None:
        """Run with arrays of any kind that `runtime.tensors` accepts."""
        if len(results) != len(self.outputs):
            raise UsageError(f"out must hold {len(self.outputs)} arrays, one for each output, but has {len(results)}")
        given = (*map(materialised, arrays), *results)
        views = tuple([as_numpy(spec, array) for spec, array in zip(self._specs, given, strict=True)])
        if self.passes(views):
            return
        n = len(arrays)
        read = [as_input(spec, view) for spec, view in zip(self.inputs, views[:n], strict=True)]
        written = [as_output(spec, view) for spec, view in zip(self.outputs, views[n:], strict=True)]
        addresses = [address_of(array) for array in (*read, *written)]  # the lists hold the memory until the end
        check_apart(self._specs, addresses, n, self._in_place)
        self.launch(addresses)

    def launch(self, addresses: Sequence[int]) -> None:
        """Run with arrays at `addresses`, the outputs last, without checks: each must be contiguous and aligned to its
        element, and outputs must be disjoint from all other arrays.
        """
        given = iter(addresses)
        self._start([next(given) if pointer is None else pointer for pointer in self._fixed])

    def _start(self, pointers: Sequence[int]) -> None:
        block = (ctypes.c_size_t * len(pointers))(*pointers)
        workspace = self._workspace()
        code = self._loaded(ctypes.addressof(block), workspace[0])
        if code:
            raise self._failure(code, workspace[0])
        self._idle.append(workspace)

    def _workspace(self) -> _Workspace:
        """Return a workspace that no other call uses. A call that ends by an exception drops it."""
        try:
            return self._idle.pop()
        except IndexError:
            made = aligned_empty((max(self.workspace_bytes, 1),), "uint8")
            return address_of(made), made

    def _failure(self, code: int, workspace: int) -> AutoschedError:
        """Return the error of a call with a status other than 0; `workspace`: the address of its scratch."""
        return DeviceError(f"the kernel {self._loaded.entry} stopped with code {code}")


def build_object(ir: str, target: Target) -> bytes:
    """Compile a module of IR text to object code that is to run in this process."""
    if not target.runs_here:
        lacks = ", ".join(target.missing_features) or f"the architecture {target.arch or target.kind}"
        raise DeviceError(f"code for {target.mcpu or target.kind} cannot run on this machine, which lacks {lacks}")
    return compile_interruptibly(ir, target)


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


def common_torch(arrays: Sequence[object]) -> Any:
    """Return the module torch if all `arrays` are its tensors, else None."""
    return sys.modules["torch"] if arrays and all(map(is_torch, arrays)) else None


def like_inputs(arrays: Sequence[object], results: Sequence[Array]) -> list[Any]:
    """Return the results as torch tensors if all inputs are torch tensors."""
    torch = common_torch(arrays)
    return list(results) if torch is None else [_as_tensor(torch, result) for result in results]


def _as_tensor(torch: Any, result: Array) -> Any:
    """Return a result as a tensor, by its bits if NumPy lacks the type."""
    if not is_foreign(result.dtype):
        return torch.from_numpy(result)
    bits = torch.from_numpy(result.view(f"i{result.dtype.itemsize}"))
    return bits.view(getattr(torch, result.dtype.name))

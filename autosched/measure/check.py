"""Checked launches: a kernel runs on the data sets of a problem and is compared with the reference. Only workers import
this.

Before a launch outputs and scratch are poisoned; after it redzones, inputs and outputs are compared, in this order,
because a breach explains a wrong result better than the wrong numbers do. Weights are packed before, into a poisoned
block, which counts as an input of the launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.ir.dtype import DTYPES, is_foreign
from autosched.measure.argument_sets import ArgumentSets, CopyMemory
from autosched.measure.buffers import POISON_FLOAT, GuardedBuffer, poison_bytes
from autosched.measure.problem import DATA_SETS, limit_file
from autosched.runtime.spec import ArraySpec, largest
from autosched.runtime.tensors import SHIFT

Array = npt.NDArray[Any]
_CHUNK = 1 << 16  # elements compared at a time: the temporaries stay in the cache


class CandidateError(Exception):
    """A candidate's fault: a class of `results.FAULTS` and a message."""

    def __init__(self, fault: str, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass
class Packing:
    """The packed weights of a kernel. `call` packs them into `block`, with the kernel's own arguments; `expected`: the
    block after that.
    """

    call: Callable[[int, int, int], int]
    block: GuardedBuffer
    expected: Array | None = None


@dataclass(frozen=True)
class CheckedKernel:
    """A loaded kernel and its scratch. `call(args, workspace, threads)` runs the kernel and returns its status."""

    call: Callable[[int, int, int], int]
    threads: int
    workspace: GuardedBuffer
    packing: Packing | None = None
    winograd: int = 0  # see `protocol.Hold`


@dataclass(frozen=True)
class Expected:
    """The limits of one output; `value` and `bound` are only read to explain a failure."""

    low: Array
    high: Array
    value: Array
    bound: Array


class DataSet:
    """One data set in guarded buffers, which are a kernel's arguments. Raises OSError, ValueError on damaged files."""

    def __init__(
        self, directory: Path, name: str, inputs: tuple[ArraySpec, ...], outputs: tuple[ArraySpec, ...]
    ) -> None:
        self.name, self.inputs, self.outputs = name, inputs, outputs
        self._originals = [open_array(directory / f"{name}.in{i}.npy", spec) for i, spec in enumerate(inputs)]
        self._directory = directory
        self._expected: dict[int, list[Expected]] = {}
        self.expected(0)
        self._in = [GuardedBuffer(spec.nbytes, POISON_FLOAT) for spec in inputs]
        input_address = self._in[largest(inputs)].address if inputs else 0
        self._out = [
            GuardedBuffer(spec.nbytes, input_address=input_address + n * SHIFT) for n, spec in enumerate(outputs)
        ]
        buffers = [*self._in, *self._out]
        self._pointers = (ctypes.c_void_p * (len(buffers) + 1))(*(b.address for b in buffers))
        self.args: int = ctypes.addressof(self._pointers)
        self.restore()

    def expected(self, tile: int) -> list[Expected]:
        """Return the limits of the outputs, for a kernel with Winograd's tiles of `tile` outputs (0: any other)."""
        if tile not in self._expected:
            found = [open_expected(self._directory, self.name, j, spec, tile) for j, spec in enumerate(self.outputs)]
            self._expected[tile] = found
        return self._expected[tile]

    def restore(self) -> None:
        """Restore inputs, redzones and argument pointers."""
        for buffer, original in zip(self._in, self._originals, strict=True):
            buffer.bytes[:] = original.reshape(-1).view(np.uint8)
        for k, buffer in enumerate((*self._in, *self._out)):
            buffer.guard()
            self._pointers[k] = buffer.address

    def set_packed_weights(self, packing: Packing | None) -> None:
        """Set the last argument to the block of packed weights."""
        self._pointers[len(self._pointers) - 1] = None if packing is None else packing.block.address

    def sets(self, packing: Packing | None, bytes_between_calls: int, memory: CopyMemory) -> ArgumentSets:
        """Return the argument sets for timing, with so many bytes of packed weights between two calls with the same
        copy.
        """
        self.set_packed_weights(packing)
        return ArgumentSets(
            self._pointers[:], None if packing is None else packing.block.bytes, bytes_between_calls, memory
        )

    def poison_outputs(self) -> None:
        for buffer, spec in zip(self._out, self.outputs, strict=True):
            buffer.poison(spec.dtype)

    def examine(self, kernel: CheckedKernel) -> None:
        """Raise CandidateError if the last launch broke anything or its outputs are wrong; then all buffers but the
        outputs are restored.
        """
        self.examine_inputs(kernel.workspace, kernel.packing)
        for buffer, spec, expected in zip(self._out, self.outputs, self.expected(kernel.winograd), strict=True):
            message = compare(spec, buffer.bytes.view(spec.numpy_dtype), expected)
            if message:
                raise CandidateError("wrong_result", f"{message} (data set {self.name})")

    def examine_inputs(self, workspace: GuardedBuffer, packing: Packing | None) -> None:
        """Raise CandidateError if a launch wrote outside of a buffer, or into an input or the packed weights."""
        try:
            self._examine_bounds(workspace, packing)
            if packing is not None and packing.expected is not None and not packing.block.equals(packing.expected):
                raise CandidateError("clobbered_input", "the kernel changed its packed weights")
            for buffer, spec, original in zip(self._in, self.inputs, self._originals, strict=True):
                if not buffer.equals(original):
                    found = buffer.bytes.view(spec.numpy_dtype)
                    raise CandidateError("clobbered_input", describe_clobbered(spec, found, original))
        except CandidateError:
            workspace.guard()
            self.restore()
            raise

    def _examine_bounds(self, workspace: GuardedBuffer, packing: Packing | None) -> None:
        named = [
            *((f"input {s.name}", b) for s, b in zip(self.inputs, self._in, strict=True)),
            *((f"output {s.name}", b) for s, b in zip(self.outputs, self._out, strict=True)),
            ("the workspace", workspace),
            *(() if packing is None else (("the packed weights", packing.block),)),
        ]
        for name, buffer in named:
            breach = buffer.breach()
            if breach:
                raise CandidateError("out_of_bounds", f"the kernel wrote outside {name}: {breach}")


def open_array(path: Path, spec: ArraySpec) -> Array:
    """Map an array of a data set; of a type that NumPy lacks, the file has the bits."""
    array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    if is_foreign(spec.numpy_dtype) and array.dtype == DTYPES[spec.dtype].bits_dtype:  # see `problem.storable`
        array = array.view(spec.numpy_dtype)
    if array.shape != tuple(spec.shape) or array.dtype != spec.numpy_dtype:
        raise ValueError(f"{path.name} holds {array.dtype}{array.shape}, expected {spec.dtype}{tuple(spec.shape)}")
    return array


def open_expected(directory: Path, name: str, j: int, spec: ArraySpec, tile: int = 0) -> Expected:
    low, high = (open_array(limit_file(directory, name, j, part, tile), spec) for part in ("low", "high"))
    value, bound = (
        np.load(path, mmap_mode="r", allow_pickle=False)
        for path in (directory / f"{name}.out{j}.value.npy", limit_file(directory, name, j, "bound", tile))
    )
    return Expected(low.reshape(-1), high.reshape(-1), value.reshape(-1), bound.reshape(-1))


def describe_clobbered(spec: ArraySpec, got: Array, original: Array) -> str:
    """Return a sentence on the elements of an input that were overwritten; there is one at least."""
    wide = spec.numpy_dtype.itemsize
    now, before = (array.reshape(-1).view(np.uint8).reshape(-1, wide) for array in (got, original))
    changed = np.flatnonzero((now != before).any(axis=1))
    place = element_name(spec, int(changed[0]))
    return f"the kernel changed {len(changed)} elements of its input {spec.name}, the first {place}"


def element_name(spec: ArraySpec, flat: int) -> str:
    """Return the name of the element at a flat position: 'C[2, 3]'."""
    return f"{spec.name}[{', '.join(str(int(i)) for i in np.unravel_index(flat, spec.shape or (1,)))}]"


def compare(spec: ArraySpec, got: Array, expected: Expected) -> str | None:
    """Return a sentence on the elements of the flat array `got` outside their limits; None if there are none."""
    if got.dtype == np.bool_:  # a byte other than 0 and 1 is not a bool, and NumPy would take it for True
        got, low, high = got.view(np.uint8), expected.low.view(np.uint8), expected.high.view(np.uint8)
    else:
        low, high = expected.low, expected.high
    ok = np.empty((2, min(_CHUNK, len(got))), np.bool_)
    with np.errstate(invalid="ignore"):
        for start in range(0, len(got), _CHUNK):
            part = got[start : start + _CHUNK]
            above, below = ok[0, : len(part)], ok[1, : len(part)]
            np.greater_equal(part, low[start : start + _CHUNK], out=above)
            np.less_equal(part, high[start : start + _CHUNK], out=below)
            if not np.logical_and(above, below, out=above).all():
                outside = start + np.flatnonzero(~above)  # an expected NaN always is
                right, _ = _examined(spec, got[outside], low[outside], high[outside], expected.bound[outside])
                if not right.all():
                    return _explain(spec, got, low, high, expected)
    return None


def _examined(spec: ArraySpec, got: Array, low: Array, high: Array, bound: Array) -> tuple[Array, Array]:
    """Return masks of the elements within their limits, and of those that were never written."""
    right = (got >= low) & (got <= high)
    poison = poison_bytes(spec.dtype, got.itemsize)
    unwritten = (got.view(np.uint8).reshape(len(got), len(poison)) == poison).all(axis=1) & ~right
    if DTYPES[spec.dtype].is_float:
        right |= ((np.isnan(got) & np.isnan(low)) | np.isinf(bound)) & ~unwritten
    return right, unwritten


def _explain(spec: ArraySpec, got: Array, low: Array, high: Array, expected: Expected) -> str:
    """Return a sentence on the wrong elements of an array."""
    with np.errstate(invalid="ignore", over="ignore"):
        right, unwritten = _examined(spec, got, low, high, expected.bound)
        wrong = np.flatnonzero(~right)
        difference = got[wrong].astype(np.float64) - expected.value[wrong].astype(np.float64)
        excess = np.abs(difference) - expected.bound[wrong]
    worst = int(wrong[np.argmax(np.where(np.isnan(excess), np.inf, excess))])
    text = (
        f"{element_name(spec, worst)} is {_text(got[worst])}, expected {_text(expected.value[worst])} +- "
        f"{expected.bound[worst]:.3g}; "
        f"{len(wrong)} of {len(got)} elements are wrong"
    )
    never = int(unwritten.sum())
    return f"{text}, {never} were never written or come from uninitialised scratch" if never else text


def _text(number: Any) -> str:
    return f"{float(number):.9g}" if not isinstance(number, (np.integer, np.bool_)) else str(int(number))


def check(kernel: CheckedKernel, data_sets: list[DataSet]) -> None:
    """Launch once on each data set, each time with poisoned scratch. Raises CandidateError.

    Weights are packed anew for each data set; those of the first one, which is timed, stay.
    """
    for data in data_sets[::-1] if kernel.packing is not None else data_sets:
        kernel.workspace.poison("float32")
        if kernel.packing is not None:
            prepare(kernel, kernel.packing, data)
            kernel.workspace.poison("float32")
        launch(kernel, data)


def prepare(kernel: CheckedKernel, packing: Packing, data: DataSet) -> None:
    """Pack the weights of `data` and check for writes out of bounds. Raises CandidateError."""
    packing.expected = None
    packing.block.poison("float32")
    data.set_packed_weights(packing)
    _call(packing.call, kernel, data)
    data.examine_inputs(kernel.workspace, packing)
    packing.expected = packing.block.bytes.copy()


def launch(kernel: CheckedKernel, data: DataSet) -> None:
    """Launch once into poisoned outputs and check the results. Raises CandidateError."""
    data.poison_outputs()
    data.set_packed_weights(kernel.packing)
    _call(kernel.call, kernel, data)
    data.examine(kernel)


def _call(function: Callable[[int, int, int], int], kernel: CheckedKernel, data: DataSet) -> None:
    status = function(data.args, kernel.workspace.address, kernel.threads)
    if status != 0:
        raise CandidateError("crash", f"the kernel returned status {status}, expected 0")


def load_data_sets(directory: Path, inputs: tuple[ArraySpec, ...], outputs: tuple[ArraySpec, ...]) -> list[DataSet]:
    """Read the data sets of a problem. Raises OSError, ValueError on damaged files."""
    return [DataSet(directory, name, inputs, outputs) for name in DATA_SETS]

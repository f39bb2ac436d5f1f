"""Conversion of arguments to arrays of the kernel, without copies where possible.

Accepted are NumPy arrays, objects with `__array_interface__`, and DLPack tensors in host memory. Inputs may be
read-only; one that is not C-contiguous or not aligned to its element is copied. Outputs are written in place, so they
must be contiguous, writable and disjoint from every other array of the call.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autosched.errors import UsageError
from autosched.ir.dtype import is_foreign, numpy_dtype
from autosched.runtime.results import result_memory
from autosched.runtime.spec import ArraySpec

Array: TypeAlias = npt.NDArray[Any]

ALIGNMENT = 64  # a cache line, and the widest vector
ALIASED_BYTES = 4096  # 4K aliasing: loads and stores compare addresses modulo so many bytes first
SHIFT = 1280  # see `apart`
_BYTE = np.dtype(np.uint8)
_addressof = ctypes.addressof
_from_buffer: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
_HOST_DEVICES = (1, 3)  # DLPack device types: kDLCPU, kDLCUDAHost


def aligned_empty(shape: Sequence[int], dtype: str | np.dtype[Any], alignment: int = ALIGNMENT) -> Array:
    """Return an uninitialised C-contiguous array whose address is a multiple of `alignment` bytes."""
    kind = numpy_dtype(dtype) if isinstance(dtype, str) else dtype
    raw = np.empty(math.prod(shape) * kind.itemsize + alignment, _BYTE)
    return np.ndarray(tuple(shape), kind, raw, -_addressof(_from_buffer(raw)) % alignment)


def aligned_zeros(nbytes: int) -> Array:
    """Return zeroed bytes at a multiple of 64; the system zeroes large memory when it is first touched."""
    raw = np.zeros(nbytes + ALIGNMENT, _BYTE)
    return np.ndarray((nbytes,), _BYTE, raw, -_addressof(_from_buffer(raw)) % ALIGNMENT)


def new_outputs(specs: Sequence[ArraySpec], input_address: int = 0) -> list[Array]:
    """Return uninitialised aligned arrays for `specs`, large ones in reused memory of earlier results.

    `input_address`: of the input that they must not alias, see `apart`.
    """
    made: list[Array] = []
    for spec in specs:
        if spec.nbytes < ALIASED_BYTES:
            raw = result_memory(spec.nbytes + ALIGNMENT)
            place = -_addressof(_from_buffer(raw)) % ALIGNMENT
        else:
            raw = result_memory(spec.nbytes + ALIASED_BYTES)
            place = apart(_addressof(_from_buffer(raw)), input_address)
        made.append(np.ndarray(spec.shape, spec.numpy_dtype, raw, place))
        input_address += SHIFT
    return made


def apart(start: int, input_address: int) -> int:
    """Return the offset in bytes after `start` at which a result does not alias the input at `input_address`.

    4K aliasing: a processor takes a load for one of an earlier store's data while it has compared only the low 12 bits
    of the two addresses, and delays it. Large arrays all begin at the same offset of a page, and so did input and
    result: depthwise convolutions, which store a tile while they load the next one from the same offset, took 1.35 to
    1.55 times as long as with 256 bytes or more between. SHIFT is that far from every multiple of 512 too, so that
    pixels of 128 channels do not alias either.
    """
    return (input_address // ALIGNMENT * ALIGNMENT + SHIFT - start) % ALIASED_BYTES


def address_of(array: Array) -> int:
    """The address of the first element of a contiguous array."""
    try:
        return _addressof(_from_buffer(array))  # half the time of array.ctypes.data
    except (TypeError, ValueError):  # read-only, or without elements
        return array.ctypes.data


def as_input(spec: ArraySpec, value: object) -> Array:
    """Return `value` as a contiguous array that fits `spec`; it is copied only if its layout requires it."""
    array = as_numpy(spec, materialised(value))
    check_type(spec, "input", array.shape, array.dtype)
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    copy = aligned_empty(spec.shape, spec.numpy_dtype)
    np.copyto(copy, array)
    return copy


def as_output(spec: ArraySpec, value: object) -> Array:
    """Return `value` as an array that the kernel can write in place."""
    array = as_numpy(spec, value)
    check_type(spec, "output", array.shape, array.dtype)
    if not array.flags.writeable:
        raise UsageError(f"output {spec.name} is read-only; give an array that can be written")
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise UsageError(f"output {spec.name} is not C-contiguous and aligned; give an array made by np.empty, say")
    return array


def check_apart(
    specs: Sequence[ArraySpec], addresses: Sequence[int], n_inputs: int, in_place: Mapping[int, int] | None = None
) -> None:
    """Raise UsageError if an output (the arrays from `n_inputs` on) overlaps any array before it, unless `in_place`
    maps it to that input, by their numbers.
    """
    for i in range(n_inputs, len(specs)):
        start = addresses[i]
        end = start + specs[i].nbytes
        for j in range(i):
            is_same = start == addresses[j] and j < n_inputs and (in_place or {}).get(i - n_inputs) == j
            has_bytes = specs[i].nbytes and specs[j].nbytes
            if has_bytes and not is_same and addresses[j] < end and start < addresses[j] + specs[j].nbytes:
                name, other = specs[i].name, specs[j].name
                raise UsageError(f"output {name} overlaps {other} in memory; give it an array of its own")


def check_type(spec: ArraySpec, role: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise UsageError for an array of another shape or dtype."""
    if shape != spec.shape or dtype != spec.numpy_dtype:
        got = f"{dtype}[{', '.join(map(str, shape))}]"
        raise UsageError(f"{role} {spec.name} must be {spec}, but got {got}")


def is_torch(value: object) -> bool:
    """Return whether the value is a tensor of torch or of a subclass; torch is never imported for that."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # None too while another thread imports it
    return tensor is not None and isinstance(value, tensor)


def is_lazy(value: Any) -> bool:
    """Return whether it is a torch tensor whose memory does not hold its elements: torch delays some negations, and has
    zeros without memory. By DLPack they would be shared as other numbers.
    """
    return is_torch(value) and bool(value.is_neg() or value._is_zerotensor())


def materialised(value: Any) -> Any:
    """Return `value`, or a copy of it whose memory holds its elements."""
    return value.clone() if is_lazy(value) else value


class _Held:
    """Memory that a DLPack capsule describes, held while NumPy has a view of it."""

    def __init__(self, capsule: object, interface: dict[str, object]) -> None:
        self.capsule, self.__array_interface__ = capsule, interface


def _foreign_array(value: Any) -> Array:
    """Return a view of a DLPack tensor, also of a type that NumPy lacks."""
    from autosched.runtime.gpu import dlpack

    capsule = value.__dlpack__()
    tensor = dlpack.read_capsule(capsule)
    if not is_foreign(tensor.dtype):
        return np.from_dlpack(value)
    size, data = tensor.dtype.itemsize, (tensor.address, tensor.read_only)
    strides, bits = None if tensor.strides is None else tuple(size * s for s in tensor.strides), f"<u{size}"
    held = _Held(capsule, {"shape": tensor.shape, "typestr": bits, "data": data, "strides": strides, "version": 3})
    return np.asarray(held).view(tensor.dtype)


def as_numpy(spec: ArraySpec, value: Any) -> Array:
    """Return `value` as a plain array of any layout: a view of a foreign array or of one of a subclass."""
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if is_torch(value):
        if is_lazy(value):
            raise UsageError(f"{spec.name} is a {kind} whose memory does not hold its elements; give its clone()")
        if not is_foreign(spec.numpy_dtype):
            with suppress(RuntimeError, TypeError):  # DLPack will say why
                array: Array = value.numpy()  # no copy, in a quarter of the time of DLPack
                return array
    if hasattr(value, "__dlpack__"):
        try:
            if hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) not in _HOST_DEVICES:
                raise UsageError(
                    f"{spec.name} is a {kind} in device memory, but the kernel runs on the CPU; "
                    f'give at.to_device({spec.name}, device="cpu")'
                )
            return _foreign_array(value) if is_foreign(spec.numpy_dtype) else np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"{spec.name} is a {kind} that cannot be shared through DLPack: {error}") from error
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    raise UsageError(f"{spec.name} must be an array of {spec}, but got a {kind}; convert it with np.asarray")


def are_equal(a: Array, b: Array) -> bool:
    """Return whether two arrays are equal bit by bit."""
    if a is b or (a.dtype, a.shape) != (b.dtype, b.shape):
        return a is b
    return a.flags.c_contiguous and b.flags.c_contiguous and np.array_equal(_bytes(a), _bytes(b))


def _bytes(a: Array) -> Array:
    as_bytes: Array = a.reshape(-1).view("uint8")
    return as_bytes

"""DLPack capsules in both directions, by ctypes alone.

A capsule has a pointer to a structure that describes a tensor and has its deleter (dlpack.h 1.0, "DLPack: Python
specification"). An exported capsule keeps its owner until the consumer calls the deleter. An imported one is read and
held, never consumed, so that dropping it releases the tensor.
"""

from __future__ import annotations

import atexit
import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from autosched.ir.dtype import DTYPES, is_foreign

CPU, CUDA, CUDA_HOST, OPENCL, CUDA_MANAGED = 1, 2, 3, 4, 13  # DLDeviceType
DEVICES = {CPU: "cpu", CUDA: "cuda", CUDA_HOST: "cpu", OPENCL: "opencl", CUDA_MANAGED: "cuda"}
LEGACY_STREAM = 1  # CUDA's default stream, by __dlpack__'s numbers and by the driver's
THREAD_STREAM = 2  # the default stream of the calling thread
NO_ORDER = -1  # the consumer's stream number that requests no synchronisation
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLDataTypeCode by NumPy's kind
_KINDS = {code: kind for kind, code in _CODES.items()}
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))
    name = b"dltensor"


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )
    name = b"dltensor_versioned"


# Prototypes of this module: those of `ctypes.pythonapi` are shared by the whole process. A capsule that is being
# destroyed is passed as a plain pointer, since its reference count must not change any more.
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("PyMem_RawMalloc", ctypes.pythonapi))
_deallocate = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyMem_RawFree", ctypes.pythonapi))

_exported: dict[int, tuple[type[_Managed] | type[_Versioned], object]] = {}  # capsules in use


@dataclass(frozen=True)
class DLTensor:
    """The tensor of a capsule. `address` of the first element; `strides` in elements, None if dense."""

    address: int
    device: int  # a DLDeviceType
    number: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None
    read_only: bool


def export(exported: DLTensor, owner: object, versioned: bool) -> Any:
    """Return a capsule for a dense tensor that keeps `owner` alive until the consumer releases it.

    The structure is in raw memory, with the shape and the strides behind it, since it may outlive the interpreter.
    """
    kind: type[_Managed] | type[_Versioned] = _Versioned if versioned else _Managed
    size, n = ctypes.sizeof(kind), len(exported.shape)
    pointer = _allocate(size + 2 * 8 * n)
    if not pointer:
        raise MemoryError("no memory for a DLPack structure")
    ctypes.memset(pointer, 0, size)
    managed = kind.from_address(pointer)
    sizes = (ctypes.c_int64 * n).from_address(pointer + size)
    strides = (ctypes.c_int64 * n).from_address(pointer + size + 8 * n)
    step = 1
    for axis in reversed(range(n)):
        sizes[axis], strides[axis] = exported.shape[axis], step
        step *= exported.shape[axis]
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id, tensor.ndim = (
        exported.address,
        exported.device,
        exported.number,
        n,
    )
    code = DTYPES[exported.dtype.name].dlpack_code if is_foreign(exported.dtype) else _CODES[exported.dtype.kind]
    tensor.code, tensor.bits, tensor.lanes = code, 8 * exported.dtype.itemsize, 1
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    if isinstance(managed, _Versioned):
        managed.major, managed.minor, managed.flags = 1, 0, _READ_ONLY if exported.read_only else 0
    managed.deleter = ctypes.cast(_DELETER, ctypes.c_void_p)
    _exported[pointer] = (kind, owner)
    return _new_capsule(pointer, kind.name, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))


def read_capsule(capsule: Any) -> DLTensor:
    """Return the tensor of `capsule`, valid as long as that is held. Raises ValueError for other objects and consumed
    capsules.
    """
    kind: type[_Managed] | type[_Versioned]
    for kind in (_Versioned, _Managed):
        if _is_valid(id(capsule), kind.name):
            managed = kind.from_address(_pointer(id(capsule), kind.name))
            if isinstance(managed, _Versioned) and managed.major > 1:
                raise ValueError(f"it is of DLPack {managed.major}.{managed.minor}, which is newer than 1")
            return _read(managed.tensor, isinstance(managed, _Versioned) and bool(managed.flags & _READ_ONLY))
    raise ValueError("it is no DLPack capsule, or one that was consumed already")


def _read(tensor: _Tensor, read_only: bool) -> DLTensor:
    foreign = next((x for x in DTYPES.values() if (x.dlpack_code, x.bits) == (tensor.code, tensor.bits)), None)
    if not (foreign or tensor.code in _KINDS) or tensor.lanes != 1 or tensor.bits % 8:
        kind = f"type {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise ValueError(f"its elements (in DLPack {kind}) are not known here")
    n = tensor.ndim
    return DLTensor(
        address=(tensor.data or 0) + tensor.byte_offset,
        device=tensor.device_type,
        number=tensor.device_id,
        shape=tuple(tensor.shape[:n]),
        dtype=foreign.numpy_dtype if foreign else np.dtype(f"{_KINDS[tensor.code]}{tensor.bits // 8}"),
        strides=tuple(tensor.strides[:n]) if tensor.strides else None,
        read_only=read_only,
    )


def _free_structure(pointer: int) -> None:
    if _exported.pop(pointer, None) is not None:
        _deallocate(pointer)


def _destroy(capsule: int) -> None:
    """Release a capsule that was not consumed: consumers rename theirs."""
    for name in (_Managed.name, _Versioned.name):
        if _is_valid(capsule, name):
            _free_structure(_pointer(capsule, name))


_DELETER, _DESTRUCTOR = _Deleter(_free_structure), _Deleter(_destroy)  # kept: C code has their addresses


@atexit.register
def _forget() -> None:
    """Remove the deleters of exported structures at exit: tensors of other libraries may die after the interpreter,
    when our function must not be called.
    """
    for pointer, (kind, _) in _exported.items():
        kind.from_address(pointer).deleter = None

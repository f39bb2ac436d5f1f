"""Gate: a compiled function that checks NumPy arrays and calls the kernel, the fast path of most calls.

The rules for arrays are in `runtime.tensors`. The gate accepts calls for which all rules hold at first sight: each
array is a plain `numpy.ndarray` of exactly the shape and the dtype object of the kernel, C-contiguous and aligned, an
output writeable and disjoint from the arrays before it. Else it returns REFUSED without side effects, and the caller
uses `runtime.tensors`, which converts arrays or raises an error with the reason.

The gate is a function of Python's C API, generated here, and takes 0.1 us. With ctypes it took 0.6 us, in Python 4 us,
and up to 10 us after a kernel that evicts the interpreter from the L1 cache. It reads the fields of array objects at
their offsets in NumPy's C API (PyArrayObject_fields: the same in NumPy 1 and 2, since every compiled extension relies
on them). A probe compares them with Python's attributes; if they differ, there is no gate. The kernel runs without
Python's global lock: the tuple holds the arrays.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from string import Template
from typing import Any, TypeAlias

import numpy as np

from autosched.runtime.jit import LoadedKernel, load_library
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import aligned_empty
from autosched.target import parse_target

Gate: TypeAlias = Callable[["tuple[object, ...]", int], int]  # (arrays, address of a workspace) -> the kernel's code

REFUSED = 1 << 32  # outside of a kernel's status, which has 32 bits
_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400  # NPY_ARRAY_*
_WARN_ON_WRITE = 1 << 31  # NumPy's flag of arrays that should not be written
_METH_FASTCALL = 0x80
_HEAD = object.__basicsize__  # bytes of an object's head: the last word is the type; a tuple's length follows


class _Argument(ctypes.Structure):
    """The requirements of one pointer of the kernel: an array, or none if `dtype` is null."""

    _fields_ = (
        ("dtype", ctypes.c_void_p),
        ("fixed", ctypes.c_void_p),  # the pointer if it is the same at every call
        ("rank", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_int64),
        ("flags", ctypes.c_uint32),  # flags that must be set; _WARN_ON_WRITE must be clear
        ("in_place", ctypes.c_int64),  # the pointer whose array it may alias; -1 if none
    )


class _Definition(ctypes.Structure):
    """PyMethodDef. `owner` has the function's code."""

    owner: Any
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


# Functions of Python's C API that the gate calls: name in the code -> Python's.
_API = {
    "as_pointer": "PyLong_AsVoidPtr",
    "as_integer": "PyLong_FromLongLong",
    "unlock": "PyEval_SaveThread",
    "lock": "PyEval_RestoreThread",
}


class _Plan(ctypes.Structure):
    """The gate's `self` is an array of these bytes."""

    definition: _Definition
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _API),
        ("kernel", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
        ("n_pointers", ctypes.c_int64),
        ("n_arrays", ctypes.c_int64),
        ("ndarray", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(_Argument)),
    )


class _Array(ctypes.Structure):
    """PyArrayObject_fields behind the head, as far as they matter."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("nd", ctypes.c_int32),
        ("dimensions", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("base", ctypes.c_void_p),
        ("descr", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
    )


# What the code below loads: name in the code -> (type, pointer, its offset in bytes).
_LOADS: dict[str, tuple[str, str, int]] = {
    "plan": ("ptr", "self", _HEAD + _Array.data.offset),
    "tuple": ("ptr", "given", 0),
    "workspace": ("ptr", "given", ctypes.sizeof(ctypes.c_void_p)),
    **{name: ("ptr", "plan", getattr(_Plan, name).offset) for name in _API},
    "kernel": ("ptr", "plan", _Plan.kernel.offset),
    "threads": ("i64", "plan", _Plan.threads.offset),
    "n_pointers": ("i64", "plan", _Plan.n_pointers.offset),
    "n_arrays": ("i64", "plan", _Plan.n_arrays.offset),
    "ndarray": ("ptr", "plan", _Plan.ndarray.offset),
    "arguments": ("ptr", "plan", _Plan.arguments.offset),
    "size": ("i64", "tuple", _HEAD),
    "dtype": ("ptr", "argument", _Argument.dtype.offset),
    "fixed": ("ptr", "argument", _Argument.fixed.offset),
    "rank": ("i64", "argument", _Argument.rank.offset),
    "shape": ("ptr", "argument", _Argument.shape.offset),
    "bytes": ("i64", "argument", _Argument.bytes.offset),
    "flags": ("i32", "argument", _Argument.flags.offset),
    "in_place": ("i64", "argument", _Argument.in_place.offset),
    "its_class": ("ptr", "array", _HEAD - ctypes.sizeof(ctypes.c_void_p)),
    "its_data": ("ptr", "array", _HEAD + _Array.data.offset),
    "its_rank": ("i32", "array", _HEAD + _Array.nd.offset),
    "its_shape": ("ptr", "array", _HEAD + _Array.dimensions.offset),
    "its_dtype": ("ptr", "array", _HEAD + _Array.descr.offset),
    "its_flags": ("i32", "array", _HEAD + _Array.flags.offset),
    "other_bytes": ("i64", "other", _Argument.bytes.offset),
}

_CODE = """
define ptr @autosched_gate(ptr %self, ptr %given, i64 %n_given) nounwind {
entry:
  $plan
  $tuple
  $workspace
  $as_pointer
  $as_integer
  $unlock
  $lock
  $kernel
  $threads
  $n_pointers
  $n_arrays
  $ndarray
  $arguments
  $size
  %items = getelementptr i8, ptr %tuple, i64 $items_at
  %pointers = alloca ptr, i64 %n_pointers, align 16
  %complete = icmp eq i64 %size, %n_arrays
  br i1 %complete, label %next, label %refuse

next: ; pointer i, which the k-th item of the tuple gives unless it is fixed
  %i = phi i64 [ 0, %entry ], [ %i1, %put ]
  %k = phi i64 [ 0, %entry ], [ %k1, %put ]
  %argument = getelementptr [$argument_bytes x i8], ptr %arguments, i64 %i
  $dtype
  $fixed
  %is.fixed = icmp eq ptr %dtype, null
  br i1 %is.fixed, label %put, label %class

class:
  %item = getelementptr ptr, ptr %items, i64 %k
  %array = load ptr, ptr %item
  $its_class
  %plain = icmp eq ptr %its_class, %ndarray
  br i1 %plain, label %form, label %refuse
form:
  $its_dtype
  $its_rank
  $its_flags
  $its_data
  $its_shape
  $rank
  $shape
  $bytes
  $flags
  $in_place
  %k.after = add i64 %k, 1
  %same.dtype = icmp eq ptr %its_dtype, %dtype
  %its.rank = sext i32 %its_rank to i64
  %same.rank = icmp eq i64 %its.rank, %rank
  %found = and i32 %its_flags, %flags
  %wanted = and i32 %flags, $settable
  %same.flags = icmp eq i32 %found, %wanted
  %same.type = and i1 %same.dtype, %same.rank
  %same = and i1 %same.type, %same.flags
  br i1 %same, label %extents, label %refuse
extents:
  %d = phi i64 [ 0, %form ], [ %d1, %extent ]
  %all = icmp eq i64 %d, %rank
  br i1 %all, label %role, label %extent
extent:
  %extent.at = getelementptr i64, ptr %shape, i64 %d
  %its.extent.at = getelementptr i64, ptr %its_shape, i64 %d
  %e = load i64, ptr %extent.at
  %its.e = load i64, ptr %its.extent.at
  %d1 = add i64 %d, 1
  %same.e = icmp eq i64 %e, %its.e
  br i1 %same.e, label %extents, label %refuse

role:
  %written = and i32 %flags, $writeable
  %is.input = icmp eq i32 %written, 0
  br i1 %is.input, label %put, label %apart
apart: ; argument j and this one share memory when each begins before the other ends
  %j = phi i64 [ 0, %role ], [ %j1, %compare ]
  %through = icmp eq i64 %j, %i
  br i1 %through, label %put, label %compare
compare:
  %other = getelementptr [$argument_bytes x i8], ptr %arguments, i64 %j
  $other_bytes
  %other.at = getelementptr ptr, ptr %pointers, i64 %j
  %start = load ptr, ptr %other.at
  %its.end = getelementptr i8, ptr %its_data, i64 %bytes
  %end = getelementptr i8, ptr %start, i64 %other_bytes
  %before = icmp ult ptr %start, %its.end
  %after = icmp ult ptr %its_data, %end
  %shared = and i1 %before, %after
  %may.be = icmp eq i64 %j, %in_place
  %is.same = icmp eq ptr %start, %its_data
  %in.place = and i1 %may.be, %is.same
  %overlap = select i1 %in.place, i1 false, i1 %shared
  %j1 = add i64 %j, 1
  br i1 %overlap, label %refuse, label %apart

put:
  %pointer = phi ptr [ %fixed, %next ], [ %its_data, %role ], [ %its_data, %apart ]
  %k1 = phi i64 [ %k, %next ], [ %k.after, %role ], [ %k.after, %apart ]
  %place = getelementptr ptr, ptr %pointers, i64 %i
  store ptr %pointer, ptr %place
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n_pointers
  br i1 %more, label %next, label %run
run:
  %address = call ptr %as_pointer(ptr %workspace)
  %state = call ptr %unlock()
  %status = call i32 %kernel(ptr %pointers, ptr %address, i64 %threads)
  call void %lock(ptr %state)
  %code = sext i32 %status to i64
  br label %say
refuse:
  br label %say
say:
  %says = phi i64 [ %code, %run ], [ $refused, %refuse ]
  %said = call ptr %as_integer(i64 %says)
  ret ptr %said
}
"""


def gate_of(
    loaded: LoadedKernel,
    specs: Sequence[ArraySpec],
    n_inputs: int,
    fixed: Sequence[int | None],
    in_place: Mapping[int, int],
) -> Gate | None:
    """Return the gate of a kernel; None if there is none. `loaded` and `specs` must live as long as the gate.

    `fixed`: for each pointer of the kernel its address if it is the same at every call, None if the next array gives
    it. `in_place`: from the number of an output to that of the input which it may alias; the inputs are the first
    pointers.
    """
    definition = _gate()
    if definition is None:
        return None
    needs = iter([_argument(spec, k >= n_inputs, in_place.get(k - n_inputs, -1)) for k, spec in enumerate(specs)])
    arguments = (_Argument * len(fixed))(*(next(needs) if at is None else _Argument(fixed=at) for at in fixed))
    api = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in _API.values())
    plan = _Plan(*api, loaded.address, loaded.threads, len(fixed), len(specs), id(np.ndarray), arguments)
    plan.definition = definition  # what is made here has a reference to the plan, by way of its `self`, and to no more
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    made: Gate = make(("PyCFunction_NewEx", ctypes.pythonapi))(
        ctypes.addressof(definition), np.frombuffer(memoryview(plan), np.uint8), None
    )
    return made


def _argument(spec: ArraySpec, is_output: bool, in_place: int) -> _Argument:
    flags = _C_CONTIGUOUS | _ALIGNED | (is_output and _WRITEABLE | _WARN_ON_WRITE)
    shape = (ctypes.c_int64 * len(spec.shape))(*spec.shape)
    return _Argument(id(spec.numpy_dtype), None, len(spec.shape), shape, spec.nbytes, flags, in_place)


def gate_module() -> str:
    """Return the module of IR, for the target "cpu", with the function (arrays, workspace)."""
    loads = {
        name: f"%{name}.at = getelementptr i8, ptr %{base}, i64 {offset}\n  %{name} = load {kind}, ptr %{name}.at"
        for name, (kind, base, offset) in _LOADS.items()
    }
    return Template(_CODE).substitute(
        loads,
        items_at=tuple.__basicsize__,
        argument_bytes=ctypes.sizeof(_Argument),
        settable=_WARN_ON_WRITE - 1,
        writeable=_WRITEABLE,
        refused=REFUSED,
    )


@lru_cache(maxsize=1)
def _gate() -> _Definition | None:
    """Return the definition of the function (arrays, workspace), compiled on first use; None if there is none."""
    if sys.implementation.name != "cpython" or not _is_as_expected():
        return None
    owner, addresses = load_library(gate_module(), parse_target("cpu"), ("autosched_gate",))
    definition = _Definition(b"autosched_gate", addresses["autosched_gate"], _METH_FASTCALL, None)
    definition.owner = owner
    return definition


def _is_as_expected() -> bool:
    """Return whether array objects and tuples have the layout that the gate assumes."""
    word = ctypes.c_void_p
    array = aligned_empty((2, 3), "float32")[:, 1:]
    fields = _Array.from_address(id(array) + _HEAD)
    items = (array, None)
    first = id(items) + tuple.__basicsize__
    return (
        word.from_address(id(array) + _HEAD - ctypes.sizeof(word)).value == id(np.ndarray)
        and (fields.data, fields.nd) == (array.ctypes.data, array.ndim)
        and tuple(fields.dimensions[: fields.nd]) == array.shape
        and tuple(fields.strides[: fields.nd]) == array.strides
        and (fields.descr, fields.flags) == (id(array.dtype), array.flags.num)
        and ctypes.c_ssize_t.from_address(id(items) + _HEAD).value == len(items)
        and [word.from_address(first + 8 * k).value for k in range(2)] == [id(item) for item in items]
    )

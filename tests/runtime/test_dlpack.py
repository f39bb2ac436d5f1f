"""DLPack capsules made and read by ctypes, against NumPy's on the host and against a consumer written here."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from autosched.runtime.gpu import dlpack
from tests.helpers import python

DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint16", "bool", "complex64")


class Shared:
    """A NumPy array that is handed out through our capsules."""

    def __init__(self, array: Any, device: int = dlpack.CPU, read_only: bool = False) -> None:
        self.array, self.device, self.read_only = array, device, read_only

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_: object) -> Any:
        a = self.array
        tensor = dlpack.DLTensor(a.ctypes.data, self.device, 0, a.shape, a.dtype, None, self.read_only)
        return dlpack.export(tensor, self, max_version is not None and max_version >= (1, 0))


class Consumer:
    """Takes a capsule as the specification says: renames it, later calls the deleter, once."""

    def __init__(self, capsule: Any, name: bytes = b"dltensor") -> None:
        api = ctypes.PyDLL(None)
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
        api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
        self.place = api.PyCapsule_GetPointer(capsule, name)
        self._used = b"used_" + name
        api.PyCapsule_SetName(capsule, self._used)
        # Offsets of DLManagedTensor and DLManagedTensorVersioned on 64-bit machines.
        self._deleter = 56 if name == b"dltensor" else 16

    def word(self, offset: int) -> int:
        return int(ctypes.c_uint64.from_address(self.place + offset).value)

    def give_back(self) -> None:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.word(self._deleter))(self.place)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 1, 5)])
def test_numpy_takes_our_capsules(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.int8).reshape(shape).astype(dtype)
    taken = np.from_dlpack(Shared(array))
    assert (taken.shape, taken.dtype) == (array.shape, array.dtype)
    assert taken.ctypes.data == array.ctypes.data
    np.testing.assert_array_equal(taken, array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_capsules_of_numpy_are_read(dtype: str) -> None:
    array = np.ones((4, 6), dtype)[1:, ::2]
    capsule = array.__dlpack__()
    found = dlpack.read_capsule(capsule)
    assert (found.address, found.device, found.number) == (array.ctypes.data, dlpack.CPU, 0)
    assert (found.shape, found.dtype, found.strides) == ((3, 3), np.dtype(dtype), (6, 2))
    assert dlpack.read_capsule(capsule) == found  # looking does not consume


@pytest.mark.parametrize(("version", "name"), [(None, b"dltensor"), ((1, 0), b"dltensor_versioned")])
def test_owner_lives_until_the_consumer_is_done(version: tuple[int, int] | None, name: bytes) -> None:
    shared = Shared(np.zeros((2, 3), np.float32), dlpack.CUDA, read_only=True)
    alive, before = weakref.ref(shared), len(dlpack._exported)
    capsule = shared.__dlpack__(max_version=version)
    consumer = Consumer(capsule, name)
    if version is not None:
        assert consumer.word(0) == 1  # version 1.0
        assert consumer.word(24) == 1  # read-only
    del shared, capsule
    gc.collect(1)
    assert alive() is not None
    consumer.give_back()
    gc.collect(1)
    assert alive() is None
    assert len(dlpack._exported) == before


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_capsule_that_nobody_takes_gives_its_owner_back(version: tuple[int, int] | None) -> None:
    shared = Shared(np.zeros(3))
    alive = weakref.ref(shared)
    capsule = shared.__dlpack__(max_version=version)
    del shared
    gc.collect(1)
    assert alive() is not None
    del capsule
    gc.collect(1)
    assert alive() is None


def test_consumed_capsules_and_other_things_are_refused() -> None:
    capsule = Shared(np.zeros(3)).__dlpack__()
    Consumer(capsule).give_back()
    for thing in (capsule, "text", None):
        with pytest.raises(ValueError, match="no DLPack capsule, or one that was consumed"):
            dlpack.read_capsule(thing)


def test_tensor_alive_at_the_end_of_the_process() -> None:
    """Its deleter must not be called when Python is gone: the structure says that there is none."""
    script = """
import atexit, ctypes, numpy as np
from tests.runtime.test_dlpack import Consumer, Shared
consumer = Consumer(Shared(np.zeros(3)).__dlpack__())
import autosched.runtime.gpu.dlpack as dlpack
atexit.unregister(dlpack._forget)
atexit.register(lambda: print(consumer.word(56)))
atexit.register(dlpack._forget)
assert consumer.word(56)
"""
    done = python("-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")

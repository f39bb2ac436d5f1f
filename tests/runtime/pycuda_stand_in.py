"""A stand-in for the package pycuda in host memory: the calls that the driver makes, with pycuda's own conditions.

Every call but those on devices needs a context on the stack of its thread, as in pycuda; `log` has the calls in order.
One kernel exists, `add`; `fail` names a call that ends with an error of the given words.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest


class Error(Exception):
    pass


class StandIn:
    """State of the stand-in, and the modules over it."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.fail: dict[str, str] = {}
        self.memory: dict[int, Any] = {}
        self.threads = threading.local()
        self.n_devices = 1
        self.now = 0.0

    @property
    def depth(self) -> int:
        return getattr(self.threads, "depth", 0)

    def call(self, name: str, *arguments: Any) -> None:
        assert self.depth > 0, f"{name} without a context on the stack of this thread"
        self.log.append((name, *arguments))
        if name in self.fail:
            raise Error(f"{name} failed: {self.fail[name]}")

    def modules(self) -> dict[str, Any]:
        package: Any = types.ModuleType("pycuda")
        package.driver = self._driver()
        return {"pycuda": package, "pycuda.driver": package.driver}

    def _context(self) -> Any:
        stand_in = self

        class Context:
            def push(self) -> None:
                stand_in.threads.depth = stand_in.depth + 1

            @staticmethod
            def pop() -> None:
                stand_in.threads.depth -= 1

            def detach(self) -> None:
                assert stand_in.depth == 0, "a context on the stack cannot be detached"
                stand_in.log.append(("detach",))

            @staticmethod
            def synchronize() -> None:
                stand_in.call("Context.synchronize")

        return Context

    def _driver(self) -> Any:
        d: Any = types.ModuleType("pycuda.driver")
        d.Error = Error
        d.init = lambda: None
        attributes = {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132}
        d.device_attribute = types.SimpleNamespace(**{name: name for name in attributes})
        d.function_attribute = types.SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
        d.event_flags = types.SimpleNamespace(DISABLE_TIMING=2)
        stand_in, Context = self, self._context()

        class Device:
            def __init__(self, number: int) -> None:
                assert number == 0

            count = staticmethod(lambda: stand_in.n_devices)

            def name(self) -> str:
                return "stand-in"

            def get_attribute(self, name: str) -> int:
                return attributes[name]

            def retain_primary_context(self) -> Any:
                stand_in.log.append(("retain_primary_context",))
                return Context()

        class Stream:
            handle = 0x20

            def __init__(self, flags: int = 0) -> None:
                stand_in.call("Stream", flags)

            def synchronize(self) -> None:
                stand_in.call("Stream.synchronize")

            def wait_for_event(self, event: Event) -> None:
                stand_in.call("wait_for_event", event.flags)

        class Event:
            def __init__(self, flags: int = 0) -> None:
                stand_in.call("Event", flags)
                self.flags, self.at = flags, 0.0

            def record(self, stream: Stream) -> None:
                stand_in.call("record")
                self.at = stand_in.now

            def synchronize(self) -> None:
                stand_in.call("Event.synchronize")

            def time_till(self, other: Event) -> float:
                return other.at - self.at

        d.Device, d.Context, d.Stream, d.Event = Device, Context, Stream, Event
        d.mem_get_info = lambda: (stand_in.call("mem_get_info"), (1 << 30, 1 << 31))[1]
        d.mem_alloc = self.allocate
        d.memcpy_htod_async = lambda to, array, stream: self.move(
            to, array.ctypes.data, array.nbytes, "memcpy_htod_async"
        )
        d.memcpy_dtoh_async = lambda array, at, stream: self.move(
            array.ctypes.data, at, array.nbytes, "memcpy_dtoh_async"
        )
        d.memcpy_dtod_async = lambda to, at, n, stream: self.move(to, at, n, "memcpy_dtod_async")
        d.memset_d8_async = lambda to, word, n, stream: self.fill(to, word, n, np.uint8)
        d.memset_d16_async = lambda to, word, n, stream: self.fill(to, word, n, np.uint16)
        d.module_from_buffer = self.module
        return d

    def allocate(self, nbytes: int) -> Any:
        self.call("mem_alloc", nbytes)
        stand_in, array = self, np.zeros(nbytes, np.uint8)
        address = array.ctypes.data
        self.memory[address] = array

        class Allocation:
            def __int__(self) -> int:
                return address

            def free(self) -> None:
                stand_in.call("free", nbytes)
                del stand_in.memory[address]

        return Allocation()

    def move(self, to: int, source: int, nbytes: int, name: str) -> None:
        self.call(name, nbytes)
        ctypes.memmove(to, source, nbytes)

    def fill(self, to: int, word: int, count: int, dtype: Any) -> None:
        self.call("memset", word, count, np.dtype(dtype).itemsize)
        self.view(to, count, dtype)[:] = word

    @staticmethod
    def view(address: int, count: int, dtype: Any) -> Any:
        nbytes = count * np.dtype(dtype).itemsize
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address)).view(dtype)

    def module(self, code: bytes) -> Any:
        self.call("module_from_buffer", code)
        stand_in = self

        class Function:
            def prepare(self, form: list[str]) -> None:
                stand_in.call("prepare", form)

            def set_attribute(self, attribute: int, value: int) -> None:
                stand_in.call("set_attribute", attribute, value)

            def prepared_async_call(
                self, grid: Any, block: Any, stream: Any, *addresses: int, shared_size: int = 0
            ) -> None:
                stand_in.call("launch", grid, block, stream.handle, shared_size)
                stand_in.now += 0.01
                n = int(np.prod(grid) * np.prod(block))
                a, b, c = (stand_in.view(address, n, np.float32) for address in addresses)
                c[:] = a + b

        def get_function(name: str) -> Function:
            stand_in.call("get_function", name)
            if name != "add":
                raise Error("cuModuleGetFunction failed: named symbol not found")
            return Function()

        return types.SimpleNamespace(get_function=get_function)


@contextmanager
def installed() -> Iterator[StandIn]:
    """With the stand-in in place of the package."""
    stand_in = StandIn()
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stand_in.modules().items():
            patch.setitem(sys.modules, name, module)
        yield stand_in

"""Driver by NVIDIA's own package cuda-bindings, the CUDA driver API in Python, or by what has its functions.

It uses the device's primary context, which torch, CuPy and the CUDA runtime share.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autosched.codegen.c.source import TensorMap
from autosched.errors import DeviceError
from autosched.runtime.gpu import cuda_driver, tensor_maps
from autosched.runtime.gpu.compile import DeviceCode
from autosched.runtime.gpu.device import Array, DeviceFault, DeviceMemory, LaunchSequence, Stream
from autosched.runtime.gpu.driver_api import EARLY_LAUNCH

if TYPE_CHECKING:
    from autosched.codegen.c.source import GpuSource, Triple
    from autosched.target import GpuFacts

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_GRAPH_LAUNCHES = 512  # kernels in one graph at most; more are launched as several graphs
_INSIDE = nullcontext()
NO_LIBRARY = (
    "there is no CUDA driver library (libcuda) on this machine: install NVIDIA's driver, or use "
    "`autosched tune --target cuda --no-run`, which needs none"
)


@dataclass(frozen=True)
class BoundLaunch:
    """One kernel with its arguments. `parameters` is the address of an array of pointers to them, kept by `keep`."""

    function: Any
    grid: Triple
    block: Triple
    shared_bytes: int
    parameters: int
    keep: tuple[Any, ...]
    is_early: bool


class GraphLaunch:
    """A CUDA graph of the launches of `call`, destroyed with the last reference to it."""

    def __init__(self, cu: Any, executable: Any, call: LaunchSequence) -> None:
        self.executable, self.call = executable, call
        weakref.finalize(self, cu.cuGraphExecDestroy, executable).atexit = False


class Kernels(dict[str, Any]):
    """Functions by name; the module is unloaded with the last reference to it."""

    __slots__ = ("__weakref__",)


class _Thread(threading.local):
    """Whether this thread is in the device's context, temporarily or permanently."""

    inside = stays = False


class _ContextVisit(AbstractContextManager[None]):
    """Enters the device's context temporarily; one object serves all threads, as their state is thread-local."""

    def __init__(self, push: Callable[[], None], pop: Callable[[], None]) -> None:
        self._push_context, self._pop_context = push, pop

    def __enter__(self) -> None:
        self._push_context()

    def __exit__(self, *_: object) -> None:
        self._pop_context()


class DriverEvent:
    """A CUDA event, destroyed with the last reference to it."""

    def __init__(self, cu: Any, handle: Any) -> None:
        self.handle = handle
        weakref.finalize(self, cu.cuEventDestroy, handle).atexit = False


class CudaCoreDevice(cuda_driver.AddressedDevice):
    """The first device that CUDA_VISIBLE_DEVICES leaves, in its primary context; DeviceError if there is none."""

    def __init__(self) -> None:
        cu = self._cu = self.start()
        self._device = self._ok("finding the device", cu.cuDeviceGet(0))
        self.name = _name(cu, self._device)
        try:
            self._context = self._ok("opening the device", cu.cuDevicePrimaryCtxRetain(self._device))
            self._thread, self._visit = _Thread(), _ContextVisit(self._push_context, self._pop_context)
            with self.visiting():
                self._stream = self._ok("making a stream", cu.cuStreamCreate(cuda_driver.NON_BLOCKING))
                self._events = tuple(self._ok("making an event", cu.cuEventCreate(0)) for _ in range(2))
        except DeviceFault as fault:
            raise DeviceError(f"{self.name} cannot be used: {fault}") from None
        self._has_early_launches = self.facts().has_early_launches and hasattr(cu, EARLY_LAUNCH)
        self._graph: tuple[tuple[LaunchSequence, ...], int, GraphLaunch] | None = None

    @staticmethod
    def start() -> Any:
        """Return the initialised driver API. Raises DeviceError that names what is missing."""
        return start()

    @property
    def stream(self) -> int:
        """The handle of the device's own stream."""
        return int(self._stream)

    def facts(self) -> GpuFacts:
        return _facts(self._cu, self._device, self.name)

    def memory(self) -> tuple[int, int]:
        self._enter()
        free, total = self._ok("asking for free memory", self._cu.cuMemGetInfo())
        return int(free), int(total)

    def allocate(self, nbytes: int) -> DeviceMemory:
        self._enter()
        address = self._ok(f"allocating {nbytes} bytes", self._cu.cuMemAlloc(max(nbytes, 1)))
        return DeviceMemory(int(address), nbytes)

    def free(self, memory: DeviceMemory) -> None:
        self._enter()
        self._ok("freeing memory", self._cu.cuMemFree(memory.handle))

    def upload(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None:
        if array.nbytes:
            self._enter()
            assert array.flags.c_contiguous
            to, address = memory.handle + offset, array.ctypes.data
            self._ok("an upload", self._cu.cuMemcpyHtoDAsync(to, address, array.nbytes, self._stream))
            self.synchronise()

    def download(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None:
        if array.nbytes:
            self._enter()
            assert array.flags.c_contiguous
            source, address = memory.handle + offset, array.ctypes.data
            self._ok("a download", self._cu.cuMemcpyDtoHAsync(address, source, array.nbytes, self._stream))
            self.synchronise()

    def copy(self, to: DeviceMemory, source: DeviceMemory) -> None:
        if source.nbytes:
            self._enter()
            self._ok("a copy", self._cu.cuMemcpyDtoDAsync(to.handle, source.handle, source.nbytes, self._stream))

    def fill(self, memory: DeviceMemory, pattern: bytes, offset: int, nbytes: int) -> None:
        if nbytes:
            self._enter()
            fill = self._cu.cuMemsetD8Async if len(pattern) == 1 else self._cu.cuMemsetD16Async
            word, n = int.from_bytes(pattern, "little"), nbytes // len(pattern)
            self._ok("filling a buffer", fill(memory.handle + offset, word, n, self._stream))

    def load(self, binary: DeviceCode, source: GpuSource) -> Mapping[str, Any]:
        cu = self._cu
        self._enter()
        try:
            module = self._ok(f"loading {source.name}", cu.cuModuleLoadData(binary.code))
            kernels = Kernels()
            weakref.finalize(kernels, _unload, cu, self._context, module).atexit = False
            for launch in source.launches:
                function = self._ok(f"finding {launch.kernel}", cu.cuModuleGetFunction(module, launch.kernel.encode()))
                shared = cuda_driver.dynamic_shared_bytes(source, launch)
                if shared:
                    attribute = cu.CUfunction_attribute(cuda_driver.MAX_DYNAMIC_SHARED_SIZE_BYTES)
                    self._ok(
                        f"giving {launch.kernel} shared memory", cu.cuFuncSetAttribute(function, attribute, shared)
                    )
                kernels[launch.kernel] = function
        except DeviceFault as fault:
            raise DeviceFault(fault.kind, f"{fault} (the driver is of CUDA {self._driver_version()})") from None
        return kernels

    def prepare(
        self, kernels: Mapping[str, Any], source: GpuSource, buffers: Mapping[str, DeviceMemory]
    ) -> LaunchSequence:
        bound = []
        for launch in source.launches:
            values = tuple(_value(argument, buffers) for argument in launch.arguments)
            pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            shared = cuda_driver.dynamic_shared_bytes(source, launch)
            keep, address = (values, pointers, kernels), ctypes.addressof(pointers)
            is_early = launch.is_early and self._has_early_launches
            function = kernels[launch.kernel]
            bound.append(BoundLaunch(function, launch.grid, launch.block, shared, address, keep, is_early))
        return LaunchSequence(tuple(bound))

    def run(self, call: LaunchSequence, stream: Stream = None) -> None:
        self._enter()
        queue = self._queue(stream)
        launch = self._cu.cuLaunchKernel
        for b in call.launches:
            if isinstance(b, GraphLaunch):
                self._ok("a launch", self._cu.cuGraphLaunch(b.executable, queue))
            elif b.is_early:
                config = self._early_launch_config(b, queue)
                self._ok("a launch", self._cu.cuLaunchKernelEx(config, b.function, b.parameters, 0))
            else:
                self._ok("a launch", launch(b.function, *b.grid, *b.block, b.shared_bytes, queue, b.parameters, 0))

    def _early_launch_config(self, b: BoundLaunch, queue: Any) -> Any:
        """Return the configuration of a launch that may start before the previous one has ended (programmatic dependent
        launch)."""
        attribute, config = self._cu.CUlaunchAttribute(), self._cu.CUlaunchConfig()
        attribute.id = self._cu.CUlaunchAttributeID(cuda_driver.PROGRAMMATIC_STREAM_SERIALIZATION)
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.gridDimX, config.gridDimY, config.gridDimZ = b.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = b.block
        config.sharedMemBytes, config.hStream = b.shared_bytes, queue
        config.attrs, config.numAttrs = [attribute], 1
        return config

    def record(self, stream: Stream = None, reused_event: DriverEvent | None = None) -> DriverEvent:
        self._enter()
        event = reused_event or DriverEvent(self._cu, self._ok("making an event", self._cu.cuEventCreate(_NO_TIMING)))
        self._ok("recording an event", self._cu.cuEventRecord(event.handle, self._queue(stream)))
        return event

    def wait(self, event: DriverEvent, stream: Stream = None) -> None:
        self._enter()
        self._ok("waiting for an event", self._cu.cuStreamWaitEvent(self._queue(stream), event.handle, 0))

    def time(self, calls: Sequence[LaunchSequence], repeats: int) -> float:
        """Time CUDA graphs of all launches between two events, so that the host's part (5 us and more a launch) does
        not show.

        A graph holds at least `repeats` calls, or as many as _GRAPH_LAUNCHES allow.
        """
        cu = self._cu
        self._enter()
        max_calls = max(1, _GRAPH_LAUNCHES // max(1, len(calls[0].launches)))
        n_graphs = -(-repeats // max_calls)
        calls_per_graph = -(-repeats // n_graphs)
        graph = self._graph_of(tuple(calls), calls_per_graph)
        start, end = self._events
        self._ok("recording an event", cu.cuEventRecord(start, self._stream))
        for _ in range(n_graphs):
            self._ok("a launch", cu.cuGraphLaunch(graph.executable, self._stream))
        self._ok("recording an event", cu.cuEventRecord(end, self._stream))
        self._ok("the kernel", cu.cuEventSynchronize(end))
        milliseconds = self._ok("reading the time", cu.cuEventElapsedTime(start, end))
        return float(milliseconds) * 1e-3 * repeats / (n_graphs * calls_per_graph)

    def synchronise(self) -> None:
        self._enter()
        self._ok("the kernel", self._cu.cuStreamSynchronize(self._stream))

    def close(self) -> None:
        self._graph = None
        for event in self._events:
            self._cu.cuEventDestroy(event)
        self._cu.cuStreamDestroy(self._stream)
        self._cu.cuDevicePrimaryCtxRelease(self._device)

    def _queue(self, stream: Stream) -> Any:
        return self._stream if stream is None else self._cu.CUstream(stream)

    def _graph_of(self, calls: tuple[LaunchSequence, ...], n: int) -> GraphLaunch:
        """Return a graph of `n` calls; the last one is cached."""
        if self._graph is not None:
            cached_calls, size, graph = self._graph
            if (
                size == n
                and len(cached_calls) == len(calls)
                and all(a is b for a, b in zip(cached_calls, calls, strict=True))
            ):
                return graph
        launches = (launch for i in range(n) for launch in calls[i % len(calls)].launches)
        new_graph = self._capture_graph(LaunchSequence(tuple(launches)))
        self._graph = (calls, n, new_graph)
        return new_graph

    def capture(self, call: LaunchSequence) -> LaunchSequence:
        self._enter()
        return LaunchSequence((self._capture_graph(call),))

    def _capture_graph(self, call: LaunchSequence) -> GraphLaunch:
        """Return the launches as one executable graph, uploaded to the device. They are captured on a separate stream:
        other threads may queue work on the device's.
        """
        cu = self._cu
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        stream = self._ok("making a stream", cu.cuStreamCreate(cuda_driver.NON_BLOCKING))
        try:
            self._ok("capturing", cu.cuStreamBeginCapture(stream, mode))
            try:
                self.run(call, int(stream))
            except DeviceFault:
                cu.cuStreamEndCapture(stream)  # returns the same fault
                raise
            graph = self._ok("capturing", cu.cuStreamEndCapture(stream))
        finally:
            cu.cuStreamDestroy(stream)
        try:
            executable = self._ok("making a graph", cu.cuGraphInstantiate(graph, 0))
        finally:
            cu.cuGraphDestroy(graph)
        launch = GraphLaunch(cu, executable, call)
        self._ok("sending a graph", cu.cuGraphUpload(executable, self._stream))
        return launch

    def _driver_version(self) -> str:
        status, version = self._cu.cuDriverGetVersion()
        return f"{version // 1000}.{version % 1000 // 10}" if int(status) == 0 else "an unknown release"

    def visiting(self) -> AbstractContextManager[None]:
        return _INSIDE if self._thread.inside else self._visit

    def _push_context(self) -> None:
        self._ok("entering the context", self._cu.cuCtxPushCurrent(self._context))
        self._thread.inside = True

    def _pop_context(self) -> None:
        self._thread.inside = False
        self._cu.cuCtxPopCurrent()

    def _enter(self) -> None:
        """Make the context that of this thread permanently."""
        if not (self._thread.inside or self._thread.stays):
            self._ok("entering the context", self._cu.cuCtxSetCurrent(self._context))
            self._thread.stays = True

    def _ok(self, operation: str, result: tuple[Any, ...]) -> Any:
        """Return the values of a successful call. Raises DeviceFault for a status other than success."""
        status, *values = result
        if int(status) != 0:
            kind = cuda_driver.FAULT_OF_CODE.get(int(status), "launch_failure")
            raise DeviceFault(kind, f"{operation} failed: {error_text(self._cu, status)}")
        return values[0] if len(values) == 1 else tuple(values) or None


def _value(argument: str | TensorMap, buffers: Mapping[str, DeviceMemory]) -> ctypes.c_uint64 | tensor_maps.EncodedMap:
    """Return a kernel's argument: an address or an encoded tensor map."""
    if isinstance(argument, TensorMap):
        return tensor_maps.encode(argument, buffers[argument.buffer].handle)
    return ctypes.c_uint64(buffers[argument].handle)


def read_facts() -> GpuFacts:
    """Return the properties of the first device, without a context on it. Raises DeviceError."""
    return facts_by(start())


def facts_by(cu: Any) -> GpuFacts:
    """Return the properties of the first device, by an initialised driver API."""
    _, device = cu.cuDeviceGet(0)
    return _facts(cu, device, _name(cu, device))


def _name(cu: Any, device: Any) -> str:
    status, name = cu.cuDeviceGetName(256, device)
    return str(name.split(b"\0")[0].decode()) if int(status) == 0 else "a CUDA device"


def _facts(cu: Any, device: Any, name: str) -> GpuFacts:
    def attribute(name_of_attribute: str) -> int:
        number = cu.CUdevice_attribute(cuda_driver.ATTRIBUTES[name_of_attribute])
        status, value = cu.cuDeviceGetAttribute(number, device)
        return int(value) if int(status) == 0 else 0

    return cuda_driver.facts_of(name, attribute)


def _unload(cu: Any, context: Any, module: Any) -> None:
    if int(cu.cuCtxPushCurrent(context)[0]) == 0:
        cu.cuModuleUnload(module)
        cu.cuCtxPopCurrent()


def error_text(cu: Any, status: Any) -> str:
    """'CUDA_ERROR_OUT_OF_MEMORY (out of memory)'."""
    name, text = cu.cuGetErrorName(status)[1], cu.cuGetErrorString(status)[1]
    if not name or not text:
        return f"status {int(status)}"
    return f"{name.decode()} ({text.decode()})"


def start() -> Any:
    """Return the initialised module of the driver API. Raises DeviceError that names what is missing."""
    try:
        from cuda.bindings import driver as cu
    except ImportError:
        raise DeviceError('CUDA needs the package cuda-bindings: pip install "autosched[cuda]"') from None
    return checked(cu)


def checked(cu: Any) -> Any:
    """Initialise a driver API and return it. Raises DeviceError that names what is missing."""
    try:
        (status,) = cu.cuInit(0)
    except Exception:  # each release has its own exception for a library that is not there
        raise DeviceError(NO_LIBRARY) from None
    if int(status) == cuda_driver.NO_DEVICE:
        raise DeviceError("CUDA finds no NVIDIA GPU on this machine; CUDA_VISIBLE_DEVICES may hide it")
    if int(status) != 0:
        raise DeviceError(f"CUDA does not start on this machine: {error_text(cu, status)}")
    count = cu.cuDeviceGetCount()
    if int(count[0]) != 0 or count[1] == 0:
        raise DeviceError("CUDA finds no NVIDIA GPU on this machine; CUDA_VISIBLE_DEVICES may hide it")
    return cu

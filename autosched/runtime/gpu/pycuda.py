"""Driver by pycuda, for installations that have it.

pycuda launches on its own streams only, so a call on a caller's stream waits for the device before and after. It has no
graphs: timed launches include the host's part if the kernel is shorter than that. It keeps a stack of contexts for each
thread and aborts the process when a thread ends with one on it, so the context is pushed for the length of a call only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autosched.codegen.c.source import TensorMap
from autosched.errors import DeviceError
from autosched.runtime.gpu import cuda_driver, tensor_maps
from autosched.runtime.gpu.compile import DeviceCode
from autosched.runtime.gpu.device import Array, DeviceFault, DeviceMemory, LaunchSequence, Stream, raw

if TYPE_CHECKING:
    from autosched.codegen.c.source import GpuSource, Triple
    from autosched.target import GpuFacts


@dataclass(frozen=True)
class BoundLaunch:
    """One prepared function with its arguments: addresses, and the bytes of tensor maps."""

    function: Any
    grid: Triple
    block: Triple
    shared_bytes: int
    values: tuple[int | bytes, ...]


class PyCudaDevice(cuda_driver.AddressedDevice):
    """The first device that CUDA_VISIBLE_DEVICES leaves, in its primary context; DeviceError if there is none."""

    def __init__(self) -> None:
        drv = self._drv = _start()
        self._device = drv.Device(0)
        self.name = str(self._device.name())
        self._allocations: dict[int, Any] = {}  # pycuda frees what is no longer referred to
        try:
            self._context = self._device.retain_primary_context()
            with self._faults("opening the device"):
                self._stream = drv.Stream(cuda_driver.NON_BLOCKING)
                self._events: tuple[Any, ...] = (drv.Event(), drv.Event())
        except (drv.Error, DeviceFault) as error:
            raise DeviceError(f"{self.name} cannot be used: {error}") from None

    @property
    def stream(self) -> int:
        """The handle of the device's own stream."""
        return int(self._stream.handle)

    def facts(self) -> GpuFacts:
        return _facts(self._drv, self._device)

    def visiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def memory(self) -> tuple[int, int]:
        with self._faults("asking for free memory"):
            free, total = self._drv.mem_get_info()
            return int(free), int(total)

    def allocate(self, nbytes: int) -> DeviceMemory:
        with self._faults(f"allocating {nbytes} bytes"):
            allocation = self._drv.mem_alloc(max(nbytes, 1))
        self._allocations[int(allocation)] = allocation
        return DeviceMemory(int(allocation), nbytes)

    def free(self, memory: DeviceMemory) -> None:
        with self._faults("freeing memory"):
            self._allocations.pop(memory.handle).free()

    def upload(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None:
        if array.nbytes:
            with self._faults("an upload"):
                self._drv.memcpy_htod_async(memory.handle + offset, raw(array), self._stream)
                self._stream.synchronize()

    def download(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None:
        if array.nbytes:
            with self._faults("a download"):
                self._drv.memcpy_dtoh_async(raw(array), memory.handle + offset, self._stream)
                self._stream.synchronize()

    def copy(self, to: DeviceMemory, source: DeviceMemory) -> None:
        if source.nbytes:
            with self._faults("a copy"):
                self._drv.memcpy_dtod_async(to.handle, source.handle, source.nbytes, self._stream)

    def fill(self, memory: DeviceMemory, pattern: bytes, offset: int, nbytes: int) -> None:
        if nbytes:
            with self._faults("filling a buffer"):
                fill = self._drv.memset_d8_async if len(pattern) == 1 else self._drv.memset_d16_async
                word, n = int.from_bytes(pattern, "little"), nbytes // len(pattern)
                fill(memory.handle + offset, word, n, self._stream)

    def load(self, binary: DeviceCode, source: GpuSource) -> Mapping[str, Any]:
        drv = self._drv
        kernels: dict[str, Any] = {}
        with self._faults(f"loading {source.name}"):
            module = drv.module_from_buffer(binary.code)
            for launch in source.launches:
                function = module.get_function(launch.kernel)
                function.prepare(_struct_format(launch.arguments))
                shared = cuda_driver.dynamic_shared_bytes(source, launch)
                if shared:
                    function.set_attribute(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
                kernels[launch.kernel] = function
        return kernels

    def prepare(
        self, kernels: Mapping[str, Any], source: GpuSource, buffers: Mapping[str, DeviceMemory]
    ) -> LaunchSequence:
        bound = []
        for launch in source.launches:
            values = tuple(_value(argument, buffers) for argument in launch.arguments)
            shared = cuda_driver.dynamic_shared_bytes(source, launch)
            bound.append(BoundLaunch(kernels[launch.kernel], launch.grid, launch.block, shared, values))
        return LaunchSequence(tuple(bound))

    def run(self, call: LaunchSequence, stream: Stream = None) -> None:
        with self._faults("a launch"):
            if stream is not None:
                self._drv.Context.synchronize()
            self._launch(call)
            if stream is not None:
                self._stream.synchronize()

    def capture(self, call: LaunchSequence) -> LaunchSequence:
        return call

    def record(self, stream: Stream = None, reused_event: Any = None) -> Any:
        """Return an event; for a caller's stream wait for its work and return None."""
        with self._faults("recording an event"):
            if stream is not None:
                self._drv.Context.synchronize()
                return None
            event = reused_event or self._drv.Event(self._drv.event_flags.DISABLE_TIMING)
            event.record(self._stream)
            return event

    def wait(self, event: Any, stream: Stream = None) -> None:
        if event is None:
            return
        with self._faults("waiting for an event"):
            if stream is None:
                self._stream.wait_for_event(event)
            else:
                event.synchronize()

    def time(self, calls: Sequence[LaunchSequence], repeats: int) -> float:
        """Return the seconds between two events around the launches."""
        start, end = self._events
        with self._faults("a launch"):
            start.record(self._stream)
            for n in range(repeats):
                self._launch(calls[n % len(calls)])
            end.record(self._stream)
            end.synchronize()
            return float(start.time_till(end)) * 1e-3

    def synchronise(self) -> None:
        with self._faults("the kernel"):
            self._stream.synchronize()

    def close(self) -> None:
        with self._faults("closing the device"):
            self._allocations.clear()
            self._events, self._stream = (), None
        self._context.detach()  # when it is destroyed undetached, pycuda takes it for one of its own making

    def _launch(self, call: LaunchSequence) -> None:
        for b in call.launches:
            b.function.prepared_async_call(b.grid, b.block, self._stream, *b.values, shared_size=b.shared_bytes)

    @contextmanager
    def _faults(self, operation: str) -> Iterator[None]:
        """Make the context current inside. Turn pycuda's errors into DeviceFault by their text, which is the
        driver's."""
        try:
            self._context.push()
            try:
                yield
            finally:
                self._context.pop()
        except self._drv.Error as error:
            raise DeviceFault(cuda_driver.fault_of_text(str(error)), f"{operation} failed: {error}") from None


def _struct_format(arguments: Sequence[str | TensorMap]) -> list[str]:
    """Return the layout of arguments as format of Python's `struct`, with padding before tensor maps."""
    fields, end = list[str](), 0
    for argument in arguments:
        is_map = isinstance(argument, TensorMap)
        nbytes, alignment = (tensor_maps.NBYTES, tensor_maps.ALIGNMENT) if is_map else (8, 8)
        if gap := -end % alignment:
            fields.append(f"{gap}x")
        fields.append(f"{nbytes}s" if is_map else "P")
        end += gap + nbytes
    return fields


def _value(argument: str | TensorMap, buffers: Mapping[str, DeviceMemory]) -> int | bytes:
    if isinstance(argument, TensorMap):
        return bytes(tensor_maps.encode(argument, buffers[argument.buffer].handle))
    return int(buffers[argument].handle)


def read_facts() -> GpuFacts:
    """Return the properties of the first device, without a context on it. Raises DeviceError."""
    drv = _start()
    return _facts(drv, drv.Device(0))


def _facts(drv: Any, device: Any) -> GpuFacts:
    def attribute(name: str) -> int:
        number = getattr(drv.device_attribute, name, None)
        if number is None:  # of a CUDA release newer than pycuda
            return 0
        try:
            return int(device.get_attribute(number))
        except drv.Error:
            return 0

    return cuda_driver.facts_of(str(device.name()), attribute)


def _start() -> Any:
    """Return pycuda's initialised driver module. Raises DeviceError that names what is missing."""
    try:
        import pycuda.driver as drv
    except ImportError as error:
        if "pycuda" in str(error) and "libcuda" not in str(error):
            raise DeviceError('CUDA needs a package: pip install "autosched[cuda]"') from None
        raise DeviceError(
            f"pycuda cannot load the CUDA driver library ({error}): install NVIDIA's driver, or use "
            "`autosched tune --target cuda --no-run`, which needs none"
        ) from None
    try:
        drv.init()
        count = int(drv.Device.count())
    except drv.Error as error:
        if "no CUDA-capable device" not in str(error):
            raise DeviceError(f"CUDA does not start on this machine: {error}") from None
        count = 0
    if not count:
        raise DeviceError("CUDA finds no NVIDIA GPU on this machine; CUDA_VISIBLE_DEVICES may hide it")
    return drv

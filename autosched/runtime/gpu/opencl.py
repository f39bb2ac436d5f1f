"""Driver by pyopencl: any platform with OpenCL 1.2 or later, including PoCL on a processor."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autosched.errors import DeviceError
from autosched.runtime.gpu.compile import CompileError, DeviceCode
from autosched.runtime.gpu.device import Array, DeviceFault, DeviceMemory, LaunchSequence, Stream, raw

if TYPE_CHECKING:
    from autosched.codegen.c.source import GpuSource, Triple
    from autosched.target import GpuFacts

# From OpenCL status (cl.h) to fault class. Other statuses are launch failures.
_FAULTS = {
    -2: "device_lost",  # DEVICE_NOT_AVAILABLE
    -4: "out_of_memory",  # MEM_OBJECT_ALLOCATION_FAILURE
    -6: "out_of_memory",  # OUT_OF_HOST_MEMORY
    -11: "build_error",  # BUILD_PROGRAM_FAILURE
    -42: "build_error",  # INVALID_BINARY
    -46: "build_error",  # INVALID_KERNEL_NAME
    -52: "launch_refused",  # INVALID_KERNEL_ARGS
    -53: "launch_refused",  # INVALID_WORK_DIMENSION
    -54: "launch_refused",  # INVALID_WORK_GROUP_SIZE
    -55: "launch_refused",  # INVALID_WORK_ITEM_SIZE
    -61: "out_of_memory",  # INVALID_BUFFER_SIZE: larger than the device allows
    -63: "launch_refused",  # INVALID_GLOBAL_WORK_SIZE
}
_OUT_OF_RESOURCES = -5  # at a launch: resources exceeded; later: the device's memory, or a fault of the kernel
_MAX_GRID = (1 << 31) - 1
_GPU_BANDWIDTH, _CPU_BANDWIDTH = 300e9, 20e9  # assumed bytes a second, as OpenCL does not report them
# Environment of pyopencl and PoCL, unless the user has set it. PoCL 3.1's own choice, "loopvec", keeps arrays of
# work items on its stack at addresses that its vector code takes for aligned, and dies of them.
ENVIRONMENT = {"PYOPENCL_NO_CACHE": "1", "POCL_WORK_GROUP_METHOD": "loops"}
# Platforms that compile a kernel for its work-group size at the first launch. For a binary they would compile it once
# more, for any work-group size, in vain, so their source text serves as the binary.
_LATE_COMPILING = frozenset({"Portable Computing Language"})
_DOUBLE = re.compile(r"\bdouble\d*\b")
_USABLE_SHARE = 0.9  # share of the device's memory that buffers may take


class SharedKernel:
    """A kernel object and the launch whose arguments are set: creating an object for each launch takes long, 0.6 ms on
    PoCL. Queued launches keep their own arguments.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._bound: BoundLaunch | None = None
        self._lock = threading.Lock()

    def launch(self, cl: Any, queue: Any, bound: BoundLaunch) -> Any:
        """Queue a launch and return its event."""
        with self._lock:
            if self._bound is not bound:
                self.kernel.set_args(*bound.arguments)
                self._bound = bound
            return cl.enqueue_nd_range_kernel(queue, self.kernel, bound.threads, bound.block)


@dataclass(frozen=True)
class BoundLaunch:
    """One kernel with its arguments."""

    kernel: SharedKernel
    arguments: tuple[Any, ...]
    threads: Triple
    block: Triple


class OpenClDevice:
    """The chosen device of the first platform that has one: a GPU before an accelerator before a processor."""

    kind = "opencl"

    def __init__(self) -> None:
        cl = self._cl = _pyopencl()
        self._device = choose_device(cl)
        self.name = str(self._device.name).strip()
        self._compiles_late = str(self._device.platform.name).strip() in _LATE_COMPILING
        self.alignment = max(256, int(self._device.mem_base_addr_align) // 8)
        self._allocated = 0
        with _faults("opening the device"):
            self._context = cl.Context([self._device])
            profiled = cl.command_queue_properties.PROFILING_ENABLE
            self._queue = cl.CommandQueue(self._context, properties=profiled)

    @property
    def identity(self) -> str:
        """The identity of the compiler: platform, device and driver."""
        platform = self._device.platform
        method = os.environ.get("POCL_WORK_GROUP_METHOD", "")
        form = "text" if self._compiles_late else "binary"
        return f"opencl {platform.name} {platform.version} {self.name} {self._device.driver_version} {method} {form}"

    def _has_doubles(self) -> bool:
        return bool(self._device.double_fp_config)

    @property
    def stream(self) -> Any:
        return self._queue

    def facts(self) -> GpuFacts:
        return _facts(self._cl, self._device)

    def visiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def memory(self) -> tuple[int, int]:
        total = int(_USABLE_SHARE * self._device.global_mem_size)
        return max(total - self._allocated, 0), total

    def allocate(self, nbytes: int) -> DeviceMemory:
        with _faults(f"allocating {nbytes} bytes"):
            buffer = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, max(nbytes, 1))
        self._allocated += nbytes
        return DeviceMemory(buffer, nbytes)

    def free(self, memory: DeviceMemory) -> None:
        memory.handle.release()
        self._allocated -= memory.nbytes

    def view(self, memory: DeviceMemory, offset: int, nbytes: int) -> DeviceMemory:
        with _faults("dividing a buffer"):
            return DeviceMemory(memory.handle.get_sub_region(offset, max(nbytes, 1)), nbytes)

    def adopt(self, address: int, nbytes: int) -> DeviceMemory:
        raise NotImplementedError("OpenCL's buffers have no addresses")

    def address(self, memory: DeviceMemory) -> int:
        raise NotImplementedError("OpenCL's buffers have no addresses")

    def upload(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None:
        if array.nbytes:
            with _faults("an upload"):
                self._cl.enqueue_copy(self._queue, memory.handle, raw(array), dst_offset=offset, is_blocking=True)

    def download(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None:
        if array.nbytes:
            with _faults("a download"):
                self._cl.enqueue_copy(self._queue, raw(array), memory.handle, src_offset=offset, is_blocking=True)

    def copy(self, to: DeviceMemory, source: DeviceMemory) -> None:
        if source.nbytes:
            with _faults("a copy"):
                self._cl.enqueue_copy(self._queue, to.handle, source.handle, byte_count=source.nbytes)

    def fill(self, memory: DeviceMemory, pattern: bytes, offset: int, nbytes: int) -> None:
        if nbytes:
            with _faults("filling a buffer"):
                word = np.frombuffer(pattern, np.uint8)
                self._cl.enqueue_fill_buffer(self._queue, memory.handle, word, offset, nbytes)

    def compile(self, source: GpuSource) -> DeviceCode:
        """Compile `source`, without resources, which OpenCL does not report. Raises DeviceError for a kernel in float64
        if the device lacks that type.
        """
        cl = self._cl
        if _DOUBLE.search(source.text) and not self._has_doubles():
            raise DeviceError(
                f"{self.name} has no float64, in which {source.name} computes: use another type, or another device"
            )
        try:
            program = cl.Program(self._context, source.text).build()
            if self._compiles_late:
                return DeviceCode(source.text.encode())
            return DeviceCode(bytes(program.get_info(cl.program_info.BINARIES)[0]))
        except cl.Error as error:
            raise CompileError(" ".join(str(error).split())[:2000]) from None

    def load(self, binary: DeviceCode, source: GpuSource) -> Mapping[str, Any]:
        cl = self._cl
        with _faults(f"loading {source.name}"):
            if self._compiles_late:
                program = cl.Program(self._context, binary.code.decode())
            else:
                program = cl.Program(self._context, [self._device], [binary.code])
            program.build()
            return {launch.kernel: SharedKernel(cl.Kernel(program, launch.kernel)) for launch in source.launches}

    def prepare(
        self, kernels: Mapping[str, Any], source: GpuSource, buffers: Mapping[str, DeviceMemory]
    ) -> LaunchSequence:
        bound = []
        with _faults(f"preparing {source.name}"):
            for launch in source.launches:
                arguments = tuple(buffers[name].handle for name in launch.buffers)
                (gx, gy, gz), (bx, by, bz) = launch.grid, launch.block
                threads = (gx * bx, gy * by, gz * bz)
                bound.append(BoundLaunch(kernels[launch.kernel], arguments, threads, launch.block))
        return LaunchSequence(tuple(bound))

    def run(self, call: LaunchSequence, stream: Stream = None) -> None:
        queue = self._queue if stream is None else stream
        with _faults("a launch", launching=True):
            for bound in call.launches:
                bound.kernel.launch(self._cl, queue, bound)

    def capture(self, call: LaunchSequence) -> LaunchSequence:
        return call

    def record(self, stream: Stream = None, reused_event: Any = None) -> Any:
        queue = self._queue if stream is None else stream
        with _faults("recording an event"):
            event = self._cl.enqueue_marker(queue)
            queue.flush()  # or a queue that waits for the event might wait for ever
            return event

    def wait(self, event: Any, stream: Stream = None) -> None:
        with _faults("waiting for an event"):
            self._cl.enqueue_barrier(self._queue if stream is None else stream, wait_for=[event])

    def time(self, calls: Sequence[LaunchSequence], repeats: int) -> float:
        """Return the sum of the kernels' own times, without the host's part between launches."""
        cl, queue = self._cl, self._queue
        with _faults("a launch", launching=True):
            events = [
                bound.kernel.launch(cl, queue, bound)
                for n in range(repeats)
                for bound in calls[n % len(calls)].launches
            ]
        with _faults("the kernel"):
            queue.finish()
            return float(sum(event.profile.end - event.profile.start for event in events)) * 1e-9

    def synchronise(self) -> None:
        with _faults("the kernel"):
            self._queue.finish()

    def close(self) -> None:
        self._queue.finish()


def _pyopencl() -> Any:
    """Return the package, with its own caches disabled. Raises DeviceError."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import pyopencl
    except ImportError:
        raise DeviceError('OpenCL needs the package pyopencl: pip install "autosched[opencl]"') from None
    return pyopencl


def read_facts() -> GpuFacts:
    """Return the properties of the device that would be opened. Raises DeviceError."""
    cl = _pyopencl()
    return _facts(cl, choose_device(cl))


def _facts(cl: Any, device: Any) -> GpuFacts:
    from autosched.target import GpuFacts

    on_processor = bool(device.type & cl.device_type.CPU)
    local, threads = int(device.local_mem_size), int(device.max_work_group_size)
    return GpuFacts(
        name=str(device.name).strip(),
        arch="",
        multiprocessors=int(device.max_compute_units),
        warp=8 if on_processor else 32,
        max_threads_per_block=min(threads, int(min(device.max_work_item_sizes[:2]))),
        max_threads_per_multiprocessor=max(threads, 2048),
        registers_per_multiprocessor=1 << 16,
        max_registers_per_thread=255,
        shared_per_block=local,
        shared_per_multiprocessor=local,
        l2_bytes=int(device.global_mem_cache_size),
        clock_ghz=max(int(device.max_clock_frequency), 1) / 1000,
        fma_per_cycle_per_multiprocessor=16 if on_processor else 128,
        bandwidth_bytes_s=_CPU_BANDWIDTH if on_processor else _GPU_BANDWIDTH,
        max_grid=(_MAX_GRID, _MAX_GRID, _MAX_GRID),
    )


def choose_device(cl: Any) -> Any:
    """Return the first GPU of any platform, else the first accelerator, else the first processor. Raises
    DeviceError.
    """
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # the loader found none
        platforms = []
    if not platforms:
        raise DeviceError("OpenCL has no platform on this machine: install the GPU's driver, or PoCL for the processor")
    for kind in (cl.device_type.GPU, cl.device_type.ACCELERATOR, cl.device_type.CPU):
        for platform in platforms:
            try:
                devices = platform.get_devices(kind)
            except cl.Error:  # DEVICE_NOT_FOUND
                continue
            if devices:
                return devices[0]
    raise DeviceError("the OpenCL platforms of this machine have no device")


@contextmanager
def _faults(operation: str, launching: bool = False) -> Iterator[None]:
    """Turn pyopencl's errors into DeviceFault."""
    import pyopencl as cl

    try:
        yield
    except cl.Error as error:
        code = int(getattr(error, "code", 0))
        kind = _FAULTS.get(code, "launch_failure")
        if code == _OUT_OF_RESOURCES and launching:
            kind = "launch_refused"
        raise DeviceFault(kind, f"{operation} failed: {' '.join(str(error).split())[:500]}") from None

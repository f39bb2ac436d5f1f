"""Common parts of the CUDA drivers: fault classes of CUDA errors, and a device's properties from its attributes.

Numbers and names are those of `cuda.h` (CUresult, CUdevice_attribute, CUfunction_attribute), texts those of
cuGetErrorString.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from autosched.codegen.c.source import GpuSource, Launch
from autosched.runtime.gpu.device import DeviceMemory

if TYPE_CHECKING:
    from autosched.target import GpuFacts

# (CUresult, fault class, text). Other errors are launch failures, after which the context is not trusted.
ERRORS: tuple[tuple[int, str, str], ...] = (
    (1, "launch_refused", "invalid argument"),
    (2, "out_of_memory", "out of memory"),
    (46, "device_lost", "CUDA-capable device(s) is/are busy or unavailable"),
    (100, "device_lost", "no CUDA-capable device is detected"),
    (101, "device_lost", "invalid device ordinal"),
    (200, "build_error", "device kernel image is invalid"),
    (209, "build_error", "no kernel image is available for execution on the device"),
    (214, "device_lost", "uncorrectable ECC error encountered"),
    (218, "build_error", "a PTX JIT compilation failed"),
    (220, "device_lost", "uncorrectable NVLink error detected during the execution"),
    (222, "build_error", "the provided PTX was compiled with an unsupported toolchain."),
    (500, "build_error", "named symbol not found"),
    (700, "illegal_address", "an illegal memory access was encountered"),
    (701, "launch_refused", "too many resources requested for launch"),
    (702, "hang", "the launch timed out and was terminated"),
    (714, "launch_failure", "hardware stack error"),
    (715, "launch_failure", "an illegal instruction was encountered"),
    (716, "misaligned_address", "misaligned address"),
    (717, "launch_failure", "operation not supported on global/shared address space"),
    (718, "launch_failure", "invalid program counter"),
    (719, "launch_failure", "unspecified launch failure"),
    (802, "device_lost", "system not yet initialized"),
    (999, "device_lost", "unknown error"),
)
FAULT_OF_CODE = {code: kind for code, kind, _ in ERRORS}
NO_DEVICE = 100

# CUdevice_attribute by name.
ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": 1,
    "MAX_GRID_DIM_X": 5,
    "MAX_GRID_DIM_Y": 6,
    "MAX_GRID_DIM_Z": 7,
    "MAX_SHARED_MEMORY_PER_BLOCK": 8,
    "WARP_SIZE": 10,
    "CLOCK_RATE": 13,  # kHz
    "MULTIPROCESSOR_COUNT": 16,
    "MEMORY_CLOCK_RATE": 36,  # kHz
    "GLOBAL_MEMORY_BUS_WIDTH": 37,  # bits
    "L2_CACHE_SIZE": 38,
    "MAX_THREADS_PER_MULTIPROCESSOR": 39,
    "COMPUTE_CAPABILITY_MAJOR": 75,
    "COMPUTE_CAPABILITY_MINOR": 76,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 81,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 82,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 97,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 106,
}
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: no implicit order with the legacy default stream
_MAX_REGISTERS = 255  # for each thread, from compute capability 3.5 on
_LANES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}  # single precision in a multiprocessor; newer ones: 128
_DEFAULT_LANES = 128
_DEFAULT_CLOCK_KHZ, _DEFAULT_BANDWIDTH = 1_500_000, 500e9  # for drivers that do not report them


class AddressedDevice:
    """A device whose memory has addresses."""

    kind = "cuda"
    alignment = 256

    def view(self, memory: DeviceMemory, offset: int, nbytes: int) -> DeviceMemory:
        return DeviceMemory(memory.handle + offset, nbytes)

    def adopt(self, address: int, nbytes: int) -> DeviceMemory:
        return DeviceMemory(address, nbytes)

    def address(self, memory: DeviceMemory) -> int:
        return int(memory.handle)


def facts_of(name: str, attribute: Callable[[str], int]) -> GpuFacts:
    """Return the properties of the CUDA device `name`; `attribute` reads one of ATTRIBUTES, 0 if the driver does not
    know it.
    """
    from autosched.target import GpuFacts

    major, minor = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    # DDR: two transfers a clock.
    bandwidth = 2 * attribute("MEMORY_CLOCK_RATE") * 1000.0 * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8
    return GpuFacts(
        name=name,
        arch=f"sm_{major}{minor}",
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        warp=attribute("WARP_SIZE"),
        max_threads_per_block=attribute("MAX_THREADS_PER_BLOCK"),
        max_threads_per_multiprocessor=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        registers_per_multiprocessor=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        max_registers_per_thread=_MAX_REGISTERS,
        shared_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") or attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
        shared_per_multiprocessor=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        clock_ghz=(attribute("CLOCK_RATE") or _DEFAULT_CLOCK_KHZ) / 1e6,
        fma_per_cycle_per_multiprocessor=_LANES.get((major, minor), _DEFAULT_LANES),
        bandwidth_bytes_s=bandwidth or _DEFAULT_BANDWIDTH,
        max_grid=(attribute("MAX_GRID_DIM_X"), attribute("MAX_GRID_DIM_Y"), attribute("MAX_GRID_DIM_Z")),
        max_blocks_per_multiprocessor=attribute("MAX_BLOCKS_PER_MULTIPROCESSOR") or 32,
    )


def dynamic_shared_bytes(source: GpuSource, launch: Launch) -> int:
    """Return the dynamic shared memory of a launch: all of the kernel's shared memory if the text declares it
    `extern`.
    """
    return launch.shared_bytes if _has_extern_memory(source.text, launch.kernel) else 0


@lru_cache(maxsize=1024)
def _has_extern_memory(text: str, kernel: str) -> bool:
    head = re.compile(rf"__global__ void\s+(?:__\w+__\([^)]*\)\s*)*{re.escape(kernel)}\s*\(")
    return any("extern __shared__" in part for part in re.split(r"(?=__global__)", text) if head.match(part))

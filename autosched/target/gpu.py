"""GPUs: what the search space and the cost model know of a device, and of one card of each compute capability.

Facts are those of the device where a driver tells them (`Target.with_gpu`), else of a card of its compute capability.
Sources: the CUDA C++ Programming Guide's tables "Technical Specifications per Compute Capability" and "Throughput of
Native Arithmetic Instructions"; NVIDIA's data sheets and architecture papers of the cards named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuFacts:
    """A GPU as the search space and the cost model see it. Sizes in bytes, rates at the boost clock.

    `warp`: threads that run in step. `fma_per_cycle_per_multiprocessor`: single-precision lanes.
    `shared_per_block` is what a block may have after asking for it.
    """

    name: str
    arch: str  # "sm_90"; empty where the device has no compute capability
    multiprocessors: int
    warp: int
    max_threads_per_block: int
    max_threads_per_multiprocessor: int
    registers_per_multiprocessor: int
    max_registers_per_thread: int
    shared_per_block: int
    shared_per_multiprocessor: int
    l2_bytes: int
    clock_ghz: float
    fma_per_cycle_per_multiprocessor: int
    bandwidth_bytes_s: float
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    max_blocks_per_multiprocessor: int = 32

    @property
    def has_asynchronous_copies(self) -> bool:
        """From global to shared memory: CUDA's cp.async, of compute capability 8.0 and later."""
        return self.capability >= 80

    @property
    def has_warpgroups(self) -> bool:
        """Products of matrices by four warps, and a copy engine: wgmma and TMA of compute capability 9.0 alone."""
        return self.capability == 90

    @property
    def has_early_launches(self) -> bool:
        """Kernels that start before the one before them has ended: of compute capability 9.0 and later."""
        return self.capability >= 90

    @property
    def capability(self) -> int:
        """The compute capability, 80 for 8.0; 0 where the device has none."""
        digits = re.sub(r"\D", "", self.arch)
        return int(digits) if digits else 0

    def fingerprint(self, kind: str) -> str:
        """The device by its name and by what decides its speed; clocks differ from one query to the next."""
        name = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        memory = f"{self.shared_per_block >> 10}K-{self.l2_bytes >> 20}M-{self.bandwidth_bytes_s / 1e9:.0f}GBs"
        size = f"{self.multiprocessors}x{self.fma_per_cycle_per_multiprocessor}-t{self.max_threads_per_block}"
        return "-".join(x for x in (kind, self.arch, name, size, memory) if x)


# Compute capability -> facts of one card of it. Boost clocks.
CUDA_CARDS: dict[str, GpuFacts] = {
    card.arch: card
    for card in (
        GpuFacts("NVIDIA T4", "sm_75", 40, 32, 1024, 1024, 65536, 255, 64 << 10, 64 << 10, 4 << 20, 1.59, 64, 320e9,
                 max_blocks_per_multiprocessor=16),
        GpuFacts("NVIDIA A100-SXM4-80GB", "sm_80", 108, 32, 1024, 2048, 65536, 255, 163 << 10, 164 << 10, 40 << 20,
                 1.41, 64, 2039e9),
        GpuFacts("NVIDIA GeForce RTX 3090", "sm_86", 82, 32, 1024, 1536, 65536, 255, 99 << 10, 100 << 10, 6 << 20,
                 1.695, 128, 936e9, max_blocks_per_multiprocessor=16),
        GpuFacts("NVIDIA GeForce RTX 4090", "sm_89", 128, 32, 1024, 1536, 65536, 255, 99 << 10, 100 << 10, 72 << 20,
                 2.52, 128, 1008e9, max_blocks_per_multiprocessor=24),
        GpuFacts("NVIDIA H200", "sm_90", 132, 32, 1024, 2048, 65536, 255, 227 << 10, 228 << 10, 60 << 20,
                 1.98, 128, 4814e9),
        GpuFacts("NVIDIA B200", "sm_100", 148, 32, 1024, 2048, 65536, 255, 227 << 10, 228 << 10, 126 << 20,
                 1.965, 128, 7700e9),
        GpuFacts("NVIDIA GeForce RTX 5090", "sm_120", 170, 32, 1024, 1536, 65536, 255, 99 << 10, 100 << 10, 96 << 20,
                 2.407, 128, 1792e9, max_blocks_per_multiprocessor=24),
    )
}  # fmt: skip
DEFAULT_ARCH = "sm_90"
# What nearly every GPU with OpenCL can do: 256 work items in a group, 48 KB of local memory.
OPENCL_DEVICE = GpuFacts(
    "any OpenCL device", "", 16, 32, 256, 1024, 65536, 255, 48 << 10, 64 << 10, 4 << 20, 1.5, 64, 200e9
)

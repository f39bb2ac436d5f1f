"""Cost of inlining a node into its readers against storing its result: arithmetic against memory traffic.

stored     one kernel call that reads the operands, computes and writes the result; each reader reads the result
inlined    each reader reads the operands instead, and computes the result at each read, or once into a buffer of its
           tile if that is cheaper
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosched.target import Target
from autosched.target.microarchitecture import microarchitecture

FLOAT_BYTES = 4
CALL_CYCLES = 300.0  # of a kernel call on one thread
FORK_JOIN_CYCLES = 2000.0  # of a kernel call on several threads
LAUNCH_S = 2e-6  # from the end of a GPU kernel to the first results of the next one
# Reads of a result from the buffer of a tile until it is computed again. Measured time with inlined scales over that
# with stored ones: before 1x1 convolutions of 24 outputs 0.64, 40 0.71, 112 0.86, 320 1.1; of 3072 columns 1.15.
BUFFERED_READS = 256
CACHE_RATE = 1.5  # bandwidth of a GPU's last cache over that of its memory


@dataclass(frozen=True)
class FusionRates:
    """Rates of a device with all its threads, on which fusion decisions depend.

    `bytes_per_cycle`: of the cache that all threads share. `operations_per_cycle`: on float32. `call_cycles`: of
    calling a kernel. `part_alignment`: bytes that a part of an array must be aligned to for kernels to read it as an
    array. `reorders_results`: whether any reduction can write its results transposed, not only attention.
    """

    bytes_per_cycle: float
    operations_per_cycle: float
    call_cycles: float
    part_alignment: int = 1
    reorders_results: bool = True


@dataclass(frozen=True)
class NodeWork:
    """The bytes that a node reads and writes, and its operations, for all of its results together."""

    bytes_read: int
    bytes_written: int
    operations: float
    can_be_buffered: bool  # in the tile of a reader that reads it more than once


def rates_of(target: Target, threads: int) -> FusionRates:
    """Return the rates of a target; `threads` counts on processors only."""
    if target.gpu is not None:
        lanes = float(target.gpu.multiprocessors * target.gpu.fma_per_cycle_per_multiprocessor)
        cycles_s = 1e9 * target.gpu.clock_ghz
        from_cache = CACHE_RATE * target.gpu.bandwidth_bytes_s / cycles_s
        # Warps write a product's tile in the order of the tile. A transposition in the same group would hide the
        # epilogue from the rules for products.
        return FusionRates(
            from_cache, lanes, LAUNCH_S * cycles_s, target.backend.part_alignment, reorders_results=False
        )
    core = microarchitecture(target.mcpu)
    operations = core.fma * target.vector_bytes / FLOAT_BYTES
    begin = FORK_JOIN_CYCLES if threads > 1 else CALL_CYCLES
    return FusionRates(threads * core.l3_bandwidth, threads * operations, begin)


def should_inline(
    work: NodeWork, reads: Sequence[int], rates: FusionRates, is_fused_with_producer: bool = False
) -> bool:
    """Whether inlining a node into its readers costs at most as much as storing its result.

    `reads`: for each reader, its reads per result. `is_fused_with_producer`: whether the alternative is an epilogue of
    its producer, which saves a call and a read of the operands, instead of a kernel of its own.
    """
    once = work.operations / rates.operations_per_cycle
    store = load = work.bytes_written / rates.bytes_per_cycle
    operands = work.bytes_read / rates.bytes_per_cycle
    stored = (-operands if is_fused_with_producer else rates.call_cycles + operands) + once + store + len(reads) * load
    buffered = once + store + load
    recomputed = [
        min(n * once, buffered * max(1.0, n / BUFFERED_READS)) if work.can_be_buffered else n * once for n in reads
    ]
    return len(reads) * operands + sum(recomputed) <= stored * (1 + 1e-9)

"""What it costs to compute a node where its result is read, against storing the result: bytes against arithmetic.

stored     begun once; reads its operands, writes the result, which each reader reads; computed once
taken in   each reader reads the operands instead, and computes the result as often as it reads it, or once in a
           part of its own, whatever is less
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosched.target import Target
from autosched.target.microarchitecture import microarchitecture

FLOAT_BYTES = 4
BEGIN_CYCLES = 300.0  # of beginning and ending a part of a program
# Of a result by the tile that keeps it. Scales before 1x1 convolutions, taken in: 24 outputs 0.64 of the time, 40 0.71,
# 112 0.86, 320 1.1; before a product of 3072 columns 1.15.
KEPT_READS = 256
FORK_JOIN_CYCLES = 2000.0  # ... on several threads
LAUNCH_S = 2e-6  # from the end of a kernel of a GPU to the first results of the next one
CACHE_RATE = 1.5  # times its memory's: what its last cache delivers


@dataclass(frozen=True)
class FusionRates:
    """What all threads do in a cycle: bytes of a cache that all share, operations on float32; what a parallel part
    costs; `part_alignment`, the bytes that a part of an array must begin at a multiple of to be one itself; and
    `turns_results`, whether any reduction can write its results in another order, not only attention."""

    bytes_per_cycle: float
    operations_per_cycle: float
    begin_cycles: float
    part_alignment: int = 1
    turns_results: bool = True


@dataclass(frozen=True)
class NodeWork:
    """A node: bytes that it reads and writes, and operations for all of its results together."""

    bytes_read: int
    bytes_written: int
    operations: float
    can_be_kept: bool  # by a reader that needs it more than once


def rates_of(target: Target, threads: int) -> FusionRates:
    """Of a target, with so many threads of a processor."""
    if target.gpu is not None:
        lanes = float(target.gpu.multiprocessors * target.gpu.fma_per_cycle_per_multiprocessor)
        cycles_s = 1e9 * target.gpu.clock_ghz
        from_cache = CACHE_RATE * target.gpu.bandwidth_bytes_s / cycles_s
        # What warps compute together they write as it lies: another order is another kernel, and hides from the rules
        # of products what reads their results.
        return FusionRates(from_cache, lanes, LAUNCH_S * cycles_s, target.backend.part_alignment, turns_results=False)
    core = microarchitecture(target.mcpu)
    operations = core.fma * target.vector_bytes / FLOAT_BYTES
    begin = FORK_JOIN_CYCLES if threads > 1 else BEGIN_CYCLES
    return FusionRates(threads * core.l3_bandwidth, threads * operations, begin)


def pays_to_take_in(work: NodeWork, reads: Sequence[int], rates: FusionRates, is_joined: bool = False) -> bool:
    """Whether readers had better compute a node than read it; `reads`: of each reader how often it reads a result.
    `is_joined`: the part that makes its operand is as good a place, which otherwise stores that."""
    once = work.operations / rates.operations_per_cycle
    store = load = work.bytes_written / rates.bytes_per_cycle
    operands = work.bytes_read / rates.bytes_per_cycle
    stored = (-operands if is_joined else rates.begin_cycles + operands) + once + store + len(reads) * load
    kept = once + store + load
    each = [
        min(times * once, kept * max(1.0, times / KEPT_READS)) if work.can_be_kept else times * once for times in reads
    ]
    return len(reads) * operands + sum(each) <= stored * (1 + 1e-9)

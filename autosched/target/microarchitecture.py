"""Microarchitectures: what a processor core can do in a cycle, one row of numbers for each core.

    microarchitecture("znver3") -> Microarchitecture        the row of an LLVM processor name; GENERIC for the others

The numbers rank candidates of one machine, so they have to be right relative to each other; the learned ranker corrects
the rest. A cost that nobody measured on a core is 0 in its row: it is not counted there. Whatever was measured on a
core stands in its row alone, and in rows that say that they are `replace`d from it. Where each number comes from is in
the table `autosched.target.provenance`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Microarchitecture:
    """A core. Vectors are the widest that the target uses. Rates are a cycle, latencies and costs are cycles."""

    name: str
    """Of the core, as its maker calls it."""

    # Execution

    fma: float
    """Vector multiply-adds started a cycle."""
    load: float
    """Vector loads a cycle."""
    store: float
    """Vector stores a cycle."""
    element_load: float
    """Loads of single elements a cycle, broadcast or not."""
    gathered_load: float
    """Elements a cycle that lanes load from indices of their own, by a gather instruction or one by one."""
    gather: float
    """Elements a cycle of gather instructions with AVX-512 where these are faster than a load for each lane; else 0."""
    issue_width: float
    """Instructions a cycle from the micro-op cache."""
    decode_width: float
    """Instructions a cycle of unrolled code that does not fit into the micro-op cache."""
    uop_cache: float
    """Instructions that the micro-op cache holds."""
    fma_latency: float
    """Cycles from the start of a multiply-add to its result."""
    accumulator_step: float
    """Cycles between two multiply-adds into one accumulator of a register tile: a late step is never made up for."""
    tile_start: float
    """Cycles that a register tile begins late, behind one with more accumulators than keep the pipes busy."""
    min_max_latency: float
    """Cycles of a minimum or a maximum, with what makes it NaN."""
    nan_test: float
    """Instructions on the FMA pipes that find NaN in a vector of which minima or maxima are taken."""
    horizontal_reduction: float
    """Cycles that everything waits for the sum or the extreme of a vector's lanes; several in a row overlap."""
    store_forward: float
    """Cycles more of an accumulation that goes through memory."""
    unaligned_forward: float
    """Cycles of waiting, each time that a buffer is filled, for a vector of which two just stored ones are parts."""
    spill: float
    """Cycles of a spilled register, each time the innermost block runs."""
    loop_step: float
    """Cycles of one iteration of an outer loop: counter, comparison, addresses."""
    loop_entry: float
    """Cycles of entering and leaving a loop: set-up, and a branch mispredicted now and then."""

    tile_product: float
    """Cycles at least of a product of two tiles; one for each row where there are more."""
    tile_latency: float
    """Cycles from the start of a product of tiles until its sums can be added to or stored."""

    # Caches and memory

    l2_bandwidth: float
    """Bytes a cycle from L2 into L1."""
    l3_bandwidth: float
    """Bytes a cycle from L3 into L2, for one core."""
    dram_bandwidth: float
    """Bytes a cycle from memory, for one core."""
    dram_shared: float
    """Bytes a cycle from memory, for all cores together."""
    l3_start: float
    """Cycles of waiting for the first lines of contiguous bytes from L3, until the next ones are fetched ahead."""
    dram_start: float
    """The same of bytes from memory."""
    start_bytes: float
    """Bytes of a piece that come so slowly; a shorter one takes its share of these cycles."""
    streams: float
    """Rows that are fetched ahead at a time; 0: not counted."""
    l3_stays: float
    """Times the size of L3 that a kernel may touch and find there in the next call, whatever the threads."""
    l3_leaves: float
    """Times the size of L3 of which nothing is found there; 0: what a thread touches is held whole or not at all."""
    write_back: float
    """Lines written back to a cache that take as long as one fetched from it; memory is written at its bandwidth."""
    l1_ways: int
    """Lines of a set of L1."""
    page_bytes: int
    """Bytes of a page of memory; the sets of L1, one after another, are as long."""
    conflict_spare: float
    """Lines of a crowded set that cost nothing; in L2 as many times more as it is larger than L1."""
    conflict_fetch: float
    """Times as long from L2 where the vectors of a block are more lines than the ways of their sets."""
    conflict_ways: float
    """Lines in a set of L1 from which on rows that tile after tile reads take longer to find."""
    conflict_line: float
    """Cycles of finding such a line."""
    dtlb_reach: float
    """Pages of an operand that the first level of address translation holds beside those of the others."""
    dtlb_miss: float
    """Cycles of finding a page beyond that reach."""
    stlb_reach: float
    """Pages that the second level of address translation holds."""
    page_walk: float
    """Cycles of finding a page beyond that: a walk through the tables of pages."""
    prefetch_restart: float
    """Cycles of entering a page that L2 does not hold: hardware prefetching ends with a page and begins anew."""
    adjacent_line_bytes: float
    """Bytes that are fetched from beyond L2 with each piece of a long row: prefetching begins anew in every piece."""
    overrun_share: float
    """Share of the bytes of a piece of a long row that is fetched from L3, in vain, from beyond its end."""
    overrun_bytes: float
    """Bytes, at most, that are fetched in vain so."""

    # Threads

    smt_load_contention: float
    """Cycles of a load that arithmetic does not hide, because another hardware thread uses the load ports too."""
    unequal_cores: float
    """Share of the time in which one core is slower than another, by half where another hardware thread has it."""


# What most cores since 2013 can do, with no cost that was found on one of them.
GENERIC = Microarchitecture(
    name="generic",
    fma=2.0,
    load=2.0,
    store=1.0,
    element_load=2.0,
    gathered_load=2.0,
    gather=0.0,
    issue_width=5.2,
    decode_width=3.0,
    uop_cache=4096.0,
    fma_latency=4.0,
    accumulator_step=4.0,
    tile_start=0.0,
    min_max_latency=2.0,
    nan_test=1.0,
    horizontal_reduction=0.0,
    store_forward=5.0,
    unaligned_forward=0.0,
    spill=1.5,
    loop_step=1.0,
    loop_entry=6.0,
    tile_product=9.0,
    tile_latency=52.0,
    l2_bandwidth=40.0,
    l3_bandwidth=24.0,
    dram_bandwidth=8.0,
    dram_shared=30.0,
    l3_start=0.0,
    dram_start=0.0,
    start_bytes=1500.0,
    streams=0.0,
    l3_stays=0.0,
    l3_leaves=0.0,
    write_back=1.0,
    l1_ways=8,
    page_bytes=4096,
    conflict_spare=3.5,
    conflict_fetch=2.0,
    conflict_ways=48.0,
    conflict_line=0.0,
    dtlb_reach=56.0,
    dtlb_miss=0.0,
    stlb_reach=1536.0,
    page_walk=0.0,
    prefetch_restart=0.0,
    adjacent_line_bytes=0.0,
    overrun_share=0.0,
    overrun_bytes=0.0,
    smt_load_contention=0.0,
    unequal_cores=0.0,
)
GENERIC_AVX512 = replace(GENERIC, name="generic AVX-512", gather=2.0, nan_test=0.0)

ZEN3 = replace(
    GENERIC,
    name="Zen 3",
    gathered_load=0.83,
    accumulator_step=4.17,
    tile_start=22.0,
    conflict_line=1.5,
    dtlb_miss=3.5,
    prefetch_restart=14.0,
    adjacent_line_bytes=128.0,
    l3_start=200.0,
    dram_start=400.0,
    streams=17.0,
    l3_stays=0.1,
    l3_leaves=0.7,
)
ZEN2 = replace(ZEN3, name="Zen 2")
ZEN1 = replace(ZEN3, name="Zen 1", fma=1.0, load=1.0, store=0.5)  # 256-bit operations take two passes
# 512-bit operations take two passes
ZEN4 = replace(
    GENERIC_AVX512,
    name="Zen 4",
    fma=1.0,
    load=1.0,
    store=0.5,
    gathered_load=0.83,
    gather=0.0,
    horizontal_reduction=24.0,
    unaligned_forward=20.0,
    l3_bandwidth=33.0,
    write_back=0.0,
    stlb_reach=3072.0,
    page_walk=42.0,
    overrun_share=0.5,
    overrun_bytes=640.0,
    dram_start=400.0,
    l3_stays=0.5,
    l3_leaves=2.2,
)
ZEN5 = replace(GENERIC_AVX512, name="Zen 5", element_load=4.0, gathered_load=0.83, gather=0.0)

HASWELL = replace(
    GENERIC,
    name="Haswell to Skylake",
    horizontal_reduction=16.0,
    dtlb_miss=3.5,
    prefetch_restart=14.0,
    adjacent_line_bytes=64.0,
)
SKYLAKE_SERVER = replace(GENERIC_AVX512, name="Skylake server to Ice Lake server")
SUNNY_COVE_CLIENT = replace(GENERIC_AVX512, name="Sunny Cove client", fma=1.0)  # one 512-bit FMA unit
GOLDEN_COVE_SERVER = replace(
    GENERIC_AVX512,
    name="Golden Cove server",
    horizontal_reduction=48.0,
    l3_bandwidth=10.0,
    dram_bandwidth=4.0,
    prefetch_restart=14.0,
    smt_load_contention=0.15,
    unequal_cores=0.3,
)

NEOVERSE_V = replace(
    GENERIC, name="Neoverse V1 and V2", fma=4.0, load=3.0, store=2.0, element_load=3.0, gathered_load=3.0
)
APPLE_M1 = replace(NEOVERSE_V, name="Apple M1")

_NAMES: tuple[tuple[Microarchitecture, str], ...] = (
    (ZEN1, "znver1"),
    (ZEN2, "znver2"),
    (ZEN3, "znver3"),
    (ZEN4, "znver4"),
    (ZEN5, "znver5"),
    (HASWELL, "haswell core-avx2 broadwell skylake"),
    (SKYLAKE_SERVER, "skylake-avx512 skx cascadelake cooperlake icelake-server"),
    (SUNNY_COVE_CLIENT, "icelake-client tigerlake rocketlake"),
    (GOLDEN_COVE_SERVER, "sapphirerapids emeraldrapids graniterapids graniterapids-d"),
    (NEOVERSE_V, "neoverse-v1 neoverse-v2"),
    (APPLE_M1, "apple-m1"),
    (GENERIC_AVX512, "x86-64-v4 knl knm cannonlake"),
)
MICROARCHITECTURES: dict[str, Microarchitecture] = {name: row for row, names in _NAMES for name in names.split()}


def microarchitecture(mcpu: str) -> Microarchitecture:
    """The core that LLVM knows by this name; a generic one where there is no row for it."""
    return MICROARCHITECTURES.get(mcpu, GENERIC)

"""Where the numbers of `autosched.target.microarchitecture` come from.

A row that differs from GENERIC in a field has an entry for that field; GENERIC has one for each. "Counted": from the
instructions that are emitted. "Measured": on the named core; a commit's message has the cases and what the number
gained. "Assumed": neither.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Provenance:
    """The source of some fields of some rows, by the names of the rows."""

    rows: tuple[str, ...]
    fields: tuple[str, ...]
    source: str


FOG = 'Agner Fog, "Instruction tables" and "The microarchitecture of Intel, AMD and VIA CPUs"'

PROVENANCE: tuple[Provenance, ...] = (
    # Every core, unless its row says otherwise
    Provenance(
        ("generic",),
        ("fma", "load", "store", "element_load", "fma_latency", "accumulator_step"),
        f"Documented for Haswell and its successors: {FOG}. Elsewhere assumed.",
    ),
    Provenance(("generic",), ("gathered_load",), "Assumed: as any single elements."),
    Provenance(("generic",), ("gather",), "Assumed: single loads, as without AVX-512 on Zen 3."),
    Provenance(
        ("generic AVX-512", "Skylake server to Ice Lake server", "Sunny Cove client", "Golden Cove server"),
        ("gather",),
        "Assumed: as many as single loads, in fewer instructions.",
    ),
    Provenance(
        ("generic",),
        ("issue_width",),
        "Measured on Zen 3 (2026-11-23, commit 9900b91): loops that instructions bound do 5.2 of the six that Zen "
        "renames. Assumed of the others.",
    ),
    Provenance(
        ("generic",),
        ("uop_cache",),
        "Documented for Zen 2 and 3: AMD's software optimization guides. Assumed of the others.",
    ),
    Provenance(
        ("generic",),
        ("decode_width", "store_forward", "spill", "loop_step", "loop_entry"),
        f"Chosen in the first version (2026-11-20) after {FOG}; no measurement was written down.",
    ),
    Provenance(
        ("generic",),
        ("min_max_latency",),
        "Measured on Zen 3 (2026-11-23, commit f1a52b4): maxima wait half as long as sums. Assumed of the others.",
    ),
    Provenance(
        ("generic",),
        ("nan_test",),
        "Counted: a comparison of each vector that is loaded; that the result is NaN is an instruction more, on "
        "any pipe. 3x3 maxima of 56 x 56 x 64 take a cycle a maximum on Zen 3 (2026-11-23, commit decdb3a).",
    ),
    Provenance(
        ("generic",),
        ("tile_product", "tile_latency"),
        "Measured on Golden Cove server (2026-11-26): a product of tiles of 16 rows takes 16 cycles, of 14 rows 14, of "
        "7 or 4 rows 9. The latency: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter 20.",
    ),
    Provenance(
        ("generic AVX-512",), ("nan_test",), "Counted: one instruction finds NaN and keeps it, too little to count."
    ),
    Provenance(
        ("generic",),
        ("l3_bandwidth",),
        "Of one core of Zen 3 and 4; how it was measured was not written down. Assumed of the others.",
    ),
    Provenance(
        ("generic",),
        ("l2_bandwidth", "dram_bandwidth", "dram_shared"),
        "Chosen in the first version (2026-11-20); no measurement was written down.",
    ),
    Provenance(
        ("generic",),
        ("l1_ways", "page_bytes"),
        "Documented for L1 caches of 32 KB. Those of 48 KB (Golden Cove, Zen 5) have 12 ways, Apple's are 128 KB with "
        "pages of 16 KB: other numbers were not judged there, so they are taken for 8 ways and 4096 bytes.",
    ),
    Provenance(
        ("generic",),
        ("conflict_fetch", "conflict_spare"),
        "Measured on Zen 4 (2026-11-22): nine rows in a set of eight ways do not hurt, twelve do. Assumed elsewhere.",
    ),
    Provenance(
        ("generic",),
        (
            *("tile_start", "horizontal_reduction", "conflict_ways", "conflict_line", "dtlb_reach", "dtlb_miss"),
            *("prefetch_restart", "adjacent_line_bytes", "smt_load_contention", "unequal_cores"),
            *(
                "unaligned_forward",
                "stlb_reach",
                "page_walk",
                "overrun_share",
                "overrun_bytes",
                "l3_start",
                "dram_start",
            ),
            *("start_bytes", "streams", "l3_stays", "l3_leaves"),
        ),
        "Not measured, so not counted. Counting pages and adjacent lines gained nothing on Zen 4: 64-byte vectors "
        "and the cycles of instructions in flight hide them (committed programs of Zen 4, "
        "experiments.cost_model_quality).",
    ),
    Provenance(("generic",), ("write_back",), "Assumed: that caches read and write in turn."),
    # Zen
    Provenance(
        ("Zen 3",),
        ("accumulator_step", "tile_start"),
        "Measured (2026-11-23, commit b60fd62): 1x1 convolutions of 16, 32 and 64 channels take 66.5, 134 and 267 "
        "cycles in tiles of 4 x 16, of 6 x 16 (whose multiply-adds take 96, 192 and 384) 125, 213 and 408. Why is "
        "not known.",
    ),
    Provenance(
        ("Zen 3",),
        ("conflict_ways", "conflict_line", "dtlb_reach", "dtlb_miss"),
        "Measured with counters (2026-11-23, commit a091281): 96 x 16 columns x 128 to 512 rows of 128 to 1040; 2 "
        "to 6 cycles a page, 1 to 6 a line.",
    ),
    Provenance(
        ("Zen 3",),
        ("prefetch_restart",),
        "Measured (2026-11-22, commit dba8691): 14 to 18 cycles a page, convolutions of rows of 512 to 2048 bytes.",
    ),
    Provenance(
        ("Zen 3",),
        ("adjacent_line_bytes",),
        "Measured (2026-11-23, commit 5b0080d): 3x3 maxima of 56 x 56 x 64 by half pixels take 1.2 to 1.6 times "
        "as long.",
    ),
    Provenance(
        ("Zen 3",),
        ("l3_start", "dram_start"),
        "Measured in a virtual machine beside others (2026-12-01): reading 6 MB in pieces of 320 to 3840 bytes of "
        "rows of 15 KB takes 50 to 90 ns more for each piece than in whole rows; of 60 MB 110 to 190 ns for each "
        "from 1920 bytes on, and of shorter ones the share of their bytes. Writing takes as long.",
    ),
    Provenance(
        ("Zen 3",),
        ("streams",),
        "Measured likewise (2026-12-01): sums of one to three arrays of 47 MB, in blocks of one to eight rows, take "
        "1.3 to 2.5 times as long from 18 to 21 rows on that are read or written together.",
    ),
    Provenance(
        ("Zen 3",),
        ("l3_stays", "l3_leaves"),
        "Measured likewise (2026-12-01): again and again 4 MB are read with 50 GB/s, 8 MB with 30, 12 MB with 27, 16 "
        "MB with 21, 20 MB with 16 and 24 to 128 MB with 14; other machines use the same 32 MB.",
    ),
    Provenance(
        ("Zen 1", "Zen 2"),
        (
            *("gathered_load", "accumulator_step", "tile_start", "conflict_line", "dtlb_miss", "prefetch_restart"),
            *("adjacent_line_bytes", "l3_start", "dram_start", "streams", "l3_stays", "l3_leaves"),
        ),
        "Assumed: as on Zen 3, a near relative.",
    ),
    Provenance(
        ("Zen 1", "Zen 4"),
        ("fma", "load", "store"),
        f"Documented: the widest vectors take two passes. {FOG}; AMD's software optimization guides.",
    ),
    Provenance(
        ("Zen 4",),
        ("l3_bandwidth", "write_back"),
        "Measured (2026-11-30): sums of one to four float32 matrices of 768 x 784 take 0.65 ns for each line of each "
        "of them and of the result, at 3 GHz 33 bytes a cycle, and as long without a store; from L2 likewise.",
    ),
    Provenance(
        ("Zen 4",),
        ("overrun_share", "overrun_bytes"),
        "Measured (2026-11-30): the same sums in strips of 6 to 24 lines that are all rows high take 1.4 to 1.6 times "
        "as long, of 32 lines 1.3 times; in tiles of at most 128 rows no more than 1.15 times.",
    ),
    Provenance(
        ("Zen 4",),
        ("stlb_reach", "page_walk"),
        "Reach documented: AMD's software optimization guide. Walks measured in a virtual machine (2026-11-30): sums "
        "of 15 to 31 MB in strips of one line take 9 to 14 ns more for each page of 4 KB that a strip enters, 3 to 7 "
        "ns in pages of 2 MB; those of 10 MB and less, below 1 ns.",
    ),
    Provenance(
        ("Zen 4",),
        ("l3_stays", "l3_leaves"),
        "Measured (2026-12-01): doubling one vector into another goes at 85 GB/s up to 16 MB in both, 68 at 20, 61 at "
        "24, 43 at 31, 35 at 48, 28 at 64 and 26 at 96 MB, beside an L3 of 32 MB.",
    ),
    Provenance(
        ("Zen 4",),
        ("dram_start",),
        "Assumed: as on Zen 3, a near relative. With it the best predicted of 76 committed workloads take 1.131 times "
        "as long as the fastest, without 1.149; a start from L3 as on Zen 3 orders pairs less well there, 0.777 for "
        "0.791.",
    ),
    Provenance(
        ("Zen 4",),
        ("horizontal_reduction",),
        "Measured (2026-12-01): softmax of rows of 64 to 256, one by one, takes 24 to 50 cycles a row more than many "
        "together, of 1024 130 more; its maximum and its sum are two reductions, and rows together are taken to be "
        "slower by some cycles than they are.",
    ),
    Provenance(
        ("Zen 4",),
        ("unaligned_forward",),
        "Measured (2026-11-30): a buffer of 1 to 24 vectors that is filled and then read an element further takes 17 "
        "to 23 cycles longer than where it is read at whole vectors.",
    ),
    Provenance(("Zen 4",), ("nan_test",), "Counted, as for any AVX-512."),
    Provenance(
        ("Zen 3",),
        ("gathered_load",),
        "Measured: an element takes 1.2 cycles where indices leave their vector in pairs (`codegen/llvm/gather.py`).",
    ),
    Provenance(
        ("Zen 4",),
        ("gathered_load", "gather"),
        "Measured (2026-11-30): single loads of lanes from L1 take 1.15 cycles an element, vgatherdps of 16 takes 1.4 "
        "alone and 2 among other instructions; from L2, L3 and memory both take the same.",
    ),
    Provenance(("Zen 5",), ("gathered_load",), "Assumed: as on Zen 4, a near relative."),
    Provenance(
        ("Zen 5",),
        ("element_load",),
        "Documented: four loads of up to 64 bits a cycle. AMD's software optimization guide.",
    ),
    Provenance(("Zen 5",), ("nan_test",), "Counted, as for any AVX-512."),
    # Intel
    Provenance(("Haswell to Skylake",), ("fma", "load", "store"), f"Documented: {FOG}."),
    Provenance(
        ("Haswell to Skylake",),
        ("horizontal_reduction",),
        f"Counted: three shuffles of 1 to 3 cycles, three steps of 3 to 4. {FOG}. With 256-bit vectors on Zen 4 "
        "softmax of rows of 64 to 256, one by one, takes 16 to 32 cycles a row more than many together (2026-12-01).",
    ),
    Provenance(
        ("Haswell to Skylake",),
        ("dtlb_miss",),
        f"Documented: 7 cycles of the second level of address translation, {FOG}; half of them hidden by other "
        "instructions, as measured on Zen 3. Together with the two below checked with 256-bit vectors on Zen 4 "
        "(2026-12-01, experiments.regret): choices for 36 random operators gain by them.",
    ),
    Provenance(
        ("Haswell to Skylake",),
        ("prefetch_restart",),
        "Documented that prefetching ends with a page: Intel's optimization reference manual. Cycles as measured on "
        "Zen 3 and Emerald Rapids.",
    ),
    Provenance(
        ("Haswell to Skylake",),
        ("adjacent_line_bytes",),
        "Documented: the spatial prefetcher completes pairs of lines. Intel's optimization reference manual.",
    ),
    Provenance(
        ("Skylake server to Ice Lake server", "Sunny Cove client", "Golden Cove server"),
        ("nan_test",),
        "Counted, as for any AVX-512.",
    ),
    Provenance(("Sunny Cove client",), ("fma",), f"Documented: client cores have one 512-bit FMA unit. {FOG}."),
    Provenance(
        ("Golden Cove server",),
        ("smt_load_contention",),
        "Measured on Emerald Rapids, hardware threads lent to strangers (2026-11-24, commit f528d6d), in pieces "
        "of half a millisecond: beside 0.42, 0.46, 0.58 and 1.04 loads each, multiply-adds keep 0.82, 0.80, 0.75 "
        "and 0.56 of their rate in the median, 0.2 to 0.35 cycles a load; undisturbed nearly all of it, hence "
        "less.",
    ),
    Provenance(
        ("Golden Cove server",),
        ("horizontal_reduction",),
        "Measured on Emerald Rapids (2026-11-24, commit 96567d7): softmax of rows of 64 to 4096, one by one, "
        "takes 25 to 250 cycles a row more than eight together. Four shuffles of 3, four steps of 4, and the way "
        "through memory.",
    ),
    Provenance(
        ("Golden Cove server",),
        ("unequal_cores",),
        "Measured on Emerald Rapids beside other work (2026-11-24, commit fd2bee4): one of two cores was slow and "
        "the other was not in 0.05 to 0.45 of the time.",
    ),
    Provenance(
        ("Golden Cove server",),
        ("l3_bandwidth",),
        "Measured on Emerald Rapids (2026-11-24, commit 8296d07): 3 to 12 MB are read again and again with 9 to "
        "10 bytes a cycle, 1 MB with 40.",
    ),
    Provenance(
        ("Golden Cove server",),
        ("dram_bandwidth",),
        "Measured on such a Xeon beside other work (2026-11-26): 128 and 256 MB are read again and again with 1.4 to "
        "2.6 bytes a cycle, 64 MB with 6 to 9; a core with less beside it is taken to read half as fast again.",
    ),
    Provenance(
        ("Golden Cove server",),
        ("prefetch_restart",),
        "Measured on Emerald Rapids (2026-11-24, commit 42c726b): the order of 19 cases of 4 to 24 MB gains by it.",
    ),
    # Arm
    Provenance(
        ("Neoverse V1 and V2",),
        ("fma", "load", "store", "element_load", "gathered_load"),
        "Documented: Arm's Neoverse V1 and V2 software optimization guides.",
    ),
    Provenance(
        ("Apple M1",),
        ("fma", "load", "store", "element_load", "gathered_load"),
        "Assumed: as on Neoverse V1, as wide a core.",
    ),
)

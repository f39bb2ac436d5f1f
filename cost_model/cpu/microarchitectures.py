"""What a processor core can do in a cycle: the constants of the analytic latency, in one place.

They only have to be right relative to each other: the draft ranks candidates of one machine, and the learned
ranker corrects the rest. Cycles become seconds with a nominal clock.
Sources: Agner Fog, "Instruction tables" and "The microarchitecture of Intel, AMD and VIA CPUs"; AMD software
optimization guides (Zen 4: 512-bit operations take two passes); Arm software optimization guides (Neoverse).
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.target import LINE_BYTES, Target

L3_BANDWIDTH = 24.0  # bytes a cycle from L3 into L2, one core of Zen 3 and 4


@dataclass(frozen=True)
class Pipes:
    """Full-width vector instructions a core starts in one cycle; `element`: loads of single elements, spread or not.
    `load_shown`: cycles more for each load of a block, whatever hides it, where a second hyperthread has the core too.
    `lanes_awaited`: cycles that everything waits for a sum or an extreme of a vector's lanes, or of several vectors' in
    a row, which overlap: four shuffles of 3 and four steps of 4 for 16 lanes, and its way through memory.
    `unequal`: how often one core is slower than another, by half where a second hyperthread has it.
    `l3`: bytes a cycle from L3 into L2. `page_visit`: cycles until a page is found, where PAGE_VISIT has others.
    """

    fma: float
    load: float
    store: float
    element: float
    load_shown: float = 0.0
    lanes_awaited: float = 0.0
    unequal: float = 0.0
    l3: float = L3_BANDWIDTH
    page_visit: float | None = None


# Two 512-bit FMA units, and hyperthreads that are strangers to each other where cores are lent by the half. Measured on
# such a core of Emerald Rapids in pieces of half a millisecond, operands in the first level: in the median, with a busy
# neighbour some of the time, multiply-adds alone keep 0.96 of their rate (with 10 empty instructions to 24 of them as
# well), beside 0.42, 0.46, 0.58 and 1.04 loads each (tiles of 6 x 64, 8 x 48, 12 x 32 and 24 x 16) 0.82, 0.80, 0.75 and
# 0.56, which is 0.2 to 0.35 cycles a load. While nobody disturbs, all but the last reach 1.00: hence less.
# Softmax of rows of 64 to 4096: one by one, each takes 25 to 250 cycles more, with its two sums and extremes of lanes,
# than where eight are taken together. 3 to 12 MB are read again and again with 9 to 10 bytes a cycle, 1 MB with 40.
# Beside other work on the machine one of two such cores was slow and the other was not in 0.05 to 0.45 of the time; as
# two tasks work would have taken 1.05 to 1.09 times as long as in many small ones. The draft's first picks with and
# without `unequal`, 31 cases, two threads, in turn: 0.88 of the time in the median, 0.945 in the minimum.
GOLDEN_COVE = Pipes(2.0, 2.0, 1.0, 2.0, load_shown=0.15, lanes_awaited=48.0, unequal=0.3, l3=10.0, page_visit=14.0)

# LLVM processor name -> pipes at the target's vector width; others go by width.
PIPES: dict[str, Pipes] = {
    "znver1": Pipes(1.0, 1.0, 0.5, 2.0),  # 256-bit operations take two passes
    "znver4": Pipes(1.0, 1.0, 0.5, 2.0),  # 512-bit operations take two passes
    "znver5": Pipes(2.0, 2.0, 1.0, 4.0),
    "sapphirerapids": GOLDEN_COVE,
    "emeraldrapids": GOLDEN_COVE,
    "graniterapids": GOLDEN_COVE,
    "graniterapids-d": GOLDEN_COVE,
    "tigerlake": Pipes(1.0, 2.0, 1.0, 2.0),  # client cores: one 512-bit FMA unit
    "icelake-client": Pipes(1.0, 2.0, 1.0, 2.0),
    "rocketlake": Pipes(1.0, 2.0, 1.0, 2.0),
    "neoverse-v1": Pipes(4.0, 3.0, 2.0, 3.0),
    "neoverse-v2": Pipes(4.0, 3.0, 2.0, 3.0),
    "apple-m1": Pipes(4.0, 3.0, 2.0, 3.0),
}
DEFAULT_PIPES = Pipes(2.0, 2.0, 1.0, 2.0)

# Vector instructions (slots of the FMA pipes) per element operation; functions are polynomials of this length.
OP_SLOTS: dict[str, float] = {
    "float_mad": 1.0, "float_addsub": 1.0, "float_mul": 1.0, "float_divmod": 8.0, "float_cmp": 1.0, "float_math": 16.0,
    "float_other": 1.0, "int_mad": 2.0, "int_addsub": 0.5, "int_mul": 1.0, "int_divmod": 20.0, "int_cmp": 0.5,
    "int_math": 1.0, "int_other": 0.5, "bool_op": 0.5, "select_op": 1.0,
}  # fmt: skip
# Slots of a function beyond "float_math" of the table above.
CALL_SLOTS: dict[str, float] = {
    "exp": 12, "exp_negative": 12, "log": 16, "tanh": 20, "erf": 20, "sigmoid": 18, "sin": 20, "cos": 20, "sqrt": 10,
    "rsqrt": 8, "pow": 40,
}  # fmt: skip

# Slots of an instruction that multiplies and adds up words (`ir/dots.py`), in full-width instructions of the FMA pipes.
DOT_SLOTS: dict[str, float] = {
    "vdpbf16ps": 1.0, "vpdpbusd": 1.0, "vpdpbusd.signed": 1.5, "vpdpbusd.unsigned": 1.5,
    "vpmaddwd": 1.0, "vpmaddwd.signed": 1.0, "vpmaddwd.unsigned": 1.0,  # the additions are on other pipes
}  # fmt: skip
WORD_PART_SLOTS = 1.5  # of a word that is put together: a part widened, shifted, combined

FMA_LATENCY = 4.0  # cycles until a result can be accumulated into
# The same in a register tile, by the bytes of a vector: as many accumulators as just keep the pipes busy never make up
# for a late step. With more of them each tile begins some cycles late, as if behind queues in front of the pipes (why
# is not known). Measured on Zen 3, 1x1 convolutions of 16, 32 and 64 channels: tiles of 4 x 16 take 66.5, 134 and 267
# cycles, of 6 x 16 (whose multiply-adds take 96, 192 and 384) 125, 213 and 408. Not counted with AVX-512.
ACCUMULATOR_STEP = {16: 4.17, 32: 4.17, 64: FMA_LATENCY}
TILE_BEGIN = {16: 22.0, 32: 22.0, 64: 0.0}
EXTREME_LATENCY = 2.0  # of a minimum or a maximum, with what makes it NaN
STORE_FORWARD = 5.0  # more cycles when the accumulator goes through memory
ACROSS = 1.6  # load slots of a piece of what is transposed in registers, its share of the shuffles with it
TESTS = 18.0  # more instructions for a read in a register tile at a border: its conditions, the choice of an address
SPILL = 1.5  # cycles of a spilled register, each time the innermost block runs
ISSUE_WIDTH = 5.2  # instructions a cycle from the micro-op cache; of the six that Zen renames, measured
DECODE_WIDTH = 3.0  # the same for unrolled code that does not fit into it
UOP_CACHE = 4096  # instructions
LOOP_STEP = 1.0  # cycles of one iteration of an outer loop (counter, compare, addresses)
LOOP_ENTRY = 6.0  # cycles of entering and leaving a loop (set-up, a branch mispredicted now and then)
L2_BANDWIDTH = 40.0  # bytes a cycle from L2 into L1
CROWDED_FETCH = 2.0  # times as long where the vectors of a block are more than the ways of their sets; on Zen 4
# Cycles until a page is found and fetching ahead begins in it, by the bytes of a vector: on Zen 3 14 to 18. Twice the
# bytes and, in two passes, the cycles of the instructions in flight hide it on Zen 4: nothing is gained by counting it.
# On Golden Cove something is.
PAGE_VISIT = {16: 14.0, 32: 14.0, 64: 0.0}
# Of rows that each tile reads again, on Zen 3 (96 x 16 columns x 128 to 512 rows of 128 to 1040): pages that the first
# level of address translation holds beside those of other operands, cycles of finding one that it does not; lines of a
# set from which on each takes longer, whether the first level cache has it or not, and how much.
PAGES_AT_HAND, PAGE_FOUND = 56.0, 3.5
CROWDED_WAYS, LINE_FOUND = 48.0, 1.5
# Bytes that as good as come with a piece of a row from L3, by the bytes of a vector: fetching ahead begins anew in
# every piece. On Zen 3 3x3 maxima of 56 x 56 x 64 take 1.2 to 1.6 times as long by half pixels; on Zen 4 counting it
# gained nothing.
BESIDE = {16: 128.0, 32: 128.0, 64: 0.0}
# Slots of finding NaN in what a minimum or a maximum is taken of, by the bytes of a vector: a comparison of each vector
# that is loaded; that the result is NaN is an instruction more, on any pipe. With AVX-512 it is one for both, left out.
NAN_TEST = {16: 1.0, 32: 1.0, 64: 0.0}
DRAM_BANDWIDTH = 8.0  # one core
DRAM_SHARED = 30.0  # all cores together
OVERLAP_LOSS = 0.15  # share of the hidden costs (all but the largest) that shows
CACHE_SHARE = 0.8  # of a cache that a working set may fill
CLOCK_HZ = 3.0e9
NEST_S = 1.0e-7  # of beginning and ending a nest with tasks
FORK_JOIN_S = 6.0e-7  # ... on several threads: until another thread has a task, and until it is known to have none


@dataclass(frozen=True)
class Machine:
    """The facts about a target that the cost model reads."""

    target: Target
    threads: int
    pipes: Pipes

    def lanes(self, itemsize: int) -> int:
        return max(1, self.target.vector_bytes // itemsize)

    @property
    def line_bytes(self) -> int:
        return self.target.line_bytes or LINE_BYTES

    @property
    def larger(self) -> float:
        """How many times the first level's lines the second one has."""
        return self.target.l2_bytes / self.target.l1_bytes

    @property
    def registers(self) -> int:
        return self.target.n_vector_registers

    @property
    def page_visit(self) -> float:
        """Cycles of going to a page that the second level cache does not hold."""
        known = self.pipes.page_visit
        return PAGE_VISIT.get(self.target.vector_bytes, 0.0) if known is None else known

    @property
    def finds_again(self) -> bool:
        """Whether finding pages and lines that tile after tile reads is counted."""
        return self.target.vector_bytes < 64

    @property
    def nan_test(self) -> float:
        """Slots of finding NaN in a vector of which minima or maxima are taken."""
        return NAN_TEST.get(self.target.vector_bytes, 0.0)

    @property
    def accumulator_step(self) -> float:
        """Cycles until a multiply-add can be accumulated into."""
        return ACCUMULATOR_STEP.get(self.target.vector_bytes, FMA_LATENCY)

    @property
    def tile_begin(self) -> float:
        """Cycles that a register tile waits behind one with more accumulators than keep the pipes busy."""
        return TILE_BEGIN.get(self.target.vector_bytes, 0.0)

    @property
    def beside(self) -> float:
        """Bytes that are fetched with each piece of a long row into the second level cache."""
        return BESIDE.get(self.target.vector_bytes, 0.0)

    @property
    def accumulator_limit(self) -> int:
        """Registers that may hold accumulators: 28 of 32, 14 of 16; the rest are for operands."""
        return self.registers - max(2, self.registers // 8)

    @property
    def cache_bytes(self) -> tuple[float, float, float]:
        """Usable bytes of L1, L2 and a thread's share of L3."""
        t = self.target
        l3 = max(t.l3_bytes / self.threads, t.l2_bytes)
        return CACHE_SHARE * t.l1_bytes, CACHE_SHARE * t.l2_bytes, CACHE_SHARE * l3


def machine(target: Target, threads: int) -> Machine:
    """The cost model's view of `target` with `threads` threads."""
    return Machine(target, max(1, threads), PIPES.get(target.mcpu, DEFAULT_PIPES))

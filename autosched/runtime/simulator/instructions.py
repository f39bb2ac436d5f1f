"""PTX instructions of the simulator: their names, operands and functions.

A helper of generated CUDA C with PTX has one of these instructions, and besides it only those that set and read a
predicate (`setp`, `selp`). A new instruction is a row here, a function in `native/instructions.h`, and a test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Effect(Enum):
    """What a compiler must know of a statement with an instruction."""

    VALUE = "that of its operands: it may be moved or left out as an addition may"
    THREADS = "of other threads: volatile keeps it in its place among the others"
    MEMORY = 'of memory: volatile, and "memory" keeps loads and stores from passing it'


class PtxOperand(Enum):
    """How an operand becomes an argument."""

    VALUE = "a register, a number or a predicate"
    RESULT = "the register or predicate that the function's value goes to"
    VALUES = "registers in braces, which are read: an array"
    PLACES = "registers in braces, which are written, now or later: an array of pointers"
    EITHER = "one register, or registers in braces that are read, now or later: two arrays"
    NONE = "not passed on"


@dataclass(frozen=True)
class Instruction:
    """`pattern`: a regular expression for the name. `function`: a C++ function, with the groups of the pattern
    inserted: words, or true and false for optional groups that begin with a dot.

    `operands` in their order, those of an address one by one; the last `optional` may be missing.
    """

    pattern: str
    function: str
    operands: tuple[PtxOperand, ...] = ()
    optional: int = 0
    effect: Effect = Effect.MEMORY

    @property
    def counts(self) -> tuple[int, ...]:
        most = len(self.operands)
        return tuple(range(most - self.optional, most + 1))


def _with(effect: Effect, *rows: Instruction) -> tuple[Instruction, ...]:
    return tuple(replace(row, effect=effect) for row in rows)


V, R, NONE = PtxOperand.VALUE, PtxOperand.RESULT, PtxOperand.NONE
VALUES, PLACES, EITHER = PtxOperand.VALUES, PtxOperand.PLACES, PtxOperand.EITHER
HERE = r"\.shared(?:::cta)?"
NUMBER = r"(f32|f16|bf16|tf32|s8|u8|e4m3|e5m2|s32)"
LOAD = r"cp\.async\.bulk\.tensor\.([1-5])d\.shared::(?:cluster|cta)\.global"
ARRIVES = r"\.mbarrier::complete_tx::bytes"

NUMBERS = _with(
    Effect.VALUE,
    Instruction(r"(min|max)\.NaN\.f32", "{}_nan", (R, V, V)),
    Instruction(r"ex2\.approx\.ftz\.f32", "exp2_of_float", (R, V)),
    Instruction(r"cvt\.f32\.f16", "float_of_half", (R, V)),
    Instruction(r"cvt\.rn\.f16\.f32", "half_of_float", (R, V)),
    Instruction(r"cvt\.rn\.bf16\.f32", "bfloat_of_float", (R, V)),
    Instruction(r"cvt\.rn\.f16x2\.f32", "halves_of_floats", (R, V, V)),
    Instruction(r"cvt\.rn\.bf16x2\.f32", "bfloats_of_floats", (R, V, V)),
    Instruction(r"cvt\.rn\.satfinite\.(e4m3|e5m2)x2\.f32", "{}_of_floats", (R, V, V)),
    Instruction(r"cvt\.rna\.tf32\.f32", "tf32_of_float", (R, V)),
    Instruction(r"dp4a\.([us])32\.([us])32", "dp4a_{}{}", (R, V, V, V)),
    Instruction(r"mov\.[bu](?:32|64)", "same", (R, V)),
    Instruction(r"mapa\.shared::cluster\.u32", "mapa", (R, V, V)),
)
COPIES = (
    Instruction(rf"cp\.async\.c[ag]{HERE}\.global(?:\.L2::\d+B)?", "cp_async", (V, V, V, V), optional=1),
    Instruction(r"cp\.async\.commit_group", "cp_async_commit_group"),
    Instruction(r"cp\.async\.wait_group", "cp_async_wait_group", (V,)),
    Instruction(r"cp\.async\.wait_all", "cp_async_wait_all"),
    Instruction(rf"cp\.async\.mbarrier\.arrive\.noinc{HERE}\.b64", "cp_async_arrive", (V,)),
)
MATRICES = (
    Instruction(rf"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?{HERE}\.b16", "load_matrices<{}, {}>", (PLACES, V)),
    Instruction(
        rf"stmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?{HERE}\.b16", "store_matrices<{}, {}>", (V, VALUES)
    ),
    Instruction(
        rf"mma\.sync\.aligned\.m(8|16)n8k(\d+)\.row\.col(\.satfinite)?\.{NUMBER}\.{NUMBER}\.{NUMBER}\.(?:f32|f16|s32)",
        "mma<{}, {}, {}, simulator::{}, simulator::{}, simulator::{}>",
        (PLACES, VALUES, VALUES, VALUES),
        effect=Effect.THREADS,
    ),
    Instruction(r"elect\.sync", "elect", (R, V), effect=Effect.THREADS),
)
BARRIERS = (
    Instruction(r"bar(?:rier)?\.sync(?:\.aligned)?", "bar_sync", (V, V), optional=1),
    Instruction(r"bar(?:rier)?\.arrive(?:\.aligned)?", "bar_arrive", (V, V)),
    Instruction(rf"mbarrier\.init{HERE}\.b64", "mbarrier_init", (V, V)),
    Instruction(rf"mbarrier\.inval{HERE}\.b64", "mbarrier_inval", (V,)),
    Instruction(
        rf"mbarrier\.arrive\.expect_tx(?:\.release\.cta)?{HERE}\.b64", "mbarrier_arrive_expect_tx", (NONE, V, V)
    ),
    Instruction(rf"mbarrier\.expect_tx(?:\.relaxed\.cta)?{HERE}\.b64", "mbarrier_expect_tx", (V, V)),
    Instruction(
        r"mbarrier\.arrive(?:\.release\.(?:cta|cluster))?\.shared(?:::cta|::cluster)?\.b64", "mbarrier_arrive",
        (NONE, V, V), optional=1,
    ),
    Instruction(
        rf"mbarrier\.(?:try|test)_wait\.parity(?:\.acquire\.(?:cta|cluster))?{HERE}\.b64", "mbarrier_wait",
        (R, V, V, V), optional=1,
    ),
    Instruction(r"barrier\.cluster\.arrive(?:\.release|\.relaxed)?(?:\.aligned)?", "cluster_arrive"),
    Instruction(r"barrier\.cluster\.wait(?:\.acquire)?(?:\.aligned)?", "cluster_wait"),
    Instruction(r"fence\.proxy\.async(?:\.shared::cta|\.global)?", "fence_proxy"),
    Instruction(r"fence\.mbarrier_init\.release\.cluster", "show_barriers"),
)  # fmt: skip
ENGINE = (
    Instruction(rf"{LOAD}(?:\.tile)?{ARRIVES}", "load_tile<{}>", (V, V, VALUES, V)),
    Instruction(rf"{LOAD}(?:\.tile)?{ARRIVES}\.multicast::cluster", "load_tile<{}>", (V, V, VALUES, V, V)),
    Instruction(rf"{LOAD}\.im2col{ARRIVES}", "load_pixels<{}>", (V, V, VALUES, V, VALUES)),
    Instruction(rf"{LOAD}\.im2col{ARRIVES}\.multicast::cluster", "load_pixels<{}>", (V, V, VALUES, V, VALUES, V)),
    Instruction(
        r"cp\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta(?:\.tile)?\.bulk_group",
        "store_tile<{}>",
        (V, VALUES, V),
    ),
    Instruction(
        r"cp\.reduce\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta\.add(?:\.tile)?\.bulk_group",
        "add_tile<{}>",
        (V, VALUES, V),
    ),
    Instruction(rf"cp\.async\.bulk\.shared::(?:cluster|cta)\.global{ARRIVES}", "load_bytes", (V, V, V, V)),
    Instruction(r"cp\.async\.bulk\.global\.shared::cta\.bulk_group", "store_bytes", (V, V, V)),
    Instruction(r"cp\.async\.bulk\.commit_group", "commit_stores"),
    Instruction(r"cp\.async\.bulk\.wait_group(?:\.read)?", "wait_for_stores", (V,)),
    Instruction(r"prefetch\.tensormap", "nothing", (NONE,), effect=Effect.THREADS),
)
WARPGROUPS = (
    Instruction(r"wgmma\.fence\.sync\.aligned", "wgmma_fence"),
    Instruction(r"wgmma\.commit_group\.sync\.aligned", "wgmma_commit_group"),
    Instruction(r"wgmma\.wait_group\.sync\.aligned", "wgmma_wait_group", (V,)),
    Instruction(
        rf"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.{NUMBER}\.{NUMBER}\.{NUMBER}",
        "wgmma<{}, {}, simulator::{}, simulator::{}, simulator::{}>",
        (PLACES, EITHER, V, V, V, V, V, V), optional=4, effect=Effect.THREADS,
    ),
    Instruction(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32", "{}_registers", (V,), effect=Effect.THREADS),
    Instruction(r"griddepcontrol\.launch_dependents", "nothing"),
    Instruction(r"griddepcontrol\.wait", "wait_for_kernels"),
)  # fmt: skip
INSTRUCTIONS: tuple[Instruction, ...] = (*NUMBERS, *COPIES, *MATRICES, *BARRIERS, *ENGINE, *WARPGROUPS)

"""Products of small matrices that the threads of a warp compute together, one instruction each: tensor cores of GPUs.

    D[i, j] += sum over l of A[i, l] * B[l, j]        0 <= i < m, 0 <= j < n, 0 <= l < k

A warp is 4 threads along x by 8 along y. Thread (x, y) has rows y and y + 8 of D, and of each columns 2x and 2x + 1: a
tile like any other, whose loops are split, unrolled and bound as usual. So a store that names a row of MATRICES means
what it says, element by element, and the row says how it is done: with the loops directly around it, which are over
the thread's rows, its columns and k, it is one operation of a warp (`codegen/c/matrices.py`).

Products of the operands are exact in the accumulator. What is added up inside of an instruction is cut off to the
exponent of the largest, not rounded, which the bound of a sum covers: it has two units for each term.

Sources: PTX ISA, "Matrix Fragments for mma.m16n8k16"; the architecture papers of the cards in `target/gpu.py`; for
sm_90 Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", table of mma instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosched.ir.dots import factors
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr, Load
from autosched.ir.stmt import Reducer

ACROSS, DOWN = 4, 8  # threads of a warp along the columns of D, and along its rows
HALVES, NEIGHBOURS = 2, 2  # rows of a thread, which lie `DOWN` apart, and columns, which lie next to each other
SLOWEST = "sm_86"  # whose rate a device has that is not known


@dataclass(frozen=True)
class MatrixIntrinsic:
    """D of `accumulator` += A of `operand` times B of `operand`, of m by n by k elements. `instruction`: its PTX name.

    `rates`: multiply-adds that a multiprocessor does in a cycle, by compute capability.
    """

    name: str
    operand: str
    accumulator: str
    m: int
    n: int
    k: int
    instruction: str
    rates: Mapping[str, int]

    @property
    def can_lie_across(self) -> bool:
        """Whether matrices of an operand whose rows lie across k are transposed on the way into registers."""
        return DTYPES[self.operand].nbytes > 1

    @property
    def updates(self) -> int:
        """Of elements by a thread, in one instruction."""
        return HALVES * NEIGHBOURS * self.k

    def rate(self, arch: str) -> int:
        return self.rates.get(arch, self.rates[SLOWEST])


# Recalled from the papers, not measured; sm_100 as sm_80. sm_90 and sm_100 have faster instructions than these.
_OF_16_BITS = {"sm_80": 1024, "sm_86": 256, "sm_89": 256, "sm_90": 1288, "sm_100": 1024, "sm_120": 256}
_OF_8_BITS = {"sm_80": 2048, "sm_86": 1024, "sm_89": 1024, "sm_90": 2576, "sm_100": 2048, "sm_120": 1024}
MATRICES: dict[str, MatrixIntrinsic] = {
    row.name: row
    for row in (
        MatrixIntrinsic("mma.float16", "float16", "float32", 16, 8, 16,
                        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", _OF_16_BITS),
        MatrixIntrinsic("mma.bfloat16", "bfloat16", "float32", 16, 8, 16,
                        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", _OF_16_BITS),
        MatrixIntrinsic("mma.int8", "int8", "int32", 16, 8, 32,
                        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", _OF_8_BITS),
        MatrixIntrinsic("mma.uint8", "uint8", "int32", 16, 8, 32,
                        "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32", _OF_8_BITS),
    )
}  # fmt: skip


def matrix_factors(body: tuple[Expr, ...], reducer: Reducer | None) -> tuple[MatrixIntrinsic, Load, Load] | None:
    """The row that adds up what a reduction computes, and its two operands; None where there is none."""
    if len(body) != 1 or reducer is None or not reducer.is_sum:
        return None
    pair = factors(body[0], body[0].dtype)
    if pair is None:
        return None
    kinds = {x.dtype for x in pair}
    row = next((r for r in MATRICES.values() if kinds == {r.operand} and body[0].dtype == r.accumulator), None)
    return None if row is None else (row, *pair)

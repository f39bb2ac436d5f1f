"""Matrix instructions of warps (tensor cores): products of small matrices that a warp's threads compute together.

    D[i, j] += sum over l of A[i, l] * B[l, j]        0 <= i < m, 0 <= j < n, 0 <= l < k

A warp is 4 threads along x by 8 along y. Thread (x, y) has rows y and y + 8 of D, and of each columns 2x and 2x + 1: a
tile like any other, whose loops are split, unrolled and bound as usual. So a store that names a row of MATRICES means
what it says, element by element, and the row says how it is done: with the loops directly around it, which are over
the thread's rows, its columns and k, it is one operation of a warp (`codegen/c/tiles/warp_matrices.py`).

Products of the operands are exact in the accumulator. What is added up inside of an instruction is cut off to the
exponent of the largest, not rounded, which the bound of a sum covers: it has two units for each term. Sums of 8-bit
floats are kept to 13 bits only. So rows called promoted add them to float32: warps after each instruction, warpgroups
every 128 terms. The others are for the precision "fp8-fast".

Sources: PTX ISA, "Matrix Fragments for mma.m16n8k16"; the architecture papers of the cards in `target/gpu.py`; for
sm_90 Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", table of mma instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Expr, Load, precision_of
from autosched.ir.instructions.dots import factors
from autosched.ir.instructions.precision import FAST_FLOAT8
from autosched.ir.stmt import Reducer

ACROSS, DOWN = 4, 8  # threads of a warp along the columns of D, and along its rows
HALVES, NEIGHBOURS = 2, 2  # rows of a thread, which lie `DOWN` apart, and columns, which lie next to each other
LINE = 16  # bytes that a lane names at a time of an operand's row
WORDS = {
    "float16": "f16", "bfloat16": "bf16", "int8": "s8", "uint8": "u8", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
}  # of PTX  # fmt: skip
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
PROMOTED = 128  # terms of 8-bit floats that a warpgroup adds up before float32 does
MOST_COLUMNS = 256  # of a product by a warpgroup


@dataclass(frozen=True)
class MatrixIntrinsic:
    """D of `accumulator` += A of `left` times B of `right`, of m by n by k elements. `instruction`: its PTX name.

    `rates`: multiply-adds that a multiprocessor does in a cycle, by compute capability, from `since` on. `rows`: those
    of A that an instruction takes; where they are fewer than m it is done as often as needed. `warps` do it together:
    each has 16 of the rows, and four of them all columns of a tile, so that `n` is a unit of these, {n} in the name.
    `precision`: that of its products, one of PRECISIONS. `promoted`: terms, a multiple of k, after which sums that the
    instruction keeps less precisely are added to registers of float32; 0: never.
    """

    name: str
    left: str
    right: str
    accumulator: str
    k: int
    instruction: str
    rates: Mapping[str, int]
    since: int = 80
    rows: int = HALVES * DOWN
    precision: str = ""
    promoted: int = 0
    m: int = HALVES * DOWN
    n: int = NEIGHBOURS * ACROSS
    warps: int = 1

    @property
    def can_lie_across(self) -> bool:
        """Whether matrices of an operand whose rows lie across k are transposed on the way into registers, or where
        warpgroups read them."""
        return DTYPES[self.left].nbytes > 1 if self.warps == 1 else DTYPES[self.left].nbytes == 2

    @property
    def parts(self) -> int:
        """Numbers that an operand becomes."""
        return 2 if self.precision == "3xtf32" else 1

    @property
    def registers(self) -> int:
        """Of a thread, for each word of an operand: floats of 8 bits become such of 16 on a device with no instruction
        for them, as a warp has none on sm_90."""
        return self.parts * (2 if self.left in FLOAT8 else 1)

    @property
    def deep(self) -> int:
        """Lines of 16 bytes of an operand's row."""
        return self.k * DTYPES[self.left].nbytes // LINE

    @property
    def updates(self) -> int:
        """Of elements by a thread, in one instruction."""
        return HALVES * NEIGHBOURS * self.k

    @property
    def times(self) -> int:
        """Instructions for m rows: of two parts small by big, big by small and big by big."""
        return self.m // self.rows * (2 * self.parts - 1)

    @property
    def pipe(self) -> str:
        """What of a device is busy with it: all rows of a pipe are equally fast, or nearly so."""
        return ".".join(self.name.split(".")[:2])

    def rate(self, arch: str) -> int:
        return self.rates.get(arch, min(self.rates.values()))


def _integers(name: str, left: str, right: str) -> tuple[MatrixIntrinsic, ...]:
    a, b = (f"{'u' if kind == 'uint8' else 's'}8" for kind in (left, right))
    kinds = f"row.col.s32.{a}.{b}.s32"
    return (
        MatrixIntrinsic(f"mma.{name}", left, right, "int32", 32, f"mma.sync.aligned.m16n8k32.{kinds}", _OF_8_BITS),
        MatrixIntrinsic(f"mma.{name}.k16", left, right, "int32", 16, f"mma.sync.aligned.m8n8k16.{kinds}", _OF_8_BITS,
                        since=75, rows=8),
    )  # fmt: skip


def _of_bytes(left: str, right: str) -> tuple[MatrixIntrinsic, ...]:
    kinds = ".".join(name.partition("_")[2][:4] for name in (left, right))
    name = left if left == right else f"{left}.{right}"
    row = MatrixIntrinsic(f"mma.{name}", left, right, "float32", 32,
                          f"mma.sync.aligned.m16n8k32.row.col.f32.{kinds}.f32", _OF_FLOAT8, since=89)  # fmt: skip
    return _promoted(row, row.k)


def _promoted(row: MatrixIntrinsic, every: int) -> tuple[MatrixIntrinsic, ...]:
    """Return the row for sums that are promoted, and the one for those that are not."""
    return replace(row, name=f"{row.name}.promoted", promoted=every), replace(row, precision=FAST_FLOAT8)


def _by_warpgroups(left: str, right: str) -> MatrixIntrinsic:
    is_float, k = DTYPES[left].is_float, 2 * LINE // DTYPES[left].nbytes
    accumulator, word = ("float32", "f32") if is_float else ("int32", "s32")
    return MatrixIntrinsic(f"wgmma.{left if left == right else f'{left}.{right}'}", left, right, accumulator, k,
                           f"wgmma.mma_async.sync.aligned.m64n{{n}}k{k}.{word}.{WORDS[left]}.{WORDS[right]}",
                           {"sm_90": 128 * k}, since=90, rows=64, m=64, warps=4)  # fmt: skip


# Recalled from the papers, not measured; sm_100 as sm_80. sm_90 and sm_100 have faster instructions than these.
_OF_16_BITS = {
    "sm_75": 512, "sm_80": 1024, "sm_86": 256, "sm_89": 256, "sm_90": 1288, "sm_100": 1024, "sm_120": 256,
}  # fmt: skip
_OF_8_BITS = {
    "sm_75": 1024, "sm_80": 2048, "sm_86": 1024, "sm_89": 1024, "sm_90": 2576, "sm_100": 2048, "sm_120": 1024,
}  # fmt: skip
# sm_90 and sm_100 unpack them and multiply numbers of 16 bits.
_OF_FLOAT8 = {"sm_89": 512, "sm_90": 1000, "sm_100": 800, "sm_120": 512}
_OF_TF32 = {"sm_80": 512, "sm_86": 128, "sm_89": 128, "sm_90": 644, "sm_100": 512, "sm_120": 128}
# Of several for the same types the first that a device has is taken.
MATRICES: dict[str, MatrixIntrinsic] = {
    row.name: row
    for row in (
        MatrixIntrinsic("mma.float16", "float16", "float16", "float32", 16,
                        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", _OF_16_BITS),
        MatrixIntrinsic("mma.float16.k8", "float16", "float16", "float32", 8,
                        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", _OF_16_BITS, since=75),
        MatrixIntrinsic("mma.bfloat16", "bfloat16", "bfloat16", "float32", 16,
                        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", _OF_16_BITS),
        *(
            MatrixIntrinsic(f"mma.{precision}", "float32", "float32", "float32", 8,
                            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
                            {arch: rate // share for arch, rate in _OF_TF32.items()}, precision=precision)
            for precision, share in (("tf32", 1), ("3xtf32", 3))
        ),
        *(row for a in FLOAT8 for b in FLOAT8 for row in _of_bytes(a, b)),
        *_integers("int8", "int8", "int8"),
        *_integers("uint8", "uint8", "uint8"),
        *_integers("uint8.int8", "uint8", "int8"),
        *_integers("int8.uint8", "int8", "uint8"),
        *(_by_warpgroups(x, x) for x in ("float16", "bfloat16")),
        MatrixIntrinsic("wgmma.tf32", "float32", "float32", "float32", 8,
                        "wgmma.mma_async.sync.aligned.m64n{n}k8.f32.tf32.tf32", {"sm_90": 1024}, since=90, rows=64,
                        precision="tf32", m=64, warps=4),
        *(row for a in FLOAT8 for b in FLOAT8 for row in _promoted(_by_warpgroups(a, b), PROMOTED)),
        *(_by_warpgroups(a, b) for a in ("int8", "uint8") for b in ("int8", "uint8")),
    )
}  # fmt: skip


@dataclass(frozen=True)
class MatrixOperands:
    """Of a sum of products: what is multiplied, how precisely, and what it is added up in."""

    a: Load
    b: Load
    accumulator: str
    precision: str

    @property
    def loads(self) -> tuple[Load, Load]:
        return self.a, self.b

    def row(self, left: Load, right: Load, capability: int, warps: int = 1) -> MatrixIntrinsic | None:
        """The row for products of these two, as A and B, by so many warps on a device of a compute capability, 90 for
        sm_90, if there is one."""
        rows = (r for r in MATRICES.values() if self.are_for(r, left, right) and r.since <= capability)
        return next((r for r in rows if r.warps == warps), None)

    def are_for(self, row: MatrixIntrinsic, left: Load, right: Load) -> bool:
        wanted = (left.dtype, right.dtype, self.accumulator, self.precision)
        return (row.left, row.right, row.accumulator, row.precision) == wanted


def matrix_operands(body: tuple[Expr, ...], reducer: Reducer | None) -> MatrixOperands | None:
    """What a reduction adds up, if that are products of two elements."""
    if len(body) != 1 or reducer is None or not reducer.is_sum:
        return None
    value = body[0]
    pair = factors(value, value.dtype)
    if pair is None or not isinstance(value, Binary):
        return None
    allowed = {precision_of(x) for x in (value.a, value.b)}
    return MatrixOperands(*pair, value.dtype, allowed.pop()) if len(allowed) == 1 else None

"""Weights as llama.cpp stores them: blocks of bytes, each with low-bit codes and its own scales.

    dequantized(blocks, format)[..., k]            the numbers
    product_of_blocks(x, blocks, format)[..., n]   sum over k of x[..., k] * dequantized(blocks, format)[n, k]

A block of a row holds `parts` times `lanes` numbers: the number part * lanes + lane of a block is
`element(byte, part, lane)`, where byte(at) is the byte `at` of the block as int32. `part` may be a Python int, so that
shifts and offsets are constants in the product, or an expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

from autosched import te
from autosched.ir.expr import Expr
from autosched.te.tensor import Tensor

Place: TypeAlias = "Expr | int"
Byte: TypeAlias = Callable[[Place], Expr]

FUSED_ROWS = 16  # of x at most for which the codes are unpacked within the product, once for each row of x


@dataclass(frozen=True)
class BlockFormat:
    """`nbytes` of a block, the count of its `parts` and their `lanes`, and the number at a place of it."""

    nbytes: int
    parts: int
    lanes: int
    element: Callable[[Byte, Place, Place], Expr]

    @property
    def elements(self) -> int:
        """How many numbers a block holds."""
        return self.parts * self.lanes


def dequantized(blocks: Tensor, block: BlockFormat) -> Tensor:
    """The numbers [..., K] of blocks[..., K / elements * nbytes], in float32."""
    *outer, width = blocks.shape

    def at(*i: Expr) -> Expr:
        *row, k = i
        place = k % block.elements
        byte = _bytes_of(blocks, tuple(row), k // block.elements, block)
        return block.element(byte, place // block.lanes, place % block.lanes)

    made: Tensor = te.compute((*outer, width // block.nbytes * block.elements), at, name="dequantized")
    return made


def product_of_blocks(x: Tensor, blocks: Tensor, block: BlockFormat) -> Tensor:
    """x[..., K] times the transposed numbers of blocks[N, K / elements * nbytes], in float32."""
    rows, (width, nbytes) = x.shape[:-1], blocks.shape
    if reduce(lambda a, b: a * b, rows, 1) > FUSED_ROWS:
        return _product_of_numbers(x, dequantized(blocks, block))
    b, lane = te.reduce_axis(nbytes // block.nbytes, name="b"), te.reduce_axis(block.lanes, name="l")

    def term(*i: Expr) -> Expr:
        *row, n = i
        byte, first = _bytes_of(blocks, (n,), b, block), b * block.elements
        terms = [
            te.cast(x[(*row, first + part * block.lanes + lane)], "float32") * block.element(byte, part, lane)
            for part in range(block.parts)
        ]
        return reduce(lambda one, other: one + other, terms)

    made: Tensor = te.compute((*rows, width), lambda *i: te.sum(term(*i), axis=[b, lane]), name="linear")
    return made


def _product_of_numbers(x: Tensor, weight: Tensor) -> Tensor:
    k = te.reduce_axis(weight.shape[1], name="k")
    made: Tensor = te.compute(
        (*x.shape[:-1], weight.shape[0]),
        lambda *i: te.sum(te.cast(x[(*i[:-1], k)], "float32") * weight[i[-1], k], axis=k),
        name="linear",
    )
    return made


def _bytes_of(blocks: Tensor, row: tuple[Expr, ...], number: Expr, block: BlockFormat) -> Byte:
    return lambda at: te.cast(blocks[(*row, number * block.nbytes + at)], "int32")


# The formats


def _half(byte: Byte, at: int) -> Expr:
    """The float16 whose bytes begin at `at`, as float32."""
    return te.cast(te.bitcast(te.cast(byte(at) | (byte(at + 1) << 8), "uint16"), "float16"), "float32")


def _signed(byte: Expr) -> Expr:
    return te.cast(te.bitcast(te.cast(byte, "uint8"), "int8"), "float32")


def _q4_0(byte: Byte, part: Place, lane: Place) -> Expr:
    """A scale; the low halves of 16 bytes, then the high ones."""
    return te.cast(((byte(2 + lane) >> part * 4) & 15) - 8, "float32") * _half(byte, 0)


def _q8_0(byte: Byte, part: Place, lane: Place) -> Expr:
    """A scale and 32 signed bytes."""
    return _signed(byte(2 + lane)) * _half(byte, 0)


def _q4_k(byte: Byte, part: Place, lane: Place) -> Expr:
    """A scale of scales, one of minima, 12 bytes of 8 scales and 8 minima, and 4 times 32 bytes of two parts each."""
    code = te.cast((byte(16 + part // 2 * 32 + lane) >> part % 2 * 4) & 15, "float32")

    def six_bits(first: int) -> Expr:
        """Scale or minimum of the part; the upper bits of the last four lie in the bytes of the first four."""
        if isinstance(part, int):
            return early(first) if part < 4 else late(first)
        return te.select(part < 4, early(first), late(first))

    def early(first: int) -> Expr:
        return byte(first + part) & 63

    def late(first: int) -> Expr:
        return ((byte(8 + part) >> (first - 4)) & 15) | ((byte(first + part - 4) >> 6) << 4)

    scale, minimum = (te.cast(six_bits(first), "float32") for first in (4, 8))
    return code * (scale * _half(byte, 0)) - minimum * _half(byte, 2)


def _q6_k(byte: Byte, part: Place, lane: Place) -> Expr:
    """128 bytes of low halves, 64 of upper quarters, 16 signed scales, and a scale of these."""
    half, quarter, side = part // 8, part % 8 // 2, part % 2 * 16
    low = (byte(half * 64 + quarter % 2 * 32 + side + lane) >> quarter // 2 * 4) & 15
    high = (byte(128 + half * 32 + side + lane) >> quarter * 2) & 3
    return te.cast((low | (high << 4)) - 32, "float32") * (_signed(byte(192 + part)) * _half(byte, 208))


BLOCK_FORMATS: Mapping[str, BlockFormat] = {
    "Q4_0": BlockFormat(18, 2, 16, _q4_0),
    "Q8_0": BlockFormat(34, 1, 32, _q8_0),
    "Q4_K": BlockFormat(144, 8, 32, _q4_k),
    "Q6_K": BlockFormat(210, 16, 16, _q6_k),
}

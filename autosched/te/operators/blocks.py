"""Weights as llama.cpp stores them: blocks of bytes, each with low-bit codes and its own scales.

    dequantized(blocks, format)[..., k]            the numbers, (code - zero) * scale - minimum
    product_of_blocks(x, blocks, format)[..., n]   sum over k of x[..., k] * dequantized(blocks, format)[n, k]
    chosen_product(x, blocks, ids, format)         the same of the matrices of blocks[E, N, bytes] that `ids` say

The numbers of a block are counted by digits, of which the last is a lane. All lanes at the others, a `ScaleGroup`,
share scale and minimum; the product sums their codes first. In it `part` is a Python int, so that shifts and what
depends on it are constants, and the bytes at other digits lie at constant strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

from autosched import te
from autosched.ir.expr import Expr
from autosched.te.tensor import Tensor

Place: TypeAlias = "Expr | int"
Byte: TypeAlias = Callable[[Place], Expr]  # the byte of a block at a place, as int32

FUSED_ROWS = 16  # of x at most for which codes are unpacked within the product
CODES = 64  # a term of the product sums about so many
CHAIN = 8  # terms are added one after the other in chains of so many


@dataclass(frozen=True)
class ScaleGroup:
    """The digits of numbers that share a scale."""

    outer: Place
    part: Place
    inner: Place


@dataclass(frozen=True)
class BlockFormat:
    """A block of `nbytes`: how many of each digit there are, and what the bytes say.

    `code`: of a lane, as float32; `scale` and `minimum` of a group. `zero`: the code of 0.
    """

    nbytes: int
    outer: int
    parts: int
    inner: int
    lanes: int
    code: Callable[[Byte, ScaleGroup, Place], Expr]
    scale: Callable[[Byte, ScaleGroup], Expr]
    minimum: Callable[[Byte, ScaleGroup], Expr] | None = None
    zero: float = 0.0

    @property
    def elements(self) -> int:
        """How many numbers a block holds."""
        return self.outer * self.parts * self.inner * self.lanes

    def first(self, at: ScaleGroup) -> Place:
        """The number of lane 0."""
        return ((at.outer * self.parts + at.part) * self.inner + at.inner) * self.lanes

    def number(self, byte: Byte, at: ScaleGroup, lane: Place) -> Expr:
        """The number of a lane."""
        code = self.code(byte, at, lane)
        value = (code - self.zero if self.zero else code) * self.scale(byte, at)
        return value if self.minimum is None else value - self.minimum(byte, at)

    def group(self, number: Expr) -> ScaleGroup:
        groups = number // self.lanes
        return ScaleGroup(groups // (self.inner * self.parts), groups // self.inner % self.parts, groups % self.inner)


def dequantized(blocks: Tensor, block: BlockFormat) -> Tensor:
    """The numbers [..., K] of blocks[..., K / elements * nbytes], in float32."""
    *outer, width = blocks.shape

    def at(*i: Expr) -> Expr:
        *row, k = i
        number = k % block.elements
        byte, group = _bytes_of(blocks, tuple(row), k // block.elements, block), block.group(number)
        return block.number(byte, group, number % block.lanes)

    made: Tensor = te.compute((*outer, width // block.nbytes * block.elements), at, name="dequantized")
    return made


def product_of_blocks(x: Tensor, blocks: Tensor, block: BlockFormat) -> Tensor:
    """x[..., K] times the transposed numbers of blocks[N, K / elements * nbytes], in float32."""
    rows, width = x.shape[:-1], blocks.shape[0]
    if math.prod(rows) > FUSED_ROWS:
        return _product_of_numbers(x, dequantized(blocks, block))
    nbytes, together = blocks.shape[1], min(block.lanes, CODES // block.parts)
    b, lanes = te.reduce_axis(nbytes // block.nbytes, name="b"), block.lanes // together
    digits = {"outer": block.outer, "inner": block.inner, "lanes": lanes}
    axes = {name: te.reduce_axis(n, name=name) for name, n in digits.items() if n > 1}
    outer, inner, some = (axes.get(name, 0) for name in digits)
    sums = None if not block.zero and block.minimum is None else _sums(x, block, together)

    def term(*i: Expr) -> Expr:
        *row, n = i
        byte = _bytes_of(blocks, (n,), b, block)

        def of_part(part: int) -> Expr:
            group, first = ScaleGroup(outer, part, inner), some * together
            start = b * block.elements + block.first(group) + first
            factors = [te.cast(x[(*row, start + lane)], "float32") for lane in range(together)]
            codes = [block.code(byte, group, first + lane) for lane in range(together)]
            total = _sum([factor * code for factor, code in zip(factors, codes, strict=True)])
            if sums is None:
                return total * block.scale(byte, group)
            added = sums[(*row, b, outer, part, inner, some)]
            total = (total - added * block.zero if block.zero else total) * block.scale(byte, group)
            return total if block.minimum is None else total - added * block.minimum(byte, group)

        return _sum([of_part(part) for part in range(block.parts)])

    made: Tensor = te.compute((*rows, width), lambda *i: te.sum(term(*i), axis=[b, *axes.values()]), name="linear")
    return made


def chosen_product(x: Tensor, blocks: Tensor, ids: Tensor, block: BlockFormat) -> Tensor:
    """x[T, K] or x[T, C, K] times the transposed numbers of the matrix ids[t, c] of blocks[E, N, bytes], one of the E:
    [T, C, N] in float32. A matrix is read as it is stored, so that lanes are those of vectors."""
    own, b = len(x.shape) - 1, te.reduce_axis(blocks.shape[-1] // block.nbytes, name="b")
    digits = {"outer": block.outer, "inner": block.inner, "lane": block.lanes}
    axes = {name: te.reduce_axis(n, name=name) for name, n in digits.items() if n > 1}
    outer, inner, lane = (axes.get(name, 0) for name in digits)

    def term(*i: Expr) -> Expr:
        byte = _bytes_of(blocks, (te.cast(ids[i[:-1]], "int64"), i[-1]), b, block)
        groups = [ScaleGroup(outer, part, inner) for part in range(block.parts)]
        places = [(*i[:own], b * block.elements + block.first(at) + lane) for at in groups]
        factors = [te.cast(x[place], "float32") for place in places]
        return _sum([f * block.number(byte, at, lane) for f, at in zip(factors, groups, strict=True)])

    shape, summed = (*ids.shape, blocks.shape[1]), [b, *axes.values()]
    made: Tensor = te.compute(shape, lambda *i: te.sum(term(*i), axis=summed), name="linear")
    return made


def _sums(x: Tensor, block: BlockFormat, together: int) -> Tensor:
    """The sums of those numbers of x that are multiplied by codes of one scale in a term."""
    *rows, depth = x.shape
    shape = (*rows, depth // block.elements, block.outer, block.parts, block.inner, block.lanes // together)
    k = te.reduce_axis(together, name="k")

    def at(*i: Expr) -> Expr:
        *row, b, outer, part, inner, some = i
        first = b * block.elements + block.first(ScaleGroup(outer, part, inner)) + some * together
        return te.sum(te.cast(x[(*row, first + k)], "float32"), axis=k)

    made: Tensor = te.compute(shape, at, name="sums")
    return made


def _product_of_numbers(x: Tensor, weight: Tensor) -> Tensor:
    k = te.reduce_axis(weight.shape[1], name="k")
    made: Tensor = te.compute(
        (*x.shape[:-1], weight.shape[0]),
        lambda *i: te.sum(te.cast(x[(*i[:-1], k)], "float32") * weight[i[-1], k], axis=k),
        name="linear",
    )
    return made


def _sum(terms: list[Expr]) -> Expr:
    chains = [reduce(lambda a, b: a + b, terms[n : n + CHAIN]) for n in range(0, len(terms), CHAIN)]
    return chains[0] if len(chains) == 1 else _sum(chains)


def _bytes_of(blocks: Tensor, row: tuple[Expr, ...], number: Expr, block: BlockFormat) -> Byte:
    return lambda at: te.cast(blocks[(*row, number * block.nbytes + at)], "int32")


# The formats


def _half(byte: Byte, at: int) -> Expr:
    """The float16 whose bytes begin at `at`, as float32."""
    return te.cast(te.bitcast(te.cast(byte(at) | (byte(at + 1) << 8), "uint16"), "float16"), "float32")


def _signed(byte: Expr) -> Expr:
    return te.cast(te.bitcast(te.cast(byte, "uint8"), "int8"), "float32")


def _first_half(byte: Byte, at: ScaleGroup) -> Expr:
    """The scale of a block that begins with it."""
    return _half(byte, 0)


def _q4_0_code(byte: Byte, at: ScaleGroup, lane: Place) -> Expr:
    """The low halves of 16 bytes, then the high ones."""
    return te.cast((byte(2 + lane) >> at.part * 4) & 15, "float32")


def _q8_0_code(byte: Byte, at: ScaleGroup, lane: Place) -> Expr:
    return _signed(byte(2 + lane))


def _q4_k_code(byte: Byte, at: ScaleGroup, lane: Place) -> Expr:
    """4 times 32 bytes of two parts each."""
    return te.cast((byte(16 + at.part // 2 * 32 + lane) >> at.part % 2 * 4) & 15, "float32")


def _q4_k_scale(byte: Byte, at: ScaleGroup) -> Expr:
    return _six_bits(byte, at.part, 4) * _half(byte, 0)


def _q4_k_minimum(byte: Byte, at: ScaleGroup) -> Expr:
    return _six_bits(byte, at.part, 8) * _half(byte, 2)


def _six_bits(byte: Byte, part: Place, first: int) -> Expr:
    """Scale or minimum of a part, from the bytes at `first`; the upper bits of the last four are those of the bytes of
    the first four."""

    def early() -> Expr:
        return byte(first + part) & 63

    def late() -> Expr:
        return ((byte(8 + part) >> (first - 4)) & 15) | ((byte(first + part - 4) >> 6) << 4)

    if isinstance(part, int):
        return te.cast(early() if part < 4 else late(), "float32")
    return te.cast(te.select(part < 4, early(), late()), "float32")


def _q6_k_code(byte: Byte, at: ScaleGroup, lane: Place) -> Expr:
    """128 bytes of low halves, then 64 of upper quarters."""
    quarter, column = at.part, at.inner * 16 + lane
    low = (byte(at.outer * 64 + quarter % 2 * 32 + column) >> quarter // 2 * 4) & 15
    high = byte(128 + at.outer * 32 + column)
    if isinstance(quarter, int):
        high = (high << 4 - quarter * 2 if quarter < 2 else high >> quarter * 2 - 4) & 48
    else:
        high = ((high >> quarter * 2) & 3) << 4
    return te.cast(low | high, "float32")


def _q6_k_scale(byte: Byte, at: ScaleGroup) -> Expr:
    """16 signed scales, and a scale of these."""
    return _signed(byte(192 + at.outer * 8 + at.part * 2 + at.inner)) * _half(byte, 208)


BLOCK_FORMATS: Mapping[str, BlockFormat] = {
    "Q4_0": BlockFormat(18, 1, 2, 1, 16, _q4_0_code, _first_half, zero=8.0),
    "Q8_0": BlockFormat(34, 1, 1, 1, 32, _q8_0_code, _first_half),
    "Q4_K": BlockFormat(144, 1, 8, 1, 32, _q4_k_code, _q4_k_scale, _q4_k_minimum),
    "Q6_K": BlockFormat(210, 2, 4, 2, 16, _q6_k_code, _q6_k_scale, zero=32.0),
}

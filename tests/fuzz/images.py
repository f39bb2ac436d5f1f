"""Convolutions as networks have them: small numbers, channels first or last, a border, groups, an epilogue.

Tensor cores take these, where their channels and outputs are enough.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from autosched import te
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te import Tensor

CHANNELS, FILTERS = (1, 3, 4, 8, 12, 16, 24, 32, 32, 64), (5, 8, 12, 16, 17, 24, 40, 64)
EXTENTS = (1, 3, 5, 6, 7, 9, 13)
DTYPES_OF_IMAGES = ("bfloat16", "bfloat16", "float16", "int8", "uint8")
MOST_PRODUCTS = 1 << 21


@dataclass(frozen=True)
class ImageProduct:
    """A convolution: sizes are the image's, without its border of `pad`."""

    dtype: str
    images: int
    sizes: tuple[int, ...]
    channels: int
    filters: int
    taps: tuple[int, ...]
    stride: int
    dilation: int
    pad: int
    is_first: bool  # channels before the sizes
    is_finished: bool  # stored in the type of the image, with a bias in between
    groups: int  # each of so many channels and filters

    @staticmethod
    def random(rng: random.Random) -> ImageProduct:
        while True:
            rank = rng.choice((1, 2, 2, 2, 3))
            made = ImageProduct(
                rng.choice(DTYPES_OF_IMAGES), rng.choice((1, 1, 2, 3)), tuple(rng.choice(EXTENTS) for _ in range(rank)),
                rng.choice(CHANNELS), rng.choice(FILTERS), tuple(rng.choice((1, 2, 3, 3)) for _ in range(rank)),
                rng.choice((1, 1, 1, 2, 3)), rng.choice((1, 1, 2)), rng.choice((0, 1, 1, 2)),
                rng.random() < 0.3, rng.random() < 0.6, rng.choice((1, 1, 1, 1, 2, 3)),
            )  # fmt: skip
            products = math.prod((made.images, made.groups, made.channels, made.filters, *made.taps, *made.places))
            if min(made.places) > 0 and products <= MOST_PRODUCTS:
                return made

    @property
    def places(self) -> tuple[int, ...]:
        spans = ((t - 1) * self.dilation + 1 for t in self.taps)
        return tuple((n + 2 * self.pad - s) // self.stride + 1 for n, s in zip(self.sizes, spans, strict=True))

    def ordered(self, n: Any, sizes: Any, *c: Any) -> tuple[Any, ...]:
        """Of an image: its number, places and channel, or group and channel, in their order."""
        return (n, *c, *sizes) if self.is_first else (n, *sizes, *c)

    def parts(self, index: tuple[Expr, ...]) -> tuple[Expr, tuple[Expr, ...], tuple[Expr, ...]]:
        rank = len(self.sizes)
        return (
            (index[0], index[-rank:], index[1:-rank])
            if self.is_first
            else (index[0], index[1 : rank + 1], index[rank + 1 :])
        )

    def tensors(self, prefix: str) -> list[Tensor]:
        """The stages, in order."""
        image = te.placeholder(
            self.ordered(self.images, self.sizes, self.groups * self.channels), self.dtype, f"{prefix}X"
        )
        filters = self.groups * self.filters
        kernel = (filters, self.channels, *self.taps) if self.is_first else (*self.taps, self.channels, filters)
        weights, zero = te.placeholder(kernel, self.dtype, f"{prefix}W"), te.const(0, self.dtype)
        wide = DTYPES[self.dtype].computes_in if DTYPES[self.dtype].is_float else "int32"

        def bordered(*index: Expr) -> Expr:
            n, at, c = self.parts(index)
            inside = [x for a, e in zip(at, self.sizes, strict=True) for x in (a >= self.pad, a < self.pad + e)]
            element = image[self.ordered(n, [a - self.pad for a in at], *c)]
            return te.select(te.all(*inside), element, zero)

        whole = self.ordered(self.images, [e + 2 * self.pad for e in self.sizes], self.groups * self.channels)
        made = [te.compute(whole, bordered, f"{prefix}P")] if self.pad else []
        source = made[-1] if made else image
        taps = [te.reduce_axis(t, f"r{n}") for n, t in enumerate(self.taps)]
        c = te.reduce_axis(self.channels, "c")

        def summed(*index: Expr) -> Any:
            n, at, (*g, o) = self.parts(index)
            first, filters = (g[0] * self.channels, g[0] * self.filters) if g else (0, 0)
            window = [a * self.stride + t * self.dilation for a, t in zip(at, taps, strict=True)]
            weight = weights[(filters + o, c, *taps) if self.is_first else (*taps, c, filters + o)]
            return te.sum(
                te.cast(source[self.ordered(n, window, first + c)], wide) * te.cast(weight, wide), axis=[*taps, c]
            )

        last = (self.groups, self.filters) if self.groups > 1 else (self.filters,)
        shape = self.ordered(self.images, self.places, *last)
        made.append(te.compute(shape, summed, f"{prefix}C"))
        if self.is_finished and DTYPES[self.dtype].is_float:
            bias, product = te.placeholder(last, wide, f"{prefix}B"), made[-1]

            def finished(*index: Expr) -> Expr:
                return te.cast(te.max(product[index] + bias[self.parts(index)[2]], 0.0), self.dtype)

            made.append(te.compute(shape, finished, f"{prefix}D"))
        return made

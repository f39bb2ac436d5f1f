"""Random pipelines of stages on images: stencils, pointwise, resampling, affine maps, short sums, means, borders.

A stage reads one or two earlier ones, so that many have several readers. Borders are cut off, clamped, or zeros. Images
are large enough to be computed in tiles (`search_spaces/cpu/overlapped_tiles.py`). Images of 8 and 16 bits are computed
in their own types, or widened and made narrow again.
The fuzzer checks them, and `experiments.regret` measures larger ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from autosched import te
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te import ComputeDAG, Tensor

Read = Callable[[Expr, Expr], Expr]  # of an image at a row and a column
FLOATS, INTEGERS = ("float32", "float32", "float64"), ("uint8", "uint8", "int8", "uint16", "int16", "int32")
_OF_BYTES: tuple[Callable[[Expr, Expr], Expr], ...] = (  # of two bytes in a wider type, with a byte as result
    lambda a, b: te.abs(a - b),
    lambda a, b: te.min(a + b, 255),
    lambda a, b: te.max(a - b, 0),
    lambda a, b: (a + b + 1) >> 1,
    lambda a, b: te.max(te.min(a, b), te.min(te.max(a, b), 100)),
    lambda a, b: te.select(te.abs(a - b) > 25, a, b),
)
WIDER = ("uint16", "int16", "int32", "int32", "int64")  # than images of 8 bits, where most stages compute


@dataclass(frozen=True)
class PipelineSizes:
    """Rows and columns of the inputs, how many of either a larger image has at most, how many stages there are at most,
    and types of elements, in groups that are equally frequent."""

    rows: tuple[int, ...] = (37, 64, 67, 96, 131)
    columns: tuple[int, ...] = (41, 64, 80, 97, 128, 160)
    largest: int = 192
    stages: int = 6
    dtypes: tuple[tuple[str, ...], ...] = (FLOATS, INTEGERS)


SMALL = PipelineSizes()


def pipeline_dag(seed: str, sizes: PipelineSizes = SMALL) -> ComputeDAG:
    """The program of `seed`, always the same one."""
    return _Pipeline(random.Random(seed), sizes).grow()


def _computed(shape: tuple[int, ...], value: Callable[..., Expr], name: str) -> Tensor:
    stage: Tensor = te.compute(shape, value, name=name)
    return stage


class _Pipeline:
    def __init__(self, rng: random.Random, sizes: PipelineSizes) -> None:
        self.rng, self.sizes = rng, sizes
        self.dtype = rng.choice(rng.choice(sizes.dtypes))
        self.wider = rng.choice(WIDER) if DTYPES[self.dtype].bits == 8 else self.dtype
        self.images = list[Tensor]()
        self.read = set[str]()

    def grow(self) -> ComputeDAG:
        shape = (self.rng.choice(self.sizes.rows), self.rng.choice(self.sizes.columns))
        self.images = [te.placeholder(shape, self.dtype, name=f"A{n}") for n in range(self.rng.choice((1, 1, 2)))]
        kinds = {
            self.stencil: 5, self.pointwise: 3, self.resampled: 2, self.window: 2, self.warped: 1, self.averaged: 1,
        }  # fmt: skip
        for number in range(self.rng.randint(2, self.sizes.stages)):
            (kind,) = self.rng.choices(list(kinds), list(kinds.values()))
            self.images.append(kind(f"s{number}"))
        *_, last = self.images
        outputs = [t for t in self.images if t.name not in self.read and not t.name.startswith("A")]
        if self.rng.random() < 0.3:
            outputs = [self.colours(last), *(t for t in outputs if t is not last)]
        return ComputeDAG(outputs)

    def image(self) -> Tensor:
        """One of the latest images most of the time; it counts as read."""
        found = self.rng.choice(self.images[-2:] if self.rng.random() < 0.7 else self.images)
        self.read.add(found.name)
        return found

    def stage(self, name: str, shape: tuple[int, int], value: Callable[[Expr, Expr], Expr]) -> Tensor:
        """An image; one of 8 and 16 bits may be divided and made narrow again."""
        divisor = self.rng.choice((1, 2, 3, 9)) if DTYPES[self.dtype].is_integer else 1
        is_narrow = divisor > 1 and self.rng.random() < 0.6

        def narrow(i: Expr, j: Expr) -> Expr:
            return te.cast(value(i, j) // divisor, self.dtype)

        return _computed(shape, narrow if is_narrow else value, name=name)

    def with_border(self, image: Tensor, reach: int) -> tuple[Read, tuple[int, int]]:
        """A read of an image up to `reach` outside of each border, and the shape of the stage that reads it."""
        h, w = image.shape
        kind = self.rng.choice(("valid", "clamped", "clamped", "zero"))
        if kind == "valid" and min(h, w) > 2 * reach + 8:
            return lambda i, j: self.widened(image[i + reach, j + reach]), (h - 2 * reach, w - 2 * reach)
        if kind == "zero":
            zero = te.const(0, image.dtype)

            def padded(i: Expr, j: Expr) -> Expr:
                is_inside = te.all(i >= 0, i < h, j >= 0, j < w)
                return self.widened(te.select(is_inside, image[i, j], zero))

            return padded, (h, w)
        return lambda i, j: self.widened(image[te.min(te.max(i, 0), h - 1), te.min(te.max(j, 0), w - 1)]), (h, w)

    def widened(self, element: Expr) -> Expr:
        """An element of 8 bits in the wider type of this program."""
        return te.cast(element, self.wider) if DTYPES[element.dtype].bits == 8 else element

    def weight(self) -> Expr:
        chosen = self.rng.choice((1, 2, -1, 3))
        return te.const(abs(chosen) if DTYPES[self.wider].kind == "u" else chosen, self.wider)

    def stencil(self, name: str) -> Tensor:
        reach = self.rng.choice((1, 1, 2))
        read, shape = self.with_border(self.image(), reach)
        offsets = [(p, q) for p in range(-reach, reach + 1) for q in range(-reach, reach + 1)]
        taps = [(p, q, self.weight()) for p, q in self.rng.sample(offsets, self.rng.randint(2, 5))]

        def value(i: Expr, j: Expr) -> Expr:
            first, *others = (read(i + p, j + q) * weight for p, q, weight in taps)
            return sum(others, first)

        return self.stage(name, shape, value)

    def pointwise(self, name: str) -> Tensor:
        a, b = self.image(), self.image()
        shape = (min(a.shape[0], b.shape[0]), min(a.shape[1], b.shape[1]))
        weight = self.weight()
        combine = self.rng.choice(_OF_BYTES) if a.dtype == b.dtype == "uint8" and self.rng.random() < 0.7 else None

        def value(i: Expr, j: Expr) -> Expr:
            if combine is not None:
                return te.cast(combine(te.cast(a[i, j], "int32"), te.cast(b[i, j], "int32")), "uint8")
            here = self.widened(a[i, j])
            return te.max(here, self.widened(b[i, j])) - here * weight

        return self.stage(name, shape, value)

    def resampled(self, name: str) -> Tensor:
        image = self.image()
        h, w = image.shape
        if min(h, w) > 32 and self.rng.random() < 0.5:
            return _computed(
                (h // 2, w // 2), lambda i, j: image[2 * i, 2 * j] + image[2 * i + 1, 2 * j + 1], name=name
            )
        up = (min(2 * h, self.sizes.largest), min(2 * w, self.sizes.largest))
        return _computed(up, lambda i, j: image[i // 2, j // 2] * self.weight(), name=name)

    def warped(self, name: str) -> Tensor:
        """Neighbours at positions of an affine map, which no rounding of floats moves; some are outside."""
        image, rng = self.image(), self.rng
        h, w = image.shape
        slopes, slants, offsets = (0.25, 0.75, 1.0, -0.5, 1.25), (0.0, 0.25, -0.5), (-2.5, 0.0, 30.25)
        maps = [[rng.choice(numbers) for numbers in (slopes, slants, offsets)] for _ in range(2)]
        shapes = (((0, 0),), ((0, 0), (0, 1)), ((0, 0), (0, 1), (1, 0), (1, 1)), ((0, -1), (0, 0), (0, 1)))
        corners = rng.choice(shapes)
        taps = [(p, q, self.weight()) for p, q in corners]

        def position(by: list[float], one: Expr, other: Expr) -> Expr:
            place = te.cast(one, "float32") * by[0] + te.cast(other, "float32") * by[1] + by[2]
            return te.cast(te.floor(place), "int32")

        def value(i: Expr, j: Expr) -> Expr:
            row, column = position(maps[0], i, j), position(maps[1], j, i)
            first, *others = (self.widened(image[row + p, column + q]) * weight for p, q, weight in taps)
            return sum(others, first)

        return self.stage(name, (h, w), value)

    def window(self, name: str) -> Tensor:
        """A sum of a few neighbours along one axis, as a reduction."""
        size = self.rng.choice((2, 3, 5))
        read, shape = self.with_border(self.image(), size)
        k, is_along_rows = te.reduce_axis(size, name=f"k_{name}"), self.rng.random() < 0.5

        def value(i: Expr, j: Expr) -> Expr:
            return te.sum(read(i + k, j) if is_along_rows else read(i, j + k), axis=k)

        return _computed(shape, value, name)

    def averaged(self, name: str) -> Tensor:
        """A sum of shifted images with weights, less their own sum: a stage of three dimensions that both sums read."""
        size = self.rng.choice((2, 3, 5))
        read, shape = self.with_border(self.image(), size)
        near, far = self.weight(), self.weight()

        def chosen(k: Expr, i: Expr, j: Expr) -> Expr:
            return te.select(read(i, j) < read(i + 1, j + k), near, far)

        stages = te.compute((size, *shape), chosen, name=f"{name}_weights")
        k, n = (te.reduce_axis(size, name=f"{axis}_{name}") for axis in "kn")
        mean = _computed(shape, lambda i, j: te.sum(stages[k, i, j] * read(i, j + k), axis=k), f"{name}_mean")
        total = _computed(shape, lambda i, j: te.sum(stages[n, i, j], axis=n), f"{name}_total")
        return _computed(shape, lambda i, j: mean[i, j] - total[i, j] * near, name)

    def colours(self, image: Tensor) -> Tensor:
        """Three images that share one, each for itself or all colours of a point together."""
        self.read.add(image.name)
        h, w = image.shape
        if self.rng.random() < 0.5:
            factors = te.placeholder((3,), self.dtype, name="C")
            return _computed((h, w, 3), lambda i, j, c: image[i, j] * factors[c] + (j % 2), name="colours")
        other = te.placeholder((3, h, w), self.dtype, name="C")
        return _computed((3, h, w), lambda c, i, j: image[i, j] * other[c, i, j], name="colours")

"""Random bottlenecks: convolutions in a row, each read by the next one alone, with what networks have between them.

Pointwise, depthwise, grouped and full ones, strides, borders on one side or both, biases, activations, a residual;
float32, bfloat16, or bytes that are rounded in between; images of odd sizes and of one row, column or channel.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np

from autosched.graph.graph import Graph
from autosched.ir.dtype import DTYPES
from tests.graph.drafts import Draft

EXTENTS = (1, 2, 3, 5, 6, 7, 9, 13)
CHANNELS = (1, 2, 3, 5, 8, 16, 17, 24)
MOST_INSIDE = 64  # channels
MOST_PRODUCTS = 1 << 19
TYPES = ("float32", "float32", "float32", "bfloat16", "bfloat16", "int8")
KINDS = ("pointwise", "pointwise", "depthwise", "depthwise", "grouped", "full")
SMOOTH, EXACT = ("relu", "silu", "hard_swish", "sigmoid", "tanh"), ("relu", "relu", "clip")


@dataclass(frozen=True)
class Window:
    """Of a convolution: taps, strides and zeros around, of rows and of columns."""

    taps: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))


@dataclass
class BottleneckMaker:
    """A row of convolutions in the making."""

    rng: random.Random
    draft: Draft = field(default_factory=Draft)

    def __post_init__(self) -> None:
        self.dtype = self.rng.choice(TYPES)
        self.is_last = self.rng.random() < 0.7  # channels
        image = self.rng.choice((1, 1, 2, 3)), self.rng.choice(EXTENTS), self.rng.choice(EXTENTS)
        channels = self.rng.choice(CHANNELS)
        shape = (*image, channels) if self.is_last else (image[0], channels, *image[1:])
        self.x = self.draft.input(*shape, dtype=self.dtype)

    def graph(self) -> Graph:
        value = self.x
        for _ in range(self.rng.randint(2, 4)):
            value = self.finished(self.convolved(value))
        if self.draft.values[value].shape == self.draft.values[self.x].shape and self.dtype != "int8":
            value = self.draft.add(value, self.x) if self.rng.random() < 0.8 else value
        return self.draft.graph(value)

    def sizes(self, name: str) -> tuple[int, int, int]:
        """Rows, columns and channels."""
        shape = self.draft.values[name].shape
        return (*shape[1:3], shape[3]) if self.is_last else (*shape[2:], shape[1])

    def window(self, rows: int, columns: int) -> Window:
        found = [self.along(size) for size in (rows, columns)]
        taps, strides, pads = zip(*found, strict=True)
        return Window(taps, strides, pads)

    def along(self, size: int) -> tuple[int, int, tuple[int, int]]:
        while True:
            taps, stride = self.rng.choice((1, 2, 3, 3, 5)), self.rng.choice((1, 1, 1, 2, 3))
            pads = self.rng.choice(((taps // 2, taps // 2), (0, 0), (0, taps - 1), (taps - 1, 0)))
            if size + sum(pads) >= taps:
                return taps, stride, pads

    def convolved(self, x: str) -> str:
        rows, columns, channels = self.sizes(x)
        kind = self.rng.choice(KINDS)
        window = Window() if kind == "pointwise" and self.rng.random() < 0.8 else self.window(rows, columns)
        groups = {"depthwise": channels, "grouped": self.divisor(channels)}.get(kind, 1)
        times = [t for t in (1, 1, 2, 3) if t * channels <= MOST_INSIDE] or [1]
        wide = [c for c in CHANNELS if c <= MOST_INSIDE]
        filters = channels * self.rng.choice(times) if groups > 1 else self.rng.choice(wide)
        shape = (filters, channels // groups, *window.taps)
        weights = self.weights(shape)
        attributes = {
            "strides": window.strides, "pads": window.pads, "groups": groups, "channels_last": self.is_last
        }  # fmt: skip
        if self.dtype == "int8":
            made = self.draft.add_node("conv_integer", x, weights, **attributes)
            made = self.draft.cast(made, dtype="float32")
            step = 2.0 ** -round(math.log2(73 * math.sqrt(math.prod(shape[1:]))))  # a product by it is exact
            return str(self.draft.mul(made, self.draft.constant(step)))
        bias = self.constant((filters,)) if self.rng.random() < 0.6 else None
        return str(self.draft.add_node("conv", x, weights, *([bias] if bias else []), **attributes))

    def divisor(self, channels: int) -> int:
        return self.rng.choice([n for n in range(1, channels + 1) if channels % n == 0])

    def finished(self, x: str) -> str:
        """With an activation, and as bytes where the image is of bytes."""
        name = self.rng.choice(("", *EXACT, *(() if self.dtype == "int8" else SMOOTH)))
        if name:
            x = self.draft.add_node(name, x, **({"low": 0.0, "high": 6.0} if name == "clip" else {}))
        return str(self.draft.quantize(x, self.draft.constant(1.0), None, dtype="int8") if self.dtype == "int8" else x)

    def weights(self, shape: tuple[int, ...]) -> str:
        if self.dtype != "int8":
            return self.constant(shape)
        drawn = np.random.default_rng(self.rng.randrange(1 << 32)).integers(-128, 128, shape)
        return self.draft.constant(drawn, "int8")

    def constant(self, shape: tuple[int, ...]) -> str:
        drawn = np.random.default_rng(self.rng.randrange(1 << 32)).normal(size=shape) / math.sqrt(math.prod(shape[1:]))
        return self.draft.constant(drawn, DTYPES[self.dtype].numpy_dtype)


def random_bottleneck(seed: str | int) -> Graph:
    """The one of `seed`, always the same; small enough for a reference in a fraction of a second."""
    rng = random.Random(f"bottleneck {seed}")
    while True:
        graph = BottleneckMaker(rng).graph()
        if products_of(graph) <= MOST_PRODUCTS:
            return graph


def products_of(graph: Graph) -> int:
    shapes = {name: value.shape for name, value in graph.values.items()}
    convolutions = [node for node in graph.nodes if node.operator.startswith("conv")]
    return sum(math.prod(shapes[n.outputs[0]]) * math.prod(shapes[n.used[1]][1:]) for n in convolutions)

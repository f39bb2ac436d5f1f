"""Geometry of the windows of convolutions and pools: kernel, strides, pads and dilations per spatial axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators.images import Images
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.operators.window import pad

Ints = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Windows:
    """Windows over `images` of these `sizes`.

    `given`: the pads of the operator. `pads`: those that windows read, which are more for the last windows of
    `ceil_mode`.
    """

    images: Images
    sizes: Ints
    kernel: Ints
    strides: Ints
    given: Pads
    dilations: Ints
    out: Ints

    @staticmethod
    def over(
        images: Images,
        x: Tensor,
        kernel: Sequence[int],
        strides: Ints,
        pads: Pads,
        dilations: Ints,
        ceil_mode: bool = False,
    ) -> Windows:
        """Return the windows; empty `strides`, `pads` and `dilations` are 1, 0 and 1. Raises GraphError for none."""
        rank = len(kernel)
        if not 1 <= rank <= 3 or len(x.shape) != rank + 2:
            raise GraphError(f"windows {list(kernel)} are for images of 1 to 3 dimensions, x is {list(x.shape)}")
        _, _, sizes = images.parts(x.shape)
        strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
        pads = tuple((low, high) for low, high in pads) or ((0, 0),) * rank
        if not len(strides) == len(pads) == len(dilations) == rank or min(*kernel, *strides, *dilations) < 1:
            raise GraphError(
                f"kernel {list(kernel)}, strides {list(strides)}, pads {list(pads)} and dilations {list(dilations)} "
                f"must be {rank} numbers each, all but pads at least 1"
            )
        if min(min(p) for p in pads) < 0:
            raise GraphError(f"pads {list(pads)} must not be negative; cut the image before")
        spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
        out = tuple(
            _count(size, span, s, p, ceil_mode) for size, span, s, p in zip(sizes, spans, strides, pads, strict=True)
        )
        if any(o < 1 for o in out):
            raise GraphError(f"windows of {spans} do not fit the image {list(sizes)} with pads {list(pads)}")
        return Windows(images, sizes, tuple(kernel), strides, pads, dilations, out)

    @property
    def pads(self) -> Pads:
        return tuple(
            (low, max(high, (o - 1) * s + d * (k - 1) + 1 - size - low))
            for size, k, s, (low, high), d, o in zip(
                self.sizes, self.kernel, self.strides, self.given, self.dilations, self.out, strict=True
            )
        )

    def padded(self, x: Tensor, value: Any = 0) -> Tensor:
        """Return the image padded with `value`, so that every window lies inside of it."""
        return pad(x, self.images.index((0, 0), (0, 0), self.pads), value)

    def shape(self, n: int, c: int) -> Ints:
        """Return the shape of a result with an element for each window of n images of c channels."""
        return self.images.index(n, c, self.out)

    def taps(self) -> list[Any]:
        """Return a reduce axis for each axis of the kernel."""
        names = "dhw"[3 - len(self.kernel) :]
        return [te.reduce_axis(k, name=f"k{d}") for k, d in zip(self.kernel, names, strict=True)]

    def element(self, padded: Tensor, n: Any, c: Any, position: Sequence[Expr], taps: Sequence[Expr]) -> Expr:
        """Return the element of channel c at the `taps` of the window at `position`."""
        pixel: Expr = padded[self.images.index(n, c, self.places(position, taps))]
        return pixel

    def places(self, position: Sequence[Expr], taps: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the indices in the padded image of the `taps` of the window at `position`."""
        return tuple(p * s + t * d for p, t, s, d in zip(position, taps, self.strides, self.dilations, strict=True))


def _count(size: int, span: int, stride: int, pads: tuple[int, int], ceil_mode: bool) -> int:
    """Return the number of windows; with `ceil_mode`, a last partial one counts if it begins within image or pads."""
    room = size + sum(pads) - span
    if not ceil_mode:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - ((count - 1) * stride >= size + pads[0])

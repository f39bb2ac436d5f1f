"""Programs whose results depend on earlier ones along an axis."""

from __future__ import annotations

from typing import Any

from experiments.pipelines.makers import Image, Maker

NEW = 0.25  # the weight of a point beside the result before it


def iir(m: Maker, h: int, w: int) -> Image:
    """A recursive blur: along columns, down and up, then along rows, to the right and to the left."""
    image = m.input("A", (h, w))
    passes = (("down", 0, False), ("up", 0, True), ("right", 1, False), ("left", 1, True))
    for name, axis, is_backwards in passes:

        def step(before: Any, i: Any, j: Any, image: Image = image) -> Any:
            return before * (1 - NEW) + image[i, j] * NEW

        def start(i: Any, j: Any, image: Image = image, axis: int = axis, last: bool = is_backwards) -> Any:
            edge = image.shape[axis] - 1 if last else 0
            return image[edge, j] if axis == 0 else image[i, edge]

        image = m.scan(name, (h, w), axis, step, start, is_backwards)
    return image

"""Arithmetic that programs share: sums, brightness, choices among a few values, conversions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from experiments.pipelines.makers import Image, Maker

Program = Callable[[Maker, int, int], Image]  # of rows and columns of its result
GREY = (0.299, 0.587, 0.114)


def add(terms: Iterable[Any]) -> Any:
    first, *others = terms
    return sum(others, first)


def grey_of(m: Maker, colours: Image, h: int, w: int) -> Image:
    """The brightness of three colours."""
    return m.stage("grey", (h, w), lambda i, j: add(colours[c, i, j] * GREY[c] for c in range(3)))


def clamp(m: Maker, a: Any, low: Any, high: Any) -> Any:
    return m.minimum(m.maximum(a, low), high)


def choose(m: Maker, number: Any, *values: Any) -> Any:
    """The value with that number, the last one for all greater numbers."""
    chosen = values[-1]
    for n in reversed(range(len(values) - 1)):
        chosen = m.select(m.equal(number, n), values[n], chosen)
    return chosen


def to_byte(m: Maker, a: Any) -> Any:
    """A float from 0 to 255 as uint8, rounded to the nearest."""
    return m.cast(m.floor(a + 0.5), "uint8")

"""Programs on images of integers: bytes, and 10 bits of a sensor."""

from __future__ import annotations

from typing import Any

from experiments.pipelines.makers import Image, Maker
from experiments.pipelines.programs.terms import add, clamp, to_byte

LEVELS = 256  # of a byte
SENSOR = 1024  # ... and of a point of a sensor
GREY_BYTES = (77, 150, 29)  # of 256


def blur_bytes(m: Maker, h: int, w: int) -> Image:
    """Weights 1, 2, 1 along rows and columns, borders cut off, rounded to the nearest."""
    a = m.input("A", (h + 2, w + 2), "uint8")

    def smooth(x: Any, y: Any, z: Any) -> Any:
        return m.cast(x, "uint16") + m.cast(y, "uint16") * 2 + m.cast(z, "uint16")

    rows = m.stage("rows", (h + 2, w), lambda i, j: m.cast(smooth(a[i, j], a[i, j + 1], a[i, j + 2]), "uint16"))

    def value(i: Any, j: Any) -> Any:
        return m.cast((smooth(rows[i, j], rows[i + 1, j], rows[i + 2, j]) + 8) >> 4, "uint8")

    return m.stage("out", (h, w), value)


def grey_bytes(m: Maker, h: int, w: int) -> Image:
    """The brightness of colours that are bytes, one after the other in each point."""
    a = m.input("A", (h, w, 3), "uint8")

    def value(i: Any, j: Any) -> Any:
        total = add(m.cast(a[i, j, c], "uint16") * weight for c, weight in enumerate(GREY_BYTES))
        return m.cast((total + 128) >> 8, "uint8")

    return m.stage("out", (h, w), value)


def equalise(m: Maker, h: int, w: int) -> Image:
    """Histogram equalisation: each byte becomes the share of the bytes up to it."""
    a = m.input("A", (h, w), "uint8")
    one, zero = m.cast(1, "int32"), m.cast(0, "int32")
    counts = m.scatter("counts", (LEVELS,), 0, (h, w), lambda _, p, q: m.cast(a[p, q], "int32"), lambda *_: one)
    upto = m.scan("upto", (LEVELS,), 0, lambda before, v: before + counts[v], lambda _: zero)
    share = (LEVELS - 1) / (h * w)
    table = m.stage("table", (LEVELS,), lambda v: to_byte(m, m.cast(upto[v], "float32") * share))
    return m.stage("out", (h, w), lambda i, j: table[m.cast(a[i, j], "int32")])


def demosaic(m: Maker, h: int, w: int) -> Image:
    """Colours of a sensor whose points see green and red, or blue and green, in turn; a colour matrix; bytes."""
    raw = m.input("A", (h + 2, w + 2), "uint16", SENSOR)

    def f(i: Any, j: Any) -> Any:
        return m.cast(raw[i, j], "float32")

    def colour(at_even: tuple[Any, Any], at_odd: tuple[Any, Any], i: Any, j: Any) -> Any:
        is_even = m.equal(j % 2, 0)
        return m.select(m.equal(i % 2, 0), m.select(is_even, *at_even), m.select(is_even, *at_odd))

    def plane(n: int, i: Any, j: Any) -> Any:
        here = f(i + 1, j + 1)
        across, down = (f(i + 1, j) + f(i + 1, j + 2)) * 0.5, (f(i, j + 1) + f(i + 2, j + 1)) * 0.5
        cross = (across + down) * 0.5
        corners = (f(i, j) + f(i, j + 2) + f(i + 2, j) + f(i + 2, j + 2)) * 0.25
        table = (((across, here), (corners, down)), ((here, cross), (cross, here)), ((down, corners), (here, across)))
        return colour(*table[n], i, j)

    planes = [m.stage(f"plane{n}", (h, w), lambda i, j, n=n: plane(n, i, j)) for n in range(3)]
    matrix = m.input("M", (3, 3))

    def value(i: Any, j: Any, c: Any) -> Any:
        mixed = add(matrix[c, n] * planes[n][i, j] for n in range(3)) * (1 / (SENSOR - 1))
        return to_byte(m, m.sqrt(clamp(m, mixed, 0.0, 1.0)) * 255.0)

    return m.stage("out", (h, w, 3), value)

"""Halide's camera pipe: from the Bayer mosaic of a sensor to colours of 8 bits.

The algorithm is that of apps/camera_pipe in Halide's repository (github.com/halide/Halide), at a gamma of 2: single
bright points are cut off, missing colours are interpolated along the direction that changes least and corrected by the
green of the same places, colours are mixed by a matrix of fixed point, go through a curve, and are sharpened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from experiments.pipelines.makers import Image, Maker
from experiments.pipelines.programs.terms import clamp, to_byte

DEPTH = 1024  # values of a point of the sensor
BLACK, WHITE = 25, 1023
CONTRAST = 2.0 - 2.0 ** (50 / 100)  # of the curve, at its contrast of 50
INVERSE_KELVINS = (1 / 3200, 1 / 7000, 1 / 3700)  # of two matrices, and of the light
SHARPNESS = 32  # of 32 parts
BORDER = 16  # rows and columns of the sensor more than of the result
Plane = Callable[[Any, Any], Any]  # a colour at a row and a column


def camera_pipe(m: Maker, h: int, w: int) -> Image:
    sensor = m.input("A", (h + BORDER, w + BORDER), "uint16", DEPTH)

    def without_bright_points(i: Any, j: Any) -> Any:
        around = m.maximum(
            m.maximum(sensor[i + 2, j], sensor[i + 2, j + 4]), m.maximum(sensor[i, j + 2], sensor[i + 4, j + 2])
        )
        return m.minimum(sensor[i + 2, j + 2], around)

    cut = m.stage("cut", (h + BORDER - 4, w + BORDER - 4), without_bright_points)
    colours = [m.stage(f"colour{c}", (h + 2, w + 2), plane) for c, plane in enumerate(_demosaiced(m, cut))]
    mixed = _mixed(m, colours, h + 2, w + 2)
    return _sharpened(m, _curved(m, mixed), h, w)


@dataclass(frozen=True)
class _Mosaic:
    """Four colours of half as many rows and columns: green and red of the even rows, blue and green of the odd ones.
    Those between are the green at red and at blue points. Indices are those of the four colours, from 1."""

    m: Maker
    green_red: Image
    red: Image
    blue: Image
    green_blue: Image
    green_at_red: Image
    green_at_blue: Image

    def corrected(self, greens: tuple[Any, Any, Any], colours: tuple[Any, Any]) -> Any:
        """The mean of two colours, with the error that the mean of the greens there makes at the green between."""
        here, one, other = greens
        means = self.m.average(one, other), self.m.average(*colours)
        green, colour = (self.m.cast(mean, "int16") for mean in means)
        return self.m.cast(here, "int16") - green + colour

    def red_at_green(self, i: Any, j: Any) -> Any:
        greens = self.green_red[i, j], self.at_red(i, j), self.at_red(i, j - 1)
        return self.corrected(greens, (self.red[i, j - 1], self.red[i, j]))

    def blue_at_green(self, i: Any, j: Any) -> Any:
        greens = self.green_red[i, j], self.at_blue(i, j), self.at_blue(i - 1, j)
        return self.corrected(greens, (self.blue[i, j], self.blue[i - 1, j]))

    def red_at_green_below(self, i: Any, j: Any) -> Any:
        greens = self.green_blue[i, j], self.at_red(i, j), self.at_red(i + 1, j)
        return self.corrected(greens, (self.red[i, j], self.red[i + 1, j]))

    def blue_at_green_below(self, i: Any, j: Any) -> Any:
        greens = self.green_blue[i, j], self.at_blue(i, j), self.at_blue(i, j + 1)
        return self.corrected(greens, (self.blue[i, j], self.blue[i, j + 1]))

    def red_at_blue(self, i: Any, j: Any) -> Any:
        red, green = self.red, self.at_red
        return self.along_diagonal(
            (self.at_blue(i, j), green(i, j), green(i + 1, j - 1)), (red[i, j], red[i + 1, j - 1]),
            (self.at_blue(i, j), green(i, j - 1), green(i + 1, j)), (red[i, j - 1], red[i + 1, j]),
        )  # fmt: skip

    def blue_at_red(self, i: Any, j: Any) -> Any:
        blue, green = self.blue, self.at_blue
        return self.along_diagonal(
            (self.at_red(i, j), green(i, j), green(i - 1, j + 1)), (blue[i, j], blue[i - 1, j + 1]),
            (self.at_red(i, j), green(i, j + 1), green(i - 1, j)), (blue[i, j + 1], blue[i - 1, j]),
        )  # fmt: skip

    def along_diagonal(self, greens: Any, colours: Any, other_greens: Any, other_colours: Any) -> Any:
        """Interpolates along the diagonal whose colours are less apart."""
        is_first = self.m.apart(*colours) < self.m.apart(*other_colours)
        return self.m.select(is_first, self.corrected(greens, colours), self.corrected(other_greens, other_colours))

    def at_red(self, i: Any, j: Any) -> Any:
        return self.green_at_red[i - 1, j - 1]

    def at_blue(self, i: Any, j: Any) -> Any:
        return self.green_at_blue[i - 1, j - 1]


def _mosaic(m: Maker, cut: Image) -> _Mosaic:
    rows, columns = cut.shape[0] // 2, cut.shape[1] // 2
    names = ("green_red", "red", "blue", "green_blue")
    four = [
        m.stage(name, (rows, columns), lambda i, j, n=n: cut[2 * i + n // 2, 2 * j + n % 2])
        for n, name in enumerate(names)
    ]
    green_red, red, blue, green_blue = four

    def nearer(along_rows: tuple[Any, Any], along_columns: tuple[Any, Any]) -> Any:
        is_row = m.apart(*along_rows) < m.apart(*along_columns)
        return m.select(is_row, m.average(*along_rows), m.average(*along_columns))

    def at_red(i: Any, j: Any) -> Any:
        rows, columns = (
            (green_red[i + 1, j + 2], green_red[i + 1, j + 1]),
            (green_blue[i, j + 1], green_blue[i + 1, j + 1]),
        )
        return m.cast(nearer(rows, columns), "uint16")

    def at_blue(i: Any, j: Any) -> Any:
        rows, columns = (
            (green_blue[i + 1, j], green_blue[i + 1, j + 1]),
            (green_red[i + 2, j + 1], green_red[i + 1, j + 1]),
        )
        return m.cast(nearer(rows, columns), "uint16")

    inside = (rows - 2, columns - 2)
    return _Mosaic(
        m, green_red, red, blue, green_blue,
        m.stage("green_at_red", inside, at_red), m.stage("green_at_blue", inside, at_blue),
    )  # fmt: skip


def _demosaiced(m: Maker, cut: Image) -> list[Plane]:
    """Red, green and blue of the point 5 rows and columns behind, as int16: corrections may make them negative."""
    mosaic = _mosaic(m, cut)

    def interleaved(above: tuple[Plane, Plane], below: tuple[Plane, Plane]) -> Plane:
        def value(i: Any, j: Any) -> Any:
            point, is_even = ((i + 5) // 2, (j + 5) // 2), m.equal((j + 5) % 2, 0)
            rows = [m.select(is_even, even(*point), odd(*point)) for even, odd in (above, below)]
            return m.select(m.equal((i + 5) % 2, 0), *rows)

        return value

    def plane(image: Image) -> Plane:
        return lambda i, j: m.cast(image[i, j], "int16")

    def green_at(plane: Plane) -> Plane:
        return lambda i, j: m.cast(plane(i, j), "int16")

    a = mosaic
    red = interleaved((a.red_at_green, plane(a.red)), (a.red_at_blue, a.red_at_green_below))
    green = interleaved((plane(a.green_red), green_at(a.at_red)), (green_at(a.at_blue), plane(a.green_blue)))
    blue = interleaved((a.blue_at_green, a.blue_at_red), (plane(a.blue), a.blue_at_green_below))
    return [red, green, blue]


def _mixed(m: Maker, colours: list[Image], h: int, w: int) -> Image:
    """The colours mixed by a matrix of 8 bits behind the point, between those of two lights."""
    warm, cold = (m.input(name, (3, 4)) for name in ("warm", "cold"))
    low, high, light = INVERSE_KELVINS
    share = (light - low) / (high - low)
    matrix = m.stage(
        "matrix", (3, 4), lambda c, n: m.cast((warm[c, n] * share + cold[c, n] * (1 - share)) * 256.0, "int16")
    )

    def value(c: Any, i: Any, j: Any) -> Any:
        red, green, blue = (
            m.cast(colour[i, j], "int32") * m.cast(matrix[c, n], "int32") for n, colour in enumerate(colours)
        )
        return m.cast((m.cast(matrix[c, 3], "int32") + red + green + blue) // 256, "int16")

    return m.stage("mixed", (3, h, w), value)


def _curved(m: Maker, mixed: Image) -> Image:
    def curve(v: Any) -> Any:
        share = clamp(m, m.cast(v - BLACK, "float32") * (1 / (WHITE - BLACK)), 0.0, 1.0)
        bright, dark = m.sqrt(share), 1.0 - m.sqrt(share)
        b, a = CONTRAST, 2.0 - 2.0 * CONTRAST
        shaped = m.select(bright > 0.5, 1.0 - (dark * dark * a + dark * b), bright * bright * a + bright * b)
        return to_byte(m, clamp(m, shaped, 0.0, 1.0) * 255.0)

    table = m.stage("curve", (DEPTH,), curve)
    return m.stage(
        "curved", mixed.shape, lambda c, i, j: table[clamp(m, m.cast(mixed[c, i, j], "int32"), 0, DEPTH - 1)]
    )


def _sharpened(m: Maker, curved: Image, h: int, w: int) -> Image:
    def smooth(x: Any, y: Any, z: Any) -> Any:
        return m.cast(m.average(m.average(x, z), y), "uint8")

    rows = m.stage("rows", (3, h, w + 2), lambda c, i, j: smooth(*(curved[c, i + k, j] for k in range(3))))
    soft = m.stage("soft", (3, h, w), lambda c, i, j: smooth(*(rows[c, i, j + k] for k in range(3))))

    def value(c: Any, i: Any, j: Any) -> Any:
        here = m.cast(curved[c, i + 1, j + 1], "int16")
        mask = here - m.cast(soft[c, i, j], "int16")
        return m.cast(clamp(m, here + (mask * SHARPNESS) // 32, 0, 255), "uint8")

    return m.stage("out", (3, h, w), value)

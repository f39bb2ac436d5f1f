"""Programs that read images between their points: pyramids, cubic interpolation, an affine map."""

from __future__ import annotations

from typing import Any

from experiments.pipelines.makers import Image, Maker, Shape
from experiments.pipelines.programs.terms import add

OCTAVES = 4  # levels of a pyramid
DETAIL = 1.5  # by which what a level adds is multiplied
KEYS = -0.75  # of the cubic kernel of Keys, as OpenCV's
AFFINE = ((0.96, 0.05, 3.5), (-0.04, 0.97, 60.25))  # column and row read, of column, row and 1


def downsampled(m: Maker, name: str, image: Image) -> Image:
    """Half as many rows and columns, of weights 1, 3, 3, 1 on the last two dimensions, borders repeated."""
    *outer, h, w = image.shape
    rows, columns = (h + 1) // 2, (w + 1) // 2
    near = m.edge(image)

    def smooth(taps: list[Any]) -> Any:
        return add(tap * weight for tap, weight in zip(taps, (0.125, 0.375, 0.375, 0.125), strict=True))

    def along_rows(*point: Any) -> Any:
        *c, i, j = point
        return smooth([near[(*c, i, 2 * j + k)] for k in range(-1, 3)])

    across = m.edge(m.stage(f"{name}_rows", (*outer, h, columns), along_rows))

    def along_columns(*point: Any) -> Any:
        *c, i, j = point
        return smooth([across[(*c, 2 * i + k, j)] for k in range(-1, 3)])

    return m.stage(name, (*outer, rows, columns), along_columns)


def upsampled(m: Maker, name: str, image: Image, shape: Shape) -> Image:
    """Twice as many rows and columns, linear between points, borders repeated; `shape` is that of the result."""
    *outer, h, w = shape
    near = m.edge(image)

    def along_columns(*point: Any) -> Any:
        *c, i, j = point
        return near[(*c, i // 2 - 1 + 2 * (i % 2), j)] * 0.25 + near[(*c, i // 2, j)] * 0.75

    across = m.edge(m.stage(f"{name}_columns", (*outer, h, image.shape[-1]), along_columns))

    def along_rows(*point: Any) -> Any:
        *c, i, j = point
        return across[(*c, i, j // 2 - 1 + 2 * (j % 2))] * 0.25 + across[(*c, i, j // 2)] * 0.75

    return m.stage(name, (*outer, h, w), along_rows)


def pyramid(m: Maker, h: int, w: int) -> Image:
    """An image with more detail: each level of its Laplacian pyramid multiplied, and the levels added again."""
    levels = [m.input("A", (h, w))]
    for n in range(1, OCTAVES):
        levels.append(downsampled(m, f"down{n}", levels[-1]))
    out = levels[-1]
    for n, level in reversed(list(enumerate(levels[:-1]))):
        smooth = upsampled(m, f"smooth{n}", levels[n + 1], level.shape)
        rest = upsampled(m, f"rest{n}", out, level.shape)

        def value(i: Any, j: Any, level: Image = level, smooth: Image = smooth, rest: Image = rest) -> Any:
            return rest[i, j] + (level[i, j] - smooth[i, j]) * DETAIL

        out = m.stage(f"out{n}", level.shape, value)
    return out


def bicubic(m: Maker, h: int, w: int) -> Image:
    """Three colours made smaller, by 3/2 in both directions, by cubic interpolation of 4x4 points."""
    above, left = (3 * h + 1) // 2, (3 * w + 1) // 2
    a = m.edge(m.input("A", (3, above, left)))

    def weight(phase: Any, k: Any) -> Any:
        """Of the point `k` from 0 to 3, where the place read is a quarter, or three, behind point 1."""
        d = m.absolute(m.cast(phase * 2 + 5 - 4 * k, "float32") * 0.25)
        inner = ((KEYS + 2) * d - (KEYS + 3)) * d * d + 1.0
        outer = ((KEYS * d - 5 * KEYS) * d + 8 * KEYS) * d - 4 * KEYS
        return m.select(d <= 1.0, inner, outer)

    weights = m.stage("weights", (2, 4), weight)
    rows = m.edge(
        m.stage(
            "rows", (3, above, w),
            lambda c, i, j: add(a[c, i, (3 * j) // 2 + k - 1] * weights[j % 2, k] for k in range(4)),
        )
    )  # fmt: skip
    return m.stage(
        "out", (3, h, w),
        lambda c, i, j: add(rows[c, (3 * i) // 2 + k - 1, j] * weights[i % 2, k] for k in range(4)),
    )  # fmt: skip


def warp(m: Maker, h: int, w: int) -> Image:
    """An affine map with linear interpolation, borders repeated."""
    a = m.edge(m.input("A", (h, w)))

    def place(row: tuple[float, float, float], i: Any, j: Any) -> Any:
        return m.cast(j, "float32") * row[0] + m.cast(i, "float32") * row[1] + row[2]

    x, y = (
        m.stage(name, (h, w), lambda i, j, row=row: place(row, i, j)) for name, row in zip("xy", AFFINE, strict=True)
    )

    def value(i: Any, j: Any) -> Any:
        x0, y0 = m.floor(x[i, j]), m.floor(y[i, j])
        right, down = x[i, j] - x0, y[i, j] - y0
        column, row = m.cast(x0, "int32"), m.cast(y0, "int32")
        above = a[row, column] * (1.0 - right) + a[row, column + 1] * right
        below = a[row + 1, column] * (1.0 - right) + a[row + 1, column + 1] * right
        return above * (1.0 - down) + below * down

    return m.stage("out", (h, w), value)

"""Halide's apps local Laplacian, bilateral grid and interpolate: images in levels of scale, or of brightness.

The algorithms are those of apps/local_laplacian, apps/bilateral_grid and apps/interpolate in Halide's repository
(github.com/halide/Halide). Borders are repeated at each level of a pyramid, where Halide computes beyond them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.pipelines.makers import Image, Maker
from experiments.pipelines.programs.integers import GREY_BYTES
from experiments.pipelines.programs.resampling import downsampled, upsampled
from experiments.pipelines.programs.terms import add, choose, clamp

SCALES = 8  # levels of the Laplacian pyramid
TONES = 8  # levels of brightness
STEPS = 256  # of the table of detail, for each level of brightness
WORD = 1 << 16
ALPHA, BETA, EPSILON = 1 / (TONES - 1), 1.0, 0.01
CELL = 8  # rows and columns of a cell of the bilateral grid
RANGE = 8  # cells from dark to bright
PAD = 2  # cells added on each side of the grid: its blur of five cells reads two beyond the border
BINOMIAL = (1, 4, 6, 4, 1)
OCTAVES = 10  # levels of interpolate


def local_laplacian(m: Maker, h: int, w: int) -> Image:
    """More or less detail at all scales, without halos: each level of the result's Laplacian pyramid is taken from that
    of an image whose tones are remapped around the brightness there."""
    colours = m.input("A", (3, h, w), "uint16", WORD)

    def brightness(i: Any, j: Any) -> Any:
        total = add(m.cast(colours[c, i, j], "int32") * weight for c, weight in enumerate(GREY_BYTES))
        return m.cast(total >> 8, "float32") * (1 / WORD)

    grey, most = m.stage("grey", (h, w), brightness), (TONES - 1) * STEPS

    def detail(n: Any) -> Any:
        x = m.cast(n - most, "float32") * (1 / STEPS)
        return x * m.exp(x * x * -0.5) * ALPHA

    table = m.stage("detail", (2 * most + 1,), detail)

    def remapped(k: Any, i: Any, j: Any) -> Any:
        level = m.cast(k, "float32") * (1 / (TONES - 1))
        step = clamp(m, m.cast(grey[i, j] * float(most), "int32"), 0, most)
        return (grey[i, j] - level) * BETA + level + table[step - k * STEPS + most]

    tones, greys = [m.stage("tones0", (TONES, h, w), remapped)], [grey]
    for n in range(1, SCALES):
        tones.append(downsampled(m, f"tones{n}", tones[-1]))
        greys.append(downsampled(m, f"grey{n}", greys[-1]))
    out = _blended(m, tones[-1], None, greys[-1], SCALES - 1)
    for n in reversed(range(SCALES - 1)):
        smooth = upsampled(m, f"smooth{n}", tones[n + 1], tones[n].shape)
        level = _blended(m, tones[n], smooth, greys[n], n)
        rest = upsampled(m, f"rest{n}", out, level.shape)
        out = m.stage(f"out{n}", level.shape, lambda i, j, rest=rest, level=level: rest[i, j] + level[i, j])

    def coloured(c: Any, i: Any, j: Any) -> Any:
        colour = m.cast(colours[c, i, j], "float32") * (out[i, j] + EPSILON) / (grey[i, j] + EPSILON)
        return m.cast(clamp(m, colour, 0.0, WORD - 1.0), "uint16")

    return m.stage("out", (3, h, w), coloured)


def _blended(m: Maker, tones: Image, smooth: Image | None, grey: Image, n: int) -> Image:
    """A level of the result's Laplacian pyramid: between the two tones that are next to the brightness."""

    def laplacian(k: Any, i: Any, j: Any) -> Any:
        return tones[k, i, j] if smooth is None else tones[k, i, j] - smooth[k, i, j]

    def value(i: Any, j: Any) -> Any:
        level = grey[i, j] * float(TONES - 1)
        below = clamp(m, m.cast(level, "int32"), 0, TONES - 2)
        share = level - m.cast(below, "float32")
        return laplacian(below, i, j) * (1.0 - share) + laplacian(below + 1, i, j) * share

    return m.stage(f"laplacian{n}", grey.shape, value)


def bilateral_grid(m: Maker, h: int, w: int) -> Image:
    """An edge-preserving blur: sums and counts in cells of rows, columns and brightness, blurred, and read back."""
    plain = m.input("A", (h, w))
    near, cells = m.edge(plain), RANGE + 2
    rows, columns = (h - 1) // CELL + 2, (w - 1) // CELL + 2

    def bright(i: Any, j: Any) -> Any:
        return clamp(m, near[i, j], 0.0, 1.0)

    def source(y: Any, x: Any, p: Any, q: Any) -> Any:
        return bright((y - PAD) * CELL + p - CELL // 2, (x - PAD) * CELL + q - CELL // 2)

    def cell(_c: Any, _z: Any, y: Any, x: Any, p: Any, q: Any) -> Any:
        return m.cast(source(y, x, p, q) * float(RANGE) + 0.5, "int32") + PAD

    def term(c: Any, _z: Any, y: Any, x: Any, p: Any, q: Any) -> Any:
        return choose(m, c, source(y, x, p, q), m.cast(1.0, "float32"))

    wide = (rows + 2 * PAD, columns + 2 * PAD)
    grid = m.scatter("grid", (2, cells + 2 * PAD, *wide), 1, (CELL, CELL), cell, term)

    def smooth(read: Callable[[int], Any]) -> Any:
        return add(read(k) * float(weight) for k, weight in enumerate(BINOMIAL))

    shape = (2, cells, rows, columns)
    deep = m.stage("deep", (2, cells, *wide), lambda c, z, y, x: smooth(lambda k: grid[c, z + k, y, x]))
    across = m.stage("across", (2, cells, wide[0], columns), lambda c, z, y, x: smooth(lambda k: deep[c, z, y, x + k]))
    down = m.stage("down", shape, lambda c, z, y, x: smooth(lambda k: across[c, z, y + k, x]))

    def read(c: Any, i: Any, j: Any) -> Any:
        depth = clamp(m, plain[i, j], 0.0, 1.0) * float(RANGE)
        level = m.cast(depth, "int32")
        shares = [m.cast(n % CELL, "float32") * (1 / CELL) for n in (i, j)]

        def mixed(one: Any, other: Any, share: Any) -> Any:
            return one + (other - one) * share

        def at(dz: int, dy: int) -> Any:
            place = (c, clamp(m, level + dz, 0, cells - 1), i // CELL + dy)
            return mixed(down[(*place, j // CELL)], down[(*place, j // CELL + 1)], shares[1])

        near, far = (mixed(at(dz, 0), at(dz, 1), shares[0]) for dz in (0, 1))
        return mixed(near, far, depth - m.cast(level, "float32"))

    return m.stage("out", (h, w), lambda i, j: read(0, i, j) / read(1, i, j))


def interpolate(m: Maker, h: int, w: int) -> Image:
    """Fills in colours where an image is transparent, from coarser levels of a pyramid."""
    image = m.input("A", (4, h, w))
    opaque = m.stage(
        "opaque", (4, h, w), lambda c, i, j: image[c, i, j] * m.select(c < 3, image[3, i, j], m.cast(1.0, "float32"))
    )
    levels = [opaque]
    for n in range(1, OCTAVES):
        levels.append(_halved(m, f"down{n}", levels[-1]))
    out = levels[-1]
    for n in reversed(range(OCTAVES - 1)):
        larger = _doubled(m, f"up{n}", out, levels[n].shape)

        def value(c: Any, i: Any, j: Any, level: Image = levels[n], larger: Image = larger) -> Any:
            return level[c, i, j] + (1.0 - level[3, i, j]) * larger[c, i, j]

        out = m.stage(f"filled{n}", levels[n].shape, value)
    return m.stage("out", (3, h, w), lambda c, i, j: out[c, i, j] / out[3, i, j])


def _halved(m: Maker, name: str, image: Image) -> Image:
    """Half as many rows and columns, of weights 1, 2, 1."""
    colours, h, w = image.shape
    shape, near = (colours, h, (w + 1) // 2), m.edge(image)
    rows = m.edge(
        m.stage(
            f"{name}_rows", shape,
            lambda c, i, j: (near[c, i, 2 * j - 1] + near[c, i, 2 * j] * 2.0 + near[c, i, 2 * j + 1]) * 0.25,
        )
    )  # fmt: skip
    return m.stage(
        name, (colours, (h + 1) // 2, (w + 1) // 2),
        lambda c, i, j: (rows[c, 2 * i - 1, j] + rows[c, 2 * i, j] * 2.0 + rows[c, 2 * i + 1, j]) * 0.25,
    )  # fmt: skip


def _doubled(m: Maker, name: str, image: Image, shape: tuple[int, ...]) -> Image:
    """Twice as many rows and columns: each point, and the mean of two between them."""
    colours, _, w = shape
    near = m.edge(image)
    across = m.edge(
        m.stage(
            f"{name}_rows", (colours, image.shape[1], w),
            lambda c, i, j: (near[c, i, j // 2] + near[c, i, (j + 1) // 2]) * 0.5,
        )
    )  # fmt: skip
    return m.stage(name, shape, lambda c, i, j: (across[c, i // 2, j] + across[c, (i + 1) // 2, j]) * 0.5)

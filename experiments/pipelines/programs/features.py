"""Programs that no list of pipelines has: edges in thin lines, and a denoising by wavelets."""

from __future__ import annotations

from typing import Any

from experiments.pipelines.makers import Image, Maker
from experiments.pipelines.programs.terms import add

BINOMIAL = (1, 4, 6, 4, 1)
LOW, HIGH = 40, 100  # of the gradient, where an edge goes on and where it begins
STEEP = (2, 5)  # an edge's normal lies along an axis where the other part is at most 2/5 of it
OCTAVES = 3  # levels of detail
THRESHOLD = 0.05  # of details that are noise, at the finest level


def edges(m: Maker, h: int, w: int) -> Image:
    """Edges as Canny finds them, of bytes in integers: blurred, the gradient, its maxima across the edge, and of the
    weaker ones those beside a strong one; 255 on an edge."""
    a = m.input("A", (h + 8, w + 8), "uint8")

    def smooth(values: list[Any]) -> Any:
        return add(m.cast(value, "int32") * weight for value, weight in zip(values, BINOMIAL, strict=True))

    rows = m.stage("rows", (h + 8, w + 4), lambda i, j: m.cast(smooth([a[i, j + k] for k in range(5)]), "int16"))
    soft = m.stage(
        "soft", (h + 4, w + 4), lambda i, j: m.cast(smooth([rows[i + k, j] for k in range(5)]) >> 8, "int16")
    )
    size = (h + 2, w + 2)  # of the gradient: one point more on each side

    def slope(along: int, i: Any, j: Any) -> Any:
        ends = [
            add(soft[(i + n, j + k) if along == 0 else (i + k, j + n)] * (2 if k == 1 else 1) for k in range(3))
            for n in (2, 0)
        ]
        return m.cast(ends[0] - ends[1], "int16")

    down, across = (m.stage(name, size, lambda i, j, n=n: slope(n, i, j)) for n, name in enumerate(("down", "across")))
    steep = m.stage("steep", size, lambda i, j: m.absolute(down[i, j]) + m.absolute(across[i, j]))

    def thin(i: Any, j: Any) -> Any:
        """The gradient where it is the largest across the edge, else 0."""
        dy, dx = (m.cast(image[i + 1, j + 1], "int32") for image in (down, across))
        tall, wide = m.absolute(dy), m.absolute(dx)
        small, large = STEEP
        diagonal = m.select(
            dx * dy >= 0, m.maximum(steep[i, j], steep[i + 2, j + 2]), m.maximum(steep[i, j + 2], steep[i + 2, j])
        )
        upright = m.maximum(steep[i, j + 1], steep[i + 2, j + 1])
        level = m.maximum(steep[i + 1, j], steep[i + 1, j + 2])
        beside = m.select(
            wide * large <= tall * small, upright, m.select(tall * large <= wide * small, level, diagonal)
        )
        here = steep[i + 1, j + 1]
        return m.select(here >= beside, here, here - here)

    lines = m.edge(m.stage("lines", (h, w), thin))

    def value(i: Any, j: Any) -> Any:
        around = lines[i, j]
        for p, q in ((p, q) for p in (-1, 0, 1) for q in (-1, 0, 1)):
            around = m.maximum(around, lines[i + p, j + q])
        is_edge = m.select(lines[i, j] > LOW, m.select(around > HIGH, 255, 0), 0)
        return m.cast(is_edge, "uint8")

    return m.stage("out", (h, w), value)


def wavelets(m: Maker, h: int, w: int) -> Image:
    """Noise taken away by wavelets without decimation: what a blur with holes leaves out at each level is made
    smaller and added again."""
    image = m.input("A", (h, w))
    kept = []
    for n in range(OCTAVES):
        smooth = _blurred(m, f"level{n}", image, 1 << n)

        def detail(i: Any, j: Any, image: Image = image, smooth: Image = smooth, n: int = n) -> Any:
            difference, least = image[i, j] - smooth[i, j], THRESHOLD / (1 << n)
            return m.maximum(difference - least, 0.0) + m.minimum(difference + least, 0.0)

        kept.append(m.stage(f"detail{n}", (h, w), detail))
        image = smooth
    rest = image
    return m.stage("out", (h, w), lambda i, j: add([rest[i, j], *(detail[i, j] for detail in kept)]))


def _blurred(m: Maker, name: str, image: Image, step: int) -> Image:
    """Weights 1, 4, 6, 4, 1 of points that lie `step` apart."""
    near, taps = m.edge(image), [(step * (k - 2), weight / 16) for k, weight in enumerate(BINOMIAL)]
    rows = m.edge(m.stage(f"{name}_rows", image.shape, lambda i, j: add(near[i, j + k] * weight for k, weight in taps)))
    return m.stage(name, image.shape, lambda i, j: add(rows[i + k, j] * weight for k, weight in taps))

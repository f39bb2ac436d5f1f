"""The pipelines. Each is a function of a maker, rows and columns of its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from experiments.pipelines.makers import Image, Maker

Program = Callable[[Maker, int, int], Image]
GREY = (0.299, 0.587, 0.114)
GAUSS = tuple(math.exp(-(k**2) / 4.5) for k in range(-3, 4))
SMOOTH = ((0.05, 0.12, 0.07), (0.11, 0.28, 0.13), (0.06, 0.1, 0.08))
COLOUR = ((1.6, -0.4, -0.2), (-0.3, 1.5, -0.2), (-0.1, -0.5, 1.6))
CHAIN = 8  # stencils in a row
BOX = 15  # rows and columns of a mean
PATCH, REACH = 3, 2  # of non-local means: rows of a patch, and how far it is looked for


def _sum(terms: Iterable[Any]) -> Any:
    first, *others = terms
    return sum(others, first)


def _grey(m: Maker, colours: Image, h: int, w: int) -> Image:
    return m.stage("grey", (h, w), lambda i, j: _sum(colours[c, i, j] * GREY[c] for c in range(3)))


def blur(m: Maker, h: int, w: int) -> Image:
    """The mean of 3x3 in two passes, borders cut off."""
    a = m.input("A", (h + 2, w + 2))
    rows = m.stage("rows", (h + 2, w), lambda i, j: (a[i, j] + a[i, j + 1] + a[i, j + 2]) * (1 / 3))
    return m.stage("out", (h, w), lambda i, j: (rows[i, j] + rows[i + 1, j] + rows[i + 2, j]) * (1 / 3))


def blur_edge(m: Maker, h: int, w: int) -> Image:
    """The same with the border repeated."""
    a = m.edge(m.input("A", (h, w)))
    rows = m.edge(m.stage("rows", (h, w), lambda i, j: (a[i, j - 1] + a[i, j] + a[i, j + 1]) * (1 / 3)))
    return m.stage("out", (h, w), lambda i, j: (rows[i - 1, j] + rows[i, j] + rows[i + 1, j]) * (1 / 3))


def unsharp(m: Maker, h: int, w: int) -> Image:
    """Unsharp masking of three colours by the brightness and its Gaussian blur."""
    colours = m.input("A", (3, h, w))
    grey = _grey(m, colours, h, w)
    weights, near = [g / sum(GAUSS) for g in GAUSS], m.edge(grey)
    down = m.edge(m.stage("down", (h, w), lambda i, j: _sum(near[i + k - 3, j] * weights[k] for k in range(7))))
    soft = m.stage("soft", (h, w), lambda i, j: _sum(down[i, j + k - 3] * weights[k] for k in range(7)))
    ratio = m.stage("ratio", (h, w), lambda i, j: (grey[i, j] * 2.0 - soft[i, j]) / grey[i, j])
    return m.stage("out", (3, h, w), lambda c, i, j: ratio[i, j] * colours[c, i, j])


def harris(m: Maker, h: int, w: int) -> Image:
    """Harris corners of an image of three colours."""
    grey = _grey(m, m.input("A", (3, h + 4, w + 4)), h + 4, w + 4)
    sobel, size = (1 / 12, 2 / 12, 1 / 12), (h + 2, w + 2)
    dx = m.stage("dx", size, lambda i, j: _sum((grey[i + k, j + 2] - grey[i + k, j]) * sobel[k] for k in range(3)))
    dy = m.stage("dy", size, lambda i, j: _sum((grey[i + 2, j + k] - grey[i, j + k]) * sobel[k] for k in range(3)))

    def box(name: str, a: Image, b: Image) -> Image:
        product = m.stage(f"{name}_product", size, lambda i, j: a[i, j] * b[i, j])
        near = [(p, q) for p in range(3) for q in range(3)]
        return m.stage(name, (h, w), lambda i, j: _sum(product[i + p, j + q] for p, q in near))

    xx, yy, xy = box("xx", dx, dx), box("yy", dy, dy), box("xy", dx, dy)

    def response(i: Any, j: Any) -> Any:
        trace = xx[i, j] + yy[i, j]
        return xx[i, j] * yy[i, j] - xy[i, j] * xy[i, j] - trace * trace * 0.04

    return m.stage("out", (h, w), response)


def chain(m: Maker, h: int, w: int) -> Image:
    """Eight stencils of 3x3 in a row, borders cut off."""
    image = m.input("A", (h + 2 * CHAIN, w + 2 * CHAIN))
    near = [(p, q) for p in range(3) for q in range(3)]
    for n in range(CHAIN):
        d = 2 * (CHAIN - 1 - n)

        def value(i: Any, j: Any, image: Image = image) -> Any:
            return _sum(image[i + p, j + q] * SMOOTH[p][q] for p, q in near)

        image = m.stage(f"s{n}", (h + d, w + d), value)
    return image


def local_normalisation(m: Maker, h: int, w: int) -> Image:
    """Each point less the mean of its 15x15 neighbours, over their standard deviation."""
    plain = m.input("A", (h, w))
    a, taps = m.edge(plain), range(-(BOX // 2), BOX // 2 + 1)
    rows = m.edge(m.stage("rows", (h, w), lambda i, j: _sum(a[i, j + k] for k in taps)))
    squares = m.edge(m.stage("squares", (h, w), lambda i, j: _sum(a[i, j + k] * a[i, j + k] for k in taps)))
    total = m.stage("total", (h, w), lambda i, j: _sum(rows[i + k, j] for k in taps))
    power = m.stage("power", (h, w), lambda i, j: _sum(squares[i + k, j] for k in taps))

    def value(i: Any, j: Any) -> Any:
        mean = total[i, j] * (1 / BOX**2)
        return (plain[i, j] - mean) / m.sqrt(power[i, j] * (1 / BOX**2) - mean * mean + 1e-3)

    return m.stage("out", (h, w), value)


def maximum(m: Maker, h: int, w: int) -> Image:
    """The largest of 9x9 neighbours, in two passes."""

    def largest(terms: Iterable[Any]) -> Any:
        first, *others = terms
        for term in others:
            first = m.maximum(first, term)
        return first

    a = m.edge(m.input("A", (h, w)))
    rows = m.edge(m.stage("rows", (h, w), lambda i, j: largest(a[i, j + k] for k in range(-4, 5))))
    return m.stage("out", (h, w), lambda i, j: largest(rows[i + k, j] for k in range(-4, 5)))


def non_local_means(m: Maker, h: int, w: int) -> Image:
    """The mean of near points, weighted by how alike the patches around them are."""
    pad = REACH + PATCH // 2
    a = m.input("A", (h + 2 * pad, w + 2 * pad))
    reach, side, last = range(2 * REACH + 1), 2 * REACH + 1, PATCH - 1

    def distance(di: Any, dj: Any, i: Any, j: Any) -> Any:
        difference = a[i + REACH, j + REACH] - a[i + di, j + dj]
        return difference * difference

    apart = m.stage("apart", (side, side, h + last, w + last), distance)
    down = m.stage(
        "down", (side, side, h, w + last), lambda p, q, i, j: _sum(apart[p, q, i + k, j] for k in range(PATCH))
    )

    def likeness(p: Any, q: Any, i: Any, j: Any) -> Any:
        return m.exp(_sum(down[p, q, i, j + k] for k in range(PATCH)) * -8.0)

    weights = m.stage("weights", (side, side, h, w), likeness)
    places, middle = [(p, q) for p in reach for q in reach], PATCH // 2

    def mean(i: Any, j: Any) -> Any:
        found = _sum(weights[p, q, i, j] * a[i + p + middle, j + q + middle] for p, q in places)
        return found / _sum(weights[p, q, i, j] for p, q in places)

    return m.stage("out", (h, w), mean)


def demosaic(m: Maker, h: int, w: int) -> Image:
    """Colours of a sensor whose points see green and red, or blue and green, in turn; a colour matrix; bytes."""
    raw = m.input("A", (h + 2, w + 2), "int32")

    def f(i: Any, j: Any) -> Any:
        return m.as_float(raw[i, j])

    def colour(at_even: tuple[Any, Any], at_odd: tuple[Any, Any], i: Any, j: Any) -> Any:
        columns = m.is_even(j)
        return m.select(m.is_even(i), m.select(columns, *at_even), m.select(columns, *at_odd))

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
        mixed = _sum(matrix[c, n] * planes[n][i, j] for n in range(3)) * (1 / 1023)
        return m.as_byte(m.sqrt(m.minimum(m.maximum(mixed, 0.0), 1.0)) * 255.0)

    return m.stage("out", (h, w, 3), value)


PROGRAMS: dict[str, Program] = {
    made.__name__: made
    for made in (
        blur, blur_edge, unsharp, harris, chain, local_normalisation, maximum, non_local_means, demosaic
    )
}  # fmt: skip

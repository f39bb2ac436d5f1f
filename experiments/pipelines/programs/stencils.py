"""Stencils of float32 images: windows of neighbours in one pass or several."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from experiments.pipelines.makers import Image, Maker
from experiments.pipelines.programs.terms import add, grey_of

GAUSS = tuple(math.exp(-(k**2) / 4.5) for k in range(-3, 4))
SMOOTH = ((0.05, 0.12, 0.07), (0.11, 0.28, 0.13), (0.06, 0.1, 0.08))
CHAIN = 8  # stencils in a row
BOX = 15  # rows and columns of a mean
PATCH, REACH = 3, 2  # of non-local means: rows of a patch, and how far it is looked for


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
    grey = grey_of(m, colours, h, w)
    weights, near = [g / sum(GAUSS) for g in GAUSS], m.edge(grey)
    down = m.edge(m.stage("down", (h, w), lambda i, j: add(near[i + k - 3, j] * weights[k] for k in range(7))))
    soft = m.stage("soft", (h, w), lambda i, j: add(down[i, j + k - 3] * weights[k] for k in range(7)))
    ratio = m.stage("ratio", (h, w), lambda i, j: (grey[i, j] * 2.0 - soft[i, j]) / grey[i, j])
    return m.stage("out", (3, h, w), lambda c, i, j: ratio[i, j] * colours[c, i, j])


def harris(m: Maker, h: int, w: int) -> Image:
    """Harris corners of an image of three colours."""
    grey = grey_of(m, m.input("A", (3, h + 4, w + 4)), h + 4, w + 4)
    sobel, size = (1 / 12, 2 / 12, 1 / 12), (h + 2, w + 2)
    dx = m.stage("dx", size, lambda i, j: add((grey[i + k, j + 2] - grey[i + k, j]) * sobel[k] for k in range(3)))
    dy = m.stage("dy", size, lambda i, j: add((grey[i + 2, j + k] - grey[i, j + k]) * sobel[k] for k in range(3)))

    def box(name: str, a: Image, b: Image) -> Image:
        product = m.stage(f"{name}_product", size, lambda i, j: a[i, j] * b[i, j])
        near = [(p, q) for p in range(3) for q in range(3)]
        return m.stage(name, (h, w), lambda i, j: add(product[i + p, j + q] for p, q in near))

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
            return add(image[i + p, j + q] * SMOOTH[p][q] for p, q in near)

        image = m.stage(f"s{n}", (h + d, w + d), value)
    return image


def local_normalisation(m: Maker, h: int, w: int) -> Image:
    """Each point less the mean of its 15x15 neighbours, over their standard deviation."""
    plain = m.input("A", (h, w))
    a, taps = m.edge(plain), range(-(BOX // 2), BOX // 2 + 1)
    rows = m.edge(m.stage("rows", (h, w), lambda i, j: add(a[i, j + k] for k in taps)))
    squares = m.edge(m.stage("squares", (h, w), lambda i, j: add(a[i, j + k] * a[i, j + k] for k in taps)))
    total = m.stage("total", (h, w), lambda i, j: add(rows[i + k, j] for k in taps))
    power = m.stage("power", (h, w), lambda i, j: add(squares[i + k, j] for k in taps))

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
        "down", (side, side, h, w + last), lambda p, q, i, j: add(apart[p, q, i + k, j] for k in range(PATCH))
    )

    def likeness(p: Any, q: Any, i: Any, j: Any) -> Any:
        return m.exp(add(down[p, q, i, j + k] for k in range(PATCH)) * -8.0)

    weights = m.stage("weights", (side, side, h, w), likeness)
    places, middle = [(p, q) for p in reach for q in reach], PATCH // 2

    def mean(i: Any, j: Any) -> Any:
        found = add(weights[p, q, i, j] * a[i + p + middle, j + q + middle] for p, q in places)
        return found / add(weights[p, q, i, j] for p, q in places)

    return m.stage("out", (h, w), mean)

"""Halide's lens blur: depth from two views, and a blur that grows with the distance from the depth of focus.

The algorithm is that of apps/lens_blur in Halide's repository (github.com/halide/Halide), with the same places of
samples for all points, and a confidence that is kept once for all depths.
"""

from __future__ import annotations

from typing import Any

from experiments.pipelines.makers import Image, Maker
from experiments.pipelines.programs.resampling import downsampled, upsampled
from experiments.pipelines.programs.terms import add, clamp

DEPTHS = 32  # of which one is chosen for each point; two columns of shift between the views for each
FOCUS = 13  # the depth that stays sharp
GROWTH = 0.5  # radius of the blur, in points, for each depth away from it
SAMPLES = 32  # of the blur around each point
LEVELS = 8  # of the pyramid that smooths costs
RADIUS = int(max(DEPTHS - FOCUS, FOCUS) * GROWTH)


def lens_blur(m: Maker, h: int, w: int) -> Image:
    left, right = m.edge(m.input("left", (3, h, w), "uint8")), m.edge(m.input("right", (3, h, w), "uint8"))
    depth = _depth(m, left, right, h, w)
    radius = m.stage(
        "radius", (h, w), lambda i, j: m.cast(m.absolute(m.cast(depth[i, j], "int32") - FOCUS), "float32") * GROWTH
    )
    across = range(-RADIUS, RADIUS + 1)
    near = m.edge(radius)

    def largest(terms: list[Any]) -> Any:
        first, *others = terms
        for term in others:
            first = m.maximum(first, term)
        return first

    tall = m.edge(m.stage("largest_rows", (h, w), lambda i, j: largest([near[i + k, j] for k in across])))
    most = m.stage("largest", (h, w), lambda i, j: largest([tall[i, j + k] for k in across]))
    return _rendered(m, left, m.edge(depth), near, most)


def _depth(m: Maker, left: Image, right: Image, h: int, w: int) -> Image:
    """The number of the shift between the views at which they are alike around a point."""

    def difference(c: int, z: Any, i: Any, j: Any) -> Any:
        here = m.cast(left[c, i, j], "int16")
        near = (m.apart(here, m.cast(right[c, i, j + 2 * z + k], "int16")) for k in (0, 1))
        return m.cast(m.minimum(*near), "float32")

    def cost_at(z: Any, i: Any, j: Any) -> Any:
        return add(difference(c, z, i, j) * difference(c, z, i, j) for c in range(3))

    cost = m.stage("cost", (DEPTHS, h, w), cost_at)
    power = m.total("power", (h, w), (DEPTHS,), lambda i, j, z: cost[z, i, j] * cost[z, i, j])
    total = m.total("total", (h, w), (DEPTHS,), lambda i, j, z: cost[z, i, j])

    def variance(i: Any, j: Any) -> Any:
        mean = total[i, j] * (1 / DEPTHS)
        return power[i, j] * (1 / DEPTHS) - mean * mean

    sure = m.stage("sure", (h, w), variance)
    weighted = m.stage("weighted", (DEPTHS, h, w), lambda z, i, j: cost[z, i, j] * sure[i, j])
    costs, weights = (_smoothed(m, name, image) for name, image in (("costs", weighted), ("weights", sure)))
    return m.least("depth", (h, w), DEPTHS, lambda i, j, z: costs[z, i, j] / weights[i, j])


def _smoothed(m: Maker, name: str, image: Image) -> Image:
    """Each level of a pyramid half itself, and half what is above."""
    levels = [image]
    for n in range(1, LEVELS):
        levels.append(downsampled(m, f"{name}_down{n}", levels[-1]))
    out = levels[-1]
    for n in reversed(range(LEVELS - 1)):
        larger = upsampled(m, f"{name}_up{n}", out, levels[n].shape)
        level = levels[n]
        out = m.stage(f"{name}{n}", level.shape, lambda *p, larger=larger, level=level: (larger[p] + level[p]) * 0.5)
    return out


def _rendered(m: Maker, left: Image, depth: Image, radius: Image, most: Image) -> Image:
    """The mean of a point and of samples around it that blur over it."""
    shape = most.shape
    places = m.input("places", (2, SAMPLES))

    def offset(axis: int, s: Any, i: Any, j: Any) -> Any:
        return clamp(m, m.cast((places[axis, s] - 0.6) * 2.0 * most[i, j], "int32"), -RADIUS, RADIUS)

    down, across = (
        m.stage(name, (SAMPLES, *shape), lambda s, i, j, axis=axis: offset(axis, s, i, j))
        for axis, name in enumerate(("down", "across"))
    )

    def counts(s: Any, i: Any, j: Any) -> Any:
        dy, dx = down[s, i, j], across[s, i, j]
        squared = m.cast(dy * dy + dx * dx, "float32")
        reaches = squared < radius[i + dy, j + dx] * radius[i + dy, j + dx]
        is_near = squared < radius[i, j] * radius[i, j]
        is_in_front = depth[i + dy, j + dx] < depth[i, j]
        return m.select(reaches, m.select(is_near, 1.0, m.select(is_in_front, 1.0, 0.0)), 0.0)

    weight = m.stage("weight", (SAMPLES, *shape), counts)
    sum_of_weights = m.total("weights", shape, (SAMPLES,), lambda i, j, s: weight[s, i, j])

    def term(c: Any, i: Any, j: Any, s: Any) -> Any:
        return m.cast(left[c, i + down[s, i, j], j + across[s, i, j]], "float32") * weight[s, i, j]

    colours = m.total("colours", (3, *shape), (SAMPLES,), term)

    def value(c: Any, i: Any, j: Any) -> Any:
        return (m.cast(left[c, i, j], "float32") + colours[c, i, j]) / (sum_of_weights[i, j] + 1.0)

    return m.stage("out", (3, *shape), value)

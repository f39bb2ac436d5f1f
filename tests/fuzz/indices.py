"""Index functions: how an element of a stage finds the element that it is made from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from autosched import te
from autosched.ir.expr import Expr

WITHOUT_AXES = 6  # ways of `looked_up`


def moves_within(places: int) -> list[tuple[int, Callable[[Expr], Expr]]]:
    """(extent, function) pairs: index functions that stay below `places` for all i < extent."""
    return [
        (places, lambda i: i),
        (max(places - 1, 1), lambda i: i + min(1, places - 1)),
        (max(places - 2, 1), lambda i: i + min(2, places - 1)),
        (2 * places, lambda i: i // 2),
        (places + 5, lambda i: i % places),
        (places, lambda i: places - 1 - i),
        ((places + 1) // 2, lambda i: i * 2),
        (2 * places - 1, lambda i: (i + 1) // 2),
    ]


def moved(way: str, axes: Sequence[Expr], size: int, after: Sequence[int], low: int) -> list[Expr | int]:
    """The index of the dimension (of two of them for a merge) that element `axes` comes from."""
    match way:
        case "flip":
            return [size - 1 - axes[0]]
        case "shift":
            return [(axes[0] + low) % size]
        case "slice":
            return [axes[0] * 2 if size > 1 else axes[0]]
        case "repeat":
            return [axes[0] // 2]
        case "tile":
            return [axes[0] % size]
        case "split":
            return [axes[0] * min(3, size) + axes[1]]
        case "merge":
            return [axes[0] // after[0], axes[0] % after[0]] if after else [axes[0]]
    return [low]


def looked_up(rng: random.Random, number: Expr, axes: Sequence[Expr]) -> Expr:
    """An index that is data, or is computed from data."""
    ways: tuple[Callable[[Expr], Expr], ...] = (
        lambda x: x,
        lambda x: x,
        lambda x: x * 2 - 1,
        lambda x: x & 3,
        lambda x: x // 2,
        lambda x: te.abs(x) % 5,
        # with an axis, see WITHOUT_AXES
        lambda x: x + rng.choice(axes),
        lambda x: te.min(x, rng.choice(axes)),
        lambda x: te.select(x < 2, x, rng.choice(axes)),
    )
    return rng.choice(ways[:WITHOUT_AXES] if number.dtype == "uint64" else ways)(number)  # axes have a sign


def arithmetic(rng: random.Random, axes: Sequence[Expr]) -> Expr:
    """An integer that is computed from axes, not as sums and quotients of them alone."""
    one, other = rng.choice(axes), rng.choice(axes)
    slope, offset = rng.choice((0.25, 0.5, 1.25, -0.75)), rng.choice((-1.5, 0.25, 3.0))
    ways: tuple[Callable[[], Expr], ...] = (
        lambda: one * other,
        lambda: one * one - other,
        lambda: one // (other + 1),
        lambda: (one << 1) ^ other,
        lambda: te.cast(te.floor(te.cast(one, "float32") * slope + te.cast(other, "float32") * 0.5 + offset), "int32"),
        lambda: te.cast(te.round(te.cast(one, "float64") * slope), "int64") + other,
    )
    return rng.choice(ways)()

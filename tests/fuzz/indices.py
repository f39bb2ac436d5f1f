"""Index functions: how an element of a stage finds the element that it is made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autosched.ir.expr import Expr


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

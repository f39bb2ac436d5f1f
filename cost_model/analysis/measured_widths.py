"""Widths of indices that are arithmetic on loop variables other than sums: measured on samples.

    int32(floor(float32(j) * 0.96 + float32(i) * 0.05))     0.96 elements for each step of j, 0.05 for each of i

The affine expressions within such an index are its positions. Each moves by `STEPS` in turn, from points that are drawn
over the ranges of all: the mean of what the index then spreads over is its slope along the position. A rounded smooth
function so has the width of that function, and is near what neighbouring iterations touch; one that hashes has a slope
of many elements, and no larger width than all samples have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autosched.errors import ExpressionError
from autosched.ir.closed_forms.arithmetic import ceil, minimum, multiply, sum_of
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import INDEX, Const, Expr, Param, cast
from autosched.ir.linear import linear
from autosched.ir.visit import free_vars, is_data, loads, named_params, substitute

STEPS = 16  # consecutive positions at which an index is evaluated: the lanes of a vector of 32-bit elements
SAMPLES = 256
KNOWN = 1 << 10


@dataclass(frozen=True)
class IndexSlopes:
    """How many elements an index moves by for each step of its positions, and at most."""

    slopes: tuple[float, ...]
    most: float

    def width(self, widths: Sequence[Expr]) -> Expr:
        """Largest minus smallest value of the index, from those of its positions; a closed form."""
        moves = sum_of(multiply(w, slope) for w, slope in zip(widths, self.slopes, strict=True))
        return cast(ceil(minimum(moves, self.most)), INDEX)


def positions(index: Expr) -> tuple[Expr, ...]:
    """The largest affine expressions of variables within an index."""
    return tuple(dict.fromkeys(_positions(index)))


def _positions(e: Expr) -> Iterator[Expr]:
    if e.dtype == INDEX and not is_data(e):
        if free_vars(e):
            yield e
        return
    for child in e.children:
        yield from _positions(child)


def index_slopes(index: Expr, widths: Mapping[Expr, Expr]) -> IndexSlopes | None:
    """How an index moves with its positions, whose `widths` are closed forms of parameters; None where it reads data or
    has operations that are no closed forms."""
    if loads(index):
        return None
    names: dict[Expr, Expr] = {position: Param(f"position {n}") for n, position in enumerate(widths)}
    ranges = tuple((_first(position), _width_of_all(width)) for position, width in widths.items())
    return _measured(substitute(index, names), ranges)


def _first(position: Expr) -> int:
    constant = linear(position).constant
    return constant.number if isinstance(constant, Const) else 0


@lru_cache(maxsize=KNOWN)
def _width_of_all(width: Expr) -> int:
    """The width with tiles of one element, which is that of the axis."""
    names = sorted(named_params(width))
    return int(Program([width], names)(np.ones((1, len(names)), "int64"))[0, 0])


@lru_cache(maxsize=KNOWN)
def _measured(index: Expr, ranges: tuple[tuple[int, int], ...]) -> IndexSlopes | None:
    """`index` over parameters `position 0`, ...; `ranges`: the first value of each, and the last minus the first."""
    rng = np.random.default_rng(0)
    first = np.array([low for low, _ in ranges])
    steps = np.array([min(width, STEPS - 1) for _, width in ranges])
    beyond = [width - n + 1 for (_, width), n in zip(ranges, steps, strict=True)]
    starts = first + rng.integers(0, beyond, (SAMPLES, len(ranges)))
    moves = np.arange(STEPS)[:, None] * np.eye(len(ranges), dtype="int64")[:, None, :]  # [position, step, position]
    points = starts[:, None, None, :] + np.minimum(moves, steps)
    try:
        program = Program([index], [f"position {n}" for n in range(len(ranges))])
    except ExpressionError:
        return None
    values = program(points.reshape(-1, len(ranges)))[0].reshape(SAMPLES, len(ranges), STEPS)
    if not np.isfinite(values).all():
        return None
    spreads = np.ptp(values, axis=2).mean(axis=0) / np.maximum(steps, 1)
    return IndexSlopes(tuple(map(float, spreads)), float(np.ptp(values)))

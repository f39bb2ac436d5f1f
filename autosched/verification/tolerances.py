"""Error metric and tolerance of kernels and networks: how far results are from the reference, and may be.

Of floats the metric is the root mean square of the differences over that of the reference, and the largest difference
over the largest number. Single elements of a correct network may be off by far more of themselves, where large numbers
cancel. There is one derivation of the tolerance, for a kernel by itself as for all of a network: TIMES_PLAIN times the
error of a plain evaluation with sums in the least accurate order. Evaluated from the network's inputs on, it has in it
what the errors of earlier kernels come to at the outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autosched.graph.graph import Array
from autosched.ir.dtype import DTYPES

TIMES_PLAIN = 4.0  # of the error that a plain evaluation has; schedules that add up in order have 0.7 to 1 of it
ROUNDING = 1e-6  # what a short sum in float32 may come to, in any order
WINOGRAD = 10.0  # times as large, where Winograd's transforms compute convolutions
NEAR_TIES = 0.01  # of the elements of a quantised result, which may be the neighbour of what the reference has


@dataclass(frozen=True)
class Distance:
    """`rms` and `largest` as fractions of the reference's; of integers the share of elements that differ, and the
    largest difference."""

    rms: float
    largest: float

    def over(self, bound: Distance) -> float:
        """The larger of the two as a fraction of its bound."""
        return max(_fraction(self.rms, bound.rms), _fraction(self.largest, bound.largest))

    def plus(self, other: Distance) -> Distance:
        return Distance(self.rms + other.rms, self.largest + other.largest)

    def wider(self, other: Distance) -> Distance:
        return Distance(max(self.rms, other.rms), max(self.largest, other.largest))


@dataclass(frozen=True)
class Comparison:
    """An array against its reference."""

    name: str
    found: Distance
    bound: Distance

    @property
    def of_bound(self) -> float:
        return self.found.over(self.bound)

    @property
    def passed(self) -> bool:
        return self.of_bound <= 1.0

    def __str__(self) -> str:
        found, bound = self.found, self.bound
        return (
            f"{self.name} (rms {found.rms:.2g} of {bound.rms:.2g}, largest {found.largest:.2g} of {bound.largest:.2g})"
        )


def compare(name: str, got: Array, want: Array, plain: Array, *, loosened: float = 1.0) -> Comparison:
    """Compare `got` with `want`, which is float64 where `got` is a float.

    `plain`: what `te.reference.plain.evaluate_plainly` gives for the same inputs, be it of a kernel or of a network.
    `loosened` times as much as usual is accepted.
    """
    found, usual = error(got, want), error(plain, want)
    if want.dtype.kind == "f":
        least = ROUNDING * DTYPES[DTYPES[got.dtype.name].computes_in].unit_roundoff / DTYPES["float32"].unit_roundoff
        rms, largest = (loosened * max(TIMES_PLAIN * x, least) for x in (usual.rms, usual.largest))
        return Comparison(name, found, Distance(rms, largest))
    if DTYPES[want.dtype.name].nbytes > 1 or want.dtype.kind == "b":
        return Comparison(name, found, Distance(0.0, 0.0))
    share = max(TIMES_PLAIN * usual.rms, NEAR_TIES, 1 / max(want.size, 1))
    return Comparison(name, found, Distance(share, max(usual.largest, 1.0)))


def error(got: Array, want: Array) -> Distance:
    """Return how far `got` is from `want`, whose type says whether it is of floats."""
    return distance(got, want) if want.dtype.kind == "f" else steps(got, want)


def distance(got: Array, want: Array) -> Distance:
    """Infinite where one has a number and the other has not."""
    actual, wanted = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(wanted)
    others = ~finite
    if not np.array_equal(actual[others], wanted[others], equal_nan=True) or not np.isfinite(actual[finite]).all():
        return Distance(np.inf, np.inf)
    if not finite.any():
        return Distance(0.0, 0.0)
    off, size = np.abs(actual[finite] - wanted[finite]), np.abs(wanted[finite])
    return Distance(_fraction(_rms(off), _rms(size)), _fraction(float(off.max()), float(size.max())))


def size_of(errors: Array, want: Array) -> Distance:
    """Of `errors` that results may have, as `distance` would find them; of integers all may differ."""
    if want.dtype.kind != "f":
        return Distance(1.0, float(errors.max(initial=0.0)))
    finite = np.isfinite(want) & np.isfinite(errors)
    if not finite.any():
        return Distance(np.inf, np.inf)
    size = np.abs(want[finite])
    return Distance(
        _fraction(_rms(errors[finite]), _rms(size)), _fraction(float(errors[finite].max()), float(size.max()))
    )


def steps(got: Array, want: Array) -> Distance:
    """Of integers."""
    off = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return Distance(float(np.mean(off > 0)), float(off.max(initial=0.0)))


def _rms(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array))))


def _fraction(part: float, whole: float) -> float:
    if part == 0.0 or np.isinf(whole):
        return 0.0
    return part / whole if whole else np.inf

"""Error metric and tolerance of kernels and networks.

The error of floats is the root mean square of the differences over that of the reference, and the largest difference
over the largest absolute value; single elements of a correct network may have large relative errors where numbers
cancel. The tolerance of a kernel and of a network is TOLERANCE_FACTOR times the error of a plain evaluation, which adds
up sums in the least accurate order; evaluated from the network's inputs on, it contains the propagated errors of
earlier kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autosched.graph.graph import Array
from autosched.ir.dtype import DTYPES

TOLERANCE_FACTOR = 4.0  # times the error of a plain evaluation; schedules that add up in order have 0.7 to 1 times it
MIN_TOLERANCE = 1e-6  # for float32: rounding errors of short sums, in any order
WINOGRAD_FACTOR = 10.0  # times the tolerance, for networks with Winograd convolutions
MAX_TIES_SHARE = 0.01  # of the elements of a quantised result: they may be rounded to the neighbour near a tie


@dataclass(frozen=True)
class ErrorMetric:
    """For floats root mean square and largest difference, as fractions of the reference's. For integers the share of
    elements that differ, and the largest difference."""

    rms: float
    largest: float

    def relative_to(self, tolerance: ErrorMetric) -> float:
        """Return the larger of the two fractions of the tolerance."""
        return max(_fraction(self.rms, tolerance.rms), _fraction(self.largest, tolerance.largest))

    def plus(self, other: ErrorMetric) -> ErrorMetric:
        return ErrorMetric(self.rms + other.rms, self.largest + other.largest)

    def maximum(self, other: ErrorMetric) -> ErrorMetric:
        return ErrorMetric(max(self.rms, other.rms), max(self.largest, other.largest))


@dataclass(frozen=True)
class Comparison:
    """The error of an array and its tolerance."""

    name: str
    error: ErrorMetric
    tolerance: ErrorMetric

    @property
    def relative_error(self) -> float:
        """The error as a fraction of the tolerance."""
        return self.error.relative_to(self.tolerance)

    @property
    def passed(self) -> bool:
        return self.relative_error <= 1.0

    def __str__(self) -> str:
        error, most = self.error, self.tolerance
        return f"{self.name} (rms {error.rms:.2g} of {most.rms:.2g}, largest {error.largest:.2g} of {most.largest:.2g})"


def compare(name: str, result: Array, reference: Array, plain: Array, *, factor: float = 1.0) -> Comparison:
    """Compare a result with its reference, which is float64 for floats.

    `plain`: the result of `te.reference.plain.evaluate_plainly` for the same inputs of the kernel or network. `factor`:
    times the usual tolerance.
    """
    error, plain_error = measure_error(result, reference), measure_error(plain, reference)
    if reference.dtype.kind == "f":
        unit_roundoff = DTYPES[DTYPES[result.dtype.name].computes_in].unit_roundoff
        least = MIN_TOLERANCE * unit_roundoff / DTYPES["float32"].unit_roundoff
        rms, largest = (factor * max(TOLERANCE_FACTOR * x, least) for x in (plain_error.rms, plain_error.largest))
        return Comparison(name, error, ErrorMetric(rms, largest))
    if DTYPES[reference.dtype.name].nbytes > 1 or reference.dtype.kind == "b":
        return Comparison(name, error, ErrorMetric(0.0, 0.0))
    share = max(TOLERANCE_FACTOR * plain_error.rms, MAX_TIES_SHARE, 1 / max(reference.size, 1))
    return Comparison(name, error, ErrorMetric(share, max(plain_error.largest, 1.0)))


def measure_error(result: Array, reference: Array) -> ErrorMetric:
    """Return the error of `result`; the type of `reference` decides whether it is that of floats or of integers."""
    if not reference.size:
        return ErrorMetric(0.0, 0.0)
    return float_error(result, reference) if reference.dtype.kind == "f" else integer_error(result, reference)


def float_error(result: Array, reference: Array) -> ErrorMetric:
    """Return the error of floats; infinite unless NaNs and infinities are equal in both."""
    actual, expected = result.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(expected)
    special = ~finite
    if not np.array_equal(actual[special], expected[special], equal_nan=True) or not np.isfinite(actual[finite]).all():
        return ErrorMetric(np.inf, np.inf)
    if not finite.any():
        return ErrorMetric(0.0, 0.0)
    difference, size = np.abs(actual[finite] - expected[finite]), np.abs(expected[finite])
    return ErrorMetric(_fraction(_rms(difference), _rms(size)), _fraction(float(difference.max()), float(size.max())))


def error_of_bounds(bounds: Array, reference: Array) -> ErrorMetric:
    """Return the error of a result that differs from the reference by `bounds` in each element; all integers differ."""
    if reference.dtype.kind != "f":
        return ErrorMetric(1.0, float(bounds.max(initial=0.0)))
    finite = np.isfinite(reference) & np.isfinite(bounds)
    if not finite.any():
        return ErrorMetric(np.inf, np.inf)
    size = np.abs(reference[finite])
    return ErrorMetric(
        _fraction(_rms(bounds[finite]), _rms(size)), _fraction(float(bounds[finite].max()), float(size.max()))
    )


def integer_error(result: Array, reference: Array) -> ErrorMetric:
    difference = np.abs(result.astype(np.float64) - reference.astype(np.float64))
    return ErrorMetric(float(np.mean(difference > 0)), float(difference.max(initial=0.0)))


def _rms(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array))))


def _fraction(numerator: float, denominator: float) -> float:
    """Return the quotient; 0 over 0 is 0, anything over infinity is 0."""
    if numerator == 0.0 or np.isinf(denominator):
        return 0.0
    return numerator / denominator if denominator else np.inf

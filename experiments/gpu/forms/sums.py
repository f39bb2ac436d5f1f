"""How tensor cores add up, in NumPy: what an H200 gave, to the last bit where it was looked at.

Products are exact. Those of one instruction, `length` at a time, and the sum so far are brought to the exponent of the
largest, cut off `fraction` bits below it, and added; the result is cut off to `kept` bits. A product's exponent is the
sum of its factors' exponents, so that its significand may reach 4.

Measured, as counts of elements and largest differences: products by warpgroups of float8 keep 13 bits, those of
float16, bfloat16 and tf32 25, of which the result has 23; mma.sync of float8 multiplies float16 there, 16 at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.gpu.forms.form import Array

LEAST = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14}  # exponents of the smallest normal numbers
NONE = -10000  # the exponent of zero


@dataclass(frozen=True)
class TensorSum:
    fraction: int = 25
    kept: int = 23
    length: int = 16


def sum_of(kind: str, by_warpgroup: bool) -> TensorSum:
    """Of an instruction whose operands are of that kind."""
    return TensorSum(13, 13, 32) if by_warpgroup and kind in ("e4m3", "e5m2") else TensorSum()


def added_up(how: TensorSum, x: Array, y: Array, kinds: tuple[str, str], times: int) -> Array:
    """x[M,K] y[K,N], added to zero so many times."""
    total = np.zeros((x.shape[0], y.shape[1]))
    for _ in range(times):
        for k in range(0, x.shape[1], how.length):
            total = _instruction(how, x[:, k : k + how.length], y[k : k + how.length], kinds, total)
    return total


def _instruction(how: TensorSum, x: Array, y: Array, kinds: tuple[str, str], total: Array) -> Array:
    exponents = _exponents(x, LEAST[kinds[0]])[:, :, None] + _exponents(y, LEAST[kinds[1]])[None]
    largest = np.maximum(exponents.max(axis=1), _exponents(total, LEAST["tf32"]))
    unit = np.exp2(np.where(largest > NONE, largest - how.fraction, 0).astype(np.float64))
    cut = np.trunc(x[:, :, None] * y[None] / unit[:, None]).sum(axis=1) + np.trunc(total / unit)
    return _cut(cut * unit, how.kept)


def _exponents(values: Array, least: int) -> Array:
    found = np.frexp(np.abs(values))[1] - 1
    return np.where(values == 0, NONE, np.maximum(found, least))


def _cut(values: Array, bits: int) -> Array:
    unit = np.exp2((_exponents(values, LEAST["tf32"]) - bits).astype(np.float64))
    return np.where(values == 0, 0.0, np.trunc(values / np.where(values == 0, 1.0, unit)) * unit)

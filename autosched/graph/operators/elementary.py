"""Elementary functions that `te` lacks, composed of those that it has.

Each is accurate to a few units in the last place of float32, also near 0, where the textbook formula would lose all
digits: log(1 + x), exp(x) - 1. Branches of a select that are not taken may be NaN or infinite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autosched import te
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr

# atan(x) = x + x z P(z) / Q(z), z = x^2, for |x| <= 0.66 (Moshier, Cephes mathematical library, atan.c).
_ATAN_P = (-8.750608600031904e-1, -1.615753718733365e1, -7.500855792314705e1, -1.2288666844901361e2,
           -6.485021904942025e1)  # fmt: skip
_ATAN_Q = (1.0, 2.485846490142306e1, 1.650270098316988e2, 4.328810604912903e2, 4.853903996359137e2,
           1.945506571482614e2)  # fmt: skip
_ATAN_NEAR, _ATAN_FAR = 0.66, math.tan(3 * math.pi / 8)
_ATANH_NEAR = 1.0 / 3.0
# From here on sqrt(x^2 +- 1) is x in any type, and x^2 may overflow further on.
_ROOT_IS_X = 1e9


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """By Horner's rule; the coefficient of the highest power comes first."""
    value: Expr = te.const(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _atanh_near(x: Expr) -> Expr:
    """atanh(x) for |x| <= 1/3 by x + x^3 / 3 + x^5 / 5 ..., as many terms as the type of x has digits for."""
    count, unit = 1, DTYPES[x.dtype].unit_roundoff
    while _ATANH_NEAR ** (2 * count) / (2 * count + 1) > unit / 2:
        count += 1
    return x * polynomial(x * x, [1.0 / (2 * n + 1) for n in reversed(range(count))])


def log1p_unit(x: Expr) -> Expr:
    """log(1 + x) for -1/2 <= x <= 1."""
    return _atanh_near(x / (x + 2.0)) * 2.0


def log1p(x: Expr) -> Expr:
    """log(1 + x)."""
    return te.select(te.all(x > -0.5, x < 1.0), log1p_unit(x), te.log(x + 1.0))


def expm1_negative(x: Expr) -> Expr:
    """exp(x) - 1 for x <= 1; tanh keeps the digits near 0."""
    t = te.tanh(x * 0.5)
    return t * 2.0 / (1.0 - t)


def expm1(x: Expr) -> Expr:
    """exp(x) - 1."""
    return te.select(x < 1.0, expm1_negative(x), te.exp(x) - 1.0)


def tan(x: Expr) -> Expr:
    """sin / cos, in float64: near a pole there are too few digits of the cosine in a smaller type."""
    wide = te.cast(x, "float64")
    return te.cast(te.sin(wide) / te.cos(wide), x.dtype)


def atan(x: Expr) -> Expr:
    """atan(a) is pi/4 + atan((a - 1) / (a + 1)), and pi/2 - atan(1 / a): one of them is near 0."""
    a = te.abs(x)
    far, middle = a > _ATAN_FAR, a > _ATAN_NEAR
    above = te.select(far, -1.0, te.select(middle, a - 1.0, a))
    below = te.select(far, a, te.select(middle, a + 1.0, 1.0))
    start = te.select(far, math.pi / 2, te.select(middle, math.pi / 4, te.const(0.0, a.dtype)))
    t = above / below
    z = t * t
    value = start + (t + t * (z * polynomial(z, _ATAN_P) / polynomial(z, _ATAN_Q)))
    return te.select(x < 0.0, -value, value)


def asin(x: Expr) -> Expr:
    """The angle whose tangent is x / sqrt(1 - x^2)."""
    return atan(x / te.sqrt((1.0 - x) * (1.0 + x)))


def acos(x: Expr) -> Expr:
    """Twice the angle whose tangent is sqrt((1 - x) / (1 + x))."""
    return atan(te.sqrt((1.0 - x) / (1.0 + x))) * 2.0


def sinh(x: Expr) -> Expr:
    """2 t / (1 - t^2) with t = tanh(x / 2) near 0, else by exp(|x| / 2), whose square overflows where sinh does."""
    t, half = te.tanh(x * 0.5), te.exp(te.abs(x) * 0.5)
    size = half * 0.5 * half - 0.5 / (half * half)
    return te.select(te.abs(x) < 1.0, t * 2.0 / (1.0 - t * t), te.select(x < 0.0, -size, size))


def cosh(x: Expr) -> Expr:
    """(exp(x) + exp(-x)) / 2, by exp(|x| / 2) as sinh."""
    half = te.exp(te.abs(x) * 0.5)
    return half * 0.5 * half + 0.5 / (half * half)


def asinh(x: Expr) -> Expr:
    """log(|x| + sqrt(x^2 + 1)) with the sign of x."""
    a = te.abs(x)
    size = te.select(a > _ROOT_IS_X, te.log(a) + math.log(2.0), log1p(a + a * a / (1.0 + te.sqrt(a * a + 1.0))))
    return te.select(x < 0.0, -size, size)


def acosh(x: Expr) -> Expr:
    """log(x + sqrt(x^2 - 1)); NaN below 1."""
    t = x - 1.0
    return te.select(x > _ROOT_IS_X, te.log(x) + math.log(2.0), log1p(t + te.sqrt(t) * te.sqrt(t + 2.0)))


def atanh(x: Expr) -> Expr:
    """log((1 + x) / (1 - x)) / 2."""
    return te.select(te.abs(x) < _ATANH_NEAR, _atanh_near(x), te.log((1.0 + x) / (1.0 - x)) * 0.5)

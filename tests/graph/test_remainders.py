"""Remainders and whole quotients of floats, by kernels, against torch and NumPy to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graph.test_operator_kernels import kernel_values

torch = pytest.importorskip("torch")
NAN, INF = np.nan, np.inf
FLOATS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def operands(dtype: str) -> tuple[Any, Any]:
    """All pairs of the ends, the infinities, NaN and zeros of a type, and pairs that are whole multiples or nearly."""
    info = torch.finfo(FLOATS[dtype])
    ends = [0.0, info.smallest_normal, 0.1, 0.3, 1.0, 3.0, 49.0, 1e4, info.max / 3, info.max, INF]
    ends = [NAN, *ends, *(-e for e in ends)]
    a, b = np.meshgrid(ends, ends)
    rng = np.random.default_rng(0)
    divisor = np.ldexp(rng.uniform(0.5, 1, 600), rng.integers(-8, 8, 600)) * rng.choice([-1, 1], 600)
    y = torch.from_numpy(np.concatenate([b.ravel(), divisor])).to(FLOATS[dtype])
    times = np.concatenate([np.round(rng.uniform(-100, 100, 300)), rng.uniform(-2000, 2000, 300)])
    multiples = y[-600:].double().numpy() * times
    x = torch.from_numpy(np.concatenate([a.ravel(), multiples])).to(FLOATS[dtype])
    return x, y


def array(t: Any) -> Any:
    if t.dtype != torch.bfloat16:
        return t.numpy()
    return t.view(torch.int16).numpy().view(pytest.importorskip("ml_dtypes").bfloat16)


def check(got: Any, expected: Any, where: Any = ...) -> None:
    got, expected = got.astype("float64")[where], expected.astype("float64")[where]
    np.testing.assert_array_equal(got, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_remainders_are_exact(dtype):
    """NumPy's are; torch's in vectors are NaN where the quotient is large."""
    x, y = operands(dtype)
    truncated = kernel_values("mod", array(x), array(y), fmod=True)
    wide = "float64" if dtype == "float64" else "float32"
    a, b = array(x).astype(wide), array(y).astype(wide)
    with np.errstate(all="ignore"):
        rest = np.fmod(a, b)
        floored = np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest).astype(array(x).dtype)
    check(truncated, rest)
    got = kernel_values("mod", array(x), array(y))
    check(got, floored)
    check(got, array(torch.remainder(x, y)), ~np.isnan(array(torch.fmod(x, y)).astype(wide)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_quotient_is_rounded_down_as_the_remainder_says(dtype):
    """torch rounds each step to a small float; here it is the quotient alone."""
    x, y = operands(dtype)
    got = kernel_values("floor_div", array(x), array(y))
    if dtype in ("float32", "float64"):
        check(got, array(torch.floor_divide(x, y)))
        return
    pairs = zip(x.double().tolist(), y.double().tolist(), strict=True)
    whole = [a // b if np.isfinite(a) and np.isfinite(b) and b != 0 else NAN for a, b in pairs]
    with np.errstate(all="ignore"):
        check(got, np.array(whole).astype(got.dtype), np.isfinite(whole))


@pytest.mark.parametrize("divisor", [0.1, 49.0, 3.0, -0.7, 1e30])
def test_all_lanes_may_have_one_divisor(divisor):
    x, y = torch.arange(-1000, 1003) * torch.tensor(divisor), torch.tensor([divisor])
    check(kernel_values("mod", array(x), array(y)), array(torch.remainder(x, y)))
    check(kernel_values("floor_div", array(x), array(y)), array(torch.floor_divide(x, y)))

"""Long windows are made of shorter ones: values stay, and the work grows with the logarithm of the window."""

from __future__ import annotations

from math import prod

import pytest

from autosched import te
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.windows import LESS, plan
from tests.te.test_phases import check, extents


def window(shape, lengths, reducer="sum", stride=1, dilation=1, dtype="float32", term=lambda x: x):
    """Windows of these lengths along the first axes."""
    x = te.placeholder(shape, dtype, name="X")
    axes = [te.reduce_axis(n, name=f"r{d}") for d, n in enumerate(lengths)]
    size = [(n - dilation * (w - 1) - 1) // stride + 1 for n, w in zip(shape, lengths, strict=False)]

    def result(*i):
        at = [a * stride + r * dilation for a, r in zip(i, axes, strict=False)]
        return getattr(te, reducer)(term(x[(*at, *i[len(at) :])]), axis=axes)

    return te.compute((*size, *shape[len(lengths) :]), result, name="Y")


def band(n, first, last, reducer="sum", start=0.0, results=None, term=lambda x: x):
    """Y[i]: all elements k with first <= k - i <= last."""
    x, k = te.placeholder((n, 3), name="X"), te.reduce_axis(n, name="k")
    near = lambda i: te.all(k <= i + last, i < k + 1 - first)  # noqa: E731
    return te.compute(
        (results or n, 3), lambda i, c: getattr(te, reducer)(te.select(near(i), term(x[k, c]), start), axis=k), name="Y"
    )


def work(stages):
    return sum(prod(extents(s)) for s in stages.values())


@pytest.mark.parametrize("reducer", ["sum", "max", "prod"])
@pytest.mark.parametrize("length", [12, 17, 31])
def test_values_stay(length, reducer):
    stages = check(window((40, 2), (length,), reducer, term=lambda x: x * 0.5))
    assert len(stages) > 1
    assert work(stages) < LESS * length * 80


@pytest.mark.parametrize(
    ("stride", "dilation", "parts"), [(2, 1, True), (1, 2, True), (4, 2, True), (3, 2, False), (20, 1, False)]
)
def test_windows_apart_and_with_holes(stride, dilation, parts):
    assert (len(check(window((70,), (23,), stride=stride, dilation=dilation))) > 1) == parts


def test_what_else_is_reduced_is_so_before():
    image = check(window((20, 33, 2), (13, 16)))
    assert work(image) < 25 * 20 * 33 * 2
    x, (r, c) = te.placeholder((40, 5), name="X"), (te.reduce_axis(n) for n in (16, 5))
    channels = check(te.compute((25,), lambda i: te.sum(x[i + r, c], axis=(r, c)), name="Y"))
    assert max(map(len, map(extents, channels.values()))) == 2


def test_short_windows_and_products_stay():
    x, w, r = te.placeholder((60,), name="X"), te.placeholder((21,), name="W"), te.reduce_axis(21)
    assert len(check(window((40,), (7,)))) == 1
    assert len(check(te.compute((40,), lambda i: te.sum(x[i + r] * w[r], axis=r), name="Y"))) == 1
    assert len(check(te.compute((40,), lambda i: te.sum(x[i + r] * te.cast(r, "float32"), axis=r), name="Y"))) == 1


@pytest.mark.parametrize(("first", "last", "results"), [(-16, 0, None), (-3, 3, None), (2, 14, 30), (-20, -1, 60)])
def test_bands_are_windows(first, last, results):
    stages = check(band(50, first, last, results=results, term=lambda x: te.exp(x * 0.1)))
    assert work(stages) < 16 * 70 * 3
    assert te.ComputeDAG(band(50, first, last, results=results)).flops == (last - first + 1) * (results or 50) * 3


def test_bands_of_other_reducers():
    assert len(check(band(40, -15, 0, "max", float("-inf")))) > 1
    assert len(check(band(40, -15, 0, "max", 0.0))) == 1  # 0 is not what changes nothing
    assert work(check(band(40, -12, 12, "min", float("inf")))) < 15 * 70 * 3


def test_plans_are_as_long_as_their_windows():
    for length in (1, 5, 8, 12, 31, 97, 1001, 4096):
        for multiple in (1, 3):
            operations, part = plan(length, multiple)
            assert operations <= length
            assert part == length or part % multiple == 0
    assert plan(1001, 1)[0] <= 30


def test_the_work_of_a_long_window():
    assert work({s.name: s for s in collapse(te.ComputeDAG(window((5000,), (1001,)))).stages}) < 30 * 5000

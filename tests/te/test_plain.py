"""The plain evaluation: sums in the least accurate order, whose errors say what precision correct programs have."""

import numpy as np
import pytest

from autosched import te
from autosched.te import ComputeDAG
from autosched.te.reference.error_bounds import order_deviation
from autosched.te.reference.plain import PLAIN_RUN, evaluate_plainly

F32 = np.float32


def sums_of(array):
    """The DAG that adds up the rows of `array`, and what a plain evaluation gives for it."""
    a, k = te.placeholder(array.shape, name="A"), te.reduce_axis(array.shape[1], "k")
    dag = ComputeDAG([te.compute(array.shape[:1], lambda i: te.sum(a[i, k], axis=k), name="B")])
    return evaluate_plainly(dag, {"A": array})[0]


@pytest.mark.parametrize("shape", [(3, 4099), (1, 7), (2, 1)])
def test_a_plain_sum_adds_one_number_after_the_other(shape):
    array = np.full(shape, 0.1, F32)
    total = F32(0)
    for start in range(0, shape[1], PLAIN_RUN):
        run = F32(0)
        for number in array[0, start : start + PLAIN_RUN]:
            run += number
        total += run
    deviation = order_deviation(total, np.sum(np.square(array[0], dtype="float64")), shape[1], "float32")
    off = np.abs(sums_of(array).astype("float64") - total)
    rounding = np.spacing(total) / 2
    assert (off >= deviation - rounding).all()
    assert (off <= 6 * deviation + rounding).all()


@pytest.mark.parametrize("terms", [2, 37, 2048])
@pytest.mark.parametrize("mean", [0.0, 1.0, -30.0])
def test_sums_in_order_are_off_by_their_deviation(mean, terms):
    """One product after the other, of whatever mean, against the formula and a plain evaluation."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((1, terms), F32), rng.standard_normal((terms, 2000), F32) + F32(mean)
    a += F32(mean != 0)
    products = a[0, :, None] * b
    exact = a.astype("float64") @ b.astype("float64")
    in_order = np.add.accumulate(products, axis=0)[-1]
    off = in_order - products.sum(0, dtype="float64")

    def size(errors):
        return np.sqrt(np.mean(np.square(errors)))

    squares = np.square(products, dtype="float64").sum(0)
    assert 0.5 < size(off) / size(order_deviation(exact[0], squares, terms, "float32")) < 2
    x, y, k = te.placeholder(a.shape, name="X"), te.placeholder(b.shape, name="Y"), te.reduce_axis(terms, "k")
    dag = ComputeDAG([te.compute((1, 2000), lambda i, j: te.sum(x[i, k] * y[k, j], k), name="Z")])
    (plain,) = evaluate_plainly(dag, {"X": a, "Y": b})
    assert size(off) / 2 < size(plain - exact) < 4 * size(off)


def test_a_plain_running_sum_is_made_from_the_one_before():
    array = np.random.default_rng(0).random((2, 3001), F32)
    a, j = te.placeholder(array.shape, name="A"), te.reduce_axis(array.shape[1], "j")
    body = lambda b, i: te.sum(te.select(j <= i, a[b, j], 0.0), axis=j)  # noqa: E731
    (plain,) = evaluate_plainly(ComputeDAG([te.compute(array.shape, body, name="B")]), {"A": array})
    np.testing.assert_array_equal(plain, np.add.accumulate(array, axis=1))


def test_plain_sums_of_large_and_of_infinite_numbers_stay_what_they_are():
    for number in (1e30, 1e-30, np.inf, np.nan):
        array = np.full((2, 5), number, F32)
        np.testing.assert_allclose(sums_of(array), array.sum(1), rtol=1e-5)


def test_sums_of_integers_are_exact_and_products_of_many_numbers_are_not():
    ones = np.arange(24, dtype=F32).reshape(2, 12) % 5
    np.testing.assert_array_equal(sums_of(ones), ones.sum(1))
    x, y, k = te.placeholder((2, 12), name="X"), te.placeholder((12, 3), name="Y"), te.reduce_axis(12, "k")
    dag = ComputeDAG([te.compute((2, 3), lambda i, j: te.sum(x[i, k] * y[k, j], k), name="Z")])
    (plain,) = evaluate_plainly(dag, {"X": ones, "Y": np.full((12, 3), 7, F32)})
    np.testing.assert_array_equal(plain, ones @ np.full((12, 3), 7, F32))
    many = (1 + np.random.default_rng(0).random((3, 500)) / 100).astype(F32)
    a, j = te.placeholder(many.shape, name="A"), te.reduce_axis(500, "j")
    dag = ComputeDAG([te.compute((3,), lambda i: te.prod(a[i, j], axis=j), name="B")])
    off = np.abs(evaluate_plainly(dag, {"A": many})[0] / many.prod(1, dtype="float64") - 1)
    assert (off > 2e-7).all()
    assert (off < 2e-5).all()

"""Sums and indices in int64 are made in int32 where they fit, for the worst data as well."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.narrow import narrow_indices, narrow_sums
from tests.te.brute import evaluate


def wide(x):
    return te.cast(x, "int64")


TERMS = [
    ("int8", 2**24 - 1, lambda x, k: wide(x)),
    ("uint8", 2**31 // 255, lambda x, k: wide(x)),
    ("int8", 2**17 - 1, lambda x, k: wide(x) * wide(x)),
    ("int8", 2**17 - 1, lambda x, k: wide(te.cast(x, "int32") * te.cast(x, "int32"))),
    ("uint8", 2**31 // (300 * 210), lambda x, k: (wide(x) + 45) * te.min(45 - wide(x), 9) + k * 0),
    ("int8", 2**24 - 1, lambda x, k: wide(x * x)),  # wraps around as int8
    ("int8", 2**31 - 1, lambda x, k: wide(x > 3)),
    ("int8", 2**24 - 1, lambda x, k: te.select(x > 3, wide(x), te.cast(-1, "int64"))),
]


def summed(dtype, terms, term):
    x, k = te.placeholder((2, terms), dtype, name="X"), te.reduce_axis(terms, name="k")
    return te.ComputeDAG(te.compute((2,), lambda i: te.sum(term(x[i, k], k), axis=k), name="S"))


@pytest.mark.parametrize(("dtype", "most", "term"), TERMS)
def test_as_many_terms_as_fit(dtype, most, term):
    for terms in (3, most):
        small = narrow_sums(summed(dtype, terms, term))
        assert [s.outputs[0].dtype for s in small.stages] == ["int32", "int64"]
        assert narrow_sums(small) is small
    more = summed(dtype, most + 2, term)
    assert narrow_sums(more) is more
    few = summed(dtype, 3, term)
    data = {"X": np.array([[-128, 127, 5], [0, 255, 3]]) % (256 if dtype == "uint8" else 128)}
    np.testing.assert_array_equal(evaluate(few, data)[0], evaluate(collapse(few), data)[0])


@pytest.mark.parametrize(
    ("dtype", "out", "term"),
    [
        ("int32", "int64", wide),  # whose elements are any number
        ("int64", "int64", lambda x: x),
        ("int8", "int32", lambda x: te.cast(x, "int32")),
        ("float32", "int64", wide),
        ("int8", "int64", lambda x: wide(x) * 2**31),
    ],
)
def test_other_sums_stay(dtype, out, term):
    dag = summed(dtype, 3, lambda x, k: term(x))
    assert dag.outputs[0].dtype == out
    assert narrow_sums(dag) is dag


def read_at(index, extent=8, size=100):
    v, n = te.placeholder((size,), name="V"), te.placeholder((extent,), "int16", name="N")
    return te.ComputeDAG(te.compute((extent,), lambda i: v[index(i, n[i])], name="C"))


INDICES = {
    "a square": (lambda i, n: i * i, 46341, True),  # 46340 squared is the largest that fits
    "a larger square": (lambda i, n: i * i, 46342, False),
    "a remainder": (lambda i, n: i * i * 3 % 97, 26755, True),
    "a quotient by what is positive": (lambda i, n: (i - 9) // (i + 1), 8, True),
    "a quotient by what is negative, of which no bound is known": (lambda i, n: (i - 9) // (i - 20), 8, False),
    "data of 16 bits": (lambda i, n: te.cast(n, "int64") * i - 1, 2**16, True),
    "more of them": (lambda i, n: te.cast(n, "int64") * i - 1, 2**16 + 2, False),
    "a clamp below": (lambda i, n: te.max(te.min(i * i, 2**31 - 1), 4) % 64, 46341, True),
    "a rounded number, which may be any": (lambda i, n: te.cast(te.cast(i, "float32") * 0.5, "int64"), 8, False),
}


@pytest.mark.parametrize("case", INDICES)
def test_indices_that_are_computed_for_each_lane(case):
    index, extent, is_narrow = INDICES[case]
    dag = read_at(index, extent)
    narrow = narrow_indices(dag)
    assert (narrow is not dag) == is_narrow
    assert narrow_indices(narrow) is narrow
    small = read_at(index, 13)
    data = {"V": np.arange(100.0), "N": np.arange(-5, 8)}
    np.testing.assert_array_equal(evaluate(small, data)[0], evaluate(narrow_indices(small), data)[0])


def test_affine_indices_are_not_narrowed():
    dag = read_at(lambda i, n: 2 * i + 1)
    assert narrow_indices(dag) is dag

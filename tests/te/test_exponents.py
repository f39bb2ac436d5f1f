"""`exp` of what is at most 0 is told apart, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.ir.expr import Call
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.exponents import negative_exponents
from autosched.te.tensor import postorder
from tests.te.brute import evaluate


def exps(dag):
    return [e.fn for op in dag.stages for e in postorder(op.body) if isinstance(e, Call) and e.fn.startswith("exp")]


def rows(exponent, largest=None, of=te.max, n=5):
    """A sum over rows of exp(exponent), of a matrix and what `of` makes of its rows."""
    x = te.placeholder((3, 5), name="X")
    k, j = te.reduce_axis(n, name="k"), te.reduce_axis(5, name="j")
    p = te.compute((3,), lambda i: of((largest or (lambda v: v))(x[i, k]), axis=k), name="P")
    return te.ComputeDAG(te.compute((3,), lambda i: te.sum(te.exp(exponent(x, p, i, j)), axis=j), name="S"))


def masked(v):
    return te.select(v > 0.5, v, -1e9)


NEGATIVE = [
    rows(lambda x, p, i, j: x[i, j] - p[i]),
    rows(lambda x, p, i, j: masked(x[i, j]) - p[i], masked),
    rows(lambda x, p, i, j: te.cast(x[i, j], "float64") - p[i], lambda v: te.cast(v, "float64")),
    rows(lambda x, p, i, j: -te.abs(x[i, j])),
]
OTHERS = [
    rows(lambda x, p, i, j: x[i, j] - p[i], n=4),  # the largest of some
    rows(lambda x, p, i, j: x[i, j] - p[2 - i]),
    rows(lambda x, p, i, j: x[2 - i, j] - p[i]),
    rows(lambda x, p, i, j: x[i, j] - p[i], masked),
    rows(lambda x, p, i, j: p[i] - x[i, j]),
    rows(lambda x, p, i, j: x[i, j] - p[i], of=te.min),
    rows(lambda x, p, i, j: x[i, j] + x[i, j] - p[i]),
    rows(lambda x, p, i, j: te.abs(x[i, j])),
]


@pytest.mark.parametrize("dag", NEGATIVE)
def test_exponents_that_are_never_positive(dag):
    small = collapse(dag)
    assert exps(dag) == ["exp"]
    assert exps(small) == ["exp_negative"]
    assert negative_exponents(small) is small
    data = {"X": np.linspace(-300, 3, 15, dtype=np.float32).reshape(3, 5)}
    np.testing.assert_array_equal(evaluate(dag, data)[0], evaluate(small, data)[0])


@pytest.mark.parametrize("dag", OTHERS)
def test_others(dag):
    assert negative_exponents(dag) is dag

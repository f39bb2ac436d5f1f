"""Input data: deterministic, of the declared types, exact where promised, special where that is checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from autosched import te
from autosched.errors import UsageError
from autosched.te import ComputeDAG
from autosched.te.operators import gemm, normalise
from autosched.te.reference.evaluate import evaluate
from autosched.te.reference.inputs import KINDS, make_inputs, positive_inputs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "int32", "int64"])
def test_types_shapes_and_determinism(kind: str, dtype: str) -> None:
    dag = ComputeDAG(gemm.matmul(7, 5, 30, dtype))
    first, again, other = make_inputs(dag, 1, kind), make_inputs(dag, 1, kind), make_inputs(dag, 2, kind)
    assert list(first) == ["A", "B"]
    for name, array in first.items():
        assert array.dtype == np.dtype(dtype)
        assert array.shape == dag.tensors[name].shape
        assert array.flags.c_contiguous
        assert np.array_equal(array, again[name])
        assert not np.array_equal(array, other[name])


def test_structured_elements_are_non_zero_and_mostly_differ_from_their_neighbours() -> None:
    x = make_inputs(ComputeDAG(gemm.matmul(64, 8, 64)), 0, "structured")["A"]
    assert np.all(x != 0)
    assert np.array_equal(x, np.rint(x))
    assert np.mean(x[1:] != x[:-1]) > 0.95
    assert np.mean(x[:, 1:] != x[:, :-1]) > 0.95


def test_integers_shrink_so_that_long_sums_stay_exact() -> None:
    dag = ComputeDAG(normalise.nrm(1, 2048, 1024))
    for kind in ("structured", "integers"):
        x = make_inputs(dag, 0, kind)["A"]
        assert float((x.astype("float64") ** 2).sum()) <= 1 << 24
        assert np.abs(x).max() == math.isqrt((1 << 24) // (2048 * 1024))


def test_what_stands_below_a_root_or_a_divisor_is_positive() -> None:
    dag = ComputeDAG(normalise.batch_norm(1, 3, 3, 5))
    assert positive_inputs(dag) == {"var"}
    for kind in KINDS:
        ins = make_inputs(dag, 0, kind)
        assert np.all(ins["var"] > 0)
        assert np.isfinite(evaluate(dag, ins)[0].value).all()
    a, b = te.placeholder((4,), name="A"), te.placeholder((4,), name="B")
    shifted = te.compute((4,), lambda i: b[i] + 1.0, name="shifted")
    quotient = ComputeDAG(te.compute((4,), lambda i: a[i] / shifted[i], name="quotient"))
    assert positive_inputs(quotient) == {"B"}
    assert positive_inputs(ComputeDAG(normalise.softmax(3, 4))) == frozenset()


def test_numbers_of_places_are_inside_and_a_few_outside() -> None:
    table, codes = te.placeholder((40, 3), name="T"), te.placeholder((500,), "uint8", name="codes")
    ids, far = (te.placeholder((500,), t, name=n) for t, n in (("int32", "ids"), ("int64", "far")))
    again = te.compute((500,), lambda i: far[i], name="again")
    dag = ComputeDAG(te.compute((500,), lambda i: table[ids[i], codes[i] & 3] + table[again[i], 0], name="C"))
    for kind in KINDS:
        x = make_inputs(dag, 0, kind)
        for name in ("ids", "far"):
            assert set(x[name].tolist()) == set(range(-1, 41))
        assert len(set(x["codes"].tolist())) > 200  # all bits of what is computed with


def test_bools_and_unknown_kinds() -> None:
    a = te.placeholder((64,), "bool", name="A")
    dag = ComputeDAG(te.compute((64,), lambda i: ~a[i], name="inverse"))
    for kind in KINDS:
        x = make_inputs(dag, 0, kind)["A"]
        assert x.dtype == bool
        assert 0 < x.sum() < 64
    with pytest.raises(UsageError, match="must be one of normal, structured, integers but is 'uniform'"):
        make_inputs(dag, 0, "uniform")


def _special(dag: ComputeDAG, name: str = "X") -> np.ndarray[Any, Any]:
    x = make_inputs(dag, 0, "structured")[name].astype("float64")
    return x[~np.isfinite(x) | (x == 0) | (np.abs(x) < 1e-4)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_few_values_are_special_where_each_result_depends_on_few(dtype: str) -> None:
    x = te.placeholder((100, 64), dtype, "X")
    k = te.reduce_axis(8, "k")
    each = ComputeDAG(te.compute((100, 64), lambda i, j: te.tanh(x[i, j]), name="Y"))
    peaks = ComputeDAG(te.compute((100, 8), lambda i, j: te.max(x[i, j * 8 + k], axis=k), name="Y"))
    best = ComputeDAG(te.compute((100, 8), lambda i, j: te.argmax((k, x[i, j * 8 + k]), axis=k), name="Y"))
    for dag in (each, peaks, best):
        found = _special(dag)
        assert 80 < len(found) <= 100
        assert np.isnan(found).any()
        assert {np.inf, -np.inf, 0.0} <= set(found.tolist())
        assert ((found > 0) & (found < 1e-4)).any()
        results = evaluate(dag, make_inputs(dag, 0, "structured"))
        assert 0 < np.mean([np.isnan(r.value).mean() for r in results]) < 0.1
        for kind in ("normal", "integers"):
            assert np.isfinite(make_inputs(dag, 0, kind)["X"].astype("float64")).all()


def test_no_value_is_special_where_sums_casts_or_functions_of_positive_numbers_are() -> None:
    x, k = te.placeholder((100, 64), "float32", "X"), te.reduce_axis(64, "k")
    total = te.compute((100,), lambda i: te.sum(x[i, k], axis=k), name="Y")
    cut = te.compute((100, 64), lambda i, j: te.cast(x[i, j], "int32"), name="Y")
    root = te.compute((100, 64), lambda i, j: te.sqrt(x[i, j]), name="Y")
    own = te.reducer(lambda a, b: te.select(a > b, a, b), lambda t: te.const(-1e30, t), "own")
    chosen = te.compute((100,), lambda i: own(x[i, k], axis=k), name="Y")
    for tensor in (total, cut, root, chosen):
        assert not len(_special(ComputeDAG(tensor)))

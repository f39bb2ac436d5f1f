"""Products that may be less precise: another workload, and a bound that takes what is allowed and no more."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.precision import with_precision
from tests.matrix_products import product

EXACTLY, SHORT, IN_PARTS = "float32", "tf32", "3xtf32"


def short(x: np.ndarray) -> np.ndarray:
    """To 10 bits of fraction, halves away from zero."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def products(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    big, small = [short(x) for x in (a, b)], [short(x - short(x)) for x in (a, b)]
    wide = [[x.astype(np.float64) for x in pair] for pair in (big, small)]
    parts = wide[0][0] @ wide[0][1] + wide[0][0] @ wide[1][1] + wide[1][0] @ wide[0][1]
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return {EXACTLY: exact, SHORT: wide[0][0] @ wide[0][1], IN_PARTS: parts}


@pytest.mark.parametrize(("allowed", "taken"), [(SHORT, {EXACTLY, SHORT, IN_PARTS}), (IN_PARTS, {EXACTLY, IN_PARTS})])
def test_the_bound_takes_what_is_allowed(allowed: str, taken: set[str]) -> None:
    dag = product(32, 32, 17, dtype=allowed)
    inputs = make_inputs(dag, 3, "normal")
    (reference,) = evaluate(dag, inputs)
    found = products(inputs["A"], inputs["B"])
    assert {name for name, value in found.items() if within(reference, value).all()} == taken
    assert not within(reference, found[EXACTLY] * (1 + 2.0**-7)).all()


def test_short_numbers_are_exact() -> None:
    """Integers of 11 bits are numbers of tf32: no error is allowed where sums are exact."""
    dag = product(4, 4, 8, dtype=SHORT)
    inputs = {t.name: np.arange(32, dtype=np.float32).reshape(t.shape) for t in dag.inputs}
    (reference,) = evaluate(dag, inputs)
    assert not reference.bound.any()


def test_it_is_another_workload() -> None:
    dags = [build("gmm", (1, 8, 9, 10))[0]]
    dags += [with_precision(dags[0], name) for name in (SHORT, IN_PARTS)]
    assert len({dag.content_hash for dag in dags}) == 3
    assert len({dag.flops for dag in dags}) == 1


def test_others_stay() -> None:
    x = te.placeholder((4, 8), "float32", name="X")
    k = te.reduce_axis(8, name="k")
    dag = te.ComputeDAG(te.compute((4,), lambda i: te.max(x[i, k], axis=k), name="Y"))
    assert with_precision(dag, SHORT) is dag


def test_sums_of_8_bits_may_be_cut_off() -> None:
    """Instructions cut each of 32 terms off to 13 bits of the largest; what is exact there stays so."""
    bounds = {}
    for dtype in ("float16", "float8_e4m3fn", "fp8-fast"):
        dag = product(16, 16, 70, dtype=dtype)
        inputs = make_inputs(dag, 3, "normal")
        (reference,) = evaluate(dag, inputs)
        sizes = np.abs(inputs["A"].astype(np.float64)) @ np.abs(inputs["B"].astype(np.float64))
        bounds[dtype] = (reference.bound / sizes).max()
    assert bounds["float16"] < 2.0**-15
    assert 136 * 2.0**-13 < bounds["float8_e4m3fn"] < 137 * 2.0**-13
    assert 210 * 2.0**-13 < bounds["fp8-fast"] < 211 * 2.0**-13
    ones = {t.name: np.ones(t.shape, inputs["A"].dtype) for t in dag.inputs}
    assert not evaluate(dag, ones)[0].bound.any()


def test_a_bound_of_promoted_sums_does_not_grow_with_the_terms() -> None:
    relative = {}
    for dtype in ("float8_e4m3fn", "fp8-fast"):
        for k in (128, 4096):
            dag = product(2, 2, k, dtype=dtype)
            inputs = make_inputs(dag, 3, "normal")
            sizes = np.abs(inputs["A"].astype(np.float64)) @ np.abs(inputs["B"].astype(np.float64))
            relative[dtype, k] = (evaluate(dag, inputs)[0].bound / sizes).max()
    assert relative["float8_e4m3fn", 4096] < 1.05 * relative["float8_e4m3fn", 128] < 0.02
    assert relative["fp8-fast", 4096] > 30 * relative["fp8-fast", 128]


def test_each_precision_is_for_its_type() -> None:
    float32, float8 = product(4, 4, 8, dtype="float32"), product(4, 4, 8, dtype="float8_e5m2")
    assert with_precision(float32, "fp8-fast") is float32
    assert with_precision(float8, SHORT) is float8
    assert with_precision(float8, "fp8-fast").content_hash != float8.content_hash

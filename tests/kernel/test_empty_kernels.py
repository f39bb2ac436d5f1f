"""Kernels with outputs or inputs without elements, and with reductions over none, on each kind of target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched import te
from autosched.runtime.simulator.build import find_compiler
from autosched.te.tensor import Tensor
from autosched.tuner.policy import SearchSetup
from tests.measure.gpu_kernels import opencl_target


@at.workload
def product(M: int = 3, N: int = 4, K: int = 0) -> Tensor:
    a, b, k = te.placeholder((M, K), name="A"), te.placeholder((K, N), name="B"), te.reduce_axis(K, "k")
    made: Tensor = te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return made


@at.workload
def scaled(M: int = 0, N: int = 5) -> Tensor:
    a, b = te.placeholder((M, N), name="A"), te.placeholder((N,), name="B")
    made: Tensor = te.compute((M, N), lambda i, j: a[i, j] * b[j], name="C")
    return made


@at.workload
def with_sums(M: int = 4, N: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """An output with elements that reads them, one of reductions over none, and one without elements."""
    a, b, k = te.placeholder((M, N), name="A"), te.placeholder((M,), name="B"), te.reduce_axis(N, "k")
    sums = te.compute((M,), lambda i: te.sum(a[i, k], axis=k) + b[i], name="sums")
    largest = te.compute((M,), lambda i: te.max(a[i, k], axis=k), name="largest")
    return sums, largest, te.compute((M, N), lambda i, j: a[i, j] + b[i], name="C")


@at.workload
def joined(M: int = 0, N: int = 6) -> Tensor:
    a, b = te.placeholder((M,), name="A"), te.placeholder((N,), name="B")
    made: Tensor = te.compute((M + N,), lambda i: te.select(i < M, a[i], b[i - M]), name="C")
    return made


def expected(workload: Any, *arrays: Any) -> list[np.ndarray]:
    if workload is product:
        return [arrays[0] @ arrays[1]]
    if workload is scaled:
        return [arrays[0] * arrays[1]]
    if workload is joined:
        return [np.concatenate(arrays)]
    return [arrays[0].sum(1) + arrays[1], arrays[0].max(1, initial=-np.inf), arrays[0] + arrays[1][:, None]]


SHAPES = [
    (product, {"M": 3, "N": 4, "K": 0}),
    (product, {"M": 0, "N": 4, "K": 7}),
    (product, {"M": 0, "N": 0, "K": 0}),
    (scaled, {"M": 0, "N": 5}),
    (scaled, {"M": 5, "N": 0}),
    (with_sums, {"M": 4, "N": 0}),
    (with_sums, {"M": 0, "N": 3}),
    (joined, {"M": 0, "N": 6}),
    (joined, {"M": 6, "N": 0}),
]


def check(kernel: Any, workload: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=spec.shape).astype(np.float32) for spec in kernel.inputs]
    results = kernel(*arrays)
    wanted = expected(workload, *arrays)
    for got, array in zip(results if isinstance(results, tuple) else (results,), wanted, strict=True):
        assert (got.shape, got.dtype) == (array.shape, array.dtype)
        np.testing.assert_allclose(got, array, rtol=1e-6)
    out = [np.full(spec.shape, 7, np.float32) for spec in kernel.outputs]
    kernel(*arrays, out=out if len(out) > 1 else out[0])
    for got, array in zip(out, wanted, strict=True):
        np.testing.assert_allclose(got, array, rtol=1e-6)


@pytest.mark.parametrize(("workload", "settings"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_on_a_processor(workload: Any, settings: dict[str, int], threads: int) -> None:
    check(at.compile(workload, settings=settings, threads=threads), workload)


@pytest.mark.parametrize(("workload", "settings"), SHAPES)
def test_on_opencl(workload: Any, settings: dict[str, int]) -> None:
    opencl_target()
    check(at.compile(workload, settings=settings, target="opencl"), workload)


@pytest.mark.parametrize("workload", [product, scaled, with_sums, joined])
def test_tuned(workload: Any, tmp_path: Path) -> None:
    result = at.tune(workload, trials=2, db=tmp_path / "records.db")
    assert result.verified
    check(result.kernel(), workload)
    check(at.compile(workload, db=tmp_path / "records.db"), workload)
    facts = at.explain(result.record_id, tmp_path / "records.db", workload=workload)
    assert facts["predicted_s"] >= 0


@pytest.mark.parametrize("workload", [product, scaled, with_sums, joined])
def test_in_the_simulator(workload: Any) -> None:
    """Where every access is examined."""
    if find_compiler() is None:
        pytest.skip("no g++")
    result = at.tune(workload, target="cuda -arch=sm_80", search=SearchSetup(measure=False, simulate=True))
    assert result.failed == 0, result.failures

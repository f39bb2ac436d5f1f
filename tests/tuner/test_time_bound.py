"""The least time of a workload: never more than a kernel can reach, and enough to catch a clock that lies."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autosched import te
from autosched.target import parse_target
from autosched.te.dag import ComputeDAG
from autosched.te.tensor import Tensor
from autosched.tuner.definition import define
from autosched.tuner.options import WorkloadOptions
from autosched.tuner.time_bound import PEAK_SLACK, TimeBound, bound_of

CPU = parse_target("cpu")
M, N, K = 6, 8, 10


def operations(*outputs: Tensor, weights: tuple[str, ...] = ()) -> int:
    dag = ComputeDAG(outputs)
    return bound_of(dag.with_weights(weights) if weights else dag, "float32", CPU, 1).operations


def product(A: Tensor, B: Tensor, name: str = "C") -> Tensor:
    k = te.reduce_axis(K, name="k")
    return te.compute((M, N), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name=name)


@pytest.fixture
def A() -> Tensor:
    return te.placeholder((M, K), name="A")


@pytest.fixture
def B() -> Tensor:
    return te.placeholder((K, N), name="B")


@pytest.mark.parametrize(
    ("workload", "settings", "share"),
    [
        ("matmul", {}, 1.0),
        ("batch_matmul", {}, 1.0),
        ("conv2d", {"pad": 0, "stride": 2}, 1.0),
        ("conv2d", {}, 0.0),  # zeros of the padding are left out of the sums
        ("t2d", {}, 0.0),
        ("softmax", {}, 0.0),
        ("gelu", {}, 0.0),
    ],
)
def test_operations_of_built_in_operators(workload: str, settings: dict[str, int], share: float) -> None:
    dag = define(workload, WorkloadOptions(settings=settings)).dag
    bound = bound_of(dag, "float32", CPU, 2)
    assert bound.operations == share * dag.flops
    assert bound.written_bytes == sum(4 * math.prod(t.shape) for t in dag.outputs)
    assert 0.0 < bound.seconds(None) == bound.written_bytes / bound.bytes_per_s
    assert bound.seconds(1.0) == max(bound.seconds(None), bound.operations / (PEAK_SLACK * 1e9))


def test_other_types_and_devices_are_asked_for_their_outputs_alone() -> None:
    dag = define("matmul", WorkloadOptions(dtype="int8")).dag
    assert bound_of(dag, "int8", CPU, 1).operations == 0
    gpu = parse_target("cuda -arch=sm_90")
    bound = bound_of(define("matmul").dag, "float32", gpu, 1)
    assert (bound.operations, bound.written_bytes) == (0, 4 << 18)
    assert (
        bound_of(
            define("conv2d", WorkloadOptions(settings={"pad": 0}, winograd=True)).dag, "float32", CPU, 1
        ).operations
        == 0
    )
    assert TimeBound().seconds(100.0) == 0.0


def test_a_product_that_is_needed_counts_through_what_follows(A: Tensor, B: Tensor) -> None:
    bias = te.placeholder((N,), name="bias")
    C = product(A, B)
    D = te.compute((M, N), lambda i, j: te.max(C[i, j] + bias[j], 0.0), name="D")
    E = te.compute((N, M), lambda j, i: D[i, j] * 2.0, name="E")
    assert operations(C) == operations(D) == operations(E) == 2 * M * N * K


def test_what_a_schedule_can_save_does_not_count(A: Tensor, B: Tensor) -> None:
    C = product(A, B)
    k, m = te.reduce_axis(K, name="k"), te.reduce_axis(K, name="l")
    V, row = te.placeholder((2 * K,), name="V"), te.placeholder((K,), name="row")
    S = te.placeholder((K, M), name="S")
    for saved in (
        te.compute((M, N // 2), lambda i, j: C[i, 2 * j], name="every_second"),
        te.compute((M, N), lambda i, j: te.select(i < 2, C[i, j], 0.0), name="some"),
        te.compute((M,), lambda i: te.max(C[i, m - m], axis=m), name="one_of_each"),
        te.compute((M, N), lambda i, j: te.sum(A[i, k] * row[k], axis=k), name="equal_columns"),
        te.compute((M, N), lambda i, j: te.sum(A[i, k] * B[m, j], axis=(k, m)), name="product_of_sums"),
        te.compute((K,), lambda i: te.sum(V[i + k] * te.placeholder((2 * K,), name="U")[i + k], axis=k), name="window"),
        te.compute((M, M), lambda i, j: te.sum(S[k, i] * S[k, j], axis=k), name="symmetric"),
    ):
        assert operations(saved) == 0, saved


def test_a_product_of_weights_alone_is_computed_ahead(A: Tensor, B: Tensor) -> None:
    X = te.placeholder((M, N), name="X")
    C = product(A, B)
    D = te.compute((M, N), lambda i, j: C[i, j] + X[i, j], name="D")
    assert operations(D) == 2 * M * N * K
    assert operations(D, weights=("B",)) == 2 * M * N * K
    assert operations(D, weights=("A", "B")) == 0


def test_axes_of_one_element_are_no_matter() -> None:
    k, m = te.reduce_axis(K, name="k"), te.reduce_axis(1, name="l")
    A, B = te.placeholder((M, K), name="A"), te.placeholder((K, N), name="B")
    C = te.compute((1, M, N), lambda b, i, j: te.sum(A[i, k] * B[k, j], axis=(k, m)), name="C")
    assert operations(C) == 2 * M * N * K


def test_more_threads_write_faster() -> None:
    dag = define("matmul").dag
    one, two = (bound_of(dag, "float32", CPU, n) for n in (1, 2))
    assert two == replace(one, bytes_per_s=2 * one.bytes_per_s)

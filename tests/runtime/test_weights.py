"""Kernels with weights as Python functions: bound once, or packed at every call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autosched.codegen.llvm.kernel import emit
from autosched.errors import UsageError
from autosched.lower import concretise, lower
from autosched.runtime.kernel import Kernel
from autosched.runtime.spec import ArraySpec
from autosched.runtime.weights import WeightsKernel, build_weights_kernel
from autosched.schedule import CacheRead, Pack, initial_state
from autosched.target import parse_target
from autosched.te.operators.registry import build
from tests.helpers import in_threads

M, N, K = 5, 9, 7


def made(weights: list[str]) -> WeightsKernel:
    """A matrix product of which B is packed."""
    dag = build("matmul", (M, N, K))[0].with_weights(weights)
    state = initial_state(dag).apply(CacheRead("B", "matmul", "pack"), Pack("B.pack", (1, 0), ((1, 4),)))
    func, simplify = concretise(lower(state), {})
    target = parse_target("cpu")
    inputs, outputs = (tuple(ArraySpec(t.name, t.shape, t.dtype) for t in ts) for ts in (dag.inputs, dag.outputs))
    return build_weights_kernel(emit(func, simplify, target, 1), target, inputs, outputs, dag.weights)


@pytest.fixture(scope="module")
def kernel() -> WeightsKernel:
    return made(["B"])


@pytest.fixture
def arrays() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(rng.integers(-4, 5, shape).astype(np.float32) for shape in ((M, K), (K, N)))


def test_bound_once_it_takes_the_rest(kernel: WeightsKernel, arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    layer = kernel.bind(B=b)
    assert [spec.name for spec in layer.inputs] == ["A"]
    assert (kernel.weights, layer.weights) == (("B",), ())
    expected = a @ b
    np.testing.assert_array_equal(layer(a), expected)
    out = np.empty((M, N), np.float32)
    assert layer(a, out=out) is out
    np.testing.assert_array_equal(out, expected)
    b[...] = 99  # what was bound stays
    np.testing.assert_array_equal(layer(a), expected)


def test_plain_arrays_are_packed_at_every_call(kernel: WeightsKernel, arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    np.testing.assert_array_equal(kernel(a, b), a @ b)
    np.testing.assert_array_equal(kernel(a, np.asfortranarray(-b)), a @ -b)


def test_the_first_input_may_be_the_weight(arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    np.testing.assert_array_equal(made(["A"]).bind(A=a)(b), a @ b)


def test_several_bindings_and_threads(kernel: WeightsKernel, arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    layers = [kernel.bind(B=b * n) for n in range(4)]
    wrong: list[int] = []

    def work(n: int) -> None:
        wrong.extend(n for _ in range(50) if not np.array_equal(layers[n](a), a @ (b * n)))

    in_threads(work, range(4))
    assert not wrong


def test_refusals(kernel: WeightsKernel, arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    for given in ({}, {"A": a}, {"B": b, "C": b}):
        with pytest.raises(UsageError, match=r"exactly the weights of this kernel \(B\), but got"):
            kernel.bind(**given)
    with pytest.raises(UsageError, match=r"input B must be float32\[7, 9\]"):
        kernel.bind(B=a)
    layer = kernel.bind(B=b)
    with pytest.raises(UsageError, match=r"takes 1 arrays \(A\), but got 2"):
        layer(a, b)
    memory = np.zeros(M * N, np.float32)
    with pytest.raises(UsageError, match="overlaps A"):
        layer(memory[: M * K].reshape(M, K), out=memory.reshape(M, N))


def test_a_kernel_without_weights_says_how_to_get_one(kernel: WeightsKernel) -> None:
    plain = Kernel(kernel.run, kernel.inputs, kernel.outputs, 0)
    with pytest.raises(UsageError, match=r'weights=\["NAME"\]'):
        plain.bind(B=None)

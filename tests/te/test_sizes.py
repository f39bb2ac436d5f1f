"""Sizes that are declared in expressions: their arithmetic, and what definitions must not do with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched import te
from autosched.errors import ExpressionError, UsageError
from autosched.te.reference.evaluate import evaluate
from autosched.te.sizes import at_sizes, declared_sizes

M, N = te.size("M", 1, 600), te.size("N", 16, 640, multiple=8)


def product() -> list[te.Tensor]:
    a, b = te.placeholder((M, N), name="a"), te.placeholder((N, 20), name="b")
    k = te.reduce_axis(N, name="k")
    return [a, b, te.compute((M, 20), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")]


def mirrored() -> list[te.Tensor]:
    """Sizes in extents, in index arithmetic, in conditions and as numbers."""
    a = te.placeholder((M, N), name="a")
    return [
        a,
        te.compute(
            (M - 1, N // 2),
            lambda i, j: te.select(te.all(i < M - 3, j >= 2), a[M - 2 - i, 2 * j] + a[i + 1, N - 1 - j], i * N + j) / M,
            name="o",
        ),
    ]


@pytest.mark.parametrize("make", [product, mirrored])
def test_kernels_agree_with_the_reference_over_sizes(make: Any) -> None:
    tensors = make()
    dag = te.ComputeDAG(tensors[-1])
    kernel = at.compile(tensors, threads=2)
    assert isinstance(kernel, at.SizedKernel)
    assert kernel.ranges == {"M": range(1, 601), "N": range(16, 641, 8)}
    for m, n in ((1, 16), (2, 64), (7, 128), (31, 24), (32, 40), (97, 104), (600, 640)):
        exact = at_sizes(dag, {"M": m, "N": n})
        assert not declared_sizes(exact)
        rng = np.random.default_rng(0)
        arrays = {t.name: rng.standard_normal(t.public_shape).astype(t.dtype) for t in exact.inputs}
        (reference,) = evaluate(exact, arrays)
        result = kernel(**arrays)
        assert result.shape == reference.value.shape
        assert np.allclose(result, reference.value, rtol=1e-3, atol=1e-4), (m, n)


def test_a_function_may_declare_sizes() -> None:
    def doubled(columns: int = 5) -> te.Tensor:
        a = te.placeholder((te.size("rows", 0, 9), columns), name="a")
        return te.compute((te.size("rows", 0, 9), columns), lambda i, j: a[i, j] * 2.0, name="o")

    kernel = at.compile(doubled, settings={"columns": 3}, threads=1)
    for rows in (0, 1, 2, 9):
        assert np.array_equal(kernel(np.ones((rows, 3), "float32")), np.full((rows, 3), 2, "float32"))


def test_expressions_without_sizes_are_compiled_as_tensors_too() -> None:
    a = te.placeholder((3, 4), name="a")
    o = te.compute((3, 4), lambda i, j: a[i, j] + 1.0, name="o")
    for tensors in ([a, o], [o]):
        assert (at.compile(tensors, threads=1)(np.ones((3, 4), "float32")) == 2).all()


def gathered(first: int) -> te.Tensor:
    n = te.size("n", first, 9)
    a, index = te.placeholder((n,), name="a"), te.placeholder((4,), "int64", name="index")
    return te.compute((4,), lambda i: a[index[i]], name="o")


def test_an_index_that_is_data_is_clamped_to_the_size() -> None:
    kernel = at.compile([gathered(1)], threads=1)
    for n in (1, 5, 9):
        a, index = np.arange(n, dtype="float32"), np.array([0, -2, 3, 99], "int64")
        assert np.array_equal(kernel(a, index), a[np.clip(index, 0, n - 1)])
    with pytest.raises(ExpressionError, match="out of bounds"):
        at.compile([gathered(0)], threads=1)(np.zeros(0, "float32"), np.zeros(4, "int64"))


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (lambda: M > 3, "depends on whether M > 3"),
        (lambda: range(M), "depends on whether M == 600"),
        (lambda: te.placeholder((M - 5,)), "depends on whether M - 5 >= 0"),
        (lambda: te.compute((M,), lambda i: mirrored()[0][i + 1, 0], name="o"), "reads a.* out of bounds"),
        (lambda: te.size("M", 5, 2), "there is no size >= 0 in this range"),
        (lambda: te.size("M", -1, 2), "there is no size >= 0 in this range"),
        (lambda: te.size("M", 1, 7, multiple=8), "there is no multiple of 8"),
        (lambda: te.size("M", 1, 7, multiple=0), "multiple of 0, which must be at least 1"),
        (lambda: te.size("M", "a", 2), "has integers as its range"),
        (lambda: te.size("M!", 1, 2), "is not usable"),
        (
            lambda: declared_sizes(te.ComputeDAG(te.compute((M, te.size("M", 1, 2)), lambda i, j: i + j))),
            "M is declared with two ranges",
        ),
    ],
)
def test_definitions_that_depend_on_a_size_are_refused_in_a_sentence(definition: Any, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        definition()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda k: k(np.zeros((3, 20), "float32"), np.zeros((20, 20), "float32")), "N is 20, and may be 16 to 640 in"),
        (lambda k: k(np.zeros((601, 16), "float32"), np.zeros((16, 20), "float32")), "M is 601, and may be 1 to 600"),
        (lambda k: k(np.zeros((3, 16), "float32"), np.zeros((24, 20), "float32")), "b must be"),
        (lambda _: at.tune(lambda: product()[-1]), "declares sizes .M, N., which only compile takes"),
        (lambda _: at.compile([*reversed(product())]), "inputs as they were made, then outputs: .a, b, c."),
        (lambda _: at.compile([3]), "an expression is a list of tensors"),
        (lambda _: at.compile(lambda n=8: product()[-1], sizes={"n": (1, 2)}), "compile it without sizes="),
        (lambda _: at.compile([te.compute((M,), lambda i: i + 1)]), "M is the extent of no input's axis"),
    ],
)
def test_calls_and_workloads_that_do_not_fit_are_refused_in_a_sentence(call: Any, reason: str) -> None:
    kernel = at.compile(product(), threads=1)
    with pytest.raises(UsageError, match=reason):
        call(kernel)

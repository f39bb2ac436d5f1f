"""Kernels of tensor expressions: indices that are data read the nearest element, or raise where that is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched import te
from autosched.kernel.index_checked import IndexCheckedKernel
from tests.measure.gpu_kernels import opencl_target

ROWS, WIDTH = 7, 5
RNG = np.random.default_rng(0)


def rows(n: int = 40, width: int = WIDTH) -> te.Tensor:
    table, ids = te.placeholder((ROWS, width), "float32", "table"), te.placeholder((n,), "int64", "ids")
    return te.compute((n, width), lambda i, d: table[ids[i], d], name="rows")


def checked(function: Any, **keywords: Any) -> IndexCheckedKernel:
    threads = None if "target" in keywords else 1
    kernel = at.compile(function, check_indices=True, threads=threads, **keywords)
    assert isinstance(kernel, IndexCheckedKernel)
    return kernel


def test_without_it_the_nearest_element_is_read():
    table, ids = RNG.standard_normal((ROWS, WIDTH), "float32"), np.arange(40) % ROWS
    ids[3], ids[9] = 10**12, -1
    np.testing.assert_array_equal(at.compile(rows, threads=1)(table, ids), table[ids.clip(0, ROWS - 1)])


def test_the_first_index_outside_is_named():
    kernel = checked(rows)
    table, ids = RNG.standard_normal((ROWS, WIDTH), "float32"), np.arange(40) % ROWS
    np.testing.assert_array_equal(kernel(table, ids=ids), table[ids])
    out = np.zeros((40, WIDTH), "float32")
    for place, index in ((39, ROWS), (17, -1), (0, 2**62)):
        ids[place] = index
        with pytest.raises(IndexError, match=rf"table\[.*\] in rows: the index {index} is out of range.* 0 to 6$"):
            kernel(table, ids, out=out)
    assert not out.any(), "nothing is written"


def test_an_index_that_is_arithmetic_on_axes_is_checked():
    table = te.placeholder((ROWS,), "float32", "table")
    squares = checked(lambda: te.compute((4,), lambda i: table[i * i], name="squares"))
    with pytest.raises(IndexError, match=r"table\[i\*i\] in squares: the index 9 is out of range"):
        squares(RNG.standard_normal((ROWS,), "float32"))


def guarded(n: int = 12) -> te.Tensor:
    """An index counts where its element is read; one that the user holds inside never is outside."""
    table, ids = te.placeholder((ROWS,), "float32", "table"), te.placeholder((n,), "int32", "ids")

    def at_(i: Any) -> Any:
        shown = te.select(ids[i] >= 0, table[ids[i]], 0.0)
        return shown + table[te.min(te.max(ids[i], 0), ROWS - 1)] + table[ids[i] & 3]

    return te.compute((n,), at_, name="guarded")


def test_a_condition_around_a_load_protects_its_index():
    kernel = checked(guarded)
    assert len(kernel.probes) == 1
    table, ids = RNG.standard_normal(ROWS, "float32"), np.arange(12, dtype="int32") % ROWS
    ids[4] = -5
    wanted = np.where(ids >= 0, table[ids.clip(0)], 0) + table[ids.clip(0, ROWS - 1)] + table[ids & 3]
    np.testing.assert_allclose(kernel(table, ids), wanted, rtol=1e-6)
    ids[7] = ROWS
    with pytest.raises(IndexError, match="the index 7 is out of range"):
        kernel(table, ids)


def chained(n: int = 9) -> te.Tensor:
    """Indices of indices, computed by a stage, in a sum of products."""
    table, first = te.placeholder((ROWS, n), "float32", "table"), te.placeholder((n,), "int64", "first")
    second, x = te.placeholder((ROWS,), "int64", "second"), te.placeholder((n,), "float32", "x")
    twice = te.compute((n,), lambda i: 2 * second[first[i]], name="twice")
    k = te.reduce_axis(n, "k")
    return te.compute((n,), lambda i: te.sum(table[twice[i], k] * x[k], axis=k), name="y")


def test_indices_that_are_computed_of_indices():
    kernel = checked(chained)
    assert len(kernel.probes) == 2
    table, x = RNG.standard_normal((ROWS, 9), "float32"), RNG.standard_normal(9, "float32")
    first, second = np.arange(9) % 3, np.array([0, 3, 1, 4, 4, 4, 4])
    np.testing.assert_allclose(kernel(table, first, second, x), table[2 * second[first]] @ x, rtol=1e-5, atol=1e-6)
    with pytest.raises(IndexError, match="in twice: the index 7 is"):
        kernel(table, first + 5, second, x)
    first[8] = 3
    with pytest.raises(IndexError, match="in y: the index 8 is"):
        kernel(table, first, second, x)


def test_weights_that_are_indices_are_looked_at_in_each_call():
    def looked(n: int = 40, width: int = WIDTH) -> te.Tensor:
        table, ids = te.placeholder((ROWS, width), "float32", "table"), te.placeholder((n,), "int64", "ids")
        w = te.placeholder((width, 8), "float32", "w")
        k = te.reduce_axis(width, "k")
        return te.compute((n, 8), lambda i, j: te.sum(table[ids[i], k] * w[k, j], axis=k), name="y")

    kernel = checked(looked, weights=["w"])
    table, w = RNG.standard_normal((ROWS, WIDTH), "float32"), RNG.standard_normal((WIDTH, 8), "float32")
    bound, ids = kernel.bind(w=w), np.arange(40) % ROWS
    np.testing.assert_allclose(bound(table, ids), table[ids] @ w, rtol=1e-5, atol=1e-6)
    with pytest.raises(IndexError, match="the index -1 is"):
        bound(table, ids - 1)


def test_a_kernel_without_such_indices_has_no_probe():
    kernel = checked("matmul", shape=(8, 8, 8))
    a = np.eye(8, dtype="float32")
    assert kernel.probe is None
    np.testing.assert_array_equal(kernel(a, a), a)


def test_torch_tensors_go_in_and_come_out():
    torch = pytest.importorskip("torch")
    kernel, table = checked(rows), torch.ones(ROWS, WIDTH)
    assert isinstance(kernel(table, torch.zeros(40, dtype=torch.int64)), torch.Tensor)
    with pytest.raises(IndexError):
        kernel(table, torch.full((40,), ROWS))


def test_on_a_gpu():
    opencl_target()
    kernel = checked(rows, target="opencl")
    table, ids = RNG.standard_normal((ROWS, WIDTH), "float32"), np.arange(40) % ROWS
    np.testing.assert_array_equal(kernel(table, ids), table[ids])
    ids[33] = ROWS
    with pytest.raises(IndexError, match="the index 7 is"):
        kernel(at.to_device(table, device="opencl"), at.to_device(ids, device="opencl"))

"""Kernels of sizes that are known at a call, against the reference over sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import autosched as at
import autosched.te as te
from autosched.errors import UsageError
from autosched.kernel import pool_worker
from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate
from tests.measure.gpu_kernels import opencl_target


def product(M=8, N=8, K=8):
    a, b = te.placeholder((M, K), name="a"), te.placeholder((K, N), name="b")
    k = te.reduce_axis(K, name="k")
    return te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")


def softmax(M=8, N=8):
    a, k, s = te.placeholder((M, N), name="a"), te.reduce_axis(N, name="k"), te.reduce_axis(N, name="s")
    largest = te.compute((M,), lambda i: te.max(a[i, k], axis=k), name="largest")
    power = te.compute((M, N), lambda i, j: te.exp(a[i, j] - largest[i]), name="power")
    total = te.compute((M,), lambda i: te.sum(power[i, s], axis=s), name="total")
    return te.compute((M, N), lambda i, j: power[i, j] / total[i], name="o")


def transposed(M=8, N=8):
    a = te.placeholder((M, N), name="a")
    return te.compute((N, M), lambda i, j: a[j, i], name="o")


def convolution(H=8, W=8, C=4, O=8):  # noqa: E741
    a, w = te.placeholder((1, H, W, C), name="a"), te.placeholder((3, 3, C, O), name="w")
    y, x, c = te.reduce_axis(3, name="y"), te.reduce_axis(3, name="x"), te.reduce_axis(C, name="c")
    return te.compute(
        (1, H - 2, W - 2, O), lambda n, i, j, o: te.sum(a[n, i + y, j + x, c] * w[y, x, c, o], axis=(y, x, c)), name="o"
    )


def check(workload: Callable[..., te.Tensor], kernel: Any, fixed: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    """Compare a call with the reference, all outputs, for these sizes."""
    dag = te.ComputeDAG(workload(**fixed, **sizes))
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.public_shape).astype(t.dtype) for t in dag.inputs}
    result = kernel(**arrays)
    for reference in evaluate(dag, arrays):
        assert np.allclose(result, reference.value.reshape(result.shape), rtol=1e-4, atol=1e-4), sizes


@pytest.mark.parametrize(
    ("workload", "fixed", "sizes"),
    [
        (product, {"N": 48, "K": 32}, [{"M": m} for m in (1, 0, 60, 61, 66, 90, 7, 120)]),
        (product, {"M": 33, "K": 16}, [{"N": n} for n in (64, 1, 0, 96, 67, 131)]),
        (product, {"M": 33, "N": 32}, [{"K": k} for k in (64, 1, 0, 96, 67, 131)]),
        (product, {}, [{"M": m, "N": n, "K": k} for m, n, k in ((37, 41, 43), (64, 64, 64), (65, 70, 9), (1, 1, 1))]),
        (softmax, {}, [{"M": m, "N": n} for m, n in ((5, 519), (5, 502), (9, 519), (1, 1), (0, 8), (35, 294))]),
        (transposed, {}, [{"M": m, "N": n} for m, n in ((275, 3), (251, 194), (128, 64), (1, 1))]),
        (convolution, {"O": 32}, [{"H": h, "W": w, "C": c} for h, w, c in ((28, 20, 16), (9, 21, 16), (3, 3, 1))]),
        (convolution, {"H": 14, "W": 14}, [{"C": c, "O": o} for c, o in ((71, 2), (34, 4), (32, 64), (48, 64))]),
    ],
)
def test_sized_kernels_agree_with_the_reference(workload, fixed, sizes):
    ranges = {name: (0 if name != "H" and name != "W" else 2, 600) for name in sizes[0]}
    kernel = at.compile(workload, sizes=ranges, settings=fixed, threads=2)
    for each in sizes:
        check(workload, kernel, fixed, each)
    for each in reversed(sizes):  # by variants that exist
        check(workload, kernel, fixed, each)
    assert len(kernel.variants) <= len(sizes)


def test_rows_beside_full_tiles():
    kernel = at.compile("layer_norm", sizes={"M": (1, 1024)}, settings={"N": 768}, threads=1)
    rng = np.random.default_rng(0)
    for m in (100, 64, 33, 3, 1, 31):
        arrays = {
            n: rng.standard_normal(s).astype("float32") for n, s in (("X", (m, 768)), ("gamma", 768), ("beta", 768))
        }
        (reference,) = evaluate(build("layer_norm", settings={"M": m, "N": 768})[0], arrays)
        assert np.allclose(kernel(**arrays), reference.value, rtol=1e-4, atol=1e-4), m


def test_one_variant_serves_many_sizes():
    kernel = at.compile(softmax, sizes={"M": (2, 4096)}, settings={"N": 40}, threads=2)
    sizes = range(1000, 1012)
    for m in sizes:
        check(softmax, kernel, {"N": 40}, {"M": m})
    assert len(kernel.variants) < len(sizes)


def test_sizes_are_of_built_in_operators_as_well():
    kernel = at.compile("matmul", sizes={"M": range(4, 65, 4)}, settings={"N": 24, "K": 40}, threads=1)
    a, b = np.ones((12, 40), "float32"), np.ones((40, 24), "float32")
    out = np.empty((12, 24), "float32")
    assert kernel(a, b, out=out) is out
    assert (out == 40).all()
    assert kernel.of(M=12)(a, b).shape == (12, 24)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda k: k(np.zeros((65, 8), "float32")), "M is 65, and may be 0 to 64"),
        (lambda k: k(np.zeros(8, "float32")), "input a must be"),
        (lambda k: k(3), "a must be an array of"),
        (lambda k: k.of(N=3), "the kernel varies in M, got sizes of N"),
        (lambda _: at.compile(transposed, sizes={"Q": (1, 2)}), "has no argument Q"),
        (lambda _: at.compile(transposed, sizes={"M": (5, 2)}), "the range of M has no size"),
        (lambda _: at.compile(transposed, sizes={}), "has at least one"),
        (lambda _: at.compile(transposed, sizes={"M": 5}), "the sizes of M are a range or its ends"),
        (lambda _: at.compile(transposed, sizes={"M": ("1", 2)}), "the sizes of M are a range or its ends"),
        (lambda _: at.compile(transposed, sizes={"M": (1, 2)}, check_indices=True), "takes no check_indices"),
        (lambda _: at.compile("matmul", sizes={"M": (1, 9)}, weights=["B"]), "no weights"),
    ],
)
def test_bad_sizes_are_refused_in_a_sentence(call, reason):
    kernel = at.compile(transposed, sizes={"M": (0, 64)}, threads=1)
    with pytest.raises(UsageError, match=reason):
        call(kernel)


@pytest.mark.parametrize(
    ("workload", "fixed", "sizes", "variants"),
    [
        (product, {"N": 48, "K": 32}, [{"M": m} for m in (1, 0, 60, 61, 130)], 3),
        (product, {"M": 64}, [{"N": n, "K": k} for n, k in ((64, 64), (68, 96), (37, 43))], 2),
        (softmax, {}, [{"M": m, "N": n} for m, n in ((40, 128), (99, 112), (35, 99))], 2),
        (transposed, {}, [{"M": m, "N": n} for m, n in ((275, 99), (251, 194), (128, 64))], 2),
        (convolution, {"O": 32, "C": 16}, [{"H": h, "W": w} for h, w in ((34, 40), (97, 63))], 1),
    ],
)
def test_kernels_of_a_gpu_agree_with_the_reference(workload, fixed, sizes, variants):
    opencl_target()
    ranges = {name: (min(each[name] for each in sizes), 1024) for name in sizes[0]}
    kernel = at.compile(workload, sizes=ranges, settings=fixed, target="opencl")
    for each in sizes:
        check(workload, kernel, fixed, each)
    assert len(kernel.variants) == variants


def test_arrays_on_a_gpu_stay_there():
    opencl_target()
    kernel = at.compile(product, sizes={"M": (1, 256)}, settings={"N": 48, "K": 32}, target="opencl")
    for m in (64, 33):
        a, b = (np.random.default_rng(m).standard_normal(s).astype("float32") for s in ((m, 32), (32, 48)))
        result = kernel(at.to_device(a, "opencl"), b=at.to_device(b, "opencl"))
        assert result.device == "opencl"
        assert np.allclose(result.numpy(), a @ b, rtol=1e-4, atol=1e-4)


def test_a_second_kernel_of_the_same_sizes_takes_the_code_of_the_disk_cache(monkeypatch):
    def compiled() -> Any:
        return at.compile(product, sizes={"M": (0, 600)}, settings={"N": 44, "K": 32}, threads=1)

    first = compiled()
    for m in (61, 7):
        check(product, first, {"N": 44, "K": 32}, {"M": m})
    monkeypatch.setattr(pool_worker, "build_kernel", lambda *_: pytest.fail("compiles what the cache has"))
    second = compiled()
    for m in (60, 61, 8, 600):
        check(product, second, {"N": 44, "K": 32}, {"M": m})
    assert [v.kernel.name for v in second.variants] == [v.kernel.name for v in first.variants]


def test_another_function_of_the_same_name_has_code_of_its_own():
    def times(number: float) -> Callable[..., te.Tensor]:
        def scaled(M=8):
            a = te.placeholder((M, 5), name="a")
            return te.compute((M, 5), lambda i, j: a[i, j] * number, name="o")

        return scaled

    two, three = (at.compile(times(number), sizes={"M": (1, 9)}, threads=1) for number in (2.0, 3.0))
    a = np.ones((4, 5), "float32")
    assert (two(a) == 2).all()
    assert (three(a) == 3).all()


def test_the_steps_of_a_range_divide_sizes():
    fixed = {"N": 20, "K": 9}
    kernel = at.compile(product, sizes={"M": range(0, 1025, 8)}, settings=fixed, threads=2)
    for m in (8, 0, 24, 32, 40, 104, 1024, 1016):
        check(product, kernel, fixed, {"M": m})
    assert len(kernel.variants) == 3  # 0, to 24, and the others
    kernel = at.compile(product, sizes={"M": range(3, 60, 7)}, settings=fixed, threads=2)
    for m in (3, 10, 59):
        check(product, kernel, fixed, {"M": m})
    with pytest.raises(UsageError, match="M is 11, and may be 3 to 59 in steps of 7"):
        kernel.of(M=11)


@pytest.mark.parametrize(
    ("workload", "fixed", "name"),
    [
        (product, {"N": 20, "K": 9}, "M"),
        (product, {"M": 7, "K": 9}, "N"),
        (product, {"M": 7, "N": 20}, "K"),
        (softmax, {"M": 40}, "N"),
    ],
)
def test_what_divides_a_length_takes_no_variant(workload, fixed, name):
    kernel = at.compile(workload, sizes={name: (1, 1024)}, settings=fixed, threads=2)
    for length in (1, 30, 333, 2, 3, 5, 31, 32, 47, 48, 49, 96, 97, 509, 1024):
        check(workload, kernel, fixed, {name: length})
    for length in range(1, 1025, 7):
        kernel.of(**{name: length})
    assert len(kernel.variants) == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_mean_divides_by_a_size_that_the_code_reads(dtype):
    def mean(N=8):
        a, k = te.placeholder((3, N), dtype, name="a"), te.reduce_axis(N, name="k")
        return te.compute((3,), lambda i: te.sum(a[i, k], axis=k) / N, name="o")

    kernel = at.compile(mean, sizes={"N": (1, 4096)}, threads=1)
    for n in (700, 701, 997, 4096):
        a = np.arange(3 * n).reshape(3, n).astype(dtype) % 7
        assert np.allclose(kernel(a), a.mean(1), rtol=1e-2 if dtype == "float16" else 1e-5)
    assert len(kernel.variants) < 4


@pytest.mark.parametrize("operator", ["c2d", "dep"])
def test_borders_of_images_take_few_variants(operator):
    channels = {"c2d": {"CI": 4, "CO": 16}, "dep": {"C": 24}}[operator]
    fixed = {"N": 1, **channels, "k": 3, "stride": 1, "pad": 1}
    kernel = at.compile(operator, sizes={"H": (8, 31), "W": (8, 31)}, settings=fixed, threads=2)
    rng = np.random.default_rng(0)
    for h, w in ((14, 14), (8, 9), (9, 31), (29, 13), (11, 12)):
        dag, _ = build(operator, settings={**fixed, "H": h, "W": w})
        arrays = {t.name: rng.standard_normal(t.public_shape).astype(t.dtype) for t in dag.inputs}
        (reference,) = evaluate(dag, arrays)
        result = kernel(**arrays)
        assert np.allclose(result, reference.value.reshape(result.shape), rtol=1e-4, atol=1e-4), (h, w)
    # A tile of 14 rows, as with 512-bit vectors, may touch both borders of an image that is shorter.
    assert len(kernel.variants) <= 2

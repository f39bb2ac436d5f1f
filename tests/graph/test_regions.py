"""Sampling at positions that are data: regions of images, deformable convolutions, max unpooling; and determinants.

torch and torchvision say what they are, over random sizes and attributes; some are compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ops = pytest.importorskip("torchvision.ops")

import torch.nn.functional as F  # noqa: E402, N812

from autosched.errors import GraphError, OutOfRangeError  # noqa: E402
from autosched.executor.compile_graph import compile_graph  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.torch.builder import array_of  # noqa: E402
from autosched.graph.torch.load import load_torch  # noqa: E402
from tests.graph.test_operators import computed, some  # noqa: E402
from tests.graph.test_torch_rules import Function  # noqa: E402

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-9, torch.float16: 4e-3}


def compare(function: Any, *tensors: Any, kernel: bool = False, rtol: float = 1e-4, atol: float = 1e-5) -> Any:
    """The graph of a function of tensors, whose results are those of torch; by a compiled `kernel` as well."""
    graph = load_torch(Function(function), tensors)
    arrays = [array_of(x) for x in tensors]
    made = [interpret(graph, dict(zip(graph.inputs, arrays, strict=True))).values()]
    if kernel:
        results = compile_graph(graph, threads=1)(*arrays)
        made.append(results if isinstance(results, tuple) else (results,))
    expected = function(*tensors)
    wanted = [array_of(y) for y in (expected if isinstance(expected, tuple | list) else (expected,))]
    for results in made:
        for result, array in zip(results, wanted, strict=True):
            np.testing.assert_allclose(result, array, rtol=rtol, atol=atol, strict=True)
    return graph


def normal(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    rng = np.random.default_rng([seed, *shape])
    return torch.from_numpy(rng.normal(size=shape)).to(dtype or torch.float32)


def regions(rng: Any, images: int, count: int, grows: bool, dtype: Any = None) -> Any:
    """[count, 5]: images and corners, some of them outside of images of at most 11 elements."""
    corners = rng.uniform(-4, 12, (count, 2))
    extents = rng.uniform(0 if grows else -3, 14, (count, 2))
    rois = np.concatenate([rng.integers(0, images, (count, 1)), corners, corners + extents], 1)
    return torch.from_numpy(rois if rng.random() < 0.7 else np.round(rois)).to(dtype or torch.float32)


@pytest.mark.parametrize("seed", range(12))
def test_samples_of_regions(seed):
    """torchvision has no regions of negative extents with half a pixel and samples by their size."""
    rng = np.random.default_rng(seed)
    n, c, h, w, count = (int(size) for size in rng.integers(1, (4, 4, 12, 12, 6)))
    aligned, samples = bool(seed % 2), (-1, 0, 1, 2, 3)[seed % 5]
    rois = regions(rng, n, count, aligned and samples <= 0)
    bins, scale = [int(size) for size in rng.integers(1, 6, 2)], float(rng.choice([0.25, 1.0, 1.5]))
    compare(lambda x, r: ops.roi_align(x, r, bins, scale, samples, aligned), normal(n, c, h, w), rois, kernel=seed < 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("samples", [-1, 2])
def test_types_of_regions(dtype, samples):
    """Of float16 torchvision computes positions in float16."""
    x, rois = normal(2, 3, 9, 7, dtype=dtype), torch.tensor([[1, 0.5, 1.25, 6.5, 7.0], [0, 2, -1, 3.5, 9]], dtype=dtype)
    wide = (x.float(), rois.float()) if dtype is torch.float16 else (x, rois)
    expected = ops.roi_align(*wide, (2, 3), 1.0, samples, True)
    graph = load_torch(Function(lambda x, r: ops.roi_align(x, r, (2, 3), 1.0, samples, True)), (x, rois))
    (made,) = interpret(graph, dict(zip(graph.inputs, map(array_of, (x, rois)), strict=True))).values()
    np.testing.assert_allclose(made, array_of(expected.to(dtype)), rtol=DTYPES[dtype], atol=DTYPES[dtype], strict=True)


def test_pixels_outside_of_a_region_may_be_nan():
    x = some(1, 1, 6, 6)
    x[0, 0, 5, :], x[0, 0, :, 5] = np.nan, np.inf
    rois, batch = np.float32([[0.5, 0.5, 3.5, 3.5]]), np.zeros(1, np.int64)
    assert np.isfinite(computed("roi_align", x, batch, rois, sizes=(2, 2))).all()


def test_the_greatest_sample():
    """Against the definition in loops: of each sample the greatest of its four weighted elements."""
    x, rois = some(2, 3, 5, 6), np.float32([[0.5, -3.25, 4.5, 7.0], [1.0, 1.5, 2.25, 1.75]])
    made = computed("roi_align", x, np.array([1, 0]), rois, sizes=(3, 2), samples=2, mode="max", half_pixel=False)
    expected = np.zeros_like(made)
    for r, (x1, y1, x2, y2) in enumerate(rois.astype(np.float64)):
        height, width = max(y2 - y1, 1.0) / 3, max(x2 - x1, 1.0) / 2
        for c, p, q in np.ndindex(3, 3, 2):
            terms = []
            for i, j in np.ndindex(2, 2):
                y, z = y1 + (p + (i + 0.5) / 2) * height, x1 + (q + (j + 0.5) / 2) * width
                inside = -1 <= y <= 5 and -1 <= z <= 6
                y, z = np.clip(y, 0, 4), np.clip(z, 0, 5)
                for a, b in np.ndindex(2, 2):
                    weight = (1 - abs(y - int(y) - a)) * (1 - abs(z - int(z) - b)) * inside
                    terms.append(weight * x[1 - r, c, min(int(y) + a, 4), min(int(z) + b, 5)])
            expected[r, c, p, q] = max(terms)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_maxima_of_regions(seed):
    rng = np.random.default_rng(seed)
    n, c, h, w, count = (int(size) for size in rng.integers(1, (4, 4, 12, 12, 6)))
    rois, bins, scale = (
        regions(rng, n, count, False),
        [int(size) for size in rng.integers(1, 6, 2)],
        (1.0, 0.5)[seed % 2],
    )
    compare(lambda x, r: ops.roi_pool(x, r, bins, scale), normal(n, c, h, w), rois, kernel=seed < 1, rtol=0, atol=0)


def test_an_image_of_a_region_that_there_is_not():
    rois = torch.tensor([[2.0, 0, 0, 1, 1]])
    graph = load_torch(Function(lambda x, r: ops.roi_align(x, r, (1, 1))), (normal(2, 1, 4, 4), rois))
    with pytest.raises(OutOfRangeError, match=r"roi_align.*the index 2 is out of range, which is 0 to 1"):
        compile_graph(graph, threads=1)(some(2, 1, 4, 4), array_of(rois))


def test_regions_that_are_refused():
    x, rois, batch = some(1, 1, 4, 4), some(2, 4), np.zeros(2, np.int64)
    with pytest.raises(GraphError, match="the mode max needs a number of samples"):
        computed("roi_align", x, batch, rois, sizes=(1, 1), mode="max")
    with pytest.raises(GraphError, match=r"regions of images \[N, C, H, W\] are \[R, 4\]"):
        computed("roi_align", x, batch, some(3, 4), sizes=(1, 1))
    with pytest.raises(GraphError, match="bins of a region are at least 1"):
        computed("roi_max_pool", x, batch, rois, sizes=(1, 0))


@pytest.mark.parametrize("seed", range(10))
def test_deformable_convolutions(seed):
    rng = np.random.default_rng(seed)
    groups, offset_groups = (int(n) for n in rng.integers(1, 3, 2))
    n, ci, co = int(rng.integers(1, 3)), 2 * groups * offset_groups // (1 + (groups == offset_groups == 2)), 2 * groups
    kernel, strides, dilations = ([int(k) for k in rng.integers(1, 4, 2)] for _ in range(3))
    pads = [int(p) for p in rng.integers(0, 3, 2)]
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [int(rng.integers(max(span - 2 * p, 1), 10)) for span, p in zip(spans, pads, strict=True)]
    outs = [(s + 2 * p - e) // t + 1 for s, p, e, t in zip(sizes, pads, spans, strides, strict=True)]
    taps = kernel[0] * kernel[1]
    x, w = normal(n, ci, *sizes), normal(co, ci // groups, *kernel)
    offset, mask = 2 * normal(n, 2 * offset_groups * taps, *outs), normal(n, offset_groups * taps, *outs, seed=1)
    bias = normal(co) if seed % 2 else None

    def convolved(x: Any, o: Any, w: Any, m: Any) -> Any:
        mask = m if seed % 3 else None
        return ops.deform_conv2d(x, o, w, bias, tuple(strides), tuple(pads), tuple(dilations), mask)

    compare(convolved, x, offset, w, mask, kernel=seed < 2, rtol=1e-4, atol=1e-4)


def test_deformable_convolutions_that_are_refused():
    x, kernel = some(1, 3, 5, 5), {"kernel": (3, 3)}
    with pytest.raises(GraphError, match="3 channels do not make 2 groups"):
        computed("deform_columns", x, some(1, 36, 3, 3), **kernel, groups=2)
    with pytest.raises(GraphError, match=r"the offsets of these windows have the shape \[1, 18, 3, 3\], not"):
        computed("deform_columns", x, some(1, 9, 3, 3), **kernel)
    with pytest.raises(GraphError, match=r"the factors of these windows have the shape \[1, 9, 3, 3\], not"):
        computed("deform_columns", x, some(1, 18, 3, 3), some(1, 1), **kernel)


POOLS = {"own": {}, "overlapping": {"stride": 1}, "padded": {"stride": 2, "padding": 1}, "sparse": {"stride": 4}}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("pool", POOLS)
def test_unpooling_of_a_pool_reads_its_windows_alone(pool, rank):
    down, up = getattr(F, f"max_pool{rank}d"), getattr(F, f"max_unpool{rank}d")
    numbers = {"kernel_size": 3, **POOLS[pool]}
    sizes = (9, 7, 5)[:rank]

    def function(x: Any) -> Any:
        y, places = down(x, return_indices=True, **numbers)
        return up(2 * y, places, output_size=sizes, **numbers)

    graph = compare(function, normal(2, 3, *sizes), kernel=pool == "overlapping" and rank == 2)
    if rank > 1:
        (node,) = (node for node in graph.nodes if node.operator == "max_unpool")
        assert node.attributes["kernel"] == (3,) * rank


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4, 5), (1, 1, 1, 1)])
def test_unpooling_at_any_places(shape):
    """Places in a larger image, which no window limits; of two at one place the last one stays."""
    *lead, h, w = shape
    places = np.argsort(np.random.default_rng(0).random((*lead, 11 * 7)))[..., : h * w].reshape(shape)
    indices = torch.from_numpy(places)
    compare(lambda x, i: torch.ops.aten.max_unpool2d(x, i, [11, 7]), normal(*shape), indices)
    made = computed("max_unpool", np.float32([[[1, 2, 3]]]), np.array([[[1, 0, 1]]]), sizes=(4,))
    np.testing.assert_array_equal(made, [[[2, 3, 0, 0]]])


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 5, 5), (2, 1, 7, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_determinants(shape, dtype):
    x = normal(*shape, dtype=dtype)
    rtol = 1e-4 if dtype is torch.float32 else 1e-9
    compare(torch.linalg.det, x, kernel=shape == (3, 5, 5) and dtype is torch.float32, rtol=rtol, atol=rtol)
    compare(torch.linalg.slogdet, x, rtol=rtol, atol=rtol)


def test_determinants_of_singular_and_permuted_matrices():
    zeros, rank_one = np.zeros((3, 3), np.float32), np.outer([1, 2, 3], [4, 5, 6]).astype(np.float32)
    permuted = np.eye(4, dtype=np.float32)[[1, 2, 3, 0]] * np.float32([1, 2, 3, 4])
    for matrix, determinant in ((zeros, 0.0), (rank_one, 0.0), (permuted, -24.0)):
        graph = load_torch(Function(torch.linalg.det), (torch.from_numpy(matrix),))
        (made,) = interpret(graph, {graph.inputs[0]: matrix}).values()
        np.testing.assert_allclose(made, determinant, atol=1e-6)
    with pytest.raises(GraphError, match="elimination needs square matrices"):
        computed("eliminate", some(2, 3))

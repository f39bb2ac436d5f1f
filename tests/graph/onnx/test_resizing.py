"""Resize and Upsample along one axis: where each element lies, written in NumPy, and as PyTorch and ONNX Runtime have
it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from autosched.executor.compile_graph import compile_graph  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.onnx.importer import import_model  # noqa: E402
from tests.graph.onnx.models import model, node  # noqa: E402

Array = np.ndarray[Any, Any]


def image(n: int) -> Array:
    return np.random.default_rng(n).normal(size=(1, 2, n, 3)).astype(np.float32)


def resize_of(n: int, opset: int = 18, **given: Any) -> onnx.ModelProto:
    """A model that resizes the third axis, of size `n`, by a scale or to a size; the rest are attributes."""
    scale, size = given.pop("scale", None), given.pop("size", None)
    if scale is not None:
        constants: dict[str, Any] = {"s": np.array([1, 1, scale, 1], np.float32)}
    else:
        constants = {"s": np.zeros(0, np.float32), "m": [1, 2, size, 3]}
    names = ["x", "", *constants]
    if "roi" in given:
        constants["roi"] = np.array([0, 0, given["roi"][0], 0, 1, 1, given.pop("roi")[1], 1], np.float32)
        names[1] = "roi"
    if opset < 11:
        names.remove("")
    operator = given.pop("operator", "Resize")
    return model([node(operator, names, ["y"], **given)], {"x": [1, 2, n, 3]}, constants=constants, opset=opset)


def result_of(made: onnx.ModelProto, x: Array) -> Array:
    return interpret(import_model(made, {}, {}), {"x": x})["y"]


def between(x: Array, places: Array) -> Array:
    """The numbers at `places` of the third axis, on straight lines between the elements."""
    return np.apply_along_axis(lambda row: np.interp(places, np.arange(len(row)), row), 2, x)


@pytest.mark.parametrize("scale", [0.6, 1.1, 1.6, 2.3])
@pytest.mark.parametrize("n", [1, 7, 13])
def test_corners_stay_where_the_scaled_size_is_not_whole(n, scale):
    m = int(n * np.float32(scale))
    if m == 0:
        pytest.skip("nothing is left")
    x = image(n)
    made = resize_of(n, scale=scale, mode="linear", coordinate_transformation_mode="align_corners")
    places = np.arange(m) * (n - 1) / max(m - 1, 1)
    np.testing.assert_allclose(result_of(made, x), between(x, places), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("n", "scale"), [(7, 1.6), (7, 0.6), (13, 1.3), (1, 3.0)])
def test_a_part_is_spread_over_the_size_of_the_result(n, scale):
    x, m, (start, end) = image(n), int(n * np.float32(scale)), (0.25, 0.75)
    made = resize_of(
        n, scale=scale, mode="linear", coordinate_transformation_mode="tf_crop_and_resize", roi=(start, end)
    )
    places = (start + np.linspace(0, 1, m) * (end - start)) * (n - 1)
    np.testing.assert_allclose(result_of(made, x), between(x, places), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_one_element_is_repeated(mode, coordinates):
    x = image(1)
    for m in (3, 4):
        made = resize_of(1, size=m, mode=mode, coordinate_transformation_mode=coordinates)
        np.testing.assert_allclose(result_of(made, x), np.repeat(x, m, axis=2), rtol=1e-6)


@pytest.mark.parametrize(("operator", "opset"), [("Resize", 10), ("Upsample", 9)])
def test_one_element_is_repeated_by_older_versions(operator, opset):
    x = image(1)
    made = resize_of(1, opset, scale=3.0, mode="linear", operator=operator)
    np.testing.assert_allclose(result_of(made, x), np.repeat(x, 3, axis=2), rtol=1e-6)


def test_kernels_repeat_one_element():
    x = image(1)
    made = import_model(resize_of(1, size=4, mode="cubic", coordinate_transformation_mode="asymmetric"), {}, {})
    np.testing.assert_allclose(compile_graph(made, threads=1)(x), np.repeat(x, 4, axis=2), rtol=1e-6)


@pytest.mark.parametrize("given", [{"size": 5}, {"scale": 1.0}, {"scale": 1.1}])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("more", [{}, {"exclude_outside": 1, "cubic_coeff_a": -0.5}, {"antialias": 1}])
def test_the_same_size_changes_nothing(mode, given, more):
    x = image(5)
    np.testing.assert_array_equal(result_of(resize_of(5, mode=mode, **given, **more), x), x)


@pytest.mark.parametrize(("n", "scale"), [(7, 0.6), (7, 1.1), (7, 1.6), (7, 2.05), (1, 2.4)])
def test_scales_are_those_of_torch(n, scale):
    """From torch's own operators as well, which take the quotient of sizes for some scales."""
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.proxy_tensor import make_fx

    from autosched.graph.torch.load import load_fx

    x = image(n)
    given = torch.from_numpy(x)
    for mode, theirs in (("nearest", "nearest"), ("linear", "bilinear"), ("cubic", "bicubic")):
        for corners in (None,) if mode == "nearest" else (False, True):
            layer = torch.nn.Upsample(scale_factor=(scale, 1.0), mode=theirs, align_corners=corners)
            graph = load_fx(make_fx(layer)(given), (given,))
            (made,) = interpret(graph, {graph.inputs[0]: x}).values()
            np.testing.assert_allclose(made, layer(given), rtol=1e-4, atol=1e-5)
            if corners:
                same = resize_of(n, scale=scale, mode=mode, coordinate_transformation_mode="align_corners")
                np.testing.assert_allclose(result_of(same, x), layer(given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales_are_those_of_onnx_runtime(mode):
    ort = pytest.importorskip("onnxruntime")
    ways = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
    for n, scale in ((7, 1.6), (7, 0.6), (7, 1.1), (5, 2.3), (1, 3.0)):
        for coordinates in ways:
            x = image(n)
            made = resize_of(n, scale=scale, mode=mode, coordinate_transformation_mode=coordinates)
            made.ir_version = 9
            made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
            np.testing.assert_allclose(result_of(made, x), session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)

"""Operators against ONNX Runtime: regions, unpooling, n-grams, features of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from autosched.errors import GraphError  # noqa: E402
from autosched.executor.compile_graph import compile_graph  # noqa: E402
from autosched.graph.graph import Graph  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.onnx.importer import import_model  # noqa: E402

Array = np.ndarray[Any, Any]
node = onnx.helper.make_node
ML = "ai.onnx.ml"
RUNTIME_OPSET = 21
NAN = float("nan")


def some(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def model_of(one: Any, inputs: Mapping[str, Array], opset: int, constants: Mapping[str, Array]) -> Any:
    ins = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in inputs.items()
    ]
    outs = [onnx.helper.make_empty_tensor_value_info(name) for name in one.output]
    tables = [onnx.numpy_helper.from_array(a, name) for name, a in constants.items()]
    graph = onnx.helper.make_graph([one], "test", ins, outs, tables)
    opsets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid(ML, 4)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)


def compare(
    one: Any,
    inputs: Mapping[str, Array],
    opset: int = RUNTIME_OPSET,
    constants: Mapping[str, Array] | None = None,
    kernel: bool = False,
    compared: slice = slice(None),
) -> Graph:
    """The graph of a model of one node, whose results are those of ONNX Runtime; by a compiled `kernel` as well.
    `compared`: which of them."""
    model = model_of(one, inputs, opset, constants or {})
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, dict(inputs))
    graph = import_model(model, {}, {})
    computed = [tuple(interpret(graph, {name: inputs[name] for name in graph.inputs}).values())]
    if kernel:
        results = compile_graph(graph, threads=1)(*(inputs[name] for name in graph.inputs))
        computed.append(results if isinstance(results, tuple) else (results,))
    for results in computed:
        for result, array in zip(results[compared], expected[compared], strict=True):
            np.testing.assert_allclose(result, array, rtol=1e-4, atol=1e-5, strict=True)
    return graph


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("seed", range(4))
def test_roi_align(seed, opset):
    """Samples by the size of a region, of which ONNX Runtime has the mean alone."""
    rng = np.random.default_rng(seed)
    n, c, h, w, count = rng.integers(1, (4, 4, 12, 12, 6))
    corners = rng.uniform(-3, 10, (count, 2))
    rois = np.concatenate([corners, corners + rng.uniform(0.5, 9, (count, 2))], 1).astype(np.float32)
    samples = int(seed % 3)
    words = {"output_height": 2, "output_width": 3, "sampling_ratio": samples, "spatial_scale": 0.5 + seed / 4}
    one = node("RoiAlign", ["x", "rois", "images"], ["y"], mode="max" if seed == 2 else "avg", **words)
    compare(one, {"x": some(n, c, h, w), "rois": rois, "images": rng.integers(0, n, count)}, opset, kernel=seed == 2)


@pytest.mark.parametrize("seed", range(4))
def test_max_roi_pool(seed):
    rng = np.random.default_rng(seed)
    n, c, h, w, count = rng.integers(1, (4, 4, 12, 12, 6))
    corners = rng.uniform(-3, 10, (count, 2))
    rois = np.concatenate([rng.integers(0, n, (count, 1)), corners, corners + rng.uniform(-2, 9, (count, 2))], 1)
    one = node("MaxRoiPool", ["x", "rois"], ["y"], pooled_shape=[3, 2], spatial_scale=0.75)
    compare(one, {"x": some(n, c, h, w), "rois": rois.astype(np.float32)})


@pytest.mark.parametrize("sizes", [(9,), (6, 8), (4, 7, 5)])
@pytest.mark.parametrize("order", [0, 1])
def test_places_of_a_pool(order, sizes):
    rank = len(sizes)
    words = {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * (2 * rank)}
    compare(node("MaxPool", ["x"], ["y", "places"], storage_order=order, **words), {"x": some(2, 3, *sizes)})


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("sizes", [(4,), (2, 3), (2, 2, 3)])
def test_max_unpool(larger, sizes):
    rank, rng = len(sizes), np.random.default_rng(0)
    own = [(n - 1) * 2 + 3 - 2 for n in sizes]
    plane, count = int(np.prod(own)), int(np.prod(sizes))
    places = np.stack([k * plane + rng.permutation(plane)[:count] for k in range(6)]).reshape(2, 3, *sizes)
    words = {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * (2 * rank)}
    shape = {"shape": np.array([2, 3, *(n + 2 for n in own)])} if larger else {}
    one = node("MaxUnpool", ["x", "places", *shape], ["y"], **words)
    graph = import_model(model_of(one, {"x": some(2, 3, *sizes), "places": places}, 11, shape), {}, {})
    y = interpret(graph, {"x": some(2, 3, *sizes), "places": places})["y"]
    flat = np.zeros(6 * plane, np.float32)
    flat[places.reshape(-1)] = some(2, 3, *sizes).reshape(-1)
    expected = np.pad(flat.reshape(2, 3, *own), [(0, 0), (0, 0), *[(0, 2 if larger else 0)] * rank])
    np.testing.assert_array_equal(y, expected)
    if not larger:
        compare(one, {"x": some(2, 3, *sizes), "places": places}, 11)


def test_unpooling_smaller_than_its_places_is_refused():
    one = node("MaxUnpool", ["x", "places", "shape"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    inputs = {"x": some(1, 1, 2, 2), "places": np.zeros((1, 1, 2, 2), np.int64)}
    with pytest.raises(GraphError, match=r"its output_shape \[1, 1, 3, 4\] is smaller than \[1, 1, 4, 4\]"):
        import_model(model_of(one, inputs, 11, {"shape": np.array([1, 1, 3, 4])}), {}, {})


@pytest.mark.parametrize("size", [1, 2, 6])
def test_determinants(size):
    compare(node("Det", ["x"], ["y"]), {"x": some(2, 3, size, size)})


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("shape", [(9,), (3, 9), (2, 2)])
@pytest.mark.parametrize(("least", "most", "skips"), [(1, 1, 0), (1, 3, 2), (2, 3, 1)])
def test_n_grams(mode, shape, least, most, skips):
    """Of 1 to 3 numbers, in columns of another order than in the pool."""
    pool = [1, 2, 3, *(1, 2, 2, 1, 3, 3), *(1, 2, 1, 3, 3, 3)]
    words = {"min_gram_length": least, "max_gram_length": most, "max_skip_count": skips, "mode": mode}
    words |= {"ngram_counts": [0, 3, 9], "ngram_indexes": [6, 0, 2, 1, 3, 5, 4, 7], "pool_int64s": pool}
    words |= {"weights": [0.5, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]}
    x = np.random.default_rng(0).integers(1, 4, shape)
    kernel = (mode, shape, most) == ("TFIDF", (3, 9), 3)
    compare(node("TfIdfVectorizer", ["x"], ["y"], **words), {"x": x}, kernel=kernel)


def test_n_grams_of_one_column_are_added_up():
    words = {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "mode": "TF"}
    one = node(
        "TfIdfVectorizer", ["x"], ["y"], ngram_counts=[0], ngram_indexes=[1, 1, 3], pool_int64s=[5, 6, 7], **words
    )
    compare(one, {"x": np.array([[5, 6, 6, 7], [7, 7, 1, 5]])})


TABLE = some(4, 3)
HOLES = np.array([[1.0, NAN, 3.0], [NAN, -1.0, 0.0]], np.float32)
FEATURES: dict[str, tuple[Any, dict[str, Array]]] = {
    "columns": (node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain=ML), {"x": TABLE, "i": np.array([2, 0])}),
    "columns of a vector": (
        node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain=ML),
        {"x": some(5), "i": np.array([[4, 4, 1]])},
    ),
    "binarizer": (node("Binarizer", ["x"], ["y"], domain=ML, threshold=0.25), {"x": TABLE}),
    "scaler": (
        node("Scaler", ["x"], ["y"], domain=ML, offset=[1.0, 2.0, 3.0], scale=[0.5, 2.0, 4.0]),
        {"x": np.array([[1, 2, 3], [4, 5, 7]], np.int64)},
    ),
    "scaler of one": (node("Scaler", ["x"], ["y"], domain=ML, offset=[1.0], scale=[0.5]), {"x": TABLE}),
    "imputer": (
        node("Imputer", ["x"], ["y"], domain=ML, imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=NAN),
        {"x": HOLES},
    ),
    "imputer of integers": (
        node("Imputer", ["x"], ["y"], domain=ML, imputed_value_int64s=[7], replaced_value_int64=2),
        {"x": np.array([[1, 2], [2, 3]])},
    ),
    "labels": (
        node("LabelEncoder", ["x"], ["y"], domain=ML, keys_int64s=[4, 1], values_floats=[0.5, 0.25], default_float=9.0),
        {"x": np.array([[1, 4], [5, 1]])},
    ),
    "labels of floats": (
        node("LabelEncoder", ["x"], ["y"], domain=ML, keys_floats=[0.5, NAN], values_int64s=[3, 4]),
        {"x": np.array([0.5, NAN, 2.0], np.float32)},
    ),
    **{
        f"norm {norm}": (
            node("Normalizer", ["x"], ["y"], domain=ML, norm=norm),
            {"x": np.concatenate([TABLE, np.zeros((1, 3), np.float32)])},
        )
        for norm in ("MAX", "L1", "L2")
    },
}


@pytest.mark.parametrize("name", FEATURES)
def test_features(name):
    one, inputs = FEATURES[name]
    compare(one, inputs, kernel=name == "labels of floats")


def test_shrink():
    for x in (some(3, 5), np.arange(-4, 5), np.arange(9, dtype=np.uint8)):
        compare(node("Shrink", ["x"], ["y"], lambd=1.5, bias=0.0 if x.dtype.kind != "f" else 0.75), {"x": x})


def a_tree(rng: Any, tree: int, depth: int, features: int, modes: list[str]) -> list[dict[str, Any]]:
    """The nodes of a random tree, of which every branch has at most `depth` comparisons."""
    nodes: list[dict[str, Any]] = []

    def grown(level: int) -> int:
        number = len(nodes)
        own = {"treeids": tree, "nodeids": number, "featureids": 0, "values": 0.0, "modes": "LEAF", "truenodeids": 0}
        nodes.append(own | {"falsenodeids": 0, "missing_value_tracks_true": 0})
        if level < depth and (level == 0 or rng.random() < 0.8):
            mode, track = str(rng.choice(modes)), int(rng.integers(2))
            numbers = {"featureids": int(rng.integers(features)), "values": float(rng.integers(-2, 3)) / 2}
            nodes[number] |= {"modes": mode, "missing_value_tracks_true": track, **numbers}
            nodes[number] |= {"truenodeids": grown(level + 1), "falsenodeids": grown(level + 1)}
        return number

    grown(0)
    return nodes


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("modes", [["BRANCH_LEQ"], ["BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]])
def test_trees_of_a_regressor(modes, aggregate):
    """ONNX Runtime has trees of one comparison, and of several."""
    rng = np.random.default_rng(len(modes))
    nodes = [node for tree in range(5) for node in a_tree(rng, tree, 4 if tree else 0, 3, modes)]
    words: dict[str, Any] = {f"nodes_{key}": [n[key] for n in nodes] for key in nodes[0]}
    leaves = [n for n in nodes if n["modes"] == "LEAF"]
    targets = [(n["treeids"], n["nodeids"], t) for n in leaves for t in range(2)]
    words |= {
        f"target_{key}": list(row)
        for key, row in zip(("treeids", "nodeids", "ids"), zip(*targets, strict=True), strict=True)
    }
    words |= {"target_weights": rng.normal(size=len(targets)).tolist(), "base_values": [0.5, -0.25], "n_targets": 2}
    one = node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, aggregate_function=aggregate, **words)
    x = np.round(some(16, 3) * 2) / 2
    x[3, 1] = NAN
    compare(one, {"x": x}, kernel=aggregate == "SUM" and len(modes) == 5)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [[0], [1], [0, 1], [0, 1, 2]])
@pytest.mark.parametrize("sign", [-1, 1])
def test_trees_of_a_classifier(sign, classes, transform):
    """Of two classes with scores of one alone, and of several; with and without negative weights. The labels of two
    scores are those of the greater one, where ONNX Runtime has the sign of the second one."""
    rng = np.random.default_rng(len(classes))
    nodes = [node for tree in range(4) for node in a_tree(rng, tree, 3, 3, ["BRANCH_LEQ"])]
    words: dict[str, Any] = {f"nodes_{key}": [n[key] for n in nodes] for key in nodes[0]}
    leaves = [n for n in nodes if n["modes"] == "LEAF"]
    rows = [(n["treeids"], n["nodeids"], c) for n in leaves for c in classes]
    words |= {
        f"class_{key}": list(row)
        for key, row in zip(("treeids", "nodeids", "ids"), zip(*rows, strict=True), strict=True)
    }
    weights = rng.normal(size=len(rows)) if sign < 0 else rng.uniform(0, 0.3, len(rows))
    words |= {"class_weights": weights.tolist(), "classlabels_int64s": [7, 3, 5][: max(len(classes), 2)]}
    one = node("TreeEnsembleClassifier", ["x"], ["y", "scores"], domain=ML, post_transform=transform, **words)
    kernel, compared = (sign, len(classes), transform) == (1, 3, "SOFTMAX"), slice(len(classes) == 2, None)
    graph = compare(one, {"x": some(16, 3)}, kernel=kernel, compared=compared)
    if len(classes) > 1:
        y, scores = interpret(graph, {"x": some(16, 3)}).values()
        np.testing.assert_array_equal(y, np.array([7, 3, 5])[scores.argmax(1)])

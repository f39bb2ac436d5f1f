"""Rules: the standard's own cases that passed before, older versions of operators, and whole networks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator  # noqa: E402

from autosched.executor.compile_graph import compile_graph  # noqa: E402
from autosched.graph.graph import Graph  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.onnx import load_onnx  # noqa: E402
from autosched.graph.onnx.importer import import_model  # noqa: E402
from autosched.graph.passes.unroll_loops import unroll_loops  # noqa: E402
from tests.graph.onnx.conformance import PASSED, SUBSET, cases_of, listed, outcome_of, traced  # noqa: E402
from tests.graph.onnx.models import model, node  # noqa: E402

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def test_the_list_of_passed_cases_is_one():
    names = listed()
    assert names == sorted(set(names))
    assert names


@pytest.mark.parametrize("read", [import_model, traced])
def test_cases_that_passed_still_pass(read):
    """Of a few of the standard's files; `python -m tests.graph.onnx.conformance` checks all."""
    known = set(listed())
    cases = [case for case in cases_of(SUBSET) if case.name in known]
    assert len(cases) > 10
    failed = {case.name: outcome_of(case, read=read) for case in cases}
    assert {name: o for name, o in failed.items() if o.kind != PASSED} == {}


# Older versions, which the standard's cases no longer have: (opset, node, shape of x, constants).
OLDER = {
    "slice": (9, node("Slice", ["x"], ["y"], starts=[1, 0], ends=[-1, 2], axes=[1, 0]), [2, 5], {}),
    "squeeze": (11, node("Squeeze", ["x"], ["y"], axes=[0, 2]), [1, 3, 1], {}),
    "unsqueeze": (11, node("Unsqueeze", ["x"], ["y"], axes=[0, 2]), [2, 3], {}),
    "split": (11, node("Split", ["x"], ["y", "z"], axis=1, split=[2, 3]), [2, 5], {}),
    "pad": (10, node("Pad", ["x"], ["y"], pads=[0, 1, 2, 0], value=1.5), [2, 3], {}),
    "clip": (10, node("Clip", ["x"], ["y"], min=-0.5, max=0.25), [2, 3], {}),
    "reduce_sum": (11, node("ReduceSum", ["x"], ["y"], axes=[1], keepdims=0), [2, 3], {}),
    "reduce_max": (13, node("ReduceMax", ["x"], ["y"], axes=[-1]), [2, 3], {}),
    "dropout": (7, node("Dropout", ["x"], ["y"], ratio=0.5), [2, 3], {}),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_versions(name):
    opset, one, shape, constants = OLDER[name]
    compare(model([one], {"x": shape}, list(one.output), constants, opset), shape)


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax_was_over_all_axes_from_one_on(name):
    graph = import_model(model([node(name, ["x"], ["y"], axis=1)], {"x": [2, 3, 4]}, opset=11), {}, {})
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    exps = np.exp(x.reshape(2, 12))
    y = (exps / exps.sum(1, keepdims=True)).reshape(x.shape)
    expected = np.log(y) if name == "LogSoftmax" else y
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], expected, rtol=1e-5)


def test_constants_are_sliced_while_importing():
    """A recurrent network's weights are cut into those of gates: no node of the graph does."""
    hidden, width = 2, 3
    shapes = {"w": (1, 4 * hidden, width), "r": (1, 4 * hidden, hidden), "b": (1, 8 * hidden)}
    constants = {k: np.random.default_rng(1).normal(size=s).astype(np.float32) for k, s in shapes.items()}
    nodes = [node("LSTM", ["x", "w", "r", "b"], ["", "y"], hidden_size=hidden)]
    made = model(nodes, {"x": [5, 4, width]}, constants=constants, opset=14)
    graph = unroll_loops(compare(made, [5, 4, width]), lambda *_: True)
    read = {name for n in graph.nodes if n.operator == "slice" for name in n.used}
    assert not read & set(graph.constants)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("before", [0, 1])
def test_the_steps_of_a_recurrent_network_have_the_same_weights(name, before):
    hidden, width, gates = 3, 5, {"LSTM": 4, "GRU": 3, "RNN": 1}[name]
    shapes = {"w": (1, gates * hidden, width), "r": (1, gates * hidden, hidden), "b": (1, 2 * gates * hidden)}
    constants = {k: np.random.default_rng(1).normal(size=s).astype(np.float32) for k, s in shapes.items()}
    attributes = {"linear_before_reset": before} if name == "GRU" else {}
    nodes = [node(name, ["x", "w", "r", "b"], ["y"], hidden_size=hidden, **attributes)]
    looped = compare(model(nodes, {"x": [7, 2, width]}, constants=constants, opset=14), [7, 2, width])
    graph = unroll_loops(looped, lambda *_: True)
    read = Counter(n.inputs[1] for n in graph.nodes if n.operator == "linear")
    assert sorted(read.values()) == ([1, 7, 7] if name == "GRU" and not before else [1, 7])


def compare(made: onnx.ModelProto, shape: list[int]) -> Graph:
    """The graph of a model with an input x, whose results are those of ONNX's reference."""
    graph = import_model(made, {}, {})
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = ReferenceEvaluator(made).run(None, {"x": x})
    results = interpret(graph, {"x": x})
    for output, array in zip(made.graph.output, expected, strict=True):
        np.testing.assert_allclose(results[output.name], array, rtol=1e-5, atol=1e-6)
    return graph


# Whole networks

SAME_COUNT = {"Conv": "conv", "Relu": "relu", "MaxPool": "max_pool", "Gemm": "gemm", "LRN": "lrn", "Concat": "concat"}


@pytest.mark.parametrize(
    "name", ["bvlc_alexnet", "shufflenet", "resnet50", "squeezenet", "inception_v1", "densenet121"]
)
def test_networks(name):
    """Their weights are constants of shapes: what is checked is structure."""
    path = LIGHT / f"light_{name}.onnx"
    graph = load_onnx(path)
    theirs = Counter(n.op_type for n in onnx.load(path).graph.node)
    ours = Counter(n.operator for n in graph.nodes)
    assert {k: ours[v] for k, v in SAME_COUNT.items()} == {k: theirs[k] for k in SAME_COUNT}
    assert [graph.values[name].shape for name in graph.inputs] == [(1, 3, 224, 224)]
    (output,) = graph.outputs
    assert graph.values[output].shape[:2] == (1, 1000)


@pytest.mark.slow
def test_the_result_of_a_network():
    path = LIGHT / "light_squeezenet.onnx"
    graph = load_onnx(path)
    expected = onnx.numpy_helper.to_array(onnx.load_tensor(LIGHT / "light_squeezenet_output_0.pb"))
    x = np.ones((1, 3, 224, 224), np.float32)
    (result,) = interpret(graph, {graph.inputs[0]: x}).values()
    np.testing.assert_allclose(result, expected, rtol=1e-3)


# Resizing by tables, against PyTorch


def resized(x, **attributes):
    """x with its last two axes as large as given."""
    sizes, *more = attributes.pop("sizes"), attributes.pop("roi", None)
    constants = {"sizes": sizes, **({} if more[0] is None else {"roi": np.array(more[0], np.float32)})}
    one = node("Resize", ["x", "roi" if "roi" in constants else "", "", "sizes"], ["y"], axes=[2, 3], **attributes)
    return computed(model([one], {"x": x.shape}, constants=constants, opset=19), x)


def computed(made, x):
    graph = import_model(made, {}, {})
    result = interpret(graph, {"x": x})["y"]
    np.testing.assert_allclose(compile_graph(graph, threads=1)(x), result, rtol=1e-4, atol=1e-5)
    return result


@pytest.mark.parametrize(("mode", "theirs"), [("linear", "bilinear"), ("cubic", "bicubic")])
@pytest.mark.parametrize("sizes", [(3, 4), (5, 2), (13, 3)])
def test_smaller_images_without_aliases(mode, theirs, sizes):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(1, 2, 11, 7)).astype(np.float32)
    got = resized(x, sizes=sizes, mode=mode, antialias=1, exclude_outside=1, cubic_coeff_a=-0.5)
    want = torch.nn.functional.interpolate(torch.from_numpy(x).double(), sizes, mode=theirs, antialias=True)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_part_of_an_image_that_reaches_beyond_it(mode):
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    got = resized(
        x,
        sizes=(3, 3),
        mode=mode,
        roi=[0, 0, 1, 2],
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=9.5,
    )
    np.testing.assert_array_equal(got[0, 0], [[0, 3, 9.5], [4, 7, 9.5], [8, 11, 9.5]])


# Caches, and blocks of integers


@pytest.mark.parametrize(
    ("axis", "mode", "first"), [(1, "linear", [2, 0]), (-1, "circular", [4, 1]), (2, "linear", None)]
)
def test_what_is_new_is_written_into_a_cache(axis, mode, first):
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype(np.float32)
    new = -np.ones([3 if n == axis % 3 else size for n, size in enumerate(x.shape)], np.float32)
    one = node("TensorScatter", ["x", "new", "first" if first else ""], ["y"], axis=axis, mode=mode)
    given = {"new": new, **({"first": first} if first else {})}
    want = x.copy()
    for batch, start in enumerate(first or [0, 0]):
        places = np.arange(start, start + 3) % x.shape[axis]
        want[batch].swapaxes(0, axis % 3 - 1)[places] = -1
    np.testing.assert_array_equal(computed(model([one], {"x": x.shape}, constants=given, opset=24), x), want)


@pytest.mark.parametrize("shapes", [([2, 3, 5], [5]), ([5], [5, 4]), ([5], [2, 5, 4]), ([5], [5])])
def test_quantised_vectors_are_matrices(shapes):
    a, b = (np.random.default_rng(n).integers(0, 200, shape).astype(np.uint8) for n, shape in enumerate(shapes))
    nodes = [
        node("Cast", ["x"], ["a"], to=2),
        node("MatMulInteger", ["a", "b", "za", "zb"], ["sums"]),
        node("Cast", ["sums"], ["y"], to=1),
    ]
    constants = {"b": b, "za": np.asarray(7, np.uint8), "zb": np.asarray(100, np.uint8)}
    y = computed(model(nodes, {"x": a.shape}, constants=constants), a.astype(np.float32))
    np.testing.assert_array_equal(y, (a.astype(int) - 7) @ (b.astype(int) - 100))


@pytest.mark.parametrize(
    "numbers", [[0, 0, 0], [-0.0], [3, 1], [-3, -1], [-0.5, 254.5], [-1.5, 0, 0.5, 1.5, 2.5, 253.5]]
)
def test_numbers_are_quantised_by_the_scale_that_they_need(numbers):
    """Halves are rounded to the even byte, of the zero as well; zeros have the scale 1, as in ONNX Runtime."""
    x = np.float32(numbers)
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.rint(-low / scale)
    graph = import_model(model([node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], {"x": x.shape}, "ysz"), {}, {})
    expected = [np.clip(np.rint(x / scale) + zero, 0, 255), scale, zero]
    for results in (tuple(interpret(graph, {"x": x}).values()), compile_graph(graph, threads=1)(x)):
        for result, array, dtype in zip(results, expected, ("uint8", "float32", "uint8"), strict=True):
            np.testing.assert_array_equal(result, array.astype(dtype), strict=True)


def test_one_scale_needs_no_axis():
    """Of a vector there is no axis 1, which is the default."""
    nodes = [node("Cast", ["x"], ["q"], to=6), node("DequantizeLinear", ["q", "scale", "zero"], ["y"])]
    constants = {"scale": np.float32([0.5]), "zero": np.int32([0])}
    y = computed(model(nodes, {"x": [3]}, constants=constants, opset=21), np.float32([4, -2, 6]))
    np.testing.assert_array_equal(y, [2, -1, 3])


@pytest.mark.parametrize("zeros", [None, np.array([[3, 0, 9], [7, 1, 4]], np.uint8)])
def test_each_block_has_a_scale(zeros):
    """Of five elements the last block has one. What is quantised and back is as near as half a step."""
    x = np.random.default_rng(0).uniform(0, 1, (2, 5)).astype(np.float32)
    scale = np.array([[0.01, 0.1, 0.02], [0.05, 0.25, 0.01]], np.float32)
    names = ["scale", "zeros"] if zeros is not None else ["scale"]
    words = {"axis": 1, "block_size": 2}
    nodes = [
        node("QuantizeLinear", ["x", *names], ["q"], **words),
        node("DequantizeLinear", ["q", *names], ["y"], **words),
    ]
    constants = {"scale": scale, **({} if zeros is None else {"zeros": zeros})}
    y = computed(model(nodes, {"x": x.shape}, constants=constants, opset=21), x)
    assert (np.abs(y - x) <= 0.51 * np.repeat(scale, 2, 1)[:, :5]).all()
    assert (y != x).any()

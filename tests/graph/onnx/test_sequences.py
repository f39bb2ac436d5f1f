"""Sequences of tensors and optional values, which are known while importing: operators, outputs and inputs."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

from autosched.errors import GraphError  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.onnx.importer import import_model  # noqa: E402
from tests.graph.onnx.models import graph_of, model, node  # noqa: E402


def test_sequences_are_known_while_importing():
    nodes = [
        node("SplitToSequence", ["x", "sizes"], ["parts"], axis=1),
        node("SequenceLength", ["parts"], ["count"]),
        node("SequenceAt", ["parts", "last"], ["tail"]),
        node("SequenceErase", ["parts", "first"], ["rest"]),
        node("SequenceInsert", ["rest", "tail", "first"], ["turned"]),
        node("ConcatFromSequence", ["turned"], ["y"], axis=-1),
        node("SplitToSequence", ["x"], ["rows"], keepdims=0),
        node("ConcatFromSequence", ["rows"], ["z"], axis=1, new_axis=1),
    ]
    known = {"sizes": [2, 1, 2], "last": -1, "first": 0}
    graph = graph_of(nodes, {"x": [2, 5]}, ["y", "z", "count"], constants=known)
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    found = interpret(graph, {"x": x})
    np.testing.assert_array_equal(found["y"], x[:, [3, 4, 2, 3, 4]])
    np.testing.assert_array_equal(found["z"], x.T)
    assert found["count"] == 3


@pytest.mark.parametrize("steps", [3, 6])
def test_a_loop_collects_a_sequence(steps):
    info = helper.make_tensor_value_info
    parts = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)
    body = helper.make_graph(
        [
            node("Identity", ["c"], ["c_out"]),
            node("Identity", ["parts"], ["same"]),
            node("SequenceInsert", ["same", "x"], ["parts_out"]),
        ],
        "body",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), parts],
        [helper.make_empty_tensor_value_info(name) for name in ("c_out", "parts_out")],
    )
    nodes = [
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["steps", "", "none"], ["all"], body=body),
        node("ConcatFromSequence", ["all"], ["y"], axis=0),
    ]
    graph = graph_of(nodes, {"x": [2]}, constants={"steps": steps})
    np.testing.assert_array_equal(interpret(graph, {"x": np.float32([1, 2])})["y"], [1, 2] * steps)


SEQUENCES = {
    "no place 2 in a sequence": [node("SequenceAt", ["parts", "two"], ["y"])],
    "only control flow and sequences may": [node("Relu", ["parts"], ["y"])],
    "an optional value without content": [node("Optional", [""], ["y"])],
    "input 0 is no sequence": [node("SequenceAt", ["x", "two"], ["y"])],
}


@pytest.mark.parametrize("words", SEQUENCES)
def test_what_a_sequence_cannot_do_is_refused(words):
    nodes = [node("SequenceConstruct", ["x", "x"], ["parts"]), *SEQUENCES[words]]
    with pytest.raises(GraphError, match=words):
        graph_of(nodes, {"x": [2]}, constants={"two": 2})


def test_a_sequence_is_an_output_for_each_of_its_tensors():
    """Of an input, of a constant, and of what is computed."""
    nodes = [
        node("Relu", ["x"], ["positive"]),
        node("SequenceConstruct", ["x", "two", "positive"], ["parts"]),
        node("Optional", ["parts"], ["some"]),
        node("OptionalHasElement", ["some"], ["is_there"]),
        node("OptionalGetElement", ["some"], ["y"]),
    ]
    graph = graph_of(nodes, {"x": [2]}, ["y", "is_there"], constants={"two": 2}, opset=18)
    assert graph.outputs == ("y[0]", "y[1]", "y[2]", "is_there")
    made = interpret(graph, {"x": np.float32([1, -1])})
    assert [made[name].tolist() for name in graph.outputs] == [[1, -1], 2, [1, 0], True]


def test_a_sequence_is_mapped_by_its_body():
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Add", ["a", "b"], ["sum"]), node("Shape", ["a"], ["size"])],
        "body",
        [info(name, TensorProto.FLOAT, None) for name in "ab"],
        [helper.make_empty_tensor_value_info(name) for name in ("sum", "size")],
    )
    parts = node("SplitToSequence", ["x", "sizes"], ["parts"], axis=0)
    nodes = [parts, node("SequenceMap", ["parts", "one"], ["y", "z"], body=body)]
    constants = {"sizes": [1, 2], "one": np.array([1.0], np.float32)}
    graph = graph_of(nodes, {"x": [3]}, ["y", "z"], constants=constants)
    made = interpret(graph, {"x": np.float32([5, 6, 7])})
    assert {name: made[name].tolist() for name in graph.outputs} == {
        "y[0]": [6], "y[1]": [7, 8], "z[0]": [1], "z[1]": [2],
    }  # fmt: skip
    mapped = node("SequenceMap", ["one", "one"], ["y", "z"], body=body)
    with pytest.raises(GraphError, match="it maps sequences of one length, but got none"):
        graph_of([mapped], {"x": [3]}, ["y"], constants=constants)


def test_an_optional_tensor_is_an_input():
    made = model([node("OptionalGetElement", ["x"], ["y"])], {"x": [2]}, opset=18)
    tensor = onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"])
    made.graph.input[0].type.CopyFrom(helper.make_optional_type_proto(tensor))
    graph = import_model(made, {"n": 3}, {})
    np.testing.assert_array_equal(interpret(graph, {"x": np.float32([1, 2, 3])})["y"], [1, 2, 3])
    made.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(tensor))
    with pytest.raises(GraphError, match="the input x is no tensor: sequences and maps are not supported"):
        import_model(made, {}, {})

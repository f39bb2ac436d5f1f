"""Loop and Scan with a known count: as loops of ours where that can be, else unrolled, with the results of ONNX
Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper

from autosched.executor.compile_graph import compile_graph
from autosched.graph.graph import Array, Graph
from autosched.graph.interpret import interpret
from autosched.graph.loops import loop_of
from autosched.graph.onnx.importer import import_model
from autosched.graph.passes import run_passes
from tests.graph.onnx.models import model, node

STEPS = 7
W = np.random.default_rng(0).normal(size=(4, 4)).astype("float32") / 2


def body_of(nodes: Sequence[NodeProto], inputs: Mapping[str, tuple[int, Sequence[int]]], outputs: Sequence[str]) -> Any:
    """A graph with inputs of these types and shapes."""
    ins = [helper.make_tensor_value_info(name, *described) for name, described in inputs.items()]
    return helper.make_graph(nodes, "body", ins, [helper.make_empty_tensor_value_info(name) for name in outputs])


def compared(made: onnx.ModelProto, *, rtol: float = 1e-5) -> Graph:
    """The graph of a model, whose results, interpreted and compiled, are those of ONNX Runtime: the reference evaluator
    scans along the first axis only, and takes a condition that is left out for a false one."""
    runtime = pytest.importorskip("onnxruntime")
    graph, rng = import_model(made, {}, {}), np.random.default_rng(1)
    given: dict[str, Array] = {
        name: rng.normal(size=graph.values[name].shape).astype("float32") for name in graph.inputs
    }
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, given)
    results = compile_graph(graph, threads=1)(*given.values())
    results = results if isinstance(results, tuple) else (results,)
    for ours, other, array in zip(interpret(graph, given).values(), results, expected, strict=True):
        assert ours.shape == other.shape == array.shape
        np.testing.assert_allclose(ours, array, rtol=rtol, atol=1e-6)
        np.testing.assert_allclose(other, array, rtol=rtol, atol=1e-6)
    return graph


def loops_in(graph: Graph) -> list[int]:
    return [loop_of(n).steps for n in graph.nodes if n.body is not None]


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_scan(axis: int, backwards: int) -> None:
    """Rows along any axis, in any order, of inputs and results; the weights are of the graph around the body."""
    nodes = [
        node("MatMul", ["h", "w"], ["hw"]),
        node("Add", ["hw", "row"], ["sum"]),
        node("Tanh", ["sum"], ["next"]),
        node("Mul", ["next", "row"], ["product"]),
        node("Identity", ["next"], ["same"]),
    ]
    inner = body_of(nodes, {"h": (1, [3, 4]), "row": (1, [3, 4])}, ["next", "product", "same"])
    words: dict[str, Any] = {
        "scan_input_axes": [axis],
        "scan_input_directions": [backwards],
        "scan_output_axes": [axis, 1],
        "scan_output_directions": [1 - backwards, backwards],
    }
    scan = node("Scan", ["h0", "x"], ["last", "products", "every"], body=inner, num_scan_inputs=1, **words)
    shape = [3, 4]
    shape.insert(axis % 3, STEPS)
    made = model([scan], {"h0": [3, 4], "x": shape}, ["last", "products", "every"], {"w": W}, ir_version=9)
    graph = compared(made)
    assert loops_in(graph) == [STEPS]


LOOP = {"n": (TensorProto.INT64, []), "c": (TensorProto.BOOL, []), "h": (TensorProto.FLOAT, [3, 4])}


def looped(
    nodes: Sequence[NodeProto], results: Sequence[str], steps: int = STEPS, condition: str = "go", **constants: Any
) -> onnx.ModelProto:
    """A model of a loop with the state h, whose body has these nodes."""
    go = [node("Identity", ["c"], ["go"])] if condition == "go" else []
    body = body_of([*nodes, *go], LOOP, [condition, *results])
    outputs = ["last", *(f"rows{n}" for n in range(len(results) - 1))]
    made = [node("Loop", ["most", "", "x"], outputs, body=body)]
    return model(made, {"x": [3, 4]}, outputs, {"most": steps, "w": W, **constants}, ir_version=9)


def test_a_loop_that_computes_with_its_number() -> None:
    nodes = [
        node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        node("MatMul", ["h", "w"], ["hw"]),
        node("Add", ["hw", "f"], ["sum"]),
        node("Sin", ["sum"], ["next"]),
    ]
    assert loops_in(compared(looped(nodes, ["next", "sum", "h", "f"]))) == [STEPS]


def test_a_state_that_stays() -> None:
    nodes = [node("Identity", ["h"], ["next"]), node("MatMul", ["h", "w"], ["row"])]
    assert loops_in(compared(looped(nodes, ["next", "row"]))) == [STEPS]


def test_few_iterations_are_unrolled_while_importing() -> None:
    assert loops_in(compared(looped([node("MatMul", ["h", "w"], ["next"])], ["next"], 4))) == []


def test_a_scan_in_a_loop() -> None:
    one = [node("Add", ["s", "row"], ["after"]), node("Tanh", ["after"], ["out"])]
    inner = body_of(one, {"s": (1, [4]), "row": (1, [4])}, ["after", "out"])
    nodes = [
        node("MatMul", ["h", "w"], ["hw"]),
        node("Concat", ["hw", "hw"], ["rows"], axis=0),
        node("Scan", ["zero", "rows"], ["total", "outs"], body=inner, num_scan_inputs=1),
        node("Add", ["hw", "total"], ["next"]),
    ]
    made = looped(nodes, ["next", "outs"], zero=np.zeros(4, np.float32))
    graph = compared(made)
    assert loops_in(graph) == [STEPS]
    (loop,) = (n for n in graph.nodes if n.body is not None)
    assert loop.body is not None
    assert loops_in(loop.body) == [6]


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        (
            [node("Gather", ["table", "n"], ["row"]), node("Add", ["h", "row"], ["next"])],
            {"table": W[[0, 1, 2, 3, 0, 1, 2]]},
        ),
        ([node("Concat", ["h", "h"], ["next"], axis=0)], {}),
    ],
)
def test_what_an_unrolled_loop_alone_can_is_unrolled(nodes: list[NodeProto], constants: dict[str, Array]) -> None:
    """An index that is the number of the iteration, of which no check is needed then; a state that grows."""
    assert loops_in(compared(looped(nodes, ["next"], **constants))) == []


def test_a_loop_of_constants_is_folded() -> None:
    nodes = [node("Cast", ["n"], ["f"], to=TensorProto.FLOAT), node("Add", ["h", "f"], ["next"])]
    body = body_of([*nodes, node("Identity", ["c"], ["go"])], LOOP, ["go", "next", "f"])
    made = [node("Loop", ["most", "", "w"], ["last", "rows"], body=body), node("Add", ["x", "last"], ["y"])]
    constants = {"most": STEPS, "w": W[:3]}
    graph = compared(model(made, {"x": [3, 4]}, ["y", "rows"], constants, ir_version=9))
    assert loops_in(graph) == [STEPS]
    assert [n.operator for n in run_passes(graph)[0].nodes] == ["add"]


def test_a_condition_that_is_false_ends_the_loop() -> None:
    nodes = [node("MatMul", ["h", "w"], ["next"]), node("Not", ["c"], ["stop"])]
    assert loops_in(compared(looped(nodes, ["next", "h"], condition="stop"))) == []

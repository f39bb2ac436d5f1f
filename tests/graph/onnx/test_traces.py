"""Graphs for all sizes: a traced graph at numbers computes what the graph imported with these numbers does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper

from autosched.graph.graph import Graph
from autosched.graph.interpret import interpret
from autosched.graph.onnx.importer import import_model
from autosched.graph.passes import run_passes
from autosched.graph.traces import numbered_graph, symbolic_sizes
from autosched.graph.verify import verify
from autosched.ir.size import Guards, evaluate
from tests.graph.onnx.models import model, node


def positions() -> Any:
    """x + an embedding of arange(L), whose rows are sliced from a table up to the end."""
    table = np.random.default_rng(0).standard_normal((80, 4)).astype("float32")
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Range", ["zero", "length", "one"], ["places"]),
        node("Gather", ["table", "places"], ["rows"]),
        node("Add", ["x", "rows"], ["y"]),
    ]
    return model(nodes, {"x": [2, "n", 4]}, constants={"table": table, "zero": np.int64(0), "one": np.int64(1)})


def attention() -> Any:
    """softmax(x x' + causal mask) x, with a mask of comparisons of positions."""
    nodes = [
        node("Shape", ["x"], ["shape"], start=0, end=1),
        node("Squeeze", ["shape"], ["length"]),
        node("Range", ["zero", "length", "one"], ["columns"]),
        node("Unsqueeze", ["columns", "axis"], ["rows"]),
        node("Greater", ["columns", "rows"], ["hidden"]),
        node("Where", ["hidden", "low", "none"], ["mask"]),
        node("Transpose", ["x"], ["turned"]),
        node("MatMul", ["x", "turned"], ["scores"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("MatMul", ["weights", "x"], ["y"]),
    ]
    numbers = {"zero": np.int64(0), "one": np.int64(1), "axis": [1]}
    return model(
        nodes, {"x": ["n", 4]}, constants={**numbers, "low": np.float32(-1e9), "none": np.float32(0)}, opset=17
    )


def heads() -> Any:
    """Reshapes by -1, by a product and by sizes, and a slice to the end."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Concat", ["batch", "length", "two", "minus"], ["apart"], axis=0),
        node("Reshape", ["x", "apart"], ["split"]),
        node("Transpose", ["split"], ["turned"], perm=[0, 2, 1, 3]),
        node("Mul", ["batch", "two"], ["many"]),
        node("Concat", ["many", "minus", "three"], ["joint"], axis=0),
        node("Reshape", ["turned", "joint"], ["joined"]),
        node("Slice", ["joined", "one", "end", "one"], ["y"]),
        node("ConstantOfShape", ["joint2"], ["full"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [3.0])),
        node("Concat", ["many", "length"], ["joint2"], axis=0),
        node("Identity", ["full"], ["z"]),
        node("Div", ["length", "two"], ["half"]),
        node("Slice", ["x", "zero", "half", "one"], ["w"]),
    ]
    numbers = {"zero": [0], "one": [1], "two": [2], "three": [3], "minus": [-1], "end": [2**63 - 1]}
    return model(nodes, {"x": [3, "n", 6]}, ("y", "z", "w", "many", "length"), constants=numbers)


def cache() -> Any:
    """A cache that grows, and a mean with a count that is data."""
    nodes = [
        node("Concat", ["past", "x"], ["y"], axis=1),
        node("Shape", ["y"], ["shape"], start=1, end=2),
        node("Cast", ["shape"], ["count"], to=TensorProto.FLOAT),
        node("ReduceSum", ["y", "one"], ["sum"], keepdims=1),
        node("Div", ["sum", "count"], ["mean"]),
        node("Sub", ["y", "mean"], ["z"]),
    ]
    return model(nodes, {"past": [2, "n", 3], "x": [2, 1, 3]}, ("y", "z", "shape"), constants={"one": [1]})


def doubled() -> Any:
    """A resize to twice the size by way of floats: sizes that are not traced, and so pinned."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["floats"], to=TensorProto.FLOAT),
        node("Mul", ["floats", "scales"], ["scaled"]),
        node("Cast", ["scaled"], ["sizes"], to=TensorProto.INT64),
        node("Expand", ["bias", "sizes"], ["y"]),
    ]
    constants = {"scales": np.asarray([1.0, 1.5], "float32"), "bias": np.ones((1, 1), "float32")}
    return model(nodes, {"x": [2, "n"]}, constants=constants)


def broadcast() -> Any:
    """Two dimensions that must be equal or 1."""
    return model([node("Add", ["a", "b"], ["y"])], {"a": ["n", 3], "b": ["m", 3]})


MOST = range(1 << 20)


class Trace(NamedTuple):
    """A network after import, and after passes, over symbols."""

    graphs: tuple[Graph, ...]
    guards: Guards

    def at_sizes(self, sizes: Mapping[str, int]) -> tuple[Graph, ...] | None:
        if not self.guards.hold(sizes):
            return None
        values = self.guards.values(sizes)
        return tuple(numbered_graph(graph, lambda size: int(evaluate(size.form, values))) for graph in self.graphs)


def traced(network: Any, sizes: Mapping[str, int]) -> Trace:
    with Guards() as guards:
        graph = import_model(network, symbolic_sizes(guards, sizes, dict.fromkeys(sizes, MOST)), {})
        return Trace((graph, run_passes(graph)[0]), guards)


def same(graphs: tuple[Graph, ...], expected: Graph) -> None:
    rng = np.random.default_rng(3)
    values = [expected.values[name] for name in expected.inputs]
    arrays = {value.name: rng.standard_normal(value.shape).astype("float32") for value in values}
    theirs = interpret(expected, arrays)
    for graph in graphs:
        verify(graph)
        for ours, other in zip((*graph.inputs, *graph.outputs), (*expected.inputs, *expected.outputs), strict=True):
            assert graph.values[ours] == expected.values[other]
        for name, array in interpret(graph, arrays).items():
            np.testing.assert_allclose(array, theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("make", [positions, attention, heads, cache])
def test_a_trace_is_the_network_of_all_sizes(make: Any) -> None:
    network = make()
    trace = traced(network, {"n": 12})
    for n in range(2, 70):
        graphs = trace.at_sizes({"n": n})
        assert graphs is not None or make is heads
        if graphs is not None and n % 17 in (2, 12):
            same(graphs, import_model(network, {"n": n}, {}))
    assert trace.at_sizes({"n": 1}) is None


@pytest.mark.parametrize("make", [positions, attention, heads, cache, doubled])
@pytest.mark.parametrize("n", [7, 2, 13, 64])
def test_a_trace_at_its_own_sizes_is_the_network_of_these(make: Any, n: int) -> None:
    network = make()
    graphs = traced(network, {"n": n}).at_sizes({"n": n})
    assert graphs is not None
    same(graphs, import_model(network, {"n": n}, {}))


def test_equal_sizes_and_sizes_of_1_are_guarded() -> None:
    network = broadcast()
    for n, m in ((4, 4), (4, 1), (1, 5), (1, 1)):
        trace = traced(network, {"n": n, "m": m})
        for a, b in ((6, 6), (9, 7)):
            graphs = trace.at_sizes({"n": a, "m": b})
            assert graphs is None or (n == m and a == b)
            if graphs is not None:
                same(graphs, import_model(network, {"n": a, "m": b}, {}))
    with pytest.raises(Exception, match="do not fit"):
        traced(network, {"n": 3, "m": 5})

"""Caches: rows are written into the array that the caller gives for input and result, and nothing else is moved."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.operators import results_of
from autosched.verification.sample_inputs import input_sets
from autosched.verification.verify import verify_network

RNG = np.random.default_rng(11)


def cached(shape=(2, 3, 7, 5), axis=2, count=2, index="int64", also_read=False, of_each=False):
    """The rows 2 x + 1 go into a cache, of each batch to places of its own perhaps; read are sums of it afterwards and,
    perhaps, what it was before."""
    rows = (*shape[:axis], count, *shape[axis + 1 :])
    values = {
        "cache": Value("cache", shape, "float32"),
        "at": Value("at", (shape[0], count) if of_each else (count,), index),
        "x": Value("x", rows, "float32"),
        "two": Value("two", (), "float32"),
    }
    nodes = []
    made = [
        ("rows", "mul", ("x", "two"), {}),
        ("new", "write_rows", ("cache", "at", "rows"), {"axis": axis, "indexing": "unchecked"}),
        ("sums", "reduce_sum", ("new",), {"axes": (axis,), "keepdims": False}),
    ]
    outputs = ("sums", "new")
    if also_read:
        made.append(("before", "mul", ("cache", "two"), {}))
        outputs = (*outputs, "before")
    for name, operator, inputs, attributes in made:
        node = Node(operator, inputs, (name,), attributes)
        values |= {v.name: v for v in results_of(node, values)}
        nodes.append(node)
    return Graph(("x", "cache", "at"), outputs, tuple(nodes), values, {"two": np.array(2, "float32")})


def arrays_of(graph, places):
    given = {name: graph.values[name] for name in graph.inputs}
    arrays = {n: RNG.standard_normal(v.shape).astype("float32") for n, v in given.items() if n != "at"}
    return {**arrays, "at": np.array(places, given["at"].dtype)}


@pytest.mark.parametrize(
    ("shape", "axis", "places", "index"),
    [
        ((2, 3, 7, 5), 2, (4, 1), "int64"),
        ((1, 13), 1, (12,), "int32"),
        ((11, 1), 0, (-1, 3, 3), "int64"),
        ((3, 5, 17), 1, (7, -6, 0), "int32"),  # two that there are not
        ((3, 2, 5, 7), 2, ((4,), (-5,), (5,)), "int64"),
        ((2, 5, 3), 1, ((1, 3, 3), (-1, 0, -6)), "int32"),
        ((2, 1, 1), 1, ((0,), (-2,)), "int64"),
    ],
)
def test_rows_are_written_where_they_are_asked_for(shape, axis, places, index):
    of_each = isinstance(places[0], tuple)
    graph = cached(shape, axis, len(places[0] if of_each else places), index, of_each=of_each)
    arrays = arrays_of(graph, places)
    want = interpret(graph, arrays)
    model = compile_graph(graph, threads=2)
    assert model.program.in_place == {1: 1}
    given = [arrays[name] for name in graph.inputs]
    before = arrays["cache"].copy()
    for name, array in zip(graph.outputs, model(*given), strict=True):
        np.testing.assert_allclose(array, want[name], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(arrays["cache"], before)
    sums = np.empty(want["sums"].shape, "float32")
    model(*given, out=(sums, arrays["cache"]))
    np.testing.assert_allclose(sums, want["sums"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(arrays["cache"], want["new"], rtol=1e-6)


def test_the_network_is_checked_with_its_writes():
    graph = cached()
    model = compile_graph(graph, threads=1)
    assert verify_network(model, input_sets(graph)).passed


def test_what_somebody_else_reads_is_not_written_over():
    graph = cached(also_read=True)
    arrays = arrays_of(graph, (0, 5))
    model = compile_graph(graph, threads=1)
    assert not model.program.in_place
    given = [arrays[name] for name in graph.inputs]
    for name, array in zip(graph.outputs, model(*given), strict=True):
        np.testing.assert_allclose(array, interpret(graph, arrays)[name], rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match="overlaps cache in memory"):
        model(*given, out=(np.empty((2, 3, 5), "float32"), arrays["cache"], np.empty((2, 3, 7, 5), "float32")))


def test_a_part_of_the_input_is_no_place_for_the_result():
    graph = cached((8, 4), 0, 1)
    model = compile_graph(graph, threads=1)
    memory = np.zeros((9, 4), "float32")
    given = (np.ones((1, 4), "float32"), memory[:8], np.array([1]))
    with pytest.raises(UsageError, match="overlaps cache in memory"):
        model(*given, out=(np.empty(4, "float32"), memory[1:]))


def test_torch_s_caches_stay_where_they_are():
    torch = pytest.importorskip("torch")
    import autosched as at

    class Step(torch.nn.Module):
        def forward(self, x, place, cache):
            cache = cache.index_copy(1, place, 2 * x)
            return cache.sum(1), cache

    inputs = torch.randn(2, 1, 9), torch.tensor([3]), torch.randn(2, 6, 9)
    want = Step()(*inputs)
    model = at.load(Step(), inputs, threads=1)
    made = model(*inputs)
    sums, place = torch.empty(2, 9), inputs[2].data_ptr()
    model(*inputs, out=(sums, inputs[2]))
    for got, wanted in zip((*made, sums, inputs[2]), (*want, *want), strict=True):
        torch.testing.assert_close(got, wanted)
    assert inputs[2].data_ptr() == place


def scattered(how, axis, shape=(3, 2, 7, 5), count=2):
    """The same writes as files have them."""
    order = (axis, *(d for d in range(len(shape)) if d != axis))
    rows = (*shape[:axis], count, *shape[axis + 1 :])
    values = {
        "cache": Value("cache", shape, "float32"),
        "at": Value("at", (count,), "int64"),
        "x": Value("x", tuple(rows[d] for d in order) if how == "nd" else rows, "float32"),
    }
    back = tuple(order.index(d) for d in range(len(shape)))
    one = tuple(count if d == axis else 1 for d in range(len(shape)))
    ids = ("ids", "reshape", ("at",), {"shape": (count, 1)})
    steps = {
        "nd": [
            ("front", "transpose", ("cache",), {"perm": order}),
            ids,
            ("written", "scatter_nd", ("front", "ids", "x"), {"reduction": "none"}),
            ("new", "transpose", ("written",), {"perm": back}),
        ],
        "first": [ids, ("new", "scatter_nd", ("cache", "ids", "x"), {})],
        "elements": [
            ("one", "reshape", ("at",), {"shape": one}),
            ("ids", "expand", ("one",), {"shape": rows}),
            ("new", "scatter_elements", ("cache", "ids", "x"), {"axis": axis - len(shape)}),
        ],
    }[how]
    nodes = []
    for name, operator, inputs, attributes in steps:
        node = Node(operator, inputs, (name,), attributes)
        values |= {v.name: v for v in results_of(node, values)}
        nodes.append(node)
    return Graph(("x", "cache", "at"), ("new",), tuple(nodes), values, {})


@pytest.mark.parametrize(("how", "axis"), [("nd", 1), ("nd", 2), ("first", 0), ("elements", 1), ("elements", 2)])
def test_scatters_of_rows_are_such_writes(how, axis):
    graph = scattered(how, axis)
    arrays = arrays_of(graph, (1, 0))
    model = compile_graph(graph, threads=1)
    assert model.program.in_place == {0: 1}
    want = interpret(graph, arrays)["new"]
    model(*(arrays[name] for name in graph.inputs), out=arrays["cache"])
    np.testing.assert_array_equal(arrays["cache"], want)


def test_onnx_s_caches_stay_where_they_are():
    """Of two sequences of different lengths, in a circle and as attention of grouped queries has them."""
    onnx = pytest.importorskip("onnx")
    from autosched.graph.onnx.importer import import_model

    helper, kinds = onnx.helper, {"int64": onnx.TensorProto.INT64, "int32": onnx.TensorProto.INT32}

    def graph_of(nodes, given, outputs, total=None):
        ins = [helper.make_tensor_value_info(n, kinds.get(a.dtype.name, 1), a.shape) for n, a in given.items()]
        outs = [helper.make_empty_tensor_value_info(name) for name in outputs]
        tables = [] if total is None else [onnx.numpy_helper.from_array(np.array(total, "int32"), "total")]
        sets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
        made = helper.make_model(helper.make_graph(nodes, "test", ins, outs, tables), opset_imports=sets)
        return import_model(made, {}, {})

    def check(graph, given, caches):
        want = interpret(graph, given)
        model = compile_graph(graph, threads=1)
        numbers = {graph.outputs.index(new): graph.inputs.index(old) for old, new in caches.items()}
        assert model.program.in_place == numbers
        out = tuple(given[graph.inputs[numbers[n]]] if n in numbers else np.empty(want[name].shape, "float32")
                    for n, name in enumerate(graph.outputs))  # fmt: skip
        model(*(given[name] for name in graph.inputs), out=out if len(out) > 1 else out[0])
        for name, array in zip(graph.outputs, out, strict=True):
            np.testing.assert_allclose(array, want[name], rtol=1e-5, atol=1e-5)

    def normal(*shape):
        return RNG.standard_normal(shape).astype("float32")

    circle = {"past": normal(2, 5, 6), "new": normal(2, 3, 6), "first": np.array([4, 1])}
    node = helper.make_node("TensorScatter", [*circle], ["now"], axis=1, mode="circular")
    check(graph_of([node], circle, ["now"]), circle, {"past": "now"})
    step = {
        **{"q": normal(2, 1, 64), "k": normal(2, 1, 32), "v": normal(2, 1, 32), "pk": normal(2, 2, 9, 16)},
        **{"pv": normal(2, 2, 9, 16), "lengths": np.array([2, 4], "int32")},
    }
    node = helper.make_node(
        *("GroupQueryAttention", [*step, "total"], ["y", "nk", "nv"]),
        **{"domain": "com.microsoft", "num_heads": 4, "kv_num_heads": 2},
    )
    check(graph_of([node], step, ["y", "nk", "nv"], 5), step, {"pk": "nk", "pv": "nv"})

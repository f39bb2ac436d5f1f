"""ONNX models as graphs: names, sizes, constants, what is folded, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from autosched.errors import GraphError  # noqa: E402
from autosched.graph.fixed_inputs import fixed_array  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.onnx import load_onnx  # noqa: E402
from autosched.graph.onnx.importer import import_model  # noqa: E402
from autosched.graph.onnx.inputs import symbolic_dimensions  # noqa: E402
from autosched.graph.onnx.site import NotConstant  # noqa: E402
from autosched.ir.dtype import DTYPES  # noqa: E402
from tests.graph.onnx.models import graph_of, model, node  # noqa: E402

RELU = node("Relu", ["x"], ["y"])
BIAS = np.arange(3, dtype=np.float32)


def small(**more):
    """y = relu(x + bias)."""
    nodes = [node("Add", ["x", "bias"], ["s"], name="first"), node("Relu", ["s"], ["y"])]
    return model(nodes, {"x": [2, 3]}, constants={"bias": BIAS}, **more)


def test_a_file_is_a_graph(tmp_path):
    path = tmp_path / "small.onnx"
    onnx.save(small(), path)
    graph = load_onnx(path)
    assert (graph.name, graph.inputs, graph.outputs) == ("test", ("x",), ("y",))
    assert [(n.operator, n.inputs, n.outputs, n.origin) for n in graph.nodes] == [
        ("add", ("x", "bias"), ("s",), "Add first"),
        ("relu", ("s",), ("y",), "Relu y"),
    ]
    x = np.array([[-1, -1, -1], [1, 1, 1]], dtype=np.float32)
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], np.maximum(x + BIAS, 0))


# Sizes


def test_symbolic_sizes_are_given():
    nodes = [RELU]
    shape = ["batch", 3, "batch", None]
    graph = graph_of(nodes, {"x": shape}, sizes={"batch": 2, "x[3]": 5})
    assert graph.values["y"].shape == (2, 3, 2, 5)
    with pytest.raises(GraphError, match=r"sizes must be given: batch \(of x\), x\[3\] \(of x\)"):
        graph_of(nodes, {"x": shape})
    with pytest.raises(GraphError, match=r"no dimension width to give a size to; it has: batch, x\[3\]"):
        graph_of(nodes, {"x": shape}, sizes={"batch": 2, "x[3]": 5, "width": 1})
    with pytest.raises(GraphError, match=r"the input x has the shape \[-1, 0\], but sizes are at least 0"):
        graph_of(nodes, {"x": ["batch", 0]}, sizes={"batch": -1})
    assert graph_of(nodes, {"x": ["batch", 3]}, sizes={"batch": 0}).values["y"].shape == (0, 3)
    assert graph_of(nodes, {"x": [-1, 3]}, sizes={"x[0]": 2}).values["y"].shape == (2, 3)  # as some exporters write it


# Constants and what is known while importing


@pytest.mark.parametrize("condition", [False, True])
def test_a_branch_is_chosen_by_what_is_known(condition):
    """The size of the batch decides: it is read, compared and gathered while importing."""
    outs = [helper.make_empty_tensor_value_info("b")]
    then, other = (
        helper.make_graph([node(op, inputs, ["b"])], op, [], outs)
        for op, inputs in (("Relu", ["x"]), ("Add", ["x", "x"]))
    )
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["size"], axis=0),
        node("Equal", ["size", "two"], ["is_two"]),
        node("If", ["is_two"], ["y"], then_branch=then, else_branch=other),
    ]
    size = 2 if condition else 3
    graph = graph_of(nodes, {"x": ["n", 4]}, constants={"zero": 0, "two": 2}, sizes={"n": size})
    assert [n.operator for n in graph.nodes] == ["relu" if condition else "add"]
    assert not graph.constants
    assert graph.nodes[0].outputs == graph.outputs == ("y",)


def test_constants_of_shapes_take_no_memory():
    nodes = [node("ConstantOfShape", ["shape"], ["w"]), node("Add", ["x", "w"], ["y"])]
    graph = graph_of(nodes, {"x": [1000, 1000]}, constants={"shape": [1000, 1000]})
    assert graph.constants["w"].strides == (0, 0)
    assert graph.constants["w"].shape == (1000, 1000)


def test_what_the_library_cannot_fold_is_left_to_the_network():
    """Its GatherElements takes indices for all of an axis only."""
    nodes = [node("GatherElements", ["table", "at"], ["rows"], axis=1), node("Mul", ["x", "rows"], ["y"])]
    table, at = np.arange(10, dtype=np.float32)[None], np.array([[3, 0, 4]])
    graph = graph_of(nodes, {"x": [1, 3]}, constants={"table": table, "at": at})
    np.testing.assert_array_equal(interpret(graph, {"x": np.ones((1, 3), np.float32)})["y"], table[:, [3, 0, 4]])


def test_a_loop_is_unrolled():
    body = helper.make_graph(
        [node("Add", ["h", "x"], ["h_out"]), node("Identity", ["c"], ["c_out"]), node("Identity", ["i"], ["row"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, [2]),
        ],
        [helper.make_empty_tensor_value_info(name) for name in ("c_out", "h_out", "row")],
    )
    nodes = [node("Loop", ["steps", "", "x"], ["y", "rows"], body=body)]
    graph = graph_of(nodes, {"x": [2]}, ["y", "rows"], constants={"steps": 3})
    assert [n.operator for n in graph.nodes] == ["add"] * 3
    np.testing.assert_array_equal(graph.constants["rows"], [0, 1, 2])
    np.testing.assert_array_equal(interpret(graph, {"x": np.float32([1, 2])})["y"], [4, 8])


def test_a_value_that_must_be_known_is_named_with_the_error_and_its_remedy_once():
    """Also within a function, around which the error is raised again."""
    opsets = [helper.make_opsetid("", 17)]
    resize = node("Resize", ["a", "", "s"], ["r"])
    function = helper.make_function("own", "Larger", ["a", "s"], ["r"], [resize], opsets)
    nodes = [node("Larger", ["x", "scales"], ["y"], domain="own")]
    with pytest.raises(GraphError) as raised:
        graph_of(nodes, {"x": [1, 1, 2, 2], "scales": [4]}, functions=[function], domains=["own"])
    error = raised.value
    while not isinstance(error, NotConstant):
        assert error.__cause__ is not None
        error = error.__cause__
    assert error.value == "scales"
    assert str(error).count("can be fixed at load") == 1


def test_functions_are_written_out():
    opsets = [helper.make_opsetid("", 17)]
    inner = node("Add", ["a", "a"], ["b"])
    function = helper.make_function("own", "Twice", ["a"], ["r"], [inner, node("Relu", ["b"], ["r"])], opsets)
    nodes = [node("Twice", ["x"], ["h"], domain="own"), node("Twice", ["h"], ["y"], domain="own")]
    graph = graph_of(nodes, {"x": [2]}, functions=[function], domains=["own"])
    assert [n.operator for n in graph.nodes] == ["add", "relu"] * 2
    np.testing.assert_array_equal(interpret(graph, {"x": np.float32([1, -2])})["y"], [4, 0])


def test_a_function_of_itself_is_refused():
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "F", ["a"], ["r"], [node("F", ["a"], ["r"], domain="own")], opsets)
    with pytest.raises(GraphError, match="more than 50 graphs or functions within each other"):
        graph_of([node("F", ["x"], ["y"], domain="own")], {"x": [2]}, functions=[function], domains=["own"])


def test_nodes_may_be_in_any_order():
    nodes = [node("Relu", ["s"], ["y"]), node("Add", ["x", "x"], ["s"])]
    assert [n.operator for n in graph_of(nodes, {"x": [2]}).nodes] == ["add", "relu"]


def test_an_initializer_may_be_listed_as_an_input():
    made = small()
    made.graph.input.append(helper.make_tensor_value_info("bias", TensorProto.FLOAT, [3]))
    assert import_model(made, {}, {}).inputs == ("x",)


# Data beside the model


def saved_with_data(tmp_path, location="weights.bin"):
    made = small()
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    moved = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    (entry,) = (e for e in moved.graph.initializer[0].external_data if e.key == "location")
    entry.value = location
    (tmp_path / "m.onnx").write_bytes(moved.SerializeToString())
    return tmp_path / "m.onnx"


def test_data_beside_the_model_is_mapped(tmp_path):
    array = load_onnx(saved_with_data(tmp_path)).constants["bias"]
    np.testing.assert_array_equal(array, BIAS)
    base = array
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert not array.flags.writeable


def test_weights_of_four_bits_may_lie_beside_the_model(tmp_path):
    """An odd number of them, so that half a byte is left over; each block of two has a scale."""
    q, scale = np.array([[7, -8, 3], [0, -1, 5]]), np.array([[0.5, 2.0], [1.0, 4.0]], np.float32)
    tables = [helper.make_tensor("q", TensorProto.INT4, q.shape, q.ravel()), numpy_helper.from_array(scale, "scale")]
    nodes = [node("DequantizeLinear", ["q", "scale"], ["w"], axis=1, block_size=2), node("Mul", ["x", "w"], ["y"])]
    made = model(nodes, {"x": [2, 3]}, opset=21)
    made.graph.initializer.extend(tables)
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size < 24
    (got,) = interpret(load_onnx(tmp_path / "m.onnx"), {"x": np.ones((2, 3), np.float32)}).values()
    np.testing.assert_array_equal(got, q * np.repeat(scale, 2, 1)[:, :3])


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("gone.bin", "has its data in gone.bin, and there is no such file"),
        ("../weights.bin", "outside of the model's folder"),
        ("/etc/hostname", "outside of the model's folder"),
        ("", "outside of the model's folder"),
    ],
)
def test_data_that_is_not_beside_the_model(tmp_path, location, message):
    with pytest.raises(GraphError, match=message):
        load_onnx(saved_with_data(tmp_path, location))


def test_a_link_does_not_leave_the_folder(tmp_path):
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    home = tmp_path / "home"
    home.mkdir()
    path = saved_with_data(home, "link.bin")
    (home / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(GraphError, match="outside of the model's folder"):
        load_onnx(path)


def test_data_that_is_too_short(tmp_path):
    path = saved_with_data(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"1234")
    with pytest.raises(GraphError, match=r"needs 12 bytes of weights.bin from 0 on; it says 12, the file has 4"):
        load_onnx(path)


# What is refused


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Relu", ["z"], ["y"])], "the node y reads z, which nothing makes"),
        ([node("Relu", ["b"], ["a"]), node("Add", ["a", "x"], ["b"])], "a cycle, through the nodes a, b"),
        ([RELU, RELU], "makes the value y twice"),
        ([node("Add", ["x"], ["y"])], "Add y: it has 1 inputs, and takes 2"),
        ([node("Relu", ["x"], ["y"], alpha=1.0)], "Relu y: it has no attribute alpha in opset 17"),
        ([node("Flatten", ["x"], ["y"], axis="one")], "Flatten y: its attribute axis is STRING, not INT"),
        ([node("Concat", ["x", "x"], ["y"])], "Concat y: it lacks the attribute axis"),
        ([node("Constant", [], ["y"])], "Constant y: it has 0 values, and takes one"),
        ([node("Split", ["x"], ["y"], num_outputs=0)], "Split y: it has no attribute num_outputs in opset 17"),
        (
            [node("AveragePool", ["x"], ["y"], kernel_shape=[0])],
            r"AveragePool y: kernel \[0\], .* do not fit the shape",
        ),
        ([node("Relu", ["x"], ["z"])], "the output y of the model is made by nothing"),
        ([node("Reshape", ["x", "x"], ["y"])], r"Reshape y: input 1 \(x\) must be a constant"),
        ([node("Range", ["x", "x", "x"], ["y"])], "Range y: what it makes must be known .* x depends on data"),
        ([node("Gelu", ["x"], ["y"])], "Gelu y: opset 17 has no such operator"),
    ],
)
def test_what_is_no_model(nodes, message):
    with pytest.raises(GraphError, match=message):
        graph_of(nodes, {"x": [2]})


def test_results_that_no_graph_has():
    pairs = node("Constant", [], ["y"], value=onnx.numpy_helper.from_array(np.zeros(2, np.complex64)))
    with pytest.raises(GraphError, match=r"the value y: complex64\[2\] is of a type that is not supported"):
        graph_of([pairs], {"x": [2]})


def test_control_flow_by_data_is_refused():
    outs = [helper.make_empty_tensor_value_info("b")]
    branch = helper.make_graph([node("Relu", ["x"], ["b"])], "g", [], outs)
    made = model([node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], {"x": [2]})
    made.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    said = r"If y: its condition \(c\) depends on data; control flow by data is not supported \(it is computed from c; "
    said += r'an input .* fixed at load: autosched.load\(path, inputs={"c": VALUE}\), or --fix c=VALUE\)'
    with pytest.raises(GraphError, match=said):
        import_model(made, {}, {})


def test_an_input_that_decides_is_fixed():
    outs = [helper.make_empty_tensor_value_info("b")]
    then, other = (helper.make_graph([node(o, ["x"] * n, ["b"])], o, [], outs) for o, n in (("Relu", 1), ("Add", 2)))
    made = model([node("If", ["c"], ["y"], then_branch=then, else_branch=other)], {"x": [2]})
    made.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    for value, operator in ((True, "relu"), (False, "add")):
        graph = import_model(made, {}, {"c": value})
        assert graph.inputs == ("x",)
        assert [n.operator for n in graph.nodes] == [operator]
    for value, reason in (
        ({"z": True}, "z is given a value, but is no input of the model; its inputs are: x, c"),
        ({"c": [True]}, r"the input c is fixed to bool\[1\] \[True\], but must be bool\[\]"),
        ({"c": 1.5}, r"the input c is fixed to float64\[\] 1.5, but must be bool\[\]"),
        ({"c": np.int64(1)}, r"the input c is fixed to int64\[\] (np\.int64\()?1\)?, but must be bool\[\]"),
        ({"c": "yes"}, "but must be bool"),
        ({"c": [[1], [1, 2]]}, "the value of the input c is no array of numbers"),
    ):
        with pytest.raises(GraphError, match=reason):
            import_model(made, {}, value)


def test_values_of_fixed_inputs_are_elements_of_their_types():
    for dtype, value, is_right in (
        ("int8", 127, True),
        ("int8", 128, False),
        ("int64", 2.0, False),
        ("float32", 3, True),
        ("bfloat16", 0.1, True),
        ("float32", np.float64(3), False),
        ("float32", np.float32(3), True),
        ("bool", 1, False),
    ):
        wanted = DTYPES[dtype].numpy_dtype
        if is_right:
            made = fixed_array("x", value, wanted, ())
            assert (made.dtype, made.shape) == (wanted, ())
            assert made == np.asarray(value, wanted)
        else:
            with pytest.raises(GraphError, match="the input x is fixed to"):
                fixed_array("x", value, wanted, ())


def test_what_a_shape_says_that_is_known_once_an_input_is_fixed():
    nodes = [node("ConstantOfShape", ["n"], ["zeros"]), node("Add", ["x", "zeros"], ["y"])]
    made = model(nodes, {"x": ["width", 3]})
    made.graph.input.append(helper.make_tensor_value_info("n", TensorProto.INT64, [2]))
    with pytest.raises(GraphError, match=r"but n depends on data \(it is computed from n; .* --fix n=VALUE"):
        import_model(made, {"width": 1}, {})
    assert import_model(made, {"width": 1}, {"n": [5, 3]}).values["y"].shape == (5, 3)


def test_fixed_inputs_say_sizes():
    made = model([node("Add", ["x", "s"], ["y"])], {"x": ["n", 3], "s": ["n", 3]})
    graph = import_model(made, {}, {"s": np.ones((2, 3), "float32")})
    assert (graph.inputs, graph.values["x"].shape) == (("x",), (2, 3))
    with pytest.raises(GraphError, match="n is 4, but the value that the input s is fixed to has 2 there"):
        import_model(made, {"n": 4}, {"s": np.ones((2, 3), "float32")})


@pytest.mark.parametrize("name", ["?", "", "unk__7", "None", "*", None])
def test_dimensions_without_a_name_are_each_their_own(name):
    made = model([node("Relu", ["x"], ["y"])], {"x": [name, 3, name]})
    with pytest.raises(GraphError, match=r"sizes must be given: x\[0\] \(of x\), x\[2\] \(of x\)"):
        import_model(made, {}, {})
    assert import_model(made, {"x[0]": 2, "x[2]": 5}, {}).values["y"].shape == (2, 3, 5)
    assert list(symbolic_dimensions(made.graph)) == ["x[0]", "x[2]"]
    if name:  # all that are written so
        assert import_model(made, {name: 4}, {}).values["y"].shape == (4, 3, 4)
        assert import_model(made, {name: 4, "x[2]": 5}, {}).values["y"].shape == (4, 3, 5)


def test_all_that_is_not_supported_is_named_at_once():
    nodes = [
        node("Unique", ["x"], ["a"], name="first"),
        node("Relu", ["a"], ["b"]),
        node("Other", ["b"], ["c"], domain="my.own"),
        node("Unique", ["c"], ["d"]),
        node("Own", ["d"], ["y"], domain="my.own"),
    ]
    message = r"not supported: Unique \(2, first first\), my.own.Other \(1, first c\), my.own.Own \(1, first y\)"
    with pytest.raises(GraphError, match=message):
        graph_of(nodes, {"x": [2]}, domains=["my.own"])


@pytest.mark.parametrize("opset", [6, 99])
def test_opsets(opset):
    with pytest.raises(GraphError, match=f"the model is of opset {opset}; supported are 7 to "):
        import_model(small(opset=opset), {}, {})


@pytest.mark.parametrize("kind", [TensorProto.STRING, TensorProto.COMPLEX128, TensorProto.COMPLEX64])
def test_types(kind):
    made = model([RELU], {"x": [2]})
    made.graph.input[0].type.tensor_type.elem_type = kind
    with pytest.raises(GraphError, match=f"the input x is of type {TensorProto.DataType.Name(kind)}, which"):
        import_model(made, {}, {})


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.95])
def test_truncated_files(tmp_path, share):
    data = small().SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(GraphError):
        load_onnx(path)


def test_files_that_are_none(tmp_path):
    with pytest.raises(GraphError, match="cannot be read: No such file"):
        load_onnx(tmp_path / "gone.onnx")
    (tmp_path / "text.onnx").write_text("no model\n")
    with pytest.raises(GraphError, match="is not an ONNX model, or is truncated"):
        load_onnx(tmp_path / "text.onnx")


def test_initializers_that_do_not_fit():
    made = small()
    made.graph.initializer[0].raw_data = b"1234"
    with pytest.raises(GraphError, match=r"the tensor bias has data that do not fit its shape \[3\]"):
        import_model(made, {}, {})


def test_constants_that_no_memory_holds_are_not_computed():
    bounds = {"first": np.asarray(0), "end": np.asarray(1 << 40), "step": np.asarray(1)}
    with pytest.raises(GraphError, match="Range y: its 1099511627776 elements are more than 134217728, the most"):
        graph_of([node("Range", list(bounds), ["y"])], {"x": [2]}, constants=bounds)
    tiled = graph_of([node("Tile", ["c", "n"], ["y"])], {"x": [2]}, constants={"c": BIAS, "n": [1 << 36]})
    assert [n.operator for n in tiled.nodes] == ["tile"]

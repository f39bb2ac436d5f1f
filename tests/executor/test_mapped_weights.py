"""Networks whose weights stay in their ONNX file: the same results as of weights in memory, and no second copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import autosched as at
from autosched.graph.graph import Array
from autosched.graph.interpret import interpret
from autosched.graph.mapped_arrays import mapped_range
from autosched.graph.onnx import load_onnx
from autosched.graph.onnx.files import MIN_MAPPED_BYTES, initializers, read_model
from autosched.graph.onnx.importer import import_model
from autosched.graph.onnx.tensor_ranges import without_elements
from tests.graph.onnx.models import model, node
from tests.helpers import resident_bytes
from tests.measure.gpu_kernels import opencl_target

RNG = np.random.default_rng(3)


def weights(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype("float32")


def saved(path: Path, network: onnx.ModelProto, shift: int = 0) -> Path:
    """Save a network so that its weights begin at another offset for each `shift`."""
    network.producer_name = "p" * shift
    path.write_bytes(network.SerializeToString())
    return path


def table_and_products() -> onnx.ModelProto:
    """Rows of a table, which is read as it is, by a product, whose weights are packed."""
    nodes = [
        node("Cast", ["i"], ["ids"], to=TensorProto.INT64),
        node("Gather", ["table", "ids"], ["rows"]),
        node("MatMul", ["rows", "w"], ["p"]),
        node("Add", ["p", "bias"], ["y"]),
    ]
    constants = {"table": weights(301, 67), "w": weights(67, 515), "bias": weights(515)}
    return model(nodes, {"i": (6,)}, constants=constants)


@pytest.mark.parametrize("shift", range(1, 5))
@pytest.mark.parametrize("target", ["cpu", "opencl"])
def test_weights_at_any_offset(tmp_path: Path, shift: int, target: str) -> None:
    if target == "opencl":
        opencl_target()
    path = saved(tmp_path / "net.onnx", table_and_products(), shift)
    network = at.load(path, target=target, records=False, specialise="now")
    indices = np.float32([3, 0, 300, 7, 7, 1])
    (expected,) = interpret(import_model(onnx.load(path), {}, {}), {"i": indices}).values()
    np.testing.assert_allclose(network(indices), expected, rtol=1e-5, atol=1e-4)


def test_a_loaded_network_has_one_copy_of_its_weights(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.onnx", table_and_products())
    network = at.load(path, threads=1, records=False, specialise="now")
    network(np.float32([3, 0, 300, 7, 7, 1]))
    assert resident_bytes(path) == 0
    graph = network.program.graph
    large = [array for array in graph.constants.values() if array.nbytes >= 67 * 301 * 4]
    assert len(large) == 2
    assert all(mapped_range(array) is not None for array in large)


ELEMENTS = (
    *("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E8M0"),
    *("INT64", "UINT32", "INT16", "UINT8", "BOOL", "INT4", "UINT4", "INT2", "FLOAT4E2M1"),
)


def raw(name: str, kind: str, n: int) -> TensorProto:
    """A tensor of `n` elements of a type as bytes, none of them NaN."""
    number = TensorProto.DataType.Value(kind)
    dtype = helper.tensor_dtype_to_np_dtype(number)
    return numpy_helper.from_array(np.arange(n).astype("int8").astype(bool if kind == "BOOL" else dtype), name)


def with_tensors(*tensors: TensorProto) -> onnx.ModelProto:
    made = model([node("Relu", ["x"], ["y"])], {"x": (2, 3)})
    made.graph.initializer.extend(tensors)
    return made


def same_constants(path: Path, network: onnx.ModelProto) -> dict[str, Array]:
    """Return the constants of a file, which are those of the same model in memory."""
    small, elements = read_model(path)
    mapped, expected = initializers(small.graph, None, elements), initializers(network.graph, None)
    assert mapped.keys() == expected.keys()
    for name, array in mapped.items():
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
        assert array.tobytes() == expected[name].tobytes()
    return mapped


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("n", [1, 8 * MIN_MAPPED_BYTES + 3])
def test_elements_of_all_types(tmp_path: Path, kind: str, n: int) -> None:
    network = with_tensors(raw("small", kind, 1), raw("t", kind, n), raw("after", kind, n))
    constants = same_constants(saved(tmp_path / "net.onnx", network, 1), network)
    assert list(constants) == ["small", "t", "after"]


def test_elements_that_are_no_bytes_stay_in_the_model(tmp_path: Path) -> None:
    n = MIN_MAPPED_BYTES
    numbers = helper.make_tensor("numbers", TensorProto.FLOAT, [n], np.arange(n))
    network = with_tensors(numbers, raw("mapped", "FLOAT", n), raw("empty", "FLOAT", 0))
    constants = same_constants(saved(tmp_path / "net.onnx", network), network)
    assert [mapped_range(constants[name]) is None for name in ("numbers", "mapped")] == [True, False]


def test_messages_in_parts_are_one_model(tmp_path: Path) -> None:
    """Protocol buffers join messages that follow each other: graphs of two parts, and tensors with bytes twice."""
    n = MIN_MAPPED_BYTES
    one, other, twice = (raw(name, "FLOAT", n) for name in ("one", "other", "twice"))
    twice_bytes = twice.SerializeToString() + TensorProto(raw_data=bytes(4 * n)).SerializeToString()
    first = with_tensors(one).SerializeToString()
    graph = onnx.GraphProto(initializer=[other]).SerializeToString() + b"\x2a" + varint(len(twice_bytes)) + twice_bytes
    content = first + b"\x3a" + varint(len(graph)) + graph
    small, ranges = without_elements(content, n)
    assert sorted(ranges) == [0, 1]
    assert len(small) < len(content) - 2 * 4 * n
    (tmp_path / "net.onnx").write_bytes(content)
    constants = same_constants(tmp_path / "net.onnx", onnx.load_model_from_string(content))
    assert not constants["twice"].any()
    np.testing.assert_array_equal(constants["other"], np.arange(n).astype("int8"))


def varint(value: int) -> bytes:
    parts = [value >> shift & 127 for shift in (0, 7, 14, 21)]
    return bytes([*(part | 128 for part in parts[:-1]), parts[-1]])


def test_data_that_do_not_fit_their_shape(tmp_path: Path) -> None:
    tensor = raw("t", "FLOAT", MIN_MAPPED_BYTES)
    tensor.dims[0] += 1
    path = saved(tmp_path / "net.onnx", with_tensors(tensor))
    with pytest.raises(at.errors.GraphError, match=r"the tensor t has data that do not fit its shape \[1025\]: 4096"):
        load_onnx(path)

"""Types of ONNX that one of ours holds: what makes, moves and reads their numbers, against ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, defs, helper, numpy_helper

from autosched.errors import GraphError
from autosched.executor.compile_graph import compile_graph
from autosched.graph.interpret import interpret
from autosched.graph.onnx.held_types import HELD_IN, held
from autosched.graph.onnx.importer import import_model
from tests.graph.onnx.models import node

TYPES = {name: helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, name))) for name in HELD_IN}
INTEGERS, FLOATS = ("int2", "uint2", "int4", "uint4"), ("float4_e2m1fn", "float8_e4m3fnuz", "float8_e5m2fnuz")


def results(nodes, given, outputs=("y",), constants=None):
    """By the reference, which kernels must agree with. `given`: inputs of any type."""
    ins = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()
    ]
    tables = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "test", ins, [helper.make_empty_tensor_value_info(n) for n in outputs], tables)
    graph = import_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", defs.onnx_opset_version())]), {}, {}
    )
    arrays = {name: held(a) for name, a in given.items()}
    expected = interpret(graph, arrays)
    made = compile_graph(graph, threads=1)(*(arrays[name] for name in graph.inputs))
    for name, array in zip(graph.outputs, made if isinstance(made, tuple) else (made,), strict=True):
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array.astype(float), expected[name].astype(float), err_msg=name)
    return [expected[name] for name in outputs]


def of_type(array, name):
    return array.astype(getattr(ml_dtypes, name))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("source", ["int8", "uint16", "int64", "float32"])
def test_integers_lose_their_upper_bits(name, source):
    x = np.array([0, 1, 2, 3, 7, 8, 15, 16, 17, 100, 127], source)
    x = x if np.dtype(source).kind == "u" else np.concatenate([x, -x, np.array([-128], source)])
    (y,) = results([node("Cast", ["x"], ["y"], to=TYPES[name])], {"x": x})
    assert y.dtype == HELD_IN[name]
    bits = ml_dtypes.iinfo(getattr(ml_dtypes, name)).bits
    whole = x.astype("int64") % (1 << bits)
    signed = np.where(whole >= 1 << (bits - 1), whole - (1 << bits), whole) if name.startswith("int") else whole
    np.testing.assert_array_equal(y, signed)


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_rounded_to_the_nearest_number(name):
    """All halves between two numbers go to the even one; what is beyond the largest is that."""
    info = ml_dtypes.finfo(getattr(ml_dtypes, name))
    numbers = np.arange(1 << info.bits).astype("uint8").view(getattr(ml_dtypes, name)).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    between = (numbers[1:] + numbers[:-1]) / 2
    near = [np.nextafter(between, np.float32(end)) for end in (-np.inf, np.inf)]
    x = np.concatenate([numbers, between, *near, np.float32([1e-30, -1e-30, 1e30, -1e30, np.inf, -np.inf])])
    (y,) = results([node("Cast", ["x"], ["y"], to=TYPES[name])], {"x": x})
    wanted = of_type(np.clip(x, float(info.min), float(info.max)), name)
    np.testing.assert_array_equal(y.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("name", [n for n in FLOATS if n.endswith("fnuz")])
def test_without_saturation_what_is_too_large_is_no_number(name):
    largest = float(ml_dtypes.finfo(getattr(ml_dtypes, name)).max)
    x = np.float32([largest, -largest, largest * 1.5, 1e30, np.inf, -np.inf, np.nan, 0])
    (y,) = results([node("Cast", ["x"], ["y"], to=TYPES[name], saturate=0)], {"x": x})
    np.testing.assert_array_equal(y.astype(np.float32), of_type(x, name).astype(np.float32))


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_powers_of_two(mode, saturate):
    """The least power is 2^-127; ONNX's reference rounds subnormal numbers, the first ones, by rules of its own."""
    small = np.float32([1e-45, 2.0**-127, 1.25 * 2.0**-127, 1.5 * 2.0**-127])
    x = np.float32([*small, 0, 1.5 * 2.0**-126, 0.75, 1, 1.25, 1.5, 1.75, 2.0**127, 3e38, np.inf, np.nan])
    cast = node("Cast", ["x"], ["y"], to=TYPES["float8_e8m0fnu"], round_mode=mode, saturate=saturate)
    (y,) = results([cast], {"x": x})
    wanted = numpy_helper.to_float8e8m0(x, bool(saturate), mode).astype(np.float32)
    above = {"up": [0, 0, 1, 1], "nearest": [0, 0, 0, 1], "down": [0, 0, 0, 0]}
    wanted[: len(small)] = 2.0**-127 * 2.0 ** np.array(above[mode])
    np.testing.assert_array_equal(y.astype(np.float32), wanted)


@pytest.mark.parametrize("name", INTEGERS)
def test_the_type_follows_numbers_that_are_moved(name):
    """A zero that comes as an input, is turned and reshaped says the type of what is quantised."""
    x = np.float32([[-100, -3, -2, -1.5, -0.5, 0], [0.5, 1, 1.5, 2.5, 3, 100]])
    zero = of_type(np.ones((1, 2)), name)
    moved = [node("Transpose", ["z"], ["t"]), node("Reshape", ["t", "shape"], ["zero"])]
    quantised = [node("QuantizeLinear", ["x", "scale", "zero"], ["q"], axis=0), node("CastLike", ["x", "zero"], ["c"])]
    constants = {"shape": np.array([2]), "scale": np.float32([1, 0.5])}
    for given, known in (({"x": x, "z": zero}, {}), ({"x": x}, {"z": zero})):  # also folded at import
        q, c = results([*moved, *quantised], given, ("q", "c"), {**constants, **known})
        info = ml_dtypes.iinfo(getattr(ml_dtypes, name))
        wanted = np.clip(np.rint(x / np.float32([[1], [0.5]])) + 1, int(info.min), int(info.max))
        np.testing.assert_array_equal(q, wanted.astype(HELD_IN[name]))
        np.testing.assert_array_equal(c.astype(int), of_type(x, name).astype(int))


def test_blocks_with_scales_that_are_powers_of_two():
    """As in the formats of MX: numbers of 4 bits, and a power of two for each block."""
    rng = np.random.default_rng(0)
    q = of_type(rng.choice([-6, -3, -0.5, 0, 1, 1.5, 4], (3, 8)), "float4_e2m1fn")
    scale = of_type(2.0 ** rng.integers(-5, 5, (3, 2)), "float8_e8m0fnu")
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["y"], axis=1, block_size=4, output_dtype=TensorProto.FLOAT),
        node("Cast", ["s"], ["scale"], to=TensorProto.FLOAT),
        node("QuantizeLinear", ["y", "scale"], ["back"], axis=1, block_size=4, output_dtype=TYPES["float4_e2m1fn"]),
    ]
    y, back = results(nodes, {"q": q, "s": scale}, ("y", "back"))
    np.testing.assert_array_equal(y, q.astype(np.float32) * np.repeat(scale.astype(np.float32), 4, axis=1))
    np.testing.assert_array_equal(back.astype(np.float32), q.astype(np.float32))


def test_only_floats_are_dequantised_to():
    one = node("DequantizeLinear", ["q", "s"], ["y"], output_dtype=TensorProto.INT8)
    with pytest.raises(GraphError, match="numbers are dequantised to floats, but output_dtype is INT8"):
        results([one], {"q": np.ones(3, np.int8), "s": np.float32([1])})


def test_bits_of_such_numbers_are_not_seen():
    cast = node("BitCast", ["x"], ["y"], to=TensorProto.UINT8)
    with pytest.raises(GraphError, match="BitCast y: a bitcast of int4 to UINT8 is not supported"):
        results([cast], {"x": of_type(np.ones(3), "int4")})

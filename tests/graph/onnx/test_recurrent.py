"""Sequences of different lengths: recurrent networks against the same ones for each sequence alone, cut to its length,
and against ONNX Runtime; sequences turned around."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from autosched.errors import GraphError  # noqa: E402
from autosched.executor.compile_graph import compile_graph  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.onnx.importer import import_model  # noqa: E402

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
STEPS, BATCH, WIDTH, HIDDEN = 3, 3, 2, 4
LENGTHS = np.array([2, 3, 1], np.int32)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FIXED = ("w", "r", "b", "p", "ws", "wz", "rs", "rz")


def normal(*shape: int) -> Array:
    return (RNG.normal(size=shape) * 0.5).astype(np.float32)


def given_to(kind: str, direction: str) -> dict[str, Array | None]:
    """Inputs in the order of the operator; lengths are left out."""
    n, gates = 2 if direction == "bidirectional" else 1, GATES[kind]
    given = {
        "x": normal(STEPS, BATCH, WIDTH),
        "w": normal(n, gates * HIDDEN, WIDTH),
        "r": normal(n, gates * HIDDEN, HIDDEN),
        "b": normal(n, 2 * gates * HIDDEN),
        "l": None,
        "h": normal(n, BATCH, HIDDEN),
    }
    return given | ({"c": normal(n, BATCH, HIDDEN), "p": normal(n, 3 * HIDDEN)} if kind == "LSTM" else {})


def model_of(operator: str, given: Mapping[str, Array | None], fixed: tuple[str, ...], **more: Any) -> onnx.ModelProto:
    """All results are outputs of the model; inputs in `fixed` are constants of it."""
    outputs = ["y", "y_h", "y_c"] if "LSTM" in operator else ["y"] if operator == "ReverseSequence" else ["y", "y_h"]
    names = [name if array is not None else "" for name, array in given.items()]
    arrays = {name: array for name, array in given.items() if array is not None}
    node = onnx.helper.make_node(operator, names, outputs, **more)
    graph = onnx.helper.make_graph(
        [node],
        "test",
        [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in arrays.items()
            if n not in fixed
        ],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in fixed],
    )
    opsets = [onnx.helper.make_opsetid("", 14), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)


def results_of(operator: str, given: Mapping[str, Array | None], fixed: tuple[str, ...] = FIXED, **more: Any) -> Any:
    graph = import_model(model_of(operator, given, fixed, **more), {}, {})
    return list(interpret(graph, {name: given[name] for name in graph.inputs}).values())


def one_by_one(kind: str, given: Mapping[str, Array | None], lengths: Array, direction: str) -> list[Array]:
    """Each sequence as a batch of one, cut to its length, with zeros behind its end."""
    found: list[list[Array]] = []
    for n, length in enumerate(lengths):
        own = {name: a[:, n : n + 1] if a is not None and name in "xhc" else a for name, a in given.items()}
        own["x"] = own["x"][:length]
        every, *ends = results_of(kind, own, hidden_size=HIDDEN, direction=direction)
        found.append([np.pad(every, ((0, STEPS - length), (0, 0), (0, 0), (0, 0))), *ends])
    return [np.concatenate(parts, axis=-2) for parts in zip(*found, strict=True)]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_each_sequence_ends_at_its_length(kind, direction):
    given = given_to(kind, direction)
    expected = one_by_one(kind, given, LENGTHS, direction)
    for fixed in (FIXED, (*FIXED, "l")):
        made = results_of(kind, given | {"l": LENGTHS}, fixed, hidden_size=HIDDEN, direction=direction)
        for got, want in zip(made, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_an_empty_sequence_ends_in_zeros(kind):
    given = given_to(kind, "forward") | {"l": np.array([0, 3, 2], np.int32)}
    for fixed in (FIXED, (*FIXED, "l")):
        for result in results_of(kind, given, fixed, hidden_size=HIDDEN):
            assert (result[..., 0, :] == 0).all()
            assert (result[..., 1:, :] != 0).any()


def test_lengths_beyond_the_steps_are_refused():
    given = given_to("GRU", "forward") | {"l": np.array([3, 4, 1], np.int32)}
    with pytest.raises(GraphError, match=r"the lengths \[3, 4, 1\] of sequences are not all within 0 to 3"):
        results_of("GRU", given, (*FIXED, "l"), hidden_size=HIDDEN)


@pytest.mark.parametrize(("kind", "n"), [("GRU", 0), ("LSTM", 2)])
def test_kernels_of_lengths_at_run_time(kind, n):
    given = given_to(kind, "reverse") | {"l": LENGTHS}
    model = model_of(kind, given, FIXED, hidden_size=HIDDEN, direction="reverse")
    kept = model.graph.output[n]
    del model.graph.output[:]
    model.graph.output.append(kept)
    graph = import_model(model, {}, {})
    made = compile_graph(graph, threads=1)(*(given[name] for name in graph.inputs))
    expected = one_by_one(kind, given | {"l": None}, LENGTHS, "reverse")[n]
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


def in_bytes(weights: Array, dtype: str) -> tuple[Array, Array, Array]:
    """Weights turned, in bytes with one scale and zero for each direction. Those with a sign have 7 bits: ONNX Runtime's
    sums of others saturate on some processors."""
    zero = 128 if dtype == "uint8" else 0
    scale = np.abs(weights).max(axis=(1, 2)) / (127 if zero else 63)
    quantised = np.rint(weights / scale[:, None, None]).transpose(0, 2, 1) + zero
    return quantised.astype(dtype), scale.astype(np.float32), np.full(len(weights), zero, dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_weights_of_bytes(direction, dtype):
    """As near to the network of floats as steps of bytes are; and as in ONNX Runtime."""
    floats = given_to("LSTM", direction) | {"l": LENGTHS}
    words = {"hidden_size": HIDDEN, "direction": direction}
    (w, ws, wz), (r, rs, rz) = in_bytes(floats["w"], dtype), in_bytes(floats["r"], dtype)
    given = floats | {"w": w, "r": r, "ws": ws, "wz": wz, "rs": rs, "rz": rz}
    made = results_of("DynamicQuantizeLSTM", given, domain="com.microsoft", **words)
    for got, want in zip(made, results_of("LSTM", floats, **words), strict=True):
        np.testing.assert_allclose(got, want, atol=0.05)
    runtime = pytest.importorskip("onnxruntime")
    model = model_of("DynamicQuantizeLSTM", given, FIXED, domain="com.microsoft", **words)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = session.run(None, {i.name: given[i.name] for i in session.get_inputs()})
    for got, want in zip(made, theirs, strict=True):
        np.testing.assert_allclose(got, want, atol=5e-3)  # where a number lies between two bytes


@pytest.mark.parametrize("fixed", [(), ("l",)])
@pytest.mark.parametrize(("batch", "time", "shape"), [(1, 0, (5, 4)), (0, 1, (4, 5, 2)), (0, 1, (1, 7))])
def test_the_start_of_a_sequence_is_turned_around(batch, time, shape, fixed):
    x, lengths = normal(*shape), np.resize(np.array([3, 1, 4, 2]), shape[batch])
    expected = x.copy()
    for n, length in enumerate(lengths):
        row = (slice(None), n) if batch == 1 else (n,)
        expected[row][:length] = x[row][:length][::-1]
    given = {"x": x, "l": lengths}
    (made,) = results_of("ReverseSequence", given, fixed, batch_axis=batch, time_axis=time)
    np.testing.assert_array_equal(made, expected)

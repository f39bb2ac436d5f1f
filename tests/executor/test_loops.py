"""Networks with loops: results, what does not depend on the number of iterations, and everything that is done with
networks."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import autosched
from autosched.errors import SizesWarning
from autosched.executor.compile_graph import compile_graph
from autosched.executor.model_cache.cached_model import CachedModel
from autosched.executor.specialise import with_own_schedules
from autosched.graph.graph import Array
from autosched.graph.interpret import interpret
from autosched.graph.onnx.importer import import_model
from autosched.graph.saved import load_saved
from autosched.network_tuning.end_to_end import times_in_network
from autosched.verification.sample_inputs import input_sets
from autosched.verification.verify import references, verify_outputs
from tests.graph.loops import inputs_of, looped, nested
from tests.graph.onnx.models import model, node

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, WIDTH, BATCH = 6, 5, 3


def recurrent(kind: str, steps: int, direction: str = "forward", **more: Any) -> onnx.ModelProto:
    """A network of one recurrent operator; `states`: whether the first ones are inputs."""
    rng, n, gates = np.random.default_rng(0), 2 if direction == "bidirectional" else 1, GATES[kind]

    def normal(*shape: int) -> Array:
        return (rng.normal(size=shape) / 2).astype("float32")

    constants = {"w": normal(n, gates * HIDDEN, WIDTH), "r": normal(n, gates * HIDDEN, HIDDEN)}
    constants["b"] = normal(n, 2 * gates * HIDDEN)
    inputs: dict[str, tuple[int, ...]] = {"x": (steps, BATCH, WIDTH)}
    names, outputs = ["x", "w", "r", "b"], ["y", "y_h", "y_c"] if kind == "LSTM" else ["y", "y_h"]
    if more.pop("states", False):
        firsts = ["h", "c"] if kind == "LSTM" else ["h"]
        names, inputs = [*names, "", *firsts], inputs | dict.fromkeys(firsts, (n, BATCH, HIDDEN))
    words = {"hidden_size": HIDDEN, "direction": direction, **more}
    return model([node(kind, names, outputs, **words)], inputs, outputs, constants, ir_version=9)


def given_to(proto: onnx.ModelProto) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_networks_are_those_of_onnx(kind: str, direction: str, states: bool) -> None:
    runtime = pytest.importorskip("onnxruntime")  # the reference evaluator knows no second direction of GRU and RNN
    for steps in (1, 2, 4, 5, 12):
        proto = recurrent(kind, steps, direction, states=states)
        given = given_to(proto)
        network = compile_graph(import_model(proto, {}, {}), threads=1)
        assert len(network.program.loops) == (steps > 4) * (1 + (direction == "bidirectional"))
        session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, given)
        for got, want in zip(network(**given), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        if (kind, direction) == ("LSTM", "forward"):
            for got, want in zip(network(**given), ReferenceEvaluator(proto).run(None, given), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_random_bodies(seed: int, threads: int) -> None:
    for steps in (5, 8):
        graph = looped(steps, random.Random(seed), width=17)
        network, given = compile_graph(graph, threads=threads), inputs_of(graph)
        assert len(network.program.loops) == 1
        results = network(**given)
        for got, want in zip(results, interpret(graph, given).values(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_plan_does_not_depend_on_the_number_of_iterations() -> None:
    plans = []
    for steps in (16, 512):
        program = compile_graph(import_model(recurrent("LSTM", steps, "bidirectional"), {}, {}), threads=1).program
        texts = [str(type(step)) for each in program.programs for step in each.steps]
        plans.append((len(program.graph.nodes), texts, len(program.all_tasks)))
    assert plans[0] == plans[1]


def test_a_loop_within_a_loop() -> None:
    graph = nested(looped(6, random.Random(1)), 5)
    network, given = compile_graph(graph, threads=1), inputs_of(graph)
    (outer,) = network.program.loops.values()
    assert len(outer.body.loops) == 1
    results = network(**given)
    for got, want in zip(results, interpret(graph, given).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_kernels_of_bodies_are_verified_and_explained() -> None:
    network = compile_graph(import_model(recurrent("LSTM", 9), {}, {}), threads=1)
    verification = network.verify()
    assert verification.passed, verification.summary()
    assert len(verification.kernels) == sum(len(program.kernels) for program in network.program.programs)
    layers = network.explain().layers
    assert sorted(layer.count for layer in layers)[-2:] == [9, 9]
    steps = [step for layer in layers for step in layer.steps]
    assert sorted(kernel.step for kernel in verification.kernels) == sorted(steps)
    assert len({*steps}) == len(steps)
    assert "9 iterations of the loop LSTM" in network.show("groups")
    assert "operands=[" in network.show()


def test_a_wrong_kernel_in_a_body_is_found() -> None:
    """With other weights in the body's block than in the graph."""
    network = compile_graph(import_model(recurrent("RNN", 9), {}, {}), threads=1)
    (loop,) = network.program.loops.values()
    network.block[loop.weights_at :].view("float32")[:] += 1  # type: ignore[attr-defined]
    verification = network.verify()
    assert not verification.passed
    assert verification.first_wrong is not None


def test_tuning_times_and_checks_kernels_of_bodies() -> None:
    network = compile_graph(import_model(recurrent("GRU", 9), {}, {}), threads=1)
    (normal, _) = input_sets(network.original)
    (times,) = times_in_network([network], normal.arrays)
    assert {*times} == {task.kernel_spec.workload for task in network.tasks}
    expected = references(network, normal.arrays)
    assert verify_outputs(network, normal, expected).passed
    (loop,) = network.program.loops.values()
    network.block[loop.weights_at :].view("float32")[:] += 1  # type: ignore[attr-defined]
    wrong = verify_outputs(network, normal, expected).first_wrong
    assert wrong is not None
    assert any(wrong.step in task.steps for task in loop.body.tasks)


def test_the_second_load_and_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    proto = recurrent("LSTM", 11, "bidirectional")
    onnx.save(proto, tmp_path / "net.onnx")
    options: dict[str, Any] = {"threads": 1, "records": False, "specialise": "now"}
    first, second = (autosched.load(tmp_path / "net.onnx", **options) for _ in range(2))
    assert isinstance(second, CachedModel)
    assert second.whole.linked is second.linked, "the same plan is not linked twice"  # type: ignore[attr-defined]
    first.save(tmp_path / "net.asc")
    assert load_saved(tmp_path / "net.asc")[1]["autosched"] == "2", "versions without loops refuse it"
    third, given = autosched.load(tmp_path / "net.asc", **options), given_to(proto)
    for other in (second, third):
        for got, want in zip(other(**given), first(**given), strict=True):
            np.testing.assert_array_equal(got, want)


def test_other_weights() -> None:
    proto = recurrent("GRU", 7)
    network, given = compile_graph(import_model(proto, {}, {}), threads=1), given_to(proto)
    constants = {name: 2 * array for name, array in network.original.constants.items() if array.ndim == 2}
    assert constants
    other = network.with_weights(constants)
    expected = interpret(other.original, given)
    for got, before, want in zip(other(**given), network(**given), expected.values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        assert not np.allclose(got, before, atol=1e-3)


def test_an_exported_library(tmp_path: Path) -> None:
    proto = recurrent("LSTM", 10)
    network, given = compile_graph(import_model(proto, {}, {}), threads=2), given_to(proto)
    network.export(tmp_path / "net.so")
    outputs = [np.zeros(spec.shape, spec.dtype) for spec in network.outputs]
    scratch = np.zeros(network.arena_bytes + 64, "uint8")
    addresses = [array.ctypes.data for array in (*given.values(), *outputs, network.block)]  # type: ignore[attr-defined]
    addresses.append(scratch.ctypes.data + -scratch.ctypes.data % 64)
    function = ctypes.CDLL(str(tmp_path / "net.so"))["autosched_net"]
    assert function(*map(ctypes.c_void_p, addresses)) == 0
    for got, want in zip(outputs, network(**given), strict=True):
        np.testing.assert_array_equal(got, want)


def test_own_schedules_take_the_place_of_transferred_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    proto = recurrent("LSTM", 12)
    onnx.save(proto, tmp_path / "net.onnx")
    network, given = autosched.load(tmp_path / "net.onnx", threads=1, records=False), given_to(proto)
    before = network(**given)
    if hasattr(network, "swap"):
        network = with_own_schedules(network)
    assert all(task.kernel.name == task.kernel_spec.name for task in network.tasks)
    for got, want in zip(network(**given), before, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_loops_of_sizes_that_are_known_at_a_call_are_unrolled(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Of one program for all batches but 1, which is no symbol."""
    proto = recurrent("GRU", 6)
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "batch"
    onnx.save(proto, tmp_path / "net.onnx")
    network, reference = autosched.load(tmp_path / "net.onnx", threads=1, records=False), ReferenceEvaluator(proto)
    for batch in (2, 5, 1, 3):
        x = np.random.default_rng(batch).normal(size=(6, batch, WIDTH)).astype("float32")
        for got, want in zip(network(x), reference.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert [warning for warning in recwarn if warning.category is SizesWarning] == []


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_sequences_of_different_lengths(kind: str, direction: str, is_fixed: bool) -> None:
    runtime = pytest.importorskip("onnxruntime")
    proto, lengths = recurrent(kind, 9, direction, states=True), np.array([9, 0, 4], np.int32)
    (one,) = proto.graph.node
    one.input[4] = "lengths"
    if is_fixed:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(lengths, "lengths"))
    given = given_to(proto)
    if not is_fixed:
        proto.graph.input.append(onnx.helper.make_tensor_value_info("lengths", onnx.TensorProto.INT32, [BATCH]))
        given["lengths"] = lengths
    network = compile_graph(import_model(proto, {}, {}), threads=1)
    assert network.program.loops
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(network(**given), session.run(None, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_products_of_bytes_in_a_loop() -> None:
    """DynamicQuantizeLSTM quantises the state in each iteration."""
    rng = np.random.default_rng(2)
    weights = {
        name: rng.integers(-60, 60, (1, size, 4 * HIDDEN)).astype("int8")
        for name, size in (("w", WIDTH), ("r", HIDDEN))
    }
    scales = {f"{name}s": np.full(1, 0.02, np.float32) for name in weights}
    zeros = {f"{name}z": np.zeros(1, np.int8) for name in weights}
    names = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    one = node("DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=HIDDEN)
    proto = model([one], {"x": (8, BATCH, WIDTH)}, ["y"], weights | scales | zeros, domains=["com.microsoft"])
    graph, given = import_model(proto, {}, {}), given_to(proto)
    network = compile_graph(graph, threads=1)
    assert network.program.loops
    np.testing.assert_allclose(network(**given), interpret(graph, given)["y"], atol=5e-3)

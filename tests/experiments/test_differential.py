"""The differential test of models: what it must find is planted, and what is rounding is told from it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from autosched.errors import GraphError  # noqa: E402
from autosched.runtime.spec import ArraySpec  # noqa: E402
from experiments.differential.children import run_in_children  # noqa: E402
from experiments.differential.judge import Judge, differences, value_types  # noqa: E402
from experiments.differential.peer import Peer, node_by_node  # noqa: E402
from experiments.differential.trial import GUARD_BYTES, guarded, inputs_of, is_intact, try_model  # noqa: E402
from experiments.nnsmith.mutate import mutated  # noqa: E402

SHAPE = (2, 3)


def model_of(*nodes: Any, outputs: tuple[tuple[str, int], ...] = (("y", TensorProto.FLOAT),)) -> Any:
    """A model of the input x of float32[2, 3]."""
    infos = [helper.make_tensor_value_info(name, dtype, SHAPE) for name, dtype in outputs]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)], infos)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class FakeNetwork:
    """A network of one output that computes `function`, then does `damage` to its input and output arrays."""

    def __init__(self, function, damage=lambda x, y: None):
        self.function, self.damage = function, damage
        self.outputs = (ArraySpec("y", SHAPE, "float32"),)

    def __call__(self, x, out=None):
        y = np.empty(SHAPE, "float32") if out is None else out
        y[...] = self.function(x)
        self.damage(x, y)
        return y


def tried(network: Any) -> dict[str, Any]:
    model = model_of(helper.make_node("Relu", ["x"], ["y"]))
    draw = lambda rng: {"x": rng.standard_normal(SHAPE).astype("float32")}  # noqa: E731
    return dict(try_model(model, lambda: network, draw, 4, 0, lambda phase: None))


def beyond(x: Any, y: Any) -> None:
    """Write the element behind `y`, where its base has bytes that are not its own."""
    if y.base is not None:
        longer = np.lib.stride_tricks.as_strided(y.reshape(-1), (y.size + 1,), (4,))
        longer[-1] = 1.0


@pytest.mark.parametrize(
    ("network", "verdict", "words"),
    [
        (FakeNetwork(lambda x: np.maximum(x, 0)), "right", ""),
        (FakeNetwork(lambda x: np.maximum(x, 0.5)), "wrong", "instead of"),
        (FakeNetwork(lambda x: np.maximum(x, 0), beyond), "wrong", "bytes beside the array of the output y"),
        (FakeNetwork(lambda x: np.maximum(x, 0), lambda x, y: x.fill(0)), "wrong", "the input x is overwritten"),
    ],
)
def test_planted_faults_are_found(network, verdict, words):
    facts = tried(network)
    assert facts["verdict"] == verdict
    assert words in facts["reason"]


def kind_of(model: Any, feed: dict[str, Any], *got: Any) -> str:
    return Judge(model).kind(feed, got, Peer(model)(feed), 0)


def test_rounding_before_a_step_is_no_fault_and_a_step_is_one():
    model = model_of(helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Floor", ["e"], ["y"]))
    near = np.full(SHAPE, np.log(np.float32(3)), "float32")
    want = Peer(model)({"x": near})[0]
    assert kind_of(model, {"x": near}, np.where(want == 3, 2, 3).astype("float32")) == "rounding"
    assert kind_of(model, {"x": near + np.float32(0.1)}, want + 1) == "wrong"


def test_indices_may_differ_as_often_as_noise_changes_them():
    nodes = (helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("ArgMin", ["s"], ["y"], axis=0, keepdims=0))
    info = helper.make_tensor_value_info("y", TensorProto.INT64, (64,))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (9, 64))
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [info]), opset_imports=opsets, ir_version=8)
    equal, apart = np.zeros((9, 64), "float32"), np.zeros((9, 64), "float32") + np.arange(9, dtype="float32")[:, None]
    assert kind_of(model, {"x": equal}, np.full(64, 8)) == "rounding"
    assert kind_of(model, {"x": apart}, np.full(64, 8)) == "wrong"
    assert kind_of(model, {"x": apart}, np.arange(64) // 63) == "wrong"


def test_the_sign_of_a_zero_may_decide():
    one = helper.make_node("Constant", [], ["one"], value_float=1.0)
    zero = helper.make_node("Constant", [], ["zero"], value_float=0.0)
    model = model_of(
        one, zero, helper.make_node("Mul", ["x", "zero"], ["z"]), helper.make_node("Div", ["one", "z"], ["y"])
    )
    feed = {"x": np.ones(SHAPE, "float32")}
    assert kind_of(model, feed, np.full(SHAPE, -np.inf, "float32")) == "rounding"
    assert kind_of(model, feed, np.zeros(SHAPE, "float32")) == "wrong"


def test_conversions_of_what_no_integer_holds_are_undefined():
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT8)
    model = model_of(cast, outputs=(("y", TensorProto.INT8),))
    assert kind_of(model, {"x": np.full(SHAPE, 1e6, "float32")}, np.full(SHAPE, 7, "int8")) == "undefined"
    assert kind_of(model, {"x": np.full(SHAPE, 6, "float32")}, np.full(SHAPE, 7, "int8")) == "wrong"


def test_not_a_number_and_infinities_are_equal_to_themselves_only():
    a = np.array([np.nan, np.inf, -np.inf, 0.0], "float32")
    assert differences(["y"], [a], [a]) == []
    for n in range(len(a)):
        b = a.copy()
        b[n] = 1.0
        assert differences(["y"], [b], [a])[0].elements.tolist() == [k == n for k in range(len(a))]
    assert "float64[4] instead of float32[4]" in differences(["y"], [a.astype("float64")], [a])[0].said


@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_guard_bytes_show_a_write(shape):
    array, block = guarded(shape, "float32")
    array.fill(2.0)
    assert is_intact(array, block)
    assert array.ctypes.data % 64 == 0 or not array.size
    for place in (GUARD_BYTES - 1, len(block) - GUARD_BYTES):
        before = block[place]
        block[place] ^= 1
        assert not is_intact(array, block)
        block[place] = before


def act(task: str, report: Any) -> dict[str, Any]:
    report(f"does {task}")
    if task == "dies":
        os.write(2, b"the last words\n")
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "sleeps":
        time.sleep(60)
    if task == "refuses":
        raise GraphError("no such operator")
    if task == "raises":
        raise KeyError("x")
    return {"verdict": "right", "process": os.getpid()}


def test_children_end_as_their_tasks_do():
    tasks = ["passes", "passes", "dies", "refuses", "raises", "sleeps", "passes"]
    results = list(run_in_children(tasks, act, limit_s=2.0))
    assert sorted(task for task, _ in results) == sorted(tasks)
    by_task = dict(results)
    assert by_task["refuses"] == {"verdict": "refused", "reason": "GraphError: no such operator"}
    assert by_task["raises"]["verdict"] == "crashed"
    assert "KeyError" in by_task["raises"]["reason"]
    assert by_task["dies"]["verdict"] == "crashed"
    assert by_task["dies"]["phase"] == "does dies"
    assert "SIGKILL the last words" in by_task["dies"]["reason"]
    assert by_task["sleeps"]["verdict"] == "hung"
    assert by_task["sleeps"]["phase"] == "does sleeps"
    processes = [facts["process"] for task, facts in results if task == "passes"]
    assert processes[0] == processes[1] != processes[2]


def test_children_end_with_their_parent():
    """A process that has served its task waits for the next one when its parent is killed."""
    reader, writer = os.pipe()
    if (parent := os.fork()) == 0:
        for _, facts in run_in_children(["passes"] * 2, act, limit_s=20.0):
            os.write(writer, f"{facts['process']}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    child = int(os.read(reader, 100))
    for end in (reader, writer):
        os.close(end)
    deadline = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child)


def is_alive(process: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_mutations_are_models_with_more_outputs():
    base = model_of(
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Concat", ["x", "s"], ["c"], axis=0),
        helper.make_node("Abs", ["x"], ["y"]),
    )
    operators, n_more = set[str](), 0
    for seed in range(40):
        model = mutated(base, seed)
        onnx.checker.check_model(model, full_check=True)
        feed = {name: np.ones(shape, dtype) for name, (shape, dtype) in inputs_of(model).items()}
        peer = Peer(model)
        types = value_types(model)
        for info, result in zip(model.graph.output, peer(feed), strict=True):
            assert result.shape == tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
            assert result.dtype.name == types[info.name]
        n_more += len(model.graph.output) > 1
        operators |= {node.op_type for node in model.graph.node[3:]}
        assert mutated(base, seed).SerializeToString() == model.SerializeToString()
    assert operators == {"Transpose", "Reshape", "Concat", "Identity"}
    assert n_more > 30


def test_a_fuzzer_that_is_missing_is_a_sentence(monkeypatch, capsys):
    from experiments.nnsmith import __main__ as script

    monkeypatch.setattr(script, "generator", lambda: (_ for _ in ()).throw(GraphError("pip install nnsmith")))
    with pytest.raises(SystemExit) as ended:
        script.main([])
    assert ended.value.code == 2
    assert "pip install nnsmith" in capsys.readouterr().err


def test_random_models_are_counted_by_their_verdicts(monkeypatch, capsys, tmp_path):
    from experiments.nnsmith import __main__ as script

    def generate(seed: int, n_nodes: int) -> Any:
        if seed == 2:
            raise RuntimeError("no model of this seed")
        return model_of(helper.make_node("Sinh" if seed == 0 else "Sigmoid", ["x"], ["y"]))

    monkeypatch.setattr(script, "generator", lambda: generate)
    words = ["--models", "3", "--calls", "2", "--out", str(tmp_path / "out.json"), "--keep", str(tmp_path / "kept")]
    assert script.main(words) == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("3 models", "2 right"))
    assert "1 no model" in printed
    assert "RuntimeError: no model of this seed" in printed
    assert list((tmp_path / "kept").iterdir()) == []


def test_what_dies_before_the_load_is_not_ours():
    from experiments.nnsmith.__main__ import verdict_of

    assert verdict_of({"verdict": "crashed", "phase": "peer"}) == "no model"
    assert verdict_of({"verdict": "crashed", "phase": "call 7"}) == "crashed"
    assert verdict_of({"verdict": "refused"}) == "refused"


def test_the_peer_of_single_nodes_rounds_each_value() -> None:
    """1000 squared is no float16, so the result is infinite; in float32 it is 1000."""
    nodes = [helper.make_node("Mul", ["x", "x"], ["s"]), helper.make_node("Div", ["s", "x"], ["y"])]
    half = TensorProto.FLOAT16
    infos = [helper.make_tensor_value_info(name, half, SHAPE) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (y,) = node_by_node(model)(None, {"x": np.full(SHAPE, 1000, "float16")})
    assert y.dtype == np.float16
    assert np.isinf(y).all()
    assert (
        Judge(model).kind({"x": np.full(SHAPE, 1000, "float16")}, [y], [np.full(SHAPE, 1000, "float16")], 0) != "wrong"
    )

"""Inputs that are fixed on the command line, and what a network says that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

from autosched.cli import options  # noqa: E402
from autosched.cli.network import bench  # noqa: E402
from tests.graph.onnx.models import model, node  # noqa: E402


@pytest.fixture
def by_rate(tmp_path: Path) -> Path:
    """y = x * 2 for a rate of 16000, else -x; x has a dimension without a name."""
    outs = [helper.make_empty_tensor_value_info("b")]
    then = helper.make_graph([node("Add", ["x", "x"], ["b"])], "twice", [], outs)
    other = helper.make_graph([node("Neg", ["x"], ["b"])], "less", [], outs)
    nodes = [node("Equal", ["sr", "high"], ["c"]), node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    made = model(nodes, {"x": ["?", 3]}, constants={"high": 16000})
    made.graph.input.append(helper.make_tensor_value_info("sr", TensorProto.INT64, []))
    made.ir_version = 10  # what onnxruntime reads
    onnx.save(made, tmp_path / "rate.onnx")
    np.savez(tmp_path / "in.npz", x=np.float32([[1, 2, 3]]))
    return tmp_path / "rate.onnx"


def test_a_value_decides_a_branch(cli: Any, by_rate, tmp_path):
    np.save(tmp_path / "rate.npy", np.int64(8000))
    for value, wanted in (("16000", [[2, 4, 6]]), ("8000", [[-1, -2, -3]]), (tmp_path / "rate.npy", [[-1, -2, -3]])):
        words = ("--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz", "--fix", f"sr={value}", "--json")
        answer = cli("run", by_rate, *words)
        assert (answer.code, answer.err) == (0, "")
        assert [i["name"] for i in answer.json["inputs"]] == ["x"]
        with np.load(tmp_path / "out.npz") as file:
            np.testing.assert_array_equal(file["y"], wanted)


def test_every_verb_of_networks_takes_fixed_inputs(cli: Any, by_rate, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "ROUNDS", 2)
    monkeypatch.setattr(bench, "BLOCK_S", 0.001)
    monkeypatch.setattr("autosched.executor.profile.BUDGET_S", 0.01)
    common = ("--fix", "sr=16000", "--size", "x[0]=2")
    out, db = tmp_path / "rate.asc", tmp_path / "records.db"
    for words in (
        ("show", by_rate),
        ("verify", by_rate, "--threads", "1"),
        ("explain", by_rate, "--threads", "1"),
        ("export", by_rate, "--kind", "archive", "--out", out),
        ("tune", by_rate, "--no-run"),
        ("tune", by_rate, "--trials", "1", "--threads", "1", "--db", db),
        ("bench", by_rate, "--peers", "onnxruntime,openvino", "--threads", "1"),
    ):
        answer = cli(*words, *common, "--json")
        assert answer.code == 0, answer.err
        if words[0] == "bench":
            (row,) = answer.json["cases"]
            gone = {name for name, why in row["missing"].items() if "is not installed" in why}
            assert {*row["peers"], *gone} == {"onnxruntime", "openvino"}, row["missing"]
            assert row["batch"] == 2
    assert cli("show", out).out.startswith("test(x: float32[2, 3]):")
    pytest.importorskip("onnxruntime")
    assert cli("verify", by_rate, *common, "--onnxruntime").code == 0


def test_a_tuning_names_what_was_fixed_in_the_next_command(cli: Any, by_rate, tmp_path):
    words = ("--trials", "1", "--threads", "1", "--db", tmp_path / "r.db", "--fix", "sr=16000", "--size", "x[0]=2")
    assert "--size x[0]=2 --fix sr=16000" in cli("tune", by_rate, *words).out


def test_what_a_network_takes_is_said_where_nothing_is_given(cli: Any, by_rate, tmp_path):
    answer = cli("run", by_rate)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "x float32[x[0], 3]; sr int64[] (in Python: numpy.savez('FILE.npz', x=..., sr=...))" in answer.err
    assert "x float32[x[0], 3] (in Python" in cli("run", by_rate, "--fix", "sr=1").err
    answer = cli("run", tmp_path / "gone.onnx")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "gone.onnx cannot be read: No such file or directory" in answer.err
    made = model([node("Relu", ["x:0"], ["y"])], {"x:0": ["n", 3]})
    onnx.save(made, tmp_path / "named.onnx")
    assert "numpy.savez('FILE.npz', **{'x:0': ...})" in cli("run", tmp_path / "named.onnx").err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("show {net} --size x[0]=1", 'at load: autosched.load(path, inputs={"sr": VALUE}), or --fix sr=VALUE'),
        ("show {net} --fix rate=1", "rate is given a value, but is no input of the model"),
        ("run {net} --inputs {given} --fix sr=1.5", "the input sr is fixed to float64[] 1.5, but must be int64[]"),
        ("run {net} --inputs {given} --fix sr=[1]", "the input sr is fixed to int64[1] [1], but must be int64[]"),
        ("run {net} --inputs {given} --fix sr=high", "a fixed input is written NAME=VALUE"),
        ("run {net} --inputs {given} --fix sr", "a fixed input is written NAME=VALUE"),
        ("run {net} --inputs {given} --fix sr=gone.npy", "no array can be read from gone.npy"),
        ("run {net} --inputs {given} --fix sr=1 --fix sr=2", "--fix sr has two values, 1 and 2"),
        ("tune matmul --fix sr=1", "--fix is of networks, and matmul is none"),
        ("bench matmul --fix sr=1", "--fix is for networks"),
        ("show 1 --fix sr=1", "--fix is for networks, and 1 is the number of a record"),
    ],
)
def test_senseless_values(cli: Any, by_rate, tmp_path, words, reason):
    answer = cli(*words.format(net=by_rate, given=tmp_path / "in.npz").split())
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert reason in answer.err


def test_values_are_json_or_files():
    assert options.fixed("h = [[0, 1.5]]") == ("h", [[0, 1.5]])
    assert options.fixed("flag=true") == ("flag", True)
    assert options.fixed("h=a/b.NPY") == ("h", Path("a/b.NPY"))


def test_a_module_and_a_program_with_a_fixed_input(cli: Any, tmp_path):
    torch = pytest.importorskip("torch")
    (tmp_path / "nets.py").write_text(
        "import torch\n"
        "class Scaled(torch.nn.Module):\n"
        "    def forward(self, x, scale):\n"
        "        return torch.relu(x * scale)\n"
        "def network():\n"
        "    return Scaled().eval(), (torch.ones(2, 3), torch.full((1, 3), 5.0))\n"
    )
    from autosched.cli.network.arguments import find_network

    word = f"{tmp_path / 'nets.py'}:network"
    found = find_network(word, {})
    torch.export.save(torch.export.export(found.model, found.example_inputs), tmp_path / "net.pt2")
    for net in (word, tmp_path / "net.pt2"):
        for words, wanted in (((), 5), (("--fix", "scale=[[1, 2, 3]]"), [1, 2, 3])):
            answer = cli("run", net, *words, "--outputs", tmp_path / "out.npz", "--threads", "1")
            assert (answer.code, answer.err) == (0, "")
            with np.load(tmp_path / "out.npz") as file:
                np.testing.assert_array_equal(next(iter(file.values())), np.full((2, 3), wanted))
    assert "relu" in cli("show", tmp_path / "net.pt2").out
    assert "--set gives arguments to a function" in cli("run", tmp_path / "net.pt2", "--set", "a=1").err

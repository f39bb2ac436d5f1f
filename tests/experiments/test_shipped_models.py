"""Shipped models: shapes and fixed inputs from the table or the command line reach the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from experiments import shipped_models  # noqa: E402
from experiments.shipped_models import SETTINGS, Setting, main, trials  # noqa: E402


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """y = x * 2 where rate is 16000, else x; x is of float32[n, m]."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])
    rate = helper.make_tensor_value_info("rate", TensorProto.INT64, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "m"])
    branch = [
        helper.make_graph([node], "branch", [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])
        for node, name in (
            (helper.make_node("Add", ["x", "x"], ["twice"]), "twice"),
            (helper.make_node("Identity", ["x"], ["same"]), "same"),
        )
    ]
    nodes = [
        helper.make_node("Constant", [], ["wide"], value_int=16000),
        helper.make_node("Equal", ["rate", "wide"], ["is_wide"]),
        helper.make_node("If", ["is_wide"], ["y"], then_branch=branch[0], else_branch=branch[1]),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x, rate], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, str(tmp_path / "speech.onnx"))
    return tmp_path / "speech.onnx"


def test_a_file_is_tried_with_its_shape_and_fixed_inputs(file, tmp_path, capsys):
    words = ["--shape", "x=3,3", "--fix", "rate=16000", "--threads", "1", "--calls", "2"]
    assert main([str(file), *words, "--json", str(tmp_path / "rows.json")]) == 0
    assert "1 trials: 1 right" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert row["trial"] == "speech.onnx x=3x3 rate=16000, 1 thread"
    assert row["largest"] == 0.0


def test_what_is_not_right_is_the_exit_code(file, monkeypatch, capsys):
    monkeypatch.setattr(shipped_models, "SETTINGS", {file.name: (Setting({"x": (2, 5)}, {"pace": 1}),)})
    assert main([str(file), "--threads", "1"]) == 1
    assert "refused  speech.onnx x=2x5 pace=1" in capsys.readouterr().out


def test_folders_are_searched_and_a_table_has_the_settings(file, tmp_path):
    known = tmp_path / "deep" / "nmp.onnx"
    known.parent.mkdir()
    known.write_bytes(file.read_bytes())
    found = [(t.path, str(t.setting), t.threads) for t in trials([tmp_path], Setting(), (1, 2), 1)]
    settings = [str(s) for s in SETTINGS["nmp.onnx"]]
    assert found == [*((known, s, n) for s in settings for n in (1, 2)), *((file, "", n) for n in (1, 2))]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["EMPTY"], "there is no ONNX file in"),
        (["x.onnx", "--shape", "x=a"], "a size is written NAME=N"),
        (["x.onnx", "--fix", "sr=wide"], "argument --fix"),
    ],
)
def test_senseless_words_are_refused(words: list[str], said: str, tmp_path: Path, capsys: Any):
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path) if word == "EMPTY" else word for word in words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err

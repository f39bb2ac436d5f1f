"""Commands on an ONNX file with a node that another engine runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")

TEXT = """<ir_version: 9, opset_import: ["" : 20]> texts (string[3] s, float[3] x) => (float[3] y) {
    double = Add(x, x)
    is = RegexFullMatch <pattern = "a+"> (s)
    number = Cast <to = 1> (is)
    y = Mul(number, double)
}"""

pytestmark = pytest.mark.filterwarnings("ignore:texts is compiled in parts")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "texts.onnx")
    np.savez(tmp_path / "in.npz", s=np.array(["aa", "ab", "a"]), x=np.float32([1, 2, 3]))
    return tmp_path / "texts.onnx"


def test_run(cli: Any, file: Path) -> None:
    out = file.with_name("out.npz")
    answer = cli("run", file, "--inputs", file.with_name("in.npz"), "--outputs", out, "--threads", 1, "--json")
    assert answer.code == 0
    assert [given["dtype"] for given in answer.json["inputs"]] == ["string", "float32"]
    assert answer.json["outputs"] == [{"name": "y", "shape": [3], "dtype": "float32"}]
    with np.load(out) as results:
        assert results["y"].tolist() == [2, 0, 6]
    answer = cli("run", file)
    assert answer.code == 2
    assert "s string[3]; x float32[3]" in answer.err


def test_explain_and_verify(cli: Any, file: Path) -> None:
    answer = cli("explain", file, "--threads", 1, "--json")
    (fallback,) = answer.json["fallbacks"]
    assert fallback["operators"] == ["RegexFullMatch"]
    assert 0 < fallback["seconds"] < answer.json["call_s"]
    answer = cli("verify", file, "--threads", 1, "--json")
    assert (answer.code, answer.json["verified"]) == (0, True)


def test_tune(cli: Any, file: Path) -> None:
    """The two compiled parts are tuned as networks of their own."""
    answer = cli("tune", file, "--trials", 2, "--threads", 1, "--db", file.with_name("records.db"), "--json")
    assert answer.code == 0
    assert list(answer.json["networks"]) == ["texts.1", "texts.2"]


@pytest.mark.parametrize("words", ["run {file} --strict --inputs {inputs}", "explain {file} --strict"])
def test_strict(cli: Any, file: Path, words: str) -> None:
    answer = cli(*words.format(file=file, inputs=file.with_name("in.npz")).split())
    assert answer.code == 2
    assert "the input s is of type STRING, which is not supported" in answer.err


def test_what_needs_one_program(cli: Any, file: Path) -> None:
    answer = cli("export", file, "--out", file.with_name("texts.so"))
    assert answer.code == 2
    assert "texts is no single program" in answer.err

"""Networks that are none, and inputs that do not fit: one sentence, exit code 2, and nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched import api
from autosched.errors import GraphError, UsageError
from autosched.executor import memory_check
from tests.graph import networks
from tests.graph.networks import Builder


def refused(cli: Any, path: Path, folder: Path, reason: str) -> None:
    """By every verb that loads a network."""
    np.savez(folder / "in.npz", x=np.zeros(2, np.float32))
    before = sorted(folder.rglob("*"))
    for words in (
        ("run", path, "--inputs", folder / "in.npz", "--outputs", folder / "out.npz"),
        ("verify", path),
        ("explain", path),
        ("show", path),
        ("bench", path),
    ):
        answer = cli(*words)
        assert (answer.code, answer.out) == (2, ""), answer.err
        assert answer.err.startswith("autosched: error: ")
        assert reason in answer.err
        assert answer.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda data: data[: len(data) - 9], "lies from byte"),
    "empty": (lambda data: b"", "is not a saved network, or is truncated (0 bytes)"),
    "no header": (lambda data: b"\xff" * 40, "is not a saved network, or is truncated"),
    "other text": (lambda data: data.replace(b"linear", b"linaer"), "there is no operator linaer"),
    "other types": (lambda data: data.replace(b'"F32"', b'"F99"', 1), "is not a saved network, or is damaged"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_broken_saved_networks(cli: Any, tmp_path, name):
    damage, _ = DAMAGE[name]
    api.load(networks.perceptron((3, 5)), threads=1).save(tmp_path / "net.asc")
    (tmp_path / "net.asc").write_bytes(damage((tmp_path / "net.asc").read_bytes()))
    refused(cli, tmp_path / "net.asc", tmp_path, "truncated" if name in ("empty", "no header") else "is damaged")


@pytest.mark.filterwarnings("ignore:.* has no digest")
@pytest.mark.parametrize("name", DAMAGE)
def test_broken_saved_networks_without_a_digest(tmp_path, name):
    damage, reason = DAMAGE[name]
    api.load(networks.perceptron((3, 5)), threads=1).save(tmp_path / "net.asc")
    old = (tmp_path / "net.asc").read_bytes().replace(b'"digest"', b'"digesT"')
    (tmp_path / "net.asc").write_bytes(damage(old))
    with pytest.raises(GraphError, match=re.escape(reason)):
        api.load(tmp_path / "net.asc", threads=1)


def _onnx_cases() -> dict[str, tuple[Callable[[Path], None], str]]:
    onnx = pytest.importorskip("onnx")
    from tests.graph.onnx.models import model, node

    def saved(*nodes: Any, **more: Any) -> Callable[[Path], None]:
        return lambda path: onnx.save(model(nodes, {"x": [2]}, **more), path)

    def truncated(path: Path) -> None:
        saved(node("Add", ["x", "w"], ["y"]), constants={"w": np.ones(2, np.float32)})(path)
        path.write_bytes(path.read_bytes()[:-7])

    def beside(location: str) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            made = model([node("Add", ["x", "w"], ["y"])], {"x": [2]}, constants={"w": np.ones(2, np.float32)})
            (tensor,) = made.graph.initializer
            onnx.external_data_helper.set_external_data(tensor, location)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            path.write_bytes(made.SerializeToString())

        return write

    relu, cycle = node("Relu", ["x"], ["y"]), [node("Relu", ["b"], ["y"]), node("Add", ["y", "x"], ["b"])]
    steps = (("Own", "x", "a"), ("Own", "a", "b"), ("Other", "b", "y"))
    strange = [node(operator, [x], [y], domain="own") for operator, x, y in steps]
    return {
        "truncated": (truncated, "is not an ONNX model, or is truncated"),
        "cycle": (saved(*cycle), "the model has a cycle, through the nodes y, b"),
        "unknown": (saved(*strange, domains=["own"]), "own.Other (1, first y), own.Own (2, first a)"),
        "missing data": (beside("gone.bin"), "has its data in gone.bin, and there is no such file"),
        "leaves the folder": (beside("../../etc/passwd"), "outside of the model's folder"),
        "gone": (lambda path: None, "cannot be read: No such file"),
        "too large": (lambda path: onnx.save(model([relu], {"x": [1 << 24, 1 << 24]}), path), "of memory (inputs"),
    }


ONNX = ("truncated", "cycle", "unknown", "missing data", "leaves the folder", "gone")


@pytest.mark.parametrize("name", ONNX)
def test_broken_onnx_files(cli: Any, tmp_path, name):
    write, reason = _onnx_cases()[name]
    write(tmp_path / "net.onnx")
    refused(cli, tmp_path / "net.onnx", tmp_path, reason)


def test_a_network_that_is_larger_than_the_memory(cli: Any, tmp_path):
    write, reason = _onnx_cases()["too large"]
    write(tmp_path / "net.onnx")
    before = sorted(tmp_path.rglob("*"))
    for words in (("verify", tmp_path / "net.onnx"), ("explain", tmp_path / "net.onnx")):
        answer = cli(*words)
        assert (answer.code, answer.out) == (2, "")
        assert reason in answer.err
        assert answer.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_memory_is_checked_with_weights_and_values_between(monkeypatch):
    b = Builder(x=(1 << 20, 1 << 20))
    with pytest.raises(UsageError, match=r"needs 8796.1 GB of memory \(inputs 4398.0 GB, outputs 4398.0 GB\)"):
        api.load(b.graph(b.add("relu", "x")), threads=1)
    monkeypatch.setattr(memory_check, "free_memory", lambda: 1000)
    with pytest.raises(UsageError, match=r"needs \d.\d kB of memory \(inputs 24 bytes, outputs 40 bytes, weights"):
        api.load(networks.perceptron((3, 17, 17, 5)), threads=1)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.zeros((2, 4), np.float32)}, "input x must be float32[2, 3], but got float32[2, 4]"),
        ({"x": np.zeros((2, 3), np.int32)}, "input x must be float32[2, 3], but got int32[2, 3]"),
        ({"x": np.zeros((2, 3), np.float32), "z": np.zeros(1)}, "has the arrays x, z, but the network takes x"),
        ({}, "has the arrays none, but the network takes x"),
    ],
)
def test_inputs_that_do_not_fit(cli: Any, tmp_path, arrays, reason):
    api.load(networks.perceptron((3, 5)), threads=1).save(tmp_path / "net.asc")
    np.savez(tmp_path / "in.npz", **arrays)
    for verb in ("run", "verify", "bench"):
        answer = cli(verb, tmp_path / "net.asc", "--inputs", tmp_path / "in.npz")
        assert (answer.code, answer.out) == (2, "")
        assert reason in answer.err
        assert answer.err.count("\n") == 1

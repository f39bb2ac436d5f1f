"""Which words are networks, and what `autosched run` makes of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched import api, network_api
from autosched.cli import options
from autosched.cli.network.arguments import find_network, record_or_network
from autosched.errors import UsageError
from autosched.graph.interpret import interpret
from tests.graph import networks
from tests.graph.gguf.decoders import Decoder

MODULE = """
import torch
from autosched import te

def network(width=5, bias=True):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, width, bias=bias), torch.nn.ReLU()).eval()
    return module, (torch.ones(2, 3),)

def operator(N=7):
    A = te.placeholder((N,), name="A")
    return te.compute((N,), lambda i: A[i] + 1.0)

def bare():
    return torch.nn.ReLU()
"""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    api.load(networks.perceptron(), threads=1).save(tmp_path / "net.asc")
    return tmp_path / "net.asc"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "nets.py").write_text(MODULE)
    return tmp_path / "nets.py"


def test_files_are_networks_by_their_names_and_workloads_are_none():
    assert find_network("a/net.ONNX", {}).suffix == ".onnx"
    assert find_network("net.asc", {}).model == Path("net.asc")
    assert find_network("matmul", {}) is None
    assert record_or_network("17") == 17
    assert record_or_network("17.onnx") == "17.onnx"


def test_functions_are_what_they_return(module, monkeypatch):
    torch = pytest.importorskip("torch")
    found = find_network(f"{module}:network", {"width": 11})
    assert isinstance(found.model, torch.nn.Module)
    assert found.model[0].out_features == 11
    assert [tuple(x.shape) for x in found.example_inputs] == [(2, 3)]
    assert find_network(f"{module}:operator", {"N": 3}) is None
    with pytest.raises(UsageError, match=r"nets\.py:\d+: bare must return a torch module and a tuple of inputs"):
        find_network(f"{module}:bare", {})
    monkeypatch.chdir(module.parent)
    assert find_network("nets:network", {}).word == "nets:network"
    with pytest.raises(UsageError, match="the module nowhere cannot be imported"):
        find_network("nowhere:network", {})


def test_run_writes_what_the_network_computes(cli: Any, saved, tmp_path):
    graph = networks.perceptron()
    given = {"x": np.random.default_rng(0).normal(size=(2, 3)).astype("float32")}
    np.savez(tmp_path / "in.npz", **given)
    answer = cli("run", saved, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz", "--json")
    assert answer.code == 0
    assert answer.json["inputs"] == [{"name": "x", "shape": [2, 3], "dtype": "float32"}]
    with np.load(tmp_path / "out.npz") as file:
        for name, wanted in interpret(graph, given).items():
            np.testing.assert_allclose(file[name], wanted, rtol=0, atol=2e-6)


def test_run_takes_a_function_with_its_own_inputs(cli: Any, module, tmp_path):
    torch = pytest.importorskip("torch")
    answer = cli("run", f"{module}:network", "--set", "width=3", "--outputs", tmp_path / "out.npz", "--threads", "1")
    assert (answer.code, answer.err) == (0, "")
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 3)
    wanted = torch.relu(layer(torch.ones(2, 3))).detach().numpy()
    with np.load(tmp_path / "out.npz") as file:
        np.testing.assert_allclose(next(iter(file.values())), wanted, rtol=0, atol=1e-6)


def test_a_language_model(cli, tmp_path):
    pytest.importorskip("gguf")
    path = Decoder(layers=1, formats={"": "Q8_0"}).write(tmp_path / "m.gguf")
    answer = cli("run", path)
    assert answer.code == 2
    assert "tokens int64[tokens]; start int64[1]; key.0 float32[1, 2, context, 16]" in answer.err
    inputs = {"tokens": np.array([3, 4]), "start": np.array([0])}
    inputs |= {f"{which}.0": np.zeros((1, 2, 4, 16), "float32") for which in ("key", "value")}
    np.savez(tmp_path / "in.npz", **inputs)
    words = ("--size", "tokens=2", "--size", "context=4", "--threads", "1", "--outputs", tmp_path / "out.npz")
    assert cli("run", path, "--inputs", tmp_path / "in.npz", *words).code == 0
    with np.load(tmp_path / "out.npz") as file:
        assert file["scores"].shape == (2, 41)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("run matmul", "matmul is no network: run takes MODEL.onnx"),
        ("run {saved}", "run needs --inputs FILE.npz"),
        ("run {saved} --size N=1", "--size says what symbolic dimensions of an ONNX or GGUF file are"),
        ("run {saved} --set N=1", "--set gives arguments to a function"),
        ("run {saved} --inputs {saved}", "the inputs cannot be read from"),
        ("run {saved} --inputs {other}", "has the arrays z, but the network takes x"),
        ("run {saved} --inputs {wide}", "input x must be float32[2, 3], but got float64[2, 3]"),
        ("run {saved} --inputs {long}", "input x must be float32[2, 3], but got float32[2, 4]"),
        ("run nothing.asc --inputs {other}", "nothing.asc cannot be read"),
        ("run nothing.py:f", "there is no file nothing.py"),
        ("run a:b:c", "a:b"),
    ],
)
def test_wrong_words_are_one_sentence_and_nothing_is_written(cli: Any, saved, tmp_path, words, reason):
    files = {"saved": saved}
    for name, arrays in {
        "other": {"z": np.zeros(3)},
        "wide": {"x": np.zeros((2, 3))},
        "long": {"x": np.zeros((2, 4), "float32")},
    }.items():
        files[name] = tmp_path / f"{name}.npz"
        np.savez(files[name], **arrays)
    before = sorted(tmp_path.iterdir())
    answer = cli(*words.format(**files).split(), "--outputs", tmp_path / "out.npz")
    assert (answer.code, answer.out) == (2, "")
    assert reason in answer.err
    assert answer.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a linker")
def test_export_writes_a_library(cli: Any, saved, tmp_path):
    answer = cli("export", saved, "--out", tmp_path / "net.so", "--threads", "1", "--json")
    assert (answer.code, answer.json["model"]) == (0, str(saved))
    assert answer.json["files"] == [str(tmp_path / name) for name in ("net.so", "net.h", "net.safetensors")]
    assert "int autosched_net(const float *x, " in (tmp_path / "net.h").read_text()
    before = sorted(tmp_path.iterdir())
    for words, reason in ((("--kind", "object"), "not as object"), (("--out", tmp_path / "net.o"), "ends in .so")):
        answer = cli("export", saved, *words)
        assert (answer.code, answer.out) == (2, "")
        assert reason in answer.err
    assert sorted(tmp_path.iterdir()) == before


def test_export_writes_an_archive(cli: Any, saved, tmp_path):
    out = tmp_path / "again.asc"
    answer = cli("export", saved, "--kind", "archive", "--out", out, "--json")
    assert (answer.code, answer.json["kind"], answer.json["files"]) == (0, "archive", [str(out)])
    x = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(api.load(out)(x), api.load(saved)(x))
    answer = cli("export", saved, "--kind", "archive", "--out", tmp_path / "again.so")
    assert (answer.code, answer.out) == (2, "")
    assert "saved as a file *.asc" in answer.err
    assert list(tmp_path.glob("again.so")) == []


def test_verify_says_how_near_a_network_comes(cli: Any, saved):
    answer = cli("verify", saved)
    assert (answer.code, answer.err) == (0, "")
    assert f"{saved} is verified: the output nearest to its bound is" in answer.out
    facts = cli("verify", saved, "--json").json
    assert facts["verified"] is True
    assert {(c["inputs"], c["passed"]) for c in facts["outputs"]} == {("normal", True), ("structured", True)}
    assert [kernel["operators"] for kernel in facts["kernels"]] == ["linear relu"] * 3
    assert facts["first_wrong"] is None
    assert 0 < facts["max_error"] < 1e-6


def test_verify_of_a_wrong_network_ends_with_4(cli: Any, saved, monkeypatch):
    right = network_api.load_fixed

    def damaged(*arguments: Any, **options: Any) -> Any:
        model = right(*arguments, **options)
        model.block.view("float32")[:] *= 1.001
        return model

    monkeypatch.setattr(network_api, "load_fixed", damaged)
    answer = cli("verify", saved, "--locate")
    assert answer.code == 4
    assert "WRONG" in answer.out
    assert "is not verified: the output relu5 (rms" in answer.err
    assert "because of the kernel linear relu" in answer.err
    answer = cli("verify", saved, "--json")
    assert answer.code == 4
    assert answer.json["first_wrong"]["operators"] == "linear relu"


def test_verify_compares_with_onnxruntime(cli: Any, tmp_path):
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    from tests.graph.onnx.models import model, node

    made = model([node("Softmax", ["x"], ["y"])], {"x": (2, "n")})
    made.ir_version = 10  # what onnxruntime reads
    onnx.save(made, tmp_path / "net.onnx")
    answer = cli("verify", tmp_path / "net.onnx", "--size", "n=7", "--onnxruntime", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert [c["passed"] for c in answer.json["onnxruntime"]] == [True, True]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("verify 1 --locate", "--locate is for networks, and 1 is the number of a record"),
        ("verify 1 --set a=1", "--set is for networks"),
        ("verify {saved} --workload a.py:b", "--workload is for records"),
        ("verify {saved} --onnxruntime", "onnxruntime runs ONNX files"),
        ("verify matmul", "matmul is no network: verify takes MODEL.onnx"),
        ("verify 0", "a whole number of at least 1 is needed"),
    ],
)
def test_records_and_networks_have_their_own_options(cli: Any, saved, words, reason):
    answer = cli(*words.format(saved=saved).split())
    assert (answer.code, answer.out) == (2, "")
    assert reason in answer.err


def test_explain_tells_of_each_kernel(cli: Any, saved, monkeypatch):
    monkeypatch.setattr("autosched.executor.profile.BUDGET_S", 0.01)
    answer = cli("explain", saved, "--threads", "1")
    assert (answer.code, answer.err) == (0, "")
    assert "linear-relu" in answer.out
    assert "of the kernels' time" in answer.out
    facts = cli("explain", saved, "--threads", "1", "--json").json
    total = 1.0 if facts["kernels_s"] else 0.0  # kernels this small may take no longer than the empty call beside them
    assert sum(layer["share"] for layer in facts["layers"]) == pytest.approx(total)
    assert facts["kernels_s"] >= max(layer["seconds"] for layer in facts["layers"])
    assert {"origins", "count", "flops", "bytes", "least_s", "fraction_of_roofline"} <= set(facts["layers"][0])


def test_show_prints_what_became_of_a_network(cli: Any, saved):
    assert cli("show", saved).out.startswith("network(x: float32[2, 3]):")
    assert cli("show", saved, "--as", "groups").out.count("linear relu") == 3
    assert cli("show", saved, "--as", "memory", "--threads", "1").out.startswith("arena of ")
    assert "__kernel" in cli("show", saved, "--as", "opencl", "--target", "opencl").out
    facts = cli("show", saved, "--as", "dot", "--json").json
    assert facts["model"] == str(saved)
    assert facts["text"].startswith("digraph")
    answer = cli("show", saved, "--as", "ir")
    assert (answer.code, answer.out) == (2, "")


def test_sizes_have_the_names_that_a_file_gives_them(cli: Any, saved):
    assert options.size("x[0] = 3") == ("x[0]", 3)
    assert options.size("Dynamic.0=a=12") == ("Dynamic.0=a", 12)
    for text in ("n", "n=", "=3", "n=-1", "n=many"):
        assert "a size is written NAME=N" in cli("run", saved, "--size", text).err
    assert "--size n has two values, 1 and 2" in cli("show", "net.onnx", "--size", "n=1", "--size", "n=2").err

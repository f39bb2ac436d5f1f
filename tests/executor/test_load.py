"""Everything that is a network for `load`, what is none, and inputs that are fixed."""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched import api
from autosched.errors import AutoschedError, GraphError, UsageError
from autosched.graph.file_formats import describe_format
from autosched.graph.fixed_inputs import fix_inputs
from autosched.graph.input_descriptions import describe_inputs
from autosched.graph.interpret import interpret
from tests.graph.networks import Builder


def two_inputs() -> Any:
    b = Builder(x=(2, 3), scale=(1, 3))
    return b.graph(b.add("relu", b.add("mul", "x", "scale")))


def test_a_fixed_input_is_a_constant_of_any_graph(tmp_path):
    graph, x, scale = two_inputs(), np.full((2, 3), 2, "float32"), np.float32([[1, -1, 3]])
    (wanted,) = interpret(graph, {"x": x, "scale": scale}).values()
    model = api.load(graph, inputs={"scale": scale}, threads=1, records=False)
    assert [spec.name for spec in model.inputs] == ["x"]
    np.testing.assert_array_equal(model(x), wanted)
    api.load(graph, threads=1, records=False).save(tmp_path / "net.asc")
    again = api.load(tmp_path / "net.asc", inputs={"scale": [[1, -1, 3]]}, threads=1, records=False)
    np.testing.assert_array_equal(again(x=x), wanted)
    assert "scale: float32[1, 3] = constant" in api.show(tmp_path / "net.asc", inputs={"scale": scale})
    for value, reason in (
        ({"z": 1}, "z is given a value, but is no input of the model; its inputs are: x, scale"),
        ({"scale": 1}, r"the input scale is fixed to int64\[\] 1, but must be float32\[1, 3\]"),
        ({"scale": np.ones((1, 3))}, r"fixed to float64\[1, 3\], but must be float32\[1, 3\]"),
    ):
        with pytest.raises(GraphError, match=reason):
            api.load(graph, inputs=value)
    assert fix_inputs(graph, {}) is graph


def test_a_network_whose_inputs_are_all_fixed():
    graph = two_inputs()
    model = api.load(graph, inputs={"x": np.ones((2, 3), "float32"), "scale": [[1, 2, 3]]}, threads=1, records=False)
    np.testing.assert_array_equal(model(), [[1, 2, 3]] * 2)


@pytest.fixture(scope="module")
def program() -> Any:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.LayerNorm(5)).eval()
    return module, torch.export.export(module, (torch.ones(2, 3),))


def test_exported_programs_and_their_files(tmp_path, program):
    import torch

    module, exported = program
    torch.export.save(exported, tmp_path / "net.pt2")
    x = torch.randn(2, 3)
    for what in (exported, tmp_path / "net.pt2", str(tmp_path / "net.pt2")):
        model = api.load(what, threads=1, records=False)
        np.testing.assert_allclose(model(x), module(x).detach(), rtol=0, atol=1e-5)
    assert "relu" in api.show(exported)
    assert api.verify(exported).passed


def test_symbolic_sizes_of_a_program_are_those_of_its_inputs(tmp_path):
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 5).eval()
    rows = {0: torch.export.Dim("rows", min=2, max=64)}
    exported = torch.export.export(module, (torch.ones(4, 3),), dynamic_shapes=(rows,))
    torch.export.save(exported, tmp_path / "net.pt2")
    for what in (exported, tmp_path / "net.pt2"):
        assert api.load(what, threads=1, records=False).inputs[0].shape == (4, 3)
    (described,) = describe_inputs(exported)
    assert re.fullmatch(r"input float32\[s\d+, 3\]", str(described))
    for what in (exported, tmp_path / "net.pt2"):
        assert api.load(what, (torch.ones(7, 3),), threads=1, records=False).inputs[0].shape == (7, 3)
        with pytest.raises(
            GraphError, match=r"was exported for other inputs than example_inputs of the shapes \[65, 3\]"
        ):
            api.load(what, (torch.ones(65, 3),))


def damaged(source: Path, path: Path, **texts: bytes) -> None:
    """A copy of an archive with other text in the files whose names end so."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            for end, (before, after) in texts.items():
                if name.endswith(end):
                    assert before in text
                    text = text.replace(before, after)
            new.writestr(name, text)


def test_files_of_programs_that_are_more_than_data_are_refused(tmp_path, program):
    import torch

    class Runs:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    good = tmp_path / "good.pt2"
    torch.export.save(program[1], good)
    pickled = io.BytesIO()
    torch.save((Runs(),), pickled)
    with zipfile.ZipFile(good) as archive:
        (inputs,) = (archive.read(name) for name in archive.namelist() if name.endswith("sample_inputs/model.pt"))
    for number, (ends, reason) in enumerate(
        (
            ({"sample_inputs/model.pt": (inputs, pickled.getvalue())}, "has pickled objects in data/sample_inputs"),
            ({"weights_config.json": (b'"use_pickle": false', b'"use_pickle": true')}, "has pickled tensors"),
            ({"weights_config.json": (b'"weight_0"', b'"custom_obj_0"')}, "has the object custom_obj_0"),
            (
                {"models/model.json": (b"torch.ops.aten.relu.default", b"torch.os.system")},
                "calls torch.os.system, which",
            ),
            (
                {"models/model.json": (b'{"as_int": 3}', b'{"as_expr": {"expr_str": "open(0)"}}')},
                "no arithmetic: 'open",
            ),
            ({"models/model.json": (b"{", b"[")}, "is no program of torch.export.save"),
        )
    ):
        path = tmp_path / f"bad{number}.pt2"
        damaged(good, path, **ends)
        with pytest.raises(GraphError, match=reason):
            api.load(path)
    assert not (tmp_path / "ran").exists()
    (tmp_path / "cut.pt2").write_bytes(good.read_bytes()[:300])
    with pytest.raises(GraphError, match=r"is no program of torch.export.save, but a damaged or truncated zip archive"):
        api.load(tmp_path / "cut.pt2")
    with pytest.raises(GraphError, match=r"gone\.pt2 cannot be read: No such file or directory"):
        api.load(tmp_path / "gone.pt2")


def archive_of(*names: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return made.getvalue()


FORMATS = {
    "m.ggu": (b"GGUF\x03\0\0\0", "a GGUF file of llama.cpp: name it"),
    "m.safetensors": (b"\x08\0\0\0\0\0\0\0{}      ", "a safetensors file, which has weights without a graph"),
    "m.h5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    "m.tflite": (b"\x1c\0\0\0TFL3\0\0\0\0", "a TFLite file"),
    "m.ort": (b"\x1c\0\0\0ORTM\0\0\0\0", "a file of ONNX Runtime's own format"),
    "m.pt": (archive_of("m/data.pkl", "m/data/0"), "a file of torch.save, which has weights without a graph"),
    "m.ts": (archive_of("m/data.pkl", "m/code/__torch__.py"), "a TorchScript archive"),
    "m.aoti": (archive_of("m/archive_format", "m/data/aotinductor/m/w.so"), "a package of AOTInductor"),
    "m.program": (archive_of("m/archive_format", "m/models/model.json"), "that torch.export.save wrote: name it"),
    "m.keras": (archive_of("config.json", "model.weights.h5"), "a Keras archive"),
    "m.npz": (archive_of("x.npy"), "a file of NumPy arrays"),
    "m.zip": (archive_of("other"), "a zip archive: unpack it first"),
    "m.npy": (b"\x93NUMPY\x01\0", "one array of NumPy"),
    "m.pkl": (b"\x80\x04K\x01.", "a pickle, as old versions of torch.save wrote"),
    "m.so": (b"\x7fELF\x02", "a compiled library"),
    "m.onnx.gz": (b"\x1f\x8b\x08", "packed by gzip"),
    "m.onnx": (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
    "m.html": (b"<!DOCTYPE html><html>", "a web page"),
    "m.xml": (b'<?xml version="1.0"?>', "an XML file"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_another_kind_is_called_by_its_name(cli: Any, tmp_path, name):
    data, what = FORMATS[name]
    path = tmp_path / name
    path.write_bytes(data)
    assert what in describe_format(path)
    with pytest.raises(GraphError, match="; a network is an ONNX file, one saved as") as caught:
        api.load(path)
    assert what in str(caught.value)
    for verb in ("tune", "run", "show", "bench"):
        answer = cli(verb, path)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert what in answer.err


def test_folders_and_what_is_no_file(tmp_path):
    with pytest.raises(GraphError, match="is a folder: name the file within"):
        api.load(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(GraphError, match="a SavedModel of TensorFlow"):
        api.load(tmp_path)
    assert describe_format(tmp_path / "gone") == ""
    for what in (3, None, object()):
        with pytest.raises(UsageError, match=r"a network is an ONNX file, .* got"):
            api.load(what)
    with pytest.raises(AutoschedError, match=r"gone\.onnx cannot be read: No such file"):
        api.load("gone.onnx")


def test_torch_s_own_warnings_of_treespecs_are_not_the_user_s(monkeypatch, program, recwarn):
    """Versions before 2.14 warn while they copy a program."""
    import torch

    module, exported = program
    right, decompose = torch.export.export, type(exported).run_decompositions

    def warned(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            warnings.warn("`isinstance(treespec, LeafSpec)` is deprecated", FutureWarning, stacklevel=1)
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(torch.export, "export", warned(right))
    monkeypatch.setattr(type(exported), "run_decompositions", warned(decompose))
    api.load(module, (torch.ones(2, 3),), threads=1, records=False)
    api.load(exported, threads=1, records=False)
    assert not [w for w in recwarn.list if issubclass(w.category, FutureWarning)]

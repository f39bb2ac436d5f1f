"""Files with bytes changed, cut off, put in or added: each is refused in one sentence, or what it holds is right."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autosched.errors import AutoschedError, AutoschedWarning, GraphError, UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.graph.graph import Graph
from autosched.graph.mapped_arrays import check_mapped
from autosched.graph.onnx import load_onnx
from autosched.graph.saved import header_of
from autosched.kernel.gpu_kernel import decode_source
from autosched.kernel.object_cache import find_object
from autosched.kernel.spec import KernelObject
from autosched.planning.archive import load_archive
from autosched.runtime import disk_cache
from autosched.runtime.disk_cache import read, write
from autosched.runtime.gpu.compile import DeviceCode
from autosched.runtime.state import kernels_directory, state_directory
from autosched.verification.verify import references
from tests.graph import networks

DEEP = "[" * 100_000


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def damages(whole: bytes, n: int) -> Iterator[bytes]:
    """Bits flipped, ends cut off, bytes put in, taken out and added, at places that the seed gives."""
    rng = random.Random(1)
    for case in range(n):
        data, at = bytearray(whole), rng.randrange(min(len(whole), rng.choice((64, 2048, len(whole)))))
        kind = case % 6
        if kind < 2:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 4:
            del data[at : at + rng.randrange(1, 9)]
        else:
            data += rng.randbytes(rng.randrange(1, 99))
        yield bytes(data)


def same(a: Graph, b: Graph) -> bool:
    return (a.inputs, a.outputs, a.nodes, a.values, [*a.constants]) == (
        b.inputs, b.outputs, b.nodes, b.values, [*b.constants],
    ) and all(np.array_equal(a.constants[name], b.constants[name], equal_nan=True) for name in a.constants)  # fmt: skip


def test_a_damaged_archive_is_refused_or_right(tmp_path: Path) -> None:
    path = tmp_path / "model.asc"
    graph = networks.perceptron()
    compile_graph(graph, threads=1).save(path)
    whole, refused = path.read_bytes(), 0
    for damaged in damages(whole, 240):
        path.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AutoschedWarning)
            try:
                found, _ = load_archive(path)
            except GraphError:
                refused += 1
                continue
        assert same(found, graph)
    assert refused > 200
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:])  # within a constant
    with pytest.raises(GraphError, match=r"model\.asc is damaged: it is not as it was written, by its digest"):
        load_archive(path)


def test_an_archive_without_a_digest_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "model.asc"
    graph = networks.perceptron()
    compile_graph(graph, threads=1).save(path)
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    entries = json.loads(whole[8:end])
    facts = entries.pop("__metadata__")
    del facts["digest"]
    path.write_bytes(header_of(entries, facts) + whole[end:])
    with pytest.warns(AutoschedWarning, match=r"model\.asc has no digest, .* save the network again"):
        found, _ = load_archive(path)
    assert same(found, graph)


def test_a_damaged_kernel_is_as_good_as_absent() -> None:
    """The head of its file as well as its code: sizes of memory stand there."""
    (task,) = compile_graph(networks.perceptron((3, 4)), threads=1).tasks
    right = find_object(task.kernel_spec)
    assert isinstance(right, KernelObject)
    paths = [disk_cache.path_of(task.kernel_spec.key), *(disk_cache.path_of(unit.key) for unit in right.units)]
    for path in paths:
        whole = path.read_bytes()
        for damaged in damages(whole, 60):
            path.write_bytes(damaged)
            assert find_object(task.kernel_spec) is None
        path.write_bytes(whole)
    text = paths[0].read_bytes()
    paths[0].write_bytes(text.replace(b'"workspace_bytes": ', b'"workspace_bytes": 1'))
    assert find_object(task.kernel_spec) is None
    paths[0].write_bytes(text)
    shutil.copy(disk_cache.path_of(task.kernel_spec.key), disk_cache.path_of("another"))
    assert read("another") is None
    assert find_object(task.kernel_spec) == right


@pytest.mark.parametrize(
    "facts",
    [
        {"workspace_bytes": -64}, {"workspace_bytes": 64.5}, {"workspace_bytes": True}, {"parts": [1]}, {"parts": "x"},
        {"name": None}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_facts_of_kernels_have_types(facts: dict[str, object]) -> None:
    (task,) = compile_graph(networks.perceptron((3, 4)), threads=1).tasks
    kept = read(task.kernel_spec.key)
    assert kept is not None
    write(task.kernel_spec.key, {**kept[0], **facts}, kept[1])
    assert find_object(task.kernel_spec) is None


def test_damaged_code_for_a_gpu_is_compiled_again() -> None:
    code = DeviceCode(b"code" * 50)
    disk_cache.write_code("k", code.to_bytes())
    path = kernels_directory() / "k"
    whole = path.read_bytes()
    for damaged in damages(whole, 60):
        path.write_bytes(damaged)
        assert disk_cache.read_code("k") is None
        path.write_bytes(whole)


def test_deeply_nested_json_is_damage(tmp_path: Path) -> None:
    write("deep", {}, b"")
    path = disk_cache.path_of("deep")
    content = DEEP.encode() + b"\nx"
    path.write_bytes(disk_cache._digest("deep", content) + b"\n" + content)
    assert read("deep") is None
    with pytest.raises(ValueError, match="not a compiled kernel"):
        DeviceCode.from_bytes(len(DEEP).to_bytes(8, "little") + DEEP.encode())
    with pytest.raises(UsageError, match="is not a source"):
        decode_source(DEEP.encode())
    saved = tmp_path / "model.asc"
    for facts in ({"graph": DEEP}, {"graph": "{}", "schedules": DEEP}):
        saved.write_bytes(header_of({}, facts))
        with pytest.raises(GraphError, match="is not a saved network, or is damaged"):
            load_archive(saved)
    compile_graph(networks.perceptron((3, 4)), threads=1).save(saved)
    whole = saved.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    entries = json.loads(whole[8:end])
    facts = entries.pop("__metadata__")
    del facts["digest"]
    saved.write_bytes(header_of(entries, {**facts, "schedules": DEEP}) + whole[end:])
    with pytest.warns(AutoschedWarning), pytest.raises(GraphError, match="its schedules cannot be read"):
        load_archive(saved)


# ONNX files


def onnx_file(folder: Path) -> Path:
    weights = np.arange(600, dtype="float32").reshape(20, 30)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 20])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 30])],
        [numpy_helper.from_array(weights, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(made, folder / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    return folder / "m.onnx"


def test_a_damaged_onnx_file_is_refused_or_loaded(tmp_path: Path) -> None:
    path = onnx_file(tmp_path)
    refused = 0
    for damaged in damages(path.read_bytes(), 300):
        path.write_bytes(damaged)
        try:
            load_onnx(path)
        except AutoschedError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed 1, {len(damaged)} bytes, ...{damaged[-20:]!r}") from error
    assert refused > 100


@pytest.mark.parametrize(
    "dims", [[1 << 40, 1 << 40], [1 << 62, 4], [-20, -30], [-1, 600], [(1 << 63) - 1], [1 << 32, 1 << 32]], ids=str
)
@pytest.mark.parametrize("is_external", [True, False])
def test_sizes_that_are_none(tmp_path: Path, dims: list[int], is_external: bool) -> None:
    path = onnx_file(tmp_path)
    model = onnx.load(path, load_external_data=not is_external)
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(dims)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(GraphError, match=r"the tensor w (needs|has)"):
        load_onnx(path)


@pytest.mark.parametrize("place", ["a\0b", "x" * 5000, "", "..", ".", "weights.bin/x"], ids=lambda place: place[:9])
def test_places_of_data_that_are_none(tmp_path: Path, place: str) -> None:
    path = onnx_file(tmp_path)
    model = onnx.load(path, load_external_data=False)
    next(e for e in model.graph.initializer[0].external_data if e.key == "location").value = place
    path.write_bytes(model.SerializeToString())
    with pytest.raises(GraphError, match="the tensor w has its data in"):
        load_onnx(path)


@pytest.mark.parametrize("suffix", [".onnx", ".asc"])
def test_a_file_that_becomes_shorter_under_a_network(tmp_path: Path, suffix: str) -> None:
    graph = load_onnx(onnx_file(tmp_path))
    if suffix == ".asc":
        compile_graph(graph, threads=1).save(tmp_path / "m.asc")
        graph, _ = load_archive(tmp_path / "m.asc")
    model = compile_graph(graph, threads=1)
    x = np.ones((2, 20), "float32")
    right = model(x)
    check_mapped(graph.constants)
    os.truncate(tmp_path / ("m.asc" if suffix == ".asc" else "weights.bin"), 100)
    np.testing.assert_array_equal(model(x), right)  # which has weights of its own
    uses: tuple[Callable[[], object], ...] = (
        lambda: compile_graph(graph, threads=1),
        lambda: references(model, {"x": x}),
        lambda: model.save(tmp_path / "other.asc"),
        lambda: model.with_program(graph, model.program),
    )
    for use in uses:
        with pytest.raises(GraphError, match="has changed since the constant w was mapped from it"):
            use()


# The directory of compiled kernels


def test_a_directory_that_others_can_write_is_left_alone() -> None:
    write("k", {}, b"code")
    first = kernels_directory()
    first.chmod(0o777)
    with pytest.warns(AutoschedWarning, match=r"kernels is not used, because it is not yours or others can write it"):
        kernels_directory()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AutoschedWarning)
        assert read("k") is None
        write("k", {}, b"other")
        assert read("k") == ({}, b"other")
    assert [*first.iterdir()] == [first / "k"]
    assert stat.S_IMODE((state_directory() / "kernels-1").stat().st_mode) == 0o700
    first.chmod(0o700)
    assert read("k") == ({}, b"code")


def test_a_directory_that_is_removed_is_made_again() -> None:
    graph = networks.perceptron((3, 4, 5, 6))
    compile_graph(graph, threads=1)
    for path in (kernels_directory(), state_directory()):
        shutil.rmtree(path)
        disk_cache.shrink()
        write("k", {}, b"code")
        assert read("k") == ({}, b"code")
        shutil.rmtree(path)
        compile_graph(graph, threads=1)


def test_a_directory_that_is_removed_while_a_file_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    write_file, left = disk_cache._write, [1]

    def removed(path: Path, *content: bytes) -> None:
        if left:
            left.pop()
            shutil.rmtree(path.parent)
        write_file(path, *content)

    monkeypatch.setattr(disk_cache, "_write", removed)
    write("k", {}, b"code")
    assert read("k") == ({}, b"code")


def test_a_complete_cache_that_cannot_be_written_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that is mounted read only."""
    graph = networks.perceptron((3, 4, 5, 6))
    right = compile_graph(graph, threads=1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    for name in ("utime", "replace", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    x = np.ones(right.inputs[0].shape, "float32")
    np.testing.assert_array_equal(compile_graph(graph, threads=1)(x), right(x))
    with pytest.raises(UsageError, match="Read-only file system"):
        compile_graph(networks.perceptron((3, 7)), threads=1)

"""Kernels in pieces, which those of other sizes have too: right for odd sizes, kept once, whatever is done to a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.kernel import compilation_units, pool
from autosched.kernel.object_cache import find_object
from autosched.kernel.transfer import NearestSchedules
from autosched.planning.extract_tasks import Choices
from autosched.runtime import disk_cache, versions

CHANNELS, IMAGE = 5, 7


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pool, "ALONE", 99)


def block(images: int) -> Graph:
    """relu(conv(x)), then the mean of each channel."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.normal(size=(CHANNELS, 3, 3, 3)).astype("float32"),
        "b": rng.normal(size=CHANNELS).astype("float32"),
    }
    shapes = {
        "x": (images, 3, IMAGE, IMAGE),
        "c": (images, CHANNELS, IMAGE, IMAGE),
        "r": (images, CHANNELS, IMAGE, IMAGE),
        "y": (images, CHANNELS, 1, 1),
    }
    values = [Value(name, shape, "float32") for name, shape in shapes.items()]
    values += [Value(name, array.shape, "float32") for name, array in constants.items()]
    nodes = (
        Node("conv", ("x", "w", "b"), ("c",), {"pads": ((1, 1), (1, 1))}),
        Node("relu", ("c",), ("r",)),
        Node("reduce_mean", ("r",), ("y",), {"axes": (2, 3), "keepdims": True}),
    )
    return Graph(("x",), ("y",), nodes, {v.name: v for v in values}, constants)


def run(images: int, nearest: NearestSchedules, threads: int = 1) -> Model:
    """The model for a number of images, checked."""
    graph = block(images)
    model = compile_graph(graph, threads=threads, choices=Choices(nearest=nearest))
    x = np.random.default_rng(images).normal(size=graph.values["x"].shape).astype("float32")
    np.testing.assert_allclose(model(x), interpret(graph, {"x": x})["y"], rtol=1e-4, atol=1e-5)
    nearest.add((task.kernel_spec.workload, task.kernel.schedule.steps) for task in model.tasks)
    return model


def parts(model: Model) -> set[str]:
    return {unit.key for task in model.tasks for unit in task.kernel.units}


@pytest.mark.parametrize("threads", [1, 2])
def test_other_images_have_pieces_of_the_first(threads: int) -> None:
    nearest = NearestSchedules()
    first = parts(run(2, nearest, threads))
    for images in (3, 7, 64):
        found = parts(run(images, nearest, threads))
        assert found & first, "weights are prepared alike for any number of images"


def test_a_damaged_piece_is_compiled_again() -> None:
    nearest = NearestSchedules()
    model = run(3, nearest)
    for n, key in enumerate(parts(model)):
        path = disk_cache.path_of(key)
        whole = path.read_bytes()
        damaged_ones = (whole[:-1], whole.replace(b"nests", b"nosts", 1), b"", b"{}\n", b"[1]\nx")
        for damaged in damaged_ones if n == 0 else damaged_ones[:1]:
            path.write_bytes(damaged)
            assert compilation_units.find_unit(key) is None
            assert any(find_object(task.kernel_spec) is None for task in model.tasks)
            run(3, NearestSchedules())
            assert compilation_units.find_unit(key) is not None
        path.unlink()
        run(3, NearestSchedules())
        assert path.exists()


def test_another_version_has_other_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    known = parts(run(2, NearestSchedules()))
    monkeypatch.setattr(versions, "source_digest", lambda: "another autosched")
    assert known.isdisjoint(parts(run(2, NearestSchedules())))


@pytest.mark.slow
def test_two_processes_at_once() -> None:
    text = "from tests.kernel.test_compilation_units import *; run(2, NearestSchedules()); run(5, NearestSchedules())"
    both = [subprocess.Popen([sys.executable, "-c", text]) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    for path in disk_cache.path_of("any").parent.iterdir():
        assert disk_cache.read(path.name) is not None, path.name

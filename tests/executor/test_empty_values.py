"""Compiled networks with inputs, values and outputs without elements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.graph.graph import Graph
from autosched.graph.interpret import interpret
from autosched.graph.saved import load_saved, save_graph
from autosched.runtime.simulator.build import find_compiler
from tests.graph.drafts import Draft, some_inputs
from tests.measure.gpu_kernels import opencl_target


def mixed() -> Graph:
    """Inputs and outputs without elements among others, which are computed by products, sums and concatenations."""
    d = Draft()
    x, empty, rows = d.input(2, 3), d.input(0, 3), d.input(2, 0)
    w = d.random(3, 4)
    whole = d.concat(d.matmul(x, w), d.matmul(empty, w), d.relu(d.matmul(x, w)), axis=0)
    sums = d.add(whole, d.reduce_sum(d.matmul(rows, d.random(0, 4)), axes=(0,)))
    return d.graph(sums, d.matmul(empty, w), d.softmax(rows), d.linear(rows, d.random(5, 0), d.random(5)))


def nothing() -> Graph:
    """Outputs without elements alone, among them an input, a constant, a value twice and a view of another one."""
    d = Draft()
    x, y = d.input(0, 3), d.input(4)
    z = d.relu(x)
    return d.graph(
        z, x, z, d.reshape(z, shape=(3, 0)), d.constant(np.zeros((2, 0))), d.slice_(y, starts=(4,), stops=(4,))
    )


def with_caches() -> Graph:
    """Rows that are written into an input, no rows, and one without places."""
    d = Draft()
    cache, none, rows = d.input(4, 3), d.input(4, 0), d.input(0, 3)
    at = d.constant(np.zeros(0), "int64")
    return d.graph(
        d.write_rows(cache, at, rows, axis=0), d.write_rows(none, d.constant([1], "int64"), d.random(1, 0), axis=0)
    )


def of_indices() -> Graph:
    """Indices that are data: none, and some of a table with and without elements."""
    d = Draft()
    table, empty, none, some = d.input(5, 2), d.input(5, 0), d.input(0, dtype="int64"), d.input(3, dtype="int64")
    return d.graph(d.gather(table, none), d.gather(empty, some), d.add(d.gather(table, some), 1.0))


GRAPHS: tuple[Callable[[], Graph], ...] = (mixed, nothing, with_caches, of_indices)


def inputs_of(graph: Graph) -> dict[str, np.ndarray]:
    return {name: np.abs(a) if a.dtype == np.int64 else a for name, a in some_inputs(graph).items()}


def check(model: Model, graph: Graph) -> None:
    inputs = inputs_of(graph)
    wanted = interpret(graph, inputs)
    outputs = [wanted[name] for name in graph.outputs]
    results = model(**inputs)
    for got, array in zip(results if isinstance(results, tuple) else (results,), outputs, strict=True):
        assert (got.shape, got.dtype) == (array.shape, array.dtype)
        np.testing.assert_allclose(got, array, rtol=1e-5, atol=1e-6)
    out = tuple(np.empty(spec.shape, spec.numpy_dtype) for spec in model.outputs)
    model(**inputs, out=out if len(out) > 1 else out[0])
    for got, array in zip(out, outputs, strict=True):
        np.testing.assert_allclose(got, array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("threads", [1, 2])
def test_on_a_processor(make: Callable[[], Graph], threads: int) -> None:
    check(compile_graph(make(), threads=threads), make())


@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("kind", ["opencl", "cuda"])
def test_on_gpus(make: Callable[[], Graph], kind: str) -> None:
    if kind == "opencl":
        opencl_target()
        check(compile_graph(make(), target="opencl"), make())
    elif find_compiler() is None:
        pytest.skip("no g++")
    else:
        check(compile_graph(make(), target="cuda -arch=sm_80", simulate=True), make())


def test_a_network_of_nothing_has_no_kernels() -> None:
    model = compile_graph(nothing())
    assert (model.tasks, model.arena_bytes, model.program.weights_bytes) == ((), 0, 0)
    assert all(result.size == 0 for result in model(np.zeros((0, 3), np.float32), np.zeros(4, np.float32)))


@pytest.mark.parametrize("make", GRAPHS)
def test_kernels_have_no_empty_arguments(make: Callable[[], Graph]) -> None:
    for kernel in compile_graph(make()).program.kernels.values():
        assert all(kernel.array_bytes)


@pytest.mark.parametrize("make", GRAPHS)
def test_saved_and_loaded(make: Callable[[], Graph], tmp_path: Path) -> None:
    graph = make()
    save_graph(tmp_path / "graph.safetensors", graph, {})
    loaded, _ = load_saved(tmp_path / "graph.safetensors")
    assert str(loaded) == str(graph)
    assert all(array.shape == graph.constants[name].shape for name, array in loaded.constants.items())
    compile_graph(graph).save(tmp_path / "network.asc")
    check(at.load(tmp_path / "network.asc", specialise="now"), graph)


@pytest.mark.parametrize("make", GRAPHS)
def test_verified_shown_and_explained(make: Callable[[], Graph]) -> None:
    model = compile_graph(make())
    assert model.verify().passed
    assert "return" in model.show()
    assert str(model.explain())


@pytest.mark.parametrize("make", GRAPHS)
def test_exported(make: Callable[[], Graph], tmp_path: Path) -> None:
    paths = compile_graph(make()).export(tmp_path / "network.so")
    assert all(path.exists() for path in paths)


def test_other_weights() -> None:
    graph = mixed()
    name = next(name for name, array in graph.constants.items() if array.size)
    model = compile_graph(graph).with_weights({name: 2 * graph.constants[name]})
    check(model, model.original)


def test_tuned(tmp_path: Path) -> None:
    for make in (mixed, nothing):
        result: Any = at.tune(compile_graph(make()), trials=4, db=tmp_path / "records.db")
        check(result.model, make())

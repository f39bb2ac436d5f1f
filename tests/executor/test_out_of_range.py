"""Indices that are data and out of range: calls of networks raise IndexError, and nothing is written elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.errors import AutoschedError, OutOfRangeError
from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.graph.graph import Graph
from tests.executor.test_gpu_model import maker
from tests.graph.drafts import Draft
from tests.measure.gpu_kernels import opencl_target

SIZE = 7


def drawn(graph: Graph, ids: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of a graph whose integers are `ids`."""
    rng = np.random.default_rng(0)
    shapes = {name: (graph.values[name].shape, graph.values[name].dtype) for name in graph.inputs}
    return {
        name: rng.normal(size=shape).astype(dtype) if dtype == "float32" else ids.astype(dtype).reshape(shape)
        for name, (shape, dtype) in shapes.items()
    }


def refused(model: Model, ids: np.ndarray[Any, Any], index: int, low: int = -SIZE, high: int = SIZE - 1) -> None:
    sentence = f"the index {index} is out of range, which is {low} to {high}"
    with pytest.raises(IndexError, match=f"{re.escape(sentence)}$"):
        model(**drawn(model.program.graph, ids))


def gathered(count: int, dtype: str) -> Model:
    d = Draft()
    x, ids = d.input(SIZE, 3), d.input(count, dtype=dtype)
    return compile_graph(d.graph(d.gather(x, ids)), threads=1)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8"])
def test_the_first_index_out_of_range_is_named_wherever_it_stands(dtype):
    count = 53  # three vectors of 16, and five more
    model = gathered(count, dtype)
    right = np.arange(count) % (2 * SIZE) - SIZE
    x = drawn(model.program.graph, right)["in0"]
    np.testing.assert_array_equal(model(x, right.astype(dtype)), x[right])
    for place in range(count):
        ids = right.copy()
        ids[place], ids[place + 1 :: 9] = (SIZE, -SIZE - 1) if place % 2 else (-SIZE - 1, 100)
        refused(model, ids, ids[place])
    np.testing.assert_array_equal(model(x, right.astype(dtype)), x[right]), "a failed call leaves nothing behind"


@pytest.mark.parametrize("index", [2**63 - 1, -(2**63), 2**32, SIZE])
def test_indices_of_any_size(index):
    refused(gathered(1, "int64"), np.array([index]), index)


def test_unsigned_indices_have_no_end_to_count_from():
    model = gathered(3, "uint8")
    refused(model, np.array([0, 255, 6]), 255, 0)
    assert model(**drawn(model.program.graph, np.array([0, 6, 6]))).shape == (3, 3)


def coordinates() -> Graph:
    d = Draft()
    x, ids = d.input(SIZE, 3, 2), d.input(20, 2, dtype="int64")
    return d.graph(d.gather_nd(x, ids))


def test_coordinates_have_the_range_of_their_dimension():
    model = compile_graph(coordinates(), threads=1)
    ids = np.stack([np.arange(20) % SIZE, np.arange(20) % 3], axis=1)
    assert model(**drawn(model.program.graph, ids)).shape == (20, 2)
    for row, column, index in ((19, 0, SIZE), (4, 1, 3)):
        wrong = ids.copy()
        wrong[row, column] = index
        size = (SIZE, 3)[column]
        refused(model, wrong, index, -size, size - 1)


@pytest.mark.parametrize("kind", ["opencl", "cuda"])
def test_a_gpu_reports_the_first_index_out_of_range(kind):
    """Indices that no memory has: both kernels compute them."""
    d = Draft()
    x, ids = d.input(SIZE, 3), d.input(40, 2, dtype="int64")
    graph = d.graph(d.gather_nd(x, d.mul(ids, d.constant([2, 1], "int64"))))
    model = maker(kind)(graph)
    right = np.stack([np.arange(40) % 4, np.arange(40) % 3], axis=1)
    given = drawn(graph, right)
    np.testing.assert_array_equal(model(**given), given["in0"][2 * right[:, 0], right[:, 1]])
    for place, column, index, shown, size in ((39, 0, 4, 8, SIZE), (7, 1, -4, -4, 3), (0, 0, -4, -8, SIZE)):
        ids = right.copy()
        ids[place, column] = index
        ids[place + 1 :, column] = 77
        refused(model, ids, shown, -size, size - 1)
    np.testing.assert_array_equal(model(**given), given["in0"][2 * right[:, 0], right[:, 1]])


def test_a_gpu_checks_calls_with_arrays_of_its_own_when_asked():
    opencl_target()
    model = compile_graph(coordinates(), target="opencl")
    given = drawn(model.program.graph, np.full((20, 2), 5))
    model(*(at.to_device(array, device="opencl") for array in given.values()))
    with pytest.raises(IndexError, match="the index 5 is out of range, which is -3 to 2"):
        model.check_indices()


def computed() -> Graph:
    """Indices that another kernel would have computed where it reads them."""
    d = Draft()
    x, ids = d.input(SIZE, 3), d.input(5, dtype="int64")
    return d.graph(d.gather(x, d.add(ids, d.constant([1, 1, 2, 1, 1], "int64"))))


def of_floats() -> Graph:
    d = Draft()
    x, ids = d.input(SIZE, 3), d.input(5, dtype="int64")
    above = d.reduce_sum(d.cast(d.less(d.constant(0.0), x), dtype="int64"), axes=(0, 1), keepdims=False)
    return d.graph(d.gather(x, d.add(ids, above)))


@pytest.mark.parametrize("make", [computed, of_floats])
def test_indices_that_are_computed_are_checked_as_they_come_out(make):
    model = compile_graph(make(), threads=1)
    x = drawn(model.program.graph, np.zeros(5))["in0"]
    added = np.array([1, 1, 2, 1, 1]) if make is computed else np.full(5, (x > 0).sum())
    ids = np.array([0, 1, SIZE - 1, 2, -SIZE])
    np.testing.assert_array_equal(model(x, ids - added), x[ids])
    refused(model, ids - added + np.array([0, 0, 1, 0, 0]), SIZE)


def elements(reduction: str) -> Graph:
    d = Draft()
    x, ids, updates = d.input(SIZE, 3), d.input(4, 3, dtype="int64"), d.input(4, 3)
    return d.graph(d.scatter_elements(x, ids, updates, axis=0, reduction=reduction))


def rows() -> Graph:
    d = Draft()
    x, ids, updates = d.input(SIZE, 3), d.input(12, 1, dtype="int64"), d.input(12, 3)
    return d.graph(d.scatter_nd(x, ids, updates, reduction="add"))


def cache() -> Graph:
    """Rows that are written in place."""
    d = Draft()
    x, ids, updates = d.input(SIZE, 3), d.input(12, dtype="int64"), d.input(12, 3)
    return d.graph(d.write_rows(x, ids, updates, axis=0))


SCATTERS = {"none": lambda: elements("none"), "max": lambda: elements("max"), "rows": rows, "cache": cache}


@pytest.mark.parametrize("name", SCATTERS)
def test_a_scatter_out_of_range_raises_and_writes_nothing_elsewhere(name):
    model = compile_graph(SCATTERS[name](), threads=1)
    for index in (SIZE, -SIZE - 1, 10**9, -(2**62)):
        ids = np.arange(12) % SIZE
        ids[7] = index
        guarded = np.full((3 * SIZE, 3), 5.0, "float32")
        with pytest.raises(IndexError, match=f"the index {index} is out of range, which is -7 to 6"):
            model(**drawn(model.program.graph, ids), out=guarded[SIZE : 2 * SIZE])
        assert (guarded[:SIZE] == 5).all()
        assert (guarded[2 * SIZE :] == 5).all()


def test_a_cache_is_as_it_was_after_a_call_that_failed():
    model = compile_graph(cache(), threads=1)
    given = drawn(model.program.graph, np.arange(12) % SIZE)
    given["in1"][11] = SIZE
    before = given["in0"].copy()
    with pytest.raises(IndexError):
        model(**given, out=given["in0"])
    np.testing.assert_array_equal(given["in0"], before)


def test_saved_networks_check(tmp_path: Path):
    model = compile_graph(coordinates(), threads=1)
    model.save(tmp_path / "net.asc")
    loaded = at.load(tmp_path / "net.asc", threads=1)
    refused(loaded, np.full((20, 2), -4), -4, -3, 2)


def test_networks_of_varying_sizes_check() -> None:
    torch = pytest.importorskip("torch")
    table = torch.nn.Embedding(SIZE, 3)
    varying = at.load_dynamic(table, [torch.zeros(2, dtype=torch.int64)], threads=1)
    for count in (3, 5):
        assert varying(np.zeros(count, "int64")).shape == (count, 3)
        with pytest.raises(IndexError, match=r"aten\.embedding\.default.*the index -1 is out of .* 0 to 6$"):
            varying(np.full(count, -1))


def test_torch_compile_raises_as_torch_does():
    torch = pytest.importorskip("torch")
    compiled = torch.compile(lambda t, i: t[i] * 2, backend="autosched")
    x = torch.arange(5.0)
    assert compiled(x, torch.tensor([0, -5])).tolist() == [0.0, 0.0]
    with pytest.raises(IndexError, match=r"aten\.index\.Tensor: the index 7 is out of range, which is -5 to 4"):
        compiled(x, torch.tensor([0, 7]))
    assert compiled(x, torch.tensor([4, 3])).tolist() == [8.0, 6.0]


def test_other_weights_are_checked_anew():
    """A divisor that is a weight proves the range of indices; another one does not."""
    d = Draft()
    x, ids = d.input(SIZE, 3), d.input(5, dtype="int64")
    model = compile_graph(d.graph(d.gather(x, d.mod(ids, d.constant(SIZE, "int64")))), threads=1)
    assert model.program.checks == ()
    (name,) = model.original.constants
    other = model.with_weights({name: np.array(SIZE + 2)})
    refused(other, np.array([0, 1, SIZE + 1, 2, SIZE]), SIZE + 1)


def test_the_error_is_one_of_autosched_too():
    assert issubclass(OutOfRangeError, AutoschedError)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_an_exported_library_returns_a_code_and_says_which_index(tmp_path: Path):
    model = compile_graph(coordinates(), threads=1)
    model.export(tmp_path / "net.so")
    header = (tmp_path / "net.h").read_text()
    assert "AUTOSCHED_NET_OUT_OF_RANGE 34" in header
    assert re.search(r"1: gather_nd, -3 to 2", header)
    (tmp_path / "main.c").write_text(
        """
#include <stdio.h>
#include <stdlib.h>
#include "net.h"
int main(int argc, char **argv) {
    static float x[AUTOSCHED_NET_SIZE_in0], y[AUTOSCHED_NET_SIZE_v0a];
    static int64_t ids[AUTOSCHED_NET_SIZE_in1];
    const void *weights = autosched_net_map(argv[argc - 1]);
    int64_t *workspace = aligned_alloc(64, AUTOSCHED_NET_WORKSPACE_BYTES);
    if (weights == NULL || autosched_net(x, ids, y, weights, workspace) != 0) return 1;
    ids[5] = -4;
    if (autosched_net(x, ids, y, weights, workspace) != AUTOSCHED_NET_OUT_OF_RANGE) return 2;
    return workspace[0] == 1 && workspace[1] == -4 ? 0 : 3;
}
"""
    )
    command = ["cc", "main.c", "-o", "main", "./net.so", "-Wl,-rpath,."]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    assert subprocess.run(["./main", "net.safetensors"], cwd=tmp_path, timeout=60).returncode == 0

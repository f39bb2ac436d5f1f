"""Networks against the reference: right ones pass, and of wrong ones the culprit is named."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from autosched import api
from autosched.errors import UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.graph.graph import Graph
from autosched.verification.sample_inputs import InputSet, input_sets
from autosched.verification.tolerances import compare, float_error
from autosched.verification.verify import Verification, verify_network
from tests.graph import networks
from tests.graph.networks import Builder

NETWORKS = {
    "joined": networks.joined,
    "residual": networks.residual,
    "perceptron": lambda: networks.perceptron((3, 17, 17, 1)),
    "attention": networks.attention_block,
    "views": networks.views_out,
}


def checked(model: Model, locate: bool = False) -> Verification:
    return verify_network(model, input_sets(model.original), locate)


@pytest.mark.parametrize("name", NETWORKS)
def test_right_networks_pass(name):
    model = compile_graph(NETWORKS[name](), threads=1)
    found = checked(model)
    assert found.passed, found.summary()
    assert set(found.outputs) == {"normal", "structured"}
    assert len(found.kernels) == len(model.program.kernels)
    assert all(c.passed for c in found.ideal)
    assert "nearest to its bound" in found.summary()


def test_a_damaged_weight_is_found_in_its_kernel():
    model = compile_graph(networks.perceptron((3, 17, 17, 5)), threads=1)
    assert checked(model).passed
    second = sorted(model.program.packed_offsets)[1]
    floats = model.block[model.program.packed_offsets[second] :].view("float32")
    floats[np.flatnonzero(floats)[0]] += 1.0
    found = checked(model)
    assert not found.passed
    assert found.first_wrong is not None
    assert found.first_wrong.step == second
    assert found.first_wrong.operators == "linear relu"
    assert [kernel.worst.passed for kernel in found.kernels].count(False) == 1
    assert "because of the kernel linear relu" in found.summary()
    assert [kernel.step for kernel in checked(model, locate=True).kernels][-1] == second


def test_a_wrong_epsilon_is_found():
    def norm(epsilon: float) -> Graph:
        b = Builder(x=(3, 31))
        return b.graph(b.add("layer_norm", "x", None, None, axes=1, epsilon=epsilon))

    wrong = compile_graph(norm(2e-5), threads=1)
    wrong.original = norm(1e-5)
    found = checked(wrong)
    assert not found.passed
    assert found.first_wrong is None
    assert "what passes make of the graph" in found.summary()


def test_kernels_that_meet_in_memory_are_told_from_wrong_ones():
    model = compile_graph(networks.perceptron((3, 17, 17, 5)), threads=1)
    right = model.launch

    def spoiled(addresses):
        right(addresses)
        ctypes.c_float.from_address(addresses[-1]).value = 7.0

    model._gate, model.launch = None, spoiled
    found = checked(model)
    assert not found.passed
    assert found.first_wrong is None
    assert "how they were put together" in found.summary()


def test_equal_numbers_that_are_added_up_are_rounded_alike():
    """So that the errors add up, which those of a kernel are allowed to."""
    b = Builder(x=(2, 2053, 3))
    model = compile_graph(b.graph(b.add("reduce_sum", "x", axes=(1,))), threads=1)
    found = verify_network(model, [InputSet("equal", {"x": np.full((2, 2053, 3), 0.1, "float32")})])
    assert found.passed, found.summary()


def test_rounded_floats_may_be_neighbours_near_a_tie():
    b = Builder(x=(200,))
    scale = b.constant()
    b.constants[scale] = np.array(0.02, "float32")
    model = compile_graph(b.graph(b.add("quantize", "x", scale, None, dtype="uint8")), threads=1)
    ties = ((np.arange(200) + 0.5) * 0.02).astype("float32")
    found = verify_network(model, [InputSet("ties", {"x": ties})])
    (kernel,) = found.kernels
    assert kernel.worst.error.rms > 0.01  # of them are not where float64 has them
    assert kernel.worst.passed
    assert found.passed, found.summary()  # a network of right kernels
    wrong = compile_graph(b.graph(b.add("quantize", "x", scale, None, dtype="uint8")), threads=1)
    wrong.block.view("float32")[:1] *= 1.02  # the scale
    assert not verify_network(wrong, [InputSet("ties", {"x": ties})]).passed


def test_inputs_are_what_their_readers_take():
    b = Builder(ids=(5, 3), mask=(5, 3), x=(4,))
    b.values["ids"] = replace(b.values["ids"], dtype="int64")
    b.values["mask"] = replace(b.values["mask"], dtype="int32")
    table = b.constant(7, 2)
    looked_up = b.add("gather", table, "ids", axis=0)
    logarithm = b.add("log", b.add("mul", "x", b.constant(1)))
    graph = b.graph(looked_up, logarithm, b.add("cast", "mask", dtype="float32"))
    for given in input_sets(graph):
        ids, mask, x = (given.arrays[name] for name in ("ids", "mask", "x"))
        assert (ids.min(), ids.max()) == (0, 6)
        assert set(np.unique(mask)) <= {0, 1}
        assert (x > 0).all()
    mine = {name: array[::-1] for name, array in input_sets(graph)[0].arrays.items()}
    first, structured = input_sets(graph, mine)
    assert first.kind == "given"
    assert first.arrays["x"] is mine["x"]
    assert structured.arrays["ids"] is mine["ids"]


def test_distances():
    want = np.array([3.0, 4.0, np.nan, -np.inf])
    assert float_error(want.astype("float32"), want).relative_to(float_error(want, want)) == 0.0
    assert float_error(np.array([3.0, 4.0, 0.0, -np.inf]), want).rms == np.inf
    assert float_error(np.array([3.0, np.nan, np.nan, -np.inf]), want).rms == np.inf
    assert float_error(np.array([3.0, 4.5, np.nan, -np.inf]), want).largest == 0.125
    assert float_error(np.array([0.0]), np.array([0.0])).rms == 0.0


def test_integers_are_equal_and_bytes_may_be_neighbours():
    want = np.arange(200)
    assert compare("y", want, want, want).passed
    assert not compare("y", want + (want == 7), want, want).passed
    small = want.astype("uint8")
    assert compare("y", small + (small == 7), small, small).passed
    assert not compare("y", small + 2 * (small == 7), small, small).passed
    assert not compare("y", small + (small > 7), small, small).passed


def test_verify_takes_networks_and_arrays():
    graph = networks.perceptron((3, 5))
    assert api.verify(graph).passed
    model = api.load(graph, threads=1)
    x = np.ones((2, 3), "float32")
    assert set(api.verify(model, [x]).outputs) == {"given", "structured"}
    assert api.verify(model, {"x": x}).passed
    with pytest.raises(UsageError, match="takes 1 arrays"):
        api.verify(model, [x, x])
    with pytest.raises(UsageError, match="input x must be float32"):
        api.verify(model, [x[:1]])
    with pytest.raises(UsageError, match="inputs are arrays in order, or by name"):
        api.verify(model, 3)

"""Networks for sizes that are known at a call compute what the graph imported with these sizes does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from autosched.errors import OutOfRangeError
from autosched.executor.compile_graph import compile_for_sizes
from autosched.executor.compile_options import CompileOptions
from autosched.executor.sized_network import SizedNetwork
from autosched.graph.interpret import interpret
from autosched.graph.memory.arena import plan_arena
from autosched.graph.memory.arena_order import ArenaOrder
from autosched.graph.memory.buffers import workspace_name
from autosched.graph.memory.liveness import LiveBuffer
from autosched.graph.memory.storage import StorageError
from autosched.graph.onnx.importer import import_model
from autosched.graph.traces import symbolic_sizes
from autosched.ir.size import Guards
from autosched.kernel.object_cache import find_object
from autosched.runtime.simulator.build import find_compiler
from tests.graph.onnx import test_traces as networks
from tests.graph.onnx.models import model, node
from tests.measure.gpu_kernels import opencl_target

RNG = np.random.default_rng(5)
TARGETS = ("cpu", "opencl", "cuda")


def options(target: str) -> CompileOptions:
    if target == "cpu":
        return CompileOptions(threads=2, records=False)
    if target == "opencl":
        opencl_target()
        return CompileOptions("opencl", records=False)
    if find_compiler() is None:
        pytest.skip("no g++")
    return CompileOptions("cuda -arch=sm_80", records=False, simulate=True)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


def perceptron() -> Any:
    """softmax(relu(x u + b) v) of any number of rows: packed weights, a bias and a reduction."""
    constants = {"u": floats(13, 24), "b": floats(24), "v": floats(24, 7)}
    nodes = [
        node("MatMul", ["x", "u"], ["h"]),
        node("Add", ["h", "b"], ["s"]),
        node("Relu", ["s"], ["r"]),
        node("MatMul", ["r", "v"], ["t"]),
        node("Softmax", ["t"], ["y"], axis=-1),
    ]
    return model(nodes, {"x": ["n", "m", 13]}, constants=constants)


def images() -> Any:
    """Convolutions, a pool, a resize to twice the size, and a mean over a number of pixels that varies."""
    scales = np.array([1, 1, 2, 2], "float32")
    constants = {"w": floats(6, 3, 3, 3), "b": floats(6), "d": floats(6, 1, 3, 3), "scales": scales}
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "d"], ["e"], pads=[1, 1, 1, 1], group=6),
        node("MaxPool", ["e"], ["p"], kernel_shape=[2, 2]),
        node("ReduceMean", ["p"], ["y"], axes=[2, 3], keepdims=0),
        node("Resize", ["e", "", "scales"], ["z"], mode="linear"),
    ]
    return model(nodes, {"x": [2, 3, "n", "m"]}, ("y", "z"), constants=constants, opset=13)


def transforms() -> Any:
    """A transform of each of two inputs by kernels of one structure, whose code is the same for both, and their sum
    over rows."""
    constants = {"u": floats(21, 24), "v": floats(21, 24)}
    nodes = [
        node("MatMul", ["x", "u"], ["a"]),
        node("Tanh", ["a"], ["y"]),
        node("MatMul", ["w", "v"], ["b"]),
        node("Tanh", ["b"], ["z"]),
        node("ReduceSum", ["y", "rows"], ["s"], keepdims=0),
    ]
    return model(nodes, {"x": ["n", 21], "w": ["m", 21]}, ("y", "z", "s"), constants={**constants, "rows": [0]})


def running_sums() -> Any:
    """Sums of rows so far, and a sum of all: on GPUs kernels of several launches, with scratch memory between them. No
    sum is near 0, where rounding errors are larger than it."""
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("CumSum", ["a", "rows"], ["y"]),
        node("ReduceSum", ["y"], ["s"], keepdims=0),
    ]
    return model(nodes, {"x": ["n", 37]}, ("y", "s"), constants={"rows": 0})


def quantised() -> Any:
    """A product with weights of 8 bits, which GPUs make floats once, when the network is loaded."""
    constants = {"w": RNG.integers(-8, 8, (137, 127)).astype("int8"), "scale": np.abs(floats(127)) + 1}
    nodes = [
        node("DequantizeLinear", ["w", "scale"], ["floats"], axis=1),
        node("MatMul", ["x", "floats"], ["p"]),
        node("Softmax", ["p"], ["y"], axis=-1),
    ]
    return model(nodes, {"x": ["n", 137]}, constants=constants)


def pooled() -> Any:
    """A pool of what an image and its gate are computed to, whose registers on a GPU depend on the image's height."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Mul", ["c", "gate"], ["m"]),
        node("Add", ["c", "m"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    inputs = {"x": ["b", 3, "n", "m"], "gate": ["b", 24, 1, 1]}
    return model(nodes, inputs, constants={"w": floats(24, 3, 3, 3)})


def network_of(network: Any, sizes: Mapping[str, int], target: str = "cpu") -> SizedNetwork:
    guards = Guards()
    ranges = dict.fromkeys(sizes, networks.MOST)

    def make_graph() -> Any:
        return import_model(network, symbolic_sizes(guards, sizes, ranges), {})

    return compile_for_sizes(guards, make_graph, options(target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("make", "present", "others"),
    [
        (networks.positions, {"n": 12}, [{"n": n} for n in (13, 3, 64, 79)]),
        (networks.attention, {"n": 12}, [{"n": n} for n in (13, 5, 47)]),
        (networks.heads, {"n": 12}, [{"n": n} for n in (13, 31)]),
        (networks.cache, {"n": 12}, [{"n": n} for n in (13, 2, 97)]),
        (perceptron, {"n": 2, "m": 9}, [{"n": 3, "m": 9}, {"n": 2, "m": 64}, {"n": 7, "m": 31}]),
        (images, {"n": 17, "m": 12}, [{"n": 19, "m": 23}, {"n": 40, "m": 11}]),
        (transforms, {"n": 5, "m": 5}, [{"n": 7, "m": 5}, {"n": 5, "m": 19}, {"n": 31, "m": 2}]),
        (running_sums, {"n": 900}, [{"n": n} for n in (901, 40, 2011)]),
        (quantised, {"n": 9}, [{"n": n} for n in (2, 31, 40)]),
        (pooled, {"b": 2, "n": 20, "m": 24}, [{"b": 3, "n": 7, "m": 24}, {"b": 2, "n": 21, "m": 31}]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_network_of_sizes_is_the_network_of_each(make: Any, present: Any, others: Any, target: str) -> None:
    network = make()
    sized = network_of(network, present, target)
    calls = 0
    for sizes in (present, *others, present):
        call = sized.at(sizes)
        if call is None:
            assert sizes is not present
            continue
        calls += 1
        graph = import_model(network, sizes, {})
        values = [graph.values[name] for name in graph.inputs]
        arrays = {value.name: RNG.standard_normal(value.shape).astype("float32") for value in values}
        results = call(*arrays.values())
        results = results if isinstance(results, tuple) else (results,)
        for (name, expected), result in zip(interpret(graph, arrays).items(), results, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5, err_msg=f"{name} of {sizes}")
        sized.plan(sizes).verify()
    assert calls > len(others) // 2 + 1


def test_a_plan_with_overlapping_buffers_is_found() -> None:
    sized = network_of(perceptron(), {"n": 2, "m": 9})
    plan = sized.plan({"n": 3, "m": 9})
    wrong = replace(plan.memory, offsets=dict.fromkeys(plan.memory.offsets, 0))
    with pytest.raises(StorageError):
        replace(plan, memory=wrong).verify()


def test_code_for_other_sizes_has_scratch_of_its_own() -> None:
    """The code for the present sizes may need none, and that for others some."""
    program = network_of(perceptron(), {"n": 2, "m": 9}).program
    scratch = {name for n, kernel in program.kernels.items() if kernel.sizes for name in [workspace_name(n)]}
    assert scratch <= program.memory.offsets.keys()
    assert len(scratch) == 3


@pytest.mark.parametrize("alignment", [64, 512])
def test_buffers_keep_their_order_and_stay_apart(alignment: int) -> None:
    buffers = [
        LiveBuffer("a", 640, 0, 2), LiveBuffer("b", 64, 1, 3), LiveBuffer("c", 320, 3, 5), LiveBuffer("d", 64, 2, 5),
        LiveBuffer("e", 1280, 4, 5),
    ]  # fmt: skip
    plan = plan_arena(buffers)
    order = ArenaOrder.of(plan, buffers, alignment)
    for scale in ((1, 1, 1, 1, 1), (7, 1, 3, 9, 2), (1, 50, 1, 1, 3)):
        nbytes = {t.name: t.nbytes * n + 3 for t, n in zip(buffers, scale, strict=True)}
        offsets, total = order.offsets(nbytes)
        assert all(offset % alignment == 0 for offset in offsets.values())
        assert total == max(offsets[name] + nbytes[name] for name in offsets)
        for x in buffers:
            for y in buffers:
                if x is not y and x.first <= y.last and y.first <= x.last:
                    apart = offsets[x.name] + nbytes[x.name] <= offsets[y.name]
                    assert apart or offsets[y.name] + nbytes[y.name] <= offsets[x.name]


@pytest.mark.parametrize("target", TARGETS)
def test_an_index_out_of_a_range_that_varies(target: str) -> None:
    network = model([node("Gather", ["table", "ids"], ["y"])], {"table": ["n", 3], "ids": ["m"]})
    network.graph.input[1].type.tensor_type.elem_type = 7  # int64
    sized = network_of(network, {"n": 5, "m": 2}, target)
    call = sized.at({"n": 9, "m": 3})
    assert call is not None
    rows = floats(9, 3)
    np.testing.assert_array_equal(call(rows, np.array([8, -9, 0])), rows[[8, 0, 0]])
    with pytest.raises(OutOfRangeError, match="9 is out of range, which is -9 to 8"):
        call(rows, np.array([1, 9, 0]))


def test_code_for_other_sizes_is_in_the_disk_cache() -> None:
    sized = network_of(perceptron(), {"n": 4, "m": 48})
    taken = 0
    for kernel in sized.variants.values():
        first = kernel.variants[0]
        for m in (48, 96, 144, 50):
            values = sized.guards.values({"n": 4, "m": m})
            symbols = kernel.symbols(values)
            of_sizes = kernel.spec_at(values)
            entries = [find_object(replace(of_sizes, steps=steps)) for steps in (of_sizes.steps, "")]
            codes = [entry for entry in entries if entry is not None]
            if not first.sizes.hold(symbols):
                continue
            taken += m != 48
            assert first.kernel.code in [entry.code for entry in codes]
            _, array_bytes, workspace_bytes = first.sizes.numbers(symbols)
            assert (array_bytes, workspace_bytes) in [(entry.array_bytes, entry.workspace_bytes) for entry in codes]
    assert taken


def test_networks_share_equal_weights() -> None:
    first, second = (network_of(perceptron(), {"n": 2, "m": m}) for m in (9, 64))
    second.block = own = first.block + 1
    second.share_weights([first])
    assert second.block is own
    second.block = first.block.copy()
    second.share_weights([first])
    assert second.block is first.block


def test_a_transposition_does_not_decide_that_sizes_differ() -> None:
    network = model([node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Exp", ["t"], ["y"])], {"x": ["n", 8]})
    sized = network_of(network, {"n": 5})
    for n in (5, 8):
        call = sized.at({"n": n})
        assert call is not None, sized.guards
        np.testing.assert_allclose(call(x := floats(n, 8)), np.exp(x.T), rtol=1e-5)

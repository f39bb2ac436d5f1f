"""The bounds of networks: the least accurate correct schedules pass, wrong kernels do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.graph.graph import Array, Graph
from autosched.kernel.spec import KernelSpec
from autosched.planning.extract_tasks import Choices
from autosched.schedule import steps_to_json
from autosched.schedule.state import initial_state
from autosched.schedule.steps.loops import Parallel
from autosched.verification.sample_inputs import InputSet, input_sets
from autosched.verification.verify import (
    Arrays,
    Verification,
    compare_outputs,
    references,
    verify_network,
    verify_outputs,
)
from tests.graph import networks
from tests.graph.networks import Builder


def classifier(terms: int = 9001) -> Graph:
    """A convolution, the mean over its pixels and products, one with long sums."""
    b = Builder(x=(1, 3, 9, 7))
    pixels = b.add("relu", b.add("conv", "x", b.constant(32, 3, 3, 3), b.constant(32)))
    features = b.add("reshape", b.add("reduce_mean", pixels, axes=(2, 3)), shape=(1, 32))
    hidden = b.add("sigmoid", b.add("linear", features, b.constant(terms, 32), b.constant(terms)))
    return b.graph(b.add("linear", hidden, b.constant(200, terms), b.constant(200)))


def transformer(length: int = 13, width: int = 96) -> Graph:
    """Attention and a perceptron, each normalised, with residuals."""
    b = Builder(x=(1, length, width))
    q, k, v = (
        b.add(
            "transpose",
            b.add("reshape", b.add("matmul", "x", b.constant(width, width)), shape=(1, length, 2, width // 2)),
            perm=perm,
        )
        for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    )
    heads = b.add("matmul", b.add("softmax", b.add("matmul", q, k), axis=-1), v)
    joined = b.add("reshape", b.add("transpose", heads, perm=(0, 2, 1, 3)), shape=(1, length, width))
    first = b.add("layer_norm", b.add("add", joined, "x"), b.constant(width), b.constant(width), axes=1, epsilon=1e-5)
    inner = b.add("relu", b.add("linear", first, b.constant(4 * width, width), b.constant(4 * width)))
    outer = b.add("linear", inner, b.constant(width, 4 * width), b.constant(width))
    return b.graph(b.add("layer_norm", b.add("add", outer, first), None, None, axes=1, epsilon=1e-5))


NETWORKS: dict[str, Callable[[], Graph]] = {
    "classifier": classifier,
    "transformer": transformer,
    "residual": lambda: networks.residual(33, 9),
    "regression": lambda: networks.perceptron((71, 1500, 700, 1)),
}


def in_order(kernel_specs: Sequence[KernelSpec]) -> list[KernelSpec]:
    """No loop split, reordered or vectorised: each sum has one number added after the other. The outermost loop of each
    stage is parallel, on one thread, as networks do not take steps that leave a stage out."""

    def steps(kernel_spec: KernelSpec) -> str:
        state = initial_state(kernel_spec.request.collapsed)
        for stage in state.stages:
            if stage.loops:
                state = state.apply(Parallel(stage.name, (stage.loops[0].name,)))
        return steps_to_json(state, {})

    return [replace(kernel_spec, steps=steps(kernel_spec)) for kernel_spec in kernel_specs]


@cache
def model_of(name: str) -> Model:
    return compile_graph(NETWORKS[name](), threads=1, choices=Choices(in_order))


@cache
def reference_of(name: str) -> tuple[Arrays, tuple[Arrays, Arrays]]:
    """Inputs of a network, and its outputs for them: in float64 and of a plain evaluation."""
    model = model_of(name)
    arrays = input_sets(model.original)[0].arrays
    return arrays, references(model, arrays)


def checked(model: Model) -> Verification:
    return verify_network(model, input_sets(model.original))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_least_accurate_schedules_pass(name: str) -> None:
    found = checked(model_of(name))
    assert found.passed, found.summary()


def test_a_long_sum_in_order_is_less_accurate_than_in_parts() -> None:
    """So that the schedules above are what the bound must allow."""
    parts, ordered = (checked(model) for model in (compile_graph(classifier(), threads=1), model_of("classifier")))
    assert 2 * parts.worst_output.error.rms < ordered.worst_output.error.rms


FAULTS: dict[str, Callable[[Array], Array]] = {
    "a dropped term": lambda w: np.where(np.arange(w.size).reshape(w.shape) % w[0].size == 5, 0, w),
    "a dropped term of one result": lambda w: np.where(np.arange(w.size).reshape(w.shape) == 5, 0, w),
    "a swapped row": lambda w: w[[1, 0, *range(2, len(w))]],
    "a wrong constant": lambda w: w * np.float32(1.001),
    "an index off by one": lambda w: np.roll(w, 1, axis=-1),
    "a missing step": lambda w: np.where(np.arange(w.size).reshape(w.shape) % w[0].size >= w[0].size * 3 // 4, 0, w),
}


def weights_of(model: Model) -> list[str]:
    """The constants of more than one dimension: those of products and convolutions."""
    return [name for name, array in model.original.constants.items() if array.ndim > 1]


def faulty(model: Model, name: str, fault: Callable[[Array], Array]) -> Model:
    """The network with one kernel that computes something else than the graph says: it packed other weights."""
    changed = fault(model.original.constants[name]).astype("float32")
    wrong = model.with_weights({name: changed})
    wrong.original, wrong.program = model.original, replace(wrong.program, graph=model.program.graph)
    return wrong


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_wrong_kernel_is_found(name: str, fault: str) -> None:
    """By the outputs alone, as a search ends, wherever it is."""
    model = model_of(name)
    arrays, known = reference_of(name)
    for weights in weights_of(model):
        if len(model.original.constants[weights]) > 1 or fault != "a swapped row":
            outputs = compare_outputs(faulty(model, weights, FAULTS[fault]), arrays, known)
            assert not all(c.passed for c in outputs), f"{weights}: {outputs[0]}"


@pytest.mark.parametrize("name", NETWORKS)
def test_the_wrong_kernel_is_named(name: str) -> None:
    model = model_of(name)
    found = checked(faulty(model, weights_of(model)[-1], FAULTS["a dropped term"]))
    assert not found.passed
    assert [kernel.worst.passed for kernel in found.kernels].count(False) == 1


def test_what_errors_of_right_kernels_come_to_is_accepted() -> None:
    """Of a network whose plain evaluation happens to be exact; and no more than that."""
    model, (arrays, (wanted, _)) = model_of("classifier"), reference_of("classifier")
    given, known = InputSet("normal", arrays), (wanted, wanted)
    (alone,) = compare_outputs(model, arrays, known)
    assert not alone.passed
    found = verify_outputs(model, given, known)
    (output,) = found.all_outputs
    assert found.passed, found.summary()
    assert output.tolerance.rms < alone.tolerance.rms + 1.001 * alone.error.rms
    wrong = faulty(model, weights_of(model)[-1], FAULTS["a dropped term"])
    found = verify_outputs(wrong, given, known)
    assert not found.passed
    assert found.first_wrong is not None
    assert found.first_wrong.operators == "linear"

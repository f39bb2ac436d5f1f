"""Which sums are 3x3 convolutions of stride 1, and how far Winograd's float32 may be from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched import te
from autosched.schedule import Winograd, initial_state
from autosched.te import ComputeDAG, Tensor
from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.winograd import MATRICES, TILES, match_stage
from tests.codegen.running import build as compiled
from tests.codegen.running import run, targets

Array = npt.NDArray[Any]
U = 2.0**-24


def convolutions(dag: ComputeDAG) -> list[str]:
    return [op.name for op in dag.stages if match_stage(op) is not None]


def transposed_layout() -> Tensor:
    """A user's own: weights first, rows last, an offset, two images' axes and two of outputs."""
    x = te.placeholder((2, 5, 8, 3, 9), name="x")  # image, channel, column, group of images, row
    w = te.placeholder((4, 3, 2, 3, 5), name="w")  # output, kw, output, kh, channel
    c, kh, kw = te.reduce_axis(5, "c"), te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw")

    def body(oh: Any, ow: Any, n: Any, g: Any, o: Any, q: Any) -> Any:
        return te.sum(w[o, kw, q, kh, c] * x[n, c, kw + ow, g, oh + kh + 1], axis=[kh, c, kw])

    result: Tensor = te.compute((6, 6, 2, 3, 4, 2), body, name="y")
    return result


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("c2d", {"k": 3, "stride": 1}),
        ("conv2d", {}),
        ("conv2d", {"layout": "NCHW"}),
        ("conv2d", {"dtype": "float64", "pad": 0}),
        ("conv2d", {"dtype": "float16"}),
        ("cbr", {"k": 3, "stride": 1}),
        ("cap", {"k": 3, "stride": 1}),
    ],
)
def test_convolutions_are_known_by_what_they_compute(name: str, settings: dict[str, Any]) -> None:
    dag = build(name, settings=settings)[0]
    assert len(convolutions(dag)) == len(convolutions(collapse(dag))) == 1


def test_a_users_own_convolution_is_known_in_any_layout() -> None:
    assert convolutions(ComputeDAG(transposed_layout())) == ["y"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("conv2d", {"stride": 2}),
        ("conv2d", {"k": 5}),
        ("conv2d", {"k": 1, "pad": 0}),
        ("conv2d", {"dilation": 2}),
        ("conv2d", {"groups": 4}),
        ("conv2d", {"dtype": "int32"}),
        ("depthwise", {}),
        ("c1d", {"k": 3, "stride": 1}),
        ("c3d", {"k": 3, "stride": 1}),
        ("max_pool2d", {"stride": 1}),
        ("t2d", {}),
        ("matmul", {}),
    ],
)
def test_nothing_else_is(name: str, settings: dict[str, Any]) -> None:
    assert convolutions(build(name, settings=settings)[0]) == []


@pytest.mark.parametrize("m", TILES)
def test_the_matrices_are_those_of_the_identity(m: int) -> None:
    """A^T [(G g) * (B^T d)] is the correlation of d with g, for all basis vectors."""
    bt, g, at = (np.array([np.array(row) / divisor for row, divisor in matrix]) for matrix in MATRICES[m])
    for k in range(3):
        found = at @ (g[:, [k]] * bt)
        np.testing.assert_allclose(found, np.eye(m, m + 2, k), atol=1e-15)


# The error


def convolved(dag: ComputeDAG, inputs: dict[str, Array], m: int) -> Array:
    """What Winograd's stages compute in float32."""
    (stage,) = convolutions(dag)
    target = targets()[0]
    (got,) = run(compiled(initial_state(dag).apply(Winograd(stage, m)), target, 1), dag, inputs, target)
    return got


def scaled_channels(inputs: dict[str, Array], rng: np.random.Generator) -> None:
    """Channels of very different sizes, whose products are alike."""
    powers = 2.0 ** rng.integers(-20, 20, inputs["X"].shape[3])
    inputs["X"] = (inputs["X"] * powers).astype(np.float32)
    inputs["W"] = (inputs["W"] / powers[:, None]).astype(np.float32)


def one_large(inputs: dict[str, Array], rng: np.random.Generator) -> None:
    """One pixel beside which all others are small, and taps of zeros that it meets."""
    inputs["X"][:, 3, 3] *= 2.0**20
    inputs["W"][2] = 0


def cancelling(inputs: dict[str, Array], rng: np.random.Generator) -> None:
    """Smooth images under a filter whose taps sum to nearly nothing."""
    inputs["X"] = (1000 + inputs["X"] * 0.01).astype(np.float32)
    inputs["W"] = (inputs["W"] - inputs["W"].mean(axis=(0, 1))).astype(np.float32)


def as_they_are(inputs: dict[str, Array], rng: np.random.Generator) -> None:
    pass


def cases(change: Callable[[dict[str, Array], np.random.Generator], None], seed: int) -> tuple[ComputeDAG, Any]:
    dag = build("c2d", (1, 8, 8, 7, 4, 3, 1, 1))[0].with_winograd()
    inputs = dict(make_inputs(dag, seed, "normal"))
    change(inputs, np.random.default_rng(seed))
    return dag, inputs


def stated_bound(inputs: dict[str, Array], m: int) -> Array:
    """gamma_N |A^T| [sum (|G||g||G^T|) * (|B^T||d||B|)] |A|, for an 8 x 8 image with padding."""
    bt, g, at = (np.array([np.abs(np.array(row)) / divisor for row, divisor in matrix]) for matrix in MATRICES[m])
    channels = inputs["X"].shape[3]

    def roundings(matrix: Array, others: int) -> int:
        """Of one dimension: products and sums in a row."""
        return int((matrix != 0).sum(axis=1).max()) + others

    n = 2 * (roundings(bt, 0) + roundings(g, 3) + roundings(at, 0)) + 2 * channels + 1
    u = n * U / (1 - n * U)
    x, w = np.abs(inputs["X"][0].astype(float)), np.abs(inputs["W"].astype(float))
    image = np.zeros((8 + 4, 8 + 4, channels))
    image[1:9, 1:9] = x
    kernel = np.einsum("ak,bl,klcq->abcq", g, g, w)
    result = np.zeros((8, 8, w.shape[3]))
    for r in range(0, 8, m):
        for s in range(0, 8, m):
            data = np.einsum("ak,bl,klc->abc", bt, bt, image[r : r + m + 2, s : s + m + 2])
            tile = np.einsum("ia,jb,abc,abcq->ijq", at, at, data, kernel)
            result[r : r + m, s : s + m] = tile
    return u * result[None]


@pytest.mark.parametrize("m", TILES)
@pytest.mark.parametrize("change", [as_they_are, scaled_channels, one_large, cancelling])
def test_float32_stays_within_the_bound_which_is_within_the_stated_one(change: Any, m: int) -> None:
    worst = []
    for seed in range(3):
        dag, inputs = cases(change, seed)
        (reference,) = evaluate(dag, inputs, m)
        (direct,) = evaluate(dag, inputs)
        np.testing.assert_array_equal(reference.value, direct.value)
        assert (reference.bound >= direct.bound).all()
        got = convolved(dag, inputs, m)
        assert within(reference, got).all()
        assert (reference.bound <= np.maximum(stated_bound(inputs, m), direct.bound)).all()
        worst.append(float((np.abs(got.astype(float) - reference.value) / reference.bound).max()))
    assert max(worst) > 1 / 250  # the bound is not empty


@pytest.mark.parametrize("m", TILES)
def test_the_direct_forms_bound_does_not_hold(m: int) -> None:
    """A large pixel spoils outputs that it adds nothing to: why Winograd must be asked for."""
    dag, inputs = cases(one_large, 0)
    (direct,) = evaluate(dag, inputs)
    assert not within(direct, convolved(dag, inputs, m)).all()


@pytest.mark.parametrize("m", TILES)
def test_a_wrong_transform_is_outside_the_bound(m: int) -> None:
    """A thousandth of what the results are, or a tap that is dropped, shows."""
    dag, inputs = cases(as_they_are, 1)
    (reference,) = evaluate(dag, inputs, m)
    got = convolved(dag, inputs, m)
    assert not within(reference, got + np.float32(1e-2)).any()
    inputs["W"][0, 1, 2] = 0
    assert not within(reference, convolved(dag, inputs, m)).all()


def test_the_bound_goes_through_an_epilogue() -> None:
    dag = build("cbr", (1, 5, 5, 3, 4, 3, 1, 1))[0].with_winograd()
    inputs = dict(make_inputs(dag, 0, "normal"))
    (direct,), (larger,) = evaluate(dag, inputs), evaluate(dag, inputs, 4)
    assert (larger.bound >= direct.bound).all()
    assert (larger.bound > direct.bound).any()


def test_accepting_the_error_makes_another_workload() -> None:
    dag = build("conv2d")[0]
    accepted = dag.with_winograd()
    assert accepted.content_hash != dag.content_hash
    assert accepted.with_weights(["W"]).winograd
    assert collapse(accepted).winograd
    assert not collapse(dag).winograd

"""Normalisations against torch and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.operators import operators
from autosched.te import ComputeDAG, placeholder
from autosched.te.rewrites.collapse import collapse
from autosched.te.tensor import postorder
from tests.graph.test_operators import computed, some

SHAPES = [(7,), (1,), (3, 5), (1, 1), (2, 3, 5), (2, 1, 4, 3)]
IMAGES = [(2, 3), (3, 6, 1), (2, 4, 5), (1, 6, 3, 5), (2, 2, 2, 3, 2)]


def close(made, expected):
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def wide(x):
    return x.astype("float64")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_softmax(shape, axis):
    x = some(*shape) * 20
    if not -len(shape) <= axis < len(shape):
        with pytest.raises(GraphError, match=f"there is no axis {axis} in"):
            computed("softmax", x, axis=axis)
        return
    power = np.exp(wide(x) - wide(x).max(axis, keepdims=True))
    total = power.sum(axis, keepdims=True)
    close(computed("softmax", x, axis=axis), power / total)
    close(computed("log_softmax", x, axis=axis), wide(x) - wide(x).max(axis, keepdims=True) - np.log(total))
    rounded = np.round(x)  # with ties
    first = np.indices(shape)[axis] == np.expand_dims(rounded.argmax(axis), axis)
    close(computed("hardmax", rounded, axis=axis), first.astype("float32"))


def test_softmax_is_known_to_have_no_positive_exponents():
    for name in ("softmax", "log_softmax"):
        dag = collapse(ComputeDAG(operators()[name](placeholder((3, 5)), axis=0)))
        calls = {getattr(e, "fn", "") for s in dag.stages for e in postorder(s.body)}
        assert "exp_negative" in calls
        assert "exp" not in calls


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("affine", ["", "scale", "scale and bias", "one scale"])
def test_layer_and_rms_norm(shape, axes, affine):
    x, inner = some(*shape) + 3, shape[len(shape) - axes :]
    scale = None if not affine else some(1) if "one" in affine else some(*inner)
    bias = some(*inner) + 1 if "bias" in affine else None
    if axes > len(shape):
        with pytest.raises(GraphError, match=f"but is {axes}"):
            computed("layer_norm", x, axes=axes)
        return
    over = tuple(range(len(shape) - axes, len(shape)))
    centred = wide(x) - wide(x).mean(over, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(over, keepdims=True) + 1e-3)
    made = computed("layer_norm", x, scale, bias, axes=axes, epsilon=1e-3)
    close(made, normal * (1 if scale is None else scale) + (0 if bias is None else bias))
    root = wide(x) / np.sqrt((wide(x) ** 2).mean(over, keepdims=True) + 1e-3)
    close(computed("rms_norm", x, scale, axes=axes, epsilon=1e-3), root * (1 if scale is None else scale))


@pytest.mark.parametrize("shape", IMAGES)
def test_batch_norm(shape):
    torch = pytest.importorskip("torch")
    x, (scale, bias, mean, var) = some(*shape), (some(shape[1]) + n for n in (0, 1, 2, 7))
    given = [torch.tensor(wide(a)) for a in (x, mean, var, scale, bias)]
    expected = torch.nn.functional.batch_norm(*given, training=False, eps=1e-4).numpy()
    close(computed("batch_norm", x, scale, bias, mean, var, epsilon=1e-4), expected)


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("affine", [False, True])
def test_group_norm(shape, groups, affine):
    torch = pytest.importorskip("torch")
    x = some(*shape)
    scale, bias = (some(shape[1]), some(shape[1]) + 1) if affine else (None, None)
    if shape[1] % groups:
        with pytest.raises(GraphError, match=f"{shape[1]} channels do not fit {groups} groups"):
            computed("group_norm", x, scale, bias, groups=groups)
        return
    given = [None if a is None else torch.tensor(wide(a)) for a in (scale, bias)]
    expected = torch.nn.functional.group_norm(torch.tensor(wide(x)), groups, *given, eps=1e-3).numpy()
    close(computed("group_norm", x, scale, bias, groups=groups, epsilon=1e-3), expected)
    alone = torch.nn.functional.group_norm(torch.tensor(wide(x)), shape[1], *given, eps=1e-3).numpy()
    close(computed("instance_norm", x, scale, bias, epsilon=1e-3), alone)


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_lrn(shape, size):
    x, channels = some(*shape), shape[1]
    squares = np.zeros(shape)
    for c in range(channels):
        around = slice(max(0, c - (size - 1) // 2), min(channels - 1, c + size // 2) + 1)
        squares[:, c] = (wide(x)[:, around] ** 2).sum(1)
    expected = wide(x) / (2 + 0.3 / size * squares) ** 0.6
    close(computed("lrn", x, size=size, alpha=0.3, beta=0.6, bias=2.0), expected)


def test_lrn_as_torch():
    torch = pytest.importorskip("torch")
    x = some(2, 7, 3)
    expected = torch.nn.functional.local_response_norm(torch.tensor(x), 5, 0.1, 0.75, 1.5).numpy()
    close(computed("lrn", x, size=5, alpha=0.1, beta=0.75, bias=1.5), expected)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("epsilon", [0.0, 2.0])
def test_lp_normalize(p, axis, epsilon):
    x = some(3, 4, 5)
    x[0, 0] = x[:, 1, 2] = 0
    norm = (np.abs(wide(x)) ** p).sum(axis, keepdims=True) ** (1 / p)
    expected = np.divide(wide(x), np.maximum(norm, epsilon), where=norm > 0, out=np.zeros(x.shape))
    close(computed("lp_normalize", x, axis=axis, p=p, epsilon=epsilon), expected)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "hardmax", "layer_norm", "rms_norm", "lp_normalize"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_results_have_the_type_of_what_is_normalised(name, dtype):
    x = some(3, 5).astype(dtype)
    made = computed(name, x)
    assert made.dtype == x.dtype
    np.testing.assert_allclose(wide(made), computed(name, wide(x)), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("operator", "shapes", "attributes", "message"),
    [
        ("batch_norm", [(2, 3, 5), (3,), (3,), (5,), (3,)], {}, r"x3 is \[5\] but there are 3 channels"),
        ("batch_norm", [(2,), (2,), (2,), (2,), (2,)], {}, r"images are \[N, C, \.\.\.\] but x is \[2\]"),
        ("layer_norm", [(2, 3), (4, 2, 3)], {}, r"x1 of shape \[4, 2, 3\] does not fit"),
        ("layer_norm", [(2, 3), (2,)], {}, "do not fit each other"),
        ("group_norm", [(2, 3, 5), (1,)], {}, r"x1 is \[1\] but there are 3 channels"),
        ("lrn", [(2, 3, 5)], {"size": 0}, "size is 0"),
        ("lp_normalize", [(2, 3)], {"p": 0}, "p is 0"),
    ],
)
def test_what_normalisations_refuse(operator, shapes, attributes, message):
    with pytest.raises(GraphError, match=message):
        computed(operator, *(some(*shape) for shape in shapes), **attributes)

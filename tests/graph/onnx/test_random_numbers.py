"""Random numbers: the generator against its authors' known answers, the distributions, and what a seed means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from autosched.executor.compile_graph import compile_graph  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.onnx.random_numbers import normal, philox, uniform, words  # noqa: E402
from tests.graph.onnx.models import graph_of, node  # noqa: E402

MANY = 1 << 16
# Random123, kat_vectors: counter, key and result of philox4x32 with 10 rounds.
KNOWN = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)


def numbers(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_the_generator_gives_the_known_answers(counter, key, result):
    first, second = numbers(key)
    made = philox(np.array(numbers(counter), np.uint32)[:, None], (first, second))
    np.testing.assert_array_equal(made[:, 0], numbers(result))


def test_numbers_depend_on_seed_and_draw_and_not_on_how_many_there_are():
    np.testing.assert_array_equal(words(1.0, 0, 9), words(1.0, 0, 100)[:9])
    others = [words(1.0, 0, 64), words(2.0, 0, 64), words(1.0, 1, 64), words(float("nan"), 0, 64)]
    assert len({row.tobytes() for row in others}) == len(others)


def test_distributions():
    """Moments within six deviations of their means; each sixteenth of the unit interval is as likely."""
    u, z = uniform(0.0, 0, (MANY,)), normal(0.0, 0, (MANY,))
    assert 0 <= u.min() < u.max() < 1
    counts = np.histogram(u, 16, (0, 1))[0]
    assert np.abs(counts - MANY / 16).max() < 6 * np.sqrt(MANY / 16)
    for power, moment, deviation in ((1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)):
        assert abs((z**power).mean() - moment) < 6 * deviation / np.sqrt(MANY)
    assert abs((z[1:] * z[:-1]).mean()) < 6 / np.sqrt(MANY)


def drawn(*nodes: Any, x: Any = None, outputs: Any = ("y",), **more: Any) -> dict[str, Any]:
    inputs = {} if x is None else {"x": x.shape}
    return dict(interpret(graph_of(list(nodes), inputs, outputs, **more), {} if x is None else {"x": x}))


@pytest.mark.parametrize("operator", ["RandomUniform", "RandomNormal"])
def test_a_node_with_a_seed_draws_the_same_numbers_in_each_model(operator):
    like = node(f"{operator}Like", ["x"], ["y"], seed=3.0, dtype=11)
    plain = node(operator, [], ["y"], seed=3.0, shape=[5, 7], dtype=11)
    first, second = drawn(like, x=np.zeros((5, 7), np.float32))["y"], drawn(plain)["y"]
    np.testing.assert_array_equal(first, second, strict=True)
    assert first.dtype == np.float64
    free = drawn(node(operator, [], ["y"], shape=[4]), node(operator, [], ["z"], shape=[4]), outputs=("y", "z"))
    assert free["y"].dtype == np.float32
    assert not set(free["y"]) & set(free["z"])


def test_limits_mean_and_scale():
    u = drawn(node("RandomUniform", [], ["y"], seed=1.0, shape=[MANY], low=-2.0, high=6.0))["y"]
    assert -2 <= u.min() < u.max() <= 6
    z = drawn(node("RandomNormal", [], ["y"], seed=1.0, shape=[MANY], mean=5.0, scale=0.5))["y"]
    np.testing.assert_allclose([z.mean(), z.std()], [5, 0.5], atol=0.02)


@pytest.mark.parametrize("dtype", [None, 7, 10])
def test_bernoulli(dtype):
    """0 and 1 are certain; compiled it is the same."""
    x = np.linspace(0, 1, 2048, dtype=np.float32).reshape(2, 1024)
    x[:, 0], x[:, -1] = 0, 1
    graph = graph_of([node("Bernoulli", ["x"], ["y"], **({} if dtype is None else {"dtype": dtype}))], {"x": x.shape})
    y = interpret(graph, {"x": x})["y"]
    assert y.dtype == {None: np.float32, 7: np.int64, 10: np.float16}[dtype]
    assert set(np.unique(y)) == {0, 1}
    assert not y[:, 0].any()
    assert y[:, -1].all()
    assert abs(float(y.astype(float).mean()) - 0.5) < 0.05
    np.testing.assert_array_equal(compile_graph(graph, threads=1)(x), y)


def test_multinomial():
    """As often as probable; what has no probability is never drawn."""
    chances = np.array([[0.5, 0.0, 0.25, 0.25], [0.0, 0.0, 0.0, 1.0]])
    with np.errstate(divide="ignore"):
        x = np.log(chances).astype(np.float32)
    y = drawn(node("Multinomial", ["x"], ["y"], sample_size=4096, seed=2.0, dtype=7), x=x)["y"]
    assert (y.dtype, y.shape) == (np.int64, (2, 4096))
    shares = np.stack([np.bincount(row, minlength=4) / 4096 for row in y])
    np.testing.assert_allclose(shares, chances, atol=6 * 0.5 / 64)
    assert not shares[chances == 0].any()


def test_dropout_in_training():
    """What stays is scaled, the mask says what stays, and each step of a loop draws anew."""
    one = node("Dropout", ["x", "ratio", "training"], ["y", "mask"], seed=4)
    constants = {"ratio": np.array(0.25, np.float32), "training": np.array(True)}
    x = np.arange(1, MANY + 1, dtype=np.float32)
    made = drawn(one, x=x, outputs=("y", "mask"), constants=constants)
    np.testing.assert_allclose(made["y"], np.where(made["mask"], x / np.float32(0.75), 0), rtol=1e-6)
    assert abs(made["mask"].mean() - 0.75) < 0.02
    info = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [node("Identity", ["c"], ["c_out"]), node("RandomUniform", [], ["row"], shape=[3], seed=1.0)],
        "body",
        [info("i", onnx.TensorProto.INT64, []), info("c", onnx.TensorProto.BOOL, [])],
        [onnx.helper.make_empty_tensor_value_info(name) for name in ("c_out", "row")],
    )
    rows = drawn(node("Loop", ["steps", ""], ["y"], body=body), constants={"steps": 4})["y"]
    assert len(np.unique(rows)) == rows.size == 12

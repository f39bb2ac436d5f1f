"""Attention against torch."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import GraphError
from tests.graph.test_operators import computed, some


def by_torch(q, k, v, mask=None, **attributes):
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(a.astype("float64")) for a in (q, k, v)]
    given = None if mask is None else torch.tensor(mask if mask.dtype == bool else mask.astype("float64"))
    return torch.nn.functional.scaled_dot_product_attention(*tensors, given, **attributes).numpy()


def close(made, expected):
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


# batch, heads of queries, heads of keys and values, L, S, D, E
SIZES = [
    ((2,), 3, 3, 5, 7, 4, 6),
    ((), 2, 2, 3, 3, 5, 5),
    ((1,), 4, 2, 1, 6, 3, 3),
    ((2, 3), 6, 1, 4, 5, 1, 2),
    ((1,), 1, 1, 1, 1, 1, 1),
]


def operands(batch, heads, shared, length, places, depth, width):
    return (
        some(*batch, heads, length, depth),
        some(*batch, shared, places, depth) + 1,
        some(*batch, shared, places, width) - 1,
    )


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(sizes, scale, causal):
    q, k, v = operands(*sizes)
    grouped = sizes[1] != sizes[2]
    expected = by_torch(q, k, v, scale=scale, is_causal=causal, enable_gqa=grouped)
    close(computed("attention", q, k, v, scale=scale, causal=causal), expected)


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (3, 5, 7), (2, 1, 5, 7), (2, 3, 5, 7)])
@pytest.mark.parametrize("kind", ["float32", "bool"])
def test_masks(shape, kind):
    q, k, v = operands(*SIZES[0])
    mask = some(*shape) if kind == "float32" else some(*shape) > -0.5
    if kind == "bool":
        mask[..., 0] = True  # no row without any
    close(computed("attention", q, k, v, mask), by_torch(q, k, v, mask))


@pytest.mark.parametrize("kind", ["float32", "bool"])
def test_a_query_that_keeps_no_key_gets_zeros(kind):
    q, k, v = operands(*SIZES[0])
    mask = np.ones((5, 7), bool)
    mask[2] = False
    mask = mask if kind == "bool" else np.where(mask, 0, -np.inf).astype("float32")
    made = computed("attention", q, k, v, mask)
    assert not made[..., 2, :].any()
    close(made, by_torch(q, k, v, mask))


def test_nan_is_not_taken_for_an_empty_row():
    q, k, v = operands(*SIZES[0])
    q[0, 0, 1, 0] = np.nan
    made = computed("attention", q, k, v, np.ones((5, 7), bool))
    np.testing.assert_array_equal(np.isnan(made).all(-1), np.isnan(q).any(-1))


def test_a_causal_mask_beside_another():
    q, k, v = operands(*SIZES[0])
    mask = some(5, 7)
    both = np.where(np.tril(np.ones((5, 7), bool)), mask, -np.inf)
    close(computed("attention", q, k, v, mask, causal=True), by_torch(q, k, v, both))


def test_one_batch_of_keys_serves_all():
    q, k, v = some(3, 2, 5, 4), some(1, 2, 7, 4), some(2, 7, 3)
    close(computed("attention", q, k, v), by_torch(q, np.repeat(k, 3, 0), np.repeat(v[None], 3, 0)))


def test_small_floats_are_rounded_at_the_end():
    q, k, v = (a.astype("float16") for a in operands(*SIZES[0]))
    made = computed("attention", q, k, v)
    assert made.dtype == np.float16
    np.testing.assert_array_equal(made, by_torch(q, k, v).astype("float16"))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3, 5, 4), (2, 7, 4), (3, 7, 4)], "3 heads of queries are no multiple of 2"),
        ([(3, 5, 4), (3, 7, 5), (3, 7, 4)], r"attention takes q\[\.\.\., heads, L, D\]"),
        ([(3, 5, 4), (3, 7, 4), (3, 6, 4)], r"attention takes q\[\.\.\., heads, L, D\]"),
        ([(5, 4), (7, 4), (7, 4)], r"attention takes q\[\.\.\., heads, L, D\]"),
        ([(3, 5, 4), (3, 7, 4), (3, 7, 4), (7, 5)], "fit"),
        ([(3, 5, 4), (3, 7, 4), (3, 7, 4), (2, 3, 5, 7)], "a mask of shape"),
    ],
)
def test_what_attention_refuses(shapes, message):
    with pytest.raises(GraphError, match=message):
        computed("attention", *(some(*shape) for shape in shapes))

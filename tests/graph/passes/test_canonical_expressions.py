"""The algebra of expressions: what is the same however it is written, and what is not."""

from __future__ import annotations

import pytest

from autosched.graph.passes.canonical_expressions import ANY, CallExpression, Leaf, PatternMatch, Sum, match

X, Y = Leaf("x"), Leaf("y")
TOLERANCE = 1e-6


def exp(expression):
    return CallExpression("exp", expression)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (X + Y, Y + X),
        (X * 2 * Y, Y * (X + X)),
        (X / Y / 2, 0.5 * X * Y**-1),
        (X * X * X, X**3),
        (1 / (X**0.5), X**-0.5),
        ((X * Y) ** 2, Y * X * Y * X),
        ((1 / X) ** 0.5, X**-0.5),
        ((4 * X) ** 0.5, 2 * X**0.5),
        (X - X + 1, Sum(1.0)),
        (X**0, Sum(1.0)),
        (exp(X + 1) * (1 + Y), (Y + 1) * exp(1 + X)),
        (3 - X, -1 * X + 3),
        (X * 0.3333333, X / 3),
    ],
)
def test_the_same(one, other):
    assert match(one, other, TOLERANCE) == PatternMatch()
    assert match(other, one, TOLERANCE) == PatternMatch()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((X**2) ** 0.5, X),
        ((X * Y) ** 0.5, X**0.5 * Y**0.5),
        ((-1 * X) ** 0.5, X**0.5),
        (X - Y, Y - X),
        (X + 1, X),
        (X * 1.001, X),
        (exp(X), exp(Y)),
        (exp(X), CallExpression("tanh", X)),
        (X + Y, X),
        (CallExpression("clip", X, (0.0, 6.0)), CallExpression("clip", X, (0.0, 1.0))),
    ],
)
def test_not_the_same(one, other):
    assert match(one, other, TOLERANCE) is None
    assert match(other, one, TOLERANCE) is None


def test_what_a_pattern_leaves_open():
    pattern = X * (CallExpression("mean", X**2) + ANY) ** -0.5
    bindings = match(pattern, X / (CallExpression("mean", X * X, axes=(2,)) + 1e-5) ** 0.5, TOLERANCE)
    assert bindings == PatternMatch(1e-5, (2,))


def test_what_is_left_open_is_the_same_everywhere():
    pattern = exp(X + ANY) * (Y + ANY)
    assert match(pattern, exp(X + 2) * (Y + 2), TOLERANCE) == PatternMatch(2.0)
    assert match(pattern, exp(X + 2) * (Y + 3), TOLERANCE) is None
    means = CallExpression("mean", X) + exp(CallExpression("mean", X))
    assert (
        match(means, CallExpression("mean", X, axes=(1,)) + exp(CallExpression("mean", X, axes=(2,))), TOLERANCE)
        is None
    )


def test_every_order_of_the_terms_is_tried():
    """The first of two like factors takes the number that only the second can have."""
    pattern = exp(X + ANY) * exp(X + 1)
    assert match(pattern, exp(X + 1) * exp(X + 5), TOLERANCE) == PatternMatch(5.0)

"""Reshapes and transposes in a row: one of each at most, with the same numbers."""

from __future__ import annotations

import random

import pytest

from autosched.graph.passes.layout.merge_reshapes import merge_reshapes
from tests.graph.drafts import Draft, checked

R, T = "reshape", "transpose"


def layouts(graph):
    """What is left of them, as operator and attribute, in order."""
    return [(n.operator, *n.attributes.values()) for n in graph.nodes if n.operator in (R, T)]


def after(shape, *steps):
    """The layout nodes that are left of `steps`: ("reshape", shape) or ("transpose", perm)."""
    d = Draft()
    y = d.input(*shape)
    for operator, what in steps:
        y = d.reshape(y, shape=what) if operator == R else d.transpose(y, perm=what)
    return layouts(checked(merge_reshapes, d.graph(d.exp(y))))


@pytest.mark.parametrize(
    ("shape", "steps", "left"),
    [
        # An image becomes a sequence of pixels: moved as it is, and put together afterwards.
        ((1, 5, 3, 7), [(R, (1, 5, 21)), (T, (0, 2, 1))], [(T, (0, 2, 3, 1)), (R, (1, 21, 5))]),
        # And back: rows are taken apart first.
        ((1, 21, 5), [(T, (0, 2, 1)), (R, (1, 5, 3, 7))], [(R, (1, 3, 7, 5)), (T, (0, 3, 1, 2))]),
        ((1, 21, 6), [(R, (1, 21, 2, 3)), (T, (0, 2, 1, 3))], [(R, (1, 21, 2, 3)), (T, (0, 2, 1, 3))]),
        ((2, 3, 5), [(T, (0, 2, 1)), (R, (2, 5, 3, 1)), (T, (3, 0, 2, 1))], [(R, (1, 2, 3, 5))]),
        ((2, 3, 1), [(T, (1, 0, 2)), (R, (6,))], [(T, (2, 1, 0)), (R, (6,))]),
        ((1, 1, 7), [(T, (2, 0, 1))], [(R, (7, 1, 1))]),
        ((1, 1), [(T, (1, 0)), (R, (1,))], [(R, (1,))]),
        # 4 columns of 9 are not taken apart into rows of 6.
        ((9, 4), [(T, (1, 0)), (R, (6, 6)), (T, (1, 0))], [(T, (1, 0)), (R, (6, 6)), (T, (1, 0))]),
    ],
)
def test_dimensions_are_taken_apart_moved_and_put_together(shape, steps, left):
    assert after(shape, *steps) == left


@pytest.mark.parametrize("seed", range(12))
def test_any_chain_is_the_same_movement(seed):
    drawn, d = random.Random(seed), Draft()

    def factors(size):
        found = [1] * drawn.randint(0, 1)
        while size > 1:
            factor = drawn.choice([n for n in range(2, size + 1) if size % n == 0])
            found.insert(drawn.randint(0, len(found)), factor)
            size //= factor
        return tuple(found)

    moved = [d.input(*factors(36))]
    for _ in range(6):
        rank = len(d.values[moved[-1]].shape)
        turned = d.transpose(moved[-1], perm=tuple(drawn.sample(range(rank), rank)))
        moved.append(drawn.choice([turned, d.reshape(moved[-1], shape=factors(36))]))
    checked(merge_reshapes, d.graph(d.exp(moved[-1]), d.neg(moved[3])))

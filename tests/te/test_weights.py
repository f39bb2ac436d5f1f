"""Inputs that are declared constant are part of the workload."""

from __future__ import annotations

import pytest

from autosched.errors import ExpressionError
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse


def test_a_weight_makes_another_workload() -> None:
    plain = build("cbr")[0]
    hashes = {plain.content_hash}
    for weights in (["W"], ["X"], ["W", "bias"]):
        dag = plain.with_weights(weights)
        assert dag.weights == tuple(weights)
        assert collapse(dag).weights == dag.weights
        assert collapse(dag).content_hash == dag.content_hash
        assert [t.name for t in dag.inputs] == [t.name for t in plain.inputs]
        hashes.add(dag.content_hash)
    assert len(hashes) == 4


def test_the_order_of_their_names_means_nothing() -> None:
    plain = build("cbr")[0]
    first, second = plain.with_weights(["bias", "W"]), plain.with_weights(["W", "bias", "W"])
    assert first.weights == second.weights == ("W", "bias")
    assert first.content_hash == second.content_hash


def test_no_weights_leave_the_hash_of_older_records() -> None:
    plain = build("matmul", (4, 5, 6))[0]
    assert plain.with_weights(()).content_hash == plain.content_hash
    assert plain.content_hash == HASH


HASH = "3371b51ee22c9c6db90c7cffefb6b90c73e748a96f5f89b8e43a062abae93453"


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (["V"], "V cannot be a weight, as it is no input; the inputs are A, B"),
        (["matmul"], "matmul cannot be a weight"),
        (["A", "B"], "all inputs .A, B. are weights"),
    ],
)
def test_what_cannot_be_a_weight(weights: list[str], sentence: str) -> None:
    with pytest.raises(ExpressionError, match=sentence):
        build("matmul", (4, 5, 6))[0].with_weights(weights)

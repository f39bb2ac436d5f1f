"""Indices: which are refused at import, which are checked in calls, which need no check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.index_checks import checks_of
from autosched.graph.value_ranges import value_ranges
from tests.graph.drafts import Draft
from tests.graph.onnx.models import graph_of, node

BEYOND = 9_999_999


def ints(*values: Any, dtype: str = "int64") -> np.ndarray[Any, Any]:
    return np.array(values, dtype)


# Operator -> inputs, constants, the sentence's end.
CONSTANTS: dict[str, tuple[dict[str, list[int]], dict[str, Any], dict[str, Any], str]] = {
    "Gather": ({"x": [4, 3]}, {"i": ints(1, BEYOND, -5)}, {}, f"the index {BEYOND} is out of range, which is -4 to 3"),
    "GatherElements": ({"x": [4, 3]}, {"i": ints([0, 0, -4])}, {"axis": 1}, "the index -4 .* -3 to 2"),
    "GatherND": ({"x": [4, 3]}, {"i": ints([3, 0], [0, 3])}, {}, "the index 3 .* -3 to 2"),
    "ScatterElements": (
        {"x": [4, 3]}, {"i": ints([0, 4, 0]), "u": np.zeros((1, 3), "float32")}, {}, "the index 4 .* -4 to 3"
    ),
    "ScatterND": ({"x": [4, 3]}, {"i": ints([-5]), "u": np.zeros((1, 3), "float32")}, {}, "the index -5 .* -4 to 3"),
}  # fmt: skip


@pytest.mark.parametrize("operator", CONSTANTS)
def test_a_constant_index_that_is_out_of_range_is_refused_at_import(operator):
    inputs, constants, attributes, sentence = CONSTANTS[operator]
    made = node(operator, ["x", *constants], ["y"], name="reader", **attributes)
    with pytest.raises(GraphError, match=f"{operator} reader: {sentence}$"):
        graph_of([made], inputs, constants=constants)


@pytest.mark.parametrize("index", [-4, 3])
def test_both_ends_of_the_range_are_accepted(index):
    graph = graph_of([node("Gather", ["x", "i"], ["y"])], {"x": [4, 3]}, constants={"i": index})
    assert checks_of(graph) == ()


def checks_for(make: Any) -> tuple[Any, ...]:
    """Of a vector of five that is read at what `make` computes of it and of indices."""
    d = Draft()
    x, ids = d.input(5), d.input(2, dtype="int64")
    return checks_of(d.graph(d.gather(x, make(d, x, ids))))


def whole(d: Draft, number: int) -> str:
    return d.constant(number, "int64")


def above(d: Draft, ids: str) -> str:
    return str(d.cast(d.less(whole(d, 3), ids), dtype="int64"))


PROVEN: dict[str, Any] = {
    "clamp": lambda d, x, i: d.minimum(d.maximum(i, whole(d, 0)), whole(d, 4)),
    "clamp from the end": lambda d, x, i: d.maximum(whole(d, -5), d.minimum(i, whole(d, 4))),
    "remainder": lambda d, x, i: d.mod(i, whole(d, 5)),
    "argmax": lambda d, x, i: d.argmax(x, axis=0),
    "top_k": lambda d, x, i: d.add_node("top_k", x, outputs=2, k=2, axis=0)[1],
    "all of them in order": lambda d, x, i: d.add_node("top_k", x, outputs=2, k=5, axis=0)[1],
    "comparison": lambda d, x, i: above(d, i),
    "choice": lambda d, x, i: d.where(d.less(i, whole(d, 3)), whole(d, 4), whole(d, -5)),
    "bits": lambda d, x, i: d.bitwise_and(i, whole(d, 3)),
    "sum": lambda d, x, i: d.reduce_sum(above(d, i), axes=(0,), keepdims=False),
    "greatest": lambda d, x, i: d.reduce_max(d.mod(i, whole(d, 5)), axes=(0,), keepdims=False),
    "constants": lambda d, x, i: d.where(d.less(i, whole(d, 3)), d.constant([0, 4], "int64"), whole(d, 1)),
}


@pytest.mark.parametrize("name", PROVEN)
def test_what_interval_analysis_proves_is_not_checked(name):
    assert checks_for(PROVEN[name]) == ()


CHECKED: dict[str, Any] = {
    "input": lambda d, x, i: i,
    "off by one": lambda d, x, i: d.minimum(d.maximum(i, whole(d, 0)), whole(d, 5)),
    "remainder": lambda d, x, i: d.mod(i, whole(d, 6)),
    "product": lambda d, x, i: d.mul(d.mod(i, whole(d, 3)), whole(d, 3)),
    "choice": lambda d, x, i: d.where(d.less(i, whole(d, 3)), whole(d, 4), whole(d, -6)),
    "sum": lambda d, x, i: d.reduce_sum(d.mul(above(d, i), whole(d, 4)), axes=(0,), keepdims=False),
    "greatest": lambda d, x, i: d.reduce_max(i, axes=(0,), keepdims=False),
    "of a float": lambda d, x, i: d.cast(x, dtype="int64"),
}


@pytest.mark.parametrize("name", CHECKED)
def test_what_it_does_not_prove_is_checked(name):
    (check,) = checks_for(CHECKED[name])
    assert (check.low, check.high) == (-5, 4)


def test_rearranged_indices_are_checked_where_they_are_an_input():
    d = Draft()
    x, ids = d.input(7), d.input(2, 3, dtype="int32")
    turned = d.expand(d.reshape(d.transpose(d.cast(ids, dtype="int64"), perm=(1, 0)), shape=(6, 1)), shape=(6, 5))
    (check,) = checks_of(d.graph(d.gather(x, turned)))
    assert (check.ids, check.low, check.high) == (ids, -7, 6)


def test_narrowed_indices_are_checked_as_they_are():
    d = Draft()
    x, ids = d.input(7), d.input(2, dtype="int64")
    narrow = d.cast(ids, dtype="int32")
    (check,) = checks_of(d.graph(d.gather(x, narrow)))
    assert check.ids == narrow


def test_coordinates_are_checked_by_the_dimension_that_each_indexes():
    d = Draft()
    x, rows, columns = d.input(7, 300), d.input(4, 1, dtype="int64"), d.input(4, 1, dtype="uint8")
    both = d.concat(d.cast(rows, dtype="int64"), d.cast(columns, dtype="int64"), axis=1)
    (check,) = checks_of(d.graph(d.gather_nd(x, both)))
    assert (check.ids, check.low, check.high, check.columns) == (rows, -7, 6, 1), "300 columns hold all of uint8"
    d = Draft()
    x, ids = d.input(7, 300), d.input(4, 2, dtype="int64")
    found = checks_of(d.graph(d.gather_nd(x, ids)))
    assert [(c.ids, c.column, c.columns, c.low) for c in found] == [(ids, 0, 2, -7), (ids, 1, 2, -300)]


def test_equal_checks_are_one():
    d = Draft()
    x, y, ids = d.input(7), d.input(7), d.input(2, dtype="int64")
    assert len(checks_of(d.graph(d.add(d.gather(x, ids), d.gather(y, ids))))) == 1


def test_intervals_of_operators():
    d = Draft()
    a = d.input(3, dtype="uint8")
    wide = d.cast(a, dtype="int32")
    total = d.reduce_sum(d.mul(wide, d.constant(2, "int32")), axes=(0,), keepdims=False)
    wraps = d.mul(wide, d.constant(1 << 30, "int32"))
    graph = d.graph(total, wraps)
    found = value_ranges(graph, [total, wraps])
    assert found[a] == found[wide] == (0, 255)
    assert found[total] == (0, 3 * 510)
    assert found[wraps] == (-(1 << 31), (1 << 31) - 1), "products beyond int32 wrap around"

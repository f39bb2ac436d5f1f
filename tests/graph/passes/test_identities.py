"""Constants, what changes nothing, and what only moves elements."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.graph.graph import Value
from autosched.graph.passes.common_subexpressions import eliminate_common_subexpressions
from autosched.graph.passes.fold_constants import fold_constants
from autosched.graph.passes.layout.merge_reshapes import merge_reshapes
from autosched.graph.passes.remove_dead_code import remove_dead_code
from autosched.graph.passes.remove_identities import remove_identities
from autosched.graph.passes.strength_reduction import reduce_strength
from tests.graph.drafts import Draft, checked, operators_of

# Constants


def test_what_constants_make_is_a_constant():
    d = Draft()
    x, w = d.input(2, 3), d.random(3, 3)
    half = d.div(d.add(d.sqrt(4.0), 0.0), 4.0)
    y = d.mul(d.matmul(x, d.mul(w, half)), half)
    after = checked(fold_constants, d.graph(y))
    assert operators_of(after) == ["matmul", "mul"]
    assert len(after.constants) == 2


def test_what_is_computed_twice_is_one_constant():
    """But for outputs, which are two."""
    d = Draft()
    x, w = d.input(2, 3), d.random(3, 3)
    halves = [d.mul(d.tanh(w), d.constant([0.5])) for _ in range(2)] + [d.neg(d.tanh(w)) for _ in range(2)]
    after = checked(fold_constants, d.graph(*(d.matmul(x, half) for half in halves), d.neg(w), d.neg(w)))
    assert operators_of(after) == ["matmul"] * 4
    assert len({node.inputs[1] for node in after.nodes}) == 3


def test_large_results_are_left_to_the_program():
    d = Draft()
    y = d.add(d.input(200, 100), d.expand(d.random(1, 100), shape=(200, 100)))
    assert operators_of(checked(fold_constants, d.graph(y))) == ["expand", "add"]


def test_a_large_weight_is_not_moved():
    d = Draft()
    w = d.random(600, 600)
    graph = d.graph(d.matmul(d.input(1, 600), d.transpose(w, perm=(1, 0))))
    assert fold_constants(graph) is graph


def test_an_output_may_become_a_constant():
    d = Draft()
    d.input(1)
    y = d.neg(d.constant([1.0, 2.0]))
    after = checked(fold_constants, d.graph(y))
    assert not after.nodes
    np.testing.assert_array_equal(after.constants[y], [-1, -2])


# Identities

IDENTITIES = {
    "identity": lambda d, x: d.identity(x),
    "cast": lambda d, x: d.cast(x, dtype="float32"),
    "reshape": lambda d, x: d.reshape(x, shape=(2, 3)),
    "transpose": lambda d, x: d.transpose(x, perm=(0, 1)),
    "expand": lambda d, x: d.expand(x, shape=(2, 3)),
    "slice": lambda d, x: d.slice(x, starts=(0,), stops=(3,), axes=(1,), steps=(1,)),
    "pad": lambda d, x: d.pad(x, pads=((0, 0), (0, 0))),
    "split": lambda d, x: d.split(x, sizes=(3,), axis=1),
    "concat": lambda d, x: d.concat(x, axis=1),
    "clip": lambda d, x: d.clip(x),
    "add": lambda d, x: d.add(0.0, x),
    "sub": lambda d, x: d.sub(x, 0.0),
    "mul": lambda d, x: d.mul(x, d.constant(np.ones(3))),
    "div": lambda d, x: d.div(x, 1.0),
    "pow": lambda d, x: d.pow(x, 1.0),
    "where": lambda d, x: d.where(d.less(x, 0.0), x, x),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_what_gives_its_operand_back_goes(name):
    d = Draft()
    y = d.relu(IDENTITIES[name](d, d.neg(d.input(2, 3))))
    assert operators_of(checked(remove_identities, d.graph(y))) == ["neg", "relu"]


CHANGES = {
    "cast": lambda d, x: d.cast(x, dtype="float64"),
    "reshape": lambda d, x: d.reshape(x, shape=(4, 1)),
    "transpose": lambda d, x: d.transpose(x, perm=(1, 0)),
    "slice": lambda d, x: d.slice(x, starts=(1,), stops=(-3,), axes=(1,), steps=(-1,)),
    "sub": lambda d, x: d.sub(0.0, x),
    "mul": lambda d, x: d.mul(x, d.constant(np.ones((2, 1, 1)))),
    "div": lambda d, x: d.div(1.0, x),
    "add": lambda d, x: d.add(x, d.constant([0.0, 1e-9])),
    "clip": lambda d, x: d.clip(x, low=0.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_only_looks_like_an_identity_stays(name):
    d = Draft()
    graph = d.graph(d.relu(CHANGES[name](d, d.neg(d.input(2, 2)))))
    assert remove_identities(graph) is graph


def test_outputs_keep_their_names_and_their_own_values():
    d = Draft()
    x = d.input(2)
    made = d.relu(x)
    first, second, copy = d.identity(made), d.identity(made), d.identity(x)
    after = checked(remove_identities, d.graph(first, second, copy))
    # `first` is what relu makes; `second` and the copy of an input stay as copies.
    assert operators_of(after) == ["relu", "identity", "identity"]
    assert after.producers[first].operator == "relu"


def test_broadcasting_needs_no_expand():
    d = Draft()
    x, row = d.input(4, 3), d.input(3)
    y = d.add(d.expand(row, shape=(4, 3)), x)
    assert operators_of(checked(remove_identities, d.graph(y))) == ["add"]


def test_one_of_two_operands_is_still_expanded():
    d = Draft()
    row, column = d.input(1, 3), d.input(1, 3)
    y = d.add(d.expand(row, shape=(4, 3)), d.expand(column, shape=(4, 3)))
    assert operators_of(checked(remove_identities, d.graph(y))) == ["expand", "add"]


# Layouts


def test_of_two_reshapes_the_last_is_enough():
    d = Draft()
    y = d.relu(d.reshape(d.reshape(d.input(2, 6), shape=(3, 4)), shape=(12,)))
    assert operators_of(checked(merge_reshapes, d.graph(y))) == ["reshape", "relu"]


def test_transposes_are_composed():
    d = Draft()
    x = d.input(2, 3, 4)
    y = d.relu(d.transpose(d.transpose(x, perm=(1, 2, 0)), perm=(0, 2, 1)))
    after = checked(merge_reshapes, d.graph(y))
    assert [node.attributes.get("perm") for node in after.nodes] == [(1, 0, 2), None]


def test_inverse_transposes_cancel_around_elements():
    d = Draft()
    x = d.input(2, 3, 4)
    inside = d.exp(d.neg(d.transpose(x, perm=(0, 2, 1))))
    y = d.transpose(inside, perm=(0, 2, 1))
    assert operators_of(checked(merge_reshapes, d.graph(y))) == ["neg", "exp"]


def test_transposes_stay_where_what_is_between_is_read_elsewhere():
    d = Draft()
    inside = d.neg(d.transpose(d.input(2, 3), perm=(1, 0)))
    graph = d.graph(d.transpose(inside, perm=(1, 0)), d.relu(inside))
    assert merge_reshapes(graph) is graph


def test_sizes_of_one_move_for_nothing():
    d = Draft()
    y = d.relu(d.transpose(d.input(2, 1, 3), perm=(1, 0, 2)))
    assert operators_of(checked(merge_reshapes, d.graph(y))) == ["reshape", "relu"]


def test_transposed_weights_are_a_linear():
    d = Draft()
    y = d.matmul(d.input(2, 4, 3), d.transpose(d.random(5, 3), perm=(1, 0)))
    assert operators_of(checked(merge_reshapes, d.graph(y))) == ["linear"]


@pytest.mark.parametrize(
    ("attributes", "expected"), [({"trans_b": True}, "linear"), ({}, "gemm"), ({"trans_b": True, "alpha": 2.0}, "gemm")]
)
def test_a_plain_gemm_is_a_linear(attributes, expected):
    d = Draft()
    y = d.gemm(d.input(2, 3), d.random(3, 3), d.random(3), **attributes)
    assert operators_of(checked(merge_reshapes, d.graph(y))) == [expected]


# The same twice, and nothing for nobody


def test_equal_nodes_and_constants_are_shared():
    d = Draft()
    x = d.input(2, 3)
    one = d.relu(d.add(x, d.constant([1, 2, 3])))
    other = d.relu(d.add(d.constant([1, 2, 3]), x))
    y = d.sub(one, other)
    after = checked(eliminate_common_subexpressions, d.graph(y))
    assert operators_of(after) == ["add", "relu", "sub"]
    assert len(after.constants) == 1


def test_different_attributes_and_types_are_not_the_same():
    d = Draft()
    x = d.input(2, 2)
    pairs = [d.clip(x, low=0.0), d.clip(x, low=1.0), d.mul(x, d.constant([0.0])), d.mul(x, d.constant([-0.0]))]
    graph = d.graph(*pairs)
    assert eliminate_common_subexpressions(graph) is graph


def test_the_order_of_operands_counts_where_it_does():
    d = Draft()
    x, y = d.input(3), d.input(3)
    graph = d.graph(d.sub(x, y), d.sub(y, x))
    assert eliminate_common_subexpressions(graph) is graph


def test_a_choice_between_what_is_the_same_goes():
    d = Draft()
    x = d.input(3)
    y = d.where(d.less(x, 0.5), d.relu(x), d.relu(x))
    graph = d.graph(d.add(d.neg(y), d.neg(d.relu(x))))
    assert operators_of(checked(eliminate_common_subexpressions, graph)) == ["relu", "neg", "add"]


def test_two_equal_outputs_stay_two():
    d = Draft()
    x = d.input(3)
    graph = d.graph(d.relu(x), d.relu(x))
    assert operators_of(checked(eliminate_common_subexpressions, graph)) == ["relu", "relu"]


def test_what_no_output_needs_goes():
    d = Draft()
    x = d.input(3)
    y = d.relu(x)
    d.add(d.neg(x), d.constant([1, 2, 3]))
    after = checked(remove_dead_code, d.graph(y))
    assert operators_of(after) == ["relu"]
    assert not after.constants


# Powers


@pytest.mark.parametrize(
    ("exponent", "operators"),
    [(2, ["mul"]), (3, ["mul"] * 2), (4, ["mul"] * 2), (0.5, ["sqrt"]), (-0.5, ["rsqrt"]), (-1, ["reciprocal"])],
)
def test_known_powers_are_no_powers(exponent, operators):
    d = Draft()
    x = d.input(5, 3)
    base = x if isinstance(exponent, int) else d.exp(x)
    found = operators_of(checked(reduce_strength, d.graph(d.pow(base, float(exponent)))))
    assert found[-len(operators) :] == operators
    assert "pow" not in found


def test_other_powers_stay():
    d = Draft()
    x = d.input(5, 3)
    for exponent in (d.constant([2.0, 3.0, 2.0]), d.constant(1.7), d.input(3)):
        graph = d.graph(d.pow(d.exp(x), exponent))
        assert reduce_strength(graph) is graph


def test_a_square_that_is_stretched_stays():
    d = Draft()
    graph = d.graph(d.pow(d.input(3), d.constant([[2.0]])))
    assert reduce_strength(graph) is graph


# Reductions of what is stretched


@pytest.mark.parametrize("axes", [None, (0,), (1, 2), (0, -1), (2,)])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("operator", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min"])
def test_equal_elements_are_reduced_by_their_number(operator, keepdims, axes):
    """No loop goes over what was stretched, and what is left of it is stretched afterwards."""
    d = Draft()
    x = d.input(3, 1)
    y = d.add_node(operator, d.expand(x, shape=(2, 3, 5)), axes=axes, keepdims=keepdims)
    after = checked(remove_identities, d.graph(y))
    for node in after.nodes:
        if node.operator == operator:
            assert after.values[node.inputs[0]].shape[-3:] == (1, 3, 1)[-len(after.values[node.inputs[0]].shape) :]


def test_sums_of_stretched_integers_wrap_around():
    d = Draft()
    y = d.reduce_sum(d.expand(d.input(3, 1, dtype="int8"), shape=(3, 300)), axes=(1,), keepdims=False)
    after = checked(remove_identities, d.graph(y))
    assert "expand" not in operators_of(after)
    assert [array.dtype for array in after.constants.values()] == [np.int8]


def test_what_does_not_stretch_is_reduced_as_it_is():
    d = Draft()
    y = d.reduce_sum(d.expand(d.input(3, 1), shape=(3, 5)), axes=(0,), keepdims=True)
    assert operators_of(checked(remove_identities, d.graph(y))) == ["expand", "reduce_sum"]


def test_more_elements_than_any_memory_has_are_reduced():
    d = Draft()
    wide = d.expand(d.input(4, 1), shape=(4, 1 << 40))
    after = remove_identities(d.graph(d.reduce_max(wide, keepdims=False)))
    assert max(len(str(value.shape)) for value in after.values.values()) < 10


def test_functions_of_one_number_everywhere_are_left_to_the_program():
    """A constant of one element in memory is none of that many."""
    d = Draft()
    x = d.input(1)
    ones = d.constant(1.0)
    d.constants[ones] = np.broadcast_to(np.float32(1), (1 << 34,))
    d.values[ones] = Value(ones, (1 << 34,), "float32")
    y = d.add(d.reduce_sum(d.cos(ones), keepdims=False), x)
    assert operators_of(fold_constants(d.graph(y))) == ["cos", "reduce_sum", "add"]

"""Every refusal of a malformed definition, each with the sentence that says what to write instead."""

import math

import numpy as np
import pytest

from autosched import te
from autosched.errors import ExpressionError

A1 = te.placeholder((4,), name="A")
A2 = te.placeholder((4, 5), name="A")
N1 = te.placeholder((4,), "int32", name="N")
K = te.reduce_axis(5, name="k")


def stage(fn, shape=(4,)):
    return te.compute(shape, fn, name="C")


LEAKED = []
stage(lambda z: LEAKED.append(z) or A1[z])

REFUSED = {
    "rank": (lambda: stage(lambda i: A2[i]), r"stage C: tensor A has 2 dimensions but is indexed with 1: A\[i\]"),
    "slice": (lambda: stage(lambda i: A2[:, i]), r"stage C: index 0 of tensor A is slice.*must be an axis"),
    "negative index": (lambda: stage(lambda i: A1[-1]), r"-1 .. -1 but .* extent 4 \(it does not count from the end\)"),
    "function of Python": (
        lambda: stage(lambda i: math.exp(A1[i])),
        r"stage C: .* A\[i\] is no number .*te.exp instead of",
    ),
    "loop over an axis": (
        lambda: stage(lambda i: A1[len(range(i))]),
        r"expression i is no .*te.reduce_axis instead of",
    ),
    "rounding": (lambda: stage(lambda i: round(A1[i])), r"A\[i\] is no number .*te.round instead of round"),
    "function of NumPy": (lambda: stage(lambda i: np.maximum(A1[i], 0)), r"stage C: NumPy's maximum .*write te.max"),
    "choice of NumPy": (lambda: stage(lambda i: np.where(i < 2, 1.0, 0.0)), r"where is for arrays .*write te.select"),
    "NumPy of a tensor": (lambda: np.exp(A1), r"tensor A is used as a whole"),
    "array as a factor": (
        lambda: stage(lambda i: np.ones(2) * A1[i]),
        r"whole ndarray of shape \(2,\); .*te.placeholder",
    ),
    "tensor as a factor": (lambda: stage(lambda i: A1[i] * A1), r"whole Tensor of shape \(4,\)"),
    "text as a factor": (lambda: stage(lambda i: A1[i] * "2"), r"stage C: an operator got '2', a str"),
    "sum of Python": (lambda: stage(lambda i: sum(A2[i, K])), r"A\[i, k\] is one element .*te.sum"),
    "float index": (lambda: stage(lambda i: A1[0.5]), r"index 0 of tensor A is 0.5, a float"),
    "bool index": (lambda: stage(lambda i: A1[True]), r"index 0 of tensor A is True, a bool"),
    "whole tensor": (lambda: stage(lambda i: A1 + 1.0), r"tensor A is used as a whole.*A\[i\]"),
    "whole right": (lambda: stage(lambda i: 2.0 * A1), r"tensor A is used as a whole"),
    "function of a tensor": (lambda: stage(lambda i: te.exp(A2)), r"te.exp got the tensor A as a whole.*A\[i, j\]"),
    "returns a tensor": (lambda: stage(lambda i: A1), r"stage C returned the tensor A; return one element, A\[i\]"),
    "returns nothing": (lambda: stage(lambda i: None), r"stage C returned nothing"),
    "returns an empty tuple": (lambda: stage(lambda i: ()), r"stage C returned an empty tuple"),
    "returns text": (lambda: stage(lambda i: "x"), r"stage C got 'x', a str, but needs an expression"),
    "iteration": (lambda: list(A1), r"tensor A cannot be iterated over"),
    "truth": (lambda: stage(lambda i: 1.0 if A1[i] > 0 else 0.0), r"stage C: .*has no truth value.*te.select"),
    "chained comparison": (lambda: stage(lambda i: te.select(0 <= i < 3, A1[i], 0.0)), r"no truth value"),
    "arguments": (lambda: stage(lambda i, j: A1[i]), r"stage C takes 2 arguments \(i, j\) but the shape has 1"),
    "too few arguments": (lambda: stage(lambda i: A1[i], (4, 4)), r"takes 1 arguments \(i\) but the shape has 2"),
    "no function": (lambda: stage(A1), r"function of stage C is .*pass a lambda"),
    "name": (lambda: te.placeholder((2,), name="a b"), r"name 'a b' is not usable"),
    "dtype": (lambda: te.placeholder((2,), "complex64"), r"placeholder input: dtype 'complex64' is not supported"),
    "cast": (lambda: stage(lambda i: te.cast(A1[i], "half")), r"stage C: dtype 'half' is not supported; use one of"),
    "const dtype": (lambda: te.const(1, "bf16"), r"dtype 'bf16' is not supported"),
    "const range": (lambda: te.const(300, "uint8"), r"constant 300 does not fit in uint8, whose range is 0 to 255"),
    "int function": (lambda: stage(lambda i: te.exp(N1[i])), r"stage C: exp needs a float but got int32"),
    "int division": (lambda: stage(lambda i: N1[i] / N1[i]), r"/ needs floats but got int32"),
    "weak constant": (
        lambda: stage(lambda i: N1[i] + 2**40),
        r"stage C uses the constant 1099511627776 as int32, whose",
    ),
    "zero division": (
        lambda: stage(lambda i: N1[i] // 0),
        r"stage C divides by zero in N\[i\]//0; the divisor must be another",
    ),
    "zero division in a reducer": (
        lambda: stage(lambda i: te.reducer(lambda x, y: x + y % 0, 0)(N1[K], axis=K)),
        r"stage C divides by zero in rhs0%0",
    ),
    "equality as a condition": (
        lambda: stage(lambda i: te.select(i == 0, A1[i], 0.0)),
        r"False is no .*te.equal\(a, b\)",
    ),
    "equality among conditions": (lambda: stage(lambda i: te.all(i > 0, i != 2)), r"te.all: True is no .*te.equal"),
    "equality and a condition": (lambda: stage(lambda i: te.select((i == 0) | (i > 2), A1[i], 0.0)), r"te.equal"),
    "equality as a factor": (lambda: stage(lambda i: A1[i] * (N1[i] == 0)), r"stage C: False is no expression"),
    "equality as a number": (lambda: stage(lambda i: te.cast(N1[i] == 0, "int32")), r"te.cast: False is no"),
    "equality as a result": (lambda: stage(lambda i: N1[i] == 0), r"function of stage C: False is no .*te.equal"),
    "product of tensors": (lambda: A1 @ A2, r"tensor A is used as a whole"),
    "select condition": (lambda: stage(lambda i: te.select(A1[i], 1.0, 0.0)), r"condition of select must be bool"),
    "max of one": (lambda: stage(lambda i: te.max(A1[i])), r"te.max needs either axis= .* or a second value"),
    "max of three": (lambda: stage(lambda i: te.max(A1[i], 1.0, axis=K)), r"te.max needs either axis="),
    "spatial axis": (lambda: stage(lambda i: te.sum(A1[i], axis=i)), r"axis of sum is i, an output axis"),
    "no axes": (lambda: stage(lambda i: te.sum(A2[i, K], axis=())), r"sum got no axis"),
    "no axis": (lambda: stage(lambda i: te.sum(A2[i, K])), r"sum got no axis; pass axis=k, where k = te.reduce_axis"),
    "modulus": (
        lambda: stage(lambda i: pow(A1[i], 2, 3)),
        r"pow of A\[i\] and 2 takes no modulus; write pow\(a, b\) %",
    ),
    "number as axis": (lambda: stage(lambda i: te.sum(A2[i, K], axis=1)), r"axis of sum is 1, a int"),
    "axis twice": (lambda: stage(lambda i: te.sum(A2[i, K], axis=(K, K))), r"sum reduces over the same axis twice"),
    "unreduced": (lambda: stage(lambda i: A2[i, K]), r"stage C uses the reduce axis k outside of a reduction"),
    "unreduced inside": (
        lambda: stage(lambda i: 1.0 + te.sum(A2[i, K], axis=te.reduce_axis(2))),
        r"stage C uses the reduce axis k outside",
    ),
    "leaked": (lambda: stage(lambda i: A1[LEAKED[0]]), r"stage C uses the axis z, which belongs to another stage"),
    "leaked deeper": (
        lambda: stage(lambda i: 1.0 + te.sum(A2[LEAKED[0], K], axis=K)),
        r"stage C uses the axis z, which",
    ),
    "range": (lambda: te.reduce_axis((1, 5), name="k"), r"range of reduce axis k is \(1, 5\) but must be an extent"),
    "argmax axes": (
        lambda: stage(lambda i: te.argmax(A2[i, K], axis=(K, te.reduce_axis(2)))),
        r"te.argmax over 2 axes needs its index spelled out",
    ),
    "argmax triple": (lambda: stage(lambda i: te.argmax((i, i, A1[i]), axis=K)), r"takes a value or a pair"),
    "logic of numbers": (lambda: stage(lambda i: te.all(A1[i])), r"te.all needs conditions but A\[i\] is float32"),
    "no conditions": (lambda: te.any(), r"te.any takes conditions"),
    "view size": (lambda: te.view(stage(lambda i: A1[i]), (3,)), r"view \[3\] of tensor C has 3 elements.*\[4\] has 4"),
    "view of an input": (lambda: te.view(A1, (2, 2)), r"te.view is for outputs but A is a placeholder"),
    "view of a number": (lambda: te.view(3, (2, 2)), r"te.view needs a tensor but got 3"),
    "read of a view": (
        lambda: stage(lambda i: te.view(stage(lambda i: A1[i]), (2, 2))[0, 0]),
        r"the view \[2, 2\] of tensor C cannot be read by another stage",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_of_definitions(case):
    build, message = REFUSED[case]
    with pytest.raises(ExpressionError, match=message):
        build()


REFUSED_REDUCERS = {
    "not a function": (1, (0.0, 0.0), r"combine of te.reducer must be a function"),
    "too few results": (lambda x, y: (x[0],), (0.0, 0.0), r"combine of reducer r must return 2 values but returned 1"),
    "not a tuple": (lambda x, y: x[0], (0.0, 0.0), r"combine of reducer r must return 2 values but returned a Var"),
    "identity": (lambda x, y: x, 0.0, r"identity of reducer r must return 2 values but returned a float"),
    "foreign value": (lambda x, y: (x[0] + A1[0], x[1]), (0.0, 0.0), r"combiner of reducer r uses A\[0\]"),
    "dtype": (lambda x, y: (x[0] < y[0], x[1]), (0.0, 0.0), r"turns two values of float32 into bool"),
    "identity not constant": (lambda x, y: x, lambda a, b: (A1[0], 0.0), r"identity of reducer r is A\[0\]"),
}


@pytest.mark.parametrize("case", REFUSED_REDUCERS)
def test_refusals_of_reducers(case):
    combine, identity, message = REFUSED_REDUCERS[case]
    with pytest.raises(ExpressionError, match=message):
        te.reducer(combine, identity, "r")((A1[0], A1[1]), axis=K)


ONE, TWO = ("float32",), ("float32", "float32")
# name -> combine, identity, types of the operands, what the sentence says
LAWLESS = {
    "recurrence": (lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (1.0, 0.0), TWO, "is not commutative"),
    "recurrence of integers": (lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (1, 0), ("int8", "int8"), "commutative"),
    "difference": (lambda p, q: p - q, 0, ("int64",), "is not commutative"),
    "first": (lambda p, q: p, 0.0, ONE, "is not commutative"),
    "implication": (lambda p, q: te.logical_not(p) | q, True, ("bool",), "is not commutative"),
    "mean": (lambda p, q: (p + q) * 0.5, 0.0, ONE, r"is not associative: combine\(combine"),
    "sum from 1": (lambda p, q: p + q, 1, ("int32",), r"identity that changes numbers: combine\(\d+, identity\) is"),
    "sum from nearly 0": (lambda p, q: p + q, 1e-3, ONE, "identity that changes numbers"),
    "maximum from above": (lambda p, q: te.max(p, q), 1e30, ONE, "identity that changes numbers"),
}
LAWFUL = {
    "norm": (lambda p, q: te.sqrt(p * p + q * q), 0.0, ONE),
    "maximum above 0": (lambda p, q: te.max(p, q), 0, ("uint8",)),
    "sum up to 1": (lambda p, q: te.min(p + q, 1.0), 0.0, ONE),
    "log of a sum": (lambda p, q: te.log(te.exp(p) + te.exp(q)), -np.inf, ("float64",)),
    "product in a field": (lambda p, q: p * q % 7, 1, ("int32",)),
    "parity": (te.not_equal, False, ("bool",)),
    "bits": (lambda p, q: p & q, -1, ("int8",)),
    "either of equals": (
        lambda p, q: tuple(te.select(p[1] >= q[1], a, b) for a, b in zip(p, q, strict=True)),
        (-1, -128),
        ("int64", "int8"),
    ),
    "complex product": (lambda p, q: (p[0] * q[0] - p[1] * q[1], p[0] * q[1] + p[1] * q[0]), (1.0, 0.0), TWO),
    "weighted mean": (lambda p, q: ((p[0] * p[1] + q[0] * q[1]) / (p[1] + q[1]), p[1] + q[1]), (0.0, 0.0), TWO),
    "softmax": (
        lambda p, q: (
            te.max(p[0], q[0]),
            p[1] * te.exp(p[0] - te.max(p[0], q[0])) + q[1] * te.exp(q[0] - te.max(p[0], q[0])),
        ),
        (-np.inf, 0.0),
        TWO,
    ),
}


def reduced(combine, identity, dtypes):
    """A use of a reducer."""
    operands = tuple(te.placeholder((8,), d, name=f"X{n}")[K] for n, d in enumerate(dtypes))
    own, operand = te.reducer(combine, identity, "r"), operands if len(operands) > 1 else operands[0]
    return te.compute((1,), lambda i: own(operand, axis=K), name="Y")


@pytest.mark.parametrize("case", LAWLESS)
def test_a_reducer_whose_order_matters_is_refused(case):
    combine, identity, dtypes, message = LAWLESS[case]
    with pytest.raises(ExpressionError, match=f"stage Y: reducer r .*{message}.*; the search splits reductions"):
        reduced(combine, identity, dtypes)


@pytest.mark.parametrize("case", LAWFUL)
def test_a_reducer_may_be_right_for_some_numbers_alone(case):
    reduced(*LAWFUL[case])


def test_reducer_of_nothing_is_refused():
    with pytest.raises(ExpressionError, match="r got an empty tuple of operands"):
        te.reducer(lambda x, y: x, 0.0, "r")((), axis=K)

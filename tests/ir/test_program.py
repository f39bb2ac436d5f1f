"""Programs against Python integers, operation by operation and on random expressions."""

from __future__ import annotations

import random

import numpy as np
import pytest

from autosched.errors import ExpressionError
from autosched.ir.closed_forms import program as program_module
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import Call, Const, Expr, Param, Var, binary, call, cast, ceildiv, imax, imin, select

A, B, C = Param("a"), Param("b"), Param("c")
NAMES = ("a", "b", "c")


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 60, (n, 3))


def one(expr: Expr, matrix: np.ndarray) -> list[float]:
    return list(Program([expr], NAMES)(matrix)[0])


@pytest.mark.parametrize(
    ("expr", "python"),
    [
        (A + B * C, lambda a, b, c: a + b * c),
        (A - B, lambda a, b, c: a - b),
        ((A - B) // C, lambda a, b, c: (a - b) // c),
        ((A - B) % C, lambda a, b, c: (a - b) % c),
        (ceildiv(A * B, C), lambda a, b, c: -(-a * b // c)),
        (ceildiv(100, A), lambda a, b, c: -(-100 // a)),
        (imin(A, imax(B, 7)), lambda a, b, c: min(a, max(b, 7))),
        (A < B, lambda a, b, c: a < b),
        (A <= B, lambda a, b, c: a <= b),
        (A > 30, lambda a, b, c: a > 30),
        (A >= B, lambda a, b, c: a >= b),
        (A.equal(B), lambda a, b, c: a == b),
        (A.not_equal(B), lambda a, b, c: a != b),
        ((A < B) & (B < C), lambda a, b, c: a < b < c),
        ((A < B) | ~(B < C), lambda a, b, c: a < b or not b < c),
        (select(A < B, C, A * 2), lambda a, b, c: c if a < b else 2 * a),
        (select(A < B, B < C, A < C), lambda a, b, c: (b < c) if a < b else (a < c)),
        (cast(A < B, "int64") + C, lambda a, b, c: (a < b) + c),
        (cast(A - 3, "bool"), lambda a, b, c: a != 3),
        (abs(A - B), lambda a, b, c: abs(a - b)),
        (-A, lambda a, b, c: -a),
        (cast(A, "float64") / cast(B, "float64"), lambda a, b, c: a / b),
        (call("sqrt", cast(A, "float64")), lambda a, b, c: float(np.sqrt(a))),
        (cast(cast(A, "float64") / cast(B, "float64"), "int64"), lambda a, b, c: a // b),
        (A, lambda a, b, c: a),
        (Const(5), lambda a, b, c: 5),
        (Const(True, "bool"), lambda a, b, c: 1),
    ],
)
def test_operation(expr: Expr, python: object) -> None:
    matrix = rows(300)
    assert callable(python)
    assert one(expr, matrix) == [float(python(*map(int, row))) for row in matrix]


def test_divisions_are_exact_for_large_integers() -> None:
    a = np.array([(1 << 51) - 1, (1 << 51), 3 * (1 << 40) - 1, 10**15 - 1])
    b = np.array([3, 7, 3, 10])
    got = Program([A // B, ceildiv(A, B), A % B], ("a", "b"))(np.stack([a, b], 1))
    assert got[0].tolist() == (a // b).tolist()
    assert got[1].tolist() == (-(-a // b)).tolist()
    assert got[2].tolist() == (a % b).tolist()


def random_exprs(seed: int, n: int) -> list[tuple[Expr, object]]:
    """Expressions with a Python function of the same meaning, deeply shared."""
    rng = random.Random(seed)
    pool: list[tuple[Expr, object]] = [(A, lambda v: v[0]), (B, lambda v: v[1]), (C, lambda v: v[2])]
    operations = {
        "add": lambda x, y: x + y,
        "min": min,
        "max": max,
        "sub": lambda x, y: x - y,
        "mod": lambda x, y: x % y,
    }
    for _ in range(n):
        (x, f), (y, g) = rng.choice(pool[-8:]), rng.choice(pool)
        op = rng.choice(list(operations))
        if op == "mod":
            pool.append((binary("mod", x, 7) + 1, lambda v, f=f: f(v) % 7 + 1))
        else:
            pool.append((binary(op, x, y), lambda v, f=f, g=g, o=operations[op]: o(f(v), g(v))))
    return pool


@pytest.mark.parametrize("seed", range(5))
def test_random_programs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "BLOCK_ROWS", 7)  # several blocks, the last one short
    pool = random_exprs(seed, 12)
    matrix = rows(20, seed)
    monkeypatch.setattr(program_module, "SHORT_ROWS", 7)
    for many in (0, 20):  # a call for each node, then one for all of a level
        monkeypatch.setattr(program_module, "MANY_ROWS", many)
        got = Program([e for e, _ in pool], NAMES)(matrix)
        for values, (_, f) in zip(got, pool, strict=True):
            assert callable(f)
            assert values.tolist() == [float(f([int(x) for x in row])) for row in matrix]


def test_a_short_population_takes_few_calls() -> None:
    program = Program([select(C * i > B, imin(A * i, B + i), C) for i in range(2, 66)], NAMES)
    assert program.n_instructions > 64 * 4
    assert len(program.levels.code) == 5  # products, sums and comparisons; minima; choices
    matrix = rows(3)
    expected = [[min(a * i, b + i) if b < c * i else c for a, b, c in matrix.tolist()] for i in range(2, 66)]
    assert program(matrix).tolist() == expected


def test_calls_for_each_node_are_made_for_many_rows_alone() -> None:
    program, matrix = Program([A * B + C], NAMES), rows(600)
    found = [program(matrix).tolist() for _ in range(3)]
    assert "nodes" not in program.__dict__
    assert program(matrix).tolist() == found[0] == found[2]
    assert "nodes" in program.__dict__


def test_same_expression_twice_and_result_used_inside_another() -> None:
    x = A * B
    got = Program([x, x + 1, x, A, A], NAMES)(rows(10))
    np.testing.assert_array_equal(got[0], got[2])
    np.testing.assert_array_equal(got[1], got[0] + 1)
    np.testing.assert_array_equal(got[3], got[4])


def test_equal_computations_are_done_once_and_constants_fold() -> None:
    assert Program([A * B + 1, B * A + 2], NAMES).n_instructions == 5  # two columns, one product, two sums
    assert Program([(A * 0 + 3) * 2], NAMES).n_instructions == 1  # a constant row


def test_deep_sums() -> None:
    total: Expr = A
    for i in range(300):
        total = total + imin(B, i + 1)
    assert one(total, rows(2))[0] == sum(min(int(rows(2)[0, 1]), i + 1) for i in range(300)) + rows(2)[0, 0]


def test_empty_population() -> None:
    assert Program([A, A + B], NAMES)(np.empty((0, 3), np.int64)).shape == (2, 0)


def test_division_by_zero_is_a_value() -> None:
    assert np.isinf(Program([ceildiv(A, B)], ("a", "b"))(np.array([[1, 0]]))[0, 0])


def test_errors() -> None:
    with pytest.raises(ExpressionError, match="parameter a"):
        Program([A], ("b",))
    with pytest.raises(ExpressionError, match="not a closed form"):
        Program([Var("i") + 1], NAMES)
    with pytest.raises(ExpressionError, match="erf cannot occur"):
        Program([Call("erf", (cast(A, "float64"),))], NAMES)
    with pytest.raises(ExpressionError, match="3 parameters"):
        Program([A], NAMES)(np.ones((4, 2), np.int64))

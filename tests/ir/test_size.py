"""Sizes: closed forms and guards of integers that are known by symbols."""

from __future__ import annotations

import itertools
import operator

import pytest

from autosched.ir.expr import Const
from autosched.ir.size import Guards, SymbolicSize, evaluate, value_of
from autosched.ir.symbolic import FOLDS, common_divisor, is_known

VALUES = (1, 2, 7, 16, 31, 56)


def test_arithmetic_gives_closed_forms():
    def computed(n: int, m: int) -> tuple[int, ...]:
        return n * 4 + 1, (n + 15) // 16 * 16 - n, n % 6 * m, 3 - (2 - n), (n * m + m) // m, abs(-n), -(-n // 8)

    with Guards() as guards:
        results = computed(guards.symbol("n", 56, 1), guards.symbol("m", 3, 1))
    for n, m in itertools.product(VALUES, VALUES):
        sizes = guards.values({"n": n, "m": m})
        assert guards.hold({"n": n, "m": m})
        numbers = [evaluate(r.form, sizes) if isinstance(r, SymbolicSize) else r for r in results]
        assert numbers == [*computed(n, m)]
    assert [value_of(r) for r in results] == [*computed(56, 3)]


def test_guards_hold_for_the_sizes_that_decide_alike():
    def decided(n: int) -> tuple[object, ...]:
        return n > 10, min(n, 32), max(n % 4, 1), n == 12, [*range(n % 3)], bool(n - 7)

    for value in range(1, 60):
        with Guards() as guards:
            expected = decided(guards.symbol("n", value, 1))
        assert guards.hold({"n": value})
        for n in range(1, 60):
            if guards.hold({"n": n}):
                values = guards.values({"n": n})
                traced = [evaluate(r.form, values) if isinstance(r, SymbolicSize) else r for r in expected]
                assert traced == [*decided(n)]


def test_what_holds_for_the_whole_range_is_no_guard():
    with Guards() as guards:
        n = guards.symbol("n", 56, low=8, high=64)
        assert all((n > 7, n <= 64, n * 8 % 8 == 0, n - n == 0, n != 65))
    assert not guards.conditions


def test_python_numbers_pin_a_size():
    with Guards() as guards:
        assert len(range(guards.symbol("n", 5))) == 5
    assert [guards.hold({"n": n}) for n in (4, 5, 6)] == [False, True, False]


def test_equal_forms_of_other_values_are_other_constants():
    with Guards() as guards:
        n, again, other = guards.symbol("n", 56), guards.symbol("n", 56), guards.symbol("n", 57)
        assert Const(n) is Const(again)
        assert Const(n) is not Const(other)
    assert not guards.conditions


def test_common_divisors_hold_for_all_values():
    with Guards() as guards:
        n = guards.symbol("n", 64)
        assert common_divisor(n * 48, 36) == 12
        assert common_divisor(n, 64) == 1
    assert not guards.conditions


def test_decisions_outside_of_a_trace_are_bugs():
    with Guards() as guards:
        n = guards.symbol("n", 5)
    with pytest.raises(AssertionError, match="where no guards are collected"):
        bool(n > 3)


def test_open_questions_take_no_guard():
    with Guards() as guards:
        n = guards.symbol("n", 96, 1, 4096)
        assert not is_known("eq", n % 6, 0)
        assert not is_known("le", (n + 5) // 6 * 6, n)
        assert FOLDS["min"]((n + 5) // 6 * 6, n) == n  # the first is never smaller
        assert not is_known("ge", n, 48)
        assert is_known("ge", n // 6 * 6 + 5, n)
    assert not guards.conditions


def test_minima_of_forms_that_cross_hold_for_all_sizes():
    with Guards() as guards:
        n = guards.symbol("n", 10, 1, 100)
        least, most = (FOLDS[op](n % 6, n // 6) for op in ("min", "max"))
    assert not guards.conditions
    for value in range(1, 101):
        sizes = guards.values({"n": value})
        assert evaluate(least.form, sizes) == min(value % 6, value // 6)
        assert evaluate(most.form, sizes) == max(value % 6, value // 6)


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_known_comparisons_hold_for_all_values(op):
    def forms(n: int) -> list[int]:
        plain = [n, n % 6, n // 6 * 6, (n + 5) // 6 * 6, (n + 15) // 16, n // 32 * 2, n * 3 - 1, n // 4 - n // 8, 7]
        return [*plain, FOLDS["min"](n // 16, (n + 15) // 16), FOLDS["max"](n % 4, n // 9), n // 16 * 16 - n // 8 * 8]

    for i, j in itertools.product(range(12), range(12)):
        with Guards() as guards:
            traced = forms(guards.symbol("n", 29, 1, 60))
            is_open = not is_known(op, traced[i], traced[j])
        assert not guards.conditions
        holds = all(getattr(operator, op)(forms(n)[i], forms(n)[j]) for n in range(1, 61))
        assert is_open or holds, (op, traced[i], traced[j])

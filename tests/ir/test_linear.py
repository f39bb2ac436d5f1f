"""Linear forms and the interval rule, against brute force over all values of the variables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosched.ir.expr import INDEX, Binary, Call, Const, Expr, Load, Param, Var, binary, cast, imax, imin
from autosched.ir.linear import ONE, ZERO, Interval, interval, is_negative, linear
from autosched.ir.simplify import Simplifier
from autosched.ir.visit import is_closed, substitute
from tests.ir.values import value_of

i, j, k = Var("i"), Var("j"), Var("k")
s, t = Param("s"), Param("t")


def num(value: int) -> Const:
    return Const(value, "int64")


def test_terms_are_collected():
    form = linear(i * 2 + j - (i - 3) * 5 + 4)
    assert form.coefficient(i) is num(-3)
    assert form.coefficient(j) is ONE
    assert form.coefficient(k) is ZERO
    assert form.constant is num(19)


def test_a_term_that_cancels_is_gone():
    assert linear(i + j - i).terms == ((j, ONE),)
    assert linear((i * 2 + 3) - i * 2).terms == ()


def test_coefficients_may_be_closed_forms():
    form = linear((i * t + j) * s + t - 1)
    assert value_of(form.coefficient(i), {s: 3, t: 5}) == 15
    assert form.coefficient(j) is s
    assert value_of(form.constant, {t: 7}) == 6


def test_what_is_not_linear_is_an_atom():
    quotient, product = (i + j) // 3, i * j
    form = linear(quotient * 2 + product + i % 2)
    assert {str(a) for a, _ in form.terms} == {str(quotient), str(product), "i%2"}


def test_negation():
    form = linear(Call("neg", (i * t - 2,)))
    assert value_of(form.coefficient(i), {t: 5}) == -5
    assert form.constant is num(2)


def test_the_expression_of_a_form():
    form = linear(i * 3 - j + 2)
    for a, b in itertools.product(range(3), repeat=2):
        assert value_of(form.expr(), {i: a, j: b}) == 3 * a - b + 2


@pytest.mark.parametrize(
    ("closed", "negative"),
    [
        (num(-2), True), (num(2), False), (t, False), (t * -1, True), (num(-1) * t * -3, False),
        (Call("neg", (t,)), True), (Call("neg", (t * -2,)), False), (t + 1, False), (t * s * -1, True),
    ],
)  # fmt: skip
def test_the_sign_of_a_coefficient(closed, negative):
    assert is_negative(closed) is negative


def test_multiples_of_one_parameter_are_added_so_that_the_sign_shows():
    """i*t - (i*t)*2: a coefficient t + t*(-2) would pass for positive."""
    form = linear(i * t - (i * t) * 2)
    assert is_negative(form.coefficient(i))
    assert linear(i * t - i * t).terms == ()


def touched(expr: Expr, ranging: Mapping[Var, int], fixed: Mapping[Expr, int]) -> set[int]:
    names = list(ranging)
    return {
        value_of(expr, {**fixed, **dict(zip(names, point, strict=True))})
        for point in itertools.product(*(range(ranging[v]) for v in names))
    }


def bounds_of(found: Interval, fixed: Mapping[Expr, int]) -> tuple[int, int]:
    lo, extent = value_of(found.lo, fixed), value_of(found.extent, fixed)
    return lo, lo + extent - 1


EXACT = [i * 3 + j, i - j, 5 - i, k * 4 + i * 2 + j - 1, i * 2 - j * 3 + k, (i * 3) % 64, i // 2, i % 3, k + 7]


@pytest.mark.parametrize("expr", EXACT, ids=str)
@pytest.mark.parametrize(("ni", "nj"), [(1, 1), (4, 1), (3, 5), (2, 7)])
def test_linear_indices_are_covered_without_slack_at_the_ends(expr, ni, nj):
    for kv in range(3):
        seen = touched(expr, {i: ni, j: nj}, {k: kv})
        lo, hi = bounds_of(interval(expr, {i: num(ni), j: num(nj)}), {k: kv})
        assert lo <= min(seen)
        assert max(seen) <= hi
        if "%" not in str(expr):
            assert (lo, hi) == (min(seen), max(seen))


def test_the_extent_is_a_closed_form_of_the_parameters():
    found = interval((k * t + i) * 2 + j, {i: t, j: num(3)})
    assert is_closed(found.extent)
    for tv in (1, 2, 5):
        assert value_of(found.extent, {t: tv}) == 2 * (tv - 1) + 3
        assert value_of(found.lo, {t: tv, k: 4}) == 8 * tv


def test_a_falling_index_starts_where_the_variable_ends():
    for index in (9 - i, num(9) - i * t + (i * t - i), 9 + i - 2 * i):
        found = interval(index, {i: num(4)})
        assert bounds_of(found, {t: 3})[0] <= 6
        assert bounds_of(found, {t: 3})[1] >= 9
    split = interval(num(20) + (j * t + i) - (j * t + i) * 2, {i: t, j: num(2)})
    assert bounds_of(split, {t: 3}) == (20 - 5, 20)


def test_an_index_with_no_rule_is_a_bug():
    with pytest.raises(AssertionError, match="no interval rule for Binary"):
        interval(i * j, {i: num(2), j: num(3)})


@st.composite
def index(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Quasi-affine, with min and max as clipped regions have them."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([i, j, k])) * draw(st.integers(-3, 3)) + draw(st.integers(-5, 5))
    a = draw(index(depth - 1))
    match draw(st.integers(0, 5)):
        case 0:
            return a + draw(index(depth - 1))
        case 1:
            return a - draw(index(depth - 1))
        case 2:
            return a // draw(st.integers(1, 5))
        case 3:
            return a % draw(st.integers(1, 5))
        case 4:
            return imin(a, draw(index(depth - 1)))
    return imax(a, draw(index(depth - 1)))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(index(), st.integers(1, 5), st.integers(1, 4), st.integers(-3, 9))
def test_an_interval_holds_everything_that_is_touched(expr, ni, nj, kv):
    ranging = {i: num(ni), j: num(nj)}
    found = interval(expr, ranging)
    assert is_closed(found.extent)
    lo, hi = bounds_of(found, {k: kv})
    seen = touched(expr, {i: ni, j: nj}, {k: kv})
    assert lo <= min(seen)
    assert max(seen) <= hi


@settings(max_examples=200, deadline=None, derandomize=True)
@given(index(2), st.integers(1, 4), st.integers(1, 4), st.integers(-3, 9))
def test_the_same_over_split_variables_with_parameters(expr, ni, tv, kv):
    """i = i*t + j with a tile size that is a parameter."""
    split = substitute(expr, {i: i * t + j, j: k})
    found = interval(split, {i: num(ni), j: t})
    assert is_closed(found.extent)
    lo, hi = bounds_of(found, {k: kv, t: tv})
    seen = touched(split, {i: ni, j: tv}, {k: kv, t: tv})
    assert lo <= min(seen)
    assert max(seen) <= hi


@settings(max_examples=200, deadline=None, derandomize=True)
@given(index())
def test_a_linear_form_is_the_expression(expr):
    form = linear(expr)
    for point in itertools.product((0, 1, 4), (0, 3), (-2, 5)):
        values = dict(zip((i, j, k), point, strict=True))
        assert value_of(form.expr(), values) == value_of(expr, values)
        assert value_of(Simplifier()(form.expr()), values) == value_of(expr, values)


def test_atoms_of_a_form_are_variables_or_hold_some():
    form = linear(Binary("min", i, j) * t + s * 3)
    assert [a for a, _ in form.terms] == [Binary("min", i, j)]
    assert is_closed(form.constant)


def test_data_may_be_anywhere_in_their_range():
    """Whatever stands still: what is loaded is not known before the kernel runs."""
    i = Var("i")
    loaded = Load("ids", (i,), "int32")
    clamped = cast(binary("min", binary("max", loaded, 0), 9), INDEX)
    for ranging in ({}, {i: num(4)}):
        assert interval(clamped * 2 + 3, ranging) == Interval(num(3), num(19))
    assert interval(cast(Load("codes", (i,), "uint8"), INDEX), {}) == Interval(num(0), num(256))

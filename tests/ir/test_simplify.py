"""The simplifier: the value stays, equal expressions become one node, bounds hold every value."""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autosched.ir.expr import (
    INDEX,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    call,
    cast,
    ceildiv,
    imax,
    imin,
    select,
)
from autosched.ir.simplify import UNKNOWN, Affine, Simplifier
from tests.ir.values import value_of

i, j, k = Var("i"), Var("j"), Var("k")
RANGES = {i: (0, 3), j: (0, 4), k: (-2, 2)}
BOX = list(itertools.product(*(range(lo, hi + 1) for lo, hi in RANGES.values())))
x = Load("x", (i,), "int64")  # of unknown value


def num(value: int) -> Const:
    return Const(value, "int64")


TIMES = int(os.environ.get("SIMPLIFIER_FUZZ", "1"))  # so many times the random expressions; new ones, where it is not 1


def examples(n: int) -> settings:
    return settings(max_examples=n * TIMES, deadline=None, derandomize=TIMES == 1)


def simplifier() -> Simplifier:
    return Simplifier(dict(RANGES))


RULES: list[tuple[Expr, Expr]] = [
    (i + j - i, j),
    ((i + 3) * 2 - 6, i * 2),
    (i * 2 + i * 3, i * 5),
    ((i * 4 + 3) // 4, i),
    ((i * 4 + 3) % 4, num(3)),
    ((i * 8 + j) // 4, i * 2 + j // 4),
    ((i * 6 + 13) // 6, i + 2),
    ((i * 8 + j) % 4, j % 4),
    ((i * 6 + 4) // 8, (i * 3 + 2) // 4),
    ((i * 6 + 4) % 8, (i * 3 + 2) % 4 * 2),
    ((i * 6 + j * 3) % 9, (i * 2 + j) % 3 * 3),
    (i * 6 % 8 * 3 + i * 6 // 8 * 24 + j, i * 18 + j),
    ((i * 2 + j) // 3 * 3 + j + (i * 2 + j) % 3, i * 2 + j * 2),
    ((i * 5 + j) // 5, i),
    ((i * 5 + j) % 5, j),
    (i // 4, num(0)),
    (i % 4, i),
    ((i - 4) // 4, num(-1)),
    ((i - 4) % 4, i),
    (ceildiv(i * 4 + 1, 4), i + 1),
    (ceildiv(num(13), 4), num(4)),
    (imin(i, 3), i),
    (imin(i, 7), i),
    (imax(i, 0), i),
    (imax(i - 5, 0), num(0)),
    (imin(i + j, j + 9), i + j),
    (imin(imin(i, 2), 2), imin(2, i)),
    (imin(i, 2), imin(2, i)),
    (imax(j, imax(i, j)), imax(i, j)),
    (imax(j * 8 + i, j * 8 + k), j * 8 + imax(i, k)),
    # a row of a window against the window's first row, which padding cuts off
    (i + imax(0, k * 7 - 2) - imax(i, i + k * 7 - 2), num(0)),
    (call("neg", call("neg", i)), i),
    (call("neg", i) + i, num(0)),
    (call("neg", i), i * -1),
    (num(3) - i, num(3) + i * -1),
    (Binary("sub", i * j, j * i), num(0)),
]  # fmt: skip


@pytest.mark.parametrize(("expr", "simple"), RULES, ids=lambda e: str(e))
def test_rules(expr, simple):
    s = simplifier()
    assert s(expr) is s(simple)
    assert len(str(s(expr))) <= max(len(str(expr)), len(str(simple)))


@pytest.mark.parametrize(
    ("expr", "truth"),
    [
        (i < 4, True), (i < 3, None), (i >= 0, True), (i > 3, False), (i <= 3, True), (i + j <= i + 4, True),
        (i.equal(j), None), (i.equal(i), True), (i.not_equal(i + 1), True), (i.equal(i + 1), False),
        ((i * 4 + j) // 5 < 4, True), (j - i > 5, False), (x < 3, None), ((i - 4) % 3 < 3, True),
        ((i < 4) & (j < 5), True), ((i < 3) | (j < 5), True), (call("not", i < 4), None),
    ],
)  # fmt: skip
def test_comparisons_that_the_ranges_decide(expr, truth):
    found = simplifier()(expr)
    if truth is None:
        assert not isinstance(found, Const) or expr.children[0].dtype == "bool"
    else:
        assert found is Const(truth, "bool")


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_are_decided_where_all_values_agree_and_nowhere_else(op):
    v = Var("v")
    for lo, hi in itertools.combinations_with_replacement(range(-2, 3), 2):
        truths = {bool(value_of(Binary(op, v, num(0)), {v: n})) for n in range(lo, hi + 1)}
        found = Simplifier({v: (lo, hi)})(Binary(op, v, num(0)))
        assert found is (Const(truths.pop(), "bool") if len(truths) == 1 else Binary(op, v, num(0)))


# u moves by 0 or 1, w by 0 to 7.
u, w = Var("u"), Var("w")


@pytest.mark.parametrize(
    ("expr", "simple"),
    [
        ((k * 8 + i) // 12, k * 2 // 3),
        ((k * 8 + i) % 12, k * 2 % 3 * 4 + i),
        ((k * 8 + u + 6) // 12, (k * 2 + 1) // 3),
        ((k * 8 + u + 6) % 12, (k * 2 + 1) % 3 * 4 + u + 2),
        ((k * 2 + u) // 4, k // 2),
        ((k * 6 + u * 2 + i) // 12, k // 2),  # the coarsest grain that holds the rest
        *((e, None) for e in ((k * 8 + j) // 12, (k * 8 + w) // 12, (k * 8 + j) % 12)),  # the rest is too large
        *((e, None) for e in ((i * 8 + k) // 12, (i * 8 + k) % 12)),  # or less than nothing
    ],
    ids=str,
)  # fmt: skip
def test_what_stays_within_a_grain_leaves_quotients(expr, simple):
    ranges = RANGES | {u: (0, 1), w: (0, 7)}
    s = Simplifier(dict(ranges))
    found = s(expr)
    if simple is not None:
        assert found is s(simple)
    for point in itertools.product(*(range(lo, hi + 1) for lo, hi in ranges.values())):
        values = dict(zip(ranges, point, strict=True))
        assert value_of(found, values) == value_of(expr, values)


@pytest.mark.parametrize(
    ("expr", "bounds"),
    [
        (num(1 << 40), (1 << 40, 1 << 40)), (i * 2 + 1, (1, 7)), (k * -3, (-6, 6)), (i - j, (-4, 3)),
        (j // 2, (0, 2)), (k // 2, (-1, 1)), (k % 3, (0, 2)), (ceildiv(j, 2), (0, 2)),
        (imin(i, j), (0, 3)), (imax(i, j), (0, 4)), (imin(k, i), (-2, 2)), (imax(k, i), (0, 3)),
        (Var("n"), UNKNOWN), (call("abs", k), UNKNOWN), (i * j, (0, 12)), (j // k, UNKNOWN), (j % k, UNKNOWN),
    ],
    ids=str,
)  # fmt: skip
def test_bounds_are_these(expr, bounds):
    assert simplifier().bounds(expr) == bounds


def test_a_decided_select_is_its_branch():
    s = simplifier()
    assert s(select(i < 4, j + 0, k)) is j
    assert s(Select(i < 3, j + i - i, k)) is Select(i < 3, j, k)


def test_expressions_of_other_types_keep_their_operations():
    f = Load("f", (i + j - i,), "float32")
    s = simplifier()
    value = s(f * 2.0 + f * 2.0)
    assert str(value) == str(Load("f", (j,), "float32") * 2.0 + Load("f", (j,), "float32") * 2.0)
    narrow = Cast(i + j - i, "int32")
    assert s(narrow) is Cast(j, "int32")
    assert s(Binary("shr", i + j - i, num(1))) is Binary("shr", j, num(1))


def test_division_by_what_may_not_be_positive_is_left_alone():
    s = simplifier()
    for divisor in (num(-3), k, num(0), i):
        for op in ("floordiv", "mod"):
            expr = Binary(op, i * 3 + 6, divisor)
            found = s(expr)
            assert isinstance(found, Binary)
            assert found.op == op


def test_values_that_are_read_have_no_bounds():
    s = simplifier()
    assert s.bounds(x) == UNKNOWN
    assert s(imin(x, 5)) is imin(x, 5)
    assert s(x < 1 << 62) is (x < 1 << 62)
    clamped = cast(binary("min", binary("max", Load("n", (i,), "int32"), 0), 9), INDEX)
    assert s.bounds(clamped * 3 + 1) == (1, 28)
    assert s.bounds(cast(Load("c", (i,), "uint8"), INDEX) // 16) == (0, 15)


def test_arithmetic_of_data_wraps_around_and_is_left_as_it_is():
    s = simplifier()
    for expr in (Binary("floordiv", x * 4, num(4)), x + 1 > x, x * 3 - x * 2, (x + i) % 8 < 8):
        assert s(expr) is expr
    index = Load("x", (i + j - i,), "int64")
    assert s(index * 4 // 4) is Load("x", (j,), "int64") * 4 // 4


def test_ranges_that_are_added_later_are_used():
    s = Simplifier()
    n = Var("n")
    assert isinstance(s(n < 5), Binary)
    s.ranges[i] = (0, 4)
    assert s(i < 5) is Const(True, "bool")


def test_sharing_is_kept():
    """A sum that doubles 60 times over is one node a level, not 2**60."""
    expr: Expr = i
    for n in range(60):
        expr = imin(expr, expr + n) * 2 - j if n % 2 else expr + expr
    simplifier()(imin(expr, j))


# Around the ends of 32 and 64 bits, and of the bounds of what is not known.
NEAR_WIDTHS = st.builds(
    lambda bits, sign, off: sign * (1 << bits) + off,
    st.sampled_from([31, 32, 62]), st.sampled_from([-1, 1]), st.integers(-2, 2),
)  # fmt: skip


@st.composite
def integer(draw: st.DrawFn, depth: int = 4) -> Expr:
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from([i, j, k])) if draw(st.booleans()) else num(draw(st.integers(-7, 7) | NEAR_WIDTHS))
    a, b = draw(integer(depth - 1)), draw(integer(depth - 1))
    match draw(st.integers(0, 10)):
        case 0 | 1:
            return a + b
        case 2:
            return a - b
        case 3:
            return a * draw(st.integers(-4, 4))
        case 4:
            return Binary("mul", a, b)
        case 5 | 6:
            divisor = draw(st.integers(1, 6)) if draw(st.integers(0, 5)) else -draw(st.integers(1, 3))
            return binary(draw(st.sampled_from(["floordiv", "mod", "ceildiv"])), a, divisor)
        case 7:
            return imin(a, b)
        case 8:
            return imax(a, b)
        case 9:
            return call(draw(st.sampled_from(["neg", "abs"])), a)
    return Select(draw(condition(depth - 1)), a, b)


@st.composite
def condition(draw: st.DrawFn, depth: int) -> Expr:
    a, b = draw(integer(depth)), draw(integer(depth))
    found = binary(draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])), a, b)
    if depth > 0 and draw(st.integers(0, 3)) == 0:
        return binary(draw(st.sampled_from(["and", "or"])), found, draw(condition(depth - 1)))
    return call("not", found) if draw(st.integers(0, 5)) == 0 else found


def values(expr: Expr) -> list[int]:
    return [value_of(expr, dict(zip(RANGES, point, strict=True))) for point in BOX]


def opaque_parts(expr: Expr) -> list[Expr]:
    """Products, calls and selects within."""
    found = [expr] if isinstance(expr, (Call, Select)) or (isinstance(expr, Binary) and expr.op == "mul") else []
    return found + [part for child in expr.children for part in opaque_parts(child)]


@examples(250)
@given(integer() | condition(2))
def test_the_value_is_the_same_at_every_point(expr):
    found = simplifier()(expr)
    assert found.dtype == expr.dtype
    assert values(found) == values(expr)


@examples(200)
@given(integer() | condition(2))
def test_simplifying_again_changes_nothing(expr):
    once = simplifier()(expr)
    assert simplifier()(once) is once
    s = simplifier()
    assert s(s(expr)) is s(expr)
    assert s(expr) is once


@examples(200)
@given(integer())
def test_bounds_hold_every_value(expr):
    least, most = UNKNOWN  # of what is not a sum: an index beyond them would be one of no tensor
    assume(all(least <= v <= most for part in opaque_parts(expr) for v in values(part)))
    s = simplifier()
    seen = values(expr)
    for e in (expr, s(expr)):
        lo, hi = s.bounds(e)
        assert lo <= min(seen)
        assert max(seen) <= hi


@examples(200)
@given(st.lists(integer(2), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_sums_in_any_order_are_one_node(parts, rng):
    s = simplifier()
    total = s(sum(parts[1:], parts[0]))
    shuffled = list(parts)
    rng.shuffle(shuffled)
    right: Expr = num(0)
    for part in shuffled:
        right = part + right
    assert s(right) is total
    assert s(right - parts[0] + parts[0]) is total
    assert s((right * 6) // 6) is total
    assert s((right * 6 + 5) % 6) is num(5)


@examples(200)
@given(integer(2), integer(2), st.sampled_from(["min", "max"]))
def test_minima_and_maxima_of_two_are_one_node_in_either_order(a, b, op):
    s = simplifier()
    assert s(binary(op, a, b)) is s(binary(op, b, a))
    assert s(binary(op, a, binary(op, b, a))) is s(binary(op, a, b))
    shifted = s(binary(op, a + 3, b + 3))
    assert values(shifted) == [v + 3 for v in values(s(binary(op, a, b)))]


def test_a_bound_that_another_implies_goes() -> None:
    s = simplifier()
    near, far = binary("lt", i * 2 + j, num(5)), binary("lt", i * 2 + j + 1, num(5))
    above, higher = binary("ge", i + j, num(2)), binary("ge", i + j, num(3))
    assert s(near & far) is s(far)
    assert s(far & near & far) is s(far)
    assert s(above & (near & higher)) is s(near & higher)
    moved, tight = i * 2 < j + 5, i * 2 - j < 3  # one form, though not by its sides
    assert s(moved & tight) is s(tight & moved) is s(tight)


def test_digits_with_their_places_are_a_number():
    simplify = Simplifier({i: (0, 11), j: (0, 3)})
    form = Affine((), 0)
    for digit, extent in ((i // 4, 3), (i % 4, 4), (j, 4)):
        form = simplify.place_value(form, extent, digit)
    assert form.expr() is simplify((i // 4 * 4 + i % 4) * 4 + j) is simplify(i * 4 + j)
    assert simplify.place_value(form, 5, j + 1) == simplify.affine(form.expr() * 5 + j + 1)
    data = Load("X", (i,), "int64")
    assert simplify.place_value(form, 5, data * 4 - data * 3) != simplify.place_value(form, 5, data)
    assert simplify.place_value(form, 5, data * 4 // 4) != simplify.place_value(form, 5, data), "it wraps around"


def test_three_digits_are_a_number_however_the_first_is_written():
    simplify = Simplifier({i: (0, 2 * 12 - 1)})
    for first in (i // 4 // 3, i // 12):
        assert simplify(first * 12 + i // 4 % 3 * 4 + i % 4) is i


def test_quotients_of_quotients_are_one_and_digits_of_tiles_are_numbers():
    j = Var("j", INDEX)
    simplify = Simplifier({i: (0, 99), j: (0, 3)})
    assert simplify(i // 4 // 3) is simplify(i // 12)
    place = i * 4 + j  # a tile's place: of the quotient by 14 * 14 the 4 has gone
    assert simplify(place // 14 // 14 * 196 + place // 14 % 14 * 14 + place % 14) is simplify(place)

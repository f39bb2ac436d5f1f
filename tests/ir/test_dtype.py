"""The table of dtypes: what follows from a row is what NumPy and ml_dtypes say of the type."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from autosched.errors import ExpressionError
from autosched.ir.dtype import DTYPES, promote
from tests.float8 import E4M3, E5M2

FLOATS = [row for row in DTYPES.values() if row.is_float]
SMALL = [row for row in FLOATS if row.bits <= 16]


@pytest.mark.parametrize("row", [*FLOATS, E4M3, E5M2], ids=lambda row: row.name)
def test_a_float_is_what_numpy_says(row):
    facts = ml_dtypes.finfo(row.numpy_dtype)
    assert (row.bits, row.nbytes) == (facts.bits, row.numpy_dtype.itemsize)
    assert (row.exponent_bits, row.fraction_bits) == (facts.nexp, facts.nmant)
    assert row.largest == float(facts.max)
    assert row.smallest_normal == float(facts.smallest_normal)
    assert row.smallest_subnormal == float(facts.smallest_subnormal)
    assert 2.0 * row.unit_roundoff == float(facts.eps)
    assert row.has_infinity == math.isinf(row.nearest(math.inf))


@pytest.mark.parametrize("row", [row for row in DTYPES.values() if row.is_integer], ids=lambda row: row.name)
def test_an_integer_is_what_numpy_says(row):
    facts = np.iinfo(row.numpy_dtype)
    assert (row.integer_range, row.bits) == ((facts.min, facts.max), facts.bits)


@pytest.mark.parametrize(
    ("name", "roundoff", "underflow", "integer"),
    [
        ("float16", 2.0**-11, 2.0**-25, 2.0**11),  # its subnormals are normal numbers of float32: nobody flushes them
        ("bfloat16", 2.0**-8, 2.0**-126, 2.0**8),
        ("float32", 2.0**-24, 2.0**-126, 2.0**24),
        ("float64", 2.0**-53, 2.0**-1022, 2.0**53),
    ],
)
def test_what_bounds_of_errors_are_made_of(name, roundoff, underflow, integer):
    row = DTYPES[name]
    assert (row.unit_roundoff, row.underflow, row.largest_exact_integer) == (roundoff, underflow, integer)


@pytest.mark.parametrize("row", [*SMALL, E4M3, E5M2], ids=lambda row: row.name)
def test_a_number_is_its_bits(row):
    for bits in range(0, 1 << row.bits, max(1, (1 << row.bits) // 1021)):
        value = row.from_bits(bits)
        assert math.isnan(value) or (row.to_bits(value), row.nearest(value)) == (bits, value)


@pytest.mark.parametrize("row", [*SMALL, E4M3, E5M2], ids=lambda row: row.name)
def test_numbers_round_to_even_and_none_is_too_large_to_be_asked_for(row):
    last = 2.0 * row.unit_roundoff
    assert row.nearest(1.0 + last / 2.0) == 1.0
    assert row.nearest(1.0 + 1.5 * last) == 1.0 + 2.0 * last
    assert row.nearest(row.smallest_subnormal * 0.5) == 0.0
    assert row.nearest(row.largest) == row.largest
    assert not math.isfinite(row.nearest(1e300))


def test_names_are_known_and_abbreviated():
    assert list(DTYPES) == [row.name for row in DTYPES.values()]
    names = "bool i8 u8 i16 u16 i32 u32 i64 u64 f8_e4m3fn f8_e5m2 f16 bf16 f32 f64"
    assert " ".join(row.abbreviation for row in DTYPES.values()) == names
    assert {row.computes_in for row in SMALL} == {row.accumulates_in for row in SMALL} == {"float32"}
    in_int32 = {"bool", "int8", "uint8", "int16", "uint16", "int32"}
    assert {name for name, row in DTYPES.items() if row.accumulates_in == "int32"} == in_int32
    assert all(row.computes_in == name for name, row in DTYPES.items() if not row.is_stored_only)


def assert_signs_are_joined(a, b):
    signed, unsigned = (a, b) if DTYPES[a].kind == "i" else (b, a)
    if unsigned == "uint64":
        with pytest.raises(ExpressionError, match=r"no dtype holds the numbers of .*; cast one of them"):
            promote(a, b)
        return
    twice = max(2 * DTYPES[unsigned].bits, 32)
    holds = DTYPES[signed].bits > DTYPES[unsigned].bits
    assert promote(a, b) == (signed if holds else f"int{twice}")


def test_the_order_of_the_table_is_that_of_promotion():
    """Of two dtypes that are both integers or both floats, the first that holds the numbers of both, or a float."""
    order = list(DTYPES)
    for a in order:
        for b in order:
            expected = max(a, b, key=order.index)
            if {DTYPES[a].kind, DTYPES[b].kind} == {"i", "u"}:  # the type of the one with a sign, or a larger one
                assert_signs_are_joined(a, b)
                continue
            if {a, b} == {"float16", "bfloat16"}:
                expected = "float32"
            if {a, b} == {"float8_e4m3fn", "float8_e5m2"}:
                expected = "float16"
            assert promote(a, b) == expected

"""Shapes, affine indices and bounds: what is accepted, and the sentence for what is not."""

import pytest

from autosched import te
from autosched.errors import ExpressionError

X = te.placeholder((8, 8), name="X")
V = te.placeholder((8,), name="V")
I = te.placeholder((8,), "int64", name="I")  # noqa: E741


def stage(fn, shape=(8,)):
    return te.compute(shape, fn, name="C")


@pytest.mark.parametrize(
    ("extent", "message"),
    [
        (-3, r"extent 1 of placeholder P is -3 but must be >= 0"),
        (True, r"extent 1 of placeholder P is True, a bool, but must be an integer >= 0"),
        (2.0, r"extent 1 of placeholder P is 2.0, a float, but must be an integer >= 0"),
        ("8", r"extent 1 of placeholder P is 8, a str"),
        (None, r"extent 1 of placeholder P is None, a NoneType"),
        (1 << 61, r"placeholder P of shape \[2, \d+\] has more than 2\*\*62 bytes"),
    ],
)
def test_extents_of_placeholders(extent, message):
    with pytest.raises(ExpressionError, match=message):
        te.placeholder((2, extent), name="P")


def test_extents_of_stages_and_reduce_axes():
    with pytest.raises(ExpressionError, match="extent 0 of stage C is -1 but must be >= 0"):
        stage(lambda i: V[i], (-1,))
    with pytest.raises(ExpressionError, match="extent 0 of reduce axis k is -1 but must be >= 0"):
        te.reduce_axis(-1, name="k")
    with pytest.raises(ExpressionError, match="extent 0 of stage C is i, a AxisVar"):
        te.compute((4,), lambda i: te.compute((i,), lambda j: 0.0, name="C")[0], name="D")


def test_sizes_beyond_int64_are_refused():
    with pytest.raises(ExpressionError, match=r"stage C of shape .* has more than 2\*\*62 bytes"):
        stage(lambda i, j: 0.0, (1 << 31, 1 << 30))
    k = te.reduce_axis(1 << 40)
    with pytest.raises(ExpressionError, match=r"stage C has a domain of 16777216 x 1099511627776 points"):
        stage(lambda i: te.sum(V[i % 8] * 1.0, axis=k), (1 << 24,))


NOT_INTEGERS = {
    "data of floats": (lambda i: V[V[i]], r"whose index 0 is V\[i\] of type float32 but must be an integer"),
    "data of truths": (lambda i: V[I[i] > 0], r"whose index 0 is I\[i\] > 0 of type bool but must be an integer"),
    "float": (lambda i: V[i * 0.5], r"of type float32 but must be an integer; use // instead of /"),
    "ten choices": (lambda i: V[sum(te.min(i, n) for n in range(10)) % 8], r"between more than 256 elements; compute"),
    "bool": (lambda i: V[i < 1], r"whose index 0 is i < 1 of type bool but must be an integer"),
}


@pytest.mark.parametrize("case", NOT_INTEGERS)
def test_indices_that_are_not_integers(case):
    fn, message = NOT_INTEGERS[case]
    with pytest.raises(ExpressionError, match=message):
        stage(fn)


OUTSIDE = {
    "below": (lambda i: V[i - 1], r"reads V\[i - 1\] out of bounds: index 0, i - 1, runs over -1 .. 6 but dim"),
    "above": (lambda i: V[2 * i], r"runs over 0 .. 14 but dimension 0 of V has extent 8; change the shapes, or guard"),
    "second dimension": (lambda i: X[0, i + 1], r"index 1, i \+ 1, runs over 1 .. 8 but dimension 1 of X has extent 8"),
    "quotient": (lambda i: V[(i - 1) // 2], r"runs over -1 .. 3"),
    "a multiple": (lambda i: te.select(3 * i <= 21, V[i + 1], 0.0), r"runs over 1 .. 8 under its condition"),
    "guard too wide": (lambda i: te.select(i <= 8, V[i + 1], 0.0), r"runs over 1 .. 8 under its condition"),
    "guard of the wrong branch": (lambda i: te.select(i < 7, 0.0, V[i + 1]), r"runs over 8 .. 8 under its condition"),
    "guard by data": (lambda i: te.select(V[i] > 0, V[i + 1], 0.0), r"runs over 1 .. 8 but"),
    "disjunction": (lambda i: te.select(te.any(i < 7, i > 3), V[i + 1], 0.0), r"runs over 1 .. 8 but"),
    "in the condition": (lambda i: te.select(te.all(i < 7, V[i + 1] > 0), 1.0, 0.0), r"runs over 1 .. 8 but"),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_reads_out_of_bounds(case):
    fn, message = OUTSIDE[case]
    with pytest.raises(ExpressionError, match=message):
        stage(fn)


def test_a_hoisted_reduction_is_checked_under_its_own_name():
    k = te.reduce_axis(9, name="k")
    message = r"stage C\.red reads X\[i, k\] out of bounds: index 1, k, runs over 0 .. 8"
    with pytest.raises(ExpressionError, match=message):
        stage(lambda i: 1.0 + te.sum(X[i, k], axis=k))


def test_data_may_be_an_index_anywhere():
    clamped = r"C reads V\[i \+ 1\] out of bounds"
    for fn in (lambda i: V[I[i]], lambda i: V[i + I[0]], lambda i: X[I[i], i], lambda i: V[I[I[i]] * i - 1]):
        assert stage(fn).shape == (8,)
    with pytest.raises(ExpressionError, match=clamped):
        stage(lambda i: V[I[i]] + V[i + 1])


def test_arithmetic_on_axes_may_be_an_index_and_is_clamped():
    read = {
        "product": (lambda i: V[i * i], "V[min(max(i*i, 0), 7)]"),
        "product inside": (lambda i: V[(i * i) % 8], "V[i*i%8]"),
        "clamped": (lambda i: V[te.min(i * i, 7)], "V[max(min(i*i, 7), 0)]"),
        "division by an axis": (lambda i: V[i // (i + 1)], "V[min(max(i//(i + 1), 0), 7)]"),
        "masked": (lambda i: V[i & 7], "V[i & 7]"),
    }
    for name, (fn, text) in read.items():
        assert str(stage(fn).op.body[0]) == text, name


def test_axes_that_were_cast_are_indices_where_they_fit():
    def narrow(e, dtype="int32"):
        return te.cast(e, dtype)

    read = {
        "cast": (lambda i: V[narrow(i)], "V[i]"),
        "arithmetic": (lambda i: V[7 - narrow(i)], "V[7 - i]"),
        "back and forth": (lambda i: V[narrow(narrow(i), "int64") % 4], "V[i%4]"),
        "a choice": (lambda i: V[te.min(narrow(i) + 1, 7)], "select(i + 1 <= 7, V[i + 1], V[7])"),
        "a constant": (lambda i: V[te.const(3, "uint8")], "V[3]"),
        "one that wraps around": (lambda i: V[narrow(i * 100, "int8") // 100], "V[int64(max(int8(i*100)//100, 0))]"),
        "a product": (lambda i: V[narrow(i) * narrow(i)], "V[int64(min(max(int32(i)*int32(i), 0), 7))]"),
    }
    for name, (fn, text) in read.items():
        assert str(stage(fn).op.body[0]) == text, name


def test_a_branch_that_is_never_taken_may_read_anywhere():
    assert stage(lambda i: V[te.min(i // 8 + 5, 5)]).shape == (8,)
    assert stage(lambda i: V[te.max(i // 8 - 1, 0)]).shape == (8,)
    with pytest.raises(ExpressionError, match=r"reads V\[i//8 - 1\] out of bounds"):
        stage(lambda i: te.select(i // 8 <= 1, V[i // 8 - 1], 0.0))


def padded(h):
    return te.all(h >= 1, h < 9)


INSIDE = {
    "all": (lambda i: te.select(padded(i), V[i - 1], 0.0), 10),
    "and operator": (lambda i: te.select((i >= 1) & (i - 1 < 8), V[i - 1], 0.0), 10),
    "mirrored": (lambda i: te.select(te.all(1 <= i, 9 > i), V[i - 1], 0.0), 10),  # noqa: SIM300
    "nested": (lambda i: te.select(i >= 1, te.select(i <= 8, V[i - 1], 1.0), 0.0), 10),
    "other branch": (lambda i: te.select(i < 1, 0.0, te.select(i > 8, 0.0, V[i - 1])), 10),
    "other branch of any": (lambda i: te.select(te.any(i < 1, i > 8), 0.0, V[i - 1]), 10),
    "not": (lambda i: te.select(te.logical_not(te.any(i < 1, i > 8)), V[i - 1], 0.0), 10),
    "equality": (lambda i: te.select(te.equal(i, 9), V[i - 4], 0.0), 10),
    "not unequal": (lambda i: te.select(te.not_equal(i, 9), 0.0, V[i - 4]), 10),
    "tightened": (lambda i: te.select(te.all(i > 3, i < 5), V[i - 3], 0.0), 10),
    "quotient": (lambda i: te.select(te.all(i >= 3, i < 19), V[(i - 3) // 2], 0.0), 30),
    "guarded quotient": (
        lambda i: te.select(te.all((i - 3) % 2 >= 0, (i - 3) // 2 >= 0, (i - 3) // 2 < 8), V[(i - 3) // 2], 0.0),
        30,
    ),
    "remainder": (lambda i: V[(3 * i + 1) % 8], 30),
    "split": (lambda i: V[i // 8 * 4 + i % 4], 16),
    "double": (lambda i: te.select(te.all(i >= 2, i < 6), X[2 * i - 4, 7 - (i - 2)], 0.0), 10),
    "mirrored at the end": (lambda i: V[te.min(i, 14 - i)], 15),
    "a multiple": (lambda i: te.select(3 * i <= 21, V[i], 0.0), 10),
    "data beside": (lambda i: te.select(te.all(padded(i), V[i % 8] > 0), V[i - 1], 0.0), 10),
}


@pytest.mark.parametrize("case", INSIDE)
def test_reads_that_are_provably_inside(case):
    fn, extent = INSIDE[case]
    assert stage(fn, (extent,)).shape == (extent,)


def test_transposed_convolution_and_two_axes_at_once():
    k = te.reduce_axis(3, name="k")

    def body(i):
        h = i + k - 2
        inside = te.all(h >= 0, te.equal(h % 2, 0), h // 2 < 8)
        return te.sum(te.select(inside, V[h // 2], 0.0), axis=k)

    assert stage(body, (20,)).shape == (20,)


@pytest.mark.parametrize(("stride", "dilation"), [(2, 2), (2, 4), (3, 3)])
def test_dilated_transposed_convolution(stride, dilation):
    """The quotient is one of the output's place then, less a tap, and the facts on it are about both."""
    k = te.reduce_axis(3, name="k")

    def body(limit):
        def at(i):
            h = i - k * dilation
            inside = te.all(h // stride >= 0, te.equal(h % stride, 0), h // stride < limit)
            return te.sum(te.select(inside, V[h // stride], 0.0), axis=k)

        return at

    assert stage(body(8), (30,)).shape == (30,)
    with pytest.raises(ExpressionError, match="out of bounds"):
        stage(body(9), (30,))


def test_facts_on_a_quotient_and_its_dividend_lead_to_an_answer():
    k = te.reduce_axis(3, name="k")

    def at(i):
        h = i - k * 2
        return te.sum(te.select(te.all(h >= 0, h // 2 < 9), V[h // 2], 0.0), axis=k)

    with pytest.raises(ExpressionError, match="out of bounds"):
        stage(at, (30,))


def test_rows_of_a_flat_dimension_under_conditions_on_row_and_column():
    """As columns become images again: W[26 h + w] for 0 <= h, w < 26, each of them a sum of two axes."""
    w, u = te.placeholder((26 * 26,), name="W"), te.reduce_axis(3, name="u")

    def body(most):
        def at(i):
            h, v = i // 28 - u, i % 28 - u
            return te.sum(te.select(te.all(h >= 0, h < 26, v >= 0, v < most), w[h * 26 + v], 0.0), axis=u)

        return at

    assert stage(body(26), (28 * 28,)).shape == (28 * 28,)
    with pytest.raises(ExpressionError, match="out of bounds"):
        stage(body(27), (28 * 28,))


def test_a_load_shared_by_two_branches_is_checked_under_both_conditions():
    with pytest.raises(ExpressionError, match=r"reads V\[i - 1\] out of bounds"):
        stage(lambda i: te.select(i >= 1, V[i - 1], V[i - 1] * 2.0))

"""Products against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import GraphError
from tests.graph.test_operators import computed, some


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 5), (5, 7)),
        ((1, 1), (1, 1)),
        ((5,), (5,)),
        ((5,), (5, 2)),
        ((3, 5), (5,)),
        ((2, 3, 5), (5, 7)),
        ((5,), (2, 5, 3)),
        ((2, 3, 5), (5,)),
        ((4, 1, 3, 5), (2, 5, 7)),
        ((1, 3, 5), (3, 2, 5, 1)),
    ],
)
def test_matmul(a, b):
    x, y = some(*a), some(*b)
    made = computed("matmul", x, y)
    assert made.shape == (x @ y).shape
    np.testing.assert_allclose(made, x @ y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64", "int8"])
def test_products_have_the_type_of_their_factors(dtype):
    from autosched.ir.dtype import numpy_dtype

    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    x, y = (np.arange(-6, 6).reshape(shape).astype(numpy_dtype(dtype)) for shape in ((3, 4), (4, 3)))
    for made in (computed("matmul", x, y), computed("gemm", x, y), computed("linear", x, y.T.copy())):
        assert made.dtype == x.dtype
        np.testing.assert_array_equal(made, (x.astype("float64") @ y.astype("float64")).astype(x.dtype))


@pytest.mark.parametrize(("a", "b"), [((3, 5), (4, 7)), ((2, 3, 5), (3, 5, 7)), ((), (3,))])
def test_factors_that_do_not_fit(a, b):
    with pytest.raises(GraphError, match=r"a matrix product|do not fit each other"):
        computed("matmul", some(*a), some(*b))


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 1, 3, 5)])
@pytest.mark.parametrize("biased", [False, True])
def test_linear(shape, biased):
    x, w, b = some(*shape), some(7, 5), some(7) if biased else None
    np.testing.assert_allclose(computed("linear", x, w, b), x @ w.T + (b if biased else 0), rtol=1e-5, atol=1e-6)


def test_linear_refuses_other_weights():
    with pytest.raises(GraphError, match=r"x\[\.\.\., K\] and w\[N, K\] do not fit"):
        computed("linear", some(3, 5), some(5, 7))


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("bias", [None, (), (7,), (3, 1), (3, 7)])
def test_gemm(trans_a, trans_b, bias):
    a, b = some(3, 5), some(5, 7)
    c = None if bias is None else some(*bias)
    given = a.T.copy() if trans_a else a, b.T.copy() if trans_b else b
    made = computed("gemm", *given, c, alpha=0.5, beta=2.0, trans_a=trans_a, trans_b=trans_b)
    np.testing.assert_allclose(made, 0.5 * (a @ b) + (0 if c is None else 2 * c), rtol=1e-5, atol=1e-6)


def test_gemm_of_integers():
    a, b = np.arange(6, dtype="int32").reshape(2, 3), np.arange(6, dtype="int32").reshape(3, 2)
    np.testing.assert_array_equal(computed("gemm", a, b, alpha=3.0), 3 * (a @ b))
    with pytest.raises(GraphError, match=r"cannot be multiplied by 0\.5"):
        computed("gemm", a, b, alpha=0.5)


@pytest.mark.parametrize("c", [(5,), (2, 3, 7)])
def test_gemm_refuses_a_bias_that_does_not_fit(c):
    with pytest.raises(GraphError, match="fit"):
        computed("gemm", some(3, 5), some(5, 7), some(*c))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 5), (5, 7)]),
        ("ij,jk", [(3, 5), (5, 7)]),
        ("ba,b", [(3, 5), (3,)]),
        ("ii->i", [(4, 4)]),
        ("ii", [(4, 4)]),
        ("ij->ji", [(3, 5)]),
        ("ij->", [(3, 5)]),
        ("i,j->ij", [(3,), (5,)]),
        ("ij,ij->ij", [(3, 5), (3, 5)]),
        ("bhid,bhjd->bhij", [(2, 3, 5, 7), (2, 3, 1, 7)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 5), (4, 5, 7)]),
        ("...i,i...->...", [(2, 3), (3, 2)]),
        ("...ij->...ji", [(2, 3, 5)]),
        ("...ij", [(2, 3, 5)]),
        ("i,i,i->", [(5,), (5,), (5,)]),
        ("ab,bc,cd->ad", [(2, 3), (3, 5), (5, 7)]),
        ("ab,bc,ad->cd", [(2, 3), (3, 5), (2, 7)]),
        ("a,b,c->cab", [(2,), (3,), (5,)]),
        (" i j , j -> i ", [(3, 5), (5,)]),
    ],
)
def test_einsum(equation, shapes):
    arrays = [some(*shape) for shape in shapes]
    expected = np.einsum(equation, *(a.astype("float64") for a in arrays))
    made = computed("einsum", *arrays, equation=equation)
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ij,jk->ik", "has 2 operands but there are 1"),
        ("ijk->k", "has 2 dimensions"),
        ("ij->k", "must have labels of the operands"),
        ("ij->ii", "must have labels of the operands"),
        ("i1->i", "other signs than letters"),
        ("ii->i", "the label i has the sizes 3 and 5"),
    ],
)
def test_what_einsum_refuses(equation, message):
    with pytest.raises(GraphError, match=message):
        computed("einsum", some(3, 5), equation=equation)

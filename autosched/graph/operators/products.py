"""Matrix products and einsum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.elementwise import broadcast_shape, element
from autosched.ir.dtype import DTYPES, promote
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.operators.window import stored, stretched, widen

ELLIPSIS = "..."


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b by NumPy's rules, in the type that sums of products have."""
    if not a.shape or not b.shape:
        raise GraphError(f"a matrix product needs vectors or matrices but got {list(a.shape)} and {list(b.shape)}")
    depth = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if a.shape[-1] != depth:
        raise GraphError(
            f"a matrix product of {list(a.shape)} and {list(b.shape)} sums {a.shape[-1]} and {depth} terms"
        )
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    k, start = te.reduce_axis(depth, name="k"), len(batch) + len(rows)

    def term(*i: Expr) -> Expr:
        outer = i[: len(batch)]
        x = a[(*stretched(a.shape[:-2], outer), *i[len(batch) : start], k)]
        y = b[(*stretched(b.shape[:-2], outer), k, *i[start:])]
        return te.sum(widen(x) * widen(y), axis=k)

    made: Tensor = te.compute((*batch, *rows, *columns), term, name="matmul")
    return made


@operator
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b by NumPy's rules: matrices are the last two dimensions, those before broadcast."""
    return stored(product(a, b), promote(a.dtype, b.dtype))


@operator
def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """x[..., K] @ w[N, K].T + b[N]."""
    if len(w.shape) != 2 or not x.shape or x.shape[-1] != w.shape[1]:
        raise GraphError(f"x[..., K] and w[N, K] do not fit each other: they are {list(x.shape)} and {list(w.shape)}")
    k = te.reduce_axis(w.shape[1], name="k")
    made: Tensor = te.compute(
        (*x.shape[:-1], w.shape[0]),
        lambda *i: te.sum(widen(x[(*i[:-1], k)]) * widen(w[i[-1], k]), axis=k),
        name="linear",
    )
    return stored(added(made, b), promote(x.dtype, w.dtype))


@operator
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Tensor:
    """alpha A B + beta c, where A and B are the matrices a and b, or those transposed; c broadcasts."""
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise GraphError(f"gemm multiplies matrices but got {list(a.shape)} and {list(b.shape)}")
    (m, depth), (terms, n) = a.shape[:: -1 if trans_a else 1], b.shape[:: -1 if trans_b else 1]
    if depth != terms:
        raise GraphError(f"gemm's matrices {[m, depth]} and {[terms, n]} do not fit each other")
    k = te.reduce_axis(depth, name="k")

    def term(i: Expr, j: Expr) -> Expr:
        x, y = a[(k, i) if trans_a else (i, k)], b[(j, k) if trans_b else (k, j)]
        return te.sum(widen(x) * widen(y), axis=k)

    made: Tensor = te.compute((m, n), term, name="gemm")
    if alpha != 1:
        whole = made
        made = te.compute((m, n), lambda i, j: _times(whole[i, j], alpha), name="scaled")
    return stored(added(made, c, beta), promote(a.dtype, b.dtype))


def added(x: Tensor, bias: Tensor | None, factor: float = 1.0) -> Tensor:
    """x + factor * bias, which broadcasts to the shape of `x`; `x` where there is none."""
    if bias is None or factor == 0:
        return x
    if broadcast_shape(x.shape, bias.shape) != x.shape:
        raise GraphError(f"a bias of shape {list(bias.shape)} does not fit {list(x.shape)}")
    made: Tensor = te.compute(x.shape, lambda *i: x[i] + _times(element(bias, i), factor), name="biased")
    return made


def _times(x: Expr, factor: float) -> Expr:
    if factor == 1:
        return x
    if DTYPES[x.dtype].is_float:
        return x * factor
    if factor != int(factor):
        raise GraphError(f"numbers of {x.dtype} cannot be multiplied by {factor}, which is no integer")
    return x * int(factor)


@operator
def eliminate(a: Tensor) -> tuple[Tensor, ...]:
    """A step of Gaussian elimination: the pivot of matrices a[..., n, n], and the matrices [..., n - 1, n - 1] that are
    left of them, if n > 1. The pivot is the greatest element of the first column in size, with the sign of the swap of
    rows that brings it to the top: the determinant of a is its product with that of what is left."""
    if len(a.shape) < 2 or a.shape[-1] != a.shape[-2] or not DTYPES[a.dtype].is_float:
        raise GraphError(f"elimination needs square matrices of floats but got {a.dtype}{list(a.shape)}")
    *lead, n, _ = a.shape

    def greatest(*i: Expr) -> Expr:
        k = te.reduce_axis(n, name="k")
        place: Expr = te.argmax((te.cast(k, "int64"), te.abs(a[(*i, k, 0)])), axis=k)[0]
        return place

    row: Tensor = te.compute(tuple(lead), greatest, name="row")

    def signed(*i: Expr) -> Expr:
        pivot = a[(*i, row[i], 0)]
        return te.select(te.equal(row[i], 0), pivot, -pivot)

    def left(*i: Expr) -> Expr:
        *outer, r, c = i
        top = row[tuple(outer)]
        own = te.select(te.equal(r + 1, top), te.const(0, "int64"), te.cast(r + 1, "int64"))
        pivot, element = a[(*outer, top, 0)], a[(*outer, own, c + 1)]
        share = te.select(te.equal(pivot, 0.0), 0.0, a[(*outer, own, 0)] / pivot)
        return te.cast(element - share * a[(*outer, top, c + 1)], a.dtype)

    pivot = stored(te.compute(tuple(lead), signed, name="pivot"), a.dtype)
    return (pivot,) if n == 1 else (pivot, te.compute((*lead, n - 1, n - 1), left, name="left"))


@operator
def einsum(*x: Tensor, equation: str) -> Tensor:
    """Sums of products in Einstein's notation, as NumPy's; operands are contracted from left to right."""
    labels, result = _parsed(equation, [len(t.shape) for t in x])
    tensor, own = x[0], labels[0]
    for n in range(1, len(x)):
        later = {*result, *(label for one in labels[n + 1 :] for label in one)}
        kept = tuple(dict.fromkeys(label for label in (*own, *labels[n]) if label in later))
        tensor = _contracted([(tensor, own), (x[n], labels[n])], kept if n < len(x) - 1 else result)
        own = kept
    if len(x) == 1:
        tensor = _contracted([(tensor, own)], result)
    dtype = x[0].dtype
    for t in x[1:]:
        dtype = promote(dtype, t.dtype)
    return stored(tensor, dtype)


_Labels = tuple[str, ...]


def _contracted(operands: Sequence[tuple[Tensor, _Labels]], result: _Labels) -> Tensor:
    """The product of the operands, summed over all labels that `result` has not."""
    sizes = _sizes(operands)
    summed = {
        label: te.reduce_axis(n, name=f"k{d}") for d, (label, n) in enumerate(sizes.items()) if label not in result
    }

    def at(*i: Expr) -> Expr:
        place = {**summed, **dict(zip(result, i, strict=True))}
        factors = [
            t[tuple(0 if size == 1 else place[label] for label, size in zip(own, t.shape, strict=True))]
            for t, own in operands
        ]
        value = factors[0]
        for factor in factors[1:]:
            value = widen(value) * widen(factor)
        return te.sum(value, axis=list(summed.values())) if summed else value

    made: Tensor = te.compute(tuple(sizes[label] for label in result), at, name="einsum")
    return made


def _sizes(operands: Sequence[tuple[Tensor, _Labels]]) -> Mapping[str, int]:
    """The size of each label; one of 1 stretches."""
    size_of: dict[str, int] = {}
    for tensor, own in operands:
        for label, size in zip(own, tensor.shape, strict=True):
            if 1 not in (size, known := size_of.get(label, 1)) and size != known:
                raise GraphError(f"the label {label} has the sizes {known} and {size}")
            size_of[label] = size if known == 1 else known
    return size_of


def _parsed(equation: str, ranks: Sequence[int]) -> tuple[list[_Labels], _Labels]:
    """The labels of each operand and of the result; dimensions of an ellipsis are "...1" (the last), "...2", ..."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise GraphError(f"the equation {equation} has {len(terms)} operands but there are {len(ranks)}")
    labels = [_labels(term, equation, rank) for term, rank in zip(terms, ranks, strict=True)]
    longest = max((one for own in labels for one in own if one.startswith(ELLIPSIS)), key=_place, default="")
    free = tuple(f"{ELLIPSIS}{n}" for n in range(_place(longest), 0, -1))
    counts = Counter(label for own in labels for label in own)
    if arrow:
        before, dots, after = right.partition(ELLIPSIS)
        result = (*before, *(free if dots else ()), *after)
    else:
        result = (*free, *sorted(label for label, n in counts.items() if n == 1 and label not in free))
    unknown = [label for label in result if label not in counts]
    if unknown or len(set(result)) != len(result):
        raise GraphError(f"the result of {equation} must have labels of the operands, each once")
    return labels, result


def _labels(term: str, equation: str, rank: int) -> _Labels:
    before, dots, after = term.partition(ELLIPSIS)
    missing = rank - len(before) - len(after)
    if not (before + after).isalpha() and before + after:
        raise GraphError(f"the equation {equation} has other signs than letters, commas, an arrow and ellipses")
    if missing < 0 or (missing and not dots):
        raise GraphError(f"the operand {term!r} of {equation} has {rank} dimensions")
    return (*before, *(f"{ELLIPSIS}{n}" for n in range(missing, 0, -1)), *after)


def _place(label: str) -> int:
    """The number of a dimension of an ellipsis; 0 for none."""
    return int(label.removeprefix(ELLIPSIS) or 0)

"""Sums of products of two loads by matrix multiplication, as BLAS does them.

Both loads have affine indices, so each is a strided view with one dimension for every axis that it uses.
An axis is batch (in the output and in both loads), row (in the output and the first load), column (in
the output and the second) or inner (reduced). Blocks of both operands are laid out as [batch, rows, inner]
and [batch, inner, columns] and multiplied. The error bound

    sum over terms of (|a| + ea) (|b| + eb) - |a b|  +  c |a b|,   c = (2 n + 1) u,  n terms

is the same product of magnitudes: (c |a| + ea) |b| + (|a| + ea) eb. It is formed in float32, whose own
error is covered by a factor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Call, Cast, Expr, Load, precision_of
from autosched.te.reference import error_bounds as rules
from autosched.te.reference.blocks import AffineIndex, affine, element_strides
from autosched.te.reference.error_bounds import Array, Bounded

_BLOCK = 1 << 22  # elements of one operand's block
_INNER = 1 << 20  # most inner elements of a block
_FEW_TERMS = 64
_FLOAT32_SAFE = (1e-12, 1e12)  # magnitudes whose products stay well inside float32
_FLOAT32_SQUARES = (1e-6, 1e6)  # magnitudes whose squares' products do


@dataclass(frozen=True)
class Operand:
    """A load over all axes of a stage: element strides (0 for an axis it does not use) and the first element."""

    value: Bounded
    strides: tuple[int, ...]
    start: int

    def uses(self, axis: int) -> bool:
        return self.strides[axis] != 0


@dataclass(frozen=True)
class Contraction:
    """out[space axes] = sum over inner axes of a * b; axes are numbered as in `extents`."""

    a: Operand
    b: Operand
    extents: tuple[int, ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: tuple[int, ...]

    def size(self, axes: Sequence[int]) -> int:
        return math.prod(self.extents[axis] for axis in axes)

    @property
    def terms(self) -> int:
        return self.size(self.inner)

    @property
    def worthwhile(self) -> bool:
        """Whether matrix multiplication beats adding up term by term: not for a few terms of vectors."""
        vectors = self.size(self.rows) == 1 or self.size(self.columns) == 1
        return not (vectors and self.terms <= _FEW_TERMS)


def match(body: Expr, extents: Mapping[str, int], spatial: int, tensors: Mapping[str, Bounded]) -> Contraction | None:
    """`body` as a product of two loads inside their tensors, or None. The first `spatial` axes are the output's."""
    if not isinstance(body, Binary) or body.op != "mul":
        return None
    a, b = _operand(body.a, extents, tensors), _operand(body.b, extents, tensors)
    if a is None or b is None:
        return None
    space, inner = range(spatial), tuple(range(spatial, len(extents)))
    batch = tuple(x for x in space if a.uses(x) and b.uses(x))
    columns = tuple(x for x in space if b.uses(x) and not a.uses(x))
    rows = tuple(x for x in space if x not in batch and x not in columns)
    contraction = Contraction(a, b, tuple(extents.values()), batch, rows, columns, inner)
    if contraction.size(rows) >= contraction.size(columns):
        return contraction
    return Contraction(b, a, contraction.extents, batch, columns, rows, inner)


def _operand(expr: Expr, extents: Mapping[str, int], tensors: Mapping[str, Bounded]) -> Operand | None:
    precision = precision_of(expr)
    if precision and isinstance(expr, Call):
        inner = _operand(expr.args[0], extents, tensors)
        return None if inner is None else replace(inner, value=rules.shortened(precision, inner.value))
    widened = expr.dtype
    while isinstance(expr, Cast) and _exact_cast(expr.a.dtype, expr.dtype):
        expr = expr.a
    if not isinstance(expr, Load):
        return None
    source = tensors[expr.buffer]
    if rules.may_lose(source.value, expr.dtype):
        source = rules.cast(source, expr.dtype, widened)
    ranges = {name: (0, extent) for name, extent in extents.items()}
    steps = element_strides(source.value.shape)
    forms: list[AffineIndex] = []
    for index, extent in zip(expr.indices, source.value.shape, strict=True):
        form = affine(index)
        if form is None:
            return None
        low, high = form.range(ranges)
        if low < 0 or high >= extent:
            return None
        forms.append(form)
    strides = tuple(sum(f.coefficients.get(name, 0) * s for f, s in zip(forms, steps, strict=True)) for name in extents)
    return Operand(source, strides, sum(f.constant * s for f, s in zip(forms, steps, strict=True)))


def _exact_cast(source: str, target: str) -> bool:
    """Widening casts, which keep the value."""
    a, b = DTYPES[source], DTYPES[target]
    return b.bits > a.bits and (b.is_float or (not a.is_float and b.holds(a)))


def evaluate(c: Contraction, shape: Sequence[int], dtype: str, cut: float = 0.0) -> Bounded:
    """The output of `shape`, with its error bound; integers wrap around in `dtype`. `cut`: see `rules.cut_off`."""
    value = values(c, shape, dtype)
    if not DTYPES[dtype].is_float:
        return Bounded(value)
    a, b = (Bounded(x.value.value.astype("float64", copy=False), _finite(x.value.err)) for x in (c.a, c.b))
    factor, largest = (2.0 * c.terms + 1.0) * rules.unit(dtype) + cut, rules.exact_up_to(dtype, cut)
    size_a, size_b = np.abs(a.value), np.abs(b.value)
    if a.err is None and b.err is None:
        integers = rules.integral(a.value) and rules.integral(b.value)
        if integers and c.terms * _largest(size_a) * _largest(size_b) <= largest:
            return Bounded(value)
        err = _magnitudes(c, shape, size_a, size_b)
        if integers and float(err.max()) <= largest:
            return Bounded(value)
        err *= factor
    else:
        err = _magnitudes(c, shape, factor * size_a + rules.error_of(a), size_b)
        if b.err is not None:
            err += _magnitudes(c, shape, size_a + rules.error_of(a), b.err)
    err += 2.0 * c.terms * DTYPES[dtype].underflow
    if not any(x.err is not None and np.isinf(x.err).any() for x in (c.a.value, c.b.value)):
        return Bounded(value, rules.tamed(value, err, dtype))
    unbounded = np.where(_has_unbounded(c, shape), np.inf, 0.0)
    return Bounded(value, rules.tamed(value, err + unbounded, dtype, unbounded))


def values(c: Contraction, shape: Sequence[int], dtype: str) -> Array:
    """The output of `shape` without its bound, floats in float64; integers wrap around in `dtype`."""
    if not DTYPES[dtype].is_float:
        return _integers(c, shape, dtype)
    value = np.zeros(tuple(shape))
    # Integers are cast before they are multiplied: their products wrap around.
    a, b = (x.value.value.astype("float64", copy=False) for x in (c.a, c.b))
    _multiply(c, a, b, value)
    return value


def _finite(err: Array | None) -> Array | None:
    """The bounds without the infinite ones, which would make NaN of all sums that multiply them by 0."""
    return None if err is None else np.where(np.isinf(err), 0.0, err)


def _has_unbounded(c: Contraction, shape: Sequence[int]) -> Array:
    """Where a sum has a term without a bound."""
    counts = np.zeros(tuple(shape), "float32")
    a, b = (None if x.value.err is None else np.isinf(x.value.err).astype("float32") for x in (c.a, c.b))
    if a is not None and a.any():
        _multiply(c, a, np.ones(c.b.value.value.shape, "float32"), counts)
    if b is not None and b.any():
        _multiply(c, np.ones(c.a.value.value.shape, "float32"), b, counts)
    return counts > 0


def sums(c: Contraction, shape: Sequence[int], dtype: str) -> tuple[Array, Array | None]:
    """The output of `shape` without a bound, multiplied and added up in the type that floats of `dtype` compute in, and
    the sums of the products' squares, as far as these do not depend on each other (they take a pass over the operands
    then, not another product); None where the sums are exact in any order."""
    kind = DTYPES[dtype].computes_in
    a, b = (x.value.value.astype(kind) for x in (c.a, c.b))
    (low, high), largest = _FLOAT32_SQUARES, [_largest(x) for x in (a, b)]
    out, squares = np.zeros(tuple(shape), kind), None
    if not (c.terms * math.prod(largest) <= DTYPES[kind].largest_exact_integer and all(map(_is_integral, (a, b)))):
        is_safe = all(low < x < high for x in largest)
        squares = np.zeros(tuple(shape), "float32" if is_safe else "float64")
    _multiply(c, a, b, out, squares)
    return out, squares


def _is_integral(array: Array) -> bool:
    return rules.integral(array.flat[:64]) and rules.integral(array)


def _largest(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0))


def _integers(c: Contraction, shape: Sequence[int], dtype: str) -> Array:
    """Exact: in float64 as long as no sum can exceed 2^53, else in wrapping integers, which have no BLAS."""
    a, b = c.a.value.value, c.b.value.value
    limit = float(np.abs(a.astype("float64")).max()) * float(np.abs(b.astype("float64")).max()) * c.terms
    exact = limit <= 2.0**53
    out = np.zeros(tuple(shape), dtype="float64" if exact else dtype)
    kind = out.dtype
    _multiply(c, a.astype(kind), b.astype(kind), out)
    return out.astype("int64").astype(dtype) if exact else out


def _magnitudes(c: Contraction, shape: Sequence[int], a: Array, b: Array) -> Array:
    """The product of two non-negative operands, rounded up."""
    largest = [float(x.max(initial=0.0)) for x in (a, b)]
    low, high = _FLOAT32_SAFE
    kind = "float32" if all(low < x < high for x in largest) and c.terms < 1 << 18 else "float64"
    out = np.zeros(tuple(shape), dtype=kind)
    _multiply(c, a.astype(kind), b.astype(kind), out)
    slack = 2.0**-22 if kind == "float32" else 2.0**-51
    lost = 2.0 * c.terms * (DTYPES["float32"].underflow if kind == "float32" else 0.0)
    return out.astype("float64") * (1.0 + (c.terms + 2.0) * slack) + lost


def _multiply(c: Contraction, a: Array, b: Array, out: Array, squares: Array | None = None) -> None:
    """out += a b, block by block; a and b are the flat data of the two operands in the dtype of `out`. `squares` gets
    the sums of the products' squares, see `sums`."""
    flat_a, flat_b = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    order = c.batch + c.rows + c.columns
    target, beside = out.transpose(order), None if squares is None else squares.transpose(order)
    for inner in _boxes(c, c.inner, _INNER):
        k = _count(inner)
        for columns in _boxes(c, c.columns, _BLOCK // k):
            n = _count(columns)
            for batch in _boxes(c, c.batch, _BLOCK // (k * n)):
                m_batch = _count(batch)
                right = _gather(c.b, flat_b, (*batch, *inner, *columns), (m_batch, k, n))
                for rows in _boxes(c, c.rows, _BLOCK // (k * m_batch)):
                    m = _count(rows)
                    left = _gather(c.a, flat_a, (*batch, *rows, *inner), (m_batch, m, k))
                    box = (*batch, *rows, *columns)
                    place = tuple(slice(lo, hi) for _, lo, hi in box)
                    extents = [hi - lo for _, lo, hi in box]
                    target[place] += np.matmul(left, right).reshape(extents)
                    if beside is not None:
                        rows2 = np.einsum("bmk,bmk->bm", left, left, dtype=beside.dtype)
                        columns2 = np.einsum("bkn,bkn->bn", right, right, dtype=beside.dtype)
                        beside[place] += (rows2[:, :, None] * (columns2[:, None, :] / k)).reshape(extents)


_Box = tuple[tuple[int, int, int], ...]  # (axis, lo, hi)


def _count(box: _Box) -> int:
    return math.prod(hi - lo for _, lo, hi in box)


def _boxes(c: Contraction, axes: Sequence[int], limit: int) -> Iterator[_Box]:
    """The box of `axes` in parts of at most `limit` points (at least one), whole inner axes first."""
    return ranges_within([(axis, c.extents[axis]) for axis in axes], limit)


def ranges_within(axes: Sequence[tuple[int, int]], limit: int) -> Iterator[_Box]:
    """All of the box of (axis, extent) in parts of at most `limit` points; the last axes are cut last."""
    room = max(1, limit)
    parts: list[list[tuple[int, int, int]]] = []
    for axis, extent in reversed(axes):
        step = max(1, min(extent, room))
        room //= step
        if step < extent:
            room = 1
        parts.append([(axis, lo, min(lo + step, extent)) for lo in range(0, extent, step)])
    return itertools.product(*reversed(parts))


def _gather(operand: Operand, flat: Array, box: _Box, shape: tuple[int, ...]) -> Array:
    """The operand over `box` as an array of `shape`; a view where the memory allows it."""
    start = operand.start + sum(operand.strides[axis] * lo for axis, lo, _ in box)
    extents = tuple(hi - lo for _, lo, hi in box)
    strides = tuple(operand.strides[axis] * flat.itemsize for axis, _, _ in box)
    return as_strided(flat[start:], extents, strides, writeable=False).reshape(shape)

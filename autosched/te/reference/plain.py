"""The plain evaluation: what a graph computes in its declared types, with sums in the least accurate order.

How far it is from the reference is the precision that correct kernels and networks have, from which
`verification.tolerances` derives its tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from autosched.ir.dtype import DTYPES
from autosched.te.dag import ComputeDAG
from autosched.te.reference import blas
from autosched.te.reference import error_bounds as rules
from autosched.te.reference.error_bounds import Array, Bounded
from autosched.te.reference.evaluate import (
    BLOCK,
    domain_boxes,
    evaluate_stage,
    evaluate_through,
    kind_of,
    prefix_scan,
    product_of,
    term_parts,
)  # fmt: skip
from autosched.te.reference.scans import Scan, find_scan
from autosched.te.tensor import ComputeOp

PLAIN_RUN = 1024  # numbers: programs that add up more have several sums


def evaluate_plainly(dag: ComputeDAG, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """The outputs of `dag` as a plain program in the declared types may have them, whose sums are in the least accurate
    order: they are made in those types, and off by what rounding makes of them when one number is added after the other
    (`error_bounds.order_deviation`, in random directions). What a stage computes is rounded to its own type."""
    types = [DTYPES[t.dtype].numpy_dtype for t in dag.outputs]
    return tuple(x.astype(kind) for x, kind in zip(evaluate_through(dag, inputs, _plain_values), types, strict=True))


def _plain_values(op: ComputeOp, tensors: Mapping[str, Bounded]) -> list[Array]:
    if not op.has_points:
        return [x.value for x in evaluate_stage(op, tensors)]
    product = product_of(op, tensors)
    if product is not None and DTYPES[op.body[0].dtype].is_float:
        values = [_added_in_order(op, *blas.sums(product, op.shape, op.body[0].dtype))]
    elif op.reducer is not None and kind_of(op.reducer) == "sum" and DTYPES[op.body[0].dtype].is_float:
        scan = find_scan(op)
        values = [_added_in_order(op, *_plain_sums(op, tensors)) if scan is None else _plain_scan(op, scan, tensors)]
    else:
        values = [x.value for x in evaluate_stage(op, tensors)]
        if op.reducer is not None and kind_of(op.reducer) == "general":
            values = [_rounded_in_order(op, x) if x.dtype.kind == "f" else x for x in values]
    rounded = [x.astype(DTYPES[t.dtype].numpy_dtype) for x, t in zip(values, op.outputs, strict=True)]
    return [x.astype(rules.working_type(t.dtype), copy=False) for x, t in zip(rounded, op.outputs, strict=True)]


def _terms(op: ComputeOp) -> int:
    return math.prod(axis.extent for axis in op.reduce_axes)


def _added_in_order(op: ComputeOp, sums: Array, squares: Array | None) -> Array:
    """The sums of a stage, off by what adding one term after the other may come to; `squares`: sums of the terms'
    squares, None where the sums are exact in any order."""
    if squares is None:
        return sums
    terms, dtype = _terms(op), DTYPES[op.body[0].dtype].computes_in
    deviation = rules.order_deviation(sums.astype("float64"), squares.astype("float64"), terms, dtype)
    cut = rules.usual_cut(op.body[0], terms)
    if cut:
        deviation += cut * np.sqrt(np.square(sums, dtype="float64") + squares)
    return np.asarray(sums + rules.in_some_direction(deviation)).astype(sums.dtype)


def _rounded_in_order(op: ComputeOp, results: Array) -> Array:
    """The results of another reduction than a sum, as a product, rounded for each term as if all were as large."""
    return _added_in_order(op, results, 5 * np.square(results))


def _plain_scan(op: ComputeOp, scan: Scan, tensors: Mapping[str, Bounded]) -> Array:
    """The running sums of a stage, each made from the one before."""
    (term,) = evaluate_stage(scan.term_stage(op), tensors)
    dtype = DTYPES[DTYPES[op.body[0].dtype].computes_in].numpy_dtype
    return prefix_scan(op, scan, Bounded(term.value.astype(dtype)), "sum").value


def _plain_sums(op: ComputeOp, tensors: Mapping[str, Bounded]) -> tuple[Array, Array | None]:
    """The sums of a stage: runs of numbers added one after the other, and then the runs; and those of squares."""
    row = DTYPES[DTYPES[op.body[0].dtype].computes_in]
    dtype, is_exact = row.numpy_dtype, True
    sums, squares = np.zeros(op.shape, dtype), np.zeros(op.shape)
    for box in domain_boxes([(a.name, a.extent) for a in op.axes], BLOCK):
        place = tuple(slice(lo, hi) for lo, hi in box.values())
        points = math.prod(hi - lo for lo, hi in box.values())
        for (part,) in term_parts(op, box, tensors, max(1, BLOCK // points)):
            terms = part.value.astype(dtype)
            for start in range(0, terms.shape[-1], PLAIN_RUN):
                sums[place] += np.add.accumulate(terms[..., start : start + PLAIN_RUN], axis=-1)[..., -1]
            squares[place] += np.add.reduce(np.square(part.value), axis=-1)
            is_exact = is_exact and rules.integral(part.value)
    # The sum of integers' squares is at least that of their sizes.
    return sums, None if is_exact and float(squares.max(initial=0.0)) <= row.largest_exact_integer else squares

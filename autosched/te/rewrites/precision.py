"""Reduced precision of sums of products, where a user allows it (`instructions/precision.py`)."""

from __future__ import annotations

from dataclasses import replace

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Call, Cast, Expr, Load, precision_of
from autosched.ir.instructions.precision import EXACT, FAST_FLOAT8
from autosched.te.dag import ComputeDAG
from autosched.te.tensor import ComputeOp, Tensor, postorder


def with_precision(dag: ComputeDAG, precision: str) -> ComputeDAG:
    """Another workload: the same with sums of products in `precision`, a name of PRECISIONS; `dag` itself where it has
    none that this is for, of float32 or, with FAST_FLOAT8, of floats of 8 bits."""
    made = dag.remade(lambda op: _allowed(op, precision))
    if made is dag:
        return dag
    return ComputeDAG(made.outputs, None, made.weights, made.winograd, made.weights_in)


def allowed_precision(dag: ComputeDAG) -> str:
    """That in which some of its products may be computed; EXACT where there are none."""
    precisions = (precision_of(node) for op in dag.stages for node in postorder(op.body))
    return next(filter(None, precisions), EXACT)


def _allowed(op: ComputeOp, precision: str) -> tuple[Tensor, ...] | None:
    match op.body:
        case (Binary(op="mul", a=a, b=b),) if _is_for(precision, a) and _is_for(precision, b):
            if op.reducer is None or not op.reducer.is_sum:
                return None
            product = Call(precision, (a,)) * Call(precision, (b,))
            return replace(op, body=(product,)).outputs
    return None


def _is_for(precision: str, factor: Expr) -> bool:
    match factor:
        case Load(dtype="float32"):
            return precision != FAST_FLOAT8
        case Cast(a=Load(dtype=dtype), dtype="float32"):
            return precision == FAST_FLOAT8 and DTYPES[dtype].is_float and DTYPES[dtype].bits == 8
    return False

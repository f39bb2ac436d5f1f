"""Exponentials of nonpositive arguments (`negative_exponents`), which are marked where the argument is never above 0.

    P[i] = max over k of X[i, k]        E[i, j] = exp(X[i, j] - P[i])      becomes exp_negative(X[i, j] - P[i])

as in every softmax, whatever X is there, and exp(-abs(..)). The result neither overflows nor needs a power of two
above 1, which saves instructions (`codegen/llvm/math/vector_math.py`). NaN is still possible.
"""

from __future__ import annotations

from dataclasses import replace

from autosched.ir.expr import Binary, Call, Expr, Load, Var
from autosched.ir.visit import loads, substitute
from autosched.te.dag import ComputeDAG
from autosched.te.tensor import ComputeOp, Tensor, rewrite


def negative_exponents(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with `exp_negative` for `exp` of what is at most 0; `dag` itself where there is none."""
    return dag.remade(_marked)


def _marked(op: ComputeOp) -> tuple[Tensor, ...] | None:
    def mark(node: Expr, new: Expr) -> Expr:
        is_negative = isinstance(node, Call) and node.fn == "exp" and _is_negative(node.args[0], op)
        return Call("exp_negative", new.children) if is_negative else new

    body = rewrite(op.body, mark)
    return None if all(a is b for a, b in zip(body, op.body, strict=True)) else replace(op, body=body).outputs


def _is_negative(e: Expr, op: ComputeOp) -> bool:
    """Whether e, in the stage, is at most 0 or NaN."""
    match e:
        case Call(fn="neg", args=(Call(fn="abs"),)):
            return True
        case Binary(op="sub", a=value, b=Load() as load):
            return _is_largest(load, value, op)
    return False


def _is_largest(load: Load, value: Expr, op: ComputeOp) -> bool:
    """Whether what is read is a maximum of numbers among which `value` is."""
    source = next(t.op for t in op.inputs if t.name == load.buffer)
    if not isinstance(source, ComputeOp) or source.reducer is None or not source.reducer.is_max:
        return False
    extents = {a.var: a.extent for a in (*op.axes, *op.reduce_axes)}
    places: dict[Expr, Expr] = {a.var: i for a, i in zip(source.axes, load.indices, strict=True)}
    reduced = {a.var: a.extent for a in source.reduce_axes}
    for of, at in zip(loads(source.body[0]), loads(value), strict=False):
        for r, i in zip(of.indices, at.indices, strict=False):
            if isinstance(r, Var) and isinstance(i, Var) and r in reduced and reduced[r] == extents.get(i):
                places[r] = i
    return substitute(source.body[0], places) is value

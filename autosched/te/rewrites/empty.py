"""Constants for reductions over no elements (`fold_empty`), so that no stage reads a tensor without elements.

    C[i] = sum over k < 0 of A[i, k]                 becomes C[i] = 0
    B[i] = select(i < 0, E[i], X[i]), E of size 0    becomes B[i] = select(i < 0, 0, X[i])

Stages of intermediate tensors without elements are gone then, as nothing reads them; an output without elements stays
and has no loops (`schedule.state.initial_state`). The kernel keeps all its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from autosched.ir.expr import Expr, Load
from autosched.te.dag import ComputeDAG
from autosched.te.tensor import ComputeOp, Tensor, postorder, rewrite, zero


def fold_empty(dag: ComputeDAG) -> ComputeDAG:
    """The DAG whose stages have points, but for outputs without elements; `dag` itself where all have."""
    return dag.remade(_folded)


def _folded(op: ComputeOp) -> tuple[Tensor, ...] | None:
    if not op.has_points:
        inputs = tuple(_placeholders(op.inputs))
        parts = zip(op.outputs, op.without_points, strict=True)
        return tuple(ComputeOp(t.name, op.axes, (), (value,), None, inputs).outputs[0] for t, value in parts)
    empty = {t.name: t for t in op.inputs if 0 in t.shape}
    if not any(isinstance(node, Load) and node.buffer in empty for node in postorder(op.body)):
        return None

    def fold(node: Expr, new: Expr) -> Expr:
        return zero(node.dtype) if isinstance(node, Load) and node.buffer in empty else new

    read = (t for t in op.inputs if t.name not in empty)
    inputs = tuple(dict.fromkeys((*read, *_placeholders(empty.values()))))
    return replace(op, body=rewrite(op.body, fold), inputs=inputs).outputs


def _placeholders(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield each input of the kernel that tensors are computed from."""
    waiting, seen = [*tensors], set[Tensor]()
    while waiting:
        tensor = waiting.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        if isinstance(tensor.op, ComputeOp):
            waiting += tensor.op.inputs
        else:
            yield tensor

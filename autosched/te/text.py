"""A graph of stages as text, for those who read it."""

from __future__ import annotations

from collections.abc import Iterator

from autosched.ir.printer import expr_text
from autosched.te.dag import ComputeDAG
from autosched.te.tensor import Axis, ComputeOp, Tensor


def dag_text(dag: ComputeDAG) -> str:
    """A line for inputs, one for each stage, as `C[i:4, j:16] = sum[k:5] A[i, k] * B[k, j]`, and one for outputs."""
    inputs = ", ".join(_tensor_text(tensor) for tensor in dag.inputs)
    outputs = ", ".join(_tensor_text(tensor) for tensor in dag.outputs)
    return "\n".join([f"inputs {inputs}", *map(_stage_text, dag.stages), f"outputs {outputs}"])


def _tensor_text(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _stage_text(op: ComputeOp) -> str:
    reducer = "" if op.reducer is None else f"{op.reducer.name}[{', '.join(_axes(op.reduce_axes))}] "
    body = ", ".join(map(expr_text, op.body))
    return f"{op.name}[{', '.join(_axes(op.axes))}] = {reducer}{body}"


def _axes(axes: tuple[Axis, ...]) -> Iterator[str]:
    return (f"{axis.name}:{axis.extent}" for axis in axes)

"""Lower bound of a kernel's time: a shorter measurement is an error of the clock.

The bound has only the work that no schedule can avoid. All outputs are written, at a rate that no core exceeds. If a
stage is a plain product of two inputs (products of matrices, convolutions without padding), all its multiply-adds are
executed, at PEAK_SLACK times the peak measured in the session. Padding, scatter, prefix scans, Winograd's transforms
and precomputed stages need fewer operations than the expression has, so only their outputs count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Expr, Load, Select, Var
from autosched.ir.instructions.atomics import atomic_operation
from autosched.ir.linear import linear
from autosched.ir.visit import free_vars

if TYPE_CHECKING:
    from autosched.target import Target
    from autosched.te.dag import ComputeDAG
    from autosched.te.tensor import ComputeOp

STORED_BYTES = 128  # per cycle of a core or multiprocessor: twice the largest store bandwidth, one vector of 64 bytes
CLOCK_HZ = 8e9
PEAK_SLACK = 1.1  # over the measured peak: the clock frequency may rise, the reading may be disturbed


@dataclass(frozen=True)
class TimeBound:
    """`operations`: in the task's type, for which the peak is measured; a multiply-add is two."""

    operations: int = 0
    written_bytes: int = 0
    bytes_per_s: float = math.inf

    def seconds(self, peak_gflops: float | None) -> float:
        """Return the lower bound; without a peak that of the written bytes alone."""
        written = self.written_bytes / self.bytes_per_s
        return max(written, self.operations / (PEAK_SLACK * 1e9 * peak_gflops)) if peak_gflops else written


def bound_of(dag: ComputeDAG, dtype: str, target: Target, threads: int) -> TimeBound:
    """Return the bound of a graph. For a GPU only written bytes count: the peak measured by OpenCL may be too low."""
    units = threads if target.gpu is None else target.gpu.multiprocessors
    written = sum(math.prod(t.shape) * DTYPES[t.dtype].nbytes for t in dag.outputs)
    points = 0 if target.gpu is not None or dag.winograd else sum(_products(dag, op, dtype) for op in dag.stages)
    return TimeBound(2 * points, written, STORED_BYTES * CLOCK_HZ * units)


def _products(dag: ComputeDAG, op: ComputeOp, dtype: str) -> int:
    """Return the multiply-adds of a stage that is a plain product of this type and fully needed, else 0."""
    if len(op.body) != 1 or atomic_operation(op.reducer) != "add" or not _is_needed(dag, op):
        return 0
    match op.body[0]:
        case Binary(op="mul", a=Load() as a, b=Load() as b) if a.dtype == b.dtype == dtype and a.buffer != b.buffer:
            pass
        case _:
            return 0
    read = {a.buffer, b.buffer}
    if not read <= {t.name for t in dag.inputs} or read <= set(
        dag.weights
    ):  # products of weights alone are precomputed
        return 0
    extents = {axis.var: axis.extent for axis in (*op.axes, *op.reduce_axes) if axis.extent > 1}
    summed = {axis.var for axis in op.reduce_axes} & set(extents)
    if any(not summed <= {v for index in load.indices for v in free_vars(index)} for load in (a, b)):
        return 0  # a sum over an axis that one factor does not have can be factored out
    return math.prod(extents.values()) if _are_distinct((*a.indices, *b.indices), set(extents)) else 0


def _are_distinct(indices: tuple[Expr, ...], axes: set[Var]) -> bool:
    """Return whether no two points of `axes` read the same pair of elements: the indices determine all axes, one after
    another."""
    unknown = set(axes)
    linear_terms = [linear(index).terms for index in indices]
    while unknown:
        remaining = [
            [atom for atom, _ in terms if not isinstance(atom, Var) or atom in unknown] for terms in linear_terms
        ]
        determined = {terms[0] for terms in remaining if len(terms) == 1} & unknown
        if not determined:
            return False
        unknown -= determined
    return True


def _is_needed(dag: ComputeDAG, op: ComputeOp) -> bool:
    """Return whether every element is an output, or is read unconditionally for one."""
    if dag.is_output(op):
        return True
    name = op.outputs[0].name
    return any(
        reader.reducer is None and _is_needed(dag, reader) and any(_reads_all(reader, e, name, op) for e in reader.body)
        for reader in dag.consumers(op.name)
    )


def _reads_all(reader: ComputeOp, body: Expr, name: str, op: ComputeOp) -> bool:
    extents = {axis.var: axis.extent for axis in reader.axes}
    for load in _unconditional(body):
        if load.buffer == name and len(set(load.indices)) == len(op.axes):
            read = [extents.get(index) if isinstance(index, Var) else None for index in load.indices]
            if read == [axis.extent for axis in op.axes]:
                return True
    return False


def _unconditional(expr: Expr) -> Iterator[Load]:
    """Yield the loads that are executed unconditionally."""
    if isinstance(expr, Load):
        yield expr
    elif isinstance(expr, Select):
        yield from _unconditional(expr.cond)
    else:
        for child in expr.children:
            yield from _unconditional(child)

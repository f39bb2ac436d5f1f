"""Probes of indices that are data: a graph that finds, for each such index of another graph, the first value outside.

    y[b, d] = E[ids[b], d]     ->     (index, number) = argmin over b of (ids[b], b where ids[b] is outside, else n)

A load in a branch of a select counts where its condition holds alone. An index that cannot be outside has no probe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from autosched.ir.expr import Call, Const, Expr, Load, Select, Var, binary, select
from autosched.ir.types import integer_bounds
from autosched.te.compute import compute, reduce_axis
from autosched.te.dag import ComputeDAG
from autosched.te.reducers import argmin
from autosched.te.tensor import Axis, ComputeOp, Tensor, data_nodes, postorder, rewrite

Guards: TypeAlias = tuple[Expr, ...]  # conditions below which an expression is computed


@dataclass(frozen=True)
class Probe:
    """What the two results of a probe are about: `where` a tensor of `extent` in a dimension is indexed; the number is
    below `count` if an index is outside."""

    where: str
    extent: int
    count: int

    def message(self, index: int) -> str:
        return f"{self.where}: the index {index} is out of range, which is 0 to {self.extent - 1}"


def index_probes(given: ComputeDAG, dag: ComputeDAG) -> tuple[ComputeDAG | None, tuple[Probe, ...]]:
    """The graph of the probes of `dag`, None without any, and what they are about: each has two results. `given`: the
    same graph with indices as users gave them (`indices_as_given`)."""
    results, probes = list[Tensor](), list[Probe]()
    for op in given.stages:
        variables: dict[Expr, tuple[int, int]] = {
            axis.var: (0, axis.extent - 1) for axis in (*op.axes, *op.reduce_axes)
        }
        for load, guards in dict.fromkeys(_guarded_loads(op)):
            for index, extent in zip(load.indices, given.tensors[load.buffer].shape, strict=True):
                low, high = integer_bounds(index, variables)
                if index in data_nodes([index]) and not 0 <= low <= high < extent:
                    stage, count = _probe(dag, op, index, guards, extent)
                    results += stage
                    probes.append(Probe(f"{load} in {op.name}", extent, count))
    return (ComputeDAG(results) if results else None), tuple(probes)


def _guarded_loads(op: ComputeOp) -> Iterator[tuple[Load, Guards]]:
    """The loads of a stage, each with the conditions of the selects around it."""
    waiting, done = [(value, Guards()) for value in op.body], set[tuple[Expr, Guards]]()
    while waiting:
        node, guards = waiting.pop()
        if (node, guards) in done:
            continue
        done.add((node, guards))
        if isinstance(node, Load):
            yield node, guards
        if isinstance(node, Select):
            holds_not = Call("not", (node.cond,))
            waiting += [(node.cond, guards), (node.a, (*guards, node.cond)), (node.b, (*guards, holds_not))]
        else:
            waiting += [(child, guards) for child in node.children]


def _probe(dag: ComputeDAG, op: ComputeOp, index: Expr, guards: Guards, extent: int) -> tuple[tuple[Tensor, ...], int]:
    """The stage of one probe, over the axes that matter to it, and how many numbers these have."""
    used = {node for node in postorder((index, *guards)) if isinstance(node, Var)}
    axes = [axis for axis in (*op.axes, *op.reduce_axes) if axis.var in used] or [Axis(Var("one", "int64"), 1)]
    count = math.prod(axis.extent for axis in axes)

    def find() -> tuple[Expr, Expr]:
        over = {axis.var: reduce_axis(axis.extent, axis.name) for axis in axes}

        def moved(node: Expr, new: Expr) -> Expr:
            if isinstance(new, Load):
                return dag.tensors[new.buffer][new.children]
            return over.get(node, new) if isinstance(node, Var) else new

        wanted, *conditions = rewrite((index, *guards), moved)
        place: Expr = Const(0, "int64")
        for axis in axes:
            place = place * axis.extent + over[axis.var]
        number = select(binary("or", wanted < 0, wanted >= extent), place, Const(count, "int64"))
        for condition in reversed(conditions):
            number = select(condition, number, Const(count, "int64"))
            wanted = select(condition, wanted, Const(0, "int64"))
        return argmin((wanted, number), axis=list(over.values()))

    results: tuple[Tensor, ...] = compute((), find, name="probe")
    return results, count

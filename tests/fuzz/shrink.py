"""Smaller programs and rows that fail in the same way.

Tried from the boldest change to the smallest, over and over until nothing helps: fewer outputs, stages replaced by
inputs, simpler expressions, smaller extents; then smaller parameters, one thread, this machine's own target.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from autosched.errors import AutoschedError, ExpressionError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const, Expr, Load, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.visit import loads, substitute
from autosched.te import ComputeDAG, Tensor, placeholder
from autosched.te.checks import check_op
from autosched.te.tensor import Axis, ComputeOp, PlaceholderOp, postorder, rewrite
from tests.fuzz.candidate import Candidate, is_gpu

Failing = tuple[ComputeDAG, Candidate]
Test = Callable[[ComputeDAG, Candidate], "Candidate | None"]  # the candidate that fails in the same way, if any


def shrink(dag: ComputeDAG, candidate: Candidate, test: Test, seconds: float) -> Failing:
    """The smallest failing case found in about `seconds`."""
    end = time.monotonic() + seconds
    found = _shrink_dag((dag, candidate), test, end)
    return _shrink_row(found, test, end)


def _shrink_dag(found: Failing, test: Test, end: float) -> Failing:
    seen = {found[0].content_hash}
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for smaller in _smaller(found[0]):
            if smaller.content_hash in seen:
                continue
            seen.add(smaller.content_hash)
            if time.monotonic() >= end:
                break
            failing = test(smaller, found[1])
            if failing is not None:
                found, progress = (smaller, failing), True
                break
    return found


def _shrink_row(found: Failing, test: Test, end: float) -> Failing:
    dag, candidate = found
    trials = [] if is_gpu(candidate.target) else [replace(candidate, target="cpu"), replace(candidate, threads=1)]
    for n, (name, value) in enumerate(candidate.values):
        trials += [
            replace(candidate, values=(*candidate.values[:n], (name, v), *candidate.values[n + 1 :]))
            for v in (1, 2, 4, 8, 16)
            if v < value
        ]
    for trial in trials:
        if time.monotonic() >= end:
            break
        changed = {k: v for k, v in trial.to_json().items() if v != candidate.to_json()[k]}
        values = dict(found[1].values) | dict(set(changed.get("values", ())) - set(candidate.values))
        merged = replace(found[1], **(changed | {"values": tuple(values.items())}))
        if merged == found[1]:
            continue
        failing = test(dag, merged)
        if failing is not None and sum(v for _, v in failing.values) <= sum(v for _, v in found[1].values):
            found = (dag, failing)
    return found


def _smaller(dag: ComputeDAG) -> Iterator[ComputeDAG]:
    """Programs that are a little smaller, the boldest first; what is not legal is left out."""
    for change in _changes(dag):
        try:
            yield change()
        except AutoschedError:
            continue


def _changes(dag: ComputeDAG) -> Iterator[Callable[[], ComputeDAG]]:
    for op in dag.stages:
        if not dag.is_output(op) or len(dag.outputs) > 1:
            yield lambda op=op: _rebuilt(dag, outputs=[t.name for t in op.outputs])  # type: ignore[misc]
    for op in reversed(dag.stages):
        yield lambda op=op: _rebuilt(dag, cut={op.name})  # type: ignore[misc]
    for tensor in dag.outputs if len(dag.outputs) > 1 else ():
        names = [t.name for t in dag.outputs if t.name != tensor.name]
        yield lambda names=names: _rebuilt(dag, outputs=names)  # type: ignore[misc]
    extents = sorted({a.extent for op in dag.stages for a in (*op.axes, *op.reduce_axes)}, reverse=True)
    for old in extents:
        for new in _less(old):
            yield lambda old=old, new=new: _renumbered(dag, old, new)  # type: ignore[misc]
    for op in reversed(dag.stages):
        for axis in (*op.axes, *op.reduce_axes):
            for new in _less(axis.extent):
                key = (op.name, axis.name)
                yield lambda key=key, new=new: _rebuilt(dag, extents={key: new})  # type: ignore[misc]
    yield lambda: _tight(dag)
    for op in reversed(dag.stages):
        for node, simpler in _simpler(op):
            yield lambda op=op, node=node, simpler=simpler: _rebuilt(  # type: ignore[misc]
                dag, bodies={op.name: _exchanged(op.body, node, simpler)}
            )


def _less(extent: int) -> list[int]:
    return sorted({1, 2, 3, extent // 2, extent - 1} & set(range(1, extent)))


def _simpler(op: ComputeOp) -> Iterator[tuple[Expr, Expr]]:
    """Nodes of the stage's values, with what could stand there instead."""
    for node in reversed(postorder(op.body)):
        if isinstance(node, Load | Const | Var) or node.dtype == "int64":
            continue
        for child in postorder((node,)):
            if child is not node and child.dtype == node.dtype and not isinstance(child, Const):
                yield node, child
        yield node, Const(True if node.dtype == "bool" else 1.0 if DTYPES[node.dtype].is_float else 1, node.dtype)


def _exchanged(body: tuple[Expr, ...], node: Expr, simpler: Expr) -> tuple[Expr, ...]:
    return rewrite(body, lambda old, new: simpler if old is node else new)


def _rebuilt(
    dag: ComputeDAG,
    outputs: list[str] | None = None,
    cut: set[str] | None = None,
    extents: Mapping[tuple[str, str], int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    bodies: Mapping[str, tuple[Expr, ...]] | None = None,
) -> ComputeDAG:
    """The program with other outputs, with the stages in `cut` as inputs, with other extents, shapes or values."""
    table: dict[str, Tensor] = {}
    for t in dag.inputs:
        assert isinstance(t.op, PlaceholderOp)
        shape = (shapes or {}).get(t.name, t.shape)
        table[t.name] = Tensor(t.name, shape, t.dtype, PlaceholderOp(t.name, t.op.order))
    for op in dag.stages:
        if op.name in (cut or ()):
            table |= {t.name: placeholder(t.shape, t.dtype, t.name.replace(".", "_")) for t in op.outputs}
            continue
        body = (bodies or {}).get(op.name, op.body)
        own = {t.name: t for t in op.outputs}
        reads = dict.fromkeys(x.buffer for x in postorder(body) if isinstance(x, Load) and x.buffer not in own)
        body = _renamed(body, {**table, **own})
        groups = [
            tuple(replace(a, extent=(extents or {}).get((op.name, a.name), a.extent)) for a in axes)
            for axes in (op.axes, op.reduce_axes)
        ]
        if op.reducer is None and len(body) > 1 and not any(x.buffer in own for v in body for x in loads(v)):
            raise ExpressionError(f"several values of {op.name} without a reduction or a recurrence")
        made = ComputeOp(op.name, groups[0], groups[1], body, op.reducer, tuple(table[n] for n in reads))
        check_op(made)
        table |= {old.name: new for old, new in zip(op.outputs, made.outputs, strict=True)}
    wanted = outputs or [t.name for t in dag.outputs]
    made_dag = ComputeDAG([t for n in wanted if isinstance((t := table[n]).op, ComputeOp)])
    names = [t.name for t in made_dag.inputs]
    weights = [name for name in dag.weights if name in names]
    return made_dag.with_weights(weights) if len(weights) < len(names) else made_dag


def _renamed(body: tuple[Expr, ...], table: Mapping[str, Tensor]) -> tuple[Expr, ...]:
    """Reads of the tensors that now stand for the old ones."""

    def renamed(_old: Expr, node: Expr) -> Expr:
        if not isinstance(node, Load):
            return node
        load: Load = Load(table[node.buffer].name, node.indices, node.dtype)
        return load

    return rewrite(body, renamed)


def _renumbered(dag: ComputeDAG, old: int, new: int) -> ComputeDAG:
    """One number replaced wherever it is an extent, a size or a constant of an index."""

    def changed(n: int) -> int:
        return {old: new, old - 1: new - 1}.get(n, n) if old > 2 else {old: new}.get(n, n)

    axes = {(op.name, a.name): a for op in dag.stages for a in (*op.axes, *op.reduce_axes)}
    constants: dict[Expr, Expr] = {Const(old, "int64"): Const(new, "int64")}
    return _rebuilt(
        dag,
        extents={key: new for key, a in axes.items() if a.extent == old},
        shapes={t.name: tuple(new if e == old else e for e in t.shape) for t in dag.inputs},
        bodies={op.name: tuple(substitute(b, constants) for b in op.body) for op in dag.stages},
    )


def _tight(dag: ComputeDAG) -> ComputeDAG:
    """Inputs as small as the reads allow, where those are not guarded."""
    needed: dict[str, list[int]] = {t.name: [1] * len(t.shape) for t in dag.inputs}
    for op in dag.stages:
        bounds = Simplifier({a.var: (0, a.extent - 1) for a in (*op.axes, *op.reduce_axes)})
        for load in dag.reads(op):
            for d, index in enumerate(load.indices if load.buffer in needed else ()):
                needed[load.buffer][d] = max(needed[load.buffer][d], bounds.bounds(index)[1] + 1)
    shapes = {t.name: tuple(map(min, needed[t.name], t.shape)) for t in dag.inputs}
    return _rebuilt(dag, shapes=shapes)


def size(dag: ComputeDAG) -> int:
    """Points of all stages."""
    return sum(math.prod(a.extent for a in _axes(op)) for op in dag.stages)


def _axes(op: ComputeOp) -> tuple[Axis, ...]:
    return (*op.axes, *op.reduce_axes)

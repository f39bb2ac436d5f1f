"""Axis splitting (`split_groups`): axes that indices divide become two, so that every index is linear in them.

An axis o of a reduction of which indices take o // n becomes o = g n + c: the channels of a grouped convolution. So
does one of any stage of which they take o // n or o % n, if n is at least LONG_PERIOD: rows one after the other. The
axes by which later stages read them, its bias and what is reduced over its channels, become two as well; a reader that
indexes them otherwise leaves them as they are. A running sum in blocks that elementwise stages read has all digits of
its places as axes, so that its readers are computed with the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from autosched.ir.expr import INDEX, Binary, Const, Expr, Load, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.visit import free_vars, rebuild
from autosched.te.dag import ComputeDAG
from autosched.te.rewrites.prefix_scan import find_prefix_scan
from autosched.te.tensor import Axis, ComputeOp, fresh_name, postorder, rewrite

LONG_PERIOD = 64  # elements: what is shorter is known lane by lane in a chunk of vectors


def split_groups(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with axes in two where indices divide them by one number that divides their extent, and with them those
    by which later stages read what they index."""
    split: dict[tuple[str, Var], int] = {}
    for op in (op for op in dag.stages if len(op.outputs) == 1):
        for axis in op.axes:
            n = _digits_size(dag, op, axis) or _group_size(op, axis)
            reached = None if n is None else _read_as(dag, op, axis)
            if n is not None and reached is not None and all(split.get(place, n) == n for place in reached):
                split.update(dict.fromkeys(reached, n))
    return split_groups(dag.remade(lambda op: _in_groups(dag, op, split).outputs)) if split else dag


def _read_as(dag: ComputeDAG, op: ComputeOp, axis: Axis) -> set[tuple[str, Var]] | None:
    """The axis and those of later stages that index its dimension, by stage and variable; None where something else
    indexes it than a plain axis of the same extent."""
    readers: set[tuple[str, Var]] = set()
    stack = [(op, axis)]
    while stack:
        stage, here = stack.pop()
        if (stage.name, here.var) in readers:
            continue
        readers.add((stage.name, here.var))
        if here not in stage.axes:
            continue
        if stage.recurrence is not None:
            return None  # positions of one axis
        dim, written = stage.axes.index(here), {t.name for t in stage.outputs}
        for reader in dag.consumers(stage.name):
            extents = {a.var: a for a in (*reader.axes, *reader.reduce_axes) if a.extent == here.extent}
            for load in (load for load in dag.reads(reader) if load.buffer in written):
                index = load.indices[dim]
                if not isinstance(index, Var) or index not in extents:
                    return None
                stack.append((reader, extents[index]))
    return readers


def _in_groups(dag: ComputeDAG, op: ComputeOp, split: Mapping[tuple[str, Var], int]) -> ComputeOp:
    """The stage with its axes that `split` names in two, o = g n + c, reading inputs of which that is done already."""
    taken = {a.name for a in (*op.axes, *op.reduce_axes)}
    parts: dict[Expr, tuple[Axis, ...]] = {}
    for axis in (*op.axes, *op.reduce_axes):
        n = split.get((op.name, axis.var))
        parts[axis.var] = (axis,) if n is None else _in_two(axis, n, taken)
    whole: dict[Expr, Expr] = {o: p[0].var * p[1].extent + p[1].var for o, p in parts.items() if len(p) > 1}
    ranks = {t.name: len(t.shape) for t in (*op.inputs, *op.outputs)}
    simplify = Simplifier({a.var: (0, a.extent - 1) for pair in parts.values() for a in pair})

    def convert(node: Expr, new: Expr) -> Expr:
        if not isinstance(node, Load):
            return whole.get(node, new)
        if ranks[node.buffer] == len(node.indices):
            return rebuild(new, simplify)
        producer, indices = dag.producer(node.buffer), list[Expr]()
        assert producer is not None
        for axis, old, index in zip(producer.axes, node.indices, new.children, strict=True):
            cut = (producer.name, axis.var) in split
            indices += [a.var for a in parts[old]] if cut else [simplify(index)]
        load: Load = Load(node.buffer, tuple(indices), node.dtype)
        return load

    axes, reduce_axes = (tuple(a for axis in old for a in parts[axis.var]) for old in (op.axes, op.reduce_axes))
    return ComputeOp(op.name, axes, reduce_axes, rewrite(op.body, convert), op.reducer, op.inputs)


def _in_two(axis: Axis, n: int, taken: set[str]) -> tuple[Axis, Axis]:
    outer, inner = (Var(fresh_name(f"{axis.name}_{part}", taken), INDEX) for part in ("group", "member"))
    return Axis(outer, axis.extent // n, axis.reduce), Axis(inner, n, axis.reduce)


def _group_size(op: ComputeOp, axis: Axis) -> int | None:
    """The one number that indices divide the axis by; outside of reductions a long one, which vectors fit into. So it
    is for quotients that count a row's elements, as of numbers of few bits: lanes along the axis lie side by side."""
    divisions, least = (("floordiv",), 2) if op.reducer is not None else (("floordiv", "mod"), LONG_PERIOD)
    nodes = postorder(op.body)
    in_rows = {n.indices[-1] for n in nodes if isinstance(n, Load) and n.indices}
    sizes = {
        node.b.number
        for node in nodes
        if isinstance(node, Binary) and node.op in divisions and node.a is axis.var and isinstance(node.b, Const)
        if node not in in_rows or node.b.value >= LONG_PERIOD
    }
    n = sizes.pop() if len(sizes) == 1 else 1
    return n if least <= n < axis.extent and axis.extent % n == 0 else None


def _digits_size(dag: ComputeDAG, op: ComputeOp, axis: Axis) -> int | None:
    """How many places share the first digit, where the stage reads the results of blocks by all digits of its place
    along the axis and later stages are elementwise too."""
    load = op.body[0]
    if op.reducer is not None or not isinstance(load, Load):
        return None
    blocks = dag.producer(load.buffer)
    if blocks is None or not any(isinstance(t.op, ComputeOp) and find_prefix_scan(t.op) for t in blocks.inputs):
        return None
    if not _are_elementwise(dag, op):
        return None
    shape, simplify = dag.tensors[load.buffer].shape, Simplifier({axis.var: (0, axis.extent - 1)})
    digits = [(i, n) for i, n in zip(load.indices, shape, strict=True) if axis.var in free_vars(i)]
    size = axis.extent
    for index, n in digits:
        if size % n or simplify(index) is not simplify(axis.var // (size // n) % n):
            return None
        size //= n
    return axis.extent // digits[0][1] if len(digits) > 1 and size == 1 else None


def _are_elementwise(dag: ComputeDAG, op: ComputeOp) -> bool:
    """Whether there are stages that use the results, directly or by way of others, and none of them reduces."""
    readers, waiting = dict[str, ComputeOp](), [op]
    while waiting:
        later = {r.name: r for r in dag.consumers(waiting.pop().name) if r.name not in readers}
        readers.update(later)
        waiting.extend(later.values())
    return bool(readers) and all(r.reducer is None for r in readers.values())

"""Axis collapsing (`collapse`): an equivalent graph over as few axes as possible.

Axes of extent 1 and dimensions of size 1 go away, and adjacent axes that always travel together become one, so that
a 1x1 convolution turns into a matrix product and an elementwise stage into one loop. No element moves: every tensor
keeps its row-major order, so inputs and outputs are the same flat memory, seen through `Tensor.view`.

Dimensions d, d+1 of a tensor merge iff every access, the write of its producer included, indexes them by two constants
or by two plain axes (a, b) that merge, where b covers dimension d+1 fully: a * extent(b) + b is the flat index. Axes
a, b, neighbours among a stage's spatial or among its reduce axes, merge iff they occur nowhere but as
such pairs. Both conditions depend on each other: the largest solution is found by striking out pairs to a fixpoint.

Before that, PASSES has the rewrites: a file each, a function of the DAG that returns it as it is where there is nothing
to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosched.ir.expr import COMPARISON, INDEX, Binary, Const, Expr, Load, Var, binary, select
from autosched.ir.simplify import Simplifier
from autosched.ir.visit import free_vars, loads, substitute
from autosched.passes import Pass, PassPipeline, Watch, of_function
from autosched.te.dag import ComputeDAG
from autosched.te.rewrites.empty import fold_empty
from autosched.te.rewrites.exponents import negative_exponents
from autosched.te.rewrites.groups import split_groups
from autosched.te.rewrites.narrow import narrow_indices, narrow_sums
from autosched.te.rewrites.padded import padded_reads
from autosched.te.rewrites.phases import in_phases
from autosched.te.rewrites.scans import in_blocks
from autosched.te.rewrites.short_integers import shorten_integers
from autosched.te.rewrites.windows import in_windows
from autosched.te.tensor import Axis, ComputeOp, PlaceholderOp, Tensor, fresh_name, postorder, rewrite
from autosched.te.text import dag_text

ZERO: Const = Const(0, INDEX)
Groups = tuple[tuple[int, ...], ...]  # each new dimension as the old ones it consists of; () is a new one of size 1


@dataclass(frozen=True)
class _Grouping:
    """How dimensions are regrouped: for every tensor by its name, and for the reduce axes of every stage."""

    dims: Mapping[str, Groups]
    reduce: Mapping[str, Groups]


def drop_unit_axes(dag: ComputeDAG) -> ComputeDAG:
    dims = {name: _units(tensor.shape, keep_one=True) for name, tensor in dag.tensors.items()}
    reduce = {
        op.name: _units([a.extent for a in op.reduce_axes], keep_one=len(op.body) > 1 and op.reducer is not None)
        for op in dag.stages
    }
    return _regroup(dag, _Grouping(dims, reduce))


def _units(extents: Sequence[int], keep_one: bool) -> Groups:
    """The dimensions that are not of size 1; with `keep_one` the last one if there is no other."""
    kept = tuple((d,) for d, extent in enumerate(extents) if extent != 1)
    if kept or not keep_one:
        return kept
    return ((len(extents) - 1,),) if extents else ((),)


def merge_axes(dag: ComputeDAG) -> ComputeDAG:
    return _regroup(dag, _Fixpoint(dag).grouping())


class _Fixpoint:
    """Which neighbours may merge: dimensions d, d+1 in `dims[tensor][d]`, axes p, p+1 in `pairs[stage, reduce][p]`.

    What is struck out has the stages visited again that know of it, so that each pair costs as many visits as it has
    neighbours, however far it comes to matter.
    """

    def __init__(self, dag: ComputeDAG) -> None:
        self.dag = dag
        self.dims = {name: [True] * max(len(t.shape) - 1, 0) for name, t in dag.tensors.items()}
        self.pairs = {
            (op.name, reduce): [True] * max(len(axes) - 1, 0)
            for op in dag.stages
            for reduce, axes in ((False, op.axes), (True, op.reduce_axes))
        }
        for op in dag.stages:
            for var in _bare_uses(op.body):
                self._strike_axis(op, var)
        self.waiting = dict.fromkeys(dag.stages)
        while self.waiting:
            self._visit(self.waiting.popitem()[0])

    def grouping(self) -> _Grouping:
        reduce = {op.name: _chains(self.pairs[op.name, True], len(op.reduce_axes)) for op in self.dag.stages}
        return _Grouping({n: _chains(self.dims[n], len(t.shape)) for n, t in self.dag.tensors.items()}, reduce)

    def _strike_axis(self, op: ComputeOp, var: Var) -> None:
        for reduce, axes in ((False, op.axes), (True, op.reduce_axes)):
            for p in range(len(axes) - 1):
                if var in (axes[p].var, axes[p + 1].var):
                    self.pairs[op.name, reduce][p] = False

    def _strike_axes(self, op: ComputeOp, reduce: bool, place: int) -> None:
        pairs = self.pairs[op.name, reduce]
        if pairs[place]:
            pairs[place] = False
            self.waiting[op] = None

    def _strike_dims(self, name: str, place: int) -> None:
        flags, producer = self.dims[name], self.dag.producer(name)
        if flags[place]:
            flags[place] = False
            self.waiting.update(dict.fromkeys(self.dag.consumers(name)))
            if producer is not None:
                self.waiting[producer] = None

    def _visit(self, op: ComputeOp) -> None:
        spatial = self.pairs[op.name, False]
        for tensor in op.outputs:
            flags = self.dims[tensor.name]
            for p in range(len(spatial)):
                if spatial[p] != flags[p]:
                    self._strike_axes(op, False, p)
                    self._strike_dims(tensor.name, p)
        for load in self.dag.reads(op):
            self._visit_load(op, load)

    def _visit_load(self, op: ComputeOp, load: Load) -> None:
        """Strike out the tensor's pairs that this access separates, then the axis pairs that it separates."""
        shape, flags, indices = self.dag.tensors[load.buffer].shape, self.dims[load.buffer], load.indices
        places = {
            axis.var: (reduce, p, axis.extent)
            for reduce, axes in ((False, op.axes), (True, op.reduce_axes))
            for p, axis in enumerate(axes)
        }
        for d in range(len(flags)):
            x, y = indices[d], indices[d + 1]
            if isinstance(x, Const) and isinstance(y, Const):
                continue
            here = places.get(x) if isinstance(x, Var) else None
            after = places.get(y) if isinstance(y, Var) else None
            together = (
                here is not None
                and after is not None
                and (here[0], here[1] + 1) == after[:2]
                and self.pairs[op.name, here[0]][here[1]]
                and after[2] == shape[d + 1]
            )
            if not together:
                self._strike_dims(load.buffer, d)
        for d, index in enumerate(indices):
            if not isinstance(index, Var):
                continue
            reduce, p, _ = places[index]
            pairs, axes = self.pairs[op.name, reduce], op.reduce_axes if reduce else op.axes
            if p < len(pairs) and not (d < len(flags) and flags[d] and indices[d + 1] is axes[p + 1].var):
                self._strike_axes(op, reduce, p)
            if p > 0 and not (d > 0 and flags[d - 1] and indices[d - 1] is axes[p - 1].var):
                self._strike_axes(op, reduce, p - 1)


def _bare_uses(body: tuple[Expr, ...]) -> set[Var]:
    """The variables that occur elsewhere than as a whole index of a load."""
    variables = {root for root in body if isinstance(root, Var)}
    for node in postorder(body):
        if not isinstance(node, Load):
            variables.update(child for child in node.children if isinstance(child, Var))
    return variables


def _chains(together: list[bool], rank: int) -> Groups:
    """Maximal runs of dimensions whose neighbours merge."""
    groups: list[tuple[int, ...]] = []
    for d in range(rank):
        if d > 0 and together[d - 1]:
            groups[-1] += (d,)
        else:
            groups.append((d,))
    return tuple(groups)


def _regroup(dag: ComputeDAG, grouping: _Grouping) -> ComputeDAG:
    """The DAG over regrouped dimensions; what the caller sees of inputs and outputs keeps its shape."""
    table: dict[str, Tensor] = {}
    for tensor in dag.inputs:
        assert isinstance(tensor.op, PlaceholderOp)
        shape = _new_shape(tensor.shape, grouping.dims[tensor.name])
        op = PlaceholderOp(tensor.name, tensor.op.order)
        table[tensor.name] = Tensor(tensor.name, shape, tensor.dtype, op).seen_as(tensor.public_shape)
    for stage in dag.stages:
        for made in _regroup_stage(dag, stage, grouping, table).outputs:
            table[made.name] = made
    outputs = [table[t.name].seen_as(t.public_shape) for t in dag.outputs]
    return ComputeDAG(outputs, dag.content_hash, dag.weights, dag.winograd, dag.weights_in)


def _new_shape(shape: tuple[int, ...], groups: Groups) -> tuple[int, ...]:
    extents: list[int] = []
    for group in groups:
        extent = 1
        for d in group:
            extent *= shape[d]
        extents.append(extent)
    return tuple(extents)


def _regroup_stage(dag: ComputeDAG, op: ComputeOp, grouping: _Grouping, table: Mapping[str, Tensor]) -> ComputeOp:
    fused: dict[tuple[Expr, ...], Expr] = {}
    taken = {a.name for a in (*op.axes, *op.reduce_axes)}
    axes = _new_axes(op.axes, grouping.dims[op.outputs[0].name], fused, taken)
    reduce_axes = _new_axes(op.reduce_axes, grouping.reduce[op.name], fused, taken)
    kept = {a.var for a in (*axes, *reduce_axes)} | {v for run in fused for v in run}
    simplify = Simplifier({a.var: (0, a.extent - 1) for a in (*op.axes, *op.reduce_axes, *axes, *reduce_axes)})

    def convert(node: Expr, new: Expr) -> Expr:
        if isinstance(node, Var):
            return node if node in kept else ZERO
        if isinstance(node, Load):
            indices = tuple(simplify(i) for i in new.children)
            shape = dag.tensors[node.buffer].shape
            groups = grouping.dims[node.buffer]
            load: Load = Load(node.buffer, tuple(_new_index(indices, shape, g, fused) for g in groups), node.dtype)
            adjacent = free_vars(load.indices[-1]) if reduce_axes and load.indices else None
            return _unwrapped(load, _new_shape(shape, groups), adjacent, simplify)
        if isinstance(new, Binary) and new.op in COMPARISON and new.a.dtype == INDEX and not loads(new):
            return simplify(new)
        return new

    reducer = op.reducer if reduce_axes else None  # over one point a reduction is its operand
    inputs = tuple(table[t.name] for t in op.inputs)
    return ComputeOp(op.name, axes, reduce_axes, rewrite(op.body, convert), reducer, inputs)


def _unwrapped(load: Load, shape: Sequence[int], moving: frozenset[Var] | None, simplify: Simplifier) -> Expr:
    """A load whose index wraps around once, as A[(i + 17) % n] does, as a choice between two that do not. One that is
    linear in flat memory does not wrap around. `moving`: only what these variables move is worth a choice. That is what
    may be in lanes, for operands of a reduction: others wrap outside of its loops, a choice would be made inside."""
    for node in (x for x in postorder((simplify(_flat(load.indices, shape)),)) if not loads(x)):
        if moving is not None and not free_vars(node) & moving:
            continue
        if isinstance(node, Binary) and node.op in ("floordiv", "mod") and isinstance(node.b, Const):
            n = max(1, node.b.number)
            low, high = (bound // n for bound in simplify.bounds(node.a))
            if low + 1 == high:
                parts = [_in_period(load, node.a, n, period, simplify) for period in (low, high)]
                wraps = binary("lt", node.a, Const(high * n, INDEX))
                return select(wraps, *(_unwrapped(p, shape, moving, simplify) for p in parts))
    return load


def _flat(indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    flat: Expr = ZERO
    for index, extent in zip(indices, shape, strict=True):
        flat = flat * extent + index
    return flat


def _in_period(load: Load, a: Expr, n: int, period: int, simplify: Simplifier) -> Load:
    """The load where a // n is `period`."""
    table: dict[Expr, Expr] = {
        Binary("floordiv", a, Const(n, INDEX)): Const(period, INDEX),
        Binary("mod", a, Const(n, INDEX)): a - Const(period * n, INDEX),
    }
    return Load(load.buffer, tuple(simplify(substitute(i, table)) for i in load.indices), load.dtype)


def _new_axes(
    axes: tuple[Axis, ...], groups: Groups, fused: dict[tuple[Expr, ...], Expr], taken: set[str]
) -> tuple[Axis, ...]:
    """The axes for `groups`; a run of several is entered into `fused` as the variable that replaces it."""
    made: list[Axis] = []
    for group in groups:
        if len(group) == 1:
            made.append(axes[group[0]])
            continue
        extent = 1
        for d in group:
            extent *= axes[d].extent
        name = fresh_name("_".join(axes[d].name for d in group) or "i", taken)
        var: Var = Var(name, INDEX)
        if group:
            fused[tuple(axes[d].var for d in group)] = var
        made.append(Axis(var, extent, axes[group[0]].reduce if group else False))
    return tuple(made)


def _new_index(
    indices: tuple[Expr, ...], shape: tuple[int, ...], group: tuple[int, ...], fused: Mapping[tuple[Expr, ...], Expr]
) -> Expr:
    """The index of a merged dimension: the merged axis, or the flat index of constants."""
    run = tuple(indices[d] for d in group)
    if len(run) == 1:
        return run[0]
    if run in fused:
        return fused[run]
    flat = _flat(run, [shape[d] for d in group])
    assert isinstance(flat, Const), f"{run} was merged but is neither a merged axis nor constant"
    return flat


PASSES: tuple[Pass[ComputeDAG, Any], ...] = (
    of_function(fold_empty, "Reductions over no elements are constants, and nothing reads tensors without elements."),
    of_function(negative_exponents, "The exponential of a value that is never above 0 is cheaper."),
    of_function(narrow_sums, "Sums in int64 that fit in int32 are made there."),
    of_function(narrow_indices, "Indices that are computed for each lane are so in int32 where they fit."),
    of_function(
        shorten_integers,
        "Integers that fit in 8 or 16 bits are computed in them: a vector has two to eight times the lanes.",
    ),
    of_function(in_phases, "Sums of every s-th term are those terms alone; reads go through dilation and padding."),
    of_function(padded_reads, "What reductions read under conditions on its index is a stage of its own."),
    of_function(in_windows, "Long windows are made of shorter ones."),
    of_function(in_blocks, "Prefix scans are computed block by block."),
    of_function(split_groups, "Axes that indices divide become two."),
    of_function(drop_unit_axes, "Axes of extent 1 take no loop."),
    of_function(merge_axes, "Adjacent axes that are always used together take one loop."),
)
PIPELINE = PassPipeline(
    "te", PASSES, repr, dag_text, lambda dag: None, lambda one, other: dag_text(one) == dag_text(other)
)


def collapse(dag: ComputeDAG, watch: Watch | None = None) -> ComputeDAG:
    """An equal DAG after all PASSES, unit axes dropped and inseparable axes merged; names and the content hash stay."""
    return PIPELINE.run(dag, None, watch)

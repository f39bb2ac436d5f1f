"""Node properties for fusion, derived from a node's expression: its kind, its accesses and its operations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from autosched.errors import GraphError
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.operator_facts import Attributes, OperandTypes, operator_fact
from autosched.graph.operators import results_of, stages_of
from autosched.graph.steps import Group, NetworkStep
from autosched.ir.expr import Binary, Call, Const, Expr, Load, Select, Var
from autosched.ir.simplify import Affine, Simplifier
from autosched.ir.size import is_same, value_of
from autosched.ir.visit import free_vars, is_gathered, loads
from autosched.te import ComputeDAG, Tensor
from autosched.te.tensor import ComputeOp, PlaceholderOp, postorder

VIEW = "reshape"  # the operator that only changes the shape of memory
CHEAP_CALLS = frozenset({"neg", "abs", "not", "floor", "ceil", "round"})  # an instruction each
DIVISIONS = ("floordiv", "mod")
FUNCTION_OPERATIONS = 8  # additions that take as long as a division or a call of a function


class NodeKind(Enum):
    """How a node can be fused."""

    VIEW = "is memory, or a contiguous part of it, in another shape"
    MOVEMENT = "moves or repeats elements"
    ELEMENTWISE = "computes each result from elements at the same index"
    GENERAL = "reads elements at other indices, reduces or scans"


@dataclass(frozen=True)
class OperandAccess:
    """How a node reads an operand.

    `reads`: reads per element, the mean. `is_axis_indexed`: whether each index is an axis of the loops, as in a matrix
    product, so that the operand may have any layout. `is_gather`: whether all indices are data.
    """

    reads: int
    is_axis_indexed: bool
    is_gather: bool = False


@dataclass(frozen=True)
class NodeProperties:
    """The kind of a node, its accesses by operand, and `operations` per element of its result.

    `has_functions`: whether divisions or calls of functions are among the operations. For movements:
    `has_branches`: whether the index selects the operand, as in a concatenation; `keeps_contiguity`: whether
    neighbours along the last axis stay neighbours; `splits_axes`: whether axes are split by division, and
    `splits_last_axis`: whether the last one is; `is_permutation`: whether it is a transposition; `is_gather`: whether
    indices are data. For views: `offset`, the first element in the operand.
    """

    kind: NodeKind
    operands: tuple[OperandAccess, ...]
    operations: int = 0
    has_functions: bool = False
    has_branches: bool = False
    keeps_contiguity: bool = True
    splits_axes: bool = False
    splits_last_axis: bool = False
    is_permutation: bool = False
    is_gather: bool = False
    offset: int = 0


def properties_of(node: Node, graph: Graph) -> NodeProperties:
    if node.body is not None:
        return NodeProperties(NodeKind.GENERAL, (OperandAccess(1, False),) * len(node.inputs))
    operand_types = tuple(None if n is None else (graph.values[n].shape, graph.values[n].dtype) for n in node.inputs)
    return _properties(node.operator, operand_types, tuple(sorted(node.attributes.items())), len(node.outputs))


def access_of(node: Node, graph: Graph, name: str) -> OperandAccess:
    """Return how a node reads a value, summed over the operands that are this value."""
    accesses = [a for x, a in zip(node.inputs, properties_of(node, graph).operands, strict=True) if x == name]
    reads = sum(a.reads for a in accesses)
    return OperandAccess(reads, all(a.is_axis_indexed for a in accesses), all(a.is_gather for a in accesses))


def weights_of(graph: Graph, nodes: Sequence[Node], names: Sequence[str]) -> list[str]:
    """Return the constants among `names`, the inputs of a kernel of `nodes`, that the kernel may pack as weights.

    Gathered tables are not packed, because most of a table is not read. A kernel of constants alone packs none, because
    its result is computed once.
    """

    def is_table(name: str) -> bool:
        return all(access_of(node, graph, name).is_gather for node in nodes if name in node.used)

    weights = [name for name in names if graph.is_constant(name) and not is_table(name)]
    return weights if len(weights) < len(names) else []


def weights_bytes(graph: Graph, steps: Sequence[NetworkStep]) -> int:
    """Return the bytes of the weights that one call of a network reads."""
    read = {name for step in steps if isinstance(step, Group) for name in weights_of(graph, step.nodes, step.inputs)}
    return sum(graph.constants[name].nbytes for name in read)


def is_attention(node: Node, graph: Graph) -> bool:
    """Whether a node is a sum weighted by a softmax, which one nest can compute and write transposed."""
    if node.body is not None:
        return False
    operand_types = tuple(None if n is None else (graph.values[n].shape, graph.values[n].dtype) for n in node.inputs)
    return _is_attention(node.operator, operand_types, tuple(sorted(node.attributes.items())), len(node.outputs))


def _properties_from(stored: dict[str, Any]) -> NodeProperties:
    operands = tuple(OperandAccess(**operand) for operand in stored["operands"])
    return NodeProperties(**{**stored, "kind": NodeKind[stored["kind"]], "operands": operands})


@operator_fact(lambda properties: {**asdict(properties), "kind": properties.kind.name}, _properties_from)
def _properties(operator: str, operand_types: OperandTypes, attributes: Attributes, n_outputs: int) -> NodeProperties:
    tensors, outputs = stages_of(operator, operand_types, attributes, n_outputs)
    if any(isinstance(t.op, PlaceholderOp) for t in outputs):
        kind = NodeKind.VIEW if operator == VIEW else NodeKind.MOVEMENT
        return NodeProperties(kind, (OperandAccess(1, True),) * len(operand_types))
    dag = ComputeDAG(outputs)
    operands = tuple(OperandAccess(0, True) if t is None else _access(dag, f"x{n}", t) for n, t in enumerate(tensors))
    kind, offset = NodeKind.VIEW if operator == VIEW else _kind(dag), 0
    if kind in (NodeKind.VIEW, NodeKind.MOVEMENT):
        moved = [(op, load) for op in dag.stages for load in _moved_loads(op)]
        if kind is NodeKind.MOVEMENT and (first := _contiguous_offset(dag, tensors)) is not None:
            kind, offset = NodeKind.VIEW, first
        return NodeProperties(
            kind,
            operands,
            offset=offset,
            has_branches=any(isinstance(value, Select) for op in dag.stages for value in op.body),
            keeps_contiguity=all(_keeps_contiguity(op, load) for op, load in moved),
            splits_axes=any(
                isinstance(e, Binary) and e.op in DIVISIONS for _, load in moved for e in postorder(load.indices)
            ),
            splits_last_axis=any(_splits_last_axis(op, load) for op, load in moved),
            is_permutation=len(moved) == 1 and _is_permutation(*moved[0]),
            is_gather=any(loads(index) for _, load in moved for index in load.indices),
        )
    work = [e for op in dag.stages for e in postorder(op.body) if isinstance(e, (Binary, Call)) and e.dtype != "int64"]
    functions = sum(_is_function(e) for e in work)
    results = max(1, value_of(sum(math.prod(t.shape) for t in outputs)))
    points = max(value_of(_points(op)) for op in dag.stages)
    each = len(work) + (FUNCTION_OPERATIONS - 1) * functions
    return NodeProperties(kind, operands, -(-each * points // results), functions > 0)


@operator_fact(bool, bool)
def _is_attention(operator: str, operand_types: OperandTypes, attributes: Attributes, n_outputs: int) -> bool:
    _, outputs = stages_of(operator, operand_types, attributes, n_outputs)
    if n_outputs != 1 or any(isinstance(t.op, PlaceholderOp) for t in outputs):
        return False
    from autosched.schedule.state import initial_state
    from autosched.schedule.steps.online import weighted_sum

    state = initial_state(ComputeDAG(outputs))
    return any(weighted_sum(state, stage) is not None for stage in state.stages)


def _is_function(e: Binary | Call) -> bool:
    return e.fn not in CHEAP_CALLS if isinstance(e, Call) else e.op in ("div", "pow", "mod", "fmod")


def _access(dag: ComputeDAG, name: str, tensor: Tensor) -> OperandAccess:
    """Return how the stages read a placeholder, directly or through stages that only move elements."""
    reads, is_axis_indexed, is_gather = 0, True, True
    for op in dag.stages:
        for load in (e for e in postorder(op.body) if isinstance(e, Load) and e.buffer == name):
            later = _access_of_results(dag, op)
            reads += value_of(_points(op)) * later.reads
            is_axis_indexed &= _is_axis_indexed(op, load) and later.is_axis_indexed
            is_gather &= is_gathered(load)
    return OperandAccess(
        -(-reads // max(1, value_of(math.prod(tensor.shape)))), is_axis_indexed, is_gather and reads > 0
    )


def _access_of_results(dag: ComputeDAG, op: ComputeOp) -> OperandAccess:
    """Return how a stage's results are read if the stage only moves elements; others are stored and read once."""
    if op.reducer is not None or not all(map(_only_moves, op.body)):
        return OperandAccess(1, True)
    accesses = [_access(dag, t.name, t) for t in op.outputs]
    return OperandAccess(max([1, *(a.reads for a in accesses)]), all(a.is_axis_indexed for a in accesses))


def _points(op: ComputeOp) -> int:
    return math.prod(axis.extent for axis in itertools.chain(op.axes, op.reduce_axes))


def _is_axis_indexed(op: ComputeOp, load: Load) -> bool:
    """Whether each index is one axis or a constant, axes of extent 1 aside."""
    single = {a.var for a in (*op.axes, *op.reduce_axes) if a.extent == 1}
    return all(len(free_vars(index) - single) <= 1 and _is_sum(index) for index in load.indices)


def _is_sum(index: Expr) -> bool:
    """Whether an index is a sum of axes and constants."""
    return all(
        isinstance(e, (Var, Const)) or (isinstance(e, Binary) and e.op in ("add", "sub")) for e in postorder((index,))
    )


def _kind(dag: ComputeDAG) -> NodeKind:
    if any(op.reducer is not None for op in dag.stages):
        return NodeKind.GENERAL
    if all(all(_only_moves(value) for value in op.body) for op in dag.stages):
        return NodeKind.MOVEMENT
    own = all(_is_elementwise(op, e) for op in dag.stages for e in postorder(op.body) if isinstance(e, Load))
    return NodeKind.ELEMENTWISE if own else NodeKind.GENERAL


def _only_moves(value: Expr) -> bool:
    """Whether a value is a load, a constant, or a selection of these by the index."""
    if isinstance(value, Select):
        return not loads(value.cond) and _only_moves(value.a) and _only_moves(value.b)
    return isinstance(value, (Load, Const))


def _moved_loads(op: ComputeOp) -> Iterator[Load]:
    """Yield the loads of a movement, without those in indices."""
    waiting = list(op.body)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Load):
            yield value
        elif isinstance(value, Select):
            waiting += [value.a, value.b]


def _keeps_contiguity(op: ComputeOp, load: Load) -> bool:
    """Whether the last axis has stride 1 in the load, or does not occur in it."""
    last = next((a for a in reversed(op.axes) if a.extent > 1), None)
    if last is None or not any(last.var in free_vars(index) for index in load.indices):
        return True
    return last.var in free_vars(load.indices[-1]) and not any(
        isinstance(e, Binary) and e.op not in ("add", "sub") and last.var in free_vars(e)
        for e in postorder((load.indices[-1],))
    )


def _contiguous_offset(dag: ComputeDAG, tensors: Sequence[Tensor | None]) -> int | None:
    """Return the first element of a movement that reads a contiguous run of its operand in order, else None.

    None also for a movement of a whole tensor in its own shape, which is meant as a copy.
    """
    if len(dag.stages) != 1 or len(tensors) != 1:
        return None
    x, op = tensors[0], dag.stages[0]
    if x is None or (len(x.shape) == len(op.axes) and all(map(is_same, x.shape, op.outputs[0].shape))):
        return None
    if len(op.body) != 1 or not isinstance(load := op.body[0], Load):
        return None
    simplify, offset = Simplifier({a.var: (0, a.extent - 1) for a in op.axes}), Affine((), 0)
    for index, size in zip(load.indices, x.shape, strict=True):
        offset = simplify.place_value(offset, size, index)
    steps: dict[Expr, int] = {}
    step = 1
    for axis in reversed(op.axes):
        if axis.extent > 1:
            steps[axis.var], step = step, step * axis.extent
    single = {a.var for a in op.axes if a.extent == 1}
    return offset.constant if {e: c for e, c in offset.terms if e not in single} == steps else None


def _divisions(load: Load) -> list[Expr]:
    return [e for e in postorder(load.indices) if isinstance(e, Binary) and e.op in DIVISIONS]


def _splits_last_axis(op: ComputeOp, load: Load) -> bool:
    last = next((a for a in reversed(op.axes) if a.extent > 1), None)
    return last is not None and any(last.var in free_vars(e) for e in _divisions(load))


def _is_permutation(op: ComputeOp, load: Load) -> bool:
    """Whether the indices are the axes in any order, axes of extent 1 aside."""
    axes = [a.var for a in op.axes if a.extent > 1]
    indices = [index for index in load.indices if not isinstance(index, Const)]
    indices = [index for index in indices if index in axes or not isinstance(index, Var)]
    return all(isinstance(index, Var) for index in indices) and sorted(map(id, axes)) == sorted(map(id, indices))


def _is_elementwise(op: ComputeOp, load: Load) -> bool:
    """Whether the load's indices are the stage's own axes, aligned at the end, or 0 along sizes of 1."""
    axes = [a.var for a in op.axes][len(op.axes) - len(load.indices) :]
    if len(load.indices) > len(op.axes):
        return False
    return all(
        index == axis or (isinstance(index, Const) and index.value == 0)
        for index, axis in zip(load.indices, axes, strict=True)
    )


def has_batch(graph: Graph, name: str, count: int) -> bool:
    """Whether a value is no constant and has `count` entries along its first dimension, as a batch of images has."""
    return not graph.is_constant(name) and graph.values[name].shape[:1] == (count,)


def is_batchwise(node: Node, graph: Graph, count: int) -> bool:
    """Whether a node computes each of the `count` entries along the first dimension of its results from that entry of
    its operands alone, so that it can be split along the batch."""
    if node.body is not None:
        return False
    operand_types = tuple(None if n is None else (graph.values[n].shape, graph.values[n].dtype) for n in node.inputs)
    batches = tuple(name is not None and has_batch(graph, name, count) for name in node.inputs)
    attributes = tuple(sorted(node.attributes.items()))
    return any(batches) and _is_batchwise(node.operator, operand_types, batches, attributes, len(node.outputs))


@lru_cache(maxsize=4096)
def _is_batchwise(
    operator: str, operand_types: OperandTypes, batches: tuple[bool, ...], attributes: Attributes, n_outputs: int
) -> bool:
    inputs = tuple(None if x is None else f"x{n}" for n, x in enumerate(operand_types))
    node = Node(operator, inputs, ("y",) * n_outputs, dict(attributes))
    _, outputs = stages_of(operator, operand_types, attributes, n_outputs)
    if any(isinstance(t.op, PlaceholderOp) for t in outputs):
        return False
    count = next(x[0][0] for x, is_one in zip(operand_types, batches, strict=True) if x is not None and is_one)
    moving = {f"x{n}" for n, is_one in enumerate(batches) if is_one}
    for op in ComputeDAG(outputs).stages:
        reads = {e.buffer for e in postorder(op.body) if isinstance(e, Load)}
        if moving.isdisjoint(reads):
            continue
        if (
            not op.axes
            or op.axes[0].extent != count
            or not all(_indexes_only(e, op.axes[0].var, moving) for e in op.body)
        ):
            return False
        moving |= {t.name for t in op.outputs}
    one = [x and ((1, *x[0][1:]), x[1]) if is_one else x for x, is_one in zip(operand_types, batches, strict=True)]
    try:
        alone = results_of(node, {f"x{n}": Value(f"x{n}", *x) for n, x in enumerate(one) if x is not None})
    except GraphError:  # attributes depend on the batch size
        return False
    shapes = [(1, *t.public_shape[1:]) for t in outputs]
    return all(t.name in moving for t in outputs) and [value.shape for value in alone] == shapes


def _indexes_only(e: Expr, entry: Var, moving: set[str]) -> bool:
    """Whether `entry` is only used as the first index of loads from the buffers in `moving`, which have a batch."""
    if isinstance(e, Load) and e.buffer in moving:
        return e.indices[0] is entry and all(_indexes_only(i, entry, moving) for i in e.indices[1:])
    return e is not entry and all(_indexes_only(child, entry, moving) for child in e.children)

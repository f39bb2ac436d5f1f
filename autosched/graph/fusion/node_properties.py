"""What a node is to a kernel, from its expression alone: whether it moves, maps or mixes elements, and its price."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from autosched.errors import GraphError
from autosched.graph.graph import Attribute, Graph, Node
from autosched.graph.operators import build
from autosched.ir.expr import Binary, Call, Const, Expr, Load, Select, Var
from autosched.ir.simplify import Affine, Simplifier
from autosched.ir.visit import free_vars, is_gathered, loads
from autosched.schedule.state import initial_state
from autosched.schedule.steps.online import weighted_sum
from autosched.te import ComputeDAG, Tensor, placeholder
from autosched.te.tensor import ComputeOp, PlaceholderOp, postorder

VIEW = "reshape"  # the operator that only gives memory another shape
CHEAP_CALLS = frozenset({"neg", "abs", "not", "floor", "ceil", "round"})  # an instruction each
DIVISIONS = ("floordiv", "mod")
FUNCTION_OPERATIONS = 8  # additions that take as long as a division or a call of a function


class Kind(Enum):
    """What a node is to a kernel."""

    VIEW = "is memory, or a part of it, in another shape"
    MOVEMENT = "moves or repeats elements"
    ELEMENTWISE = "computes each result from elements at its own place"
    GENERAL = "reads elements at other places, reduces or scans"


@dataclass(frozen=True)
class OperandFacts:
    """How a node reads an operand.

    `reads`: how often each element, in the mean. `is_plain`: at places that are axes of its loops, as a product does,
    so that any order of the elements will do. `is_indirect`: only where data say.
    """

    reads: int
    is_plain: bool
    is_indirect: bool = False


@dataclass(frozen=True)
class NodeFacts:
    """`operations` for each element of the result, and whether functions or divisions are among them.

    Of movements: `has_cases`, whether places decide what is moved, as in a concatenation; `keeps_runs`, whether
    neighbours along the last dimension stay neighbours; `divides`, whether places are taken apart by division, and
    `divides_last`, whether those along the last dimension are; `is_permutation`, whether it is a transposition;
    `is_indirect`, whether data say what is read. Of views: `offset`, the element of the operand that is their first.
    """

    kind: Kind
    operands: tuple[OperandFacts, ...]
    operations: int = 0
    has_functions: bool = False
    has_cases: bool = False
    keeps_runs: bool = True
    divides: bool = False
    divides_last: bool = False
    is_permutation: bool = False
    is_indirect: bool = False
    offset: int = 0


def facts_of(node: Node, graph: Graph) -> NodeFacts:
    given = tuple(None if n is None else (graph.values[n].shape, graph.values[n].dtype) for n in node.inputs)
    return _facts(node.operator, given, tuple(sorted(node.attributes.items())), len(node.outputs))


def operand_facts(node: Node, graph: Graph, name: str) -> OperandFacts:
    """How a node reads a value; where it does so as several operands, all of them together."""
    found = [f for x, f in zip(node.inputs, facts_of(node, graph).operands, strict=True) if x == name]
    reads = sum(f.reads for f in found)
    return OperandFacts(reads, all(f.is_plain for f in found), all(f.is_indirect for f in found))


def weights_of(graph: Graph, nodes: Sequence[Node], names: Sequence[str]) -> list[str]:
    """The constants among `names`, the inputs of a kernel of the nodes, that it wants in an order of its own. A table
    in which it looks up what data say is none: most of it is not read. Where nothing else goes into the kernel there
    are none: what it computes is copied, not prepared."""

    def is_table(name: str) -> bool:
        return all(operand_facts(node, graph, name).is_indirect for node in nodes if name in node.used)

    found = [name for name in names if graph.is_constant(name) and not is_table(name)]
    return found if len(found) < len(names) else []


def averages_by_softmax(node: Node, graph: Graph) -> bool:
    """Whether a node makes a sum whose weights are shares of a softmax, as attention does: all of it may be one nest,
    which writes its results in any order."""
    given = tuple(None if n is None else (graph.values[n].shape, graph.values[n].dtype) for n in node.inputs)
    return _averages(node.operator, given, tuple(sorted(node.attributes.items())), len(node.outputs))


_Shapes = tuple[tuple[tuple[int, ...], str] | None, ...]


@lru_cache(maxsize=4096)
def _facts(operator: str, given: _Shapes, attributes: tuple[tuple[str, Attribute], ...], n_outputs: int) -> NodeFacts:
    """Equal layers share an answer."""
    inputs = tuple(None if x is None else f"x{n}" for n, x in enumerate(given))
    node = Node(operator, inputs, tuple(f"y{n}" for n in range(n_outputs)), dict(attributes))
    tensors = [None if x is None else placeholder(x[0], x[1], f"x{n}") for n, x in enumerate(given)]
    made = build(node, tensors)
    if any(isinstance(t.op, PlaceholderOp) for t in made):
        kind = Kind.VIEW if operator == VIEW else Kind.MOVEMENT
        return NodeFacts(kind, (OperandFacts(1, True),) * len(given))
    dag = ComputeDAG(made)
    operands = tuple(OperandFacts(0, True) if t is None else _operand(dag, f"x{n}", t) for n, t in enumerate(tensors))
    kind, offset = Kind.VIEW if operator == VIEW else _kind(dag), 0
    if kind in (Kind.VIEW, Kind.MOVEMENT):
        found = [(op, load) for op in dag.stages for load in _moved(op)]
        if kind is Kind.MOVEMENT and (first := _first_of_run(dag, tensors)) is not None:
            kind, offset = Kind.VIEW, first
        return NodeFacts(
            kind,
            operands,
            offset=offset,
            has_cases=any(isinstance(value, Select) for op in dag.stages for value in op.body),
            keeps_runs=all(_keeps_runs(op, load) for op, load in found),
            divides=any(
                isinstance(e, Binary) and e.op in DIVISIONS for _, load in found for e in postorder(load.indices)
            ),
            divides_last=any(_divides_last(op, load) for op, load in found),
            is_permutation=len(found) == 1 and _is_permutation(*found[0]),
            is_indirect=any(loads(index) for _, load in found for index in load.indices),
        )
    work = [e for op in dag.stages for e in postorder(op.body) if isinstance(e, (Binary, Call)) and e.dtype != "int64"]
    functions = sum(_is_function(e) for e in work)
    results = max(1, sum(math.prod(t.shape) for t in made))
    points = max(_points(op) for op in dag.stages)
    each = len(work) + (FUNCTION_OPERATIONS - 1) * functions
    return NodeFacts(kind, operands, -(-each * points // results), functions > 0)


@lru_cache(maxsize=1024)
def _averages(operator: str, given: _Shapes, attributes: tuple[tuple[str, Attribute], ...], n_outputs: int) -> bool:
    node = Node(operator, tuple(None if x is None else f"x{n}" for n, x in enumerate(given)), ("y",), dict(attributes))
    made = build(node, [None if x is None else placeholder(x[0], x[1], f"x{n}") for n, x in enumerate(given)])
    if n_outputs != 1 or any(isinstance(t.op, PlaceholderOp) for t in made):
        return False
    state = initial_state(ComputeDAG(made))
    return any(weighted_sum(state, stage) is not None for stage in state.stages)


def _is_function(e: Binary | Call) -> bool:
    return e.fn not in CHEAP_CALLS if isinstance(e, Call) else e.op in ("div", "pow", "mod", "fmod")


def _operand(dag: ComputeDAG, name: str, tensor: Tensor) -> OperandFacts:
    """How the stages read a placeholder, by way of stages that only move elements, too."""
    reads, is_plain, is_indirect = 0, True, True
    for op in dag.stages:
        for load in (e for e in postorder(op.body) if isinstance(e, Load) and e.buffer == name):
            later = _later(dag, op)
            reads += _points(op) * later.reads
            is_plain &= _is_plain(op, load) and later.is_plain
            is_indirect &= is_gathered(load)
    return OperandFacts(-(-reads // max(1, math.prod(tensor.shape))), is_plain, is_indirect and reads > 0)


def _later(dag: ComputeDAG, op: ComputeOp) -> OperandFacts:
    """How a stage's results are read where it only moves elements, and so is no stop on the way; else they are kept."""
    if op.reducer is not None or not all(map(_only_moves, op.body)):
        return OperandFacts(1, True)
    found = [_operand(dag, t.name, t) for t in op.outputs]
    return OperandFacts(max([1, *(f.reads for f in found)]), all(f.is_plain for f in found))


def _points(op: ComputeOp) -> int:
    return math.prod(axis.extent for axis in itertools.chain(op.axes, op.reduce_axes))


def _is_plain(op: ComputeOp, load: Load) -> bool:
    """Whether all indices are single axes, or constants, but for axes of one step."""
    single = {a.var for a in (*op.axes, *op.reduce_axes) if a.extent == 1}
    return all(len(free_vars(index) - single) <= 1 and _is_sum(index) for index in load.indices)


def _is_sum(index: Expr) -> bool:
    """Whether an index is an axis, perhaps with something added."""
    return all(
        isinstance(e, (Var, Const)) or (isinstance(e, Binary) and e.op in ("add", "sub")) for e in postorder((index,))
    )


def _kind(dag: ComputeDAG) -> Kind:
    if any(op.reducer is not None for op in dag.stages):
        return Kind.GENERAL
    if all(all(_only_moves(value) for value in op.body) for op in dag.stages):
        return Kind.MOVEMENT
    own = all(_is_at_its_place(op, e) for op in dag.stages for e in postorder(op.body) if isinstance(e, Load))
    return Kind.ELEMENTWISE if own else Kind.GENERAL


def _only_moves(value: Expr) -> bool:
    """Whether a value is an element of something, or one of several by its place."""
    if isinstance(value, Select):
        return not loads(value.cond) and _only_moves(value.a) and _only_moves(value.b)
    return isinstance(value, (Load, Const))


def _moved(op: ComputeOp) -> Iterator[Load]:
    """The elements that a movement takes; what its indices read is not among them."""
    waiting = list(op.body)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Load):
            yield value
        elif isinstance(value, Select):
            waiting += [value.a, value.b]


def _keeps_runs(op: ComputeOp, load: Load) -> bool:
    """Whether the last axis is what the last index counts, by ones, or none that counts."""
    last = next((a for a in reversed(op.axes) if a.extent > 1), None)
    if last is None or not any(last.var in free_vars(index) for index in load.indices):
        return True
    return last.var in free_vars(load.indices[-1]) and not any(
        isinstance(e, Binary) and e.op not in ("add", "sub") and last.var in free_vars(e)
        for e in postorder((load.indices[-1],))
    )


def _first_of_run(dag: ComputeDAG, tensors: Sequence[Tensor | None]) -> int | None:
    """The first element that is moved, of a tensor in which all that are lie behind each other in the same order. A
    whole tensor in its own shape is none: who moves that wants a copy."""
    x, op = tensors[0], dag.stages[0]
    if len(dag.stages) != 1 or len(tensors) != 1 or x is None or x.shape == op.outputs[0].shape:
        return None
    if len(op.body) != 1 or not isinstance(load := op.body[0], Load):
        return None
    simplify, place = Simplifier({a.var: (0, a.extent - 1) for a in op.axes}), Affine((), 0)
    for index, size in zip(load.indices, x.shape, strict=True):
        place = simplify.place_value(place, size, index)
    steps: dict[Expr, int] = {}
    step = 1
    for axis in reversed(op.axes):
        if axis.extent > 1:
            steps[axis.var], step = step, step * axis.extent
    single = {a.var for a in op.axes if a.extent == 1}
    return place.constant if {e: c for e, c in place.terms if e not in single} == steps else None


def _divisions(load: Load) -> list[Expr]:
    return [e for e in postorder(load.indices) if isinstance(e, Binary) and e.op in DIVISIONS]


def _divides_last(op: ComputeOp, load: Load) -> bool:
    last = next((a for a in reversed(op.axes) if a.extent > 1), None)
    return last is not None and any(last.var in free_vars(e) for e in _divisions(load))


def _is_permutation(op: ComputeOp, load: Load) -> bool:
    """Whether the indices are the axes in any order, but for those of one step."""
    axes = [a.var for a in op.axes if a.extent > 1]
    indices = [index for index in load.indices if not isinstance(index, Const)]
    indices = [index for index in indices if index in axes or not isinstance(index, Var)]
    return all(isinstance(index, Var) for index in indices) and sorted(map(id, axes)) == sorted(map(id, indices))


def _is_at_its_place(op: ComputeOp, load: Load) -> bool:
    """Whether the load's indices are the stage's own axes, aligned at the end, or 0 along sizes of 1."""
    axes = [a.var for a in op.axes][len(op.axes) - len(load.indices) :]
    if len(load.indices) > len(op.axes):
        return False
    return all(
        index == axis or (isinstance(index, Const) and index.value == 0)
        for index, axis in zip(load.indices, axes, strict=True)
    )


def is_batch(graph: Graph, name: str, count: int) -> bool:
    """Whether a value has so many entries along its first dimension, as the images of a batch, and is no constant."""
    return not graph.is_constant(name) and graph.values[name].shape[:1] == (count,)


def works_by_entries(node: Node, graph: Graph, count: int) -> bool:
    """Whether a node computes each of `count` entries along the first dimension of its results from the same entry of
    operands that have as many, so that of some entries of these it makes some of its own."""
    given = tuple(None if n is None else (graph.values[n].shape, graph.values[n].dtype) for n in node.inputs)
    batches = tuple(name is not None and is_batch(graph, name, count) for name in node.inputs)
    attributes = tuple(sorted(node.attributes.items()))
    return any(batches) and _by_entries(node.operator, given, batches, attributes, len(node.outputs))


@lru_cache(maxsize=4096)
def _by_entries(
    operator: str,
    given: _Shapes,
    batches: tuple[bool, ...],
    attributes: tuple[tuple[str, Attribute], ...],
    n_outputs: int,
) -> bool:
    node = Node(operator, tuple(f"x{n}" for n in range(len(given))), ("y",) * n_outputs, dict(attributes))
    tensors = [None if x is None else placeholder(x[0], x[1], f"x{n}") for n, x in enumerate(given)]
    made = build(node, tensors)
    if any(isinstance(t.op, PlaceholderOp) for t in made):
        return False
    count = next(x[0][0] for x, is_one in zip(given, batches, strict=True) if x is not None and is_one)
    moving = {f"x{n}" for n, is_one in enumerate(batches) if is_one}
    for op in ComputeDAG(made).stages:
        reads = {e.buffer for e in postorder(op.body) if isinstance(e, Load)}
        if moving.isdisjoint(reads):
            continue
        if not op.axes or op.axes[0].extent != count or not all(_at_entry(e, op.axes[0].var, moving) for e in op.body):
            return False
        moving |= {t.name for t in op.outputs}
    one = [x and ((1, *x[0][1:]), x[1]) if is_one else x for x, is_one in zip(given, batches, strict=True)]
    try:
        alone = build(node, [None if x is None else placeholder(x[0], x[1], f"x{n}") for n, x in enumerate(one)])
    except GraphError:  # attributes say how many there are
        return False
    shapes = [t.public_shape for t in made]
    return all(t.name in moving for t in made) and [t.public_shape for t in alone] == [(1, *s[1:]) for s in shapes]


def _at_entry(e: Expr, entry: Var, moving: set[str]) -> bool:
    """Whether the place of an entry says which entry of what is `moving` is read, and nothing else."""
    if isinstance(e, Load) and e.buffer in moving:
        return e.indices[0] is entry and all(_at_entry(i, entry, moving) for i in e.indices[1:])
    return e is not entry and all(_at_entry(child, entry, moving) for child in e.children)

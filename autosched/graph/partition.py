"""A network as kernels: which nodes are computed together, and which are another view of the same memory.

    Group(nodes, inputs, outputs)      one kernel: the stages of its nodes as one graph of `te`
    Alias(output, base)                a reshape: the same elements in the same order, at no cost

A node starts a group of its own, and

    takes in     producers that only its own group reads: data movement always, elementwise arithmetic where this node
                 reads each element a few times (a reduction along rows), not where it reads it often (a product)
    joins        the group of an operand, where it is elementwise over that group's result and nobody else reads it

so a product, a convolution or a reduction comes with what moves its operands and what follows it element by element.
What kind a node is follows from its expression: how its stages index what they read, and whether they reduce.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache

from autosched.errors import GraphError
from autosched.graph.graph import Attribute, Graph, Node
from autosched.graph.operators import build
from autosched.ir.expr import Binary, Call, Const, Load, Select
from autosched.te import ComputeDAG, Tensor, compute, placeholder
from autosched.te.tensor import ComputeOp, PlaceholderOp, postorder

ALIAS = "reshape"  # the operator that only gives memory another shape
FEW_READS = 8  # of an element, by one node: computing it again or keeping it in a row costs less than memory


class Kind(Enum):
    """What a node is to a kernel."""

    MOVEMENT = "moves or repeats elements"
    ELEMENTWISE = "computes each result from elements at its own place"
    GENERAL = "reads elements at other places, reduces or scans"


@dataclass(frozen=True)
class Group:
    """One kernel. `inputs`: values from outside, constants last; `outputs`: values that are needed outside."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.outputs)} = {' '.join(node.operator for node in self.nodes)}({', '.join(self.inputs)})"


@dataclass(frozen=True)
class Alias:
    """`output` is `base` in another shape."""

    output: str
    base: str


def partition(graph: Graph) -> tuple[Group | Alias, ...]:
    """The steps of a network, in an order in which each value is made before it is read."""
    work = _Partition(graph)
    for node in graph.nodes:
        work.take(node)
    return tuple(work.steps())


@dataclass(eq=False)
class _Open:
    """A group in the making; `at` is the number of its last node, where it will run."""

    nodes: list[Node]
    kind: Kind
    at: int


@dataclass
class _Partition:
    graph: Graph
    home: dict[str, _Open | Alias] = field(default_factory=dict)  # value -> who makes it

    @cached_property
    def order(self) -> Mapping[int, int]:
        """The numbers of the nodes, by identity: attributes need no hash."""
        return {id(node): n for n, node in enumerate(self.graph.nodes)}

    def take(self, node: Node) -> None:
        at = self.order[id(node)]
        if node.operator == ALIAS:
            assert node.inputs[0] is not None
            self.home[node.outputs[0]] = Alias(node.outputs[0], node.inputs[0])
            return
        kind = kind_of(node, self.graph)
        group = self._joined(node) if kind is Kind.ELEMENTWISE else None
        if group is None:
            group = _Open([], kind, at)
        self._take_in(node, group)
        group.nodes.append(node)
        group.at = at
        for name in node.outputs:
            self.home[name] = group

    def _joined(self, node: Node) -> _Open | None:
        """The group that an elementwise node becomes a part of: that of the operand made last, where it may."""
        shape = self.graph.values[node.outputs[0]].shape
        found = [
            group
            for name in node.used
            if isinstance(group := self.home.get(name), _Open)
            and self.graph.values[name].shape == shape
            and self._is_only_read_by(name, node, group)
            and not any(self._depends(other, group) for other in node.used if self.home.get(other) is not group)
        ]
        return max(found, key=lambda group: (group.kind is Kind.GENERAL, group.at), default=None)

    def _take_in(self, node: Node, group: _Open) -> None:
        """Moves what makes operands for this node alone into its group."""
        for name in node.used:
            other = self.home.get(name)
            if not isinstance(other, _Open) or other is group or other.kind is Kind.GENERAL:
                continue
            alone = all(self._is_only_read_by(made, node, other) for n in other.nodes for made in n.outputs)
            if not alone or (other.kind is Kind.ELEMENTWISE and reads_of(node, self.graph, name) > FEW_READS):
                continue
            group.nodes = sorted([*group.nodes, *other.nodes], key=lambda n: self.order[id(n)])
            for n in other.nodes:
                self.home.update(dict.fromkeys(n.outputs, group))

    def _is_only_read_by(self, name: str, node: Node, group: _Open) -> bool:
        inside = [id(n) for n in group.nodes]
        readers = self.graph.users[name]
        return name not in self.graph.outputs and all(reader is node or id(reader) in inside for reader in readers)

    def _depends(self, name: str, group: _Open) -> bool:
        """Whether a value is computed from what `group` makes."""
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            name = waiting.pop()
            home = self.home.get(name)
            if home is group:
                return True
            if home is None or name in seen:
                continue
            seen.add(name)
            waiting += [home.base] if isinstance(home, Alias) else [x for n in home.nodes for x in n.used]
        return False

    def steps(self) -> Iterator[Group | Alias]:
        """Groups where their last node stands, aliases where they do."""
        groups = {id(g): g for g in self.home.values() if isinstance(g, _Open)}.values()
        found: list[tuple[int, Group | Alias]] = [(g.at, self._closed(g)) for g in groups]
        for node in self.graph.nodes:
            alias = self.home[node.outputs[0]]
            if isinstance(alias, Alias):
                found.append((self.order[id(node)], alias))
        yield from (step for _, step in sorted(found, key=lambda pair: pair[0]))

    def _closed(self, group: _Open) -> Group:
        made = [name for node in group.nodes for name in node.outputs]
        read = dict.fromkeys(x for node in group.nodes for x in node.used if x not in made)
        inside = {id(node) for node in group.nodes}
        needed = [
            name
            for name in made
            if name in self.graph.outputs or any(id(user) not in inside for user in self.graph.users[name])
        ]
        inputs = sorted(read, key=self.graph.is_constant)
        return Group(tuple(group.nodes), tuple(inputs), tuple(needed))


def dag_of(graph: Graph, group: Group) -> ComputeDAG:
    """The group as one graph of stages. Its inputs are `x0`, `x1`, ... in the group's order; constants are weights."""
    labels = {name: f"x{n}" for n, name in enumerate(group.inputs)}
    tensors = {n: placeholder(graph.values[n].shape, graph.values[n].dtype, labels[n]) for n in group.inputs}
    for node in group.nodes:
        made = build(node, [None if name is None else tensors[name] for name in node.inputs])
        tensors.update(zip(node.outputs, map(_stored, made), strict=True))
    outputs = [tensors[name] for name in group.outputs]
    weights = [labels[name] for name in group.inputs if graph.is_constant(name)]
    dag = ComputeDAG(outputs)
    if len(dag.inputs) != len(group.inputs):
        unread = sorted(set(labels.values()) - {t.name for t in dag.inputs})
        raise GraphError(f"{group}: nothing is computed from {', '.join(unread)}")
    return dag.with_weights(weights) if weights else dag


def _stored(tensor: Tensor) -> Tensor:
    """A result that is an operand itself as a copy of it."""
    if isinstance(tensor.op, ComputeOp):
        return tensor
    copy: Tensor = compute(tensor.shape, lambda *index: tensor[index], name="copy")
    return copy


def kind_of(node: Node, graph: Graph) -> Kind:
    return _facts(*_key(node, graph))[0]


def reads_of(node: Node, graph: Graph, name: str) -> int:
    """How often a node reads an element of an operand, in the mean."""
    return max(n for x, n in zip(node.inputs, _facts(*_key(node, graph))[1], strict=True) if x == name)


_Shapes = tuple[tuple[tuple[int, ...], str] | None, ...]


def _key(node: Node, graph: Graph) -> tuple[str, _Shapes, tuple[tuple[str, Attribute], ...], int]:
    given = tuple(None if n is None else (graph.values[n].shape, graph.values[n].dtype) for n in node.inputs)
    return node.operator, given, tuple(sorted(node.attributes.items())), len(node.outputs)


@lru_cache(maxsize=4096)
def _facts(
    operator: str, given: _Shapes, attributes: tuple[tuple[str, Attribute], ...], n_outputs: int
) -> tuple[Kind, tuple[int, ...]]:
    inputs = tuple(None if x is None else f"x{n}" for n, x in enumerate(given))
    node = Node(operator, inputs, tuple(f"y{n}" for n in range(n_outputs)), dict(attributes))
    tensors = [None if x is None else placeholder(x[0], x[1], f"x{n}") for n, x in enumerate(given)]
    made = build(node, tensors)
    if any(isinstance(t.op, PlaceholderOp) for t in made):
        return Kind.MOVEMENT, (1,) * len(given)
    dag = ComputeDAG(made)
    reads = tuple(0 if t is None else _reads(dag, f"x{n}", t) for n, t in enumerate(tensors))
    return _kind(dag), reads


def _reads(dag: ComputeDAG, name: str, tensor: Tensor) -> int:
    count = sum(
        _points(op) * sum(isinstance(e, Load) and e.buffer == name for e in postorder(op.body)) for op in dag.stages
    )
    size = 1
    for extent in tensor.shape:
        size *= extent
    return -(-count // size)


def _points(op: ComputeOp) -> int:
    count = 1
    for axis in itertools.chain(op.axes, op.reduce_axes):
        count *= axis.extent
    return count


def _kind(dag: ComputeDAG) -> Kind:
    if any(op.reducer is not None for op in dag.stages):
        return Kind.GENERAL
    nodes = [e for op in dag.stages for e in postorder(op.body)]
    computes = any(isinstance(e, Call) or (e.children and not isinstance(e, Load) and _is_data(e)) for e in nodes)
    if not computes:
        return Kind.MOVEMENT
    own = all(_is_at_its_place(op, e) for op in dag.stages for e in postorder(op.body) if isinstance(e, Load))
    return Kind.ELEMENTWISE if own else Kind.GENERAL


def _is_data(expr: object) -> bool:
    """Whether an expression computes with elements, not with indices or conditions over these."""
    if isinstance(expr, Select):
        return False
    return isinstance(expr, Binary) and any(isinstance(e, Load) for e in postorder((expr,)))


def _is_at_its_place(op: ComputeOp, load: Load) -> bool:
    """Whether the load's indices are the stage's own axes, aligned at the end, or 0 along sizes of 1."""
    axes = [a.var for a in op.axes][len(op.axes) - len(load.indices) :]
    if len(load.indices) > len(op.axes):
        return False
    return all(
        index == axis or (isinstance(index, Const) and index.value == 0)
        for index, axis in zip(load.indices, axes, strict=True)
    )

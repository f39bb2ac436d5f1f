"""Partition of a network into kernels: which nodes are fused, and which values are views of the same memory.

    Group(nodes, inputs, outputs)      one kernel: the stages of its nodes as one graph of `te`
    Alias(output, base, offset)        a view: elements of a stored value in another shape, at no cost
    Join(output, parts)                a concatenation in place: its operands are written into one buffer
    Write(output, base, at, rows)      rows written into an input that nothing else reads: a cache of keys or values
    Repeat(node, operands)             a loop, whose body is partitioned by itself

There are four ways to compute a node.

    fused with its producer  as an epilogue of the group that computes an operand that nothing else reads: elementwise
                             nodes over the results of a reduction, and transpositions of them; but widening casts only
                             where no reader inlines them
    inlined                  recomputed in each group that reads it, where that costs less than storing it (`cost`):
                             movements whose reader still finds its elements contiguous, cheap elementwise nodes
    fused with its reader    in the first group that reads it, which has it as an extra output: where both are
                             elementwise and of one shape, as the states of a recurrent cell are
    alone                    otherwise, it starts a group

A reshape of a stored value is an alias, and so is a contiguous slice; a reshape of an inlined value becomes indices in
the reader. The outputs of a group are those of its last node and its extra outputs. All their readers come later, and
so do the groups that inline a node, so no group depends on itself. The kind of a node follows from its expression
(`node_properties`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from autosched.errors import GraphError
from autosched.graph.fusion.cost import FusionRates, NodeWork, should_inline
from autosched.graph.fusion.node_properties import (
    NodeKind,
    NodeProperties,
    access_of,
    is_attention,
    properties_of,
    weights_of,
)
from autosched.graph.graph import Graph, Node, Shape
from autosched.graph.loops import operands_at_run_time
from autosched.graph.operators import build, own_result
from autosched.graph.operators.index_maps import axis_of
from autosched.graph.steps import Alias, Group, Join, NetworkStep, Repeat, Write
from autosched.ir.dtype import DTYPES
from autosched.ir.size import value_of
from autosched.te import ComputeDAG, placeholder

FEW_READS = 8  # reads per element up to which a reader does not pack an operand
MOST_NODES = 64  # of a group
GENERIC = FusionRates(24.0, 32.0, 300.0)  # of one core of a generic processor


def partition(
    graph: Graph, rates: FusionRates = GENERIC, unfusible: frozenset[str] = frozenset(), in_place: bool = False
) -> tuple[NetworkStep, ...]:
    """Return the steps of a network in an order in which each value is computed before it is read.

    Nodes that compute or read a value of `unfusible` are not fused. `in_place`: rows may be written into inputs.
    """
    work = _Partition(graph, rates, unfusible, in_place)
    for node in graph.nodes:
        work.start_group(node)
    for node in graph.nodes:
        work.detach_widening(node)
    for node in reversed(graph.nodes):
        work.inline(node)
    for node in graph.nodes:
        work.fuse_permutation(node)
    for node in graph.nodes:
        work.fuse_into_reader(node)
    return tuple(work.steps())


@dataclass(eq=False)
class _GroupBuilder:
    """A group under construction: the nodes that it alone computes, the last of which is read outside, the nodes that
    it inlines, by identity, and extra outputs."""

    nodes: list[Node]
    kind: NodeKind
    inlined: set[int] = field(default_factory=set)
    extra_outputs: list[str] = field(default_factory=list)

    @property
    def last(self) -> Node:
        return self.nodes[-1]


@dataclass(frozen=True)
class _InlineSite:
    """A group that would inline a value, the node in it that reads the value, and the reads per element.

    `is_often`: whether the value, or a value computed from it on the way, is read more than FEW_READS times.
    `is_split`: whether a movement on the way splits the last axis.
    """

    group: _GroupBuilder
    reader: Node
    reads: int
    is_often: bool
    is_axis_indexed: bool
    is_split: bool


@dataclass
class _Partition:
    graph: Graph
    rates: FusionRates
    unfusible: frozenset[str]
    in_place: bool
    groups: dict[int, _GroupBuilder] = field(default_factory=dict)  # by identity of nodes, which have no hash
    detached: dict[int, _GroupBuilder] = field(default_factory=dict)  # widening nodes: the groups of their producers
    sites: dict[str, tuple[_InlineSite, ...] | None] = field(default_factory=dict)  # by value; None: it is stored
    memory_steps: dict[int, Join | Write | Repeat] = field(default_factory=dict)  # by identity of nodes, no kernels

    @cached_property
    def positions(self) -> Mapping[int, int]:
        """The position of each node in the graph, by identity."""
        return {id(node): n for n, node in enumerate(self.graph.nodes)}

    def properties(self, node: Node) -> NodeProperties:
        """Return a node's properties; a view that is not aligned for kernels is a movement, that is, copied."""
        properties = properties_of(node, self.graph)
        if properties.kind is NodeKind.VIEW and not self._is_aligned(properties.offset, node.outputs[0]):
            return replace(properties, kind=NodeKind.MOVEMENT, offset=0)
        return properties

    def _is_aligned(self, element: int, name: str) -> bool:
        """Whether an array of a value's type may begin at an element of another array."""
        return element * DTYPES[self.graph.values[name].dtype].nbytes % self.rates.part_alignment == 0

    # Fused with the producer

    def start_group(self, node: Node) -> None:
        """Start a group for a node, or fuse it with the group of an operand."""
        kind = self.properties(node).kind
        if kind is NodeKind.VIEW or node.body is not None:
            return
        group = self._producer_group(node) if kind is NodeKind.ELEMENTWISE else None
        if group is None:
            self.groups[id(node)] = _GroupBuilder([node], kind)
        else:
            group.nodes.append(node)
            self.groups[id(node)] = group

    def _producer_group(self, node: Node) -> _GroupBuilder | None:
        """Return the group of the last reduction among an elementwise node's operands that it can be fused with."""
        shape = self.graph.values[node.outputs[0]].shape
        last = None
        for name in node.used:
            producer = self.graph.producers.get(name)
            if producer is None or self.graph.values[name].shape != shape or not self._is_last_of(name, producer):
                continue
            group = self.groups.get(id(producer))
            if group is not None and group.kind is NodeKind.GENERAL and not self._is_alone(node):
                last = group
        return last

    def detach_widening(self, node: Node) -> None:
        """Move a node that only widens its operand's type out of the operand's group, so that readers can inline it."""
        group = self.groups.get(id(node))
        if group is None or group.kind is not NodeKind.GENERAL or group.last is not node or len(group.nodes) == 1:
            return
        output = node.outputs[0]
        shape = self.graph.values[output].shape
        whole = [x for x in node.used if not self.graph.is_constant(x) and self.graph.values[x].shape == shape]
        is_wider = [self._nbytes(x) < self._nbytes(output) for x in whole if x in group.nodes[-2].outputs] == [True]
        if len(whole) == len(node.outputs) == 1 and is_wider and output not in self.graph.outputs:
            group.nodes.pop()
            self.detached[id(node)] = group
            self.groups[id(node)] = _GroupBuilder([node], NodeKind.ELEMENTWISE)

    def _reattach(self, node: Node) -> None:
        """Fuse a detached node with its producer's group again, because no reader inlines it."""
        before, group = self.detached[id(node)], self.groups[id(node)]
        before.nodes.append(node)
        before.inlined |= group.inlined
        self.groups[id(node)] = before

    def _is_last_of(self, name: str, producer: Node) -> bool:
        """Whether `name` is the only output of a node that is needed, and one node reads it."""
        needed = [x for x in producer.outputs if x in self.graph.outputs or self.graph.users[x]]
        return needed == [name] and name not in self.graph.outputs and len(self.graph.users[name]) == 1

    def _is_alone(self, node: Node) -> bool:
        return not self.unfusible.isdisjoint((*node.outputs, *node.used))

    def fuse_permutation(self, node: Node) -> None:
        """Fuse a transposition that no reader inlines with the reduction that computes its operand."""
        properties, group = self.properties(node), self.groups.get(id(node))
        if group is None or not properties.is_permutation or group.nodes != [node] or self._is_alone(node):
            return
        (name,) = node.used
        producer = self.graph.producers.get(name)
        before = None if producer is None else self.groups.get(id(producer))
        if producer is None or before is None or before.kind is not NodeKind.GENERAL or before.last is not producer:
            return
        if not self.rates.reorders_results and not is_attention(producer, self.graph):
            return
        if self._is_last_of(name, producer):
            before.nodes.append(node)
            self.groups[id(node)] = before

    # Inlined

    def inline(self, node: Node) -> None:
        """Decide whether the readers of a node, which are decided already, inline it."""
        properties = self.properties(node)
        if node.body is not None:
            self.memory_steps[id(node)] = Repeat(node, operands_at_run_time(self.graph, node))
            self.sites.update(dict.fromkeys(node.outputs))
            return
        if (join := self._concat_in_place(node) or self._row_write(node)) is not None:
            self.memory_steps[id(node)] = join
            self.sites[join.output] = None
            del self.groups[id(node)]
            return
        sites = self._inline_sites(node)
        if properties.kind is not NodeKind.VIEW:
            group = self.groups[id(node)]
            is_movable = properties.kind in (NodeKind.MOVEMENT, NodeKind.ELEMENTWISE) and group.nodes == [node]
            if not is_movable or sites is None or not self._can_inline(node, properties, sites):
                sites = None
                if id(node) in self.detached:
                    self._reattach(node)
            else:
                del self.groups[id(node)]
                for site in sites:
                    site.group.inlined.add(id(node))
        self.sites.update(dict.fromkeys(node.outputs, sites))

    def _inline_sites(self, node: Node) -> tuple[_InlineSite, ...] | None:
        """Return the groups that would inline a node, directly or through inlined readers; None if it is stored."""
        sites: list[_InlineSite] = []
        for name in node.outputs:
            if name in self.graph.outputs:
                return None
            for reader in self.graph.users[name]:
                through = self._sites_through(reader, name)
                if through is None:
                    return None
                sites += through
        return tuple(sites)

    def _sites_through(self, reader: Node, name: str) -> list[_InlineSite] | None:
        operand = access_of(reader, self.graph, name)
        group = self.groups.get(id(reader))
        if group is not None:
            return [
                _InlineSite(group, reader, operand.reads, operand.reads > FEW_READS, operand.is_axis_indexed, False)
            ]
        later = self.sites[reader.outputs[0]]
        if later is None:
            return None
        properties = self.properties(reader)
        if properties.kind is NodeKind.ELEMENTWISE:  # a group that reads it often buffers its result
            few = [replace(e, reads=min(e.reads, FEW_READS), is_axis_indexed=False, is_split=False) for e in later]
        else:
            few = [replace(e, is_split=e.is_split or properties.splits_last_axis) for e in later]
        total = [replace(e, reads=e.reads * operand.reads) for e in few]
        return [replace(e, is_often=e.is_often or e.reads > FEW_READS) for e in total]

    def _has_functions(self, node: Node) -> bool:
        """Whether a node, or an elementwise node that only it reads, directly or indirectly, calls functions."""
        waiting = [node]
        while waiting:
            inner = waiting.pop()
            properties = self.properties(inner)
            if properties.kind is NodeKind.ELEMENTWISE and properties.has_functions:
                return True
            makers = [(name, self.graph.producers.get(name)) for name in inner.used]
            waiting += [
                maker
                for name, maker in makers
                if maker is not None
                and self._is_last_of(name, maker)
                and self.properties(maker).kind is NodeKind.ELEMENTWISE
                and self.groups[id(maker)].kind is NodeKind.ELEMENTWISE
            ]
        return False

    def _can_inline(self, node: Node, properties: NodeProperties, sites: tuple[_InlineSite, ...]) -> bool:
        groups = {id(e.group): e.group for e in sites}
        if not all(len(g.nodes) + len(g.inlined) < MOST_NODES for g in groups.values()):
            return False
        if not self.unfusible.isdisjoint((*node.outputs, *node.used)) or any(self._is_alone(e.reader) for e in sites):
            return False
        if properties.kind is NodeKind.MOVEMENT and not all(self._is_contiguous(properties, e) for e in sites):
            return False
        if (len(groups) > 1 or any(e.is_often for e in sites)) and self._has_functions(node):
            return False
        reads = [max(1, sum(e.reads for e in sites if e.group is g)) for g in groups.values()]
        return should_inline(
            self._work(node, properties), reads, self.rates, is_fused_with_producer=id(node) in self.detached
        )

    def _concat_in_place(self, node: Node) -> Join | None:
        """Return the Join that stores the operands of a concatenation in place, or None if it must be copied.

        Operands are contiguous in the result, most of them have memory anyway, and none is an output or within another
        Join.
        """
        output = node.outputs[0]
        shape = self.graph.values[output].shape
        if node.operator != "concat" or self.groups[id(node)].nodes != [node] or self._is_alone(node):
            return None
        axis = axis_of(cast("int", node.attributes["axis"]), len(shape))
        parts = [self._stored_as(name) for name in node.inputs if name is not None]
        makers = [self.graph.producers.get(part) for part in parts]
        joins = [join for join in self.memory_steps.values() if isinstance(join, Join)]
        taken = {part for join in joins for part in join.parts} | {self._stored_as(name) for name in self.graph.outputs}
        if math.prod(shape[:axis]) > 1 or len(set(parts)) < len(parts) or not taken.isdisjoint(parts):
            return None
        if any(maker is None or id(maker) not in self.groups for maker in makers):
            return None
        if not all(self._is_aligned(self._n_elements(part), output) for part in parts[:-1]):
            return None
        stored = [maker is not None and self._is_stored(maker) for maker in makers]
        copied = self.rates.call_cycles + 2 * self._nbytes(output) / self.rates.bytes_per_cycle
        return Join(output, tuple(parts)) if stored.count(False) * self.rates.call_cycles <= copied else None

    def _row_write(self, node: Node) -> Write | None:
        """Return the Write of a `write_rows` from an input to an output, or None if it must be copied.

        Nothing else reads the input, so no reader of the old rows can come after the write.
        """
        if node.operator != "write_rows" or not self.in_place or self._is_alone(node):
            return None
        if self.groups[id(node)].nodes != [node]:
            return None
        base, at, rows = (name or "" for name in node.inputs)
        is_only_reader = self.graph.users[base] == (node,) and base not in (*self.graph.outputs, at, rows)
        if base not in self.graph.inputs or node.outputs[0] not in self.graph.outputs or not is_only_reader:
            return None
        shape = self.graph.values[base].shape
        return Write(node.outputs[0], base, at, rows, axis_of(cast("int", node.attributes["axis"]), len(shape)))

    def _stored_as(self, name: str) -> str:
        """Return the stored value that `name` is a reshape of, or `name` itself."""
        maker = self.graph.producers.get(name)
        while maker is not None and self.properties(maker).kind is NodeKind.VIEW:
            (source,) = maker.used
            if self._n_elements(source) != self._n_elements(name):
                break
            name, maker = source, self.graph.producers.get(source)
        return name

    def _is_stored(self, maker: Node) -> bool:
        """Whether a node's result is stored whether or not one of its readers is a concatenation in place."""
        group = self.groups.get(id(maker))
        if group is None or group.kind is NodeKind.GENERAL:
            return group is not None
        return len(self.graph.users[maker.outputs[0]]) > 1 and self._has_functions(maker)

    def _is_contiguous(self, properties: NodeProperties, site: _InlineSite) -> bool:
        """Whether a reader with many reads per element still reads contiguous runs if it inlines a movement."""
        if site.reads <= FEW_READS or self.properties(site.reader).kind is not NodeKind.GENERAL:
            return True
        if properties.is_gather or properties.has_branches or properties.splits_last_axis or site.is_split:
            return False
        return site.is_axis_indexed or (properties.keeps_contiguity and not properties.splits_axes)

    def _work(self, node: Node, properties: NodeProperties) -> NodeWork:
        written = [self._nbytes(name) for name in node.outputs if self.graph.users[name]]
        read = [self._nbytes(name) for name in node.used]
        results = sum(self._n_elements(name) for name in node.outputs)
        if properties.kind is NodeKind.MOVEMENT:
            return NodeWork(min(sum(read), sum(written)), sum(written), 0.0, False)
        return NodeWork(sum(read), sum(written), float(results * properties.operations), True)

    def _n_elements(self, name: str) -> int:
        """The elements of a value for its present sizes: by them costs are compared."""
        return value_of(math.prod(self.graph.values[name].shape))

    def _nbytes(self, name: str) -> int:
        return self._n_elements(name) * DTYPES[self.graph.values[name].dtype].nbytes

    # Fused with the reader

    def fuse_into_reader(self, node: Node) -> None:
        """Fuse an elementwise group with its first reader, if that is elementwise and of the same shape."""
        group = self.groups.get(id(node))
        if group is None or group.kind is not NodeKind.ELEMENTWISE or group.last is not node or self._is_alone(node):
            return
        readers = {x: self._readers(x) for x in (*group.extra_outputs, *node.outputs)}
        each = [reader for groups in readers.values() for reader in groups]
        first = min(each, key=lambda reader: reader[0])[1] if each else None
        if first is None or not self._continues(first, node):
            return
        if len(group.nodes) + len(group.inlined) + len(first.nodes) + len(first.inlined) <= MOST_NODES:
            first.nodes[:0] = group.nodes
            first.inlined |= group.inlined
            for x, groups in readers.items():
                if x in self.graph.outputs or any(reader is not first for _, reader in groups):
                    first.extra_outputs.append(x)
            self.groups.update((id(inner), first) for inner in group.nodes)

    def _readers(self, name: str) -> list[tuple[int, _GroupBuilder | None]]:
        """Return the positions and the groups of a stored value's readers; None for a view or a memory step."""
        readers: list[tuple[int, _GroupBuilder | None]] = []
        for user in self.graph.users[name]:
            if self.properties(user).kind is NodeKind.VIEW or id(user) in self.memory_steps:
                readers.append((self.positions[id(user)], None))
            else:
                group = self.groups.get(id(user))
                inlining = [g for g in dict.fromkeys(self.groups.values()) if id(user) in g.inlined]
                readers += [(self.positions[id(g.last)], g) for g in ([group] if group is not None else inlining)]
        return readers

    def _continues(self, group: _GroupBuilder, node: Node) -> bool:
        """Whether a group reads a node's results and computes only elementwise nodes of their shape from them."""
        if group.kind is not NodeKind.ELEMENTWISE or self._is_alone(group.last):
            return False
        shape, inside = self.graph.values[node.outputs[0]].shape, {*group.inlined, *map(id, group.nodes)}
        waiting, is_read = [*node.outputs], False
        while waiting:
            name = waiting.pop()
            for user in self.graph.users[name]:
                if id(user) in inside:
                    if self.properties(user).kind is not NodeKind.ELEMENTWISE or self._shapes(user) != {shape}:
                        return False
                    waiting += user.outputs if user is not group.last else ()
                    is_read = True
                elif self.properties(user).kind is NodeKind.VIEW and name not in node.outputs:
                    return False
        return is_read

    def _shapes(self, node: Node) -> set[Shape]:
        return {self.graph.values[name].shape for name in node.outputs}

    # Finished

    def steps(self) -> Iterator[NetworkStep]:
        """Yield the groups in the order of their last nodes, and between them the aliases that are read."""
        groups = {id(group.last): self._finish(group) for group in {id(g): g for g in self.groups.values()}.values()}
        read = {name for group in groups.values() for name in group.inputs} | set(self.graph.outputs)
        read.update(x for step in self.memory_steps.values() if not isinstance(step, Join) for x in step.reads)
        for node in reversed(self.graph.nodes):
            if self.properties(node).kind is NodeKind.VIEW and node.outputs[0] in read:
                read.update(node.used)
        for node in self.graph.nodes:
            closed = groups.get(id(node))
            if closed is not None and closed.outputs:
                yield closed
            elif id(node) in self.memory_steps:
                yield self.memory_steps[id(node)]
            elif self.properties(node).kind is NodeKind.VIEW and node.outputs[0] in read:
                yield Alias(node.outputs[0], node.used[0], self.properties(node).offset)

    def _finish(self, group: _GroupBuilder) -> Group:
        """Return the group with the nodes that it inlines."""
        inside = self._in_order_of_use(group.last, {id(node) for node in group.nodes})
        computed = {name for node in inside for name in node.outputs}
        read = dict.fromkeys(name for node in inside for name in node.used if name not in computed)
        needed = (x for x in group.last.outputs if x in self.graph.outputs or self.graph.users[x])
        weights = weights_of(self.graph, inside, [*read])
        inputs = sorted(read, key=lambda name: (self.graph.is_constant(name), name in weights))
        return Group(tuple(inside), tuple(inputs), (*needed, *group.extra_outputs))

    def _in_order_of_use(self, last: Node, own: set[int]) -> list[Node]:
        """Return the nodes of a group in the order in which `last` needs them, which is the same for equal groups."""
        visited: dict[int, Node] = {}
        stack = [(last, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                visited.setdefault(id(node), node)
            elif id(node) not in visited:
                makers = (self.graph.producers.get(name) for name in reversed(node.used))
                inner = [m for m in makers if m is not None and (id(m) in own or self._is_inlined(m))]
                stack += [(node, True), *((maker, False) for maker in inner)]
        return list(visited.values())

    def _is_inlined(self, node: Node) -> bool:
        """Whether the results of a node are not stored."""
        if self.properties(node).kind is not NodeKind.VIEW:
            return id(node) not in self.groups and id(node) not in self.memory_steps
        producer = self.graph.producers.get(node.used[0])
        return producer is not None and self._is_inlined(producer)


def dag_of(graph: Graph, group: Group) -> ComputeDAG:
    """Return the group as one graph of stages with inputs `x0`, `x1`, ... in its order; constants are weights."""
    labels = {name: f"x{n}" for n, name in enumerate(group.inputs)}
    tensors = {n: placeholder(graph.values[n].shape, graph.values[n].dtype, labels[n]) for n in group.inputs}
    for node in group.nodes:
        results = build(node, [None if name is None else tensors[name] for name in node.inputs])
        tensors.update(zip(node.outputs, map(own_result, results), strict=True))
    outputs = [tensors[name] for name in group.outputs]
    weights = [labels[name] for name in weights_of(graph, group.nodes, group.inputs)]
    dag = ComputeDAG(outputs)
    if len(dag.inputs) != len(group.inputs):
        unread = sorted(set(labels.values()) - {t.name for t in dag.inputs})
        raise GraphError(f"{group}: nothing is computed from {', '.join(unread)}")
    return dag.with_weights(weights) if weights else dag

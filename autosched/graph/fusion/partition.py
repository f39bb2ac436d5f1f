"""A network as kernels: which nodes are computed together, and which are another view of the same memory.

    Group(nodes, inputs, outputs)      one kernel: the stages of its nodes as one graph of `te`
    Alias(output, base, offset)        a part of what is stored, in another shape: the same elements, at no cost
    Join(output, parts)                values that are stored behind each other, as one: they are written there
    Write(output, base, at, rows)      rows written into an input that nothing else reads: a cache of keys or values

A node is computed in one of four places.

    joined       to the group that makes an operand, where nobody else reads that: an elementwise node over the results
                 of a reduction, a transposition of them; not what only makes them wider and is cheap where it is read
    taken in     by each group that reads it, where that is cheaper than storing it (`fusion_cost`): movements where
                 their elements lie well for the reader, elementwise nodes where little is computed again
    given out    by the first group that reads it, which stores it beside its own result: where both are elementwise
                 and of one shape, as the states of a cell are
    on its own   else: it begins a group

A reshape of a value that is stored is an alias, and so is a slice whose elements lie behind each other; one of a value
that is taken in is an index in the reader. What others read of a group is its last node and what it gives out, and they
all come later, as do the groups that take a node in, so no group depends on itself. What kind a node is follows from
its expression (`node_facts`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from autosched.errors import GraphError
from autosched.graph.fusion.cost import FusionRates, NodeWork, pays_to_take_in
from autosched.graph.fusion.node_properties import (
    Kind,
    NodeFacts,
    averages_by_softmax,
    facts_of,
    operand_facts,
    weights_of,
)
from autosched.graph.graph import Graph, Node, Shape
from autosched.graph.operators import build, own_result
from autosched.graph.operators.index_maps import axis_of
from autosched.graph.steps import Alias, Group, Join, NetworkStep, Write
from autosched.ir.dtype import DTYPES
from autosched.te import ComputeDAG, placeholder

FEW_READS = 8  # of an element: what a reader that reads no more does not bring into another order for itself
MOST_NODES = 64  # of a group
GENERIC = FusionRates(24.0, 32.0, 300.0)  # of one core of no particular kind


def partition(
    graph: Graph, rates: FusionRates = GENERIC, alone: frozenset[str] = frozenset(), in_place: bool = False
) -> tuple[NetworkStep, ...]:
    """The steps of a network, in an order in which each value is made before it is read.

    Nodes that make a value of `alone` are on their own. `in_place`: whether rows may be written into inputs.
    """
    work = _Partition(graph, rates, alone, in_place)
    for node in graph.nodes:
        work.begin(node)
    for node in graph.nodes:
        work.part(node)
    for node in reversed(graph.nodes):
        work.take_in(node)
    for node in graph.nodes:
        work.join_movement(node)
    for node in graph.nodes:
        work.give_out(node)
    return tuple(work.steps())


@dataclass(eq=False)
class _Open:
    """A group in the making: the nodes that no other group computes, the last of which is read outside, as is what is
    `given_out`."""

    nodes: list[Node]
    kind: Kind
    taken_in: set[int] = field(default_factory=set)  # nodes, by identity
    given_out: list[str] = field(default_factory=list)

    @property
    def last(self) -> Node:
        return self.nodes[-1]


@dataclass(frozen=True)
class _End:
    """A group that would compute a value itself: which, and how often it reads each element. `is_often`: or what is
    computed of it; `is_divided`: in an order in which neighbours are apart."""

    group: _Open
    reader: Node
    reads: int
    is_often: bool
    is_plain: bool
    is_divided: bool


@dataclass
class _Partition:
    graph: Graph
    rates: FusionRates
    alone: frozenset[str]
    in_place: bool
    homes: dict[int, _Open] = field(default_factory=dict)  # by identity of nodes: attributes need no hash
    parted: dict[int, _Open] = field(default_factory=dict)  # what nodes join that no reader takes in
    ends: dict[str, tuple[_End, ...] | None] = field(default_factory=dict)  # who computes a value; None: it is stored
    joins: dict[int, Join | Write] = field(default_factory=dict)  # what no kernel computes, by identity of nodes

    @cached_property
    def places(self) -> Mapping[int, int]:
        """Of each node, by identity, its place in the graph."""
        return {id(node): n for n, node in enumerate(self.graph.nodes)}

    def facts(self, node: Node) -> NodeFacts:
        """What a part of an array is, is moved where kernels cannot have it as an array of its own."""
        found = facts_of(node, self.graph)
        if found.kind is Kind.VIEW and not self._is_aligned(found.offset, node.outputs[0]):
            return replace(found, kind=Kind.MOVEMENT, offset=0)
        return found

    def _is_aligned(self, element: int, name: str) -> bool:
        """Whether an array of a value's type may begin at that element of another."""
        return element * DTYPES[self.graph.values[name].dtype].nbytes % self.rates.part_alignment == 0

    # Joined

    def begin(self, node: Node) -> None:
        """A group for a node, or the group of an operand that it joins."""
        kind = self.facts(node).kind
        if kind is Kind.VIEW:
            return
        group = self._group_before(node) if kind is Kind.ELEMENTWISE else None
        if group is None:
            self.homes[id(node)] = _Open([node], kind)
        else:
            group.nodes.append(node)
            self.homes[id(node)] = group

    def _group_before(self, node: Node) -> _Open | None:
        """The group of a reduction that an elementwise node goes on with: of several the one made last."""
        shape = self.graph.values[node.outputs[0]].shape
        found = None
        for name in node.used:
            producer = self.graph.producers.get(name)
            if producer is None or self.graph.values[name].shape != shape or not self._is_last_of(name, producer):
                continue
            group = self.homes.get(id(producer))
            if group is not None and group.kind is Kind.GENERAL and not self._is_alone(node):
                found = group
        return found

    def part(self, node: Node) -> None:
        """Takes from the end of its group a node that only makes each element wider: its readers may want it."""
        group = self.homes.get(id(node))
        if group is None or group.kind is not Kind.GENERAL or group.last is not node or len(group.nodes) == 1:
            return
        made = node.outputs[0]
        shape = self.graph.values[made].shape
        whole = [x for x in node.used if not self.graph.is_constant(x) and self.graph.values[x].shape == shape]
        is_wider = [self._nbytes(x) < self._nbytes(made) for x in whole if x in group.nodes[-2].outputs] == [True]
        if len(whole) == len(node.outputs) == 1 and is_wider and made not in self.graph.outputs:
            group.nodes.pop()
            self.parted[id(node)] = group
            self.homes[id(node)] = _Open([node], Kind.ELEMENTWISE)

    def _join_again(self, node: Node) -> None:
        """To the group that makes what no reader makes wider for itself."""
        before, group = self.parted[id(node)], self.homes[id(node)]
        before.nodes.append(node)
        before.taken_in |= group.taken_in
        self.homes[id(node)] = before

    def _is_last_of(self, name: str, producer: Node) -> bool:
        """Whether a node's only result that is needed is `name`, which one node reads."""
        needed = [x for x in producer.outputs if x in self.graph.outputs or self.graph.users[x]]
        return needed == [name] and name not in self.graph.outputs and len(self.graph.users[name]) == 1

    def _is_alone(self, node: Node) -> bool:
        return not self.alone.isdisjoint((*node.outputs, *node.used))

    def join_movement(self, node: Node) -> None:
        """A transposition that no reader takes in joins the reduction whose results it brings into order."""
        facts, group = self.facts(node), self.homes.get(id(node))
        if group is None or not facts.is_permutation or group.nodes != [node] or self._is_alone(node):
            return
        (name,) = node.used
        producer = self.graph.producers.get(name)
        before = None if producer is None else self.homes.get(id(producer))
        if producer is None or before is None or before.kind is not Kind.GENERAL or before.last is not producer:
            return
        if not self.rates.turns_results and not averages_by_softmax(producer, self.graph):
            return
        if self._is_last_of(name, producer):
            before.nodes.append(node)
            self.homes[id(node)] = before

    # Taken in

    def take_in(self, node: Node) -> None:
        """Decides for a node whose readers are decided whether they compute it."""
        facts = self.facts(node)
        if (join := self._join_of(node) or self._write_of(node)) is not None:
            self.joins[id(node)] = join
            self.ends[join.output] = None
            del self.homes[id(node)]
            return
        ends = self._ends_of(node)
        if facts.kind is not Kind.VIEW:
            group = self.homes[id(node)]
            movable = facts.kind in (Kind.MOVEMENT, Kind.ELEMENTWISE) and group.nodes == [node]
            if not movable or ends is None or not self._may_take_in(node, facts, ends):
                ends = None
                if id(node) in self.parted:
                    self._join_again(node)
            else:
                del self.homes[id(node)]
                for end in ends:
                    end.group.taken_in.add(id(node))
        self.ends.update(dict.fromkeys(node.outputs, ends))

    def _ends_of(self, node: Node) -> tuple[_End, ...] | None:
        """The groups that read a node's results, by way of nodes that they compute; None if memory must have them."""
        found: list[_End] = []
        for name in node.outputs:
            if name in self.graph.outputs:
                return None
            for reader in self.graph.users[name]:
                through = self._ends_by(reader, name)
                if through is None:
                    return None
                found += through
        return tuple(found)

    def _ends_by(self, reader: Node, name: str) -> list[_End] | None:
        operand = operand_facts(reader, self.graph, name)
        group = self.homes.get(id(reader))
        if group is not None:
            return [_End(group, reader, operand.reads, operand.reads > FEW_READS, operand.is_plain, False)]
        later = self.ends[reader.outputs[0]]
        if later is None:
            return None
        facts = self.facts(reader)
        if facts.kind is Kind.ELEMENTWISE:  # a group that reads it often keeps what it computes
            few = [replace(e, reads=min(e.reads, FEW_READS), is_plain=False, is_divided=False) for e in later]
        else:
            few = [replace(e, is_divided=e.is_divided or facts.divides_last) for e in later]
        found = [replace(e, reads=e.reads * operand.reads) for e in few]
        return [replace(e, is_often=e.is_often or e.reads > FEW_READS) for e in found]

    def _has_functions(self, node: Node) -> bool:
        """Whether functions are called for a node's results: by it, or by what it alone is computed from."""
        waiting = [node]
        while waiting:
            inner = waiting.pop()
            facts = self.facts(inner)
            if facts.kind is Kind.ELEMENTWISE and facts.has_functions:
                return True
            makers = [(name, self.graph.producers.get(name)) for name in inner.used]
            waiting += [
                maker
                for name, maker in makers
                if maker is not None
                and self._is_last_of(name, maker)
                and self.facts(maker).kind is Kind.ELEMENTWISE
                and self.homes[id(maker)].kind is Kind.ELEMENTWISE
            ]
        return False

    def _may_take_in(self, node: Node, facts: NodeFacts, ends: tuple[_End, ...]) -> bool:
        groups = {id(e.group): e.group for e in ends}
        if not all(len(g.nodes) + len(g.taken_in) < MOST_NODES for g in groups.values()):
            return False
        if not self.alone.isdisjoint((*node.outputs, *node.used)) or any(self._is_alone(e.reader) for e in ends):
            return False
        if facts.kind is Kind.MOVEMENT and not all(self._lies_well(facts, e) for e in ends):
            return False
        if (len(groups) > 1 or any(e.is_often for e in ends)) and self._has_functions(node):
            return False
        reads = [max(1, sum(e.reads for e in ends if e.group is g)) for g in groups.values()]
        return pays_to_take_in(self._work(node, facts), reads, self.rates, is_joined=id(node) in self.parted)

    def _join_of(self, node: Node) -> Join | None:
        """Return the Join that stores the operands of a concatenation in place, or None if it must be copied.

        Operands are contiguous in the result, most of them have memory anyway, and none is an output or within another
        Join.
        """
        output = node.outputs[0]
        shape = self.graph.values[output].shape
        if node.operator != "concat" or self.homes[id(node)].nodes != [node] or self._is_alone(node):
            return None
        axis = axis_of(cast("int", node.attributes["axis"]), len(shape))
        parts = [self._stored_as(name) for name in node.inputs if name is not None]
        makers = [self.graph.producers.get(part) for part in parts]
        joins = [join for join in self.joins.values() if isinstance(join, Join)]
        taken = {part for join in joins for part in join.parts} | {self._stored_as(name) for name in self.graph.outputs}
        if math.prod(shape[:axis]) > 1 or len(set(parts)) < len(parts) or not taken.isdisjoint(parts):
            return None
        if any(maker is None or id(maker) not in self.homes for maker in makers):
            return None
        if not all(self._is_aligned(self.graph_size(part), output) for part in parts[:-1]):
            return None
        stored = [maker is not None and self._is_stored(maker) for maker in makers]
        copied = self.rates.begin_cycles + 2 * self._nbytes(output) / self.rates.bytes_per_cycle
        return Join(output, tuple(parts)) if stored.count(False) * self.rates.begin_cycles <= copied else None

    def _write_of(self, node: Node) -> Write | None:
        """What the writing of rows becomes that makes an output of an input that nothing else reads: whenever it is
        done, no reader of what was there before comes later."""
        if node.operator != "write_rows" or not self.in_place or self._is_alone(node):
            return None
        if self.homes[id(node)].nodes != [node]:
            return None
        base, at, rows = (name or "" for name in node.inputs)
        alone = self.graph.users[base] == (node,) and base not in (*self.graph.outputs, at, rows)
        if base not in self.graph.inputs or node.outputs[0] not in self.graph.outputs or not alone:
            return None
        shape = self.graph.values[base].shape
        return Write(node.outputs[0], base, at, rows, axis_of(cast("int", node.attributes["axis"]), len(shape)))

    def _stored_as(self, name: str) -> str:
        """The value that `name` is all of, in another shape perhaps."""
        maker = self.graph.producers.get(name)
        while maker is not None and self.facts(maker).kind is Kind.VIEW:
            (source,) = maker.used
            if self.graph_size(source) != self.graph_size(name):
                break
            name, maker = source, self.graph.producers.get(source)
        return name

    def _is_stored(self, maker: Node) -> bool:
        """Whether a node's result has memory whatever one of its readers does."""
        home = self.homes.get(id(maker))
        if home is None or home.kind is Kind.GENERAL:
            return home is not None
        return len(self.graph.users[maker.outputs[0]]) > 1 and self._has_functions(maker)

    def _lies_well(self, facts: NodeFacts, end: _End) -> bool:
        """Whether a reader that reads each element often finds the elements of a movement in a good order."""
        if end.reads <= FEW_READS or self.facts(end.reader).kind is not Kind.GENERAL:
            return True
        if facts.is_indirect or facts.has_cases or facts.divides_last or end.is_divided:
            return False
        return end.is_plain or (facts.keeps_runs and not facts.divides)

    def _work(self, node: Node, facts: NodeFacts) -> NodeWork:
        written = [self._nbytes(name) for name in node.outputs if self.graph.users[name]]
        read = [self._nbytes(name) for name in node.used]
        results = sum(self.graph_size(name) for name in node.outputs)
        if facts.kind is Kind.MOVEMENT:
            return NodeWork(min(sum(read), sum(written)), sum(written), 0.0, False)
        return NodeWork(sum(read), sum(written), float(results * facts.operations), True)

    def graph_size(self, name: str) -> int:
        return math.prod(self.graph.values[name].shape)

    def _nbytes(self, name: str) -> int:
        return self.graph_size(name) * DTYPES[self.graph.values[name].dtype].nbytes

    # Given out

    def give_out(self, node: Node) -> None:
        """An elementwise group becomes part of the first that reads it, if that goes on with it at the same place."""
        group = self.homes.get(id(node))
        if group is None or group.kind is not Kind.ELEMENTWISE or group.last is not node or self._is_alone(node):
            return
        readers = {x: self._readers(x) for x in (*group.given_out, *node.outputs)}
        each = [reader for found in readers.values() for reader in found]
        first = min(each, key=lambda reader: reader[0])[1] if each else None
        if first is None or not self._goes_on_with(first, node):
            return
        if len(group.nodes) + len(group.taken_in) + len(first.nodes) + len(first.taken_in) <= MOST_NODES:
            first.nodes[:0] = group.nodes
            first.taken_in |= group.taken_in
            for x, found in readers.items():
                if x in self.graph.outputs or any(reader is not first for _, reader in found):
                    first.given_out.append(x)
            self.homes.update((id(inner), first) for inner in group.nodes)

    def _readers(self, name: str) -> list[tuple[int, _Open | None]]:
        """Who reads a value that is stored, with its place among the nodes; a view of it is None."""
        found: list[tuple[int, _Open | None]] = []
        for user in self.graph.users[name]:
            if self.facts(user).kind is Kind.VIEW or id(user) in self.joins:
                found.append((self.places[id(user)], None))
            else:
                home = self.homes.get(id(user))
                takers = [g for g in dict.fromkeys(self.homes.values()) if id(user) in g.taken_in]
                found += [(self.places[id(g.last)], g) for g in ([home] if home is not None else takers)]
        return found

    def _goes_on_with(self, group: _Open, node: Node) -> bool:
        """Whether a group reads a node's results, and all that it makes of them is elementwise and of their shape."""
        if group.kind is not Kind.ELEMENTWISE or self._is_alone(group.last):
            return False
        shape, inside = self.graph.values[node.outputs[0]].shape, {*group.taken_in, *map(id, group.nodes)}
        waiting, is_read = [*node.outputs], False
        while waiting:
            name = waiting.pop()
            for user in self.graph.users[name]:
                if id(user) in inside:
                    if self.facts(user).kind is not Kind.ELEMENTWISE or self._shapes(user) != {shape}:
                        return False
                    waiting += user.outputs if user is not group.last else ()
                    is_read = True
                elif self.facts(user).kind is Kind.VIEW and name not in node.outputs:
                    return False
        return is_read

    def _shapes(self, node: Node) -> set[Shape]:
        return {self.graph.values[name].shape for name in node.outputs}

    # Closed

    def steps(self) -> Iterator[NetworkStep]:
        """Groups where their last node stands; aliases, of those views that are read as such, where they do."""
        groups = {id(group.last): self._closed(group) for group in {id(g): g for g in self.homes.values()}.values()}
        read = {name for group in groups.values() for name in group.inputs} | set(self.graph.outputs)
        read.update(name for write in self.joins.values() if isinstance(write, Write) for name in write.reads)
        for node in reversed(self.graph.nodes):
            if self.facts(node).kind is Kind.VIEW and node.outputs[0] in read:
                read.update(node.used)
        for node in self.graph.nodes:
            closed = groups.get(id(node))
            if closed is not None and closed.outputs:
                yield closed
            elif id(node) in self.joins:
                yield self.joins[id(node)]
            elif self.facts(node).kind is Kind.VIEW and node.outputs[0] in read:
                yield Alias(node.outputs[0], node.used[0], self.facts(node).offset)

    def _closed(self, group: _Open) -> Group:
        """The group with what it takes in."""
        inside = self._in_order_of_use(group.last, {id(node) for node in group.nodes})
        made = {name for node in inside for name in node.outputs}
        read = dict.fromkeys(name for node in inside for name in node.used if name not in made)
        needed = (x for x in group.last.outputs if x in self.graph.outputs or self.graph.users[x])
        weights = weights_of(self.graph, inside, [*read])
        inputs = sorted(read, key=lambda name: (self.graph.is_constant(name), name in weights))
        return Group(tuple(inside), tuple(inputs), (*needed, *group.given_out))

    def _in_order_of_use(self, last: Node, own: set[int]) -> list[Node]:
        """The nodes that `last` is computed from within a group, each before its readers: the same for equal groups."""
        found: dict[int, Node] = {}
        stack = [(last, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                found.setdefault(id(node), node)
            elif id(node) not in found:
                makers = (self.graph.producers.get(name) for name in reversed(node.used))
                inner = [m for m in makers if m is not None and (id(m) in own or self._is_taken_in(m))]
                stack += [(node, True), *((maker, False) for maker in inner)]
        return list(found.values())

    def _is_taken_in(self, node: Node) -> bool:
        """Whether no memory has the results of a node."""
        if self.facts(node).kind is not Kind.VIEW:
            return id(node) not in self.homes and id(node) not in self.joins
        producer = self.graph.producers.get(node.used[0])
        return producer is not None and self._is_taken_in(producer)


def dag_of(graph: Graph, group: Group) -> ComputeDAG:
    """The group as one graph of stages. Its inputs are `x0`, `x1`, ... in the group's order; constants are weights."""
    labels = {name: f"x{n}" for n, name in enumerate(group.inputs)}
    tensors = {n: placeholder(graph.values[n].shape, graph.values[n].dtype, labels[n]) for n in group.inputs}
    for node in group.nodes:
        made = build(node, [None if name is None else tensors[name] for name in node.inputs])
        tensors.update(zip(node.outputs, map(own_result, made), strict=True))
    outputs = [tensors[name] for name in group.outputs]
    weights = [labels[name] for name in weights_of(graph, group.nodes, group.inputs)]
    dag = ComputeDAG(outputs)
    if len(dag.inputs) != len(group.inputs):
        unread = sorted(set(labels.values()) - {t.name for t in dag.inputs})
        raise GraphError(f"{group}: nothing is computed from {', '.join(unread)}")
    return dag.with_weights(weights) if weights else dag

"""Rewriting of graphs by rules: a rule looks at one node and returns its replacement.

A rule sees the graph as it was at the beginning of a sweep. A replacement computes the same values from values that
existed before the node, so that the changes of one sweep are independent of each other. Dead nodes are removed at the
end of a sweep. Names of inputs and outputs stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from autosched.graph.graph import Array, Graph, Node, Value, fresh_name
from autosched.graph.operators import results_of


@dataclass(frozen=True)
class Change:
    """The replacement of a node: `nodes`, whose results have the names of its results, and new `constants`.

    Names of new values come from `new_name`. Without nodes the results are among the constants, or computed by the
    replacement of another node. `aliases` maps results of the node to equal values that replace them.
    """

    nodes: tuple[Node, ...] = ()
    constants: Mapping[str, Array] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)


Rule = Callable[[Graph, Node], "Change | None"]


def rewrite(graph: Graph, *rules: Rule) -> Graph:
    """Apply to each node the first rule that changes it, until none does.

    Every rule must make progress: fewer nodes, or nodes that the rule does not change again.
    """
    while True:
        changes: dict[int, Change] = {}
        for n, node in enumerate(graph.nodes):
            change = next((c for rule in rules if (c := rule(graph, node)) is not None), None)
            if change is not None:
                changes[n] = change
        changed = apply(graph, changes)
        if changed is graph:
            return graph
        graph = changed


def apply(graph: Graph, changes: Mapping[int, Change]) -> Graph:
    """Return the graph with changes, by the positions of nodes; the same object if no change is possible."""
    builder = _GraphBuilder(graph)
    for n, node in enumerate(graph.nodes):
        builder.add(node, changes.get(n))
    return without_dead(builder.finish()) if builder.changed else graph


def without_dead(graph: Graph) -> Graph:
    """Return the graph without nodes that no output depends on."""
    live = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not live.isdisjoint(node.outputs):
            kept.append(node)
            live.update(node.used)
    pruned = graph.with_nodes(reversed(kept))
    is_same = len(pruned.values) == len(graph.values) and len(kept) == len(graph.nodes)
    return graph if is_same else pruned


class _GraphBuilder:
    """A graph under construction: the nodes so far, and the aliases of values."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}
        self.aliases: dict[str, str] = {}
        self.renamed: dict[str, str] = {}  # by a value that is equal to an output and takes its name
        self.changed = False

    def add(self, node: Node, change: Change | None) -> None:
        if change is None or not self._can(change):
            self.nodes.append(node)
            return
        self.changed = True
        for old, new in change.aliases.items():
            self.aliases[old] = new
            if old in self.graph.outputs:
                self.renamed[self._resolved(new)] = old
        for name, array in change.constants.items():
            self.constants[name] = array
            self.values[name] = Value(name, array.shape, array.dtype.name)
        for made in change.nodes:
            self.nodes.append(made)
            read = {name: self.values.get(name) or self.graph.values[name] for name in made.used}
            for value in results_of(made, read):
                assert self.graph.values.get(value.name, value) == value, f"{made} makes {value}, which was another"
                self.values[value.name] = value

    def finish(self) -> Graph:
        nodes = [
            replace(
                node,
                inputs=tuple(None if name is None else self._name(name) for name in node.inputs),
                outputs=tuple(self.renamed.get(name, name) for name in node.outputs),
            )
            for node in self.nodes
        ]
        return self.graph.with_nodes(nodes, self.values.values(), self.constants)

    def _can(self, change: Change) -> bool:
        """Whether each output of the graph remains a value of its own."""
        ends = [self._resolved(new) for old, new in change.aliases.items() if old in self.graph.outputs]
        fixed = {*self.graph.inputs, *self.graph.outputs, *self.graph.constants, *self.constants, *self.renamed}
        return len(set(ends)) == len(ends) and fixed.isdisjoint(ends)

    def _resolved(self, name: str) -> str:
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def _name(self, name: str) -> str:
        resolved = self._resolved(name)
        return self.renamed.get(resolved, resolved)


# Queries for rules.


def made_by(graph: Graph, name: str | None, *operators: str) -> Node | None:
    """Return the producer of a value if it is one of these operators, else None."""
    node = None if name is None else graph.producers.get(name)
    return node if node is not None and node.operator in operators else None


def read_once(graph: Graph, name: str) -> bool:
    """Whether one node reads a value, as one operand, and the value is no output."""
    users = graph.users[name]
    return len(users) == 1 and users[0].inputs.count(name) == 1 and name not in graph.outputs


def number(graph: Graph, name: str | None) -> float | None:
    """Return the number in a constant of one float, else None."""
    array = None if name is None else graph.constants.get(name)
    if name is None or array is None or array.size != 1 or "float" not in graph.values[name].dtype:
        return None
    return float(array.reshape(()).astype("float64"))


def new_name(graph: Graph, node: Node, word: str) -> str:
    """Return an unused name for an intermediate value of the replacement of `node`."""
    return fresh_name(graph.values, f"{node.outputs[0]}.{word}")

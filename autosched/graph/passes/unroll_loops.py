"""Loop unrolling: the nodes of all iterations take the place of a loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autosched.graph.graph import Array, Attribute, Graph, Node, Value
from autosched.graph.loops import LAST, ROWS, WHOLE, loop_of
from autosched.graph.operators import results_of


def unroll_loops(graph: Graph, should_unroll: Callable[[Graph, Node], bool]) -> Graph:
    """Replace the loops for which `should_unroll` holds, also those within them, by the nodes of all iterations."""
    while any(node.body is not None and should_unroll(graph, node) for node in graph.nodes):
        unrolled = _Unrolled(graph)
        for node in graph.nodes:
            if node.body is not None and should_unroll(graph, node):
                unrolled.add_loop(node)
            else:
                unrolled.nodes.append(node)
        graph = graph.with_nodes(unrolled.nodes, unrolled.values.values(), unrolled.constants)
    return graph


class _Unrolled:
    """A graph under construction: nodes, and new values and constants."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}
        self._rows: dict[tuple[str, int], str] = {}  # of operands that were read, by operand and row

    def add_loop(self, node: Node) -> None:
        loop, made = loop_of(node), list[list[str]]()
        body, first = loop.body, node.outputs[0]
        for step in range(loop.steps):
            names = dict[str, str]()
            for name, own, read in zip(node.inputs, body.inputs, loop.operands, strict=True):
                operand = name or ""
                if isinstance(read, int):
                    names[own] = made[-1][read] if made else operand
                else:
                    names[own] = operand if read == WHOLE else self._row(node, operand, loop.row(read, step))
            inner = {name: self._fresh(f"{first}/{step}/{name}") for part in body.nodes for name in part.outputs}
            if step == loop.steps - 1:
                ends = zip(body.outputs, node.outputs, loop.results, strict=True)
                inner |= {own: result for own, result, kind in ends if kind == LAST}
            names |= inner
            for part in body.nodes:
                inputs = tuple(None if name is None else names[name] for name in part.inputs)
                self._add(replace(part, inputs=inputs, outputs=tuple(names[name] for name in part.outputs)))
            made.append([names[name] for name in body.outputs])
        for n, (result, kind) in enumerate(zip(node.outputs, loop.results, strict=True)):
            if kind != LAST:
                column = [outputs[n] for outputs in made]
                self._stack(node, result, column if kind == ROWS else column[::-1])

    def _row(self, node: Node, operand: str, row: int) -> str:
        """Add the row of an operand along its first axis, unless it is there, and return its name."""
        if (operand, row) in self._rows:
            return self._rows[operand, row]
        name = self._rows[operand, row] = self._fresh(f"{node.outputs[0]}/{operand}[{row}]")
        if operand in self.graph.constants:
            array = np.asarray(self.graph.constants[operand][row])
            self.constants[name], self.values[name] = array, Value(name, array.shape, array.dtype.name)
            return name
        part = self._fresh(f"{name}/part")
        window: dict[str, Attribute] = {"starts": (row,), "stops": (row + 1,), "axes": (0,), "steps": (1,)}
        self._add(Node("slice", (operand,), (part,), window, node.origin))
        self._add(Node("reshape", (part,), (name,), {"shape": self.graph.values[operand].shape[1:]}, node.origin))
        return name

    def _stack(self, node: Node, result: str, rows: list[str]) -> None:
        """Add `result`, whose rows are these values."""
        shape: Attribute = (1, *self.graph.values[result].shape[1:])
        names = [self._fresh(f"{result}/rows/{n}") for n in range(len(rows))]
        for row, name in zip(rows, names, strict=True):
            self._add(Node("reshape", (row,), (name,), {"shape": shape}, node.origin))
        self._add(Node("concat", tuple(names), (result,), {"axis": 0}, node.origin))

    def _add(self, node: Node) -> None:
        known = {name: self.values.get(name) or self.graph.values[name] for name in node.used}
        self.values.update((value.name, value) for value in results_of(node, known))
        self.nodes.append(node)

    def _fresh(self, name: str) -> str:
        """Return a name that no value of the graph has, but another one with the same stem in the same iteration."""
        while name in self.graph.values or name in self.values:
            name = f"{name}'"
        return name

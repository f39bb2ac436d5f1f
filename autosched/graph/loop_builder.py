"""Loops added to a graph under construction: the nodes that an importer adds for one iteration become the body."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autosched.graph.graph import Attribute, Graph, Node, Shape, Value
from autosched.graph.loops import BACKWARDS, LAST, ROWS, WHOLE, Read, loop_node, results_of_loop


class GraphUnderConstruction(Protocol):
    """What loops need of the builder of an importer."""

    values: dict[str, Value]
    nodes: list[Node]

    def new_name(self, stem: str) -> str:
        """Return a name that no value has."""

    def add_value(self, value: Value) -> None: ...

    def add_node(
        self, operator: str, inputs: Sequence[str | None], attributes: Mapping[str, Attribute], n: int, origin: str
    ) -> tuple[str, ...]:
        """Add a node with `n` results, and return their names."""


@dataclass(frozen=True)
class Row:
    """A value whose rows along the first axis are read or written by the iterations of a loop, the last row first if
    `is_backwards`; in the body of the loop, one row."""

    name: str
    is_backwards: bool = False

    @property
    def kind(self) -> str:
        return BACKWARDS if self.is_backwards else ROWS


# Adds the nodes of an iteration, given the states and rows; returns the new states, and rows that it gives.
Body = Callable[[tuple[str, ...], tuple[str, ...]], tuple[Sequence[str], Sequence[Row]]]


def repeat(
    b: GraphUnderConstruction, steps: int, states: Sequence[str], rows: Sequence[Row], make: Body, origin: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Add a loop of at least one iteration, and return the last states, and what its iterations give, stacked.

    `make` adds the nodes of an iteration. Raises GraphError if a state changes its shape or type.
    """
    start = len(b.nodes)
    inner_states = tuple(_inner(b, name, b.values[name].shape, origin) for name in states)
    inner_rows = tuple(_inner(b, row.name, b.values[row.name].shape[1:], origin) for row in rows)
    after, given = make(inner_states, inner_rows)
    outputs: dict[str, str] = {}  # of the body, with what becomes of them
    for row in given:
        outputs[_own_output(b, row.name, outputs, start, origin)] = row.kind
    after = [x if x in outputs else _own_output(b, x, outputs, start, origin) for x in after]
    outputs |= {name: LAST for name in after if name not in outputs}
    numbers, nodes = list(outputs), tuple(b.nodes[start:])
    del b.nodes[start:]
    made = {*inner_states, *inner_rows, *(name for node in nodes for name in node.outputs)}
    read = dict.fromkeys(name for node in nodes for name in node.used)
    states_after = (numbers.index(x) for x in after)
    inputs: list[tuple[str, str, Read]] = [*zip(inner_states, states, states_after, strict=True)]
    inputs += [(own, row.name, row.kind) for own, row in zip(inner_rows, rows, strict=True) if own in read]
    inputs += [(name, name, WHOLE) for name in read if name not in made]
    values = {name: b.values[name] for name in (*(own for own, _, _ in inputs), *made)}
    b.values = {name: value for name, value in b.values.items() if name not in made}
    body = Graph(tuple(own for own, _, _ in inputs), tuple(numbers), nodes, values, name=origin)
    results = [(b.new_name(f"{origin}.{kind}"), kind) for kind in outputs.values()]
    node = loop_node(body, steps, [(name, kind) for _, name, kind in inputs], results, origin)
    for value in results_of_loop(node, b.values):
        b.add_value(value)
    b.nodes.append(node)
    ends = [_last_row(b, node.outputs[numbers.index(x)], outputs[x], steps, origin) for x in after]
    return tuple(ends), node.outputs[: len(given)]


def _inner(b: GraphUnderConstruction, name: str, shape: Shape, origin: str) -> str:
    """Add an input of the body of a loop, and return its name."""
    inner = b.new_name(f"{origin}.inner")
    b.add_value(Value(inner, shape, b.values[name].dtype))
    return inner


def _own_output(b: GraphUnderConstruction, name: str, taken: Container[str], start: int, origin: str) -> str:
    """Return a value that is computed by the nodes from `start` on and not `taken`: this one, or a copy."""
    is_made = any(name in node.outputs for node in b.nodes[start:])
    return name if is_made and name not in taken else b.add_node("identity", (name,), {}, 1, origin)[0]


def _last_row(b: GraphUnderConstruction, name: str, kind: str, steps: int, origin: str) -> str:
    """Return the output of the last iteration."""
    if kind == LAST:
        return name
    at = 0 if kind == BACKWARDS else steps - 1
    window: dict[str, Attribute] = {"starts": (at,), "stops": (at + 1,), "axes": (0,), "steps": (1,)}
    (row,) = b.add_node("slice", (name,), window, 1, origin)
    return b.add_node("reshape", (row,), {"shape": b.values[name].shape[1:]}, 1, origin)[0]

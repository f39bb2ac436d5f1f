"""The graph of a network as data: values with shape and type, nodes that compute them, constants.

    Value(name, shape, dtype)      Node(operator, inputs, outputs, attributes)      Graph(inputs, outputs, nodes, ...)

Everything is immutable; passes make new graphs. A node names an operator of `graph.operators` and its operands; its
computation, and the shape and type of its results, follow from the operator's function alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy.typing as npt

from autosched.ir.dtype import DTYPES
from autosched.ir.size import has_size

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
# An attribute is JSON data with tuples for lists.
Attribute = bool | int | float | str | None | tuple["Attribute", ...]


@dataclass(frozen=True)
class Value:
    """A tensor. Sizes are at least 0; `shape` () is a scalar."""

    name: str
    shape: Shape
    dtype: str

    @property
    def is_empty(self) -> bool:
        """Whether it has no elements."""
        return 0 in self.shape

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Node:
    """`outputs` = `operator` of `inputs` and `attributes`; an optional input that is left out is None.

    `origin`: the node's name in the imported model, for messages. `body`: what a loop repeats (`graph.loops`), None for
    other nodes.
    """

    operator: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    origin: str = ""
    body: Graph | None = None

    @property
    def used(self) -> tuple[str, ...]:
        """The values that are read, each once."""
        return tuple(dict.fromkeys(name for name in self.inputs if name is not None))

    def __str__(self) -> str:
        words = [name or "-" for name in self.inputs]
        words += [f"{key}={json.dumps(value, default=str)}" for key, value in self.attributes.items()]
        return f"{', '.join(self.outputs)} = {self.operator}({', '.join(words)})"


@dataclass(frozen=True)
class Graph:
    """A network; `nodes` are in topological order.

    `inputs` and `outputs` are names of values. `constants` are arrays by name, of the shape and type of their values;
    they may be mapped from a file. An output may be an input or a constant. `winograd`: whether the larger error of
    Winograd's convolutions is accepted.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, Array] = field(default_factory=dict)
    name: str = "network"
    winograd: bool = False

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that computes each value; inputs and constants have none."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def users(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each value, in order. Being an output of the graph does not count as a read."""
        users: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in node.used:
                users[name].append(node)
        return {name: tuple(nodes) for name, nodes in users.items()}

    @cached_property
    def rounds_to_bytes(self) -> bool:
        """Whether the graph quantises floats that depend on inputs to integers of 8 bits."""
        varying = set(self.inputs)
        for node in self.nodes:
            if node.body is not None and node.body.rounds_to_bytes:
                return True
            read = [DTYPES[self.values[name].dtype] for name in node.used if name in varying]
            made = [DTYPES[self.values[name].dtype] for name in node.outputs]
            if read:
                varying.update(node.outputs)
            if any(x.is_float for x in read) and any(x.is_integer and x.nbytes == 1 for x in made):
                return True
        return False

    @cached_property
    def is_traced(self) -> bool:
        """Whether sizes of its values are symbols (`graph.traces`)."""
        return any(has_size(value.shape) for value in self.values.values())

    def is_constant(self, name: str | None) -> bool:
        return name in self.constants

    def with_nodes(
        self,
        nodes: Iterable[Node],
        values: Iterable[Value] = (),
        constants: Mapping[str, Array] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> Graph:
        """Return the graph with these nodes, and with new `values` and `constants` added to its own.

        Values and constants that are no longer read are dropped.
        """
        kept = tuple(nodes)
        ends = self.outputs if outputs is None else tuple(outputs)
        arrays = {**self.constants, **(constants or {})}
        fresh = [Value(name, array.shape, array.dtype.name) for name, array in (constants or {}).items()]
        table = {**self.values, **{v.name: v for v in (*fresh, *values)}}
        computed = {name for node in kept for name in node.outputs}
        read = {*self.inputs, *ends, *(name for node in kept for name in node.used)}
        return replace(
            self,
            outputs=ends,
            nodes=kept,
            values={name: value for name, value in table.items() if name in computed or name in read},
            constants={name: array for name, array in arrays.items() if name in read and name not in computed},
        )

    def __str__(self) -> str:
        head = ", ".join(str(self.values[name]) for name in self.inputs)
        lines = [f"{self.name}({head}):"]
        lines += [f"  {self.values[name]} = constant" for name in self.constants]
        for node in self.nodes:
            shapes = ", ".join(str(self.values[name]).partition(": ")[2] for name in node.outputs)
            lines.append(f"  {node}  # {shapes}")
            lines += [f"    {line}" for line in str(node.body or "").splitlines()]
        return "\n".join([*lines, f"  return {', '.join(self.outputs)}"])


def fresh_name(taken: Iterable[str], stem: str) -> str:
    """Return `stem`, or the first of `stem.1`, `stem.2`, ... that is not among `taken`."""
    names = set(taken)
    if stem not in names:
        return stem
    number = next(n for n in range(1, len(names) + 2) if f"{stem}.{n}" not in names)
    return f"{stem}.{number}"

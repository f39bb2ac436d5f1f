"""Graph under construction: values, constants, nodes, and fresh names for them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from autosched.errors import GraphError
from autosched.graph.graph import Array, Attribute, Node, Value
from autosched.graph.loop_builder import Body, Row, repeat
from autosched.graph.onnx.held_types import HELD_IN, held
from autosched.graph.operators import results_of
from autosched.ir.dtype import DTYPES
from autosched.ir.size import has_size


def check_value(value: Value) -> None:
    """Raise GraphError for a value of a type that graphs do not support."""
    if value.dtype not in DTYPES:
        raise GraphError(f"the value {value} is of a type that is not supported; {', '.join(DTYPES)} are")


class GraphBuilder:
    """Adds values and nodes. Constants of types that graphs do not support are refused when nodes read them."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}
        self.held_types: dict[str, str] = {}  # the types of values that one of ours holds (`held_types.HELD_IN`)
        self.nodes: list[Node] = []
        self.sequences: dict[str, tuple[str, ...]] = {}  # names of their tensors, by names that no value has
        self.sizes: dict[str, Array] = {}  # arrays of sizes, which nodes compute where something else reads them
        self.pinning: dict[str, Callable[[], Array]] = {}  # the numbers of values that follow from sizes
        self._computed_sizes: set[str] = set()
        self._numbers: Counter[str] = Counter()  # of names derived from each stem
        self._draws: Counter[tuple[float, str]] = Counter()  # of random numbers, by seed and node
        self._reserved: set[str] = set()

    def reserve(self, names: Iterable[str]) -> None:
        """Keep ONNX's names for the values that they denote: no other value gets them."""
        self._reserved.update(names)

    def add_value(self, value: Value) -> None:
        if value.name in self.values:
            raise GraphError(f"the model has two values {value.name}")
        self.values[value.name] = value

    def add_constant(self, array: Array, stem: str) -> str:
        """Add a constant under a fresh name derived from `stem`."""
        name = self.new_name(stem)
        self.name_constant(name, array)
        return name

    def name_constant(self, name: str, array: Array) -> None:
        if array.dtype.name in HELD_IN:
            self.held_types[name], array = array.dtype.name, held(array)
        self.add_value(Value(name, array.shape, array.dtype.name))
        self.constants[name] = array

    def name_sizes(self, name: str, array: Array, dtype: str) -> None:
        """Add an array of sizes, or of objects that are numbers."""
        if not has_size(tuple(array.reshape(-1).tolist())):
            return self.name_constant(name, array.astype(dtype))
        self.add_value(Value(name, array.shape, dtype))
        self.sizes[name] = array

    def known(self, name: str) -> Array | None:
        """Return the array of a value that is known while importing, of objects for sizes. None for others."""
        array = self.constants.get(name)
        if array is None:
            array = self.sizes.get(name)
        return self.pinning[name]() if array is None and name in self.pinning else array

    def _compute_sizes(self, name: str) -> None:
        """Add the nodes that compute an array of sizes as data."""
        self._computed_sizes.add(name)
        value, array = self.values[name], self.sizes[name]
        parts = list[str]()
        for size in array.reshape(-1).tolist():
            (scalar,) = self.add_node("number", (), {"value": size, "dtype": value.dtype}, 1, name)
            parts += self.add_node("reshape", (scalar,), {"shape": (1,)}, 1, name)
        (whole,) = self.add_node("concat", parts, {"axis": 0}, 1, name) if len(parts) > 1 else parts
        self.nodes.append(Node("reshape", (whole,), (name,), {"shape": value.shape}, name))

    @property
    def n_draws(self) -> int:
        """How many times random numbers were drawn."""
        return self._draws.total()

    def restore_point(self) -> Callable[[], None]:
        """Return a function that brings the graph under construction back to its present state."""
        kept = {name: copy(part) for name, part in vars(self).items()}
        return lambda: vars(self).update(kept)

    def next_draw(self, seed: float | None, origin: str) -> tuple[float, int]:
        """Return seed and number of the next draw of random numbers of a node.

        Nodes of one seed draw the same numbers, and others again in the next step of a loop. Without a seed no two
        draws are the same; their seed is NaN, which no node has.
        """
        key = (0.0, "") if seed is None else (float(seed), origin)
        self._draws[key] += 1
        return (math.nan if seed is None else key[0]), self._draws[key] - 1

    def add_sequence(self, parts: Sequence[str], stem: str) -> str:
        """Add a sequence of values under a fresh name derived from `stem`."""
        name = self.new_name(f"{stem}.sequence")
        self.sequences[name] = tuple(parts)
        return name

    def add_node(
        self, operator: str, inputs: Sequence[str | None], attributes: Mapping[str, Attribute], n: int, origin: str
    ) -> tuple[str, ...]:
        for name in inputs:
            if name is not None:
                check_value(self.values[name])
                if name in self.sizes and name not in self._computed_sizes:
                    self._compute_sizes(name)
        outputs = tuple(self.new_name(f"{origin}.{operator}") for _ in range(n))
        node = Node(operator, tuple(inputs), outputs, attributes, origin)
        for value in results_of(node, self.values):
            check_value(value)
            self.add_value(value)
        self.nodes.append(node)
        return outputs

    def repeat(
        self, steps: int, states: Sequence[str], rows: Sequence[Row], make: Body, origin: str
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Add a loop as `loop_builder.repeat` does. Raises GraphError also for a body that reads what only importers
        know of sizes."""
        computed = len(self._computed_sizes)
        results = repeat(self, steps, states, rows, make, origin)
        if len(self._computed_sizes) > computed:
            raise GraphError("the body of a loop reads sizes that vary")
        return results

    def rename(self, new: Mapping[str, str], start: int) -> None:
        """Rename results of the nodes from `start` on."""
        for old, name in new.items():
            self.add_value(replace(self.values.pop(old), name=name))
            if old in self.pinning:
                self.pinning[name] = self.pinning.pop(old)
            if old in self.held_types:
                self.held_types[name] = self.held_types.pop(old)
        for n in range(start, len(self.nodes)):
            node = self.nodes[n]
            inputs = tuple(None if i is None else new.get(i, i) for i in node.inputs)
            self.nodes[n] = replace(node, inputs=inputs, outputs=tuple(new.get(o, o) for o in node.outputs))

    def output(self, name: str, value: str) -> None:
        """Add `value` as an output of the network, called `name`."""
        if value in self.sequences:
            raise GraphError(f"the output {name} of the model is a sequence, where only tensors are supported")
        check_value(self.values[value])
        if value == name:
            if name in self.sizes and name not in self._computed_sizes:
                self._compute_sizes(name)
            return
        array = self.constants.get(value)
        if array is not None:
            self.name_constant(name, array)
            return
        (made,) = self.add_node("identity", [value], {}, 1, f"output {name}")
        self.rename({made: name}, len(self.nodes) - 1)

    def new_name(self, stem: str) -> str:
        while True:
            self._numbers[stem] += 1
            number = self._numbers[stem]
            name = stem if number == 1 else f"{stem}.{number}"
            if not any(name in known for known in (self.values, self.sequences, self._reserved)):
                return name

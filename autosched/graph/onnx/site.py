"""Interface of the import rules: a node of ONNX as a rule sees it, and the table of rules.

    @rule("Flatten")
    def flatten(site: Site) -> str: ...     emits nodes of ours; returns the names of the values that are its results

A rule serves all versions of its operator; where these differ, it looks at `site.opset`. It returns None for a node
that is better written out by the standard's definition of the operator. Attributes that no rule asked for are refused:
they would change what the node computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from onnx import GraphProto

from autosched.errors import GraphError
from autosched.graph.graph import Array, Attribute, Shape
from autosched.graph.onnx.builder import GraphBuilder
from autosched.graph.onnx.held_types import HELD_IN
from autosched.ir.dtype import DTYPES
from autosched.ir.size import whole

Results = str | tuple[str, ...]
Rule = Callable[["Site"], "Results | None"]
RULES: dict[tuple[str, str], Rule] = {}  # by domain and name


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of these operators."""

    def add(function: Rule) -> Rule:
        for name in names:
            assert (domain, name) not in RULES, f"there are two rules of {name}"
            RULES[domain, name] = function
        return function

    return add


class NotConstant(GraphError):
    """An operand, named `value`, that must be constant at import and is not; `is_explained`: how to fix it was said."""

    is_explained = False

    def __init__(self, message: str, value: str) -> None:
        super().__init__(message)
        self.value = value


@dataclass(frozen=True)
class NameScope:
    """The scope of nodes: our values by ONNX's names (None after an error), the opset of each domain, and attributes of
    the enclosing definition. `depth`: the number of enclosing graphs."""

    names: MutableMapping[str, str | None]
    opsets: Mapping[str, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0


class GraphImporter(Protocol):
    """Adds ONNX nodes to the graph under construction."""

    builder: GraphBuilder

    def add_graph(self, graph: GraphProto, scope: NameScope, given: Sequence[str]) -> tuple[str, ...]: ...

    def attempt(self, add: Callable[[], tuple[str, ...]]) -> tuple[str, ...] | None: ...


@dataclass
class Site:
    """A node of ONNX during import; `inputs` are names of values of our graph, None for one that is left out."""

    importer: GraphImporter
    scope: NameScope
    operator: str
    origin: str  # operator and name, for messages
    inputs: tuple[str | None, ...]
    is_used: tuple[bool, ...]  # for each result, whether it has a name
    attributes: Mapping[str, Any]
    read_attributes: set[str] = field(default_factory=set)

    @property
    def builder(self) -> GraphBuilder:
        return self.importer.builder

    @property
    def opset(self) -> int:
        """The opset version of the standard's operators."""
        return self.scope.opsets[""]

    # The node

    def attribute(self, name: str, default: Any = None) -> Any:
        self.read_attributes.add(name)
        return self.attributes.get(name, default)

    def ignore(self, *names: str) -> None:
        """Mark attributes as read that have no effect here."""
        self.read_attributes.update(names)

    def optional(self, n: int) -> str | None:
        return self.inputs[n] if n < len(self.inputs) else None

    def input(self, n: int) -> str:
        name = self.optional(n)
        if name is None:
            raise GraphError(f"input {n} is missing")
        return name

    def all_inputs(self) -> list[str]:
        """Return all inputs of a variadic operator. Raises GraphError for one that is left out."""
        return [self.input(n) for n in range(len(self.inputs))]

    def array(self, n: int) -> Array | None:
        """Return the constant value of input `n`, None if it is left out. Raises NotConstant."""
        name = self.optional(n)
        if name is None:
            return None
        array = self.builder.known(name)
        if array is None:
            raise NotConstant(f"input {n} ({name}) must be a constant, or follow from shapes and constants", name)
        return array

    def number(self, n: int) -> Any:
        """Return the constant number that input `n` is, which may be a size."""
        array = self.array(n)
        assert array is not None, "its schema asks for it"
        return array.reshape(-1).tolist()[0]

    def integers(self, n: int, attribute: str, since: int) -> tuple[int, ...] | None:
        """Return a list of integers that is input `n` from opset `since` on, and an attribute before."""
        if self.opset < since:
            numbers = self.attribute(attribute)
            return None if numbers is None else tuple(numbers)
        array = self.array(n)
        return None if array is None else tuple(whole(i) for i in array.reshape(-1))

    def run(self, graph: GraphProto, given: Sequence[str]) -> tuple[str, ...]:
        """Import a subgraph of the node and return its results."""
        return self.importer.add_graph(graph, self.scope, given)

    def parts(self, n: int) -> tuple[str, ...]:
        """Return the tensors of input `n`, a sequence. Raises GraphError for other inputs."""
        elements = self.builder.sequences.get(self.input(n))
        if elements is None:
            raise GraphError(f"input {n} is no sequence of tensors")
        return elements

    def is_output_used(self, n: int) -> bool:
        return n < len(self.is_used) and self.is_used[n]

    # Values

    def shape(self, name: str) -> Shape:
        return self.builder.values[name].shape

    def sizes(self, name: str, rank: int) -> Shape:
        """Return the shape of a value that must have so many dimensions. Raises GraphError for another number."""
        if len(self.shape(name)) != rank:
            raise GraphError(
                f"its operand {name} has the shape {list(self.shape(name))}, and must have {rank} dimensions"
            )
        return self.shape(name)

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def dtype(self, name: str) -> str:
        return self.builder.values[name].dtype

    def type_of(self, name: str) -> str:
        """Return the type of a value by NumPy's or ml_dtypes' name, also of one that is held in a type of ours."""
        return self.builder.held_types.get(name, self.dtype(name))

    def typed(self, value: str, name: str) -> str:
        """Return a new value as one of the type `name`, which its own type may only hold."""
        if name in HELD_IN:
            self.builder.held_types[value] = name
        return value

    def is_float(self, name: str) -> bool:
        return DTYPES[self.dtype(name)].is_float

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the start. Raises GraphError for one out of range."""
        if not -rank <= axis < rank:
            raise GraphError(f"there is no axis {axis} of {rank}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        normalised = tuple(self.axis(a, rank) for a in axes)
        if len(set(normalised)) != len(normalised):
            raise GraphError(f"the axes {list(axes)} name one twice")
        return normalised

    # New values

    def constant(self, array: Any, dtype: str | None = None) -> str:
        """Add a constant; `dtype` is one of our types."""
        converted = np.asarray(array, None if dtype is None else DTYPES[dtype].numpy_dtype)
        return self.builder.add_constant(converted, self.origin)

    def emit(self, operator: str, *inputs: str | None, **attributes: Attribute) -> str:
        return self.emit_all(1, operator, *inputs, **attributes)[0]

    def emit_all(self, n: int, operator: str, *inputs: str | None, **attributes: Attribute) -> tuple[str, ...]:
        return self.builder.add_node(operator, inputs, attributes, n, self.origin)

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """Return a value reshaped to `shape`, or itself if it has that shape."""
        sizes = tuple(whole(size) for size in shape)
        if self.shape(name) == sizes:
            return name
        array = self.builder.constants.get(name)
        return self.emit("reshape", name, shape=sizes) if array is None else self.constant(array.reshape(sizes))

    def sequence(self, parts: Sequence[str]) -> str:
        """Add a sequence of these tensors."""
        return self.builder.add_sequence(parts, self.origin)

    def cast(self, name: str, dtype: str) -> str:
        return name if self.dtype(name) == dtype else self.emit("cast", name, dtype=dtype)

    def part(self, name: str, axis: int, start: int, stop: int) -> str:
        """Return elements `start` to `stop` along an axis."""
        if (start, stop) == (0, self.shape(name)[axis]):
            return name
        array = self.builder.constants.get(name)
        if array is not None:
            return self.constant(array[(slice(None),) * axis + (slice(start, stop),)])
        return self.emit("slice", name, starts=(start,), stops=(stop,), axes=(axis,), steps=(1,))


def refuse(condition: bool, what: str) -> None:
    """Raise GraphError that `what` is not supported if the condition holds."""
    if condition:
        raise GraphError(f"{what} is not supported")

"""Import of a model: one pass over its nodes that infers shapes, folds constants and applies rules.

A node that cannot be imported does not end the pass: its results are lost, and with them what reads them, so that
every operator that is not supported is named at once.
"""

from __future__ import annotations

import importlib
import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy.typing as npt
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper

from autosched.errors import GraphError, RefusedNodes, locating_bugs
from autosched.graph.fixed_inputs import how_to_fix
from autosched.graph.graph import Array, Graph, Shape, Value
from autosched.graph.onnx.builder import GraphBuilder
from autosched.graph.onnx.definitions import OperatorDefinition, definition_of, has_definition, local_definitions
from autosched.graph.onnx.files import NO_ELEMENTS, Elements, array_of, initializers, opsets_of, type_named
from autosched.graph.onnx.folding import FOLDED_ONLY, KEPT, by_reference, folded
from autosched.graph.onnx.held_types import HELD_IN
from autosched.graph.onnx.inputs import fixed_inputs, input_types, known_sizes, symbolic_shapes, values_of
from autosched.graph.onnx.known_sizes import pinned
from autosched.graph.onnx.order import in_order, label, reads
from autosched.graph.onnx.schemas import check_node, domain_of
from autosched.graph.onnx.site import RULES, NameScope, NotConstant, Site
from autosched.graph.onnx.split import ModelPart, ModelSplit, split_nodes
from autosched.graph.passes.rewrite import without_dead
from autosched.graph.verify import verify

FAMILIES = (
    *("attention", "caches", "control", "convolutions", "elementwise", "fused", "heads", "indices", "microsoft"),
    *(f"learning.{name}" for name in ("features", "optimisers", "trees")),
    *("normalisation", "pools", "products", "quantised", "quantised_runtime", "recurrent", "reductions", "resizing"),
    *("sequences", "signals"),
)
# Operators of sequences of tensors.
_OF_SEQUENCES = {"ConcatFromSequence", "Identity", "Loop", "If", "Optional", "OptionalGetElement", "OptionalHasElement"}
_OF_SEQUENCES |= {f"Sequence{what}" for what in ("Insert", "Erase", "At", "Length", "Map")}
# Operators whose results are of another type than their operands.
CONVERSIONS = {"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "BitCast"}
N_HINTS = 4  # inputs named in a message
NO_SHAPES: Mapping[str, Shape] = MappingProxyType({})
MAX_DEPTH = 50  # of nested graphs and definitions


def import_model(
    model: ModelProto,
    sizes: Mapping[str, int],
    fixed: Mapping[str, npt.ArrayLike],
    folder: Path | None = None,
    elements: Elements = NO_ELEMENTS,
) -> Graph:
    """Return the graph of a model in memory. `folder`: that of external data. `elements`: the bytes of initializers
    that the model is without, by their numbers.

    Raises GraphError, and RefusedNodes, which is one, for nodes that are not supported.
    """
    arrays = fixed_inputs(model.graph, fixed)
    sizes = known_sizes(model.graph, sizes, arrays)
    types = input_types(model.graph, sizes, arrays)
    constants = {**initializers(model.graph, folder, elements), **arrays}
    outputs = tuple(o.name for o in model.graph.output)
    part = ModelPart(model, tuple(model.graph.node), constants, outputs, folder)
    return import_part(part, types, is_whole=True, symbols=symbolic_shapes(model.graph, sizes, arrays))


def import_part(
    part: ModelPart, types: Mapping[str, TypeProto], is_whole: bool = False, symbols: Mapping[str, Shape] = NO_SHAPES
) -> Graph:
    """Return the graph of a part of a model for inputs of these types, without symbolic dimensions.

    An output of a whole model that is a sequence y is an output for each of its tensors: y[0], y[1] and so on. Raises
    GraphError, and RefusedNodes for nodes that are not supported. `symbols`: shapes of inputs with sizes for numbers.
    """
    inputs, refused = values_of(types)
    inputs = [replace(value, shape=symbols.get(value.name, value.shape)) for value in inputs]
    for family in FAMILIES:
        importlib.import_module(f"autosched.graph.onnx.rules.{family}")
    scope = NameScope(dict.fromkeys(refused), opsets_of(part.source))
    importer = Importer(local_definitions(part.source), part.folder, refused)
    builder = importer.builder
    for name, array in part.constants.items():
        builder.name_constant(name, array)
    for value in inputs:
        builder.add_value(value)
        if (kind := type_named(types[value.name].tensor_type.elem_type)) in HELD_IN:
            builder.held_types[value.name] = kind
    scope.names.update({name: name for name in builder.values})
    builder.reserve(part.outputs)
    name = part.source.graph.name or "network"
    with locating_bugs(lambda _: f"a bug of autosched: the model {name} cannot be imported"):
        importer.add_nodes(part.nodes, scope)
    if importer.failures or refused:
        raise importer.refusal(part, types, scope) from importer.error()
    results: dict[str, str | None] = {}
    for output in part.outputs:
        made = scope.names.get(output)
        tensors = builder.sequences.get(made or "") if is_whole else None
        results |= {output: made} if tensors is None else {f"{output}[{n}]": t for n, t in enumerate(tensors)}
    return _graph(builder, inputs, results, name)


def _graph(builder: GraphBuilder, inputs: Iterable[Value], results: Mapping[str, str | None], name: str) -> Graph:
    """Return the graph with outputs of these names and values."""
    for output, value in results.items():
        if value is None:
            raise GraphError(f"the output {output} of the model is made by nothing")
        builder.output(output, value)
    whole = Graph(tuple(v.name for v in inputs), tuple(results), (), builder.values, builder.constants, name)
    graph = whole.with_nodes(builder.nodes)
    verify(graph)
    return graph


def _head(builder: GraphBuilder, scope: NameScope, inputs: Iterable[str], outputs: Sequence[str], name: str) -> Graph:
    """Return the graph of the nodes that `outputs` depend on, with those of the inputs that it reads."""
    values = [builder.values[name] for name in inputs if name in builder.values]
    results = {output: scope.names.get(output) for output in outputs}
    whole = without_dead(_graph(builder, values, results, name or "network"))
    read = {*whole.outputs, *(name for node in whole.nodes for name in node.used)}
    return replace(whole, inputs=tuple(name for name in whole.inputs if name in read)).with_nodes(whole.nodes)


def _integer_type(node: NodeProto) -> str:
    """Return the type of what a node computes from sizes."""
    to = next((a.i for a in node.attribute if a.name == "to"), None) if node.op_type == "Cast" else None
    return (type_named(to) if to is not None else None) or "int64"


class Unsupported(GraphError):
    """An operator without a rule."""


class Refusal(NamedTuple):
    """A node that cannot be imported."""

    node: NodeProto
    operator: str
    error: GraphError


class Importer:
    """Adds ONNX nodes to a graph and collects errors, so that all unsupported operators are reported together."""

    def __init__(
        self,
        definitions: Mapping[tuple[str, str], OperatorDefinition],
        folder: Path | None,
        refused_inputs: Mapping[str, GraphError],
    ) -> None:
        self.builder = GraphBuilder()
        self.failures: list[Refusal] = []
        self._definitions, self._folder, self._refused_inputs = definitions, folder, refused_inputs
        self._nodes: list[NodeProto] = []  # of the model itself, in topological order

    def add_graph(self, graph: GraphProto, scope: NameScope, given: Sequence[str]) -> tuple[str, ...]:
        """Import a subgraph, which sees the names of the enclosing scope, and return its results."""
        if len(graph.input) != len(given):
            raise GraphError(f"its graph {graph.name} has {len(graph.input)} inputs, and is given {len(given)}")
        names = ChainMap(dict[str, "str | None"](), scope.names)
        inner = NameScope(names, scope.opsets, scope.attributes, scope.depth + 1)
        arrays = initializers(graph, self._folder)
        names.update({name: self.builder.add_constant(array, name) for name, array in arrays.items()})
        names.update({info.name: value for info, value in zip(graph.input, given, strict=True)})
        self.add_nodes(graph.node, inner)
        return self._resolve([o.name for o in graph.output], inner)

    def attempt(self, add: Callable[[], tuple[str, ...]]) -> tuple[str, ...] | None:
        """Return the results of `add`, which adds nodes; None, with the graph as it was, if that raises GraphError."""
        restore, n_failures = self.builder.restore_point(), len(self.failures)
        try:
            return add()
        except GraphError:
            restore()
            del self.failures[n_failures:]
            return None

    def add_nodes(self, nodes: Iterable[NodeProto], scope: NameScope) -> None:
        """Import nodes, whose operands and results are in `scope`."""
        if scope.depth > MAX_DEPTH:
            raise GraphError(f"the model has more than {MAX_DEPTH} graphs or functions within each other")
        sequence = in_order(nodes, scope.names)
        if scope.depth == 0:
            self.builder.reserve(name for node in sequence for name in node.output)
            self._nodes = sequence
        for node in sequence:
            self._add(node, scope)

    def _add(self, node: NodeProto, scope: NameScope) -> None:
        operator = f"{domain_of(node)}.{node.op_type}".lstrip(".")
        inputs = [scope.names[name] if name else None for name in node.input]
        lost = any(name and value is None for name, value in zip(node.input, inputs, strict=True))
        start, results, n_failures = len(self.builder.nodes), tuple[str, ...](), len(self.failures)
        try:
            if not lost:
                with locating_bugs(lambda _: f"{operator} {label(node)}"):
                    results = self._results(node, inputs, scope)
            elif not self._has_meaning(node, scope):
                raise Unsupported
            elif refused := [name for name in node.input if name in self._refused_inputs and not scope.depth]:
                raise GraphError(str(self._refused_inputs[refused[0]]))
        except GraphError as error:
            hint = self._hint(error) if isinstance(error, NotConstant) and not error.is_explained else ""
            error.args = (f"{operator} {label(node)}: {error}{hint}",)
            self.failures.append(Refusal(node, operator, error))
        if lost or len(self.failures) > n_failures:
            scope.names.update({name: None for name in node.output if name})
            return
        pairs = [(old, new) for old, new in zip(results, node.output, strict=False) if new]
        renamed: dict[str, str] = {}
        if scope.depth == 0:  # names within definitions are not of this graph
            made = {name for n in self.builder.nodes[start:] for name in n.outputs} - {*self.builder.sizes}
            for old, new in pairs:
                if old in made and old not in renamed:
                    renamed[old] = new
            self.builder.rename(renamed, start)
        scope.names.update({new: renamed.get(old, old) for old, new in pairs})

    def _hint(self, error: NotConstant) -> str:
        """Return which inputs a value that must be constant depends on, and how to fix them; empty if said before."""
        producers = {name: n for n in self.builder.nodes for name in n.outputs}
        seen, open_ = set[str](), [error.value] if error.value in self.builder.values else []
        error.is_explained = True
        while open_:
            name = open_.pop()
            if name not in seen and name not in self.builder.constants:
                seen.add(name)
                open_ += producers[name].used if name in producers else ()
        sizes = {name: math.prod(self.builder.values[name].shape) for name in seen if name not in producers}
        if not sizes:
            return ""
        names = sorted(sizes, key=lambda name: (sizes[name], name))
        more = ", ..." if len(names) > N_HINTS else ""
        return f" (it is computed from {', '.join(names[:N_HINTS])}{more}; {how_to_fix(names[0])})"

    def _has_meaning(self, node: NodeProto, scope: NameScope) -> bool:
        """Whether the operator has a rule or a definition."""
        key = domain_of(node), node.op_type
        return (
            key in RULES or key in self._definitions or self._is_known_only(node) or has_definition(node, scope.opsets)
        )

    def _is_known_only(self, node: NodeProto) -> bool:
        return not domain_of(node) and node.op_type in FOLDED_ONLY

    def _results(self, node: NodeProto, inputs: Sequence[str | None], scope: NameScope) -> tuple[str, ...]:
        given = (self._attribute(a, scope) for a in node.attribute)
        attributes = {a.name: value for a, value in zip(node.attribute, given, strict=True) if value is not None}
        key = domain_of(node), node.op_type
        if any(name in self.builder.sequences for name in inputs):
            if key[0] or key[1] not in _OF_SEQUENCES:
                raise GraphError("it reads a sequence of tensors, which only control flow and sequences may")
            if key[1] == "Identity":
                return tuple(name for name in inputs if name is not None)
        operands = [None if name is None else self.builder.values.get(name) for name in inputs]
        if key not in self._definitions:
            check_node(node, scope.opsets)
            converts = node.op_type in CONVERSIONS and any(name in self.builder.held_types for name in inputs)
            known = folded(node, attributes, scope.opsets, operands, self.builder.constants, self.builder.sizes)
            if known is not None and not converts:
                return self._constants(node, inputs, known, scope)
        if not self._has_meaning(node, scope):
            raise Unsupported
        of_sizes = self._pinning(node, inputs, operands, scope)
        if self._is_known_only(node) and (key not in RULES or not of_sizes):
            if of_sizes:
                return self._constants(node, inputs, tuple(make() for make in of_sizes), scope)
            which = next((v.name for v in operands if v and v.name not in self.builder.constants), "")
            raise NotConstant(f"what it makes must be known while importing, but {which} depends on data", which)
        if key in RULES and key not in self._definitions:
            is_used, origin = tuple(map(bool, node.output)), f"{node.op_type} {label(node)}"
            site = Site(self, scope, node.op_type, origin, tuple(inputs), is_used, attributes)
            results = RULES[key](site)
            if results is not None:
                results = (results,) if isinstance(results, str) else results
                self._keep_held_types(node, inputs, results)
                self.builder.pinning.update(zip(results, of_sizes, strict=False))
                if unread := sorted(set(attributes) - site.read_attributes):
                    raise GraphError(f"the attribute {unread[0]} = {attributes[unread[0]]!r} is not supported")
                return results
        return self._expanded(node, inputs, attributes, scope)

    def _pinning(
        self, node: NodeProto, inputs: Sequence[str | None], operands: Sequence[Value | None], scope: NameScope
    ) -> tuple[Callable[[], Array], ...]:
        """Return what computes the results of a node that reads what follows from sizes, () for other nodes."""
        b = self.builder
        names = [name for name in inputs if name is not None]
        follows = all(name in b.constants or name in b.sizes or name in b.pinning for name in names)
        if node.domain or node.op_type in KEPT or not follows or all(name in b.constants for name in names):
            return ()

        @cache
        def results() -> tuple[Array, ...]:
            arrays = [None if v is None else pinned(b.known(v.name), v.dtype) for v in operands]
            made = by_reference(node, scope.opsets, arrays)
            if made is None:
                raise NotConstant(f"the values of {node.op_type} cannot be computed while importing", names[0])
            return made

        return tuple(partial(lambda n: results()[n], n) for n in range(len(node.output)))

    def _keep_held_types(self, node: NodeProto, inputs: Sequence[str | None], results: Sequence[str]) -> None:
        """Note that results are of a type that one of ours holds, where the node only moves numbers of such a type."""
        held_types = self.builder.held_types
        moved = {held_types[name] for name in inputs if name in held_types}
        if len(moved) == 1 and node.op_type not in CONVERSIONS:
            (name,) = moved
            for result in results:
                value = self.builder.values.get(result)
                if value is not None and value.dtype == HELD_IN[name]:
                    held_types[result] = name

    def _constants(
        self, node: NodeProto, inputs: Sequence[str | None], arrays: Sequence[Array], scope: NameScope
    ) -> tuple[str, ...]:
        """Add folded results of a node as constants; within definitions, they get fresh names."""
        names = [name for name in node.output if name]
        made = {}
        for name, array in zip(names, arrays, strict=True):
            if array.dtype == object:
                made[name] = self.builder.new_name(label(node)) if scope.depth else name
                self.builder.name_sizes(made[name], array, _integer_type(node))
                continue
            made[name] = self.builder.add_constant(array, label(node)) if scope.depth else name
            if not scope.depth:
                self.builder.name_constant(name, array)
        self._keep_held_types(node, inputs, list(made.values()))
        return tuple(made.get(name, "") for name in node.output)

    def _attribute(self, attribute: AttributeProto, scope: NameScope) -> Any:
        """Return an attribute's value; None if it refers to an attribute of the definition that was not given."""
        if attribute.ref_attr_name:
            return scope.attributes.get(attribute.ref_attr_name)
        value = helper.get_attribute_value(attribute)
        if isinstance(value, TensorProto):
            return array_of(value, self._folder)
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, list):
            return tuple(v.decode() if isinstance(v, bytes) else v for v in value)
        return value

    def _expanded(
        self, node: NodeProto, inputs: Sequence[str | None], attributes: Mapping[str, Any], scope: NameScope
    ) -> tuple[str, ...]:
        """Import the definition of a node instead of the node."""
        definition = self._definitions.get((domain_of(node), node.op_type))
        if definition is None:
            operands = [None if name is None else self.builder.values[name] for name in inputs]
            definition = definition_of(node, attributes, scope.opsets, operands)
        defaults = {a.name: self._attribute(a, scope) for a in definition.defaults}
        pairs = zip(definition.inputs, inputs, strict=False)
        names: dict[str, str | None] = {name: value for name, value in pairs if value is not None}
        inner = NameScope(names, {**scope.opsets, **definition.opsets}, {**defaults, **attributes}, scope.depth + 1)
        self.add_nodes(definition.nodes_reading(names), inner)
        outputs = [output if name else "" for output, name in zip(definition.outputs, node.output, strict=False)]
        return self._resolve(outputs, inner)

    def _resolve(self, names: Iterable[str], scope: NameScope) -> tuple[str, ...]:
        """Return the values of the outputs of a subgraph or definition; '' for an output that is not used."""
        results = []
        for name in names:
            if name and scope.names.get(name) is None:
                self.raise_what_failed()
                raise GraphError(f"nothing makes {name}, which it returns")
            results.append(scope.names.get(name) or "")
        return tuple(results)

    def refusal(self, part: ModelPart, types: Mapping[str, TypeProto], scope: NameScope) -> GraphError:
        """Return an error for the failures, with the part split at them."""
        error = next(iter(self._refused_inputs.values()), None) or self.error()
        refused, rest = split_nodes(self._nodes, {id(failure.node) for failure in self.failures})
        if error is None or not refused:
            return error or GraphError(f"the part {part.source.graph.name} has no node that is refused")
        later = [self._part(part, self._with_sequences(nodes, scope), scope) for nodes in (refused, rest)]
        read = dict.fromkeys([*(name for each in later for name in each.inputs), *part.outputs])
        made = [name for name in read if scope.names.get(name) and (name in part.outputs or name not in types)]
        later[0] = replace(later[0], outputs=tuple(name for name in read if name in later[0].made))
        head = _head(self.builder, scope, types, made, part.source.graph.name) if made else None
        return RefusedNodes(str(error), ModelSplit(types, part.outputs, head, later[0], later[1] if rest else None))

    def _part(self, part: ModelPart, nodes: Sequence[NodeProto], scope: NameScope) -> ModelPart:
        """Return the part with these nodes only, and with what is known while importing as constants."""
        constants = self.builder.constants
        known = {name: scope.names.get(name) for node in nodes for name in reads(node)}
        arrays = {
            name: part.constants.get(name, constants[value]) for name, value in known.items() if value in constants
        }
        made = {name for node in nodes for name in node.output}
        return replace(part, nodes=tuple(nodes), constants=arrays, outputs=tuple(o for o in part.outputs if o in made))

    def _with_sequences(self, nodes: Sequence[NodeProto], scope: NameScope) -> list[NodeProto]:
        """Return the nodes and those that make the sequences of tensors that they read, which no array holds."""
        makers = {name: node for node in self._nodes for name in node.output}
        kept, waiting = {id(node) for node in nodes}, list(nodes)
        while waiting:
            for name in reads(waiting.pop()):
                if scope.names.get(name) in self.builder.sequences and id(makers[name]) not in kept:
                    kept.add(id(makers[name]))
                    waiting.append(makers[name])
        return [node for node in self._nodes if id(node) in kept]

    def raise_what_failed(self) -> None:
        if error := self.error():
            raise error

    def error(self) -> GraphError | None:
        """Return an error that names all operators without a rule, else the first one."""
        unsupported: dict[str, list[str]] = {}
        for node, operator, error in self.failures:
            if isinstance(error, Unsupported):
                unsupported.setdefault(operator, []).append(label(node))
        rows = [f"{name} ({len(nodes)}, first {nodes[0]})" for name, nodes in sorted(unsupported.items())]
        if rows:
            return GraphError(f"the model uses operators that are not supported: {', '.join(rows)}")
        return next((failure.error for failure in self.failures), None)

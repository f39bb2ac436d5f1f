"""Parts of a model with nodes that are refused: functions of arrays by name that run one after the other.

CompiledPart   a program of ours
Fallback       nodes without a rule, run by another engine
BranchPart     an If by data, whose branches are parts; LoopPart: a Loop by data, whose body is a part
VaryingPart    a part whose sizes are known when it is called: compiled once the same sizes come a second time,
               and until then run by the other engine
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, TypeProto, helper, shape_inference

from autosched.errors import GraphError, RefusedNodes
from autosched.executor.compile_graph import compile_network
from autosched.executor.compile_options import CompileOptions
from autosched.executor.fallback import Fallback, check_domains, fallback_for
from autosched.executor.model import Model
from autosched.graph.graph import Array, Graph
from autosched.graph.onnx.importer import import_part
from autosched.graph.onnx.split import (
    BRANCHES,
    ModelPart,
    ModelSplit,
    body_of,
    graph_attribute,
    groups_of,
    is_control,
    type_of,
)

if TYPE_CHECKING:
    from autosched.executor.fallback import Values

Types = Mapping[str, TypeProto]

MAX_SIZES = 16  # for which a part is compiled; the other engine runs it for others


@dataclass(frozen=True)
class CompiledPart:
    """A part as a program of ours."""

    model: Model
    outputs: tuple[str, ...]

    def __call__(self, values: Values) -> dict[str, Array]:
        results = self.model(*(values[spec.name] for spec in self.model.inputs))
        return dict(zip(self.outputs, results if isinstance(results, tuple) else (results,), strict=True))

    def types(self) -> dict[str, TypeProto]:
        """Return the types of the results."""
        specs = zip(self.outputs, self.model.outputs, strict=True)
        return {
            name: helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(spec.numpy_dtype), spec.shape)
            for name, spec in specs
        }


class VaryingPart:
    """A part as a sequence of parts for each choice of sizes."""

    def __init__(self, part: ModelPart, options: CompileOptions) -> None:
        self.part, self.options = part, options
        self._sequences: OrderedDict[tuple[object, ...], tuple[Part, ...]] = OrderedDict()
        self._last: tuple[object, ...] | None = None  # sizes of the last call that the other engine ran
        self._fallbacks: dict[tuple[object, ...], Fallback] = {}  # by types and ranks
        self._lock = threading.Lock()

    def __call__(self, values: Values) -> dict[str, Any]:
        given = [values[name] for name in self.part.inputs]
        results = dict(zip(self.part.inputs, given, strict=True))
        for part in self._parts_for(tuple(map(_key, given)), results):
            results |= part(results)
        return {name: results[name] for name in self.part.outputs}

    def compile(self, types: Types) -> dict[str, TypeProto]:
        """Compile the part for inputs of these types, and return the types that are known of its results."""
        known = {name: types[name] for name in self.part.inputs}
        parts, made = parts_of(self.part, known, self.options)
        self._sequences[tuple(map(_key_of_type, known.values()))] = parts
        return {name: made[name] for name in self.part.outputs if name in made}

    def models(self) -> Iterator[Model]:
        """Yield the programs for the sizes that were compiled."""
        for parts in list(self._sequences.values()):
            yield from models_of(parts)

    def _parts_for(self, key: tuple[object, ...], values: Values) -> tuple[Part, ...]:
        with self._lock:
            if (parts := self._sequences.get(key)) is not None:
                return parts
            types, is_full = {name: type_of(value) for name, value in values.items()}, len(self._sequences) >= MAX_SIZES
            fallback = self._fallback(types)
            if fallback is not None and (is_full or self._last != key):
                self._last = key
                return (fallback,)
            if is_full:
                self._sequences.popitem(last=False)
            self._sequences[key], _ = parts_of(self.part, types, self.options)
            return self._sequences[key]

    def _fallback(self, types: Types) -> Fallback | None:
        """Return the part run by another engine for inputs of any sizes; None if none accepts all of its nodes."""
        any_size = {name: _of_any_size(given) for name, given in types.items()}
        key = tuple(each.SerializeToString() for each in any_size.values())
        if key not in self._fallbacks:
            with suppress(GraphError):
                self._fallbacks[key] = fallback_for(self.part, any_size, self.options.threads)
        return self._fallbacks.get(key)


class BranchPart:
    """An If: the branch that the condition chooses, each a part. `types`: those that are known of its results."""

    def __init__(self, part: ModelPart, types: Types, options: CompileOptions) -> None:
        self.part, (self.node,) = part, part.nodes
        self.branches = [VaryingPart(body_of(part, graph_attribute(self.node, name)), options) for name in BRANCHES]
        made = [_compiled_where_known(branch, types) for branch in self.branches]
        one, other = ([known.get(o) for o in x.part.outputs] for x, known in zip(self.branches, made, strict=True))
        named = zip(self.node.output, one, other, strict=False)
        self.types = {name: a for name, a, b in named if a is not None and a == b}

    def __call__(self, values: Values) -> dict[str, Array]:
        values = {**self.part.constants, **values}
        branch = self.branches[bool(np.reshape(values[self.node.input[0]], ()))]
        results = branch(values)
        return {name: results[made] for name, made in zip(self.node.output, branch.part.outputs, strict=False) if name}


class LoopPart:
    """A Loop: its body, a part, maps (iteration, condition, carried values) to (condition, carried values, rows).

    `types`: those that are known of its results, which are those of the carried values if they stay the same.
    """

    def __init__(self, part: ModelPart, types: Types, options: CompileOptions) -> None:
        self.part, (self.node,) = part, part.nodes
        self.graph = graph_attribute(self.node, "body")
        self.body = VaryingPart(body_of(part, self.graph), options)
        self.n_carried = len(self.node.input) - 2
        constants = {name: type_of(array) for name, array in part.constants.items()}
        outer, (step, going, *carried) = {**constants, **types}, (info.name for info in self.graph.input)
        inside = {
            **types,
            step: helper.make_tensor_type_proto(TensorProto.INT64, self._shape(0)),
            going: helper.make_tensor_type_proto(TensorProto.BOOL, self._shape(1)),
            **{n: outer[x] for n, x in zip(carried, self.node.input[2:], strict=True) if x in outer},
        }
        self._made = _compiled_where_known(self.body, inside)
        results = [self._made.get(name) for name in self.body.part.outputs[1 : 1 + self.n_carried]]
        is_steady = all(a is not None and a == inside.get(name) for a, name in zip(results, carried, strict=True))
        named = zip(self.node.output, results, strict=False) if is_steady else ()
        self.types = {name: known for name, known in named if known is not None}

    def __call__(self, values: Values) -> dict[str, Any]:
        values = {**self.part.constants, **values}
        most, first = (values[name] if name else None for name in self.node.input[:2])
        limit = None if most is None else int(np.reshape(most, ()))
        condition = True if first is None else bool(np.reshape(first, ()))
        own = [info.name for info in self.graph.input]
        carried: list[Any] = [values[name] for name in self.node.input[2:]]
        rows: list[list[Array]] = []
        inside = {name: values[name] for name in self.body.part.inputs if name in values}
        for step in count():
            if not condition or (limit is not None and step >= limit):
                break
            flags = np.full(self._shape(0), step, np.int64), np.full(self._shape(1), True)
            inside.update(zip(own, (*flags, *carried), strict=True))
            made = self.body(inside)
            going, *results = (made[name] for name in self.body.part.outputs)
            condition, carried = bool(np.reshape(going, ())), results[: self.n_carried]
            rows.append(results[self.n_carried :])
        columns = [np.stack(column) for column in zip(*rows, strict=True)] if rows else self._empty_columns()
        return {name: value for name, value in zip(self.node.output, (*carried, *columns), strict=False) if name}

    def _empty_columns(self) -> list[Array]:
        """Return the rows of no step; what is not known of their shape has a size of 0."""
        columns = []
        for info in list(self.graph.output)[1 + self.n_carried :]:
            tensor = self._made.get(info.name, info.type).tensor_type
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type or TensorProto.FLOAT)
            columns.append(np.empty((0, *(dimension.dim_value for dimension in tensor.shape.dim)), dtype))
        return columns

    def _shape(self, n: int) -> tuple[int, ...]:
        """Return the shape of an input of the body that is one number: of one dimension, or of none."""
        return (1,) * len(self.graph.input[n].type.tensor_type.shape.dim)


Part = CompiledPart | Fallback | VaryingPart | BranchPart | LoopPart


def models_of(parts: Iterable[Part]) -> Iterator[Model]:
    """Yield the programs of parts."""
    for part in parts:
        match part:
            case CompiledPart():
                yield part.model
            case VaryingPart():
                yield from part.models()
            case BranchPart():
                yield from models_of(part.branches)
            case LoopPart():
                yield from part.body.models()


def parts_of(part: ModelPart, types: Types, options: CompileOptions) -> tuple[tuple[Part, ...], dict[str, TypeProto]]:
    """Return the parts of a part of a model for inputs of these types, and the types that are known of values.

    A part that is refused as a whole is run by the other engine.
    """
    try:
        compiled = _compiled(import_part(part, {name: types[name] for name in part.inputs}), options)
    except RefusedNodes as refused:
        return parts_at(refused.split, options)
    except GraphError:
        return (fallback_for(part, types, options.threads),), {**types, **_inferred(part, types)}
    return (compiled,), {**types, **compiled.types()}


def parts_at(split: ModelSplit, options: CompileOptions) -> tuple[tuple[Part, ...], dict[str, TypeProto]]:
    """Return the parts of a model that is split, and the types that are known of its values."""
    types, parts = dict(split.types), list[Part]()
    if split.head is not None:
        parts.append(head := _compiled(split.head, options))
        types |= head.types()
    for group in groups_of(split.refused):
        made, part = _refused(group, types, options)
        parts.append(part)
        types |= made
    if split.rest is not None:
        if all(_is_static(types.get(name)) for name in split.rest.inputs):
            more, types = parts_of(split.rest, types, options)
            parts += more
        else:
            check_domains(split.rest)
            parts.append(VaryingPart(split.rest, options))
    return tuple(parts), types


def _refused(group: ModelPart, types: Types, options: CompileOptions) -> tuple[Types, Part]:
    """Return a part for nodes that are refused, and the types that are known of their results."""
    if is_control(group.nodes[0]):
        part = (BranchPart if group.nodes[0].op_type == "If" else LoopPart)(group, types, options)
        return part.types, part
    if not all(name in types for name in group.inputs):
        return {}, VaryingPart(group, options)
    return _inferred(group, types), fallback_for(group, types, options.threads)


def _compiled_where_known(body: VaryingPart, types: Types) -> dict[str, TypeProto]:
    """Compile a branch or a body if the types of all that it reads are known, and return those of its results.

    One that cannot be compiled for these sizes need not be the one that is taken.
    """
    if all(_is_static(types.get(name)) for name in body.part.inputs):
        with suppress(GraphError):
            return body.compile(types)
    return {}


def _compiled(graph: Graph, options: CompileOptions) -> CompiledPart:
    return CompiledPart(compile_network(replace(graph, winograd=options.winograd), options), graph.outputs)


def _inferred(part: ModelPart, types: Types) -> dict[str, TypeProto]:
    """Return the types that the shape inference of ONNX gives for the results of a part; it may lack some of them."""
    graph = shape_inference.infer_shapes(part.model(types), data_prop=True).graph
    inferred = {info.name: info.type for info in (*graph.value_info, *graph.output)}
    return {name: given for name, given in inferred.items() if given.WhichOneof("value") is not None}


def _key(value: Array | list[Array]) -> object:
    return tuple(map(_key, value)) if isinstance(value, list) else (value.shape, value.dtype)


def _key_of_type(given: TypeProto) -> object:
    tensor = given.tensor_type
    return tuple(d.dim_value for d in tensor.shape.dim), helper.tensor_dtype_to_np_dtype(tensor.elem_type)


def _is_static(given: TypeProto | None) -> bool:
    if given is None or not given.tensor_type.HasField("shape"):
        return False
    return all(dimension.HasField("dim_value") for dimension in given.tensor_type.shape.dim)


def _of_any_size(given: TypeProto) -> TypeProto:
    """Return a tensor's type without its sizes; other types as they are."""
    if not given.HasField("tensor_type"):
        return given
    return helper.make_tensor_type_proto(given.tensor_type.elem_type, [None] * len(given.tensor_type.shape.dim))

"""Partitioned model: the nodes with rules are compiled, another engine runs the others, in alternating parts.

Where results of the other engine have sizes that depend on data, what follows is compiled once the same sizes come a
second time, and until then the other engine runs it too.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from onnx import TypeProto, helper, shape_inference

from autosched.errors import FallbackWarning, GraphError, RefusedNodes, UsageError
from autosched.executor.compile_graph import compile_network
from autosched.executor.compile_options import CompileOptions
from autosched.executor.fallback import Fallback, fallback_for, operators
from autosched.executor.model import Clocks, FallbackTime, Model
from autosched.graph.graph import Array, Graph
from autosched.graph.onnx.files import type_label, type_named
from autosched.graph.onnx.importer import import_part
from autosched.graph.onnx.split import ModelPart, ModelSplit, tensor_type
from autosched.ir.dtype import DTYPES
from autosched.kernel.device import find_device
from autosched.kernel.trust import warn_user
from autosched.planning.execution_plan import NetworkProgram
from autosched.planning.extract_tasks import NetworkTask
from autosched.runtime.spec import ArraySpec, in_order
from autosched.runtime.tensors import materialised

if TYPE_CHECKING:
    from autosched.executor.fallback import Values

    Types = Mapping[str, TypeProto]

MAX_PROGRAMS = 16  # of a part whose sizes depend on data
ROUNDS = 5  # of calls that are timed


@dataclass(frozen=True)
class CompiledPart:
    """A part as a program of ours."""

    model: Model
    outputs: tuple[str, ...]

    def __call__(self, values: Values) -> dict[str, Array]:
        results = self.model(*(values[spec.name] for spec in self.model.inputs))
        return dict(zip(self.outputs, results if isinstance(results, tuple) else (results,), strict=True))


class VaryingPart:
    """A part whose sizes are not known before it is called: a sequence of parts for each choice of sizes."""

    def __init__(self, part: ModelPart, options: CompileOptions) -> None:
        self.part, self.options = part, options
        self._sequences: OrderedDict[tuple[object, ...], tuple[Part, ...] | None] = OrderedDict()  # None: called once
        self._fallbacks: dict[tuple[object, ...], Fallback] = {}  # by types and ranks
        self._lock = threading.Lock()

    def __call__(self, values: Values) -> dict[str, Array]:
        types = {name: tensor_type(values[name]) for name in self.part.inputs}
        results: dict[str, Any] = dict(values)
        for part in self.parts_for(types):
            results |= part(results)
        return {name: results[name] for name in self.part.outputs}

    def parts_for(self, types: Types) -> tuple[Part, ...]:
        """Return the parts for inputs of these types."""
        key = tuple(each.SerializeToString() for each in types.values())
        with self._lock:
            is_new = key not in self._sequences
            parts = self._sequences.pop(key, None)
            if parts is None and not is_new:
                parts = tuple(parts_of(self.part, types, self.options))
            self._sequences[key] = parts
            if len(self._sequences) > MAX_PROGRAMS:
                self._sequences.popitem(last=False)
            return (self._fallback(types),) if parts is None else parts

    def _fallback(self, types: Types) -> Fallback:
        any_size = {name: _of_any_size(given) for name, given in types.items()}
        key = tuple(each.SerializeToString() for each in any_size.values())
        if key not in self._fallbacks:
            self._fallbacks[key] = fallback_for(self.part, any_size, self.options.threads)
        return self._fallbacks[key]


Part = CompiledPart | Fallback | VaryingPart


class PartitionedModel(Model):
    """A network whose `parts` run one after the other. Sizes of `outputs` that are not known are -1."""

    def __init__(self, split: ModelSplit, options: CompileOptions) -> None:
        self.name = split.refused.source.graph.name or "network"
        self.device = find_device(options.target, options.threads, runs=not options.simulate)
        self.parts = tuple(_parts_at(split, options))
        self.inputs = tuple(_spec(name, given) for name, given in split.types.items())
        known = _results_of(self.parts)
        self.outputs = tuple(_spec(name, known.get(name, TypeProto())) for name in split.outputs)
        others = [part for part in self.parts if isinstance(part, Fallback)]
        names = [f"{part.engine} runs {', '.join(operators(part.part))}" for part in others]
        warn_user(f"{self.name} is compiled in parts: {'; '.join(names)}", FallbackWarning)

    def __call__(self, *arrays: object, out: object = None, **named: object) -> Any:
        names = [spec.name for spec in self.inputs]
        given = in_order(names, arrays, named) if named or len(arrays) != len(names) else arrays
        values = dict(zip(names, map(_as_value, given), strict=True))
        for part in self.parts:
            values |= part(values)
        results = tuple(values[spec.name] for spec in self.outputs)
        if out is not None:
            results = _written(out, results)
        return results[0] if len(results) == 1 else results

    def __repr__(self) -> str:
        return f"<network of {', '.join(spec.name for spec in self.inputs)} in {len(self.parts)} parts>"

    @property
    def compiled_parts(self) -> tuple[Model, ...]:
        return tuple(part.model for part in self.parts if isinstance(part, CompiledPart))

    @property
    def tasks(self) -> tuple[NetworkTask, ...]:
        return tuple(task for model in self.compiled_parts for task in model.tasks)

    @property
    def arena_bytes(self) -> int:
        return max((model.arena_bytes for model in self.compiled_parts), default=0)

    @property
    def bound_bytes(self) -> int:
        return max((model.bound_bytes for model in self.compiled_parts), default=0)

    @property
    def threads(self) -> int:
        return self.device.threads

    def fallback_times(self) -> tuple[FallbackTime, ...]:
        """Return the least times of the other engine in calls on drawn inputs."""
        rng, calls = np.random.default_rng(0), list[list[float]]()
        for _ in range(ROUNDS):
            values: dict[str, Any] = {spec.name: _drawn(spec, rng) for spec in self.inputs}
            calls.append([])
            for part in self.parts:
                start = time.perf_counter()
                values |= part(values)
                calls[-1].append(time.perf_counter() - start)
        least = list(map(min, zip(*calls, strict=True)))
        return tuple(
            FallbackTime(tuple(operators(part.part)), part.engine, seconds)
            for part, seconds in zip(self.parts, least, strict=True)
            if isinstance(part, Fallback)
        )

    def _refuse(self) -> NoReturn:
        raise UsageError(
            f"{self.name} is no single program, which this needs: another engine runs nodes of it "
            f"({', '.join(name for part in self.parts if isinstance(part, Fallback) for name in operators(part.part))})"
        )

    @property
    def original(self) -> Graph:  # type: ignore[override]
        self._refuse()

    @property
    def program(self) -> NetworkProgram:  # type: ignore[override]
        self._refuse()

    def launch(self, addresses: Sequence[int]) -> None:
        self._refuse()

    def with_program(self, original: Graph, program: NetworkProgram) -> Model:
        self._refuse()

    def with_shared_weights(self, original: Graph, program: NetworkProgram, other: Model) -> Model:
        self._refuse()

    def link_program(self, original: Graph, program: NetworkProgram) -> Model:
        self._refuse()

    def export(self, path: str | Path) -> list[Path]:
        self._refuse()

    def run_step(self, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        self._refuse()

    def clocks(self, arrays: Mapping[str, Array]) -> Clocks:
        self._refuse()


def compile_parts(error: RefusedNodes, options: CompileOptions) -> Model:
    """Compile a model with nodes that are refused in parts. Raises the error if `options` are strict, and GraphError if
    nothing runs the nodes."""
    if options.strict:
        raise error
    try:
        return PartitionedModel(error.split, options)
    except GraphError as nothing:
        raise GraphError(f"{error}; {nothing}") from error


def parts_of(part: ModelPart, types: Types, options: CompileOptions) -> Iterator[Part]:
    """Yield the parts of a part of a model for inputs of these types."""
    try:
        graph = import_part(part, {name: types[name] for name in part.inputs})
    except RefusedNodes as refused:
        yield from _parts_at(refused.split, options)
    else:
        yield _compiled(graph, options)


def _parts_at(split: ModelSplit, options: CompileOptions) -> Iterator[Part]:
    types = dict(split.types)
    if split.head is not None:
        yield (head := _compiled(split.head, options))
        types |= _results_of([head])
    yield fallback_for(split.refused, types, options.threads)
    if split.rest is None:
        return
    types |= _inferred(split.refused, types)
    if all(_is_static(types.get(name)) for name in split.rest.inputs):
        yield from parts_of(split.rest, types, options)
    else:
        yield VaryingPart(split.rest, options)


def _compiled(graph: Graph, options: CompileOptions) -> CompiledPart:
    return CompiledPart(compile_network(replace(graph, winograd=options.winograd), options), graph.outputs)


def _results_of(parts: Sequence[Part]) -> dict[str, TypeProto]:
    """Return the types of the results of compiled parts."""
    types = {}
    for part in parts:
        if isinstance(part, CompiledPart):
            for name, spec in zip(part.outputs, part.model.outputs, strict=True):
                number = helper.np_dtype_to_tensor_dtype(spec.numpy_dtype)
                types[name] = helper.make_tensor_type_proto(number, spec.shape)
    return types


def _inferred(part: ModelPart, types: Types) -> dict[str, TypeProto]:
    """Return the types of the results of a part, as far as ONNX infers them."""
    graph = shape_inference.infer_shapes(part.model(types), data_prop=True).graph
    return {info.name: info.type for info in (*graph.value_info, *graph.output)}


def _is_static(given: TypeProto | None) -> bool:
    if given is None or not given.tensor_type.HasField("shape"):
        return False
    return all(dimension.HasField("dim_value") for dimension in given.tensor_type.shape.dim)


def _of_any_size(given: TypeProto) -> TypeProto:
    """Return a tensor's type without its sizes; other types as they are."""
    if not given.HasField("tensor_type"):
        return given
    return helper.make_tensor_type_proto(given.tensor_type.elem_type, [None] * len(given.tensor_type.shape.dim))


def _spec(name: str, given: TypeProto) -> ArraySpec:
    tensor = given.tensor_type
    shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
    return ArraySpec(name, shape, type_named(tensor.elem_type) or type_label(tensor.elem_type).lower())


def _drawn(spec: ArraySpec, rng: np.random.Generator) -> Array:
    """Return normally distributed floats, integers that are 0 or 1, or texts."""
    if spec.dtype == "string":
        return np.full(spec.shape, "a", object)
    floats = rng.standard_normal(spec.shape) if DTYPES[spec.dtype].is_float else rng.integers(0, 2, spec.shape)
    return floats.astype(spec.numpy_dtype)


def _as_value(given: Any) -> Any:
    """Return an argument as an array, one of objects for texts, or as a list of arrays."""
    if isinstance(given, (list, tuple)):
        return [np.asarray(materialised(each)) for each in given]
    array = np.asarray(materialised(given))
    return array.astype(object) if array.dtype.kind in "US" else array


def _written(out: Any, results: tuple[Array, ...]) -> tuple[Any, ...]:
    """Write the results to the arrays `out`. Raises UsageError for arrays of other shapes."""
    arrays = tuple(out) if isinstance(out, (list, tuple)) else (out,)
    shapes, expected = [list(np.shape(array)) for array in arrays], [list(result.shape) for result in results]
    if shapes != expected:
        raise UsageError(f"out has arrays of the shapes {shapes}, and the results have {expected}")
    for array, result in zip(arrays, results, strict=True):
        np.copyto(array, result, casting="no")
    return arrays

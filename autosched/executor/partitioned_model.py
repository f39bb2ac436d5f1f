"""Partitioned model: the nodes with rules are compiled, another engine runs the others, in alternating parts."""

from __future__ import annotations

import time
from typing import Any, NoReturn

import numpy as np
from onnx import TypeProto

from autosched.errors import FallbackWarning, GraphError, RefusedNodes, UsageError
from autosched.executor.compile_options import CompileOptions
from autosched.executor.composite_model import CompositeModel
from autosched.executor.fallback import Fallback, operators
from autosched.executor.model import FallbackTime, Model
from autosched.executor.parts import models_of, parts_at
from autosched.graph.graph import Array
from autosched.graph.onnx.files import type_label, type_named
from autosched.graph.onnx.split import ModelSplit
from autosched.ir.dtype import DTYPES
from autosched.kernel.device import find_device
from autosched.kernel.trust import warn_user
from autosched.planning.extract_tasks import NetworkTask
from autosched.runtime.spec import ArraySpec, in_order
from autosched.runtime.tensors import materialised

ROUNDS = 5  # of calls that are timed


class PartitionedModel(CompositeModel):
    """A network whose `parts` run one after the other. Sizes of `outputs` that are not known are -1."""

    def __init__(self, split: ModelSplit, options: CompileOptions) -> None:
        self.name = split.refused.source.graph.name or "network"
        self.device = find_device(options.target, options.threads, runs=not options.simulate)
        self.parts, known = parts_at(split, options)
        self.inputs = tuple(_spec(name, given) for name, given in split.types.items())
        self.outputs = tuple(_spec(name, known.get(name, TypeProto())) for name in split.outputs)
        if names := [f"{x.engine} runs {', '.join(operators(x.part))}" for x in self._fallbacks()]:
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
        return tuple(models_of(self.parts))

    @property
    def tasks(self) -> tuple[NetworkTask, ...]:
        return tuple(task for model in self.compiled_parts for task in model.tasks)

    @property
    def arena_bytes(self) -> int:
        return max((model.arena_bytes for model in self.compiled_parts), default=0)

    @property
    def bound_bytes(self) -> int:
        return max((model.bound_bytes for model in self.compiled_parts), default=0)

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

    def _fallbacks(self) -> list[Fallback]:
        return [part for part in self.parts if isinstance(part, Fallback)]

    def _refuse(self) -> NoReturn:
        raise UsageError(
            f"{self.name} is no single program, which this needs: parts of it run by themselves "
            f"({', '.join(name for part in self._fallbacks() for name in operators(part.part)) or 'control flow'})"
        )


def compile_parts(error: RefusedNodes, options: CompileOptions) -> Model:
    """Compile a model with nodes that are refused in parts. Raises the error if `options` are strict, and GraphError if
    nothing runs the nodes."""
    if options.strict:
        raise error
    try:
        return PartitionedModel(error.split, options)
    except GraphError as nothing:
        raise GraphError(f"{error}; {nothing}") from error


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

"""Mutations of a model that add outputs: intermediates, views, concatenations and views of concatenations.

Where outputs lie is decided by the planner of memory, which random graphs of a fuzzer hardly try: their outputs are the
last values only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper, shape_inference

MAX_OUTPUTS = 6  # that are added
MAX_ELEMENTS = 65_536  # of an output that is added


@dataclass(frozen=True)
class Typed:
    """A value with its type and shape."""

    name: str
    onnx_type: int
    shape: tuple[int, ...]


@dataclass
class Mutation:
    """A model under construction: `values` are those that can be made an output, `made` those that were added."""

    model: ModelProto
    rng: np.random.Generator
    values: list[Typed]
    made: list[Typed] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def drawn(self) -> Typed:
        """A value of the model or, one time in three, one that was added."""
        pool = self.made if self.made and self.rng.random() < 1 / 3 else self.values
        return pool[int(self.rng.integers(len(pool)))]

    def add(
        self, operator: str, operands: list[str], like: Typed, shape: tuple[int, ...], **attributes: object
    ) -> None:
        """A node whose result has the type of `like`."""
        name = f"added_{len(self.made)}"
        self.nodes.append(helper.make_node(operator, operands, [name], **attributes))
        self.made.append(Typed(name, like.onnx_type, shape))

    def sizes(self, shape: tuple[int, ...]) -> str:
        """The name of a constant that holds a shape."""
        name = f"added_shape_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(shape, "int64"), name))
        return name


def mutated(model: ModelProto, seed: int) -> ModelProto:
    """The model with up to MAX_OUTPUTS more outputs; as it is where it has no value of a known shape."""
    values = _typed_values(model)
    if not values:
        return model
    mutation = Mutation(model, np.random.default_rng(seed), values)
    outputs = list[Typed]()
    for _ in range(int(mutation.rng.integers(1, MAX_OUTPUTS + 1))):
        steps = (_view, _view, _concatenation, _concatenation, _copy)
        choice = int(mutation.rng.integers(len(steps) + 1))
        if choice == len(steps):
            outputs.append(mutation.drawn())
            continue
        n_made = len(mutation.made)
        steps[choice](mutation)
        if len(mutation.made) > n_made and mutation.rng.random() < 0.8:
            outputs.append(mutation.made[-1])
    return _with_outputs(mutation, outputs)


def _with_outputs(mutation: Mutation, outputs: list[Typed]) -> ModelProto:
    result = ModelProto()
    result.CopyFrom(mutation.model)
    graph = result.graph
    graph.node.extend(mutation.nodes)
    graph.initializer.extend(mutation.constants)
    present = {info.name for info in graph.output}
    new = {typed.name: typed for typed in outputs if typed.name not in present}
    infos = [*graph.output, *(helper.make_tensor_value_info(t.name, t.onnx_type, t.shape) for t in new.values())]
    del graph.output[:]
    graph.output.extend(infos[int(n)] for n in mutation.rng.permutation(len(infos)))
    return result


def _view(mutation: Mutation) -> None:
    """A transposition or a reshaping of a value."""
    of, rng = mutation.drawn(), mutation.rng
    rank = len(of.shape)
    if rank > 1 and rng.random() < 0.25:
        order = [int(n) for n in rng.permutation(rank)]
        mutation.add("Transpose", [of.name], of, tuple(of.shape[n] for n in order), perm=order)
        return
    shapes = [(1, *of.shape), (*of.shape, 1), (math.prod(of.shape),), (1, math.prod(of.shape))]
    shapes += [(of.shape[0], math.prod(of.shape[1:])), of.shape[::-1]] if rank > 1 else []
    shape = shapes[int(rng.integers(len(shapes)))]
    mutation.add("Reshape", [of.name, mutation.sizes(shape)], of, shape)


def _concatenation(mutation: Mutation) -> None:
    """A concatenation of two or three values of one type, which may be the same one: along an axis where their shapes
    allow it, else as vectors."""
    first, rng = mutation.drawn(), mutation.rng
    alike = [v for v in (*mutation.values, *mutation.made) if v.onnx_type == first.onnx_type]
    parts = [first, *(alike[int(rng.integers(len(alike)))] for _ in range(int(rng.integers(1, 3))))]
    parts = [parts[int(n)] for n in rng.permutation(len(parts))]
    if sum(math.prod(part.shape) for part in parts) > MAX_ELEMENTS:
        return
    axes = [n for n in range(len(first.shape)) if len({_without(part.shape, n) for part in parts}) == 1]
    if axes:
        axis = axes[int(rng.integers(len(axes)))]
        size = sum(part.shape[axis] for part in parts)
        shape = (*first.shape[:axis], size, *first.shape[axis + 1 :])
        mutation.add("Concat", [part.name for part in parts], first, shape, axis=axis)
        return
    for n, part in enumerate(parts):
        if len(part.shape) != 1:
            flat = (math.prod(part.shape),)
            mutation.add("Reshape", [part.name, mutation.sizes(flat)], part, flat)
            parts[n] = mutation.made[-1]
    total = (sum(part.shape[0] for part in parts),)
    mutation.add("Concat", [part.name for part in parts], first, total, axis=0)


def _copy(mutation: Mutation) -> None:
    """A value once more, under another name."""
    of = mutation.drawn()
    mutation.add("Identity", [of.name], of, of.shape)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The shape without an axis; no other shape's where it has no such axis."""
    return (*shape[:axis], -1, *shape[axis + 1 :]) if axis < len(shape) else (-2, *shape)


def _typed_values(model: ModelProto) -> list[Typed]:
    """The inputs, constants and results of a model whose shapes are known and which are not too large."""
    graph = shape_inference.infer_shapes(model).graph
    made = {name for node in graph.node for name in node.output}
    infos = [info for info in graph.value_info if info.name in made]
    found = [typed for info in (*graph.input, *graph.output, *infos) if (typed := _typed(info))]
    found += [Typed(c.name, c.data_type, tuple(c.dims)) for c in graph.initializer]
    return [v for v in {v.name: v for v in found}.values() if 0 < math.prod(v.shape) <= MAX_ELEMENTS]


def _typed(info: ValueInfoProto) -> Typed | None:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return Typed(info.name, tensor.elem_type, tuple(d.dim_value for d in tensor.shape.dim))

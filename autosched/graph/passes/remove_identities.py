"""Removal of identity nodes: their readers read the operand instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from autosched.graph.graph import Array, Attribute, Graph, Node
from autosched.graph.operators.elementwise import broadcast_shape
from autosched.graph.passes.operator_properties import BROADCASTING
from autosched.graph.passes.rewrite import Change, made_by, new_name, rewrite
from autosched.ir.dtype import DTYPES


def remove_identities(graph: Graph) -> Graph:
    """Remove identity nodes and each `expand` that broadcasting or a reduction makes unnecessary."""
    return rewrite(graph, drop_identity, _drop_neutral, _drop_choice, _broadcast_instead, _reduce_before)


def drop_identity(graph: Graph, node: Node) -> Change | None:
    """Replace the result of a node by its operand if operator, attributes, shape and type make it the identity."""
    is_identity = _IDENTITIES.get(node.operator)
    if is_identity is None or len(node.used) != 1 or len(node.inputs) != 1 or len(node.outputs) != 1:
        return None
    given, made = graph.values[node.used[0]], graph.values[node.outputs[0]]
    if not is_identity(node.attributes) or (given.shape, given.dtype) != (made.shape, made.dtype):
        return None
    return Change(aliases={made.name: given.name})


def _is_always(attributes: Mapping[str, Attribute]) -> bool:
    return True


def _is_in_order(attributes: Mapping[str, Attribute]) -> bool:
    perm = attributes["perm"]
    assert isinstance(perm, tuple)
    return perm == tuple(range(len(perm)))


def _is_forward(attributes: Mapping[str, Attribute]) -> bool:
    """Whether a slice of everything keeps the order."""
    steps = attributes.get("steps")
    return not isinstance(steps, tuple) or all(step == 1 for step in steps)


def _has_no_padding(attributes: Mapping[str, Attribute]) -> bool:
    pads = attributes["pads"]
    return isinstance(pads, tuple) and all(pair == (0, 0) for pair in pads)


def _has_no_shift(attributes: Mapping[str, Attribute]) -> bool:
    shifts = attributes["shifts"]
    return shifts == 0 or (isinstance(shifts, tuple) and not any(shifts))


def _has_no_limit(attributes: Mapping[str, Attribute]) -> bool:
    return attributes.get("low") is None and attributes.get("high") is None


# Whether a node of one operand, with a result of the same shape and type, is the identity, by its attributes.
_IDENTITIES: Mapping[str, Callable[[Mapping[str, Attribute]], bool]] = {
    "identity": _is_always,
    "cast": _is_always,
    "reshape": _is_always,
    "expand": _is_always,
    "tile": _is_always,
    "concat": _is_always,
    "split": _is_always,
    "maximum": _is_always,
    "minimum": _is_always,
    "transpose": _is_in_order,
    "slice": _is_forward,
    "pad": _has_no_padding,
    "roll": _has_no_shift,
    "flip": lambda attributes: attributes["axes"] == (),
    "clip": _has_no_limit,
}
# The neutral element of an operator, and the operands that it may be.
_NEUTRAL: Mapping[str, tuple[float, tuple[int, ...]]] = {
    "add": (0, (0, 1)),
    "sub": (0, (1,)),
    "mul": (1, (0, 1)),
    "div": (1, (1,)),
    "pow": (1, (1,)),
}


def _drop_neutral(graph: Graph, node: Node) -> Change | None:
    """x + 0, x - 0, x * 1, x / 1, x ** 1."""
    if node.operator not in _NEUTRAL:
        return None
    neutral, places = _NEUTRAL[node.operator]
    made = graph.values[node.outputs[0]]
    for place in places:
        array, other = graph.constants.get(node.inputs[place] or ""), node.inputs[1 - place]
        if array is None or other is None or not np.all(array == neutral):
            continue
        given = graph.values[other]
        if (given.shape, given.dtype) == (made.shape, made.dtype):
            return Change(aliases={made.name: given.name})
    return None


def _drop_choice(graph: Graph, node: Node) -> Change | None:
    """Replace where(c, x, x) by x."""
    if node.operator != "where" or node.inputs[1] != node.inputs[2]:
        return None
    shape = graph.values[node.outputs[0]].shape
    return Change((replace(node, operator="expand", inputs=node.inputs[1:2], attributes={"shape": shape}),))


def _broadcast_instead(graph: Graph, node: Node) -> Change | None:
    """Skip an `expand` before a node that broadcasts its operands."""
    if node.operator not in BROADCASTING:
        return None
    choices = []
    for name in node.inputs:
        expanded = made_by(graph, name, "expand")
        choices.append((name,) if expanded is None else (expanded.inputs[0], name))
    made = graph.values[node.outputs[0]]
    for inputs in product(*choices):
        shape = broadcast_shape(*(graph.values[name].shape for name in inputs if name is not None))
        if shape == made.shape and inputs != node.inputs:
            return Change((replace(node, inputs=inputs),))
    return None


# Whether a reduction of n equal elements is n times the element, else it is the element.
_SCALES_WITH_COUNT = {"reduce_max": False, "reduce_min": False, "reduce_mean": False, "reduce_sum": True}


def _reduce_before(graph: Graph, node: Node) -> Change | None:
    """Reduce the operand of an `expand` instead of its result."""
    expanded = made_by(graph, node.inputs[0], "expand") if node.operator in _SCALES_WITH_COUNT else None
    if expanded is None or expanded.inputs[0] is None:
        return None
    given, wide, made = (graph.values[name] for name in (expanded.inputs[0], *expanded.outputs, *node.outputs))
    rank, axes = len(wide.shape), node.attributes.get("axes")
    over = range(rank) if not isinstance(axes, tuple) else [int(str(axis)) % rank for axis in axes]
    own = (1,) * (rank - len(given.shape)) + given.shape
    count = math.prod(wide.shape[d] for d in over if own[d] == 1)
    if count == 1:
        return None
    last = tuple(1 if d in over else size for d, size in enumerate(wide.shape))
    dtype, constants = DTYPES[made.dtype], dict[str, Array]()
    steps: list[tuple[str, tuple[str, ...], Mapping[str, Attribute]]] = [
        ("reshape", (), {"shape": own}),
        (node.operator, (), {**node.attributes, "axes": tuple(over), "keepdims": True}),
    ]
    if _SCALES_WITH_COUNT[node.operator]:
        factor = np.asarray(count).astype(dtype.numpy_dtype)
        if dtype.is_float and dtype.nbytes < 4 and float(factor) != count:
            return None  # a sum of elements rounds less
        constants[new_name(graph, node, "count")] = factor
        steps.append(("mul", tuple(constants), {}))
    steps += [("expand", (), {"shape": last}), ("reshape", (), {"shape": made.shape})]
    nodes, at = list[Node](), given.name
    for n, (operator, others, attributes) in enumerate(steps):
        name = made.name if n == len(steps) - 1 else new_name(graph, node, f"narrow{n}")
        nodes.append(Node(operator, (at, *others), (name,), attributes, node.origin))
        at = name
    return Change(tuple(nodes), constants)

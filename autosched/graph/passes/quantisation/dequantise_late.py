"""Late dequantisation: movements, max pooling and relu work on the quantised bytes, and the result is dequantised.

    move(dequantize(x, s, z))              =  dequantize(move(x), s, z)
    max_pool(dequantize(x, s, z))          =  dequantize(max_pool(x), s, z)         where s > 0
    relu(dequantize(x, s, z))              =  dequantize(maximum(x, z), s, z)       where s > 0
    quantize(dequantize(x, s, z), s, z)    =  x                                     where s > 0

Values between layers then have a fourth of the bytes, and products have dequantised operands (`integer_products`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from autosched.graph.graph import Array, Attribute, Graph, Node
from autosched.graph.operators.quantised import BYTES
from autosched.graph.passes.rewrite import Change, made_by, new_name, rewrite
from autosched.ir.dtype import DTYPES

_FLOATS = ("float32", "float64")  # in which (q * scale) / scale is rounded to q


def dequantise_late(graph: Graph) -> Graph:
    """Move each `dequantize` behind nodes that can work on bytes, and cancel `quantize` of an equal `dequantize`."""
    return rewrite(graph, _cancel_requantisation, _drop_relu, _move_behind)


def _cancel_requantisation(graph: Graph, node: Node) -> Change | None:
    """Cancel quantize(dequantize(x)) with equal parameters."""
    inner = made_by(graph, node.inputs[0], "dequantize") if node.operator == "quantize" else None
    if inner is None or not _is_of_bytes(graph, inner) or not _has_positive_scale(graph, inner):
        return None
    source, made = graph.values[inner.inputs[0] or ""], graph.values[node.outputs[0]]
    is_same = source.dtype == made.dtype and _have_same_parameters(graph, (inner, node))
    return Change(aliases={made.name: source.name}) if is_same else None


def _drop_relu(graph: Graph, node: Node) -> Change | None:
    """Remove a relu of dequantised bytes whose lowest value is zero."""
    inner = made_by(graph, node.inputs[0], "dequantize") if node.operator == "relu" else None
    if inner is None or not _is_of_bytes(graph, inner) or not _has_positive_scale(graph, inner):
        return None
    low, _ = DTYPES[graph.values[inner.inputs[0] or ""].dtype].integer_range
    zero = _parameters(inner)[1]
    lowest = 0 if zero is None else graph.constants.get(zero)
    is_lowest = lowest is not None and bool(np.all(np.equal(lowest, low)))
    return Change(aliases={node.outputs[0]: inner.outputs[0]}) if is_lowest else None


def _move_behind(graph: Graph, node: Node) -> Change | None:
    can = _WORKS_ON_BYTES.get(node.operator)
    if can is None or not node.inputs:
        return None
    count = len(node.inputs) if node.operator == "concat" else 1
    inner = [made_by(graph, name, "dequantize") for name in node.inputs[:count]]
    dequantised = [maker for maker in inner if maker is not None and _is_of_bytes(graph, maker)]
    if (
        len(dequantised) < count
        or not can(graph, node, dequantised[0])
        or not _have_same_parameters(graph, dequantised)
    ):
        return None
    if len({graph.values[maker.inputs[0] or ""].dtype for maker in dequantised}) > 1:
        return None
    return _on_bytes(graph, node, dequantised)


def _on_bytes(graph: Graph, node: Node, dequantised: list[Node]) -> Change:
    """Replace a node by the same node on bytes, followed by `dequantize`."""
    bytes_ = tuple(maker.inputs[0] for maker in dequantised)
    scale, zero = _parameters(dequantised[0])
    names = tuple(new_name(graph, node, f"bytes{n}" if n else "bytes") for n in range(len(node.outputs)))
    constants: dict[str, Array] = {}
    if node.operator == "relu":
        least = zero
        if least is None:
            least = new_name(graph, node, "zero")
            constants[least] = np.zeros((), graph.values[bytes_[0] or ""].dtype)
        made = Node("maximum", (*bytes_, least), names, {}, node.origin)
    else:
        made = replace(node, inputs=(*bytes_, *node.inputs[len(dequantised) :]), outputs=names)
    parameters = (scale,) if zero is None else (scale, zero)
    attributes: dict[str, Attribute] = {"axis": _axis_after(graph, node, dequantised[0])}
    dequantized = (
        Node("dequantize", (name, *parameters), (floats,), attributes, dequantised[0].origin)
        for name, floats in zip(names, node.outputs, strict=True)
    )
    return Change((made, *dequantized), constants)


def _axis_after(graph: Graph, node: Node, inner: Node) -> int:
    """Return the axis with a scale per index after a node that may have permuted the axes."""
    axis = cast("int", inner.attributes.get("axis", 1))
    if node.operator != "transpose" or _has_one(graph, inner):
        return axis
    perm = cast("tuple[int, ...]", node.attributes["perm"])
    return [p % len(perm) for p in perm].index(axis % len(perm))


def _is_of_bytes(graph: Graph, inner: Node) -> bool:
    given, scale = graph.values[inner.inputs[0] or ""], graph.values[inner.inputs[1] or ""]
    return given.dtype in BYTES and scale.dtype in _FLOATS


def _has_one(graph: Graph, inner: Node) -> bool:
    """Whether all elements have one scale and one zero."""
    return all(np.prod(graph.values[name].shape, dtype=int) == 1 for name in inner.inputs[1:] if name is not None)


def _has_positive_scale(graph: Graph, inner: Node) -> bool:
    """Whether dequantisation is increasing, and division by the scale cannot overflow."""
    scale = graph.constants.get(inner.inputs[1] or "")
    return scale is not None and bool(np.all(np.isfinite(scale) & (scale >= np.finfo(scale.dtype).tiny)))


def _have_same_parameters(graph: Graph, nodes: Sequence[Node]) -> bool:
    first, *others = nodes
    axis = first.attributes.get("axis", 1)
    return all(
        all(_is_same(graph, *pair) for pair in zip(_parameters(first), _parameters(other), strict=True))
        and (_has_one(graph, first) or axis == other.attributes.get("axis", 1))
        for other in others
    )


def _parameters(node: Node) -> tuple[str | None, str | None]:
    _, scale, zero = (*node.inputs, None)[:3]
    return scale, zero


def _is_same(graph: Graph, a: str | None, b: str | None) -> bool:
    """Whether two parameters are equal; a zero that is left out is 0."""
    if a == b:
        return True
    one, other = (np.zeros(1) if name is None else graph.constants.get(name) for name in (a, b))
    return (
        one is not None and other is not None and one.size == other.size and np.array_equal(one.ravel(), other.ravel())
    )


# Whether a node can work on bytes.


def _has_one_scale(graph: Graph, node: Node, inner: Node) -> bool:
    return _has_one(graph, inner)


def _permutes(graph: Graph, node: Node, inner: Node) -> bool:
    return True


def _is_covered_max_pool(graph: Graph, node: Node, inner: Node) -> bool:
    """Whether each window has an element of the image: no byte stands for the padding's minus infinity."""
    if not _has_one(graph, inner) or not _has_positive_scale(graph, inner):
        return False
    kernel = cast("tuple[int, ...]", node.attributes["kernel"])
    pads = cast("tuple[tuple[int, int], ...]", node.attributes.get("pads") or ((0, 0),) * len(kernel))
    strides = cast("tuple[int, ...]", node.attributes.get("strides") or (1,) * len(kernel))
    dilations = cast("tuple[int, ...]", node.attributes.get("dilations") or ())
    more = [stride - 1 if node.attributes.get("ceil_mode") else 0 for stride in strides]
    starts = zip(kernel, pads, more, strict=True)
    return all(d == 1 for d in dilations) and all(max(low, high + later) < size for size, (low, high), later in starts)


def _is_at_least_zero(graph: Graph, node: Node, inner: Node) -> bool:
    shape = graph.values[node.outputs[0]].shape
    return len(shape) > 0 and _has_one(graph, inner) and _has_positive_scale(graph, inner)


_MOVEMENTS = ("reshape", "slice", "split", "concat", "expand", "flip", "roll", "tile", "gather")
_WORKS_ON_BYTES: Mapping[str, Callable[[Graph, Node, Node], bool]] = {
    **dict.fromkeys(_MOVEMENTS, _has_one_scale),
    "transpose": _permutes,
    "max_pool": _is_covered_max_pool,
    "relu": _is_at_least_zero,
}

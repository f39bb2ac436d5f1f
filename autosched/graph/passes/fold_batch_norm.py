"""Batch norm folding: scales and shifts of channels become part of the weights and the bias of the product before.

    conv(x, w, b) -> batch_norm -> mul by a constant for each channel  =  conv(x, w', b')

Each following node computes s * y + t for each channel. The s and t of a chain are combined in float64, and the new
weights are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from autosched.graph.graph import Array, Graph, Node
from autosched.graph.passes.rewrite import Change, made_by, new_name, read_once, rewrite
from autosched.ir.dtype import DTYPES

_STEPS = ("batch_norm", "add", "sub", "mul", "div")


@dataclass(frozen=True)
class _Product:
    """Where an operator of (x, weights, bias) has its channels. `scaled(weights, s, node)`: the weights times s."""

    scaled: Callable[[Array, Array, Node], Array]
    channel: int  # the dimension of the result
    has_bias: bool = True


@dataclass(frozen=True)
class _Affine:
    """s * y + t for each channel, in float64."""

    scale: Array
    shift: Array

    def then(self, step: _Affine) -> _Affine:
        return _Affine(step.scale * self.scale, step.scale * self.shift + step.shift)


def fold_batch_norm(graph: Graph) -> Graph:
    """Fold batch norms and constants per channel into the convolution, linear or matmul before them."""
    return rewrite(graph, _fold)


def _by_rows(weights: Array, scale: Array, node: Node) -> Array:
    return weights * scale.reshape(-1, *(1,) * (weights.ndim - 1))


def _by_columns(weights: Array, scale: Array, node: Node) -> Array:
    return weights * scale


def _of_gemm(weights: Array, scale: Array, node: Node) -> Array:
    return (_by_rows if node.attributes.get("trans_b", False) else _by_columns)(weights, scale, node)


def _by_groups(weights: Array, scale: Array, node: Node) -> Array:
    """Weights of a transposed convolution: [groups * inputs, outputs of a group, *kernel]."""
    groups = cast("int", node.attributes.get("groups", 1))
    apart = weights.reshape(groups, -1, *weights.shape[1:])
    factors = scale.reshape(groups, 1, -1, *(1,) * (weights.ndim - 2))
    return cast("Array", (apart * factors).reshape(weights.shape))


_PRODUCTS: Mapping[str, _Product] = {
    "conv": _Product(_by_rows, channel=1),
    "conv_transpose": _Product(_by_groups, channel=1),
    "linear": _Product(_by_rows, channel=-1),
    "gemm": _Product(_of_gemm, channel=-1),
    "matmul": _Product(_by_columns, channel=-1, has_bias=False),
}


def _fold(graph: Graph, node: Node) -> Change | None:
    """At the last node of a chain of steps after a product."""
    if node.operator not in _STEPS:
        return None
    steps: list[Node] = []
    name: str | None = node.outputs[0]
    while name is not None and (step := made_by(graph, name, *_STEPS)) is not None:
        steps.append(step)
        name = next((n for n in step.used if not graph.is_constant(n)), None)
        if name is not None and not read_once(graph, name):
            break
    product = made_by(graph, name, *_PRODUCTS)
    if product is None or name is None or not read_once(graph, name) or not _takes(graph, product):
        return None
    end = node.outputs[0]
    if read_once(graph, end) and _affine(graph, graph.users[end][0], product) is not None:
        return None  # the chain goes on
    total = _Affine(np.ones(_channels(graph, product)), np.zeros(_channels(graph, product)))
    for step in reversed(steps):
        affine = _affine(graph, step, product)
        if affine is None:
            return None
        total = total.then(affine)
    return _folded(graph, node, product, total)


def _takes(graph: Graph, product: Node) -> bool:
    """Whether weights and bias of a product are constants of floats, and laid out as `_PRODUCTS` says."""
    weights = graph.constants.get(product.inputs[1] or "")
    bias = product.inputs[2] if len(product.inputs) > 2 else None
    if weights is None or not DTYPES[graph.values[product.outputs[0]].dtype].is_float:
        return False
    if product.operator == "matmul":
        return weights.ndim == 2
    if bias is None:
        return True
    channels = _channels(graph, product)
    is_for_channels = graph.is_constant(bias) and graph.values[bias].shape == (channels,)
    return is_for_channels and (product.operator != "gemm" or product.attributes.get("beta", 1.0) == 1)


def _channels(graph: Graph, product: Node) -> int:
    return graph.values[product.outputs[0]].shape[_PRODUCTS[product.operator].channel]


def _affine(graph: Graph, step: Node, product: Node) -> _Affine | None:
    """Return a node's scale and shift for each channel; None if it is not affine per channel."""
    made, same = graph.values[product.outputs[0]], graph.values[step.outputs[0]]
    if step.operator not in _STEPS or (same.shape, same.dtype) != (made.shape, made.dtype):
        return None
    if step.operator == "batch_norm":
        return _of_batch_norm(graph, step) if _PRODUCTS[product.operator].channel % len(same.shape) == 1 else None
    left, right = step.inputs
    is_left = graph.is_constant(left)
    if is_left == graph.is_constant(right) or (is_left and step.operator == "div"):
        return None
    c = _by_channel(graph, cast("str", left if is_left else right), product)
    if c is None:
        return None
    one, zero = np.ones_like(c), np.zeros_like(c)
    with np.errstate(divide="ignore", invalid="ignore"):
        table = {"add": (one, c), "sub": (-one, c) if is_left else (one, -c), "mul": (c, zero), "div": (one / c, zero)}
    return _Affine(*table[step.operator])


def _of_batch_norm(graph: Graph, step: Node) -> _Affine | None:
    if not all(graph.is_constant(name) for name in step.inputs[1:]):
        return None
    scale, bias, mean, variance = (graph.constants[name].astype("float64") for name in step.inputs[1:] if name)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = scale / np.sqrt(variance + cast("float", step.attributes["epsilon"]))
        return _Affine(factor, bias - mean * factor)


def _by_channel(graph: Graph, name: str, product: Node) -> Array | None:
    """A constant as one number for each channel, where it is one."""
    array, made = graph.constants[name], graph.values[product.outputs[0]]
    rank, channels = len(made.shape), _channels(graph, product)
    axis = _PRODUCTS[product.operator].channel % rank
    shape = (1,) * (rank - array.ndim) + array.shape
    if array.size not in (1, channels) or shape[axis] != array.size:
        return None
    return np.broadcast_to(array.astype("float64").reshape(-1), (channels,))


def _folded(graph: Graph, node: Node, product: Node, total: _Affine) -> Change | None:
    """The product with new weights and a new bias, which a matmul has to leave to an add."""
    layout, (x, w, *rest) = _PRODUCTS[product.operator], product.inputs
    if x is None or w is None or (not layout.has_bias and np.all(total.scale == 1)):
        return None  # a shift alone has no place in a matmul
    constants: dict[str, Array] = {}
    old, weights, shift = graph.constants[w], w, new_name(graph, node, "bias")
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.all(total.scale == 1):
            weights = new_name(graph, node, "weights")
            constants[weights] = layout.scaled(old.astype("float64"), total.scale, product).astype(old.dtype)
        bias = total.shift + (graph.constants[rest[0]].astype("float64") * total.scale if rest and rest[0] else 0.0)
        if np.any(bias != 0):
            constants[shift] = bias.astype(DTYPES[graph.values[node.outputs[0]].dtype].numpy_dtype)
    if not all(np.isfinite(array.astype("float64")).all() for array in constants.values()):
        return None
    if shift not in constants or layout.has_bias:
        inputs = (x, weights, shift) if shift in constants else (x, weights)
        return Change((replace(product, inputs=inputs, outputs=node.outputs),), constants)
    scaled = new_name(graph, node, "scaled")
    products = replace(product, inputs=(x, weights), outputs=(scaled,))
    return Change((products, Node("add", (scaled, shift), node.outputs, origin=node.origin)), constants)

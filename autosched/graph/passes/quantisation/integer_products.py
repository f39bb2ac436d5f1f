"""Integer products: products of dequantised operands become products of the integers, whose sums are scaled.

    conv(dequantize(x, sx, zx), dequantize(w, sw, zw), b)  =  cast(conv_integer(x, w, zx, zw)) * (sx sw) + b

The sums are exact, processors have instructions for them, and weights stay integers in memory. A `quantize` that
follows is fused as an epilogue, as any elementwise node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from autosched.graph.graph import Attribute, Graph, Node
from autosched.graph.operators.quantised import BYTES
from autosched.graph.passes.rewrite import Change, made_by, new_name, rewrite

_FLOATS = ("float32", "float64")  # types whose range holds any sum of 32 bits
_MAX_TERMS = (2**31 - 1) // 255**2  # of a sum that cannot overflow 32 bits, whatever the bytes and zero points are


@dataclass(frozen=True)
class _Quantised:
    """A dequantised value, (values - zero) * scale; `zero` None is 0. `by_channel`: one scale per channel."""

    values: str
    scale: str
    zero: str | None
    by_channel: bool


@dataclass(frozen=True)
class _IntegerProduct:
    """The integer `operator` for an operator of (x, weights, bias).

    `channel`: the axis of output channels in the weights, which are transposed if `is_transposed`. `inner`: the number
    of axes after the channels in the result.
    """

    operator: str
    channel: int
    is_transposed: bool = False
    inner: int = 0


def use_integer_products(graph: Graph) -> Graph:
    """Replace convolutions and matrix products of two dequantised operands by integer ones."""
    return rewrite(graph, _to_integers)


def _to_integers(graph: Graph, node: Node) -> Change | None:
    product = _product(graph, node)
    if product is None or len(node.inputs) < 2:
        return None
    x, w = _quantised(graph, node.inputs[0], None), _quantised(graph, node.inputs[1], product.channel)
    if x is None or w is None:
        return None
    made, shape = graph.values[node.outputs[0]], graph.values[w.values].shape
    terms = math.prod(shape[1:]) if product.inner else math.prod(shape[-2:]) // shape[product.channel]
    dtypes = {made.dtype, graph.values[x.scale].dtype, graph.values[w.scale].dtype}
    if terms > _MAX_TERMS or len(dtypes) > 1 or made.dtype not in _FLOATS:
        return None
    return Change(tuple(_nodes(graph, node, product, (x, w))))


def _product(graph: Graph, node: Node) -> _IntegerProduct | None:
    """Return the integer product for a node, or None."""
    match node.operator:
        case "conv":
            return _IntegerProduct("conv_integer", 0, inner=len(graph.values[node.outputs[0]].shape) - 2)
        case "linear":
            return _IntegerProduct("matmul_integer", 0, is_transposed=True)
        case "matmul" if all(len(graph.values[name].shape) > 1 for name in node.used):
            return _IntegerProduct("matmul_integer", len(graph.values[node.inputs[1] or ""].shape) - 1)
        case "gemm" if not node.attributes.get("trans_a") and all(
            node.attributes.get(name, 1.0) == 1 for name in ("alpha", "beta")
        ):
            turned = bool(node.attributes.get("trans_b"))
            return _IntegerProduct("matmul_integer", 0 if turned else 1, turned)
    return None


def _quantised(graph: Graph, name: str | None, channel: int | None) -> _Quantised | None:
    """Return the operands of a `dequantize` with one scale, or one for each index of the axis `channel`, else None."""
    node = made_by(graph, name, "dequantize")
    if node is None:
        return None
    values, scale, zero = (*node.inputs, None)[:3]
    assert values is not None
    assert scale is not None
    given = graph.values[values]
    if given.dtype not in BYTES:
        return None
    by_channel = math.prod(graph.values[scale].shape) > 1
    axis = cast("int", node.attributes.get("axis", 1))
    if by_channel and axis % len(given.shape) != channel:
        return None
    if zero is not None and not np.any(graph.constants.get(zero, True)):
        zero = None
    return _Quantised(values, scale, zero, by_channel)


def _nodes(
    graph: Graph, node: Node, product: _IntegerProduct, operands: tuple[_Quantised, _Quantised]
) -> Iterator[Node]:
    x, w = operands
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    made, weights = graph.values[node.outputs[0]], w.values

    def add(operator: str, word: str, *inputs: str | None, **attributes: Attribute) -> Node:
        name = new_name(graph, node, word) if word else made.name
        return Node(operator, inputs, (name,), attributes, node.origin)

    def of_channels(name: str, word: str) -> Iterator[Node]:
        """Reshape a value per channel so that it broadcasts to the result."""
        yield add("reshape", word, name, shape=(math.prod(graph.values[name].shape), *(1,) * product.inner))

    if product.is_transposed:
        turned = add("transpose", "turned", weights, perm=(1, 0))
        weights = turned.outputs[0]
        yield turned
    told = node.attributes if product.inner else {}
    sums = add(product.operator, "sums", x.values, weights, x.zero, w.zero, **told)
    floats = add("cast", "floats", sums.outputs[0], dtype=made.dtype)
    scale_of_w = w.scale
    yield from (sums, floats)
    if w.by_channel and product.inner:
        (reshaped,) = of_channels(w.scale, "scales")
        scale_of_w = reshaped.outputs[0]
        yield reshaped
    scale = add("mul", "scale", x.scale, scale_of_w)
    yield scale
    yield add("mul", "scaled" if bias else "", floats.outputs[0], scale.outputs[0])
    if bias is None:
        return
    if product.inner:
        (reshaped,) = of_channels(bias, "shift")
        bias = reshaped.outputs[0]
        yield reshaped
    yield add("add", "", new_name(graph, node, "scaled"), bias)

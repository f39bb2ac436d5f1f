"""Low-bit weights: products of few rows read weights of 4 or 8 bits as they are stored, without dequantising them.

    linear(x, reshape((cast(q) - zero) * scale), b)  =  linear_few_bits(x, words of q, scale, zero, b)

Constant folding would dequantise the weights at load time, which is right for many rows. One row uses each weight
once, so its time is that of reading the weights from memory: with 4 bits an eighth of the bytes of float32.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autosched.graph.graph import Array, Graph, Node, Shape
from autosched.graph.operators.few_bits import WORD_BITS
from autosched.graph.passes.rewrite import Change, new_name, rewrite

MAX_ROWS = 16  # with more rows, unpacking in each register tile takes longer than reading floats
MIN_WEIGHTS = 1 << 14  # fewer weights stay in the caches as floats
_BITS = (4, 8)
_FLOAT = "float32"


@dataclass(frozen=True)
class _Codes:
    """Weights (codes - zero) * scale, which broadcast to the shape of `codes`, reshaped to `shape`."""

    codes: Array
    scale: Array
    zero: Array
    shape: Shape

    def scaled(self, by: Array) -> _Codes | None:
        return replace(self, scale=self.scale * by) if self._fits(by) else None

    def shifted(self, by: Array) -> _Codes | None:
        """Return the codes with `by` added."""
        return replace(self, zero=self.zero - by / self.scale) if self._fits(by) and np.all(self.scale) else None

    def _fits(self, other: Array) -> bool:
        """Whether an operand is a scalar, or broadcasts to the codes before any reshape."""
        return other.size == 1 or (self.shape == self.codes.shape and other.ndim <= self.codes.ndim)


def pack_low_bit_weights(graph: Graph) -> Graph:
    """Replace products of few rows with constants of 4 or 8 bits by `linear_few_bits`."""
    return rewrite(graph, _to_low_bits) if sys.byteorder == "little" else graph


def _to_low_bits(graph: Graph, node: Node) -> Change | None:
    if node.operator not in ("linear", "matmul") or len(node.inputs) < 2 or node.inputs[0] is None:
        return None
    x, weights = graph.values[node.inputs[0]], graph.values[node.inputs[1] or ""]
    plain = len(weights.shape) == 2 and len(x.shape) > 1 and x.dtype == graph.values[node.outputs[0]].dtype == _FLOAT
    codes = _codes(graph, weights.name) if plain and weights.name not in graph.constants else None
    if codes is None or math.prod(x.shape[:-1]) > MAX_ROWS or math.prod(weights.shape) < MIN_WEIGHTS:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return _packed(graph, node, codes, node.operator == "matmul", bias)


def _codes(graph: Graph, name: str) -> _Codes | None:
    """Return a value as scaled and shifted constant codes, or None."""
    array = graph.constants.get(name)
    if array is not None:
        one = np.ones((), np.float64)
        return _Codes(array, one, 0 * one, array.shape) if array.dtype.kind in "iu" else None
    node = graph.producers.get(name)
    if node is None or node.inputs[0] is None:
        return None
    if node.operator in ("add", "sub", "mul", "div"):
        return _combined(graph, node)
    if node.operator not in ("cast", "reshape", "dequantize"):
        return None
    inner, made = _codes(graph, node.inputs[0]), graph.values[name]
    if inner is None or (node.operator != "reshape" and made.dtype != _FLOAT):
        return None
    return _dequantized(graph, node, inner) if node.operator == "dequantize" else replace(inner, shape=made.shape)


def _combined(graph: Graph, node: Node) -> _Codes | None:
    """Return codes after arithmetic with a constant that does not broadcast the result, or None."""
    first, second = (graph.constants.get(name or "") for name in node.inputs)
    array, other = (first, node.inputs[1]) if second is None else (second, node.inputs[0])
    if array is None or array.dtype != _FLOAT or (array is first and node.operator in ("sub", "div")):
        return None
    inner, made = _codes(graph, other or ""), graph.values[node.outputs[0]]
    if inner is None or made.shape != inner.shape or made.dtype != _FLOAT:
        return None
    by = array.astype(np.float64)
    if node.operator in ("add", "sub"):
        return inner.shifted(by if node.operator == "add" else -by)
    return inner.scaled(by if node.operator == "mul" else 1 / by) if np.all(by) else None


def _dequantized(graph: Graph, node: Node, inner: _Codes) -> _Codes | None:
    """Return codes after `dequantize` with one scale and zero, or one for each index of an axis."""
    names, axis = (*node.inputs[1:], None)[:2], node.attributes.get("axis", 1)
    given: list[Array | None] = [None if name is None else graph.constants.get(name) for name in names]
    if given[0] is None or (names[1] is not None and given[1] is None) or not isinstance(axis, int):
        return None
    after = (1,) * (len(inner.shape) - 1 - axis % len(inner.shape))
    scale, zero = (None if a is None else a.astype(np.float64).reshape(*(a.shape if a.size > 1 else ()), *after)
                   for a in given)  # fmt: skip
    shifted = inner if zero is None else inner.shifted(-zero)
    return None if shifted is None or scale is None else shifted.scaled(scale)


def _packed(graph: Graph, node: Node, quantised: _Codes, turned: bool, bias: str | None) -> Change | None:
    """Return the product with the codes packed in words; None for codes of more bits or groups of partial words."""
    if len(quantised.shape) != 2 or not np.all(quantised.scale):
        return None
    low, high = int(quantised.codes.min()), int(quantised.codes.max())
    least, bits = (0 if low >= 0 else -8, 4) if high - min(low, 0) < 16 and low >= -8 else (0 if low >= 0 else -128, 8)
    grouped = _grouped(quantised, turned)
    if high - least >= 1 << bits or low < least or grouped is None:
        return None
    codes, scales, zeros = grouped
    if codes.shape[1] // scales.shape[1] % (WORD_BITS // bits):
        return None
    zeros = zeros - least
    words = _words((codes - least).astype(np.uint8), bits)
    constants = {new_name(graph, node, "words"): words, new_name(graph, node, "scales"): scales.astype(_FLOAT)}
    attributes: dict[str, Any] = {"bits": bits}
    if np.all(zeros == zeros[0, 0]):
        attributes["zero"] = float(zeros[0, 0])
        inputs = (node.inputs[0], *constants, None, bias)
    else:
        constants[new_name(graph, node, "zeros")] = zeros.astype(_FLOAT)
        inputs = (node.inputs[0], *constants, bias)
    while inputs[-1] is None:
        inputs = inputs[:-1]
    return Change((Node("linear_few_bits", inputs, node.outputs, attributes, node.origin),), constants)


def _grouped(quantised: _Codes, turned: bool) -> tuple[Array, Array, Array] | None:
    """Return codes [N, K], scales and zeros [N, groups]; None where scales differ between neighbours along K."""
    shape = quantised.codes.shape
    parts = [np.broadcast_to(a, (*(1,) * (len(shape) - a.ndim), *a.shape)) for a in (quantised.scale, quantised.zero)]
    if turned:  # [K, N], of which each column is a group
        if len(shape) != 2 or any(a.shape[0] > 1 for a in parts):
            return None
        scales, zeros = (np.broadcast_to(a, (1, shape[1])).T for a in parts)
        return quantised.codes.T, scales, zeros
    own = max((n + 1 for n in range(len(shape)) if any(a.shape[n] > 1 for a in parts)), default=1)
    if shape[0] != quantised.shape[0] or own == len(shape):
        return None
    outer = shape[:own]
    scales, zeros = (
        np.broadcast_to(a.reshape(a.shape[:own]), outer).reshape(shape[0], math.prod(outer[1:])) for a in parts
    )
    return quantised.codes.reshape(quantised.shape), scales, zeros


def _words(codes: Array, bits: int) -> Array:
    """Pack codes [N, K], a byte each, in words of 32 bits, the first in the lowest bits."""
    bytes_ = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    words: Array = np.ascontiguousarray(bytes_).view(np.int32)
    return words

"""Products of few rows read weights of few bits as they are stored, and not the floats that these stand for.

    linear(x, reshape((cast(q) - zero) * scale), b)  =  linear_few_bits(x, words of q, scale, zero, b)

What depends on weights alone is otherwise computed once, when a network is loaded. For many rows that is right. One row
uses each weight once, so that it takes as long as the bytes of all weights take to come from memory: an eighth of those
of floats, where a weight has 4 bits.
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

MOST_ROWS = 16  # with more, unpacking for each register tile takes longer than the floats take to come
FEWEST_WEIGHTS = 1 << 14  # fewer stay in the caches as floats
_BITS = (4, 8)
_FLOAT = "float32"


@dataclass(frozen=True)
class _Codes:
    """(codes - zero) * scale, all of which broadcast to the shape of `codes`, seen in `shape`."""

    codes: Array
    scale: Array
    zero: Array
    shape: Shape

    def scaled(self, by: Array) -> _Codes | None:
        return replace(self, scale=self.scale * by) if self._fits(by) else None

    def moved(self, by: Array) -> _Codes | None:
        """With `by` added."""
        return replace(self, zero=self.zero - by / self.scale) if self._fits(by) and np.all(self.scale) else None

    def _fits(self, other: Array) -> bool:
        """Whether the operand belongs to the codes in the shape that they have themselves, or to all alike."""
        return other.size == 1 or (self.shape == self.codes.shape and other.ndim <= self.codes.ndim)


def pack_low_bit_weights(graph: Graph) -> Graph:
    """Products of few rows by constants that are made of codes of 4 or 8 bits."""
    return rewrite(graph, _instead) if sys.byteorder == "little" else graph


def _instead(graph: Graph, node: Node) -> Change | None:
    if node.operator not in ("linear", "matmul") or len(node.inputs) < 2 or node.inputs[0] is None:
        return None
    x, weights = graph.values[node.inputs[0]], graph.values[node.inputs[1] or ""]
    plain = len(weights.shape) == 2 and len(x.shape) > 1 and x.dtype == graph.values[node.outputs[0]].dtype == _FLOAT
    rows = math.prod(x.shape[:-1])
    if not plain or rows > MOST_ROWS or math.prod(weights.shape) < FEWEST_WEIGHTS or weights.name in graph.constants:
        return None
    found = _codes(graph, weights.name)
    if found is None:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return _packed(graph, node, found, node.operator == "matmul", bias)


def _codes(graph: Graph, name: str) -> _Codes | None:
    """What a value is made of, if of constants alone: codes, times and plus numbers that groups of them share."""
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
    """Arithmetic with a constant, which stretches nothing."""
    first, second = (graph.constants.get(name or "") for name in node.inputs)
    array, other = (first, node.inputs[1]) if second is None else (second, node.inputs[0])
    if array is None or array.dtype != _FLOAT or (array is first and node.operator in ("sub", "div")):
        return None
    inner, made = _codes(graph, other or ""), graph.values[node.outputs[0]]
    if inner is None or made.shape != inner.shape or made.dtype != _FLOAT:
        return None
    by = array.astype(np.float64)
    if node.operator in ("add", "sub"):
        return inner.moved(by if node.operator == "add" else -by)
    return inner.scaled(by if node.operator == "mul" else 1 / by) if np.all(by) else None


def _dequantized(graph: Graph, node: Node, inner: _Codes) -> _Codes | None:
    """With the scale and the zero of all, or of each index of an axis."""
    names, axis = (*node.inputs[1:], None)[:2], node.attributes.get("axis", 1)
    given: list[Array | None] = [None if name is None else graph.constants.get(name) for name in names]
    if given[0] is None or (names[1] is not None and given[1] is None) or not isinstance(axis, int):
        return None
    after = (1,) * (len(inner.shape) - 1 - axis % len(inner.shape))
    scale, zero = (None if a is None else a.astype(np.float64).reshape(*(a.shape if a.size > 1 else ()), *after)
                   for a in given)  # fmt: skip
    moved = inner if zero is None else inner.moved(-zero)
    return None if moved is None or scale is None else moved.scaled(scale)


def _packed(graph: Graph, node: Node, found: _Codes, turned: bool, bias: str | None) -> Change | None:
    """The product with the codes in words; None where these are of more bits, or groups are no whole words."""
    if len(found.shape) != 2 or not np.all(found.scale):
        return None
    low, high = int(found.codes.min()), int(found.codes.max())
    least, bits = (0 if low >= 0 else -8, 4) if high - min(low, 0) < 16 and low >= -8 else (0 if low >= 0 else -128, 8)
    grouped = _grouped(found, turned)
    if high - least >= 1 << bits or low < least or grouped is None:
        return None
    codes, scales, zeros = grouped
    if codes.shape[1] // scales.shape[1] % (WORD_BITS // bits):
        return None
    zeros = zeros - least
    words = _words((codes - least).astype(np.uint8), bits)
    constants = {new_name(graph, node, "words"): words, new_name(graph, node, "scales"): scales.astype(_FLOAT)}
    told: dict[str, Any] = {"bits": bits}
    if np.all(zeros == zeros[0, 0]):
        told["zero"] = float(zeros[0, 0])
        inputs = (node.inputs[0], *constants, None, bias)
    else:
        constants[new_name(graph, node, "zeros")] = zeros.astype(_FLOAT)
        inputs = (node.inputs[0], *constants, bias)
    while inputs[-1] is None:
        inputs = inputs[:-1]
    return Change((Node("linear_few_bits", inputs, node.outputs, told, node.origin),), constants)


def _grouped(found: _Codes, turned: bool) -> tuple[Array, Array, Array] | None:
    """Codes [N, K], scales and zeros [N, groups]; None where neighbours along K have numbers of their own."""
    shape = found.codes.shape
    parts = [np.broadcast_to(a, (*(1,) * (len(shape) - a.ndim), *a.shape)) for a in (found.scale, found.zero)]
    if turned:  # [K, N], of which each column is a group
        if len(shape) != 2 or any(a.shape[0] > 1 for a in parts):
            return None
        scales, zeros = (np.broadcast_to(a, (1, shape[1])).T for a in parts)
        return found.codes.T, scales, zeros
    own = max((n + 1 for n in range(len(shape)) if any(a.shape[n] > 1 for a in parts)), default=1)
    if shape[0] != found.shape[0] or own == len(shape):
        return None
    outer = shape[:own]
    scales, zeros = (
        np.broadcast_to(a.reshape(a.shape[:own]), outer).reshape(shape[0], math.prod(outer[1:])) for a in parts
    )
    return found.codes.reshape(found.shape), scales, zeros


def _words(codes: Array, bits: int) -> Array:
    """Codes [N, K] of one byte each in words, the first in the lowest bits."""
    bytes_ = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    words: Array = np.ascontiguousarray(bytes_).view(np.int32)
    return words

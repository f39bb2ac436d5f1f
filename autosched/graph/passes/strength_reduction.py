"""Strength reduction of powers with a constant exponent to products, roots and quotients.

These take a tenth of the time of a power. x ** 0.5 becomes sqrt(x), as in torch, although they differ for -inf.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autosched.graph.graph import Graph, Node
from autosched.graph.passes.rewrite import Change, new_name, rewrite
from autosched.ir.dtype import DTYPES

_ROOTS: Mapping[float, str] = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


def reduce_strength(graph: Graph) -> Graph:
    """Replace x ** 2, 3, 4, 0.5, -0.5 and -1 of floats, and the first three of integers."""
    return rewrite(graph, _reduce_power)


def _reduce_power(graph: Graph, node: Node) -> Change | None:
    if node.operator != "pow":
        return None
    base, exponent = node.inputs
    array, made = graph.constants.get(exponent or ""), graph.values[node.outputs[0]]
    if base is None or array is None or array.size != 1 or graph.values[base].shape != made.shape:
        return None
    n = float(array.astype(np.float64).reshape(()))
    if n in _ROOTS and DTYPES[made.dtype].is_float:
        return Change((Node(_ROOTS[n], (base,), node.outputs, {}, node.origin),))
    if n == 2:
        return Change((_product(base, base, node),))
    if n not in (3, 4) or (DTYPES[made.dtype].is_float and DTYPES[made.dtype].nbytes < 4):  # it would round twice
        return None
    square = new_name(graph, node, "square")
    first = Node("mul", (base, base), (square,), {}, node.origin)
    return Change((first, _product(square, base if n == 3 else square, node)))


def _product(a: str, b: str, node: Node) -> Node:
    return Node("mul", (a, b), node.outputs, {}, node.origin)

"""Common subexpression elimination: equal nodes and equal constants become one."""

from __future__ import annotations

import json

import numpy as np

from autosched.graph.graph import Array, Graph, Node
from autosched.graph.passes.operator_properties import COMMUTATIVE
from autosched.graph.passes.remove_identities import remove_identities
from autosched.graph.passes.rewrite import Change, apply

_SAMPLES = 64  # elements that distinguish most constants of one shape


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """Merge nodes of the same operator, attributes and inputs, and constants of equal bits.

    A `where` whose operands became equal is removed, and the pass runs again, as its readers may be equal now.
    """
    same = _equal_constants(graph)
    first: dict[tuple[object, ...], Node] = {}
    changes: dict[int, Change] = {}
    for n, node in enumerate(graph.nodes):
        inputs = [None if name is None else same.get(name, name) for name in node.inputs]
        if node.operator in COMMUTATIVE:
            inputs.sort(key=str)
        words = json.dumps(sorted(node.attributes.items()), default=str)
        known = first.setdefault((node.operator, *inputs, words, str(node.body), len(node.outputs)), node)
        if known is not node:
            aliases = dict(zip(node.outputs, known.outputs, strict=True))
            same.update((old, same.get(new, new)) for old, new in aliases.items())
            changes[n] = Change(aliases=aliases)
    merged = apply(graph, changes)
    simplified = remove_identities(merged)
    return merged if simplified is merged else eliminate_common_subexpressions(simplified)


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Map each constant that equals an earlier one to that one."""
    groups: dict[tuple[object, ...], list[str]] = {}
    same: dict[str, str] = {}
    for name, array in graph.constants.items():
        alike = groups.setdefault((array.dtype.name, array.shape, _sample(array)), [])
        twin = next((other for other in alike if _is_equal(array, graph.constants[other])), None)
        if twin is None:
            alike.append(name)
        else:
            same[name] = twin
    return same


def _sample(array: Array) -> bytes:
    flat = array.reshape(-1)
    return flat[:: max(1, flat.size // _SAMPLES)].tobytes()


def _is_equal(a: Array, b: Array) -> bool:
    """Bit by bit: 0.0 is not -0.0, and a NaN is itself."""
    return bool(np.array_equal(np.ascontiguousarray(a).view("uint8"), np.ascontiguousarray(b).view("uint8")))

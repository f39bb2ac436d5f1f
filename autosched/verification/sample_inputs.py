"""Sample inputs of a network: normally distributed ones, and structured ones, in which neighbours differ.

Integers that are indices are drawn from the valid range, other integers of more than 8 bits are 0 or 1, as in masks.
Arguments of logarithms and roots and divisors are positive. These follow from the first nodes that use an input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autosched.graph.fusion.node_properties import NodeKind, properties_of
from autosched.graph.graph import Array, Graph, Node
from autosched.graph.index_checks import required_checks
from autosched.graph.operators import build
from autosched.ir.dtype import DTYPES
from autosched.ir.visit import loads
from autosched.te import ComputeDAG, placeholder
from autosched.te.reference.inputs import positive_inputs
from autosched.te.tensor import PlaceholderOp

NORMAL = "normal"  # kind of the inputs that are drawn
PERIOD = 31  # of structured numbers: a prime, so that rows of most lengths differ


@dataclass(frozen=True)
class InputSet:
    """Arrays by the names of the network's inputs. `kind`: "normal", "structured" or "given"."""

    kind: str
    arrays: Mapping[str, Array]


@dataclass
class _Use:
    """What the readers of a value require of it. `extent`: indices have to be below it; 0: the value is no index."""

    extent: int = 0
    positive: bool = False

    def add(self, other: _Use) -> None:
        self.extent = min(self.extent, other.extent) if self.extent and other.extent else self.extent or other.extent
        self.positive = self.positive or other.positive


def input_sets(graph: Graph, given: Mapping[str, Array] | None = None, seed: int = 0) -> tuple[InputSet, ...]:
    """Return normal inputs, or those `given`, and structured ones, whose integers are the given ones."""
    uses = {} if given else _uses(graph)
    rng = np.random.default_rng(seed)
    first, structured = dict[str, Array](), dict[str, Array]()
    for n, name in enumerate(graph.inputs):
        value, use = graph.values[name], uses.get(name, _Use())
        count = np.arange(math.prod(value.shape)).reshape(value.shape) + n
        if DTYPES[value.dtype].is_float:
            drawn, counted = _floats(rng.standard_normal(value.shape), count, use.positive)
        else:
            low, high = _integers(value.dtype, use)
            drawn, counted = rng.integers(low, high + 1, value.shape), low + count % (high + 1 - low)
        dtype = DTYPES[value.dtype].numpy_dtype
        first[name] = drawn.astype(dtype) if given is None else given[name]
        keeps = given is not None and not DTYPES[value.dtype].is_float
        structured[name] = first[name] if keeps else counted.astype(dtype)
    return InputSet(NORMAL if given is None else "given", first), InputSet("structured", structured)


def _floats(drawn: Array, count: Array, positive: bool) -> tuple[Array, Array]:
    """Return normal and structured floats; positive ones are at least 0.5, because errors explode near 0."""
    counted = (count % PERIOD - PERIOD // 2) / PERIOD
    return (np.abs(drawn) + 0.5, np.abs(counted) + 0.5) if positive else (drawn, counted)


def _integers(dtype: str, use: _Use) -> tuple[int, int]:
    """Return the smallest and the largest integer that an input is drawn from."""
    if use.extent:
        return 0, use.extent - 1
    if DTYPES[dtype].kind == "b" or DTYPES[dtype].nbytes > 1:
        return int(use.positive), 1
    return DTYPES[dtype].integer_range


def _uses(graph: Graph) -> dict[str, _Use]:
    """Return the uses of inputs by name, by nodes that read them or elementwise functions of them."""
    derived = set(graph.inputs)
    readers: list[tuple[Node, bool]] = []
    for node in graph.nodes:
        if derived.isdisjoint(node.used):
            continue
        facts = properties_of(node, graph)
        is_elementwise = facts.kind is not NodeKind.GENERAL and not facts.is_gather
        readers.append((node, is_elementwise))
        derived.update(node.outputs if is_elementwise else ())
    uses: dict[str, _Use] = {}
    for node, is_elementwise in reversed(readers):
        for name, use in _own_uses(node, graph):
            uses.setdefault(name, _Use()).add(use)
        if is_elementwise:
            of_results = _Use()
            for name in node.outputs:
                of_results.add(uses.get(name, _Use()))
            for name in node.used:
                uses.setdefault(name, _Use()).add(of_results)
    return uses


def _own_uses(node: Node, graph: Graph) -> Iterator[tuple[str, _Use]]:
    """Yield what a node requires of its operands: as indices, and by its expression."""
    for need in required_checks(node, graph.values):
        yield need.ids, _Use(extent=need.high + 1)
    if node.body is not None:
        inside = _uses(node.body)
        operands = zip(node.inputs, node.body.inputs, strict=True)
        yield from ((name or "", inside[own]) for name, own in operands if own in inside)
        return
    labels = {name: f"x{n}" for n, name in enumerate(node.used)}
    names = {label: name for name, label in labels.items()}
    tensors = {n: placeholder(graph.values[n].shape, graph.values[n].dtype, labels[n]) for n in node.used}
    results = build(node, [None if name is None else tensors[name] for name in node.inputs])
    if all(isinstance(t.op, PlaceholderOp) for t in results):
        return
    dag = ComputeDAG(results)
    for label in positive_inputs(dag):
        yield names[label], _Use(positive=True)
    for op in dag.stages:
        for load in dag.reads(op):
            for index, extent in zip(load.indices, dag.tensors[load.buffer].shape, strict=True):
                for inner in loads(index):
                    if inner.buffer in names and DTYPES[inner.dtype].is_integer:
                        yield names[inner.buffer], _Use(extent=extent)

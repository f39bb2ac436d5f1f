"""Bounds checks of indices: which elements of which values must lie in which range for the nodes of a graph.

    gather(x[5, 8], ids)     ->  IndexCheck(ids, low=-5, high=4)       of "wrapped" indexing; "plain": low=0

A constant is checked when a graph is imported. A value is checked in each call, unless interval analysis
(`value_ranges`) proves its range. The check moves from a value to what that is a rearrangement of: to an input, mostly,
which is in memory in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from autosched.errors import GraphError
from autosched.graph.graph import Array, Graph, Node, Shape, Value, fresh_name
from autosched.graph.operators.gathers import PLAIN, UNCHECKED, WRAPPED
from autosched.graph.operators.index_maps import axis_of
from autosched.graph.value_ranges import value_ranges
from autosched.ir.dtype import DTYPES

Sizes: TypeAlias = Callable[[Shape, Shape, Node], tuple[int, ...]]  # of x, of its indices, the node


def _along_axis(x: Shape, ids: Shape, node: Node) -> tuple[int, ...]:
    return (x[axis_of(cast("int", node.attributes.get("axis", 0)), len(x))],)


def _of_coordinates(x: Shape, ids: Shape, node: Node) -> tuple[int, ...]:
    first = cast("int", node.attributes.get("batch_dims", 0))
    return x[first : first + ids[-1]]


# Operators whose second operand has indices of the first -> the sizes that these index, in turn along the last axis.
INDEXED: Mapping[str, Sizes] = {
    "gather": _along_axis,
    "gather_elements": _along_axis,
    "gather_nd": _of_coordinates,
    "scatter_elements": _along_axis,
    "scatter_nd": _of_coordinates,
    "write_rows": _along_axis,
}
# Operators whose result has the elements of their first operand, all of them and no others.
CHECKS = "first_outside"  # the operator that checks, where a kernel has to
_REARRANGED = ("reshape", "transpose", "expand", "identity", "flip", "roll", "tile")


@dataclass(frozen=True)
class IndexCheck:
    """The elements `column`, `column + columns`, ... of the value `ids` must lie in `low` to `high`; `reader` is the
    operator that uses them, as messages name it."""

    ids: str
    low: int
    high: int
    reader: str
    column: int = 0
    columns: int = 1

    def message(self, index: int) -> str:
        """What is wrong with an index that is outside."""
        return f"{self.reader}: the index {index} is out of range, which is {self.low} to {self.high}"


def needs_of(node: Node, values: Mapping[str, Value]) -> tuple[IndexCheck, ...]:
    """What a node needs of its indices, whatever these are."""
    indexing = node.attributes.get("indexing", WRAPPED)
    if node.operator not in INDEXED or indexing == UNCHECKED:
        return ()
    x, ids = (values[name] for name in node.inputs[:2] if name is not None)
    sizes, reader = INDEXED[node.operator](x.shape, ids.shape, node), node.origin or node.operator
    return tuple(
        IndexCheck(ids.name, 0 if indexing == PLAIN else -size, size - 1, reader, n, len(sizes))
        for n, size in enumerate(sizes)
    )


def check_constants(graph: Graph) -> None:
    """Raises GraphError for a constant index that is out of range."""
    for node in graph.nodes:
        for need in needs_of(node, graph.values):
            if need.ids in graph.constants:
                _check_constant(need, graph.constants[need.ids])


def _check_constant(need: IndexCheck, array: Array) -> None:
    indices = array.reshape(-1)[need.column :: need.columns]
    if indices.size and not need.low <= int(indices.min()) <= int(indices.max()) <= need.high:
        outside = indices[(indices < need.low) | (indices > need.high)]
        raise GraphError(need.message(int(outside[0])))


def checks_of(graph: Graph) -> tuple[IndexCheck, ...]:
    """What calls have to check, in the order of the graph. Raises GraphError as `check_constants` does."""
    check_constants(graph)
    needs = [need for node in graph.nodes for need in needs_of(node, graph.values) if need.ids not in graph.constants]
    ranges = value_ranges(graph, {need.ids for need in needs})
    found: dict[IndexCheck, IndexCheck] = {}  # by all but their readers
    for need in needs:
        for check in _at_sources(graph, need):
            low, high = ranges.get(check.ids, DTYPES[graph.values[check.ids].dtype].integer_range)
            if not check.low <= low <= high <= check.high:
                found.setdefault(replace(check, reader=""), check)
    return tuple(found.values())


def with_check_nodes(graph: Graph) -> Graph:
    """The graph with a node for each check, for devices on which kernels alone can look at indices. What these nodes
    make is no output; `reports_of` names it."""
    nodes, values = list(graph.nodes), list[Value]()
    for check in checks_of(graph):
        taken = {*graph.values, *(value.name for value in values)}
        made = tuple(fresh_name(taken, f"{check.ids}.{word}") for word in ("outside", "number"))
        attributes = {"low": check.low, "high": check.high, "column": check.column, "columns": check.columns}
        nodes.append(Node(CHECKS, (check.ids,), made, attributes, check.reader))
        values += (Value(name, (), "int64") for name in made)
    return graph.with_nodes(nodes, values) if values else graph


def reports_of(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """What each node of `with_check_nodes` makes: the first index outside, its number."""
    return tuple(node.outputs for node in graph.nodes if node.operator == CHECKS)


def _at_sources(graph: Graph, check: IndexCheck) -> Iterator[IndexCheck]:
    """The same check of the values that indices are a rearrangement of; constants are checked here."""
    waiting = [check]
    while waiting:
        check = waiting.pop()
        before = list(_before(graph, check))
        waiting += reversed(before)
        if check.ids in graph.constants:
            _check_constant(check, graph.constants[check.ids])
        elif not before:
            yield check


def _before(graph: Graph, check: IndexCheck) -> Iterator[IndexCheck]:
    """The check of the operands whose elements the checked value has; none where it has others."""
    maker = graph.producers.get(check.ids)
    if maker is None:
        return
    source, keeps_order = maker.inputs[0] or "", maker.operator in ("reshape", "identity", "cast")
    if maker.operator == "cast":
        (low, high), wide = (_whole(graph, name) for name in (source, check.ids))
        if not wide[0] <= low < high <= wide[1]:
            return
    if keeps_order or (maker.operator in _REARRANGED and check.columns == 1):
        yield replace(check, ids=source)
    elif maker.operator == "concat":
        yield from _of_parts(graph, check, maker)


def _whole(graph: Graph, name: str) -> tuple[int, int]:
    """All that a type of integers can hold; of other types nothing."""
    row = DTYPES[graph.values[name].dtype]
    return row.integer_range if row.is_integer else (0, 0)


def _of_parts(graph: Graph, check: IndexCheck, concat: Node) -> Iterator[IndexCheck]:
    """Of all parts, or of the one that has the checked column of coordinates."""
    parts = [name for name in concat.inputs if name is not None]
    shape = graph.values[check.ids].shape
    if check.columns == 1:
        yield from (replace(check, ids=part) for part in parts)
    elif axis_of(cast("int", concat.attributes["axis"]), len(shape)) == len(shape) - 1 and shape[-1] == check.columns:
        first = 0
        for part in parts:
            columns = graph.values[part].shape[-1]
            if first <= check.column < first + columns:
                yield replace(check, ids=part, column=check.column - first, columns=columns)
            first += columns

"""Bounds checks of indices: the range in which the elements of index operands must be.

    gather(x[5, 8], ids)     ->  IndexCheck(ids, low=-5, high=4)       of "wrapped" indexing; "plain": low=0

Constants are checked when a graph is imported. Other values are checked in each call, unless interval analysis
(`value_ranges`) proves their range. A check of a rearranged value is moved to its source, mostly an input, which is in
memory in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from autosched.errors import GraphError, index_message
from autosched.graph.graph import Array, Graph, Node, Shape, Value, fresh_name
from autosched.graph.operators.gathers import PLAIN, UNCHECKED, WRAPPED
from autosched.graph.operators.index_maps import axis_of
from autosched.graph.value_ranges import value_ranges
from autosched.ir.dtype import DTYPES

Sizes: TypeAlias = Callable[[Shape, Shape, Node], tuple[int, ...]]  # of the shapes of x and its indices, and the node


def _along_axis(x: Shape, ids: Shape, node: Node) -> tuple[int, ...]:
    return (x[axis_of(cast("int", node.attributes.get("axis", 0)), len(x))],)


def _of_coordinates(x: Shape, ids: Shape, node: Node) -> tuple[int, ...]:
    first = cast("int", node.attributes.get("batch_dims", 0))
    return x[first : first + ids[-1]]


# Operators whose second operand indexes the first -> the sizes of the indexed axes, in turn along the last axis.
INDEXED: Mapping[str, Sizes] = {
    "gather": _along_axis,
    "gather_elements": _along_axis,
    "gather_nd": _of_coordinates,
    "scatter_elements": _along_axis,
    "scatter_nd": _of_coordinates,
    "write_rows": _along_axis,
    "roi_align": _along_axis,
    "roi_max_pool": _along_axis,
}
CHECKS = "first_outside"  # the operator that checks within a kernel
# Operators whose result has exactly the elements of their first operand.
_REARRANGED = ("reshape", "transpose", "expand", "identity", "flip", "roll", "tile")


@dataclass(frozen=True)
class IndexCheck:
    """The condition that the elements `column`, `column + columns`, ... of `ids` are in `low` to `high`.

    `reader`: the operator that uses them, for messages.
    """

    ids: str
    low: int
    high: int
    reader: str
    column: int = 0
    columns: int = 1

    def message(self, index: int) -> str:
        """Return the message for an index that is out of range."""
        return index_message(self.reader, index, self.low, self.high)


def required_checks(node: Node, values: Mapping[str, Value]) -> tuple[IndexCheck, ...]:
    """Return the checks of a node's indices, without regard to what is known about them."""
    indexing = node.attributes.get("indexing", WRAPPED)
    if node.operator not in INDEXED or indexing == UNCHECKED:
        return ()
    x, ids = (values[name] for name in node.inputs[:2] if name is not None)
    from_start = indexing == PLAIN or DTYPES[ids.dtype].kind == "u"
    sizes, reader = INDEXED[node.operator](x.shape, ids.shape, node), node.origin or node.operator
    return tuple(
        IndexCheck(ids.name, 0 if from_start else -size, size - 1, reader, n, len(sizes))
        for n, size in enumerate(sizes)
    )


def check_constants(graph: Graph) -> None:
    """Raise GraphError for a constant index that is out of range."""
    for node in graph.nodes:
        for check in required_checks(node, graph.values):
            if check.ids in graph.constants:
                _check_constant(check, graph.constants[check.ids])


def _check_constant(check: IndexCheck, array: Array) -> None:
    indices = array.reshape(-1)[check.column :: check.columns]
    if indices.size and not check.low <= int(indices.min()) <= int(indices.max()) <= check.high:
        outside = indices[(indices < check.low) | (indices > check.high)]
        raise GraphError(check.message(int(outside[0])))


def checks_of(graph: Graph) -> tuple[IndexCheck, ...]:
    """Return the checks that each call must make, in the order of the graph.

    Raises GraphError as `check_constants` does.
    """
    check_constants(graph)
    required = [check for node in graph.nodes for check in required_checks(node, graph.values)]
    required = [check for check in required if check.ids not in graph.constants]
    ranges = value_ranges(graph, {check.ids for check in required})
    distinct: dict[IndexCheck, IndexCheck] = {}  # by the check without its reader
    for each in required:
        for check in _at_sources(graph, each):
            low, high = ranges.get(check.ids, DTYPES[graph.values[check.ids].dtype].integer_range)
            if not check.low <= low <= high <= check.high:
                distinct.setdefault(replace(check, reader=""), check)
    return tuple(distinct.values())


def with_check_nodes(graph: Graph) -> Graph:
    """Add a node for each check, for devices on which only kernels can read indices.

    The results of these nodes are no outputs of the graph; `reports_of` returns their names.
    """
    nodes, values = list(graph.nodes), list[Value]()
    for check in checks_of(graph):
        taken = {*graph.values, *(value.name for value in values)}
        results = tuple(fresh_name(taken, f"{check.ids}.{word}") for word in ("outside", "number"))
        attributes = {"low": check.low, "high": check.high, "column": check.column, "columns": check.columns}
        nodes.append(Node(CHECKS, (check.ids,), results, attributes, check.reader))
        values += (Value(name, (), "int64") for name in results)
    return graph.with_nodes(nodes, values) if values else graph


def reports_of(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Return the results of each node of `with_check_nodes`: the first index out of range, and its number."""
    return tuple(node.outputs for node in graph.nodes if node.operator == CHECKS)


def _at_sources(graph: Graph, check: IndexCheck) -> Iterator[IndexCheck]:
    """Yield the same check for the sources of rearranged indices; constant sources are checked at once."""
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
    """Yield the check for the operands that the checked value is a rearrangement of; nothing if it is none."""
    maker = graph.producers.get(check.ids)
    if maker is None or not maker.inputs:
        return
    source, keeps_order = maker.inputs[0] or "", maker.operator in ("reshape", "identity", "cast")
    if maker.operator == "cast":
        (low, high), wide = (_whole(graph, name) for name in (source, check.ids))
        if not wide[0] <= low < high <= wide[1]:
            return
    if keeps_order or (maker.operator in _REARRANGED and check.columns == 1):
        yield replace(check, ids=source)
    elif maker.operator == "concat":
        yield from _of_operands(graph, check, maker)


def _whole(graph: Graph, name: str) -> tuple[int, int]:
    """Return the range of an integer type; an empty one for other types."""
    row = DTYPES[graph.values[name].dtype]
    return row.integer_range if row.is_integer else (0, 0)


def _of_operands(graph: Graph, check: IndexCheck, concat: Node) -> Iterator[IndexCheck]:
    """Yield the check for all operands of a concatenation, or for the one that has the checked column."""
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

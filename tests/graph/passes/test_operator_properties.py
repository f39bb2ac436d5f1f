"""The table of operators' properties against what their expressions say."""

from __future__ import annotations

from contextlib import suppress

from autosched.errors import AutoschedError
from autosched.graph.fusion.node_properties import NodeKind, properties_of
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.operators import operators, results_of
from autosched.graph.passes.operator_properties import UNARY


def kinds_with_one_operand() -> dict[str, NodeKind]:
    """The kind of each operator that takes a matrix and no attributes; others are left out."""
    kinds = {}
    for name in operators():
        for dtype in ("float32", "bool", "int32"):
            values = {"x": Value("x", (2, 3), dtype)}
            node = Node(name, ("x",), ("y",), {})
            with suppress(AutoschedError, TypeError):
                results = {value.name: value for value in results_of(node, values)}
                graph = Graph(("x",), ("y",), (node,), values | results)
                kinds.setdefault(name, properties_of(node, graph).kind)
    return kinds


def test_elementwise_operators_of_one_operand_are_unary() -> None:
    """`expm1` and `log1p` were not: reshapes and layouts of channels did not pass them."""
    kinds = kinds_with_one_operand()
    elementwise = {name for name, kind in kinds.items() if kind is NodeKind.ELEMENTWISE}
    assert len(elementwise) > 20
    assert elementwise <= UNARY
    assert not {name for name in UNARY if kinds.get(name) is NodeKind.GENERAL}

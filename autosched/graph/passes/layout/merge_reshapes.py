"""Merging of reshapes and transposes, and their absorption into products."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from autosched.graph.graph import Graph, Node
from autosched.graph.passes.layout.reshape_chains import canonicalise_chain
from autosched.graph.passes.operator_properties import UNARY
from autosched.graph.passes.remove_identities import drop_identity
from autosched.graph.passes.rewrite import Change, made_by, new_name, read_once, rewrite


def merge_reshapes(graph: Graph) -> Graph:
    """Compose reshapes and transposes, cancel those around elementwise nodes, and replace products with transposed
    weights by `linear`."""
    return rewrite(graph, drop_identity, canonicalise_chain, _cancel_around, _to_linear)


def permutation(node: Node) -> tuple[int, ...]:
    """Return the `perm` of a transpose: for each axis of the result, that of the operand."""
    return cast("tuple[int, ...]", node.attributes["perm"])


def composed(first: tuple[int, ...], then: tuple[int, ...]) -> tuple[int, ...]:
    """Return the permutation of transposing by `first`, then by `then`."""
    return tuple(first[axis] for axis in then)


def _cancel_around(graph: Graph, node: Node) -> Change | None:
    """Cancel a reshape or transpose with its inverse after elementwise nodes."""
    if node.operator not in ("reshape", "transpose"):
        return None
    between: list[Node] = []
    name = node.inputs[0]
    while name is not None and read_once(graph, name) and (step := made_by(graph, name, *UNARY)) is not None:
        between.append(step)
        name = step.inputs[0]
    before = made_by(graph, name, node.operator)
    if before is None or not between or not _undoes(graph, before, node):
        return None
    nodes: list[Node] = []
    source = before.inputs[0]
    for step in reversed(between):
        made = node.outputs[0] if step is between[0] else new_name(graph, step, "in_order")
        nodes.append(replace(step, inputs=(source,), outputs=(made,)))
        source = made
    return Change(tuple(nodes))


def _undoes(graph: Graph, before: Node, after: Node) -> bool:
    if before.operator == "transpose":
        perm = composed(permutation(before), permutation(after))
        return perm == tuple(range(len(perm)))
    return graph.values[before.used[0]].shape == graph.values[after.outputs[0]].shape


def _to_linear(graph: Graph, node: Node) -> Change | None:
    """Replace x @ w.T + b, a matmul of a transpose or a gemm, by linear(x, w, b)."""
    if node.operator == "matmul":
        turned = made_by(graph, node.inputs[1], "transpose")
        is_flat = all(len(graph.values[name].shape) >= 2 for name in node.used)
        if turned is None or permutation(turned) != (1, 0) or not is_flat:
            return None
        return Change((replace(node, operator="linear", inputs=(node.inputs[0], turned.inputs[0])),))
    if node.operator != "gemm":
        return None
    told = {"alpha": 1.0, "beta": 1.0, "trans_a": False, "trans_b": False, **node.attributes}
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    features = graph.values[node.outputs[0]].shape[-1:]
    plain = told["alpha"] == told["beta"] == 1 and told["trans_b"] and not told["trans_a"]
    if not plain or (bias is not None and graph.values[bias].shape != features):
        return None
    return Change((replace(node, operator="linear", attributes={}),))

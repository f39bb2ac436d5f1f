"""Recognition of composites: activations and norms that are written out become one node.

The nodes that compute a value are read as a canonical expression of another value (`canonical_expressions`), which is
matched with the patterns below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from autosched.graph.graph import Attribute, Graph, Node
from autosched.graph.passes.canonical_expressions import ANY, CallExpression, Expression, Leaf, PatternMatch, Sum, match
from autosched.graph.passes.rewrite import Change, number, rewrite
from autosched.ir.dtype import DTYPES

_MAX_NODES = 24  # of a composite
_MAX_SIZE = 48  # nodes of an expression as a tree, in which a node that is read twice counts twice
_TOLERANCE = 5e-6  # relative, of constants: 1.41421 stands for sqrt(2)
_ROOTS = ("mul", "div", "cast")  # possible last nodes of a composite


@dataclass(frozen=True)
class Composite:
    """An operator as an expression of X; epsilon and the axes of a norm are open in the pattern.

    `needs`: operators of which at least one must occur for the pattern to match.
    """

    operator: str
    pattern: Expression
    needs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


X = Leaf("x")


def _mean(expression: Expression) -> Expression:
    return CallExpression("mean", expression)


def _clip(expression: Expression, low: float, high: float) -> Expression:
    return CallExpression("clip", expression, (low, high))


_TANH = math.sqrt(2 / math.pi)
_CENTRED = X - _mean(X)
_NORMALISED = (
    Composite("layer_norm", _CENTRED * (_mean(_CENTRED**2) + ANY) ** -0.5, ("reduce_mean", "reduce_sum")),
    Composite("rms_norm", X * (_mean(X**2) + ANY) ** -0.5, ("reduce_mean", "reduce_sum")),
)
COMPOSITES = (
    *_NORMALISED,  # a layer norm is an rms norm of x - mean(x) too: it comes first
    Composite("gelu", 0.5 * X * (1 + CallExpression("erf", X / math.sqrt(2))), ("erf",), {"approximate": "none"}),
    *(
        Composite("gelu", 0.5 * X * (1 + CallExpression("tanh", inner)), ("tanh",), {"approximate": "tanh"})
        for inner in (_TANH * (X + 0.044715 * X**3), _TANH * X * (1 + 0.044715 * X**2))
    ),
    Composite("silu", X / (1 + CallExpression("exp", -1 * X)), ("sigmoid", "exp")),
    *(
        Composite("hard_swish", pattern, ("clip", "minimum", "relu", "hard_sigmoid"))
        for pattern in (X * _clip(X + 3, 0, 6) / 6, X * _clip(X / 6 + 0.5, 0, 1))
    ),
)


def recognise_composites(graph: Graph) -> Graph:
    """Replace gelu, silu, hard_swish, layer_norm and rms_norm that are written out by one node each."""
    return rewrite(graph, _recognise)


def _recognise(graph: Graph, node: Node) -> Change | None:
    if node.operator not in _ROOTS:
        return None
    result = graph.values[node.outputs[0]]
    dtype = DTYPES.get(result.dtype)
    if dtype is None or not dtype.is_float:
        return None
    around = _around(graph, node)
    operators = {step.operator for step in around}
    possible = [composite for composite in COMPOSITES if not operators.isdisjoint(composite.needs)]
    if not possible:
        return None
    tolerance = max(_TOLERANCE, 2 * dtype.unit_roundoff)
    expressions = dict(_expressions(graph, node, around))
    for composite in possible:
        for name, expression in expressions.items():
            bindings = match(composite.pattern, expression, tolerance)
            attributes = None if bindings is None else _attributes(composite, bindings, len(result.shape))
            if attributes is not None:
                return Change((Node(composite.operator, (name,), node.outputs, attributes, node.origin),))
    return None


def _expressions(graph: Graph, node: Node, around: list[Node]) -> Iterator[tuple[str, Expression]]:
    """Yield the node's result as an expression of each value that it may be an activation or a norm of."""
    result = graph.values[node.outputs[0]]
    for name in dict.fromkeys(name for step in around for name in step.used if not graph.is_constant(name)):
        if (graph.values[name].shape, graph.values[name].dtype) == (result.shape, result.dtype):
            reader = _Reader(graph, name, around)
            expression = reader.root(node)
            if reader.is_alone(node):
                yield name, expression


def _attributes(composite: Composite, bindings: PatternMatch, rank: int) -> dict[str, Attribute] | None:
    """Return the attributes with those that the pattern left open; None for a norm over other than the last axes."""
    if bindings.axes is None:
        return dict(composite.attributes)
    count = len(bindings.axes)
    if bindings.number is None or bindings.axes != tuple(range(rank - count, rank)):
        return None
    return {**composite.attributes, "axes": count, "epsilon": bindings.number}


def _around(graph: Graph, root: Node) -> list[Node]:
    """Return the nodes that a composite ending at `root` may consist of, nearest first.

    No other nodes and no outputs read their results: in a recurrent network these are few, and all nodes before `root`
    would be as many as there may be.
    """
    nodes, waiting = [root], [root]
    while waiting and len(nodes) < _MAX_NODES:
        for name in waiting.pop(0).used:
            node = graph.producers.get(name)
            if node is not None and node.operator in _READ and all(node is not other for other in nodes):
                nodes.append(node)
                waiting.append(node)
    while True:
        within = {id(node) for node in nodes}
        alone = [node for node in nodes if node is root or _is_read_within(graph, node, within)]
        if len(alone) == len(nodes):
            return nodes
        nodes = alone


def _is_read_within(graph: Graph, node: Node, within: Collection[int]) -> bool:
    """Whether no output, and no node but those of the ids `within`, reads a result of the node."""
    return all(
        name not in graph.outputs and all(id(user) in within for user in graph.users[name]) for name in node.outputs
    )


class _Reader:
    """Reads nodes as expressions of the value `leaf`."""

    def __init__(self, graph: Graph, leaf: str, around: list[Node]) -> None:
        self.graph = graph
        self.leaf = leaf
        self.within = {step.outputs[0] for step in around}
        self.expressions: dict[str, Expression] = {leaf: X}
        self.sizes: dict[str, int] = {}
        self.nodes: list[Node] = []

    def root(self, node: Node) -> Expression:
        """Return the expression of the last node, which may be a cast to a smaller type."""
        if node.operator == "cast" and self._is_float(node.used[0]):
            return self.value(node.used[0])
        return self.value(node.outputs[0])

    def is_alone(self, root: Node) -> bool:
        """Whether no other node and no output reads the values between leaf and root."""
        inner = {id(step) for step in (*self.nodes, root)}
        return all(_is_read_within(self.graph, step, inner) for step in self.nodes if step is not root)

    def value(self, name: str | None) -> Expression:
        constant = number(self.graph, name)
        if name is None or constant is not None:
            return Sum(constant or 0.0)
        if name not in self.expressions:
            self.expressions[name] = self._read(name) or Leaf(name)
        return self.expressions[name]

    def _read(self, name: str) -> Expression | None:
        """Return the expression of a value, or None to treat it as an opaque leaf."""
        node = self.graph.producers.get(name)
        if node is None or name not in self.within or not self._is_float(node.used[0]):
            return None
        expression = _READ[node.operator](self, node)
        self.sizes[name] = 1 + sum(self.sizes.get(read or "", 1) for read in node.inputs)
        if expression is None or self.sizes[name] > _MAX_SIZE:
            return None
        self.nodes.append(node)
        return expression

    def _is_float(self, name: str) -> bool:
        return DTYPES[self.graph.values[name].dtype].is_float


def _combined(reader: _Reader, node: Node) -> Expression:
    left, right = (reader.value(name) for name in node.inputs)
    if node.operator in ("add", "sub"):
        return left + right if node.operator == "add" else left - right
    return left * right if node.operator == "mul" else left / right


def _powered(reader: _Reader, node: Node) -> Expression | None:
    exponent = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}.get(node.operator)
    if exponent is None:
        exponent = number(reader.graph, node.inputs[1])
    return None if exponent is None else reader.value(node.inputs[0]) ** exponent


def _called(reader: _Reader, node: Node) -> Expression:
    return CallExpression(node.operator, reader.value(node.inputs[0]))


def _sigmoid(reader: _Reader, node: Node) -> Expression:
    return 1 / (1 + CallExpression("exp", -1 * reader.value(node.inputs[0])))


def _negated(reader: _Reader, node: Node) -> Expression:
    return -1 * reader.value(node.inputs[0])


def _widened(reader: _Reader, node: Node) -> Expression | None:
    """Return the operand of a cast that is exact, else None."""
    operand, result = reader.graph.values[node.used[0]], reader.graph.values[node.outputs[0]]
    return reader.value(operand.name) if DTYPES[result.dtype].holds(DTYPES[operand.dtype]) else None


def _averaged(reader: _Reader, node: Node) -> Expression | None:
    """Return a mean with keepdims, or a sum as a multiple of it, else None."""
    shape, axes = reader.graph.values[node.used[0]].shape, node.attributes.get("axes")
    if not isinstance(axes, tuple) or not axes or not node.attributes.get("keepdims", True):
        return None
    places = tuple(sorted(cast("int", axis) % len(shape) for axis in axes))
    count = 1 if node.operator == "reduce_mean" else math.prod(shape[axis] for axis in places)
    return count * CallExpression("mean", reader.value(node.used[0]), axes=places)


def _clipped(reader: _Reader, node: Node) -> Expression | None:
    """Return clip, relu, maximum, minimum or hard_sigmoid as one clip between two numbers, nested ones merged."""
    low, high, expression = -math.inf, math.inf, reader.value(node.inputs[0])
    attributes = node.attributes
    if node.operator == "relu":
        low = 0.0
    elif node.operator == "clip":
        low, high = (
            end if attributes.get(key) is None else float(cast("float", attributes[key])) for key, end in _ENDS
        )
    elif node.operator == "hard_sigmoid":
        low, high = 0.0, 1.0
        expression = cast("float", attributes.get("alpha", 0.2)) * expression + cast(
            "float", attributes.get("beta", 0.5)
        )
    else:
        limits = [number(reader.graph, name) for name in node.inputs]
        limit = next((n for n in limits if n is not None), None)
        if len(limits) != 2 or limit is None:
            return None
        expression = reader.value(node.inputs[limits.index(None)]) if None in limits else expression
        low, high = (limit, high) if node.operator == "maximum" else (low, limit)
    if isinstance(expression, CallExpression) and expression.function == "clip":
        inner = expression.numbers
        if max(inner[0], low) <= min(inner[1], high):
            return CallExpression("clip", expression.argument, (max(inner[0], low), min(inner[1], high)))
    return CallExpression("clip", expression, (low, high))


_ENDS = (("low", -math.inf), ("high", math.inf))
# The reader of each operator.
_READ: Mapping[str, Callable[[_Reader, Node], Expression | None]] = {
    **dict.fromkeys(("add", "sub", "mul", "div"), _combined),
    **dict.fromkeys(("pow", "sqrt", "rsqrt", "reciprocal"), _powered),
    **dict.fromkeys(("erf", "tanh", "exp"), _called),
    **dict.fromkeys(("relu", "clip", "maximum", "minimum", "hard_sigmoid"), _clipped),
    **dict.fromkeys(("reduce_mean", "reduce_sum"), _averaged),
    "sigmoid": _sigmoid,
    "neg": _negated,
    "cast": _widened,
}

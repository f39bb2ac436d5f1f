"""Scale folding: the division by the scale of a quantisation is folded into constant factors of its operand.

    quantize(x * a + b, s, z)                                  =  quantize(x * (a / s) + b / s, 1, z)
    quantize(dequantize(p, a, y) + dequantize(q, b, w), s, z)  =  quantize(dequantize(p, a / s, y) + ..., 1, z)

This saves a vector multiplication per vector of results. Rounded results may differ in the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from autosched.graph.graph import Array, Graph, Node
from autosched.graph.passes.rewrite import Change, new_name, read_once, rewrite

_FLOATS = ("float32", "float64")


def fold_scales(graph: Graph) -> Graph:
    """Remove the scale of each `quantize` whose operand was multiplied by constants."""
    return rewrite(graph, _without_scale)


def _without_scale(graph: Graph, node: Node) -> Change | None:
    if node.operator != "quantize" or (scale := graph.constants.get(node.inputs[1] or "")) is None:
        return None
    if scale.dtype.name not in _FLOATS or scale.size != 1 or not np.isfinite(scale).all() or not np.all(scale > 0):
        return None
    quotient = _Quotient(graph, node, float(scale.reshape(())))
    made = quotient.of(node.inputs[0] or "") if not graph.is_constant(node.inputs[0]) else None
    if made is None or not all(np.isfinite(array).all() for array in quotient.constants.values()):
        return None
    return Change((*quotient.nodes, replace(node, inputs=(made, None, *node.inputs[2:]))), quotient.constants)


@dataclass
class _Quotient:
    """The nodes and constants of a value divided by `scale`, which only `reader` reads."""

    graph: Graph
    reader: Node
    scale: float
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def of(self, name: str) -> str | None:
        """Return the name of the quotient of a value; None if no constant can absorb the scale."""
        if self.graph.is_constant(name):
            return self._constant(name)
        maker = self.graph.producers.get(name)
        if maker is None or not read_once(self.graph, name) or self.graph.values[name].dtype not in _FLOATS:
            return None
        fixed = [n for n, x in enumerate(maker.inputs) if self.graph.is_constant(x)]
        places = {"add": [0, 1], "mul": fixed[:1], "dequantize": [n for n in fixed if n == 1]}.get(maker.operator, [])
        inputs = [self.of(x) if n in places and x is not None else x for n, x in enumerate(maker.inputs)]
        if not places or any(inputs[n] is None for n in places):
            return None
        made = new_name(self.graph, self.reader, f"quotient{len(self.nodes)}")
        self.nodes.append(replace(maker, inputs=tuple(inputs), outputs=(made,)))
        return made

    def _constant(self, name: str) -> str | None:
        array = self.graph.constants[name]
        if array.dtype.name not in _FLOATS:
            return None
        made = new_name(self.graph, self.reader, f"constant{len(self.constants)}")
        with np.errstate(over="ignore"):
            self.constants[made] = (array.astype("float64") / self.scale).astype(array.dtype)
        return made

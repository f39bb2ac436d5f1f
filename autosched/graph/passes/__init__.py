"""What is done to a graph before it is cut into kernels: PASSES, in this order, each a function from graph to graph.

Passes look at what nodes compute, never at their names, and keep the names, shapes and types of inputs and outputs.
What a pass leaves without a reader goes at its end. `watch` sees the graph after each pass; AUTOSCHED_DEBUG has the
levels of `lower/pipeline.py`: from 2 on the graph is verified after each pass, 3 prints times, 4 the graphs too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from autosched.graph.graph import Graph, Node
from autosched.graph.passes.common_subexpressions import share_common
from autosched.graph.passes.complete_norms import complete_norms
from autosched.graph.passes.fold_batch_norm import fold_batch_norm
from autosched.graph.passes.fold_constants import fold_constants
from autosched.graph.passes.layout.assign_layouts import assign_layouts
from autosched.graph.passes.layout.canonicalise_slices import compose_parts
from autosched.graph.passes.layout.merge_reshapes import merge_layouts
from autosched.graph.passes.layout.view_slices import view_parts
from autosched.graph.passes.merge_siblings import merge_siblings
from autosched.graph.passes.quantisation.dequantise_late import dequantize_late
from autosched.graph.passes.quantisation.fold_scales import fold_scales
from autosched.graph.passes.quantisation.integer_products import multiply_integers
from autosched.graph.passes.quantisation.packed_weights import keep_few_bits
from autosched.graph.passes.recognise_attention import recognise_attention
from autosched.graph.passes.recognise_composites import recognise_composites
from autosched.graph.passes.recognise_row_writes import recognise_row_writes
from autosched.graph.passes.remove_dead_code import remove_dead_code
from autosched.graph.passes.remove_identities import remove_identities
from autosched.graph.passes.strength_reduction import know_powers
from autosched.graph.verify import verify
from autosched.lower.pipeline import DUMP, TIME, VERIFY, debug_level

Watch = Callable[[str, Graph, bool, float], None]  # a pass by name, what is there after it, if it changed that, seconds


@dataclass(frozen=True)
class GraphPass:
    """One step; `why` says what it is good for."""

    name: str
    run: Callable[[Graph], Graph]
    why: str


PASSES: tuple[GraphPass, ...] = (
    GraphPass("remove_dead_code", remove_dead_code, "What no output needs is no reader that stands in the way."),
    GraphPass("dequantize_late", dequantize_late, "Bytes are moved and compared in a fourth of the time of floats."),
    GraphPass("multiply_integers", multiply_integers, "Sums of bytes are exact and fast, and weights stay small."),
    GraphPass("fold_constants", fold_constants, "Weights are seen as they are, and computed once."),
    GraphPass("fold_scales", fold_scales, "What is quantised was multiplied by something before."),
    GraphPass("remove_identities", remove_identities, "What changes nothing hides what belongs together."),
    GraphPass("keep_few_bits", keep_few_bits, "One row takes as long as its weights take to come from memory."),
    GraphPass("recognise_row_writes", recognise_row_writes, "A cache need not be copied for its next row."),
    GraphPass("merge_layouts", merge_layouts, "Elements are moved once, or not at all."),
    GraphPass("fold_batch_norm", fold_batch_norm, "A scale and a shift of channels cost nothing within the weights."),
    GraphPass("recognise_composites", recognise_composites, "An operator as a whole is computed wide and in one pass."),
    GraphPass("complete_norms", complete_norms, "Scale and bias are applied while a row is at hand."),
    GraphPass("recognise_attention", recognise_attention, "The scores of attention need not be kept."),
    GraphPass("know_powers", know_powers, "A product takes a tenth of the time of a power."),
    GraphPass("assign_layouts", assign_layouts, "Vectors of a convolution lie along its channels."),
    GraphPass("share_common", share_common, "The same value is not computed twice."),
    GraphPass("merge_siblings", merge_siblings, "Q, K and V, gate and up: one pass over what they read."),
    GraphPass("compose_parts", compose_parts, "Rows of a value lie where it does, and steps that read them are alike."),
    GraphPass("view_parts", view_parts, "A kernel that reads several parts of a value has an operand for each."),
)


def run_passes(graph: Graph, watch: Watch | None = None) -> tuple[Graph, dict[str, int]]:
    """The graph after all passes, and how many nodes each of them took away or replaced."""
    counts: dict[str, int] = {}
    for step in PASSES:
        started, before = time.perf_counter(), graph
        graph = step.run(before)
        seconds = time.perf_counter() - started
        counts[step.name] = sum(node not in _makers(graph, node.outputs) for node in before.nodes)
        for each in (watch, _debug_watch()):
            if each is not None:
                each(step.name, graph, graph is not before, seconds)
    return graph, counts


def _makers(graph: Graph, names: tuple[str, ...]) -> list[Node]:
    return [graph.producers[name] for name in names if name in graph.producers]


def _debug_watch() -> Watch | None:
    """What AUTOSCHED_DEBUG asks for."""
    level = debug_level()
    if level < VERIFY:
        return None

    def watch(name: str, graph: Graph, changed: bool, seconds: float) -> None:
        if level >= TIME:
            print(f"{graph.name}: {name} {1e3 * seconds:.2f} ms", file=sys.stderr)
        if level >= DUMP and changed:
            print(graph, file=sys.stderr)
        verify(graph)

    return watch

"""What is done to a graph before it is cut into kernels: PASSES, in this order, each a function from graph to graph.

Passes look at what nodes compute, never at their names, and keep the names, shapes and types of inputs and outputs.
What a pass leaves without a reader goes at its end. The runner is in `autosched/passes.py`.
"""

from __future__ import annotations

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
from autosched.passes import Pass, Pipeline, Watch, of_function

PASSES: tuple[Pass[Graph, None], ...] = (
    of_function(remove_dead_code, "What no output needs is no reader that stands in the way."),
    of_function(dequantize_late, "Bytes are moved and compared in a fourth of the time of floats."),
    of_function(multiply_integers, "Sums of bytes are exact and fast, and weights stay small."),
    of_function(fold_constants, "Weights are seen as they are, and computed once."),
    of_function(fold_scales, "What is quantised was multiplied by something before."),
    of_function(remove_identities, "What changes nothing hides what belongs together."),
    of_function(keep_few_bits, "One row takes as long as its weights take to come from memory."),
    of_function(recognise_row_writes, "A cache need not be copied for its next row."),
    of_function(merge_layouts, "Elements are moved once, or not at all."),
    of_function(fold_batch_norm, "A scale and a shift of channels cost nothing within the weights."),
    of_function(recognise_composites, "An operator as a whole is computed wide and in one pass."),
    of_function(complete_norms, "Scale and bias are applied while a row is at hand."),
    of_function(recognise_attention, "The scores of attention need not be kept."),
    of_function(know_powers, "A product takes a tenth of the time of a power."),
    of_function(assign_layouts, "Vectors of a convolution lie along its channels."),
    of_function(share_common, "The same value is not computed twice."),
    of_function(merge_siblings, "Q, K and V, gate and up: one pass over what they read."),
    of_function(compose_parts, "Rows of a value lie where it does, and steps that read them are alike."),
    of_function(view_parts, "A kernel that reads several parts of a value has an operand for each."),
)


PIPELINE = Pipeline("graph", PASSES, lambda graph: str(graph.name), str, verify)


def run_passes(graph: Graph, watch: Watch | None = None) -> tuple[Graph, dict[str, int]]:
    """The graph after all passes, and how many nodes each of them took away or replaced."""
    counts, before = dict[str, int](), graph

    def count(name: str, after: Graph, changed: bool, seconds: float) -> None:
        nonlocal before
        counts[name] = sum(node not in _makers(after, node.outputs) for node in before.nodes)
        before = after
        if watch is not None:
            watch(name, after, changed, seconds)

    return PIPELINE.run(graph, None, count), counts


def _makers(graph: Graph, names: tuple[str, ...]) -> list[Node]:
    return [graph.producers[name] for name in names if name in graph.producers]

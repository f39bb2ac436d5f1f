"""Graph passes, which run before the partition into kernels: PASSES in order, each a function from graph to graph.

Passes depend on the operators and attributes of nodes, never on their names, and keep the names, shapes and types of
inputs and outputs. Each removes the nodes that it leaves dead. The runner is in `autosched/passes.py`.
"""

from __future__ import annotations

from autosched.graph.graph import Graph, Node
from autosched.graph.passes.common_subexpressions import eliminate_common_subexpressions
from autosched.graph.passes.complete_norms import complete_norms
from autosched.graph.passes.fold_batch_norm import fold_batch_norm
from autosched.graph.passes.fold_constants import fold_constants
from autosched.graph.passes.layout.assign_layouts import assign_layouts
from autosched.graph.passes.layout.canonicalise_slices import canonicalise_slices
from autosched.graph.passes.layout.merge_reshapes import merge_reshapes
from autosched.graph.passes.layout.view_slices import view_slices
from autosched.graph.passes.merge_siblings import merge_siblings
from autosched.graph.passes.quantisation.dequantise_late import dequantise_late
from autosched.graph.passes.quantisation.fold_scales import fold_scales
from autosched.graph.passes.quantisation.integer_products import use_integer_products
from autosched.graph.passes.quantisation.packed_weights import pack_low_bit_weights
from autosched.graph.passes.recognise_attention import recognise_attention
from autosched.graph.passes.recognise_composites import recognise_composites
from autosched.graph.passes.recognise_row_writes import recognise_row_writes
from autosched.graph.passes.remove_dead_code import remove_dead_code
from autosched.graph.passes.remove_empty_values import remove_empty_values
from autosched.graph.passes.remove_identities import remove_identities
from autosched.graph.passes.strength_reduction import reduce_strength
from autosched.graph.verify import verify
from autosched.passes import Pass, PassPipeline, Watch, of_function

PASSES: tuple[Pass[Graph, None], ...] = (
    of_function(remove_dead_code, "Dead readers would prevent fusion."),
    of_function(remove_empty_values, "No kernel has an argument without elements."),
    of_function(dequantise_late, "Moving and comparing bytes takes a fourth of the time of floats."),
    of_function(use_integer_products, "Integer sums are exact and fast, and weights stay small."),
    of_function(fold_constants, "Constant expressions are computed once, at load time."),
    of_function(fold_scales, "The scale of a quantisation is folded into the constants before it."),
    of_function(remove_identities, "Identity nodes would hide patterns from later passes."),
    of_function(pack_low_bit_weights, "Products of few rows are limited by the bytes of their weights."),
    of_function(recognise_row_writes, "A cache is updated in place instead of copied."),
    of_function(merge_reshapes, "A chain of reshapes and transposes moves elements once at most."),
    of_function(fold_batch_norm, "Scales and shifts of channels are free within the weights."),
    of_function(recognise_composites, "A composite is computed in a wide type, in one kernel."),
    of_function(complete_norms, "Scale and bias are applied while a row is in registers."),
    of_function(recognise_attention, "The scores of attention need not be stored."),
    of_function(reduce_strength, "A multiplication takes a tenth of the time of a power."),
    of_function(assign_layouts, "Convolutions are vectorised along their channels."),
    of_function(eliminate_common_subexpressions, "Equal values are computed once."),
    of_function(merge_siblings, "Products of one operand (Q, K, V; gate, up) read it once."),
    of_function(canonicalise_slices, "Slices become views, and their readers equal kernels."),
    of_function(view_slices, "A kernel that reads several slices has an operand for each."),
)


PIPELINE = PassPipeline("graph", PASSES, lambda graph: str(graph.name), str, verify)


def run_passes(graph: Graph, watch: Watch | None = None) -> tuple[Graph, dict[str, int]]:
    """Return the graph after all passes, and the number of nodes that each of them removed or replaced."""
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

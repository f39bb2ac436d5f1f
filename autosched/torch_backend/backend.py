"""Entry point of torch.compile(model, backend="autosched"): supported nodes are compiled, torch runs the others.

AOTAutograd makes functional graphs of ATen operators: one for inference, or forward and backward graphs if gradients
are needed. Nodes that the importer has rules for become subgraphs, which are compiled; `autosched.explain` lists the
others. Weights of inference graphs are packed once, and again when they have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import default_partition

from autosched.graph.torch.load import decompositions
from autosched.torch_backend.options import read_options
from autosched.torch_backend.partition import Compiled, CompiledGraphs


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compile a graph of torch.compile for these inputs. Raises UsageError for unknown options."""
    graphs = CompiledGraphs(read_options(mode, options or {}))

    def compile_inference(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return make_boxed_func(graphs.compile(gm, _weights(gm) if graphs.options.freeze else frozenset()))

    def compile_training(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return make_boxed_func(graphs.compile(gm, frozenset()))  # training changes the weights

    compiled: Any = aot_module_simplified(
        module,
        example_inputs,
        fw_compiler=compile_training,
        bw_compiler=compile_training,
        inference_compiler=compile_inference,
        partition_fn=default_partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )
    compiled.autosched_graphs = graphs  # read by `explain_compiled`
    function: Compiled = compiled
    return function


def _weights(graph: fx.GraphModule) -> frozenset[int]:
    """Return the indices of arguments that are parameters and buffers, and that the graph does not change."""
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    placeholders = graph.graph.find_nodes(op="placeholder")
    if metadata is None or len(placeholders) != len(metadata.input_info):
        return frozenset()
    return frozenset(n for n in metadata.static_input_indices if not metadata.input_info[n].mutates_data)

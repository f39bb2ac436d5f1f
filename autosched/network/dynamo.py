"""torch.compile(model, backend="autosched"): what a network can be is compiled, the rest stays torch's.

AOTAutograd makes a graph of ATen operators without writes in place. Its nodes that have rules become partitions, as few
as possible; each is compiled at its first call, when its weights are at hand, and again when they have changed. Where
gradients are needed, all stays torch's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from autosched.errors import UsageError
from autosched.graph.torch.load import can_load, decompositions, load_fx

_GRADIENTS = (
    "autosched compiles for inference only, so what needs gradients runs as torch has it: "
    "call the model in torch.no_grad() or torch.inference_mode()"
)
_SIZES = (
    "autosched compiles for sizes that are known, so what depends on others runs as torch has it: "
    "call torch.compile with dynamic=False"
)
Compiled = Callable[..., Any]
_MODES = (None, "default")


@dataclass(frozen=True)
class BackendOptions:
    """What `options` of torch.compile may say. `threads`: default all cores; `freeze`: weights are packed once."""

    threads: int | None = None
    freeze: bool = True


_TYPES: Mapping[str, tuple[type, ...]] = {"threads": (int,), "freeze": (bool,)}


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """The entry point that torch.compile calls with a graph and its inputs. Raises UsageError for unknown options."""
    chosen = read_options(mode, options or {})
    needs_gradients = any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
    if torch.is_grad_enabled() and needs_gradients:
        warn_once(_GRADIENTS)
        forward: Compiled = module.forward
        return forward
    if any(isinstance(x, torch.SymInt) for x in example_inputs):
        warn_once(_SIZES)

    def compile_inference(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return make_boxed_func(partitioned(gm, chosen).forward)

    compiled: Compiled = aot_module_simplified(
        module,
        example_inputs,
        fw_compiler=compile_inference,
        inference_compiler=compile_inference,
        decompositions=decompositions(),
    )
    return compiled


def read_options(mode: str | None, options: Mapping[str, Any]) -> BackendOptions:
    """Raises UsageError for a mode or option that there is not."""
    if mode not in _MODES:
        known = ", ".join(str(name) for name in _MODES if name is not None)
        raise UsageError(f"the backend autosched has no mode {mode!r}, only {known}")
    for name, value in options.items():
        if name not in _TYPES:
            raise UsageError(f"the backend autosched has no option {name!r}, only {', '.join(_TYPES)}")
        if not isinstance(value, _TYPES[name]) or (isinstance(value, bool) and bool not in _TYPES[name]):
            kind = _TYPES[name][-1].__name__
            raise UsageError(f"the option {name} of the backend autosched is of type {kind}, not {value!r}")
    return replace(BackendOptions(), **options)


@cache
def warn_once(text: str) -> None:
    """Once in a process."""
    warnings.warn(text, stacklevel=3)


class _Supported(OperatorSupportBase):  # type: ignore[misc]  # torch is read as Any
    """Nodes that can be in a network."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        return can_load(node)


def partitioned(graph: fx.GraphModule, options: BackendOptions) -> fx.GraphModule:
    """The graph with a compiled part for each partition; single operators are not worth one."""
    weights = _weights(graph) if options.freeze else frozenset()
    whole = CapabilityBasedPartitioner(graph, _Supported()).partition_and_fuse(prefix="autosched_")
    for node in whole.graph.find_nodes(op="call_module"):
        frozen = tuple(n for n, x in enumerate(node.args) if isinstance(x, fx.Node) and x.name in weights)
        part = Part(getattr(whole, str(node.target)), options, frozen)
        delattr(whole, str(node.target))
        setattr(whole, str(node.target), part)
    return whole


def _weights(graph: fx.GraphModule) -> frozenset[str]:
    """Arguments that are parameters and buffers, by the names of their nodes: those that the graph does not change."""
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    places = graph.graph.find_nodes(op="placeholder")
    if metadata is None or len(places) != len(metadata.input_info):
        return frozenset()
    fixed = (n for n in metadata.static_input_indices if not metadata.input_info[n].mutates_data)
    return frozenset(places[n].name for n in fixed)


@dataclass
class Part:
    """A partition as a function of tensors. The arguments at `frozen` are weights: they are constants of what is
    compiled, until one of them is another tensor or has been written to."""

    module: fx.GraphModule
    options: BackendOptions
    frozen: tuple[int, ...]
    run: Compiled | None = None
    stamps: list[tuple[int, int]] = field(default_factory=list)
    strides: list[tuple[int, ...]] = field(default_factory=list)  # of the results, which torch's part relies on

    def __call__(self, *tensors: torch.Tensor) -> Any:
        if self.run is None:
            # Of a tensor made in inference mode nobody can tell whether it has been written to.
            self.frozen = tuple(n for n in self.frozen if not tensors[n].is_inference())
        stamps = [(tensors[n].data_ptr(), tensors[n]._version) for n in self.frozen]
        if self.run is None or stamps != self.stamps:
            self.run, self.stamps = self.compiled(tensors), stamps
        given = [x.contiguous() for n, x in enumerate(tensors) if n not in self.frozen]
        results = [_with_strides(y, s) for y, s in zip(self.run(*given), self.strides, strict=True)]
        return results[0] if len(results) == 1 else tuple(results)

    def compiled(self, tensors: Sequence[torch.Tensor]) -> Compiled:
        from autosched.network.model import compile_graph

        (end,) = self.module.graph.find_nodes(op="output")
        self.strides = [node.meta["val"].stride() for node in end.all_input_nodes]
        graph = load_fx(self.module, tensors, {n: tensors[n] for n in self.frozen})
        model = compile_graph(graph, threads=self.options.threads)
        return lambda *given: several if isinstance(several := model(*given), tuple) else (several,)


def _with_strides(result: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if result.stride() == strides:
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype).copy_(result)

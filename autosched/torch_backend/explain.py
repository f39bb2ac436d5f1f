"""Explanation of a function of torch.compile: the time of its compiled subgraphs and of the nodes that torch runs."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dynamo.eval_frame import _debug_get_cache_entry_list, innermost_backend

from autosched.errors import UsageError
from autosched.kernel.roofline import Fact
from autosched.torch_backend.partition import CompiledGraphs, is_free
from autosched.torch_backend.subgraph import Subgraph

ROUNDS = 5  # the least time of them counts
_COMPILED, _RESUMED = "__compiled_fn_", "__resume_at_"  # names that torch puts into a function's globals


def explain_compiled(compiled: Any) -> Mapping[str, Fact]:
    """Return facts by name on a function of torch.compile(..., backend="autosched"), after its first call.

    Names that end in `_s` are seconds, summed over all graphs, forward and backward. Inputs are floats from 0 to 1, and
    integers 0. Raises UsageError for a function that has not been called or has another backend.
    """
    graphs = [graph for call in graphs_of(compiled) for graph in call.modules]
    if not graphs:
        raise UsageError(
            'autosched has compiled nothing of it: call what torch.compile(..., backend="autosched") returned once, '
            "then explain it"
        )
    times = _Times()
    for graph in graphs:
        times.add(graph)
    total = times.subgraphs_s + sum(times.operators.values())
    facts: dict[str, Fact] = {
        "graphs": len(graphs),
        "programs": times.programs,
        "kernels": times.kernels,
        "with_torch": ", ".join(f"{name} ({n})" for name, n in sorted(times.counts.items())) or "nothing",
        "programs_s": times.subgraphs_s,
        "with_torch_s": total - times.subgraphs_s,
        "with_torch_share": (total - times.subgraphs_s) / total if total else 0.0,
    }
    for name, seconds in sorted(times.operators.items(), key=lambda item: -item[1]):
        facts[f"{name}_s"] = seconds
    return facts


def graphs_of(compiled: Any) -> list[CompiledGraphs]:
    """Return the graphs of each call of the backend for a function that torch.compile returned."""
    context = getattr(compiled, "dynamo_ctx", None)
    # Modules of one class share their code, so that the backend is needed to tell them apart.
    backend = None if context is None else innermost_backend(context.callback)
    wrapped = (getattr(x, "_torchdynamo_orig_callable", None) for x in (compiled, getattr(compiled, "forward", None)))
    seen: set[int] = set()
    calls = [graphs for function in wrapped for graphs in _graphs_of(function, backend, seen)]
    return list({id(graphs): graphs for graphs in calls}.values())


def _graphs_of(function: Any, backend: Any, seen: set[int]) -> Iterator[CompiledGraphs]:
    """Yield the graphs of a function that torch has compiled, and those after each of its graph breaks."""
    function = getattr(function, "__func__", function)
    code, globals_ = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None or id(code) in seen:
        return
    seen.add(id(code))
    for entry in _debug_get_cache_entry_list(code):
        if backend is not None and entry.backend is not backend:
            continue
        for name in entry.code.co_names:
            if name.startswith(_COMPILED) and (graphs := getattr(globals_.get(name), "autosched_graphs", None)):
                yield graphs
            elif name.startswith(_RESUMED):
                yield from _graphs_of(globals_.get(name), backend, seen)


@dataclass
class _Times:
    """Seconds of the compiled subgraphs, and of each operator that torch runs."""

    subgraphs_s: float = 0.0
    programs: int = 0
    kernels: int = 0
    operators: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, graph: fx.GraphModule) -> None:
        inputs = [_sample_argument(node.meta.get("val")) for node in graph.graph.find_nodes(op="placeholder")]
        timed = _Timed(graph)
        with torch.no_grad():
            for _ in range(ROUNDS):
                timed.run(*inputs)
        for node in graph.graph.nodes:
            module = getattr(graph, str(node.target), None) if node.op == "call_module" else None
            if isinstance(module, Subgraph) and module.model is not None:
                self.programs += 1
                self.kernels += sum(task.count for task in module.model.tasks)
                self.subgraphs_s += timed.seconds[node.name]
            elif isinstance(module, Subgraph):
                self.add_torch("what cannot be compiled", timed, node)
            elif isinstance(node.target, torch._ops.OpOverload) and not is_free(node):
                self.add_torch(str(node.target), timed, node)

    def add_torch(self, name: str, timed: _Timed, node: fx.Node) -> None:
        self.counts[name] += 1
        self.operators[name] += timed.seconds[node.name]


class _Timed(fx.Interpreter):  # type: ignore[misc]  # torch is read as Any
    """Interpreter of a graph that keeps the least time of each node."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.seconds: dict[str, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        module = getattr(self.module, str(n.target), None) if n.op == "call_module" else None
        start = time.perf_counter()
        if isinstance(module, Subgraph):
            result = module.run_with_any_weights(args)
        else:
            result = getattr(self, n.op)(n.target, args, kwargs)
        elapsed = time.perf_counter() - start
        self.seconds[n.name] = min(elapsed, self.seconds.get(n.name, elapsed))
        return result


def _sample_argument(example: Any) -> Any:
    """Return an argument of the shape, strides and type of a placeholder's example value."""
    if not isinstance(example, torch.Tensor):
        return example
    values = torch.zeros(example.shape, dtype=example.dtype)
    if values.is_floating_point():
        values.uniform_()
    if _is_expanded(example):
        return values
    return torch.empty_strided(example.shape, example.stride(), dtype=example.dtype).copy_(values)


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Return whether several elements share one address, as after `expand`."""
    return any(stride == 0 and size != 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))

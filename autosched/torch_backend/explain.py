"""What of a network that torch.compile made runs as programs and what torch runs, and the time that each takes."""

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
from autosched.torch_backend.subgraph import Part

ROUNDS = 5  # of which the fastest counts
_COMPILED, _RESUMED = "__compiled_fn_", "__resume_at_"  # how torch calls what it puts into a function's globals


def explain_compiled(compiled: Any) -> Mapping[str, Fact]:
    """Facts by name of what torch.compile(..., backend="autosched") returned, after its first call; a name that ends in
    `_s` is a time in seconds, of all its graphs, forward and backward. Inputs are made up: numbers from 0 to 1, zeros
    of integers.

    Raises UsageError for what has not been called yet, or is another backend's.
    """
    graphs = [graph for made in graphs_of(compiled) for graph in made.found]
    if not graphs:
        raise UsageError(
            'autosched has compiled nothing of it: call what torch.compile(..., backend="autosched") returned once, '
            "then explain it"
        )
    times = _Times()
    for graph in graphs:
        times.take(graph)
    total = times.parts + sum(times.operators.values())
    facts: dict[str, Fact] = {
        "graphs": len(graphs),
        "programs": times.programs,
        "kernels": times.kernels,
        "with_torch": ", ".join(f"{name} ({n})" for name, n in sorted(times.counts.items())) or "nothing",
        "programs_s": times.parts,
        "with_torch_s": total - times.parts,
        "with_torch_share": (total - times.parts) / total if total else 0.0,
    }
    for name, seconds in sorted(times.operators.items(), key=lambda item: -item[1]):
        facts[f"{name}_s"] = seconds
    return facts


def graphs_of(compiled: Any) -> list[CompiledGraphs]:
    """What came of each call of the backend for what torch.compile returned."""
    context = getattr(compiled, "dynamo_ctx", None)
    # Modules of a class share their code, functions have their own.
    backend = None if context is None else innermost_backend(context.callback)
    wrapped = (getattr(x, "_torchdynamo_orig_callable", None) for x in (compiled, getattr(compiled, "forward", None)))
    seen: set[int] = set()
    found = [graphs for function in wrapped for graphs in _graphs_of(function, backend, seen)]
    return list({id(graphs): graphs for graphs in found}.values())


def _graphs_of(function: Any, backend: Any, seen: set[int]) -> Iterator[CompiledGraphs]:
    """Of a function that torch has compiled, and of what is left of it after each place where its graph breaks."""
    function = getattr(function, "__func__", function)
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None or id(code) in seen:
        return
    seen.add(id(code))
    for entry in _debug_get_cache_entry_list(code):
        if backend is not None and entry.backend is not backend:
            continue
        for name in entry.code.co_names:
            if name.startswith(_COMPILED) and (graphs := getattr(known.get(name), "autosched_graphs", None)):
                yield graphs
            elif name.startswith(_RESUMED):
                yield from _graphs_of(known.get(name), backend, seen)


@dataclass
class _Times:
    """Seconds of the programs, and of each operator of torch's."""

    parts: float = 0.0
    programs: int = 0
    kernels: int = 0
    operators: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)

    def take(self, graph: fx.GraphModule) -> None:
        inputs = [_made_up(node.meta.get("val")) for node in graph.graph.find_nodes(op="placeholder")]
        timed = _Timed(graph)
        with torch.no_grad():
            for _ in range(ROUNDS):
                timed.run(*inputs)
        for node in graph.graph.nodes:
            part = getattr(graph, str(node.target), None) if node.op == "call_module" else None
            if isinstance(part, Part) and part.model is not None:
                self.programs += 1
                self.kernels += sum(task.count for task in part.model.tasks)
                self.parts += timed.seconds[node.name]
            elif isinstance(part, Part):
                self.left("what cannot be compiled", timed, node)
            elif isinstance(node.target, torch._ops.OpOverload) and not is_free(node):
                self.left(str(node.target), timed, node)

    def left(self, name: str, timed: _Timed, node: fx.Node) -> None:
        self.counts[name] += 1
        self.operators[name] += timed.seconds[node.name]


class _Timed(fx.Interpreter):  # type: ignore[misc]  # torch is read as Any
    """Runs a graph, and keeps the shortest time of each node."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.seconds: dict[str, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        part = getattr(self.module, str(n.target), None) if n.op == "call_module" else None
        begun = time.perf_counter()
        made = part.as_it_is(args) if isinstance(part, Part) else getattr(self, n.op)(n.target, args, kwargs)
        spent = time.perf_counter() - begun
        self.seconds[n.name] = min(spent, self.seconds.get(n.name, spent))
        return made


def _made_up(found: Any) -> Any:
    """An argument for a node of a graph whose sizes are known."""
    if not isinstance(found, torch.Tensor):
        return found
    made = torch.zeros(found.shape, dtype=found.dtype)
    if made.is_floating_point():
        made.uniform_()
    return torch.empty_strided(found.shape, found.stride(), dtype=found.dtype).copy_(made) if _is_plain(found) else made


def _is_plain(found: torch.Tensor) -> bool:
    """Whether each element has a place of its own."""
    return all(stride > 0 or size == 1 for size, stride in zip(found.shape, found.stride(), strict=True))

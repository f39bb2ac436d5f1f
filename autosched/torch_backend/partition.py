"""Partition of torch.fx graphs into subgraphs of supported nodes, which are compiled, and nodes that torch runs."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from autosched.errors import GraphError, NoValidCandidate
from autosched.graph.torch.load import can_load, drop_empty_parts, drop_restrides
from autosched.graph.torch.sizes import NoNumber, layout_of, numbers_for, with_numbers
from autosched.kernel.transfer import NearestSchedules
from autosched.torch_backend.memory_format import memory_format_of
from autosched.torch_backend.options import NONE, BackendOptions, warn_once
from autosched.torch_backend.sized_graph import SizedGraph
from autosched.torch_backend.subgraph import Subgraph

Compiled = Callable[..., Any]
MAX_SIZES = 16  # choices of sizes that a graph is compiled for, if it cannot be compiled for all
MAX_TRACES = 4  # of a graph, each for the sizes that pass its guards
MAX_CALLS = 256  # choices of sizes whose numbers are kept
_PREFIX = "autosched_"
_EAGER = "runs_eager"  # key in the `meta` of nodes that torch runs
# Operators that address the storage of their operand rather than its elements.
_STRIDED = tuple(
    getattr(torch.ops.aten, name).default for name in ("as_strided", "as_strided_copy", "as_strided_scatter")
)
_TOO_MANY_SIZES = (
    f"autosched has compiled a graph for {MAX_SIZES} choices of sizes, and runs others as torch has them: "
    "bring inputs to fewer sizes, by padding them say"
)


@dataclass(frozen=True)
class CompiledGraphs:
    """Options of a call of the backend, and its partitioned graphs: for inference or forward and backward, one for each
    choice of sizes."""

    options: BackendOptions
    modules: list[fx.GraphModule] = field(default_factory=list)

    def compile(self, graph: fx.GraphModule, weights: frozenset[int]) -> Compiled:
        """Compile a graph. `weights`: indices of the arguments that keep their values between calls."""
        placeholders = graph.graph.find_nodes(op="placeholder")
        if all(_has_static_shape(node.meta.get("val")) for node in placeholders):
            return _forward(self.partition(graph, weights))
        return DynamicGraph(self, graph, weights)

    def partition(
        self, graph: fx.GraphModule, weights: frozenset[int], nearest: NearestSchedules | None = None
    ) -> fx.GraphModule:
        """Partition a graph with static shapes. `nearest`: schedules of subgraphs that differ in sizes alone."""
        module = partition_graph(graph, weights, self.options, nearest)
        self.modules.append(module)
        return module


def _forward(graph: fx.GraphModule) -> Compiled:
    _LazyGraphModule.force_recompile(graph)  # a lazy module would check for its code in each call
    forward: Compiled = graph.forward
    return forward


def _has_static_shape(example: Any) -> bool:
    """Return whether an argument is a tensor whose sizes and strides are numbers."""
    return isinstance(example, torch.Tensor) and all(isinstance(n, int) for n in (*example.shape, *example.stride()))


@dataclass
class DynamicGraph:
    """A graph with dynamic shapes, compiled once for all sizes that pass the guards of a trace.

    A graph that cannot be traced is compiled for each choice of sizes at its first use.
    """

    graphs: CompiledGraphs
    graph: fx.GraphModule
    weights: frozenset[int]
    _compiled: dict[tuple[object, ...], Compiled] = field(default_factory=dict)
    _graphs: list[fx.GraphModule] = field(default_factory=list)  # for certain sizes
    _traces: list[SizedGraph] = field(default_factory=list)
    _is_traceable: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        n = len(self.graph.graph.find_nodes(op="placeholder"))
        self._varying = [index for index in range(n) if index not in self.weights]
        self._is_traceable = self.graphs.options.tune == NONE and not self.graphs.options.winograd

    def __call__(self, *arguments: Any) -> Any:
        varying = [arguments[index] for index in self._varying]
        key = tuple([(x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in varying])
        if self._traces and not self._traces[0].is_current(arguments):
            with self._lock:
                self._traces, self._compiled, self._graphs = [], {}, []
        compiled = self._compiled.get(key)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(key)
                if compiled is None:
                    compiled = self._compile(key, arguments)
        return compiled(*arguments)

    def _compile(self, key: tuple[object, ...], arguments: Sequence[Any]) -> Compiled:
        if (sized := self._sized(arguments)) is not None:
            while len(self._compiled) >= MAX_CALLS:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[key] = sized
            return sized
        if len(self._graphs) >= MAX_SIZES:
            warn_once(_TOO_MANY_SIZES)
            return _forward(self.graph)
        module = self.graphs.partition(self._specialise(arguments), self.weights, self._schedules())
        self._graphs.append(module)
        compiled = self._compiled[key] = _forward(module)
        return compiled

    def _sized(self, arguments: Sequence[Any]) -> Compiled | None:
        """Return the graph of a trace for the sizes of these arguments; None where they need a program of their own."""
        try:
            for trace in self._traces:
                if (compiled := trace.at(arguments)) is not None:
                    return compiled
            if not self._is_traceable or len(self._traces) == MAX_TRACES:
                return None
            trace = SizedGraph(self.graph, self.weights, arguments, self._partition)
            trace.share_weights(self._traces)
            self._traces.append(trace)
            return trace.at(arguments)
        except (GraphError, NoValidCandidate, NoNumber):
            self._is_traceable = False
            return None
        except Exception as error:  # a bug of tracing: the graph is right with a program for each choice of sizes
            warn_once(f"autosched compiles a graph for each choice of sizes, as it could not for all: {error}")
            self._is_traceable = False
            return None

    def _partition(self, traced: fx.GraphModule) -> fx.GraphModule:
        return partition_graph(traced, self.weights, self.graphs.options, None)

    def _specialise(self, arguments: Sequence[Any]) -> fx.GraphModule:
        """Return the graph with the sizes of these arguments."""
        numbers = numbers_for(self.graph.graph.find_nodes(op="placeholder"), arguments)
        if numbers is not None:
            with suppress(NoNumber):
                return with_numbers(self.graph, numbers)
        with torch.no_grad():
            traced: fx.GraphModule = make_fx(fx.Interpreter(self.graph).run, tracing_mode="fake")(*arguments)
        return traced

    def _schedules(self) -> NearestSchedules:
        """Return the schedules of the programs for other sizes."""
        nearest = NearestSchedules()
        for graph in self._graphs:
            for node in graph.graph.find_nodes(op="call_module"):
                module = getattr(graph, str(node.target))
                if isinstance(module, Subgraph) and module.model is not None:
                    nearest.add((task.kernel_spec.workload, task.kernel.schedule.steps) for task in module.model.tasks)
        return nearest


class _Supported(OperatorSupportBase):  # type: ignore[misc]  # torch is read as Any
    """Support of nodes by the importer."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        return _EAGER not in node.meta and can_load(node)


def partition_graph(
    graph: fx.GraphModule, weights: frozenset[int], options: BackendOptions, nearest: NearestSchedules | None
) -> fx.GraphModule:
    """Partition a graph into as few subgraphs as possible; partitions that compute nothing stay with torch."""
    frozen = {node.name for n, node in enumerate(graph.graph.find_nodes(op="placeholder")) if n in weights}
    drop_empty_parts(graph.graph)
    drop_restrides(graph.graph)
    _keep_strided_operators(graph)
    _keep_returned_views(graph)
    partitioner = CapabilityBasedPartitioner(graph, _Supported(), allows_single_node_partition=True)
    partitions = [p for p in partitioner.propose_partitions() if not all(is_free(node) for node in p.nodes)]
    fused = partitioner.fuse_partitions(partitions, prefix=_PREFIX)
    share = replace(options, budget_s=options.budget_s / max(len(partitions), 1))
    for node in fused.graph.find_nodes(op="call_module"):
        name = str(node.target)
        indices = tuple(n for n, x in enumerate(node.args) if isinstance(x, fx.Node) and x.name in frozen)
        subgraph = Subgraph(getattr(fused, name), share, indices, nearest, _remove_copies(fused.graph, node))
        delattr(fused, name)
        setattr(fused, name, subgraph)
    fused.recompile()
    return fused


def _remove_copies(graph: fx.Graph, call: fx.Node) -> dict[int, int]:
    """Remove copies of a subgraph's results into arguments that no other node reads, such as key-value caches.

    Returns the index of the argument by that of the result: the subgraph writes to the argument itself.
    """
    written: dict[int, int] = {}
    results: list[Any] = [user for user in call.users if user.target is operator.getitem]
    for result in results or [call]:
        users = list(result.users)
        if [user.target for user in users] != [torch.ops.aten.copy_.default] or users[0].users:
            continue
        (copy,) = users
        target, source = copy.args[:2]
        is_exclusive = target.op == "placeholder" and {*target.users} == {call, copy} and call.args.count(target) == 1
        if source is result and is_exclusive and _shape_and_type(target) == _shape_and_type(result):
            written[0 if result is call else result.args[1]] = call.args.index(target)
            graph.erase_node(copy)
    return written


def _shape_and_type(node: fx.Node) -> tuple[object, object]:
    value = node.meta["val"]
    return layout_of(value).shape, value.dtype


def is_free(node: fx.Node) -> bool:
    """Return whether torch computes the node without reading elements: a view, or the selection of one result."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _views_below(node: fx.Node) -> tuple[list[fx.Node], fx.Node]:
    """Return the chain of views that ends with `node`, `node` first, and the tensor that owns the storage."""
    views: list[fx.Node] = []
    while node.op == "call_function" and is_free(node) and len(node.all_input_nodes) == 1:
        (source,) = node.all_input_nodes
        if node.target is operator.getitem and not is_free(source):
            break  # a result of an operator with several results
        views.append(node)
        node = source
    return views, node


def _copy_views(graph: fx.Graph, views: Sequence[fx.Node], copies: dict[fx.Node, fx.Node]) -> None:
    """Insert copies of `views` that torch runs, at the graph's insertion point."""
    for view in reversed(views):
        if view not in copies:
            copies[view] = graph.node_copy(view, lambda n: copies.get(n, n))
            copies[view].meta[_EAGER] = True


def _keep_strided_operators(graph: fx.GraphModule) -> None:
    """Leave operators that address a storage to torch, with the views between storage and operator: a program would
    return the elements of a view contiguously."""
    copies: dict[fx.Node, fx.Node] = {}
    owners: dict[fx.Node, fx.Node] = {}
    for node in [node for node in graph.graph.nodes if node.target in _STRIDED]:
        node.meta[_EAGER] = True
        views, owner = _views_below(node.args[0])
        with graph.graph.inserting_before(node):
            if owner.op == "call_function" and owner not in owners:
                owners[owner] = copies[owner] = _with_own_strides(graph.graph, owner)
            _copy_views(graph.graph, views, copies)
        node.replace_input_with(node.args[0], copies.get(node.args[0], node.args[0]))
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _with_own_strides(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Return a node with the result of `node` in the strides that torch has recorded.

    Programs return dense results with these strides. An operator that torch runs may return other strides, if its
    operand is a view that a program has made contiguous.
    """
    value = node.meta["val"]
    layout = layout_of(value)
    if can_load(node) and layout.start == 0 and memory_format_of(layout.shape, layout.strides) is not None:
        return node
    empty = graph.call_function(
        torch.ops.aten.empty_strided.default,
        (list(layout.shape), list(layout.strides)),
        {"dtype": value.dtype, "device": value.device},
    )
    copy = graph.call_function(torch.ops.aten.copy.default, (empty, node))
    for new in (empty, copy):
        new.meta.update(val=value, **{_EAGER: True})
    return copy


def _keep_returned_views(graph: fx.GraphModule) -> None:
    """Leave returned views of arguments to torch, which makes them at no cost; a program would copy them."""
    (end,) = graph.graph.find_nodes(op="output")
    copies: dict[fx.Node, fx.Node] = {}
    for node in end.all_input_nodes:
        views, owner = _views_below(node)
        if not views or owner.op != "placeholder":
            continue
        with graph.graph.inserting_before(end):
            _copy_views(graph.graph, views, copies)
        end.replace_input_with(node, copies[node])
    graph.recompile()

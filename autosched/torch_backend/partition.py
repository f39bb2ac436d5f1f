"""torch.fx graphs as functions that run parts of them as programs: what has rules is in parts, the rest is torch's."""

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

from autosched.graph.torch.load import can_load, drop_empty_parts, drop_restrides
from autosched.graph.torch.sizes import NoNumber, numbers_for, with_numbers
from autosched.kernel.transfer import NearestSchedules
from autosched.torch_backend.memory_format import order_of
from autosched.torch_backend.options import BackendOptions, warn_once
from autosched.torch_backend.subgraph import Part

Compiled = Callable[..., Any]
CHOICES = 16  # of sizes that a graph is compiled for
_PREFIX = "autosched_"
_STAYS = "stays_with_torch"  # in the `meta` of a node
# Operators that address the storage below their operand.
_STRIDED = tuple(
    getattr(torch.ops.aten, name).default for name in ("as_strided", "as_strided_copy", "as_strided_scatter")
)
_MANY = (
    f"autosched has compiled a graph for {CHOICES} choices of sizes, and runs others as torch has them: "
    "bring inputs to fewer sizes, by padding them say"
)


@dataclass(frozen=True)
class CompiledGraphs:
    """The options of one call of the backend, and the graphs that came of it: of inference, or forward and backward,
    of each choice of sizes; each with parts that are programs."""

    options: BackendOptions
    found: list[fx.GraphModule] = field(default_factory=list)

    def compiled(self, graph: fx.GraphModule, weights: frozenset[int]) -> Compiled:
        """`weights`: places of arguments that keep their values between calls."""
        places = graph.graph.find_nodes(op="placeholder")
        if all(_is_fixed(node.meta.get("val")) for node in places):
            return _forward(self.in_parts(graph, weights))
        return OfSizes(self, graph, weights)

    def in_parts(
        self, graph: fx.GraphModule, weights: frozenset[int], nearest: NearestSchedules | None = None
    ) -> fx.GraphModule:
        """The graph, whose sizes are known, with a part for each partition. `nearest`: schedules of parts that differ
        in sizes alone."""
        made = partitioned(graph, weights, self.options, nearest)
        self.found.append(made)
        return made


def _forward(graph: fx.GraphModule) -> Compiled:
    _LazyGraphModule.force_recompile(graph)  # its code now: later it would be asked for in each call
    found: Compiled = graph.forward
    return found


def _is_fixed(found: Any) -> bool:
    """Whether an argument is a tensor whose sizes are numbers."""
    return isinstance(found, torch.Tensor) and all(isinstance(n, int) for n in (*found.shape, *found.stride()))


@dataclass
class OfSizes:
    """A graph whose sizes vary: it is compiled for each choice of them at its first use."""

    graphs: CompiledGraphs
    graph: fx.GraphModule
    weights: frozenset[int]
    _made: dict[tuple[object, ...], Compiled] = field(default_factory=dict)
    _graphs: list[fx.GraphModule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        n = len(self.graph.graph.find_nodes(op="placeholder"))
        self._varying = [place for place in range(n) if place not in self.weights]

    def __call__(self, *arguments: Any) -> Any:
        given = [arguments[place] for place in self._varying]
        key = tuple([(x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in given])
        found = self._made.get(key)
        if found is None:
            with self._lock:
                found = self._made.get(key)
                if found is None:
                    found = self._for(key, arguments)
        return found(*arguments)

    def _for(self, key: tuple[object, ...], arguments: Sequence[Any]) -> Compiled:
        if len(self._made) >= CHOICES:
            warn_once(_MANY)
            return _forward(self.graph)
        made = self.graphs.in_parts(self._with_numbers(arguments), self.weights, self._known())
        self._graphs.append(made)
        found = self._made[key] = _forward(made)
        return found

    def _with_numbers(self, arguments: Sequence[Any]) -> fx.GraphModule:
        """The graph for sizes as arguments have them."""
        numbers = numbers_for(self.graph.graph.find_nodes(op="placeholder"), arguments)
        if numbers is not None:
            with suppress(NoNumber):
                return with_numbers(self.graph, numbers)
        with torch.no_grad():
            traced: fx.GraphModule = make_fx(fx.Interpreter(self.graph).run, tracing_mode="fake")(*arguments)
        return traced

    def _known(self) -> NearestSchedules:
        """The schedules of the programs for other sizes."""
        nearest = NearestSchedules()
        for graph in self._graphs:
            for node in graph.graph.find_nodes(op="call_module"):
                part = getattr(graph, str(node.target))
                if isinstance(part, Part) and part.model is not None:
                    nearest.add((task.recipe.spec, task.kernel.steps) for task in part.model.tasks)
        return nearest


class _Supported(OperatorSupportBase):  # type: ignore[misc]  # torch is read as Any
    """Nodes that can be in a network."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        return _STAYS not in node.meta and can_load(node)


def partitioned(
    graph: fx.GraphModule, weights: frozenset[int], options: BackendOptions, nearest: NearestSchedules | None
) -> fx.GraphModule:
    """The graph with a part for each partition, as few as possible; one that computes nothing is none."""
    frozen = {node.name for n, node in enumerate(graph.graph.find_nodes(op="placeholder")) if n in weights}
    drop_empty_parts(graph.graph)
    drop_restrides(graph.graph)
    _set_strided_apart(graph)
    _set_views_apart(graph)
    partitioner = CapabilityBasedPartitioner(graph, _Supported(), allows_single_node_partition=True)
    found = [p for p in partitioner.propose_partitions() if not all(is_free(node) for node in p.nodes)]
    whole = partitioner.fuse_partitions(found, prefix=_PREFIX)
    each = replace(options, budget_s=options.budget_s / max(len(found), 1))
    for node in whole.graph.find_nodes(op="call_module"):
        places = tuple(n for n, x in enumerate(node.args) if isinstance(x, fx.Node) and x.name in frozen)
        part = Part(getattr(whole, str(node.target)), each, places, nearest, _written(whole.graph, node))
        delattr(whole, str(node.target))
        setattr(whole, str(node.target), part)
    whole.recompile()
    return whole


def _written(graph: fx.Graph, call: fx.Node) -> dict[int, int]:
    """Of results of a part that torch would copy into an argument which nothing else reads, by their numbers, which
    argument of the part. They are not copied any more: the part leaves them there."""
    found: dict[int, int] = {}
    results: list[Any] = [user for user in call.users if user.target is operator.getitem]
    for result in results or [call]:
        users = list(result.users)
        if [user.target for user in users] != [torch.ops.aten.copy_.default] or users[0].users:
            continue
        (copy,) = users
        into, given = copy.args[:2]
        alone = into.op == "placeholder" and {*into.users} == {call, copy} and call.args.count(into) == 1
        if given is result and alone and _form_of(into) == _form_of(result):
            found[0 if result is call else result.args[1]] = call.args.index(into)
            graph.erase_node(copy)
    return found


def _form_of(node: fx.Node) -> tuple[object, object]:
    value = node.meta["val"]
    return value.shape, value.dtype


def is_free(node: fx.Node) -> bool:
    """Whether torch gives the result without touching its elements: a view, or one of several results."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _views_below(node: fx.Node) -> tuple[list[fx.Node], fx.Node]:
    """The views that `node` is made by, itself first, and the tensor that owns the storage."""
    views: list[fx.Node] = []
    while node.op == "call_function" and is_free(node) and len(node.all_input_nodes) == 1:
        (source,) = node.all_input_nodes
        if node.target is operator.getitem and not is_free(source):
            break  # one of several results of an operator that computes
        views.append(node)
        node = source
    return views, node


def _copy_views(graph: fx.Graph, views: Sequence[fx.Node], copies: dict[fx.Node, fx.Node]) -> None:
    """Enters copies of `views` that stay with torch, at the place where the graph inserts."""
    for view in reversed(views):
        if view not in copies:
            copies[view] = graph.node_copy(view, lambda n: copies.get(n, n))
            copies[view].meta[_STAYS] = True


def _set_strided_apart(graph: fx.GraphModule) -> None:
    """Leave to torch every operator that addresses a storage, and the views between the storage and the operator: a
    program would return the elements of a view packed."""
    copies: dict[fx.Node, fx.Node] = {}
    owners: dict[fx.Node, fx.Node] = {}
    for node in [node for node in graph.graph.nodes if node.target in _STRIDED]:
        node.meta[_STAYS] = True
        views, owner = _views_below(node.args[0])
        with graph.graph.inserting_before(node):
            if owner.op == "call_function" and owner not in owners:
                owners[owner] = copies[owner] = _with_own_strides(graph.graph, owner)
            _copy_views(graph.graph, views, copies)
        node.replace_input_with(node.args[0], copies.get(node.args[0], node.args[0]))
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _with_own_strides(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """The result of `node` in a storage of the strides that torch says. Programs return dense results so; an operator
    of torch's may return other strides where its operand is a view that a program packed."""
    value = node.meta["val"]
    if can_load(node) and value.storage_offset() == 0 and order_of(tuple(value.shape), value.stride()) is not None:
        return node
    empty = graph.call_function(
        torch.ops.aten.empty_strided.default,
        (list(value.shape), list(value.stride())),
        {"dtype": value.dtype, "device": value.device},
    )
    made = graph.call_function(torch.ops.aten.copy.default, (empty, node))
    for new in (empty, made):
        new.meta.update(val=value, **{_STAYS: True})
    return made


def _set_views_apart(graph: fx.GraphModule) -> None:
    """What the graph returns that is a view of an argument is made by torch at no cost; a program would copy it."""
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

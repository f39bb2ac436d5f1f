"""Graphs of torch.compile for sizes that are known at a call: partitioned and compiled once, for all sizes that pass
the guards of a trace (`ir.size`).

The partitioned graph is a function of its arguments, of the compiled subgraphs for their sizes, and of the sizes that
nodes have which torch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from autosched.errors import GraphError
from autosched.executor.compile_graph import compile_for_sizes
from autosched.executor.compile_options import CompileOptions
from autosched.executor.sized_network import SizedNetwork
from autosched.graph.torch.sizes import environments_of, holds, number_of, numbers_for, paired_sizes, with_numbers
from autosched.graph.traces import symbolic_sizes
from autosched.ir.size import Forms, Guards, SymbolicSize, form_of
from autosched.torch_backend.subgraph import Subgraph, SubgraphNetwork, TensorCall, import_subgraph, versions_of

SIZES = range(1 << 31)


@dataclass(frozen=True)
class SizedSubgraph:
    """A compiled subgraph. `imported`: its network, and the layouts of its arguments and results by sizes."""

    imported: SubgraphNetwork
    network: SizedNetwork
    written: Mapping[int, int]
    layouts: Forms

    @staticmethod
    def of(subgraph: Subgraph, arguments: Sequence[Any], guards: Guards) -> SizedSubgraph:
        """Compile a partition. `arguments`: tensors that are weights, None for others."""
        places = subgraph.module.graph.find_nodes(op="placeholder")
        tensors = [node.meta["val"] if x is None else x for x, node in zip(arguments, places, strict=True)]
        weights = tuple(n for n, x in enumerate(arguments) if x is not None)
        imported = import_subgraph(subgraph.module, tensors, weights, subgraph.options.winograd)
        options = CompileOptions(threads=subgraph.options.threads, specialise="never")
        network = compile_for_sizes(guards, lambda: imported.graph, options)
        numbers = [n for _, strides in imported.inputs for n in strides]
        numbers += [n for shape, strides, _ in imported.outputs for n in (*shape, *strides)]
        return SizedSubgraph(imported, network, subgraph.written, Forms(map(form_of, numbers)))

    def at(self, guards: Guards, sizes: Mapping[str, int]) -> TensorCall:
        """Return the subgraph for sizes that pass the guards. Raises NoValidCandidate."""
        call = self.network.at(sizes)
        assert call is not None, "the guards hold"
        numbers = iter(self.layouts.at(guards.values(sizes)))

        def taken(data: Sequence[int]) -> tuple[int, ...]:
            return tuple([next(numbers) for _ in data])

        inputs = tuple([(n, taken(strides)) for n, strides in self.imported.inputs])
        outputs = tuple([(taken(shape), taken(strides), dtype) for shape, strides, dtype in self.imported.outputs])
        return TensorCall(call, inputs, outputs, self.written)


class SizedGraph:
    """A graph over symbols. `partition` makes the graph of subgraphs from a traced graph.

    Raises GraphError and NoValidCandidate for a graph that cannot be compiled for all sizes.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        weights: frozenset[int],
        arguments: Sequence[Any],
        partition: Callable[[fx.GraphModule], fx.GraphModule],
    ) -> None:
        places = graph.graph.find_nodes(op="placeholder")
        self._varying = {n: node.meta["val"] for n, node in enumerate(places) if n not in weights}
        numbers = numbers_for(places, arguments)
        if numbers is None:
            raise GraphError("the graph was made for arguments of other sizes")
        sizes = [size for size, _ in self._pairs(arguments)]
        exprs = [size.node.expr if isinstance(size, torch.SymInt) else None for size in sizes]
        self._positions = {str(symbol): exprs.index(symbol) for symbol in numbers}
        self.guards, present = Guards(), {str(symbol): n for symbol, n in numbers.items()}
        with self.guards:
            given = symbolic_sizes(self.guards, present, dict.fromkeys(present, SIZES))
            known = {symbol: given[str(symbol)] for symbol in numbers}
            if not all(holds(environment, known) for environment in environments_of(sizes)):
                raise GraphError("the graph was made for other sizes")
            self._expected = Forms([form_of(number_of(size, known)) for size in sizes])
            module = partition(with_numbers(graph, known))
            self._weights = tuple(n for n in sorted(weights) if not arguments[n].is_inference())
            self._versions = versions_of(arguments, self._weights)
            tensors = {places[n].name: arguments[n] for n in self._weights}
            self._subgraphs = list(_compiled(module, tensors, self.guards))
        self._forward, numbers_of_nodes = _as_function(module)
        self._numbers = Forms(map(form_of, numbers_of_nodes))

    def share_weights(self, others: Sequence[SizedGraph]) -> None:
        """Take the packed weights of other traces that are equal, to save memory; before the first `at`."""
        for subgraph in self._subgraphs:
            subgraph.network.share_weights(each.network for other in others for each in other._subgraphs)

    def _pairs(self, arguments: Sequence[Any]) -> list[tuple[Any, int]]:
        """Return the sizes of the arguments that vary, by torch, and their numbers."""
        return [pair for n, value in self._varying.items() for pair in paired_sizes(value, arguments[n])]

    def is_current(self, arguments: Sequence[Any]) -> bool:
        """Whether the weights among the arguments are those that were packed."""
        return self._versions == versions_of(arguments, self._weights)

    def at(self, arguments: Sequence[Any]) -> Callable[..., Any] | None:
        """Return the graph for the sizes of arguments, a function of them; None where they do not pass the guards.

        Raises NoValidCandidate where no code can be made for a kernel.
        """
        numbers = [n for _, n in self._pairs(arguments)]
        sizes = {name: numbers[at] for name, at in self._positions.items()}
        if not self.guards.hold(sizes) or self._expected.at(values := self.guards.values(sizes)) != numbers:
            return None
        more = (*[subgraph.at(self.guards, sizes) for subgraph in self._subgraphs], *self._numbers.at(values))
        forward = self._forward
        return lambda *given: forward(*given, *more)


def _compiled(module: fx.GraphModule, weights: Mapping[str, torch.Tensor], guards: Guards) -> Iterator[SizedSubgraph]:
    """Yield the compiled subgraphs of a partitioned graph in order. `weights`: by the name of the placeholder."""
    for node in module.graph.find_nodes(op="call_module"):
        arguments = [weights.get(x.name) for x in node.args]
        yield SizedSubgraph.of(getattr(module, str(node.target)), arguments, guards)


def _as_function(module: fx.GraphModule) -> tuple[Callable[..., Any], list[SymbolicSize]]:
    """Return a partitioned graph as a function of its arguments, its subgraphs and sizes; and these sizes."""
    graph, numbers = module.graph, dict[Any, tuple[fx.Node, SymbolicSize]]()
    calls = graph.find_nodes(op="call_module")
    *_, last = graph.find_nodes(op="placeholder")

    def argument(name: str) -> fx.Node:
        nonlocal last
        with graph.inserting_after(last):
            last = graph.placeholder(name)
        return last

    for node in calls:
        subgraph = argument(f"subgraph_{node.name}")
        with graph.inserting_before(node):
            call = graph.call_function(_call, (subgraph, *node.args))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        graph.erase_node(node)

    def with_argument(data: Any) -> Any:
        if not isinstance(data, SymbolicSize):
            return data
        if data.form not in numbers:
            numbers[data.form] = argument(f"size_{len(numbers)}"), data
        return numbers[data.form][0]

    for node in list(graph.nodes):
        if node.op != "placeholder":
            node.args, node.kwargs = map_aggregate(node.args, with_argument), map_aggregate(node.kwargs, with_argument)
    forward: Callable[..., Any] = fx.GraphModule(module, graph).forward
    return forward, [size for _, size in numbers.values()]


def _call(subgraph: TensorCall, *tensors: torch.Tensor) -> Any:
    return subgraph(tensors)

"""Compiled subgraphs of a torch.fx graph: compiled at the first call, with the weights of that call.

Weights are packed again when their versions have changed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from autosched.errors import AutoschedError
from autosched.executor.compile_graph import compile_network
from autosched.executor.compile_options import CompileOptions
from autosched.executor.model import Model
from autosched.executor.sized_network import SizedCall
from autosched.graph.graph import Array, Graph
from autosched.graph.torch.builder import array_of
from autosched.graph.torch.load import load_fx
from autosched.graph.torch.sizes import dense_strides, layout_of
from autosched.kernel.transfer import NearestSchedules
from autosched.network_tuning.background import enqueue_tuning, tune_here
from autosched.planning.extract_tasks import Choices
from autosched.torch_backend.memory_format import memory_format_of, with_memory_formats
from autosched.torch_backend.options import BACKGROUND, NOW, BackendOptions, warn_once

Versions = list[tuple[int, int]]  # address and version counter of each weight
Strides = tuple[int, ...]
_CPU = torch.device("cpu")
MAX_PACKED = 64  # packed sets of weights of a subgraph: a network has at most so many equal layers


@dataclass(frozen=True)
class TensorCall:
    """A model as a function of torch tensors.

    `inputs`: indices of the arguments that are no constants of it, and the strides that the model reads. `outputs`:
    shape, strides and type of each result. `written`: the argument that a result is written to, by the result's index.
    """

    model: Model | SizedCall
    inputs: tuple[tuple[int, Strides], ...]
    outputs: tuple[tuple[tuple[int, ...], Strides, torch.dtype], ...]
    written: Mapping[int, int]

    @cached_property
    def aliased_inputs(self) -> Mapping[int, int]:
        """The input that aliases a result, by the result's index, if that input is the argument written to."""
        indices = [index for index, _ in self.inputs]
        aliases = ((n, index, self.model.in_place.get(n)) for n, index in self.written.items())
        return {n: alias for n, index, alias in aliases if alias is not None and indices[alias] == index}

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the result, or a list of several results."""
        arguments = []  # keeps copies alive during the call
        for n, strides in self.inputs:
            x = tensors[n]
            arguments.append(x if x.stride() == strides else _copy_with_strides(x, strides))
        aliases = self.aliased_inputs
        results = [
            arguments[aliases[n]] if n in aliases else torch.empty_strided(*layout, dtype=dtype, device=_CPU)
            for n, (*layout, dtype) in enumerate(self.outputs)
        ]
        self.model.launch([x.data_ptr() for x in (*arguments, *results)])
        write_back(results, tensors, self.written)
        return results[0] if len(results) == 1 else results


@dataclass(frozen=True)
class TensorModel(TensorCall):
    """A model whose constants are the arguments `weights`, of the versions `versions`."""

    model: Model
    weights: tuple[int, ...]
    versions: Versions

    def is_current(self, tensors: Sequence[torch.Tensor]) -> bool:
        return self.versions == versions_of(tensors, self.weights)


@dataclass(frozen=True)
class SubgraphNetwork:
    """A partition as a network. `inputs`: indices and strides of the arguments that are no weights. `outputs`: shape,
    strides and type of each result."""

    graph: Graph
    inputs: tuple[tuple[int, Strides], ...]
    outputs: tuple[tuple[tuple[int, ...], Strides, torch.dtype], ...]


def import_subgraph(
    module: fx.GraphModule, tensors: Sequence[torch.Tensor], weights: Sequence[int], winograd: bool
) -> SubgraphNetwork:
    """Return a partition for these tensors as a network. `weights`: the indices of those that are constants of it.

    Raises GraphError.
    """
    graph = load_fx(module, tensors, {n: tensors[n] for n in weights})
    graph = replace(graph, winograd=winograd)
    indices = [n for n in range(len(tensors)) if n not in weights]
    inputs = [_in_memory(tensors[n]) for n in indices]
    (end,) = module.graph.find_nodes(op="output")
    results = [node.meta["val"] for node in _returned_nodes(end)]
    outputs = [_in_memory(y) for y in results]
    graph = with_memory_formats(
        graph,
        {name: order for name, (order, _) in zip(graph.inputs, inputs, strict=True)},
        {n: order for n, (order, _) in enumerate(outputs)},
    )
    return SubgraphNetwork(
        graph,
        tuple((n, strides) for n, (_, strides) in zip(indices, inputs, strict=True)),
        tuple((layout_of(y).shape, strides, y.dtype) for y, (_, strides) in zip(results, outputs, strict=True)),
    )


@dataclass
class Subgraph:
    """A partition as a thread-safe function of tensors.

    `frozen`: indices of the arguments that are weights. `nearest`: schedules of programs for other sizes, None for
    static shapes. `written`: the argument that a result is written to, such as a cache, by the result's index.

    After graph breaks torch calls one subgraph for all equal layers: `_packed` has a model for the weights of each.
    """

    module: fx.GraphModule
    options: BackendOptions
    frozen: tuple[int, ...]
    nearest: NearestSchedules | None = None
    written: Mapping[int, int] = field(default_factory=dict)
    _current: TensorModel | None = None
    _packed: list[TensorModel] = field(default_factory=list)
    _has_failed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        current = self._current
        if current is None or not current.is_current(tensors):
            current = self.prepare(tensors)
        return self._run_eager(tensors) if current is None else current(tensors)

    @property
    def model(self) -> Model | None:
        """The model that runs; None before the first call, and if torch runs the subgraph."""
        return None if self._current is None else self._current.model

    def run_with_any_weights(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run with the packed weights, whatever the weights of `tensors` are: for measuring time."""
        current = self._current or self.prepare(tensors)
        return self._run_eager(tensors) if current is None else current(tensors)

    def _run_eager(self, tensors: Sequence[torch.Tensor]) -> Any:
        results = self.module(*tensors)
        write_back([results] if isinstance(results, torch.Tensor) else results, tensors, self.written)
        return results

    def prepare(self, tensors: Sequence[torch.Tensor]) -> TensorModel | None:
        """Return the model for the weights among `tensors`; None, after a warning, if it cannot be compiled."""
        with self._lock:
            if self._has_failed:
                return None
            current = self._current
            try:
                if current is None:
                    self._current = self._compile(tensors)
                    self._tune_later(self._current)
                elif not current.is_current(tensors):
                    self._current = self._with_weights(current, tensors)
            except AutoschedError as error:
                self._has_failed = True
                warn_once(f"autosched leaves a part of a network to torch, since it cannot be compiled: {error}")
            return None if self._has_failed else self._current

    def _compile(self, tensors: Sequence[torch.Tensor]) -> TensorModel:
        # Tensors made in inference mode have no version counter.
        weights = tuple(n for n in self.frozen if not tensors[n].is_inference())
        versions = versions_of(tensors, weights)
        imported = import_subgraph(self.module, tensors, weights, self.options.winograd)
        options = CompileOptions(threads=self.options.threads, specialise="now")
        model = compile_network(imported.graph, options, Choices(nearest=self.nearest))
        if self.options.tune == NOW:
            model = tune_here(model, self.options.budget_s)
        return TensorModel(model, imported.inputs, imported.outputs, self.written, weights, versions)

    def _tune_later(self, compiled: TensorModel) -> None:
        if self.options.tune == BACKGROUND:
            enqueue_tuning(compiled.model, self.options.budget_s, lambda model: self._replace(compiled, model))

    def _replace(self, compiled: TensorModel, model: Model) -> None:
        """Replace the model by its tuned one; running calls finish with the earlier one."""
        with self._lock:
            current = self._current
            assert current is not None
            if current is not compiled:  # the weights have changed since it was compiled
                model = model.with_weights(current.model.original.constants)
            self._current, self._packed = replace(current, model=model), []

    def _with_weights(self, current: TensorModel, tensors: Sequence[torch.Tensor]) -> TensorModel:
        """Return the model that was packed for these weights, or pack them.

        A model whose weights were written to since is dropped. The others keep their weights alive, so that no other
        tensor reuses the addresses.
        """
        versions = versions_of(tensors, current.weights)
        packed = [current, *(each for each in self._packed if each is not current)]
        chosen = next((each for each in packed if each.versions == versions), None) or self._repack(current, tensors)
        addresses = [address for address, _ in versions]
        others = [each for each in packed if [address for address, _ in each.versions] != addresses]
        self._packed = [chosen, *others][:MAX_PACKED]
        return chosen

    def _repack(self, current: TensorModel, tensors: Sequence[torch.Tensor]) -> TensorModel:
        versions = versions_of(tensors, current.weights)
        return replace(current, model=current.model.with_weights(self._constants(current, tensors)), versions=versions)

    def _constants(self, current: TensorModel, tensors: Sequence[torch.Tensor]) -> Mapping[str, Array]:
        """Return the weights by their names in the graph, which are those of the placeholders."""
        names = [node.name for node in self.module.graph.find_nodes(op="placeholder")]
        constants = current.model.original.constants
        return {names[n]: array_of(tensors[n]) for n in current.weights if names[n] in constants}


def write_back(results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], written: Mapping[int, int]) -> None:
    """Write results to their arguments, or count a new version of arguments that the model has written to."""
    for n, index in written.items():
        if results[n] is not tensors[index]:
            tensors[index].copy_(results[n])
        elif not tensors[index].is_inference():
            torch.autograd.graph.increment_version(tensors[index])


def versions_of(tensors: Sequence[torch.Tensor], indices: Sequence[int]) -> Versions:
    return [(x.data_ptr(), x._version) for x in map(tensors.__getitem__, indices)]


def _returned_nodes(end: fx.Node) -> list[fx.Node]:
    """Return the nodes that an fx graph returns."""
    returned = end.args[0]
    nodes = returned if isinstance(returned, tuple | list) else (returned,)
    return [node for node in nodes if isinstance(node, fx.Node)]


def _in_memory(tensor: torch.Tensor) -> tuple[tuple[int, ...], Strides]:
    """Return the memory format in which a program stores such a tensor, and the strides."""
    layout = layout_of(tensor)
    order = memory_format_of(layout.shape, layout.strides)
    return (tuple(range(len(layout.shape))), dense_strides(layout.shape)) if order is None else (order, layout.strides)


def _copy_with_strides(x: torch.Tensor, strides: Strides) -> torch.Tensor:
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=_CPU).copy_(x)

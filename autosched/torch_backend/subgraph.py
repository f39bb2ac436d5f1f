"""Parts of a torch.fx graph as programs: compiled at their first call, when weights are at hand, and packed anew when
these have changed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from autosched.errors import AutoschedError
from autosched.executor.compile_options import CompileOptions
from autosched.executor.lookup import compile_varying, compile_with_records
from autosched.executor.model import Model
from autosched.graph.graph import Array
from autosched.graph.torch.builder import array_of
from autosched.graph.torch.load import load_fx
from autosched.kernel.transfer import NearestSchedules
from autosched.network_tuning.background import improve_later, improved
from autosched.torch_backend.memory_format import order_of, with_orders
from autosched.torch_backend.options import BACKGROUND, NOW, BackendOptions, warn_once

Stamps = list[tuple[int, int]]  # of each weight where it lies, and how often it was written to
Strides = tuple[int, ...]
_CPU = torch.device("cpu")
MOST_KEPT = 64  # sets of weights of a part, as many as a network has layers that are alike


@dataclass(frozen=True)
class OnTensors:
    """A model as a function of torch tensors.

    `weights`: the places of arguments that are constants of the model, as they were at `stamps`. `inputs`: the places
    of the others, and the strides that the model reads them in; `outputs`: shape, strides and type of each result.
    `written`: of results that arguments get, which.
    """

    model: Model
    weights: tuple[int, ...]
    stamps: Stamps
    inputs: tuple[tuple[int, Strides], ...]
    outputs: tuple[tuple[tuple[int, ...], Strides, torch.dtype], ...]
    written: Mapping[int, int]

    @cached_property
    def homes(self) -> Mapping[int, int]:
        """Of results that the model makes in the memory of an input that gets them, which input."""
        places = [place for place, _ in self.inputs]
        found = ((n, place, self.model.in_place.get(n)) for n, place in self.written.items())
        return {n: home for n, place, home in found if home is not None and places[home] == place}

    def is_current(self, tensors: Sequence[torch.Tensor]) -> bool:
        return self.stamps == stamps_of(tensors, self.weights)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """One tensor, or a list of several."""
        ends = []  # holds what is copied until the end
        for n, strides in self.inputs:
            x = tensors[n]
            ends.append(x if x.stride() == strides else _copied(x, strides))
        results = [
            ends[self.homes[n]] if n in self.homes else torch.empty_strided(*form, dtype=dtype, device=_CPU)
            for n, (*form, dtype) in enumerate(self.outputs)
        ]
        self.model.launch([x.data_ptr() for x in (*ends, *results)])
        give(results, tensors, self.written)
        return results[0] if len(results) == 1 else results


@dataclass
class Part:
    """A partition as a function of tensors, from any number of threads. The arguments at `frozen` are weights;
    `nearest` are schedules of programs for other sizes, None for a graph whose sizes do not vary; `written`: of results
    that arguments get, as caches do, which argument.

    Where torch breaks a graph, layers that are alike share a part: `_kept` has one program for the weights of each.
    """

    module: fx.GraphModule
    options: BackendOptions
    frozen: tuple[int, ...]
    nearest: NearestSchedules | None = None
    written: Mapping[int, int] = field(default_factory=dict)
    _made: OnTensors | None = None
    _kept: list[OnTensors] = field(default_factory=list)
    _refused: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        made = self._made
        if made is None or not made.is_current(tensors):
            made = self.prepared(tensors)
        return self._by_torch(tensors) if made is None else made(tensors)

    @property
    def model(self) -> Model | None:
        """What runs; None before the first call, and where torch runs it."""
        return None if self._made is None else self._made.model

    def as_it_is(self, tensors: Sequence[torch.Tensor]) -> Any:
        """With the weights that it has, whatever those of `tensors` are: for its time."""
        made = self._made or self.prepared(tensors)
        return self._by_torch(tensors) if made is None else made(tensors)

    def _by_torch(self, tensors: Sequence[torch.Tensor]) -> Any:
        results = self.module(*tensors)
        give([results] if isinstance(results, torch.Tensor) else results, tensors, self.written)
        return results

    def prepared(self, tensors: Sequence[torch.Tensor]) -> OnTensors | None:
        """The program for the weights among `tensors`; None where there is none, which a warning told."""
        with self._lock:
            if self._refused:
                return None
            made = self._made
            try:
                if made is None:
                    self._made = self._compiled(tensors)
                    self._improve_later(self._made)
                elif not made.is_current(tensors):
                    self._made = self._for_weights(made, tensors)
            except AutoschedError as error:
                self._refused = True
                warn_once(f"autosched leaves a part of a network to torch, since it cannot be compiled: {error}")
            return None if self._refused else self._made

    def _compiled(self, tensors: Sequence[torch.Tensor]) -> OnTensors:
        # Of a tensor made in inference mode nobody can tell whether it has been written to.
        weights = tuple(n for n in self.frozen if not tensors[n].is_inference())
        stamps = stamps_of(tensors, weights)
        graph = load_fx(self.module, tensors, {n: tensors[n] for n in weights})
        graph = replace(graph, winograd=self.options.winograd)
        places = [n for n in range(len(tensors)) if n not in weights]
        inputs = [_form(tensors[n].shape, tensors[n].stride()) for n in places]
        (end,) = self.module.graph.find_nodes(op="output")
        results = [node.meta["val"] for node in _nodes(end)]
        outputs = [_form(y.shape, y.stride()) for y in results]
        turned = with_orders(
            graph,
            {name: order for name, (order, _) in zip(graph.inputs, inputs, strict=True)},
            {n: order for n, (order, _) in enumerate(outputs)},
        )
        threads = self.options.threads
        if self.nearest is None:
            model = compile_with_records(turned, threads=threads)
        else:
            model = compile_varying(turned, self.nearest, CompileOptions(threads=threads))
        return OnTensors(
            improved(model, self.options.budget_s) if self.options.tune == NOW else model,
            weights,
            stamps,
            tuple((n, strides) for n, (_, strides) in zip(places, inputs, strict=True)),
            tuple((tuple(y.shape), strides, y.dtype) for y, (_, strides) in zip(results, outputs, strict=True)),
            self.written,
        )

    def _improve_later(self, made: OnTensors) -> None:
        if self.options.tune == BACKGROUND:
            improve_later(made.model, self.options.budget_s, lambda model: self._replace(made, model))

    def _replace(self, made: OnTensors, model: Model) -> None:
        """The same program with other kernels; calls that run go on with those they have."""
        with self._lock:
            now = self._made
            assert now is not None
            if now is not made:  # weights have changed since
                model = model.with_weights(now.model.original.constants)
            self._made, self._kept = replace(now, model=model), []

    def _for_weights(self, made: OnTensors, tensors: Sequence[torch.Tensor]) -> OnTensors:
        """The program that was made for these weights, or one that is packed anew. Of weights that were written to, the
        older program goes; what is kept holds its weights, so that no others come to lie there."""
        stamps = stamps_of(tensors, made.weights)
        known = [made, *(kept for kept in self._kept if kept is not made)]
        found = next((kept for kept in known if kept.stamps == stamps), None) or self._repacked(made, tensors)
        places = [place for place, _ in stamps]
        others = [kept for kept in known if [place for place, _ in kept.stamps] != places]
        self._kept = [found, *others][:MOST_KEPT]
        return found

    def _repacked(self, made: OnTensors, tensors: Sequence[torch.Tensor]) -> OnTensors:
        stamps = stamps_of(tensors, made.weights)
        return replace(made, model=made.model.with_weights(self._constants(made, tensors)), stamps=stamps)

    def _constants(self, made: OnTensors, tensors: Sequence[torch.Tensor]) -> Mapping[str, Array]:
        """The weights by their names in the graph: those of the nodes."""
        names = [node.name for node in self.module.graph.find_nodes(op="placeholder")]
        known = made.model.original.constants
        return {names[n]: array_of(tensors[n]) for n in made.weights if names[n] in known}


def give(results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], written: Mapping[int, int]) -> None:
    """To arguments what they get, unless it was made there; torch is told that they have changed."""
    for n, place in written.items():
        if results[n] is not tensors[place]:
            tensors[place].copy_(results[n])
        elif not tensors[place].is_inference():
            torch.autograd.graph.increment_version(tensors[place])


def stamps_of(tensors: Sequence[torch.Tensor], places: Sequence[int]) -> Stamps:
    return [(x.data_ptr(), x._version) for x in map(tensors.__getitem__, places)]


def _nodes(end: fx.Node) -> list[fx.Node]:
    """What an fx graph returns, all of which are nodes."""
    found = end.args[0]
    return [node for node in (found if isinstance(found, tuple | list) else (found,)) if isinstance(node, fx.Node)]


def _form(shape: Sequence[int], strides: Strides) -> tuple[tuple[int, ...], Strides]:
    """The order in which a program has the dimensions of such a tensor, and its strides then."""
    order = order_of(tuple(shape), strides)
    if order is not None:
        return order, tuple(strides)
    sizes = torch.empty(tuple(shape), device="meta")
    return tuple(range(len(shape))), sizes.stride()


def _copied(x: torch.Tensor, strides: Strides) -> torch.Tensor:
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=_CPU).copy_(x)

"""A stand-in for compiled networks that interprets the graph, so that values are those of the reference."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from autosched.executor.compile_options import CompileOptions
from autosched.graph.graph import Array, Graph
from autosched.graph.interpret import interpret
from autosched.ir.dtype import DTYPES
from autosched.planning.extract_tasks import Choices
from autosched.torch_backend import partition, subgraph


@dataclass(frozen=True)
class InterpretedTask:
    count: int = 1


@dataclass(frozen=True)
class InterpretedModel:
    """What `torch_part` asks of a Model."""

    original: Graph
    packings: list[int]  # one more for each time that weights were taken
    tasks: tuple[InterpretedTask, ...] = (InterpretedTask(),)
    in_place: Mapping[int, int] = field(default_factory=dict)

    def launch(self, addresses: Sequence[int]) -> None:
        graph = self.original
        ends = [self._at(name, at) for name, at in zip((*graph.inputs, *graph.outputs), addresses, strict=True)]
        found = interpret(graph, dict(zip(graph.inputs, ends, strict=False)))
        for name, place in zip(graph.outputs, ends[len(graph.inputs) :], strict=True):
            place[...] = found[name]

    def with_weights(self, constants: Mapping[str, Array]) -> InterpretedModel:
        self.packings.append(len(self.packings))
        return replace(self, original=replace(self.original, constants={**self.original.constants, **constants}))

    def _at(self, name: str, address: int) -> Array:
        value = self.original.values[name]
        kind = np.dtype(DTYPES[value.dtype].numpy_dtype)
        memory = (ctypes.c_char * (int(np.prod(value.shape)) * kind.itemsize)).from_address(address)
        return np.frombuffer(memory, kind).reshape(value.shape)


class Compilations(list[Graph]):
    """The graphs that were compiled, and the threads of the last."""

    threads: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.packings: list[int] = []

    def compile_network(self, graph: Graph, options: CompileOptions, choices: Choices) -> InterpretedModel:
        self.append(graph)
        self.threads = options.threads
        tasks = () if choices.nearest is not None else (InterpretedTask(),)
        return InterpretedModel(graph, self.packings, tasks)


def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilations]:
    """For a fixture: the graphs that torch.compile with the backend compiles while a test runs, for certain sizes."""
    found = Compilations()
    monkeypatch.setattr(subgraph, "compile_network", found.compile_network)
    monkeypatch.setattr(partition, "MAX_TRACES", 0)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()

"""Model that was linked from an entry of the model cache: its execution plan is made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from autosched.executor.model import Clocks, Model
from autosched.graph.graph import Array, Graph
from autosched.kernel.device import Device
from autosched.runtime.linked_network import LinkedNetwork, NetworkKernel

if TYPE_CHECKING:
    from autosched.executor.sized_network import SizedNetwork
    from autosched.planning.execution_plan import NetworkProgram


class CachedModel(NetworkKernel, Model):
    """A linked network. `compile_again`: a function that loads the same file in the ordinary way, and takes the linked
    network if the execution plan is the same."""

    def __init__(self, linked: LinkedNetwork, device: Device, compile_again: Callable[[LinkedNetwork], Model]) -> None:
        super().__init__(linked)
        self.device = device
        self._compile_again, self._compiled, self._lock = compile_again, list[Model](), Lock()

    @property
    def compiled(self) -> Model:
        """The model with its graph and execution plan, made at the first use. Raises what loading raises."""
        with self._lock:
            if not self._compiled:
                self._compiled.append(self._compile_again(self.linked))
        return self._compiled[0]

    @property
    def original(self) -> Graph:  # type: ignore[override]
        return self.compiled.original

    @property
    def program(self) -> NetworkProgram:  # type: ignore[override]
        return self.compiled.program

    def with_program(self, original: Graph, program: NetworkProgram) -> Model:
        return self.compiled.with_program(original, program)

    def with_shared_weights(self, original: Graph, program: NetworkProgram, other: Model | SizedNetwork) -> Model:
        return self.compiled.with_shared_weights(original, program, other)

    def link_program(self, original: Graph, program: NetworkProgram) -> Model:
        return self.compiled.link_program(original, program)

    def export(self, path: str | Path) -> list[Path]:
        return self.compiled.export(path)

    def run_step(self, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return self.compiled.run_step(number, arrays)

    def clocks(self, arrays: Mapping[str, Array]) -> Clocks:
        return self.compiled.clocks(arrays)

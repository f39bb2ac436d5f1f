"""Model of several programs, which refuses what needs a single one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from autosched.executor.model import Clocks, Model
from autosched.graph.graph import Array, Graph

if TYPE_CHECKING:
    from autosched.executor.sized_network import SizedNetwork
    from autosched.planning.execution_plan import NetworkProgram


class CompositeModel(Model):
    """A network as a function of arrays that several programs compute."""

    @abstractmethod
    def _refuse(self) -> NoReturn:
        """Raise UsageError, for a caller that needs a single program."""

    @property
    def threads(self) -> int:
        return self.device.threads

    @property
    def original(self) -> Graph:  # type: ignore[override]
        self._refuse()

    @property
    def program(self) -> NetworkProgram:  # type: ignore[override]
        self._refuse()

    def launch(self, addresses: Sequence[int]) -> None:
        self._refuse()

    def with_program(self, original: Graph, program: NetworkProgram) -> Model:
        self._refuse()

    def with_shared_weights(self, original: Graph, program: NetworkProgram, other: Model | SizedNetwork) -> Model:
        self._refuse()

    def link_program(self, original: Graph, program: NetworkProgram) -> Model:
        self._refuse()

    def export(self, path: str | Path) -> list[Path]:
        self._refuse()

    def run_step(self, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        self._refuse()

    def clocks(self, arrays: Mapping[str, Array]) -> Clocks:
        self._refuse()

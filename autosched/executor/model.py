"""A network that runs, on a processor or a GPU, and how a graph becomes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from autosched.graph.graph import Array, Graph
from autosched.graph.index_checks import checks_of
from autosched.kernel.device import Device
from autosched.kernel.spec import Recipe
from autosched.planning.archive import save_archive
from autosched.planning.device_passes import prepare_graph
from autosched.planning.execution_plan import NetworkProgram, array_spec, build_program
from autosched.planning.extract_tasks import Choices, NetworkTask
from autosched.runtime.spec import ArraySpec

if TYPE_CHECKING:
    from autosched.inspection.network import Explanation
    from autosched.verification.verify import Verification

Clock: TypeAlias = Callable[[int], float]  # seconds of so many calls, one after the other


@dataclass(frozen=True)
class Clocks:
    """Of a network on the same arrays: of each kernel, by its step, and of the whole. They run in the order of the
    kernels: each finds what the one before it has left."""

    kernels: Mapping[int, Clock]
    call: Clock


class Model(ABC):
    """A network as a function of arrays: `model(x)`, `model(x, out=y)`, with everything that a kernel accepts.

    `original` is the graph as it came, `program` what became of it, `tasks` its kernels; `arena_bytes` is what one call
    needs besides inputs and results, `bound_bytes` the most that is alive at a time.
    """

    original: Graph
    program: NetworkProgram
    device: Device
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]

    @abstractmethod
    def __call__(self, *arrays: object, out: object = None, **named: object) -> Any: ...

    @abstractmethod
    def launch(self, addresses: Sequence[int]) -> None:
        """Runs with arrays at `addresses`, the outputs last, which nobody checks, in the memory that its kernels read;
        on a GPU it is queued on the device's own stream."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Of the processor."""

    @property
    def tasks(self) -> tuple[NetworkTask, ...]:
        return self.program.tasks

    @property
    def arena_bytes(self) -> int:
        return self.program.memory.nbytes

    @property
    def in_place(self) -> Mapping[int, int]:
        """Of each output that may be in the memory of an input, by their numbers, which."""
        return self.program.in_place

    @property
    def bound_bytes(self) -> int:
        return self.program.memory.bound_bytes

    @property
    def fusion_decisions(self) -> Mapping[Recipe, bool]:
        """Whether each fusion candidate, by its recipe, is one kernel."""
        return {choice.recipe: choice.is_fused for choice in self.program.fusion_choices}

    def with_weights(self, constants: Mapping[str, Array]) -> Model:
        """The network with other constants of the same shapes and types, by their names in `original`: the same
        program with weights packed anew. Only where passes make other nodes of them, another program."""
        original = replace(self.original, constants={**self.original.constants, **constants})
        graph = prepare_graph(original, self.device)
        if _structure(graph) == _structure(self.program.graph) and checks_of(graph) == self.program.checks:
            return self.with_program(original, replace(self.program, graph=graph))
        known = {task.recipe.spec: task.recipe for task in self.tasks}
        choices = Choices(lambda made: [known.get(r.spec, r) for r in made], self.fusion_decisions.get)
        return self._built(original, graph, choices)

    def with_choices(self, choices: Choices) -> Model:
        """Return the network with these schedules and fusion decisions."""
        return self._built(self.original, self.program.graph, choices)

    def _built(self, original: Graph, graph: Graph, choices: Choices) -> Model:
        target_text = self.tasks[0].recipe.target_text if self.tasks else self.device.target.kind
        return self.relinked(original, build_program(graph, target_text, self.device, choices))

    @abstractmethod
    def with_program(self, original: Graph, program: NetworkProgram) -> Model:
        """The network whose program differs from this one's in constants."""

    @abstractmethod
    def sharing(self, original: Graph, program: NetworkProgram, other: Model) -> Model:
        """This network with the constants of `program`, and the weights of another one where they are equal: once in
        memory."""

    @abstractmethod
    def relinked(self, original: Graph, program: NetworkProgram) -> Model:
        """Another program on the device that this one is on."""

    def verify(
        self, inputs: Mapping[str, object] | Sequence[object] | None = None, *, locate: bool = False
    ) -> Verification:
        """Compare the outputs and each kernel with the reference, see `autosched.verify`."""
        from autosched import inspection_api

        return inspection_api.verify(self, inputs, locate=locate)

    def explain(self) -> Explanation:
        """Time each kernel against the least time that the machine allows, see `autosched.explain`."""
        from autosched import inspection_api

        return inspection_api.explain(self)

    def show(self, as_: str = "graph") -> str:
        """Return the network as text in one of the forms of `autosched.show`."""
        from autosched import inspection_api

        return inspection_api.show(self, as_)

    def save(self, path: str | Path) -> None:
        """Writes the network and the schedules of its kernels to a file *.asc, which `autosched.load` takes."""
        save_archive(Path(path), self.original, self.tasks, self.fusion_decisions, self.device)

    @abstractmethod
    def export(self, path: str | Path) -> list[Path]:
        """Writes a shared library *.so that needs no autosched, its header and its weights; see `network.export`.
        Raises UsageError for a network on a GPU."""

    @abstractmethod
    def run_step(self, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The results of the kernel that step `number` is, by name. `arrays`: of its inputs that are no constants.

        Raises DeviceError where it stops.
        """

    @abstractmethod
    def clocks(self, arrays: Mapping[str, Array]) -> Clocks:
        """What times the network on `arrays`, by the names of its inputs. Raises DeviceError where a kernel stops."""


def ends_of(original: Graph, graph: Graph) -> tuple[list[ArraySpec], list[ArraySpec]]:
    """What callers give and get of a network: called as in `original`, of the shapes and types of `graph`."""
    ends, names = (*graph.inputs, *graph.outputs), (*original.inputs, *original.outputs)
    specs = [array_spec(graph, end, name) for name, end in zip(names, ends, strict=True)]
    return specs[: len(graph.inputs)], specs[len(graph.inputs) :]


def _structure(graph: Graph) -> tuple[object, ...]:
    """All of a graph but the elements of its constants."""
    return graph.inputs, graph.outputs, graph.nodes, graph.values, [*graph.constants]

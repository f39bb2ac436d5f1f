"""Model: a compiled network as a function of arrays, on a processor or a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from autosched.graph.graph import Array, Graph
from autosched.kernel.device import Device
from autosched.runtime.spec import ArraySpec

if TYPE_CHECKING:
    from autosched.executor.sized_network import SizedNetwork
    from autosched.inspection.network import Explanation
    from autosched.kernel.spec import KernelSpec
    from autosched.planning.execution_plan import NetworkProgram
    from autosched.planning.extract_tasks import Choices, NetworkTask
    from autosched.verification.verify import Verification

Clock: TypeAlias = Callable[[int], float]  # returns the seconds of n calls


@dataclass(frozen=True)
class FallbackTime:
    """The seconds of a call in which another `engine` runs the `operators`."""

    operators: tuple[str, ...]
    engine: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.engine} runs {', '.join(self.operators)}: {1e3 * self.seconds:.3g} ms of a call"


@dataclass(frozen=True)
class Clocks:
    """Clocks of each kernel, by its step as tasks number it, and of the whole call, on the same arrays. Kernels have to
    run in order, because each reads results of earlier ones. Bodies of loops have arrays of ones."""

    kernels: Mapping[int, Clock]
    call: Clock


class Model(ABC):
    """A network as a function of arrays: `model(x)`, `model(x, out=y)`, with the arrays that kernels accept.

    `original`: the imported graph. `program`: its execution plan. `tasks`: the plan's kernels. `arena_bytes`: memory of
    a call besides inputs and outputs. `bound_bytes`: its lower bound, the most bytes alive at a time.
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
        """Run with arrays at `addresses`, outputs last, without any check. The memory has to be that of the device; a
        GPU's launches are queued on its own stream."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of the processor."""

    @property
    def compiled_parts(self) -> tuple[Model, ...]:
        """The network itself, or its parts that are compiled if another engine runs the others."""
        return (self,)

    @property
    def bodies(self) -> tuple[Model, ...]:
        """The bodies of the network's loops, each as a network that computes one iteration."""
        return ()

    def fallback_times(self) -> tuple[FallbackTime, ...]:
        """Return the times of the parts of a call that another engine runs."""
        return ()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all kernels have schedules of their own, `seconds` at most, and return whether that has ended."""
        return True

    @property
    def tasks(self) -> tuple[NetworkTask, ...]:
        return self.program.all_tasks

    @property
    def arena_bytes(self) -> int:
        return self.program.memory.nbytes

    @property
    def in_place(self) -> Mapping[int, int]:
        """For each output that may alias an input, by index, the index of that input."""
        return self.program.in_place

    @property
    def bound_bytes(self) -> int:
        return self.program.memory.bound_bytes

    @property
    def fusion_decisions(self) -> Mapping[KernelSpec, bool]:
        """Whether each fusion candidate is fused, by its kernel_spec."""
        return {choice.kernel_spec: choice.is_fused for choice in self.program.all_fusion_choices}

    def with_weights(self, constants: Mapping[str, Array]) -> Model:
        """Return the network with other constants of the same shapes and types, by their names in `original`.

        The program is the same and weights are packed anew. Only if the passes fold these constants into a different
        graph, or the graph has loops, kernels are planned again.
        """
        from autosched.graph.index_checks import checks_of
        from autosched.planning.device_passes import prepare_graph
        from autosched.planning.extract_tasks import Choices

        original = replace(self.original, constants={**self.original.constants, **constants})
        graph = prepare_graph(original, self.device)
        is_same = _structure(graph) == _structure(self.program.graph) and checks_of(graph) == self.program.checks
        if is_same and not self.program.loops:
            return self.with_program(original, replace(self.program, graph=graph))
        own = {task.kernel_spec.workload: task.kernel_spec for task in self.tasks}
        choices = Choices(
            lambda kernel_specs: [own.get(r.workload, r) for r in kernel_specs], self.fusion_decisions.get
        )
        return self._rebuilt(original, graph, choices)

    def with_choices(self, choices: Choices) -> Model:
        """Return the network with these schedules and fusion choices."""
        return self._rebuilt(self.original, self.program.graph, choices)

    def _rebuilt(self, original: Graph, graph: Graph, choices: Choices) -> Model:
        from autosched.planning.execution_plan import build_program

        target_text = self.tasks[0].kernel_spec.target_text if self.tasks else self.device.target.kind
        return self.link_program(original, build_program(graph, target_text, self.device, choices))

    @abstractmethod
    def with_program(self, original: Graph, program: NetworkProgram) -> Model:
        """Return the network with a program that differs from its own in constants only."""

    @abstractmethod
    def with_shared_weights(self, original: Graph, program: NetworkProgram, other: Model | SizedNetwork) -> Model:
        """Return this network with the constants of `program` and, if they are equal, with the packed weights of the
        network `other`, so that both share the memory."""

    @abstractmethod
    def link_program(self, original: Graph, program: NetworkProgram) -> Model:
        """Link another program for the device of this network."""

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
        """Write the network and the schedules of its kernels to a file *.asc, which `autosched.load` accepts."""
        from autosched.planning.archive import save_archive

        save_archive(Path(path), self.original, self.tasks, self.fusion_decisions, self.device)

    @abstractmethod
    def export(self, path: str | Path) -> list[Path]:
        """Write a shared library *.so that does not need autosched, its header and its weights; see `export.network`.
        Raises UsageError for a network on a GPU."""

    @abstractmethod
    def run_step(self, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run the kernel of step `number` and return its results by name. `arrays`: its inputs that are not constants.

        Raises DeviceError if the kernel fails.
        """

    @abstractmethod
    def clocks(self, arrays: Mapping[str, Array]) -> Clocks:
        """Return clocks of the network on `arrays`, by input name. Raises DeviceError if a kernel fails."""


def caller_specs(original: Graph, graph: Graph) -> tuple[list[ArraySpec], list[ArraySpec]]:
    """Return the specs of inputs and outputs: names of `original`, shapes and types of `graph`."""
    from autosched.planning.execution_plan import array_spec

    values, names = (*graph.inputs, *graph.outputs), (*original.inputs, *original.outputs)
    specs = [array_spec(graph, value, name) for name, value in zip(names, values, strict=True)]
    return specs[: len(graph.inputs)], specs[len(graph.inputs) :]


def _structure(graph: Graph) -> tuple[object, ...]:
    """Return everything of a graph but the elements of its constants."""
    return graph.inputs, graph.outputs, graph.nodes, graph.values, [*graph.constants]


class DelegatingModel(Model):
    """A network whose graph, plan and files are those of another model, `whole`."""

    @property
    @abstractmethod
    def whole(self) -> Model:
        """The model. Raises what loading raises, where that is left until now."""

    @property
    def original(self) -> Graph:  # type: ignore[override]
        return self.whole.original

    @property
    def program(self) -> NetworkProgram:  # type: ignore[override]
        return self.whole.program

    @property
    def bodies(self) -> tuple[Model, ...]:
        return self.whole.bodies

    def with_program(self, original: Graph, program: NetworkProgram) -> Model:
        return self.whole.with_program(original, program)

    def with_shared_weights(self, original: Graph, program: NetworkProgram, other: Model | SizedNetwork) -> Model:
        return self.whole.with_shared_weights(original, program, other)

    def link_program(self, original: Graph, program: NetworkProgram) -> Model:
        return self.whole.link_program(original, program)

    def export(self, path: str | Path) -> list[Path]:
        return self.whole.export(path)

    def run_step(self, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return self.whole.run_step(number, arrays)

    def clocks(self, arrays: Mapping[str, Array]) -> Clocks:
        return self.whole.clocks(arrays)

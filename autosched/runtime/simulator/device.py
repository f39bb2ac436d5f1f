"""Simulated CUDA device: its kernels are executed on the processor, one launch after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autosched.codegen.c.source import SIZES
from autosched.runtime.gpu.compile import CompileError, DeviceCode
from autosched.runtime.gpu.device import Array, DeviceFault, DeviceMemory, LaunchSequence, Stream
from autosched.runtime.gpu.host_memory import HostMemory
from autosched.runtime.simulator.build import runtime
from autosched.runtime.simulator.execute import FAULTS_OF, Mode, Simulated, build, execute

if TYPE_CHECKING:
    from autosched.codegen.c.source import GpuSource, Launch
    from autosched.target import GpuFacts

MODE = Mode(seconds=600)


@dataclass(frozen=True)
class SimulatedLaunch:
    """A launch with its arrays by name, of which `initialised` have a content, and those `before` it in a call."""

    simulated: Simulated
    launch: Launch
    memory: Mapping[str, Array]
    initialised: frozenset[str]
    before: tuple[Launch, ...]


class SimulatedDevice(HostMemory):
    """A device with the given properties, which is its own compiler. Raises DeviceError if there is no compiler."""

    kind, identity = "cuda", "simulator"

    def __init__(self, facts: GpuFacts) -> None:
        runtime()  # kernels are built by several threads, and all must be linked to the same
        self._facts = facts
        self.name = f"the simulator, as a {facts.name}"

    def compile(self, source: GpuSource) -> DeviceCode:
        return DeviceCode(source.text.encode())

    def facts(self) -> GpuFacts:
        return self._facts

    def memory(self) -> tuple[int, int]:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")

    def load(self, binary: DeviceCode, source: GpuSource) -> Mapping[str, Any]:
        """Return the kernels by name; each launch has the whole text."""
        try:
            built = build(binary.code.decode(), capability=self._facts.capability)
        except CompileError as error:
            raise DeviceFault("build_error", str(error)) from None
        return {launch.kernel: built for launch in source.launches}

    def prepare(
        self, kernels: Mapping[str, Any], source: GpuSource, buffers: Mapping[str, DeviceMemory]
    ) -> LaunchSequence:
        memory = {name: buffer.handle for name, buffer in buffers.items()}
        initialised = frozenset((*source.inputs, SIZES))
        return LaunchSequence(
            tuple(
                SimulatedLaunch(kernels[launch.kernel], launch, memory, initialised, source.launches[:n])
                for n, launch in enumerate(source.launches)
            )
        )

    def run(self, call: LaunchSequence, stream: Stream = None) -> None:
        """Run the launches. Raises DeviceFault for the first mistake that the simulator finds."""
        for bound in call.launches:
            execution = execute(bound.simulated, (bound.launch,), bound.memory, bound.initialised, MODE, bound.before)
            for mistake in execution.mistakes:
                raise DeviceFault(FAULTS_OF.get(mistake.kind, "launch_failure"), str(mistake))

    def time(self, calls: Sequence[LaunchSequence], repeats: int) -> float:
        raise DeviceFault("launch_refused", "what a kernel takes on a GPU, the simulator does not tell")

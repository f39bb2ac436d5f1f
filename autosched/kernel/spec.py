"""Specification of a kernel of a network, and its compiled form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autosched.kernel.compilation_units import CompiledUnit
from autosched.kernel.device import Device, find_device
from autosched.kernel.request import Request
from autosched.runtime.disk_cache import key_of
from autosched.runtime.versions import code_version
from autosched.target import GpuFacts
from autosched.tuner.definition import redefine
from autosched.tuner.workload_spec import WorkloadSpec


@dataclass(frozen=True)
class ChosenSchedule:
    """The schedule of a kernel: its steps in JSON. Where the analytic model chose it, `sketch` is the sketch's name and
    `estimate_s` the predicted latency in seconds."""

    steps: str
    sketch: str = ""
    estimate_s: float = 0.0


@dataclass(frozen=True)
class KernelObject:
    """The code of one kernel: for a processor an object file, which is linked with its `units`; for a GPU its source,
    encoded by `kernel.gpu_kernel`.

    `array_bytes`: the bytes of its inputs and outputs, in order. The other fields are those of its `KernelSource`.
    """

    name: str
    array_bytes: tuple[int, ...]
    workspace_bytes: int
    packed_bytes: int
    winograd: int
    schedule: ChosenSchedule
    code: bytes
    units: tuple[CompiledUnit, ...] = ()

    @property
    def prepare(self) -> str | None:
        """The symbol of the function that packs the weights; None for a kernel without weights."""
        return f"{self.name}.prepare" if self.packed_bytes else None


@dataclass(frozen=True)
class KernelSpec:
    """What a kernel of a network is compiled from: its identity in the pool and in the cache.

    `steps`: the schedule in JSON, empty for the best by the analytic model. `gpu`: the properties of the GPU, which are
    read once for a network.
    """

    workload: WorkloadSpec
    target_text: str
    threads: int
    steps: str = ""
    gpu: GpuFacts | None = None

    @cached_property
    def device(self) -> Device:
        if self.gpu is None:
            return find_device(self.target_text, self.threads, runs=False)
        found = find_device(self.target_text, None, runs=False)
        return Device(found.target.with_gpu(self.gpu), self.threads)

    @cached_property
    def key(self) -> str:
        """The key in the cache: it differs for another computation, device, schedule, or version of the compiler."""
        return key_of(
            self.workload.text, self.device.target.fingerprint, str(self.threads), self.steps, *code_version()
        )

    @property
    def name(self) -> str:
        """The symbol of the kernel, which no other of any network has."""
        return f"kernel_{self.key}"

    @cached_property
    def request(self) -> Request:
        return Request(redefine(self.workload.text, None), self.device, self.target_text, in_network=True)

"""Specification of a kernel of a network, and its compiled form."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from autosched.ir.expr import Expr
from autosched.ir.size import Forms
from autosched.ir.size_data import forms_data, forms_of_data
from autosched.kernel.compilation_units import CompiledUnit
from autosched.kernel.device import Device, find_device
from autosched.kernel.request import Request
from autosched.runtime.disk_cache import key_of
from autosched.runtime.versions import code_version
from autosched.target import GpuFacts
from autosched.tuner.sized_workload import SizedWorkload
from autosched.tuner.workload_spec import WorkloadSpec

MAX_VARIANTS = 64  # of the code of a kernel of sizes, the last ones that were made


@dataclass(frozen=True)
class ChosenSchedule:
    """The schedule of a kernel: its steps in JSON. Where the analytic model chose it, `sketch` is the sketch's name and
    `estimate_s` the predicted latency in seconds."""

    steps: str
    sketch: str = ""
    estimate_s: float = 0.0


@dataclass(frozen=True)
class CodeSizes:
    """What follows from sizes that code reads at run time, as closed forms over their symbols s0, s1 and so on.

    The code is right for the sizes for which `guards` hold, and reads a `table` of int64. `shapes`: those of inputs and
    outputs, whose elements have `itemsizes` bytes. `packing`: the digest of the function that packs its weights.
    """

    guards: tuple[Expr, ...]
    table: tuple[Expr, ...]
    shapes: tuple[tuple[Expr, ...], ...]
    itemsizes: tuple[int, ...]
    workspace_bytes: Expr
    packing: str = ""

    @staticmethod
    def parse(text: str) -> CodeSizes:
        """Return what `text` printed. Raises ValueError for other text."""
        lengths, itemsizes, forms, packing = json.loads(text)
        parts = iter(forms_of_data(forms))
        guards, table, *shapes = (tuple(islice(parts, n)) for n in lengths)
        return CodeSizes(guards, table, tuple(shapes), tuple(itemsizes), next(parts), packing)

    def text(self, names: Mapping[str, str]) -> str:
        """Return JSON. `names`: those of the symbols there, by their own."""
        parts = self.guards, self.table, *self.shapes
        forms = forms_data([*(form for part in parts for form in part), self.workspace_bytes], names)
        return json.dumps([[*map(len, parts)], self.itemsizes, forms, self.packing])

    def hold(self, values: Mapping[str, int]) -> bool:
        """Whether the code is right for these values of the symbols."""
        return self._guards.hold(values)

    @cached_property
    def _guards(self) -> Forms:
        return Forms(self.guards)

    def numbers(self, values: Mapping[str, int]) -> tuple[list[int], tuple[int, ...], int]:
        """Return the table, the bytes of the arrays and those of the workspace for values of the symbols."""
        array_bytes = (math.prod(s) * n for s, n in zip(self.shapes_at(values), self.itemsizes, strict=True))
        return self._table.at(values), tuple(array_bytes), self._workspace.at(values)[0]

    def shapes_at(self, values: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Return the shapes of inputs and outputs for values of the symbols."""
        extents = iter(self._extents.at(values))
        return [tuple(islice(extents, len(shape))) for shape in self.shapes]

    @cached_property
    def _table(self) -> Forms:
        return Forms(self.table)

    @cached_property
    def _extents(self) -> Forms:
        return Forms(extent for shape in self.shapes for extent in shape)

    @cached_property
    def _workspace(self) -> Forms:
        return Forms([self.workspace_bytes])


@dataclass(frozen=True)
class KernelObject:
    """The code of one kernel: for a processor an object file, which is linked with its `units`; for a GPU its source,
    encoded by `kernel.gpu_kernel`.

    `array_bytes`: the bytes of its inputs and outputs, in order. The other fields are those of its `KernelSource`.
    `sizes`: for code of sizes that are known at run time its `CodeSizes` in JSON, else empty; the numbers are those for
    the present sizes then.
    """

    name: str
    array_bytes: tuple[int, ...]
    workspace_bytes: int
    packed_bytes: int
    winograd: int
    schedule: ChosenSchedule
    code: bytes
    units: tuple[CompiledUnit, ...] = ()
    sizes: str = ""

    @property
    def prepare(self) -> str | None:
        """The symbol of the function that packs the weights; None for a kernel without weights."""
        return f"{self.name}.prepare" if self.packed_bytes else None


def kernel_name(key: str) -> str:
    """Return the symbol of the kernel of a key."""
    return f"kernel_{key}"


@dataclass(frozen=True)
class KernelSpec:
    """What a kernel of a network, or of sizes, is compiled from: its identity in the pool and in the cache.

    `steps`: the schedule in JSON, empty for the best by the analytic model. `gpu`: the properties of the GPU, which are
    read once for a network. `sized`: for code of sizes that are known at run time their closed forms in `workload`.
    """

    workload: WorkloadSpec
    target_text: str
    threads: int
    steps: str = ""
    gpu: GpuFacts | None = None
    sized: SizedWorkload | None = None

    @cached_property
    def device(self) -> Device:
        if self.gpu is None:
            return find_device(self.target_text, self.threads, runs=False)
        found = find_device(self.target_text, None, runs=False)
        return Device(found.target.with_gpu(self.gpu), self.threads)

    @cached_property
    def key(self) -> str:
        """The key in the cache: it differs for another computation, device, schedule, or version of the compiler."""
        text = self.workload.text if self.sized is None else f"{self.sized.text} {self.sized.values}"
        return key_of(text, self.device.target.fingerprint, str(self.threads), self.steps, *code_version())

    @property
    def name(self) -> str:
        """The symbol of the kernel, which no other of any network has."""
        return kernel_name(self.key)

    @cached_property
    def request(self) -> Request:
        in_network = "graph" in self.workload.data
        return Request(self.workload.definition, self.device, self.target_text, in_network)

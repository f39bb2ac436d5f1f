"""A scripted device for tests: it returns the reference result of a workload for any kernel, and injects faults.

The script is a JSON file:

    {"spec": {"name": "matmul", "args": {"M": 8, "N": 8, "K": 8}, "dtype": "float32"},
     "memory": 100000000,
     "events": [{"at": 7, "what": "illegal_address"}, {"at": 20, "what": "hang", "times": 3},
                {"build": 2, "what": "spills"}, {"canary": 2, "what": "device_lost"},
                {"kernel": 5, "what": "misaligned_address"}]}

Counters start at 1 and count over all processes that use the script, in files beside it. `at` counts launches, `build`
compilations, `canary` the canaries with which workers begin, `kernel` other loaded kernels, whose first launch has the
fault. An event lasts for `times` (default 1) counts. `what` is a class of `measure.results.FAULTS`; `wrong_result`
corrupts one element. As on a real device, a fault that loses the context lasts until another process opens the device.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autosched.codegen.c.source import TensorMap
from autosched.runtime.gpu.compile import CompileError, DeviceCode, Resources
from autosched.runtime.gpu.device import STICKY, DeviceFault, DeviceMemory, LaunchSequence, Stream, raw
from autosched.runtime.gpu.host_memory import HostMemory
from autosched.runtime.gpu.tensor_maps import violated_limit

if TYPE_CHECKING:
    from autosched.codegen.c.source import GpuSource
    from autosched.target import GpuFacts

PEAK_KERNELS = ("fma_peak", "copy_peak", "matrix_peak")
COUNTERS = ("at", "build", "canary", "kernel")
_DEFAULT_MEMORY = 1 << 30
_BASE_S = 1e-5


@dataclass(frozen=True)
class FakeEvent:
    """A fault that is injected while `counter` is from `first` to `last`; `fault`: a class of faults."""

    counter: str  # of COUNTERS
    first: int
    last: int
    fault: str


@dataclass(frozen=True)
class Script:
    """The content of a script file: workload, bytes of device memory, faults to inject."""

    path: Path
    spec: Mapping[str, Any]
    memory: int
    events: tuple[FakeEvent, ...]

    def count(self, counter: str) -> str | None:
        """Increment a counter; return the fault of this count or None. Safe between processes."""
        descriptor = os.open(f"{self.path}.{counter}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, b".")
            number = os.lseek(descriptor, 0, os.SEEK_CUR)
        finally:
            os.close(descriptor)
        faults = (
            event.fault for event in self.events if event.counter == counter and event.first <= number <= event.last
        )
        return next(faults, None)


class FakeDevice(HostMemory):
    """A `GpuDevice` and its `Compiler` in host memory; `kind`: the kind of device that it simulates."""

    def __init__(self, script: Script, kind: str) -> None:
        self.name, self.kind = "scripted device", kind
        self._script = script
        self._allocated = 0
        self._lost: DeviceFault | None = None

    @classmethod
    def read(cls, path: str, kind: str) -> FakeDevice:
        """Return the device of the script file `path`."""
        data = json.loads(Path(path).read_text())
        events = []
        for entry in data.get("events", ()):
            counter = next(name for name in COUNTERS if name in entry)
            first = int(entry[counter])
            events.append(FakeEvent(counter, first, first + int(entry.get("times", 1)) - 1, str(entry["what"])))
        return cls(Script(Path(path), data["spec"], int(data.get("memory", _DEFAULT_MEMORY)), tuple(events)), kind)

    # As a compiler

    @property
    def identity(self) -> str:
        return f"fake {self._script.path}"

    def compile(self, source: GpuSource) -> DeviceCode:
        fault = None if source.name in ("canary", *PEAK_KERNELS) else self._script.count("build")
        if fault == "build_error":
            raise CompileError("the script says that this source does not compile")
        if fault in ("hang", "crash"):
            _stop_process(fault)
        spills = 16 if fault == "spills" else 0
        resources = (Resources(launch.kernel, 32, launch.shared_bytes, spills, spills) for launch in source.launches)
        warnings = ("wgmma.mma_async instructions are serialized",) if fault == "serialised" else ()
        return DeviceCode(source.text.encode(), tuple(resources), warnings)

    # As a device

    def facts(self) -> GpuFacts:
        from autosched.target import parse_target

        facts = parse_target(self.kind).gpu
        assert facts is not None
        return facts

    def memory(self) -> tuple[int, int]:
        self._check()
        return self._script.memory - self._allocated, self._script.memory

    def allocate(self, nbytes: int) -> DeviceMemory:
        self._check()
        if nbytes > self.memory()[0]:
            raise DeviceFault("out_of_memory", f"allocating {nbytes} bytes failed")
        self._allocated += nbytes
        return super().allocate(nbytes)

    def free(self, memory: DeviceMemory) -> None:
        self._check()
        self._allocated -= memory.nbytes

    def load(self, binary: DeviceCode, source: GpuSource) -> Mapping[str, Any]:
        self._check()
        if source.name == "canary":
            self._inject(self._script.count("canary"))
        elif source.name not in PEAK_KERNELS:
            self._pending_fault = self._script.count("kernel")
        return {launch.kernel: launch for launch in source.launches}

    def prepare(
        self, kernels: Mapping[str, Any], source: GpuSource, buffers: Mapping[str, DeviceMemory]
    ) -> LaunchSequence:
        """Bind the launches to buffers. Raises DeviceFault for tensor maps that no driver encodes."""
        for argument in (a for launch in source.launches for a in launch.arguments):
            if isinstance(argument, TensorMap):
                reason = violated_limit(argument, self.address(buffers[argument.buffer]))
                if reason is not None:
                    raise DeviceFault("launch_refused", reason)
        inputs, outputs = [buffers[n] for n in source.inputs], [buffers[n] for n in source.outputs]
        return LaunchSequence(((source, inputs, outputs),))

    def run(self, call: LaunchSequence, stream: Stream = None) -> None:
        for source, inputs, outputs in call.launches:
            self._run(source, inputs, outputs)

    def _run(self, source: GpuSource, inputs: Sequence[DeviceMemory], outputs: Sequence[DeviceMemory]) -> None:
        for _ in source.launches:
            self._launch()
        if source.name == "canary":
            outputs[0].handle.view(np.float32)[:] = 2 * inputs[0].handle.view(np.float32)
        else:
            self._evaluate(inputs, outputs)
        if self._corrupts_output:
            outputs[0].handle[:4] = 0x7F

    def time(self, calls: Sequence[LaunchSequence], repeats: int) -> float:
        """Return a made-up time in seconds, derived from the hash of the source's text, without waiting.

        Kernels that measure peak rates neither compute nor count, so a script's launches are those of candidates.
        """
        source, *_ = calls[0].launches[0]
        if source.name not in PEAK_KERNELS:
            self.run(calls[0])
        digest = hashlib.sha256(source.text.encode()).digest()
        return repeats * _BASE_S * (1 + int.from_bytes(digest[:2], "little") / 65536)

    _corrupts_output = False
    _pending_fault: str | None = None

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _launch(self) -> None:
        self._check()
        fault, self._pending_fault = self._script.count("at") or self._pending_fault, None
        self._corrupts_output = fault == "wrong_result"
        if not self._corrupts_output:
            self._inject(fault)

    def _inject(self, fault_class: str | None) -> None:
        if fault_class is None:
            return
        if fault_class in ("hang", "crash"):
            _stop_process(fault_class)
        fault = DeviceFault(fault_class, f"the script says {fault_class} at this launch")
        if fault_class in STICKY:
            self._lost = fault
        raise fault

    def _evaluate(self, inputs: Sequence[DeviceMemory], outputs: Sequence[DeviceMemory]) -> None:
        from autosched.te.operators.registry import resolve
        from autosched.te.reference.evaluate import evaluate

        dag = resolve(self._script.spec)
        arrays = {
            tensor.name: memory.handle.view(tensor.dtype).reshape(tensor.public_shape)
            for tensor, memory in zip(dag.inputs, inputs, strict=True)
        }
        for tensor, memory, reference in zip(dag.outputs, outputs, evaluate(dag, arrays), strict=True):
            memory.handle[:] = raw(np.ascontiguousarray(reference.value.astype(tensor.dtype)))


def _stop_process(fault_class: str) -> None:
    if fault_class == "crash":
        os.abort()
    while True:
        time.sleep(1)

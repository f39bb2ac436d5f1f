"""A scripted device for tests: it computes what a workload's reference says, whatever the kernel, and fails on cue.

The script is a JSON file:

    {"spec": {"name": "matmul", "args": {"M": 8, "N": 8, "K": 8}, "dtype": "float32"},
     "memory": 100000000,
     "events": [{"at": 7, "what": "illegal_address"}, {"at": 20, "what": "hang", "times": 3},
                {"build": 2, "what": "spills"}, {"canary": 2, "what": "device_lost"},
                {"kernel": 5, "what": "misaligned_address"}]}

`at` counts launches from 1 over all processes that use the script (in a file beside it), `build` compilations, `canary`
the canaries that workers begin with, `kernel` the other kernels that are loaded, whose first launch it happens at; an
event holds for `times` (default 1) of them in a row. `what` is a class of `measure.results.FAULTS`; `wrong_result`
spoils one element. As on a real device, a fault that loses the context stays until another process opens the device.
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
from autosched.runtime.gpu.tensor_maps import why_illegal

if TYPE_CHECKING:
    from autosched.codegen.c.source import GpuSource
    from autosched.target import GpuFacts

YARDSTICKS = ("fma_peak", "copy_peak", "matrix_peak")
COUNTERS = ("at", "build", "canary", "kernel")
_DEFAULT_MEMORY = 1 << 30
_BASE_S = 1e-5


@dataclass(frozen=True)
class FakeEvent:
    """Something that happens at the launches (or what else is counted) from `first` to `last`."""

    counter: str  # of COUNTERS
    first: int
    last: int
    what: str


@dataclass(frozen=True)
class Script:
    path: Path
    spec: Mapping[str, Any]
    memory: int
    events: tuple[FakeEvent, ...]

    def count(self, counter: str) -> str | None:
        """Counts one more launch or compilation; what happens at it. Safe between processes."""
        descriptor = os.open(f"{self.path}.{counter}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, b".")
            number = os.lseek(descriptor, 0, os.SEEK_CUR)
        finally:
            os.close(descriptor)
        found = (e.what for e in self.events if e.counter == counter and e.first <= number <= e.last)
        return next(found, None)


class FakeDevice(HostMemory):
    """A `Device` and a `Compiler` in host memory; `kind` is what it stands for."""

    def __init__(self, script: Script, kind: str) -> None:
        self.name, self.kind = "scripted device", kind
        self._script = script
        self._allocated = 0
        self._lost: DeviceFault | None = None

    @classmethod
    def read(cls, path: str, kind: str) -> FakeDevice:
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
        what = None if source.name in ("canary", *YARDSTICKS) else self._script.count("build")
        if what == "build_error":
            raise CompileError("the script says that this source does not compile")
        if what in ("hang", "crash"):
            _stop(what)
        spills = 16 if what == "spills" else 0
        resources = (Resources(launch.kernel, 32, launch.shared_bytes, spills, spills) for launch in source.launches)
        warnings = ("wgmma.mma_async instructions are serialized",) if what == "serialised" else ()
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
            self._happens(self._script.count("canary"))
        elif source.name not in YARDSTICKS:
            self._next = self._script.count("kernel")
        return {launch.kernel: launch for launch in source.launches}

    def prepare(
        self, kernels: Mapping[str, Any], source: GpuSource, buffers: Mapping[str, DeviceMemory]
    ) -> LaunchSequence:
        """Raises DeviceFault for maps that no driver makes."""
        for argument in (a for launch in source.launches for a in launch.arguments):
            if isinstance(argument, TensorMap):
                words = why_illegal(argument, self.address(buffers[argument.buffer]))
                if words is not None:
                    raise DeviceFault("launch_refused", words)
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
        if self._spoilt:
            outputs[0].handle[:4] = 0x7F

    def time(self, calls: Sequence[LaunchSequence], repeats: int) -> float:
        """A second of its own time for each source, derived from its text; nothing is waited for.

        The yardsticks of `peak` compute nothing and are not counted, so that a script's launches are the candidates'.
        """
        source, *_ = calls[0].launches[0]
        if source.name not in YARDSTICKS:
            self.run(calls[0])
        digest = hashlib.sha256(source.text.encode()).digest()
        return repeats * _BASE_S * (1 + int.from_bytes(digest[:2], "little") / 65536)

    _spoilt = False
    _next: str | None = None

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _launch(self) -> None:
        self._check()
        what, self._next = self._script.count("at") or self._next, None
        self._spoilt = what == "wrong_result"
        if not self._spoilt:
            self._happens(what)

    def _happens(self, what: str | None) -> None:
        if what is None:
            return
        if what in ("hang", "crash"):
            _stop(what)
        fault = DeviceFault(what, f"the script says {what} at this launch")
        if what in STICKY:
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


def _stop(what: str) -> None:
    if what == "crash":
        os.abort()
    while True:
        time.sleep(1)

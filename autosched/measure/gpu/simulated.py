"""Check of CUDA kernels in the simulator, without a GPU, on the data sets of a problem.

Each data set is simulated in another order: with late copies and threads forward, and with immediate copies and threads
backward. In the first order every memory access is checked, unless that would take too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import numpy as np

from autosched.codegen.c.source import GpuSource
from autosched.measure.buffers import POISON_FLOAT, GuardedBuffer
from autosched.measure.check import (
    Array,
    CandidateError,
    Expected,
    compare,
    describe_clobbered,
    open_array,
    open_expected,
)
from autosched.measure.problem import DATA_SETS
from autosched.runtime.gpu.compile import CompileError
from autosched.runtime.simulator.execute import EXTREMES, FAULTS_OF, Mode, Simulated, build, execute
from autosched.runtime.spec import ArraySpec

SECONDS = 600  # processor seconds of one launch
HASTY = tuple(replace(mode, seconds=SECONDS) for mode in EXTREMES)
EXAMINING = (replace(HASTY[0], checked=True), HASTY[1])


@dataclass(frozen=True)
class SimulatedSet:
    """One data set: its inputs, and the limits of the outputs."""

    name: str
    inputs: tuple[Array, ...]
    expected: tuple[Expected, ...]


class SimulatedData:
    """The data sets of a problem. Raises OSError, ValueError on damaged files."""

    def __init__(self, directory: Path, inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec]) -> None:
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._sets = [
            SimulatedSet(
                name,
                tuple(open_array(directory / f"{name}.in{i}.npy", spec) for i, spec in enumerate(inputs)),
                tuple(open_expected(directory, name, j, spec) for j, spec in enumerate(outputs)),
            )
            for name in DATA_SETS
        ]

    def check(self, source: GpuSource, modes: Sequence[Mode] = EXAMINING, counted: bool = False) -> Mapping[str, int]:
        """Check a source on all data sets; return the counters of the first one, if `counted` with wavefronts and
        sectors.

        Raises CandidateError for a faulty source, DeviceError if there is no compiler.
        """
        try:
            kernels = build(source.text, checked=counted or any(mode.checked for mode in modes))
        except CompileError as error:
            raise CandidateError("build_error", str(error)) from None
        first, *rest = zip(self._sets, cycle(modes), strict=False)
        numbers = self._check(source, kernels, first[0], replace(first[1], counted=counted))
        for data, mode in rest:
            self._check(source, kernels, data, mode)
        return numbers

    def _check(self, source: GpuSource, kernels: Simulated, data: SimulatedSet, mode: Mode) -> Mapping[str, int]:
        given = [GuardedBuffer(spec.nbytes, POISON_FLOAT) for spec in self._inputs]
        made = [GuardedBuffer(spec.nbytes) for spec in self._outputs]
        workspace = {name: GuardedBuffer(nbytes) for name, nbytes in source.workspace}
        for buffer, spec, array in zip(given, self._inputs, data.inputs, strict=True):
            buffer.bytes.view(spec.numpy_dtype)[:] = array.reshape(-1)
        for buffer, spec in zip(made, self._outputs, strict=True):
            buffer.poison(spec.dtype)
        for buffer in workspace.values():
            buffer.poison("float32")
        names, specs = (*source.inputs, *source.outputs), (*self._inputs, *self._outputs)
        buffers = {**dict(zip(names, (*given, *made), strict=True)), **workspace}
        types = {name: spec.numpy_dtype for name, spec in zip(names, specs, strict=True)}
        memory = {name: buffer.bytes.view(types.get(name, np.uint8)) for name, buffer in buffers.items()}
        execution = execute(kernels, source.launches, memory, frozenset(source.inputs), mode)
        for mistake in execution.mistakes:
            raise CandidateError(FAULTS_OF.get(mistake.kind, "wrong_result"), str(mistake))
        for name, buffer in buffers.items():
            if breach := buffer.breach():
                raise CandidateError("out_of_bounds", f"the kernel wrote outside {name}: {breach}")
        for buffer, spec, array in zip(given, self._inputs, data.inputs, strict=True):
            if not buffer.equals(array):
                raise CandidateError(
                    "clobbered_input", describe_clobbered(spec, buffer.bytes.view(spec.numpy_dtype), array)
                )
        for buffer, spec, expected in zip(made, self._outputs, data.expected, strict=True):
            if message := compare(spec, buffer.bytes.view(spec.numpy_dtype), expected):
                raise CandidateError("wrong_result", f"{message} (data set {data.name})")
        return execution.numbers

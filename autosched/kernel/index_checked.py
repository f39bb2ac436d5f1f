"""Kernels whose calls check indices that are data: a probe kernel reads them first (`te.index_probes`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autosched.errors import OutOfRangeError
from autosched.kernel.request import Request
from autosched.kernel.task import analytic_best, make_task
from autosched.runtime.gpu.arrays import DeviceArray
from autosched.runtime.spec import ArraySpec, in_order
from autosched.te.index_probes import Probe, index_probes
from autosched.te.tensor import indices_as_given
from autosched.tuner.definition import Workload, define
from autosched.tuner.options import WorkloadOptions

if TYPE_CHECKING:
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel


@dataclass(frozen=True)
class IndexCheckedKernel:
    """`kernel`, as a function of the same arrays whose calls check their indices.

    A call raises OutOfRangeError, an IndexError, if an index is out of range, before anything is written. `probe`: the
    kernel that counts indices out of range, None if there cannot be any. `bound`: weights that are bound to the kernel
    and that the probe reads.
    """

    kernel: Kernel | GpuKernel
    probe: Kernel | GpuKernel | None
    probes: tuple[Probe, ...]
    bound: Mapping[str, object] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[ArraySpec, ...]:
        return self.kernel.inputs

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:
        return self.kernel.outputs

    def bind(self, **weights: object) -> IndexCheckedKernel:
        """Bind weights to the kernel, as `Kernel.bind` does."""
        kernel: Any = self.kernel
        read = set() if self.probe is None else {spec.name for spec in self.probe.inputs}
        copies = {name: np.array(array) for name, array in weights.items() if name in read}
        return replace(self, kernel=kernel.bind(**weights), bound={**self.bound, **copies})

    def __call__(self, *arrays: object, out: object = None, **named: object) -> Any:
        options = {"stream": named.pop("stream")} if "stream" in named else {}
        names = [spec.name for spec in self.inputs]
        given = in_order(names, arrays, named) if named or len(arrays) != len(names) else arrays
        if self.probe is not None:
            self._check({**self.bound, **dict(zip(names, given, strict=True))}, options)
        return self.kernel(*given, out=out, **options)

    def _check(self, arrays: Mapping[str, object], options: Mapping[str, Any]) -> None:
        assert self.probe is not None
        results: Sequence[Any] = self.probe(*(arrays[spec.name] for spec in self.probe.inputs), **options)
        on_host = (result.numpy() if isinstance(result, DeviceArray) else result for result in results)
        numbers = [int(result.item()) for result in on_host]
        for probe, index, number in zip(self.probes, numbers[::2], numbers[1::2], strict=True):
            if number < probe.count:
                raise OutOfRangeError(probe.message(index))


def with_checks(
    kernel: Kernel | GpuKernel, request: Request, workload: Workload, options: WorkloadOptions
) -> IndexCheckedKernel:
    """Return the kernel of a request with its indices checked."""
    with indices_as_given():
        unchecked = define(workload, replace(options, weights=(), winograd=False, precision="float32")).dag
    dag, probes = index_probes(unchecked, request.problem.dag)
    if dag is None:
        return IndexCheckedKernel(kernel, None, ())
    problem = request.problem
    spec = json.dumps({**json.loads(problem.spec), "probes": len(probes)}, sort_keys=True)
    probe = replace(request, problem=replace(problem, name=f"{problem.name}:indices", dag=dag, spec=spec))
    task, _ = make_task(probe, name="probe")
    return IndexCheckedKernel(kernel, probe.load(analytic_best(task, 1, task.source)[0][1]), probes)

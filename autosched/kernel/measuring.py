"""The measurer of one kernel: its data and the workers that build, verify and time its candidates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.kernel.request import Request

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.measure import Failure, Measurement, Measurer, WorkerPool


def start_measurer(request: Request, folder: Path, seed: int, worker_pool: WorkerPool | None = None) -> Measurer:
    """Start the measurer of a kernel, to be used in a `with` statement.

    Its inputs and references are drawn by `seed` and kept in `folder`. The workers are those of `worker_pool`, or new
    ones of the request's device. Raises UsageError if memory or disk are too small for the data.
    """
    from autosched.measure import Measurer, WorkerPool, make_problem
    from autosched.tuner.memory_check import check_memory_and_disk

    dag, device = request.problem.dag, request.device
    check_memory_and_disk(dag, folder)
    return Measurer(make_problem(dag, folder, seed), worker_pool or WorkerPool(device.target, device.threads))


def measure_sources(request: Request, sources: Mapping[str, Source], seed: int) -> dict[str, Measurement | Failure]:
    """Build kernels in workers, verify them on data drawn by `seed`, and time them; return the results by name."""
    from autosched.measure import Job
    from autosched.measure.host import ScratchDirectory
    from autosched.tuner.time_bound import bound_of

    dag, device = request.problem.dag, request.device
    least_s = bound_of(dag, request.problem.dtype, device.target, device.threads).seconds(None)
    with ScratchDirectory() as scratch, start_measurer(request, scratch, seed) as measurer:
        jobs = [Job(name, source) for name, source in sources.items()]
        return dict(zip(sources, measurer.measure(jobs, None, lambda seconds: seconds >= least_s), strict=True))

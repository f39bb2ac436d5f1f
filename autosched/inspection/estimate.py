"""A search by the cost model alone, for any device; on request its best candidates are verified in the simulator."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.artifacts.sources import N_SOURCES, write_sources
from autosched.kernel.request import Request
from autosched.kernel.simulation import right_ones
from autosched.kernel.task import Space, analytic_best, make_task

if TYPE_CHECKING:
    from autosched.tuner.result import Result


def estimate(request: Request, space: Space, directory: Path | None, begun: float, simulate: bool) -> Result:
    """The best of the analytic draft as a Result without measurements; its sources go to `directory`.

    With `simulate` those are left that compute what they should. Raises VerificationError where none does.
    """
    import numpy as np

    from autosched.tuner.result import Result

    task, _ = make_task(request, space)
    search_begun = time.monotonic()
    drafted, failures = analytic_best(task, N_SOURCES, task.source), Counter[str]()
    n_drafted = len(drafted)
    if simulate:
        drafted, failures = right_ones(request.problem.dag, drafted)
    best, _ = drafted[0]
    seconds = float(task.model.analytic_latency(best.sketch, np.array([best.values], np.int64))[0])
    if directory is not None:
        write_sources(directory, task, [source for _, source in drafted], request.problem.spec)
    now = time.monotonic()
    return replace(
        Result.of(task, best, seconds),
        trials=n_drafted if simulate else 0,
        failures=failures,
        wall_s=now - begun,
        search_s=now - search_begun,
        verified=simulate,
    )

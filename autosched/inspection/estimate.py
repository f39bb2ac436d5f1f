"""Search by the cost model alone, for any device; the best candidates can be verified in the simulator."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.artifacts.sources import N_SOURCES, write_sources
from autosched.kernel.request import Request
from autosched.kernel.simulation import verified_candidates
from autosched.kernel.task import Space, analytic_best, make_task

if TYPE_CHECKING:
    from autosched.tuner.result import Result


def estimate(request: Request, space: Space, directory: Path | None, begun: float, simulate: bool) -> Result:
    """Return the best candidate by the analytic latency as a Result without measurements, and write the sources of the
    best ones to `directory`.

    `simulate`: only candidates that the simulator verifies. Raises VerificationError if there is none.
    """
    import numpy as np

    from autosched.tuner.result import Result

    task, _ = make_task(request, space)
    search_begun = time.monotonic()
    candidates, failures = analytic_best(task, N_SOURCES, task.source), Counter[str]()
    n_candidates = len(candidates)
    if simulate:
        candidates, failures = verified_candidates(request.problem.dag, candidates)
    best, _ = candidates[0]
    seconds = float(task.model.analytic_latency(best.sketch, np.array([best.values], np.int64))[0])
    if directory is not None:
        write_sources(directory, task, [source for _, source in candidates], request.problem.spec)
    now = time.monotonic()
    return replace(
        Result.of(task, best, seconds),
        trials=n_candidates if simulate else 0,
        failures=failures,
        wall_s=now - begun,
        search_s=now - search_begun,
        verified=simulate,
    )

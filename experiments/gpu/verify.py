"""Random candidates of every sketch of an operator, run on the device and held to the float64 reference."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autosched.codegen import build_source
from autosched.errors import AutoschedError
from autosched.lower import lower
from autosched.measure import Failure, Job, Measurer, WorkerPool, make_problem
from autosched.measure.host import ScratchDirectory
from autosched.target import Target
from autosched.te import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model import CostModel
from experiments.gpu.cases import Check
from search_spaces import space
from search_spaces.gpu import sketches

HARMLESS = ("spills", "serialised")  # recorded without being run: slow, not wrong
DRAWN = 64  # rows of a sketch that are drawn to find legal ones
MESSAGES = 4
ENOUGH_S, RUN_S = 60.0, 10.0


def verify(
    check: Check, target: Target, candidates: int, seed: int = 0, build_workers: int | None = None
) -> dict[str, Any]:
    """One row: how many candidates ran and were right, and what was wrong with the others. `target` has its facts.

    What has not run after ENOUGH_S is left out.
    """
    begun = time.monotonic()
    try:
        dag, _ = build(check.workload, check.shape, check.settings)
        with ScratchDirectory() as scratch:
            data = make_problem(dag, scratch, seed)
            worker_pool = WorkerPool(target, 1, build_workers)
            with Measurer(data, worker_pool, floor_s=0.0, first_deadline_s=RUN_S) as measurer:
                answers = []
                for result in measurer.measure(list(random_jobs(dag, target, candidates, seed))):
                    answers.append(result)
                    if time.monotonic() > begun + ENOUGH_S:
                        break
    except AutoschedError as error:
        return {"ok": False, "candidates": 0, "right": 0, "failures": {}, "messages": [str(error)]}
    failed = [answer for answer in answers if isinstance(answer, Failure)]
    right = len(answers) - len(failed)
    wrong = [answer for answer in failed if answer.kind not in HARMLESS]
    return {
        "ok": right > 0 and not wrong,
        "candidates": len(answers),
        "right": right,
        "failures": dict(Counter(answer.kind for answer in failed)),
        "messages": [f"{answer.key}: {answer.kind}: {answer.message}"[:500] for answer in wrong[:MESSAGES]],
        "seconds": round(time.monotonic() - begun, 2),
    }


def random_jobs(dag: ComputeDAG, target: Target, n: int, seed: int) -> Iterator[Job]:
    """Up to `n` legal candidates, or one of each sketch, taken from them in turn; `key` is sketch and values."""
    found = sketches(collapse(dag), target)
    nests = [lower(sketch.state) for sketch in found]
    names = [tuple(p.name for p in sketch.params) for sketch in found]
    model = CostModel(nests, names, target, 1)
    rng = np.random.default_rng(seed)
    rows = [_legal(model, i, sketch, rng) for i, sketch in enumerate(found)]
    order = [(i, k) for k in range(DRAWN) for i in range(len(found)) if k < len(rows[i])]
    for i, k in order[: max(n, len(found))]:
        values = dict(zip(names[i], map(int, rows[i][k]), strict=True))
        words = " ".join(f"{name}={value}" for name, value in values.items())
        yield Job(f"{found[i].name} {words}", build_source(nests[i], values, target))


def _legal(model: CostModel, i: int, sketch: space.Sketch, rng: np.random.Generator) -> Sequence[np.ndarray[Any, Any]]:
    rows = space.unique(space.sample(sketch, DRAWN, rng))
    rows = rows[model.legal(i, rows)]
    if not len(rows):
        grid = space.enumerate_grid(sketch, 4096, rng)
        rows = grid[model.legal(i, grid)]
    return list(rng.permutation(rows)[:DRAWN])

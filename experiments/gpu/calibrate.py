"""The step `calibrate`: measured candidates from which the constants of the GPU's analytic latency are fitted.

For each problem about two dozen candidates, from what the search would measure first to what the model says is many
times slower: built in parallel, verified and timed as tuning does. Every answer is appended to OUT/calibration.jsonl at
once, so that a run that is killed loses little: first a line with the device's facts, then for each problem one that
names it and one for each of its candidates (sketch and values, the prediction with its parts, the features, seconds,
registers and spilled bytes, or the class of the failure). `experiments.gpu.fit` reads it, off the device. In a dry run
the device is OpenCL's and the problems are tiny.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np

from autosched.errors import AutoschedError
from autosched.measure import Failure, Job, Measurer, WorkerPool, make_problem
from autosched.measure.host import ScratchDirectory
from autosched.measure.problem import Problem
from autosched.runtime.gpu.devices import device_facts
from autosched.target import Target, parse_target
from autosched.tuner.protocols import Candidate
from experiments.gpu.drawn import CalibrationProblem, ProblemModel, card_facts, drawn, job, named, parts, problem_model
from experiments.gpu.fit_quality import ranking
from experiments.gpu.steps import Row, StepRequest

FILE = "calibration.jsonl"
RESERVE_S = 6.0  # for the candidate that is being measured when time is over, and for processes to end
FLOOR_S = 0.02  # of samples for each candidate
RUN_S = 20.0  # of a candidate while none is known
AHEAD = 2  # problems that are prepared while another is measured: some references take seconds
SCHEMA_VERSION = 1


def _gmm(m: int, n: int, k: int, dtype: str = "float32", candidates: int = 24) -> CalibrationProblem:
    return CalibrationProblem("gmm", (1, m, n, k), dtype, candidates)


def _c2d(images: int, *numbers: int, dtype: str = "bfloat16", candidates: int = 20) -> CalibrationProblem:
    return CalibrationProblem("c2d", (images, *numbers), dtype, candidates)


def _dense(m: int, n: int, k: int, dtype: str) -> CalibrationProblem:
    return CalibrationProblem("dense", (m, n, k), dtype, 20)


# Of networks with one request at a time: a transformer's layers with 128 tokens, a residual network's.
SMALL = (
    _dense(128, 768, 768, "float32"),
    _dense(128, 768, 3072, "float16"),
    _c2d(1, 14, 14, 256, 256, 3, 1, 1, dtype="float16"),
    _dense(128, 768, 3072, "float32"),
    _dense(128, 768, 768, "float16"),
    _c2d(1, 7, 7, 512, 512, 3, 1, 1, dtype="float16"),
    _dense(128, 3072, 768, "float32"),
    _c2d(1, 14, 14, 1024, 256, 1, 1, 0, dtype="float16"),
    CalibrationProblem("attention", (1, 12, 128, 64), "float16", 12),
    _c2d(1, 7, 7, 512, 512, 3, 1, 1, dtype="float32"),
    _c2d(1, 56, 56, 64, 64, 3, 1, 1, dtype="float16"),
    _dense(128, 3072, 768, "float16"),
    _c2d(1, 14, 14, 1024, 256, 1, 1, 0, dtype="float32"),
    _c2d(1, 7, 7, 512, 2048, 1, 1, 0, dtype="float16"),
    _c2d(1, 224, 224, 3, 64, 7, 2, 3, dtype="float16"),
    CalibrationProblem("layer_norm", (128, 768), "float16", 12),
)
# The most telling first.
PROBLEMS = (
    *SMALL,
    _gmm(4096, 4096, 4096, "bfloat16"),
    _c2d(16, 14, 14, 256, 256, 3, 1, 1),
    _gmm(4096, 4096, 4096),
    _gmm(512, 4096, 4096, "bfloat16"),
    _gmm(8192, 8192, 8192, "bfloat16", 16),
    _c2d(16, 7, 7, 512, 512, 3, 1, 1),
    _gmm(1024, 1024, 1024, "bfloat16"),
    _gmm(17, 4096, 4096, "bfloat16"),
    _gmm(2048, 2048, 2048),
    _c2d(16, 56, 56, 64, 64, 1, 1, 0),
    _gmm(4096, 4096, 4096, "int8", 20),
    CalibrationProblem("gmm", (96, 1024, 1024, 64), "bfloat16", 20),
    _c2d(16, 224, 224, 3, 64, 7, 2, 3),
    _c2d(16, 14, 14, 256, 256, 3, 1, 1, dtype="float32"),
    CalibrationProblem("softmax", (4096, 4096), candidates=16),
    CalibrationProblem("layer_norm", (4096, 4096), "bfloat16", 16),
    _gmm(1024, 1024, 1024),
    _gmm(2048, 2048, 2048, "bfloat16"),
    _c2d(1, 14, 14, 256, 256, 3, 1, 1),
    _c2d(1, 56, 56, 64, 64, 1, 1, 0, dtype="float32"),
    CalibrationProblem("elementwise", (4096, 4096), "bfloat16", 12),
    _gmm(512, 512, 512),
    CalibrationProblem("layer_norm", (4096, 4096), candidates=16),
    _c2d(1, 14, 14, 256, 256, 3, 1, 1, dtype="float32"),
    CalibrationProblem("elementwise", (4096, 4096), candidates=12),
    _c2d(16, 56, 56, 64, 64, 1, 1, 0, dtype="float32"),
)
QUICK = (
    CalibrationProblem("gmm", (1, 48, 40, 56), candidates=5),
    CalibrationProblem("softmax", (16, 33), candidates=3),
)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A problem with its candidates, their sources and its data, which may still be computed."""

    of: ProblemModel
    candidates: tuple[Candidate, ...]
    jobs: tuple[Job, ...]
    data: Problem


def prepare(problem: CalibrationProblem, target: Target, directory: Path, seed: int) -> Prepared:
    """Raises AutoschedError where there is no candidate."""
    of = problem_model(problem, target)
    data = make_problem(problem.dag(), directory, seed)
    made: dict[str, tuple[Candidate, Job]] = {}
    for candidate in drawn(of, seed):
        found = job(of, candidate)
        made[found.key] = (candidate, found)
    return Prepared(of, tuple(c for c, _ in made.values()), tuple(j for _, j in made.values()), data)


def predict(request: StepRequest) -> str:
    return (
        "before any constant is fitted: rank correlation 0.6-0.9 a problem, the draft's pick within 1.6 of the best of "
        "two dozen; bf16 4096 415 us, fp32 4096 2.9 ms, fp32 1024 58 us by the model; at most 2 % spill, none is wrong"
    )


def measure(request: StepRequest) -> Iterator[tuple[str, Row]]:
    target = parse_target("opencl" if request.is_dry else "cuda")
    target = target.with_gpu(device_facts(target.kind))
    problems: tuple[CalibrationProblem, ...] = QUICK if request.is_dry else PROBLEMS
    yield from calibrate(problems, target, request.out / FILE, request.seconds - RESERVE_S)


def summary(rows: Mapping[str, Row]) -> str:
    """A line for each problem."""
    lines = []
    for label, row in rows.items():
        said = ", ".join(f"{n} {kind}" for kind, n in row.get("failures", {}).items())
        words = row.get("error") or (
            f"{row['measured']} measured, best {row['best_s'] * 1e6:.1f} us, its pick {row['regret']:.2f} of it,"
            f" predicted {row['level']:.2f} of what it took, rank correlation {row['correlation']:.2f}"
            if row.get("measured")
            else "nothing was measured"
        )
        lines.append(f"{label}: {words}{'; ' + said if said else ''}")
    return "\n".join(lines) or "nothing was measured"


def calibrate(
    problems: Sequence[CalibrationProblem], target: Target, out: Path, seconds: float, seed: int = 0
) -> Iterator[tuple[str, Row]]:
    """A row for each problem that is measured within `seconds`; the candidates go to `out`. `target` has its facts."""
    end = time.monotonic() + seconds
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file, WorkerPool(target, 1) as worker_pool:
        _append(file, {"schema_version": SCHEMA_VERSION, "card": card_facts(target), "target": target.kind})
        for problem, prepared, scratch in _ahead(problems, target, seed):
            with scratch:
                if time.monotonic() >= end:
                    break
                if isinstance(prepared, str):
                    yield problem.label, {"error": prepared}
                    continue
                rows: list[Row] = []
                try:
                    for row in _measured(prepared, worker_pool, file, end):
                        rows.append(row)
                except (AutoschedError, OSError) as error:
                    yield problem.label, {"error": f"after {len(rows)} candidates: {error}"}
                else:
                    yield problem.label, _problem_row(rows)


def _problem_row(rows: Sequence[Row]) -> Row:
    timed = [row for row in rows if "seconds" in row]
    found: Row = {"measured": len(timed), "failures": dict(Counter(r["failure"] for r in rows if "failure" in r))}
    if timed:
        predicted, seconds = (np.array([row[name] for row in timed]) for name in ("predicted", "seconds"))
        said = ranking(predicted, seconds)
        found |= {"best_s": float(seconds.min()), "regret": said.regret, "level": said.level}
        found["correlation"] = said.correlation
    return found


def _ahead(
    problems: Sequence[CalibrationProblem], target: Target, seed: int
) -> Iterator[tuple[CalibrationProblem, Prepared | str, ScratchDirectory]]:
    """Each problem with the directory of its data; the next AHEAD are prepared while one is measured."""
    with ThreadPoolExecutor(1) as pool, ExitStack() as scratches:
        started: deque[tuple[CalibrationProblem, Future[Prepared], ScratchDirectory]] = deque()
        waiting = iter(problems)
        while True:
            for problem in islice(waiting, 1 + AHEAD - len(started)):
                scratch = ScratchDirectory()
                scratches.callback(scratch.close)
                started.append((problem, pool.submit(prepare, problem, target, scratch.path, seed), scratch))
            if not started:
                break
            problem, future, scratch = started.popleft()
            try:
                found: Prepared | str = future.result()
            except Exception as error:  # of whatever class: time on a device is short, and the next problem may do
                found = f"{type(error).__name__}: {error}"[:300]
            yield problem, found, scratch


def _measured(prepared: Prepared, worker_pool: WorkerPool, file: TextIO, end: float) -> Iterator[Row]:
    """What is in the file, candidate by candidate, until time is over."""
    of = prepared.of
    _append(file, {"problem": {"label": of.problem.label, **vars(of.problem)}})
    measurer = Measurer(prepared.data, worker_pool, floor_s=FLOOR_S, first_deadline_s=RUN_S)
    answers = measurer.measure(list(prepared.jobs))
    for candidate, wanted, answer in zip(prepared.candidates, prepared.jobs, answers, strict=True):
        row = _predicted(of, candidate)
        row["resources"] = [asdict(taken) for taken in measurer.resources.get(wanted.key, ())]
        if isinstance(answer, Failure):
            row |= {"failure": answer.kind, "message": answer.message[:300]}
        else:
            row |= {"seconds": answer.seconds, "samples": list(answer.samples)}
        _append(file, row)
        yield row
        if time.monotonic() >= end:
            break


def _predicted(of: ProblemModel, candidate: Candidate) -> Row:
    i, row = candidate.sketch, np.array([candidate.values], np.int64)
    return {
        "label": of.problem.label,
        "sketch": of.sketches[i].name,
        "values": named(of, candidate),
        "predicted": float(of.model.analytic_latency(i, row)[0]),
        "parts": parts(of, candidate),
        "features": [round(float(x), 5) for x in of.model.features(i, row)[0]],
    }


def _append(file: TextIO, entry: Row) -> None:
    file.write(json.dumps(entry) + "\n")
    file.flush()

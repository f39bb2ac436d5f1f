"""Measured candidates from which the constants of the GPU's analytic latency are fitted, off the device.

    python -m experiments.gpu.calibrate [--target cuda|opencl] [--seconds N] [--out FILE] [--quick]

For each problem about two dozen candidates, from what the search would measure first to what the model says is many
times slower: built in parallel, verified and timed as tuning does. Every answer is appended to FILE at once, as a line
of JSON, so that a run that is killed loses little: first a line with the device's facts, then for each problem one that
names it and one for each of its candidates (sketch and values, the prediction with its parts, the features, seconds,
registers and spilled bytes, or the class of the failure). `experiments.gpu.fit` reads it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autosched.errors import AutoschedError
from autosched.measure import Failure, Job, Measurer, Workshop, make_problem
from autosched.measure.host import ScratchDirectory
from autosched.measure.problem import Problem
from autosched.runtime.gpu.devices import device_facts
from autosched.target import Target, parse_target
from autosched.tuner.protocols import Candidate
from experiments.gpu.drawn import CalibrationProblem, ProblemModel, card_facts, drawn, job, named, parts, problem_model

RESULTS = Path(__file__).resolve().parents[1] / "results" / "gpu"
SECONDS = 150.0
FLOOR_S = 0.02  # of samples for each candidate
RUN_S = 20.0  # of a candidate while none is known
SCHEMA_VERSION = 1


def _gmm(m: int, n: int, k: int, dtype: str = "float32", candidates: int = 24) -> CalibrationProblem:
    return CalibrationProblem("gmm", (1, m, n, k), dtype, candidates)


# The most telling first.
PROBLEMS = (
    _gmm(1024, 1024, 1024, candidates=32),
    _gmm(4096, 4096, 4096, "bfloat16"),
    _gmm(4096, 4096, 4096),
    CalibrationProblem("c2d", (16, 14, 14, 256, 256, 3, 1, 1)),
    _gmm(1024, 1024, 1024, "bfloat16"),
    CalibrationProblem("softmax", (4096, 4096), candidates=20),
    CalibrationProblem("c2d", (16, 14, 14, 256, 256, 3, 1, 1), "bfloat16"),
    CalibrationProblem("c2d", (1, 56, 56, 64, 64, 1, 1, 0)),
    _gmm(2048, 2048, 2048),
    _gmm(17, 4096, 4096, "bfloat16"),
    CalibrationProblem("elementwise", (4096, 4096), candidates=12),
    _gmm(512, 512, 512),
    CalibrationProblem("layer_norm", (4096, 4096), candidates=16),
    CalibrationProblem("c2d", (1, 14, 14, 256, 256, 3, 1, 1)),
    _gmm(8192, 8192, 8192, "bfloat16", 16),
    CalibrationProblem("c2d", (16, 56, 56, 64, 64, 1, 1, 0)),
)  # fmt: skip
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


def calibrate(
    problems: Sequence[CalibrationProblem], target: Target, out: Path, seconds: float = SECONDS, seed: int = 0,
    build_workers: int | None = None,
) -> int:  # fmt: skip
    """Appends what is measured within `seconds` to `out`; how many candidates that were. `target` has its facts."""
    end, measured = time.monotonic() + seconds, 0
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        out.open("a", encoding="utf-8") as file,
        Workshop(target, 1, build_workers) as workshop,
        ThreadPoolExecutor(1) as ahead,
    ):
        _append(file, {"schema_version": SCHEMA_VERSION, "card": card_facts(target), "target": target.kind})
        for prepared, scratch in _one_ahead(problems, target, ahead, seed):
            with scratch:
                if isinstance(prepared, str):
                    _append(file, {"failed": prepared})
                elif time.monotonic() < end:
                    try:
                        measured += _measure(prepared, workshop, file, end)
                    except (AutoschedError, OSError) as error:
                        _append(file, {"failed": f"{prepared.of.problem.label}: {error}"})
            if time.monotonic() >= end:
                break
    return measured


def _one_ahead(
    problems: Sequence[CalibrationProblem], target: Target, ahead: ThreadPoolExecutor, seed: int
) -> Iterator[tuple[Prepared | str, ScratchDirectory]]:
    """Each problem with the directory of its data; the next one is prepared while one is measured."""

    def start(problem: CalibrationProblem) -> tuple[Future[Prepared], ScratchDirectory]:
        scratch = ScratchDirectory()
        return ahead.submit(prepare, problem, target, scratch.path, seed), scratch

    following = start(problems[0])
    for i, problem in enumerate(problems):
        (future, scratch), more = following, i + 1 < len(problems)
        try:
            found: Prepared | str = future.result()
        except Exception as error:  # of whatever class: time on a device is short, and the next problem may do
            found = f"{problem.label}: {type(error).__name__}: {error}"
        if more:
            following = start(problems[i + 1])
        yield found, scratch


def _measure(prepared: Prepared, workshop: Workshop, file: Any, end: float) -> int:
    of = prepared.of
    _append(file, {"problem": {"label": of.problem.label, **vars(of.problem)}})
    measurer = Measurer(prepared.data, workshop, floor_s=FLOOR_S, first_deadline_s=RUN_S)
    answers = measurer.measure(list(prepared.jobs))
    for n, (candidate, wanted, answer) in enumerate(zip(prepared.candidates, prepared.jobs, answers, strict=True)):
        row = _predicted(of, candidate)
        for taken in measurer.resources.get(wanted.key, ())[:1]:
            row |= {"registers": taken.registers, "spill_bytes": taken.spill_bytes, "stack_bytes": taken.stack_bytes}
        if isinstance(answer, Failure):
            row |= {"failure": answer.kind, "message": answer.message[:300]}
        else:
            row |= {"seconds": answer.seconds, "samples": list(answer.samples)}
        _append(file, row)
        if time.monotonic() >= end:
            return n + 1
    return len(prepared.jobs)


def _predicted(of: ProblemModel, candidate: Candidate) -> dict[str, Any]:
    i, row = candidate.sketch, np.array([candidate.values], np.int64)
    return {
        "label": of.problem.label,
        "sketch": of.sketches[i].name,
        "values": named(of, candidate),
        "predicted": float(of.model.analytic_latency(i, row)[0]),
        "parts": parts(of, candidate),
        "features": [round(float(x), 5) for x in of.model.features(i, row)[0]],
    }


def _append(file: Any, entry: dict[str, Any]) -> None:
    file.write(json.dumps(entry) + "\n")
    file.flush()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="experiments.gpu.calibrate", description="measure what constants are from")
    parser.add_argument("--target", choices=("cuda", "opencl"), default="cuda", help="default cuda")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N", help=f"default {SECONDS:.0f}")
    parser.add_argument("--out", type=Path, default=RESULTS / "calibration.jsonl", metavar="FILE")
    parser.add_argument("--candidates", type=int, metavar="N", help="of each problem (default: as the problem says)")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to try the script itself")
    args = parser.parse_args(argv)
    try:
        target = parse_target(args.target)
        target = target.with_gpu(device_facts(target.kind))
        problems: tuple[CalibrationProblem, ...] = QUICK if args.quick else PROBLEMS
        if args.candidates:
            problems = tuple(replace(p, candidates=args.candidates) for p in problems)
        print(f"{calibrate(problems, target, args.out, args.seconds)} candidates in {args.out}")
    except AutoschedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

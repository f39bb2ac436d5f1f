"""How many candidates a second the search can judge on one core.

    python -m experiments.search_throughput --json

The population is drawn at random from every sketch of a workload, as many rows from each. Nothing is skipped: the later
phases run on all rows, the illegal ones too, although a search drops those first.

    drafted     legality, all features, analytic latency
    ranked      the same and the learned ranker's prediction, fitted on synthetic times
    sampled     drawing the rows; counted in neither of the two

A rate is rows of all sketches / the median over rounds of the seconds that a round took. Lowering and compiling the
closed forms happens once for a sketch and is reported as `setup_s`. All work is done by one thread: array operations
have no more, and the ranker is told so; `cpu_per_wall` above 1 would show another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.cli import options
from autosched.errors import AutoschedError
from autosched.lower import lower
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model import CostModel
from experiments.hostinfo import host_facts
from search_spaces import space
from search_spaces.cpu import sketches
from search_spaces.space import Population, Sketch

ROWS = 65_536  # of each sketch
ROUNDS = 5
MEASUREMENTS = 512  # synthetic ones, to fit the ranker on
NOISE = 0.5  # their standard deviation around the draft, in powers of e
PHASES = ("sample", "legality", "draft", "features", "score")


@dataclass(frozen=True)
class ThroughputCase:
    """The sketches of a workload with a cost model that is compiled and fitted; `setup_s` is what that took."""

    sketches: tuple[Sketch, ...]
    model: CostModel
    setup_s: float
    fit_s: float


def prepare(workload: str, threads: int, rng: np.random.Generator) -> ThroughputCase:
    """`threads`: of the kernels that are judged, not of the judging."""
    start = time.perf_counter()
    target = parse_target("cpu")
    dag, _ = build(workload)
    found = sketches(collapse(dag), target, threads)
    names = [tuple(p.name for p in sketch.params) for sketch in found]
    model = CostModel([lower(sketch.state) for sketch in found], names, target, threads)
    for i, sketch in enumerate(found):
        row = space.sample(sketch, 1, rng)
        model.legal(i, row), model.analytic_latency(i, row), model.features(i, row)
    ready = time.perf_counter()
    teach(model, found, rng)
    return ThroughputCase(found, model, ready - start, time.perf_counter() - ready)


def teach(model: CostModel, found: Sequence[Sketch], rng: np.random.Generator) -> None:
    """Fits the ranker on MEASUREMENTS made-up times around the draft."""
    numbers: list[int] = []
    rows: list[Population] = []
    seconds: list[float] = []
    for i, sketch in enumerate(found):
        drawn = space.sample(sketch, -(-MEASUREMENTS // len(found)), rng)
        numbers += [i] * len(drawn)
        rows += list(drawn)
        seconds += (model.analytic_latency(i, drawn) * np.exp(NOISE * rng.standard_normal(len(drawn)))).tolist()
    model.update(numbers[:MEASUREMENTS], rows[:MEASUREMENTS], seconds[:MEASUREMENTS])


@dataclass(frozen=True)
class Round:
    """Seconds of each of PHASES over all sketches, in wall time and in processor time, and the legal rows."""

    seconds: dict[str, float]
    cpu_s: float
    legal: int


def run_round(subject: ThroughputCase, rows: int, rng: np.random.Generator) -> Round:
    model, spent, legal = subject.model, dict.fromkeys(PHASES, 0.0), 0
    judges: dict[str, Callable[[int, Population], npt.NDArray[Any]]] = {
        "legality": model.legal,
        "draft": model.analytic_latency,
        "features": model.features,
        "score": model.score,  # evaluates the features again, then predicts
    }
    begun = time.process_time()
    for i, sketch in enumerate(subject.sketches):
        start = time.perf_counter()
        matrix = space.sample(sketch, rows, rng)
        spent["sample"] += time.perf_counter() - start
        for phase, judge in judges.items():
            start = time.perf_counter()
            found = judge(i, matrix)
            spent[phase] += time.perf_counter() - start
            legal += int(found.sum()) if phase == "legality" else 0
    return Round(spent, time.process_time() - begun, legal)


def measure(workload: str = "conv2d", rows: int = ROWS, rounds: int = ROUNDS, seed: int = 0) -> dict[str, object]:
    """The JSON object that is printed."""
    rng = np.random.default_rng(seed)
    target = parse_target("cpu")
    subject = prepare(workload, target.cores, rng)
    run_round(subject, min(rows, 1024), rng)
    done = [run_round(subject, rows, rng) for _ in range(rounds)]
    total = rows * len(subject.sketches)

    def rate(*phases: str) -> float:
        return total / statistics.median(sum(r.seconds[p] for p in phases) for r in done)

    median = {phase: statistics.median(r.seconds[phase] for r in done) for phase in PHASES}
    wall_s = sum(sum(r.seconds.values()) for r in done)
    programs = [(m.legal_program, m.latency_program, m.feature_program) for m in subject.model.sketches]
    return {
        "schema_version": 1,
        "workload": workload,
        "draft_per_s": rate("legality", "features", "draft"),
        "ranked_per_s": rate("legality", "draft", "score"),
        "sampled_per_s": rate("sample"),
        "us_per_candidate": {phase: 1e6 * seconds / total for phase, seconds in median.items()},
        "sketches": len(subject.sketches),
        "rows_per_sketch": rows,
        "candidates": total,
        "rounds": rounds,
        "legal_share": sum(r.legal for r in done) / (rounds * total),
        "array_operations": [[p.n_instructions for p in row] for row in programs],
        "measurements_fitted": subject.model.n_rows,
        "wall_s": wall_s,
        "cpu_per_wall": sum(r.cpu_s for r in done) / wall_s,
        "setup_s": subject.setup_s,
        "fit_s": subject.fit_s,
        "host": host_facts(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.search_throughput", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--workload", default="conv2d", help="a built-in name (default conv2d)")
    parser.add_argument(
        "--rows", type=options.integer(1), default=ROWS, metavar="N", help=f"of each sketch (default {ROWS})"
    )
    parser.add_argument("--rounds", type=options.integer(1), default=ROUNDS, metavar="N", help=f"default {ROUNDS}")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    args = parser.parse_args(argv)
    try:
        found = measure(args.workload, args.rows, args.rounds)
    except AutoschedError as error:
        parser.error(str(error))
    if args.json:
        print(json.dumps(found))
        return 0
    print(f"{found['workload']}: {found['sketches']} sketches, {found['candidates']} candidates a round, one core")
    for name in ("sampled_per_s", "draft_per_s", "ranked_per_s"):
        print(f"  {name:14} {found[name]:12,.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

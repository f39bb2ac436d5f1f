"""What the analytic model's choice costs: regret over random pipelines of stages.

    python -m experiments.pipelines.regret --pipelines 20 --threads 2

The choice is the kernel that `autosched.compile` takes without records. It is timed, interleaved, beside the best
predicted of 2,000 random candidates of each sketch; of more than --sketches of these, the better half of that number by
prediction, and as many of the others at random. Regret is the time of the choice over the least of all these
times, 1 at best. Results of all must agree with the choice's. With --programs those of `experiments.pipelines` are
measured instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import autosched as at
from autosched.cli import options
from autosched.cli.bench import geomean
from autosched.cli.output import table
from autosched.errors import AutoschedError, UsageError
from autosched.kernel.device import find_device
from autosched.kernel.request import Request
from autosched.kernel.task import analytic_best, make_task
from autosched.measure import timing
from autosched.target import usable_cores
from autosched.te import ComputeDAG, Tensor
from autosched.tuner.definition import define
from autosched.tuner.options import WorkloadOptions
from autosched.tuner.task import Task
from experiments.pipelines.__main__ import SIZE, size_of
from experiments.pipelines.contest import Contest
from experiments.pipelines.programs import PROGRAMS
from experiments.pipelines.random_pipelines import PipelineSizes, pipeline_dag
from experiments.tuning import load_now, result_file, write_results
from search_spaces.space import Sketch, sample

SIZES = PipelineSizes(
    rows=(512, 768, 1000), columns=(512, 640, 1000), largest=1280, stages=10, dtypes=(("float32",),)
)  # fmt: skip
SKETCHES = 12
DRAWN = 2000  # rows of each sketch
ROUNDS, BLOCK_S = 30, 0.01
AGREES = 1e-3  # of the largest value
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TimedKernel:
    """A kernel of a pipeline, with the name of its sketch."""

    sketch: str
    predicted_s: float
    run: Callable[[], object]


def candidates(
    workload: Callable[[], Any], arrays: Sequence[Array], threads: int, most: int
) -> tuple[list[TimedKernel], list[str]]:
    """The choice, the best predicted candidates of `most` sketches, and what failed or does not agree with it."""
    request = Request(define(workload, WorkloadOptions(threads=threads)), find_device("cpu", threads), "cpu")
    task, sketches = make_task(request)
    (chosen, source), *_ = analytic_best(task, 1, task.source)
    choice = request.load(source)
    expected = _results(choice(*arrays))
    (predicted_s,) = task.model.analytic_latency(chosen.sketch, np.array([chosen.values], np.int64))
    found = [TimedKernel(sketches[chosen.sketch].name, float(predicted_s), _call(choice, arrays))]
    failures = list[str]()
    for i, predicted_s, values in _preselected(task, sketches, most):
        name = sketches[i].name
        try:
            kernel = request.load(task.emit(i, values))
            results = _results(kernel(*arrays))
        except (AutoschedError, RuntimeError) as error:
            failures.append(f"{name} {values}: {type(error).__name__}: {error}")
            continue
        if all(map(_agree, results, expected)):
            found.append(TimedKernel(name, predicted_s, _call(kernel, arrays)))
        else:
            failures.append(f"{name} {values} does not agree with the choice")
    return found, failures


def _preselected(task: Task, sketches: Sequence[Sketch], most: int) -> list[tuple[int, float, dict[str, int]]]:
    """Sketches by number, each with its best prediction in seconds and the values of its parameters."""
    rng, found = np.random.default_rng(0), list[tuple[int, float, dict[str, int]]]()
    for i, sketch in enumerate(sketches):
        rows = sample(sketch, DRAWN, rng)
        predicted = np.where(task.model.legal(i, rows), task.model.analytic_latency(i, rows), np.inf)
        best = int(predicted.argmin())
        if np.isfinite(predicted[best]):
            values = dict(zip((p.name for p in sketch.params), rows[best].tolist(), strict=True))
            found.append((i, float(predicted[best]), values))
    found.sort(key=lambda entry: entry[1])
    if len(found) <= most:
        return found
    others = rng.permutation(np.arange(most // 2, len(found)))[: most - most // 2]
    return [*found[: most // 2], *(found[n] for n in sorted(others))]


def _results(given: Any) -> tuple[Array, ...]:
    return tuple(np.array(a) for a in (given if isinstance(given, tuple) else (given,)))


def _agree(a: Array, b: Array) -> bool:
    finite = np.isfinite(b)
    largest = float(np.abs(b[finite]).max(initial=0.0))
    return bool(np.allclose(a, b, rtol=0, atol=AGREES * largest, equal_nan=True))


def _call(kernel: Any, arrays: Sequence[Array]) -> Callable[[], object]:
    out = kernel(*arrays)
    return lambda: kernel(*arrays, out=out)


def measure(name: str, workload: Callable[[], Any], arrays: Sequence[Array], threads: int, most: int) -> dict[str, Any]:
    """The row of a pipeline: times, predictions and regret."""
    start = time.perf_counter()
    found, failures = candidates(workload, arrays, threads, most)
    making_s = time.perf_counter() - start
    timed = list(zip(_least_seconds(found), found, strict=True))
    choice_s = timed[0][0]
    best_s, best = min(timed, key=lambda pair: pair[0])
    entries = [{"sketch": k.sketch, "predicted_s": k.predicted_s, "seconds": seconds} for seconds, k in timed]
    return {
        "pipeline": name, "threads": threads, "choice": found[0].sketch, "choice_s": choice_s,
        "choice_predicted_s": found[0].predicted_s, "best": best.sketch, "best_s": best_s,
        "best_predicted_s": best.predicted_s, "regret": choice_s / best_s, "making_s": making_s, "entries": entries,
        "failures": failures,
    }  # fmt: skip


def _least_seconds(kernels: Sequence[TimedKernel]) -> list[float]:
    """Of one call, the least over interleaved blocks of calls: other work on the machine only makes blocks slower."""
    clocks = {str(n): timing.python_clock(kernel.run, time.perf_counter) for n, kernel in enumerate(kernels)}
    found = timing.interleaved(clocks, ROUNDS, BLOCK_S)
    return [min(found[name]) for name in clocks]


def random_workload(seed: str, sizes: PipelineSizes) -> tuple[Callable[[], Any], list[Array], ComputeDAG]:
    """The pipeline of a seed as a workload, with arrays for its inputs."""
    dag, rng = pipeline_dag(seed, sizes), np.random.default_rng(0)
    outputs: Sequence[Tensor] = dag.outputs

    def pipeline() -> Any:
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    pipeline.__name__ = f"pipeline_{seed.replace('-', '_')}"
    arrays = [(rng.random(t.shape) + 0.1).astype(t.dtype) for t in dag.inputs]
    return at.workload(pipeline), arrays, dag


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table, the largest regret first, with the mean, the geometric mean and the worst."""
    header = (
        "pipeline",
        "regret",
        "choice, ms (predicted)",
        "best, ms (predicted)",
        "sketches",
        "failures",
        "choice, best",
    )

    def milliseconds(row: Mapping[str, Any], which: str) -> str:
        return f"{1e3 * row[f'{which}_s']:.3f} ({1e3 * row[f'{which}_predicted_s']:.3f})"

    lines = [
        (
            row["pipeline"], f"{row['regret']:.2f}", milliseconds(row, "choice"), milliseconds(row, "best"),
            str(len(row["entries"]) - 1), str(len(row["failures"])), f"{row['choice']}, {row['best']}",
        )
        for row in sorted(rows, key=lambda row: -row["regret"])
    ]  # fmt: skip
    regrets = [row["regret"] for row in rows]
    said = f"regret: mean {np.mean(regrets):.2f}, geometric mean {geomean(regrets):.2f}, worst {max(regrets):.2f}"
    return f"{table(header, lines)}\n{said}"


def subjects(args: argparse.Namespace) -> list[tuple[str, Callable[[], Any], list[Array]]]:
    """What is measured. Raises UsageError for programs that there are not."""
    for name in args.programs:
        if name not in PROGRAMS:
            raise UsageError(f"there is no program {name}; there are {', '.join(PROGRAMS)}")
    if args.programs:
        contests = [Contest.of(name, args.size) for name in args.programs]
        return [(c.name, c.workload, list(c.arrays)) for c in contests]
    seeds = [f"{args.seed}-{n}" for n in range(args.pipelines)]
    return [(seed, *random_workload(seed, SIZES)[:2]) for seed in seeds]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.pipelines.regret", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--pipelines", type=options.integer(1), default=20, metavar="N", help="random ones, default 20")
    add("--seed", type=options.integer(0), default=0, metavar="N", help="default 0")
    add("--programs", type=options.names, default=(), metavar="NAMES", help="these instead of random ones")
    add("--size", type=size_of, default=SIZE, metavar="ROWSxCOLUMNS", help="of --programs, default 1536x2560")
    add("--threads", type=options.integer(1), default=usable_cores(), metavar="N", help="default: the cores")
    add("--sketches", type=options.integer(1), default=SKETCHES, metavar="N", help=f"of each, default {SKETCHES}")
    add("--out", type=result_file, metavar="JSON", help="write the rows, with the facts of this machine")
    args = parser.parse_args(argv)
    try:
        found = subjects(args)
    except UsageError as error:
        parser.error(str(error))
    rows, load = [], load_now()
    for name, workload, arrays in found:
        rows.append(measure(name, workload, arrays, args.threads, args.sketches))
        print(f"{name}: regret {rows[-1]['regret']:.2f}, best {rows[-1]['best']}", file=sys.stderr, flush=True)
        for failure in rows[-1]["failures"]:
            print(f"  {failure}", file=sys.stderr, flush=True)
    if args.out:
        write_results(args.out, {"load_before": load, "rows": rows})
    print(report(rows))
    return 1 if any(row["failures"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())

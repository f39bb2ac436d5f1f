"""autosched against TVM MetaSchedule: the best kernel of each after as many trials, and what finding it took.

    python -m experiments.versus_metaschedule --peer-python PEERS/bin/python [--cases c2d:1,...] [--out results.json]

PEERS is a virtual environment with TVM and without PyTorch, which TVM would import in each of its workers, at the cost
of seconds a worker and of candidates that miss their deadline:

    pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 xgboost-cpu cloudpickle psutil tornado

MetaSchedule takes minutes a case, so its best kernel is kept as a shared library in a cache, by processor, threads,
trials and case; its time is always measured anew. On a busy machine its candidates miss their deadlines: look at the
column "their failed", and tune on a machine that does nothing else.

Comparing: both kernels run in turn in processes of their own, blocks of 50 ms, the order alternating from round to
round, in the same minute; the medians over the rounds are compared. Each side's loop is compiled code. autosched tunes
in a fresh process with a fresh database, and its kernel is verified again in every block.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from autosched.codegen import build_source
from autosched.errors import AutoschedError, UsageError, VerificationError
from autosched.lower import lower
from autosched.measure import Failure, Job, Measurer, make_problem
from autosched.measure.host import ScratchDirectory
from autosched.measure.results import median_interval
from autosched.runtime.state import state_directory
from autosched.schedule import replay
from autosched.store import Database
from autosched.target import Target, parse_target
from autosched.te import ComputeDAG
from autosched.te.collapse import collapse
from autosched.te.registry import build
from experiments.tuning import (
    WRONG,
    Case,
    geomean,
    last_object,
    load_now,
    microseconds,
    number,
    parse_cases,
    table,
    tune,
    write_results,
)

CASES = "c2d:1,c2d:2,c1d:2,gmm:2,gmm:3,cap:1,t2d:1,dep:1,nrm:2,sfm:2,cbr:1,tbg:0"
RESULTS = Path(__file__).resolve().parent / "results" / "versus_metaschedule.json"
PEER = Path(__file__).resolve().with_name("metaschedule_peer.py")
ROUNDS = 10  # even: each order as often as its reverse
PAUSE_S = 0.5  # before each block: TVM's threads go on spinning for a while, on the core that the other side needs
BLOCK_S = 0.05
PEER_TIMEOUT_S = 3600.0
BLOCK_TIMEOUT_S = 60.0
HEADER = (
    "case", "theirs us", "ours us", "speed ratio", "their tuning s", "our tuning s", "time ratio", "their failed",
    "our failed", "our wrong",
)  # fmt: skip

Sampler = Callable[[], float]  # -> seconds of one call, over a block


@dataclass(frozen=True)
class Setting:
    """What all cases have in common."""

    target: Target
    threads: int
    trials: int
    seed: int
    peer_python: Path
    cache: Path


# MetaSchedule's side

# Exit code 0: fit; 3: no TVM; 4: PyTorch is there as well.
PROBE = "import sys; from importlib.util import find_spec as f; sys.exit(3 if not f('tvm') else 4 if f('torch') else 0)"


def check_peer(python: Path) -> None:
    """Raises UsageError unless `python` has TVM and lacks PyTorch, which would slow TVM's workers down."""
    if not os.access(python, os.X_OK):
        raise UsageError(f"{python} is no interpreter")
    code = subprocess.run([str(python), "-c", PROBE], timeout=BLOCK_TIMEOUT_S, stdin=subprocess.DEVNULL).returncode
    if code == 4:
        raise UsageError(f"{python} has PyTorch beside TVM, which is unfair to MetaSchedule: see the module's text")
    if code != 0:
        raise UsageError(f"{python} has no TVM: see the module's text for what to install")


def library_of(case: Case, setting: Setting) -> Path:
    """Where the cache has the best kernel of `case`."""
    words = (setting.target.mcpu, f"{setting.threads}threads", f"{setting.trials}trials", f"seed{setting.seed}")
    return setting.cache / "-".join(words) / f"{case.workload}-{case.index}.so"


def peer_result(case: Case, setting: Setting) -> dict[str, Any]:
    """What MetaSchedule reached on `case`, from the cache or by tuning now; {"error": ...} where it has no kernel."""
    library = library_of(case, setting)
    note = library.with_suffix(".json")
    if library.exists() and note.exists():
        kept: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
        return kept
    library.parent.mkdir(parents=True, exist_ok=True)
    command = [str(setting.peer_python), str(PEER), "tune", "--workload", case.workload, "--index", str(case.index)]
    command += ["--trials", str(setting.trials), "--threads", str(setting.threads), "--seed", str(setting.seed)]
    command += ["--library", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PEER_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {"error": {"class": "Timeout", "message": f"MetaSchedule took over {PEER_TIMEOUT_S:.0f} s"}}
    found = last_object(done.stdout, f"exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    if "error" not in found:
        note.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return found


@contextmanager
def their_sampler(case: Case, setting: Setting) -> Iterator[Sampler]:
    """MetaSchedule's kernel in a process of its own, which sleeps while it is not asked."""
    command = [str(setting.peer_python), str(PEER), "serve", "--library", str(library_of(case, setting))]
    command += ["--threads", str(setting.threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def sample() -> float:
            requests.write(f"{BLOCK_S}\n")
            requests.flush()
            ready, _, _ = select.select([answers], [], [], BLOCK_TIMEOUT_S)
            line = answers.readline() if ready else ""
            if not line:
                raise UsageError(f"MetaSchedule's kernel of {case.label} gave no time; remove {setting.cache}")
            return float(json.loads(line)["seconds"])

        try:
            yield sample
        finally:
            process.kill()


# Our side


def our_job(dag: ComputeDAG, setting: Setting, database: Path, record_id: int) -> Job:
    """A stored candidate, generated anew from its steps."""
    with Database(database) as records:
        steps = records.record(record_id).steps
    nest = lower(replay(collapse(dag), steps))
    return Job("ours", build_source(nest, {}, setting.target, setting.threads))


@contextmanager
def our_sampler(dag: ComputeDAG, job: Job, setting: Setting) -> Iterator[Sampler]:
    """Our kernel in the measurer's worker, verified before and after each block."""
    with ScratchDirectory() as scratch:
        data = make_problem(dag, scratch, setting.seed)
        with Measurer(data, setting.target, setting.threads, build_workers=1) as measurer:

            def sample() -> float:
                (answer,) = measurer.final([job], rounds=1, sample_s=BLOCK_S)
                if isinstance(answer, Failure):
                    raise VerificationError(f"our kernel failed with {answer.kind}: {answer.message}")
                return answer.seconds

            yield sample


# Side by side


def alternate(contestants: Mapping[str, Sampler], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Samples of each contestant: one in each round, forwards and backwards in turn, after one to warm up."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    for n in range(-1, rounds):
        for name in order:
            time.sleep(PAUSE_S)
            seconds = contestants[name]()
            if n >= 0:
                samples[name].append(seconds)
        order.reverse()
    return samples


def same_sizes(dag: ComputeDAG, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether both sides' inputs and outputs have as many elements; orders and views may differ."""
    ours = sorted(math.prod(tensor.public_shape) for tensor in (*dag.inputs, *dag.outputs))
    return ours == sorted(math.prod(shape) for shape in shapes)


def compare(case: Case, setting: Setting, scratch: Path) -> dict[str, Any]:
    """One row of the result: both tuned, both timed side by side."""
    dag, _ = build(case.workload, case.shape)
    theirs = peer_result(case, setting)
    if "error" in theirs:
        return {"case": case.label, "error": f"MetaSchedule: {theirs['error']['message']}"}
    if not same_sizes(dag, theirs["shapes"]):
        return {"case": case.label, "error": f"MetaSchedule solved another problem, with the shapes {theirs['shapes']}"}
    database = scratch / f"{case.workload}-{case.index}.db"
    ours = tune(
        case,
        trials=setting.trials,
        threads=setting.threads,
        database=database,
        seed=setting.seed,
        timeout_s=PEER_TIMEOUT_S,
    )
    if "error" in ours:
        return {"case": case.label, "error": f"autosched: {ours['error']['message']}"}
    job = our_job(dag, setting, database, ours["record_id"])
    with ExitStack() as stack:
        contestants = {
            "theirs": stack.enter_context(their_sampler(case, setting)),
            "ours": stack.enter_context(our_sampler(dag, job, setting)),
        }
        samples = alternate(contestants)
    return {
        "case": case.label,
        "theirs_s": median(samples["theirs"]),
        "theirs_ci_s": median_interval(samples["theirs"]),
        "ours_s": median(samples["ours"]),
        "ours_ci_s": median_interval(samples["ours"]),
        "their_tuning_s": theirs["tuning_s"],
        "our_tuning_s": ours["wall_s"],
        "our_wrong": sum(ours["failures"].get(kind, 0) for kind in WRONG),
        "their_best_when_tuned_s": theirs["best_s"],
        "our_best_when_tuned_s": ours["best_s"],
        "their_trials": theirs["trials"],
        "their_failed": theirs["failed"],
        "our_failures": ours["failures"],
        "peak_gflops": ours["peak_gflops"],
        "flops": dag.flops,
        "mcpu": theirs["mcpu"],
        "tvm": theirs["version"],
    }


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if "error" in row:
        return (row["case"], *["-"] * (len(HEADER) - 2), row["error"])
    return (
        row["case"],
        microseconds(row["theirs_s"]),
        microseconds(row["ours_s"]),
        number(row["theirs_s"] / row["ours_s"]),
        number(row["their_tuning_s"], 1),
        number(row["our_tuning_s"], 1),
        number(row["their_tuning_s"] / row["our_tuning_s"], 1),
        str(row["their_failed"]),
        str(sum(row["our_failures"].values())),
        str(row["our_wrong"]),
    )


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | int | None]:
    good = [row for row in rows if "error" not in row]
    return {
        "cases": len(good),
        "geomean_speed_ratio": geomean([row["theirs_s"] / row["ours_s"] for row in good]),
        "worst_speed_ratio": min((row["theirs_s"] / row["ours_s"] for row in good), default=None),
        "geomean_tuning_time_ratio": geomean([row["their_tuning_s"] / row["our_tuning_s"] for row in good]),
    }


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    target = parse_target("cpu")
    cache = args.cache or state_directory() / "metaschedule"
    setting = Setting(target, args.threads, args.trials, args.seed, args.peer_python, cache)
    settings = {"threads": args.threads, "trials": args.trials, "seed": args.seed, "rounds": ROUNDS, "block_s": BLOCK_S}
    settings["load_before"] = load_now()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="autosched-versus-") as scratch:
        for case in parse_cases(args.cases):
            if case.index is None:
                raise UsageError(f"{case.workload} is not in MetaSchedule's operator set")
            rows.append(compare(case, setting, Path(scratch)))
            print("  ".join(cells(rows[-1])), file=sys.stderr, flush=True)
            write_results(args.out, {"settings": settings, "totals": totals(rows), "cases": rows})
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.versus_metaschedule", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--peer-python", type=Path, required=True, help="interpreter with TVM, without PyTorch")
    parser.add_argument("--cases", default=CASES, help=f"default {CASES}")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of both sides (default 2)")
    parser.add_argument("--trials", type=int, default=64, metavar="N", help="of both sides (default 64)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default 0")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="MetaSchedule's kernels (default: user's cache)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="JSON", help="default: experiments/results/")
    args = parser.parse_args(argv)
    try:
        check_peer(args.peer_python)
        rows = run(args)
    except AutoschedError as error:
        parser.error(str(error))
    print(table(HEADER, [cells(row) for row in rows]))
    for name, value in totals(rows).items():
        print(f"{name}: {number(value) if isinstance(value, float) else value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Random tensor programs through random schedules, against the reference.

python -m tests.fuzz --dags 200 --candidates 5 --seed 0 [--target "llvm -mcpu=haswell"] [--threads 2] [--seconds S]
python -m tests.fuzz --target opencl [...]       on a GPU, or on the processor with PoCL
python -m tests.fuzz --target "cuda -arch=sm_80" [...]       as CUDA C, in the simulator
python -m tests.fuzz --programs bottlenecks      convolutions in a row, as one nest
python -m tests.fuzz --programs pipelines        stages on images, computed in tiles of one another
python -m tests.fuzz --hostile 1000 --seed 0     schedules with huge numbers, each refused or right (`hostile.py`)
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence

from autosched.target import usable_cores
from tests.codegen.running import target_texts
from tests.fuzz.candidate import is_gpu
from tests.fuzz.hostile import outcomes
from tests.fuzz.program import program_text
from tests.fuzz.regressions import CASES, GPU_CASES, Case, failures
from tests.fuzz.runner import ANY, PROGRAMS, Failure, Plan, Tally, run, shrunk, warm

_REPORT_S = 10.0
_MAX_SHOWN = 40  # failures printed as they come


def main() -> int:
    options = _parser().parse_args()
    if options.hostile:
        return _hostile(int(options.seed), options.hostile)
    targets = (options.target,) if options.target else target_texts()
    threads = (options.threads,) if options.threads else (1,) if is_gpu(targets[0]) else (1, 2)
    workers = options.workers or usable_cores()
    begin = time.monotonic()
    end = begin + options.seconds if options.seconds else float("inf")
    print(f"seed {options.seed}, {options.dags} programs, {options.candidates} candidates each, {', '.join(targets)}")
    warm(targets)
    if options.regressions:
        return _regressions(GPU_CASES if is_gpu(targets[0]) else CASES)
    plan = Plan(options.seed, options.dags, options.candidates, targets, threads, workers, end, options.programs)
    tally = run(plan, _printer(begin))
    print(f"{tally.programs} programs, {tally.candidates} candidates in {time.monotonic() - begin:.0f} s, ", end="")
    print(f"{len(tally.failures)} failures")
    distinct: dict[str, Failure] = {}
    for failure in tally.failures:
        distinct.setdefault(failure.signature, failure)
    for failure in list(distinct.values())[: options.shrink]:
        _report(failure, options.shrink_seconds)
    return 1 if tally.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--dags", type=int, default=200, help="number of programs")
    parser.add_argument("--candidates", type=int, default=5, help="candidates of each")
    parser.add_argument("--seed", default="0", help="any word")
    parser.add_argument(
        "--programs",
        choices=PROGRAMS,
        default=ANY,
        help="bottlenecks: convolutions in a row, as one nest; pipelines: stages on images",
    )
    parser.add_argument("--target", help="one target instead of all that run here")
    parser.add_argument("--threads", type=int, help="instead of 1 and 2 in turn")
    parser.add_argument("--workers", type=int, help="processes, by default one for each core")
    parser.add_argument("--seconds", type=float, help="begin no program after this time")
    parser.add_argument("--regressions", action="store_true", help="run the known cases instead, a line for each")
    parser.add_argument("--hostile", type=int, metavar="N", help="N hostile schedules instead; --seed is the first one")
    parser.add_argument("--shrink", type=int, default=8, help="distinct failures to shrink")
    parser.add_argument("--shrink-seconds", type=float, default=60.0, help="time for each")
    return parser


def _hostile(first: int, n: int) -> int:
    tally: Counter[str] = Counter()
    for outcome in outcomes(first, n):
        tally["fault" if outcome.is_fault else outcome.what] += 1
        if outcome.is_fault:
            print(f"seed {outcome.seed}: {outcome.what}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(tally.items())))
    return 1 if tally["fault"] else 0


def _regressions(cases: Sequence[Callable[[], Case]]) -> int:
    failed = False
    for case in cases:
        found = failures(case())
        print(f"{case.__name__}\t{' | '.join(map(str, found))}", flush=True)
        failed = failed or bool(found)
    return int(failed)


def _printer(begin: float) -> Callable[[Tally], None]:
    state = {"shown": 0, "next": begin + _REPORT_S}

    def progress(tally: Tally) -> None:
        for failure in tally.failures[int(state["shown"]) : _MAX_SHOWN]:
            print(f"FAILED {failure}", flush=True)
        state["shown"] = len(tally.failures)
        if time.monotonic() >= state["next"]:
            state["next"] = time.monotonic() + _REPORT_S
            seconds = time.monotonic() - begin
            print(f"{tally.programs} programs, {tally.candidates} candidates, {seconds:.0f} s", flush=True)

    return progress


def _report(failure: Failure, seconds: float) -> None:
    dag, candidate = shrunk(failure, seconds)
    print(f"\n# {failure.kind}: {failure.message}\n# program {failure.seed!r}, shrunk:")
    print(program_text(dag))
    print(f"candidate = {candidate!r}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")  # four times as many candidates
    os.environ |= {"PYOPENCL_NO_CACHE": "1", "POCL_KERNEL_CACHE": "0"}  # no program comes again
    with tempfile.TemporaryDirectory(prefix="fuzz-") as root:  # what killed children leave behind goes with it
        tempfile.tempdir = root
        status = main()
    sys.exit(status)

"""The scoreboard: operators verified, cases tuned and held beside their peers (`python -m experiments.gpu.board -h`).

Also the steps verify, tune and contest, each a part of it, and scoreboard, which does all three case by case.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosched.cli.interrupts import interrupted_by_signals
from autosched.cli.output import table
from autosched.errors import AutoschedError, Interrupted
from autosched.runtime.gpu.devices import device_facts
from autosched.target import Target, parse_target, usable_cores
from autosched.tuner.options import WorkloadOptions
from experiments.arena import Lost, ProcessArena
from experiments.gpu import cases as suite
from experiments.gpu.facts import device_report
from experiments.gpu.ledger import GpuLedger
from experiments.gpu.peers import PEERS, SLOW
from experiments.gpu.steps import Row, StepRequest
from experiments.gpu.table import BEST_GOAL, COPY_GOAL, HEADER, cells, report, totals, verdicts
from experiments.gpu.verify import verify
from experiments.tuning import BenchmarkCase, load_now, parse_cases, tune

PARTS = ("verify", "tune", "contest")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "gpu"
TRIALS, QUICK_TRIALS = 64, 8
ROUNDS, SAMPLE_S = 10, 0.02
CANDIDATES, QUICK_CANDIDATES = 12, 3  # random ones of each operator
CHECK_SHARE = 0.35  # of the time, for verifying operators before any case; what is left of them comes after the cases
LEAST_CHECK_S = 5.0
ATTEMPTS = 2
RESERVE_S = 8.0  # for the table, and for processes to end
TUNING_S, LEAST_TUNING_S, QUICK_TUNING_S = 100.0, 40.0, 5.0  # a search cut short would stand as the result
CONTEST_S, LEAST_CONTEST_S, RETRY_S = 120.0, 10.0, 30.0
COMPILE_S, LEAST_COMPILE_S = 150.0, 30.0
KEPT = (
    "best_s", "best_ci_s", "gflops", "trials", "failed", "failures", "wall_s", "search_s", "build_s", "check_s",
    "measure_s", "first_result_s", "sketch", "values", "record_id", "curve",
)  # fmt: skip  # of what `tune --json` says


@dataclass(frozen=True)
class GpuRun:
    """What one call of the script is to do."""

    target: Target
    cases: tuple[BenchmarkCase, ...]
    checks: tuple[suite.Check, ...]
    trials: int
    candidates: int
    peers: tuple[str, ...]
    database: Path
    seed: int
    tuning_s: float = TUNING_S
    least_tuning_s: float = LEAST_TUNING_S
    parts: tuple[str, ...] = PARTS


Hold = Callable[[BenchmarkCase, Sequence[str], float], dict[str, Any]]
Tune = Callable[[BenchmarkCase, float], dict[str, Any]]
Verify = Callable[[suite.Check], dict[str, Any]]


class Budget:
    """How much of a run's time is left: `minutes` from now on, less RESERVE_S; `clock` in seconds."""

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self.total_s = max(0.0, 60.0 * minutes - RESERVE_S)

    @property
    def spent_s(self) -> float:
        return self._clock() - self._start

    @property
    def left_s(self) -> float:
        return max(0.0, self.total_s - self.spent_s)

    def share(self, wanted_s: float, least_s: float, kept_s: float = 0.0) -> float | None:
        """Up to `wanted_s` seconds such that `kept_s` stay; None where that would be less than `least_s`."""
        given = min(wanted_s, self.left_s - kept_s)
        return given if given >= least_s else None


def contest_command(target: str) -> list[str]:
    return [sys.executable, "-m", "experiments.gpu.contest", str(os.getpid()), target]


def hold_contest(
    arena: ProcessArena,
    case: BenchmarkCase,
    database: Path,
    names: Sequence[str],
    *,
    rounds: int,
    sample_s: float,
    deadline_s: float,
) -> dict[str, Any]:
    """The row of a case. A peer at which the process is lost is left out of another try; its entry says why."""
    give_up, left_out = time.monotonic() + deadline_s, dict[str, Any]()
    while True:
        present = [name for name in names if name not in left_out]
        request = {"case": case.label, "db": str(database), "peers": present, "rounds": rounds, "sample_s": sample_s}
        # What is slow to start is the last of `present`: a try without it must be possible.
        seconds = give_up - time.monotonic()
        try:
            row = arena.ask(request, seconds - min(seconds / 2, RETRY_S) if present else seconds)
        except Lost as lost:
            if lost.stage not in present or time.monotonic() >= give_up:
                return {"error": str(lost)}
            left_out[lost.stage] = {"right": False, "reason": str(lost)}
            continue
        row.setdefault("peers", {})
        row["peers"] = {name: (left_out | row["peers"]).get(name) for name in names if name in left_out | row["peers"]}
        return row


def run_checks(plan: GpuRun, ledger: GpuLedger, left_s: Callable[[], float], verify_one: Verify) -> None:
    """Verifies the operators that have no result yet, several at a time, while `left_s` allows it."""

    def one(check: suite.Check) -> tuple[suite.Check, dict[str, Any] | None]:
        return check, verify_one(check) if left_s() >= LEAST_CHECK_S else None

    pending = [check for check in plan.checks if check.label not in ledger.checks]
    with ThreadPoolExecutor(max(1, min(4, usable_cores() // 2))) as pool:
        for check, row in pool.map(one, pending):  # which cancels what has not begun when this loop is left
            if row is not None:
                ledger.record("checks", check.label, row)
                say(f"verify {check.label}: {row['right']} of {row['candidates']} right {' '.join(row['messages'])}")


def tuned(
    case: BenchmarkCase, plan: GpuRun, ledger: GpuLedger, budget: Budget, tune_case: Tune
) -> dict[str, Any] | None:
    """The row of a case that has been tuned, now or by an earlier call; None where too little time is left for it."""
    row_before = ledger.cases.get(case.label, {})
    if "tuning" in row_before and plan.database.exists():
        return row_before | {"attempts": row_before.get("attempts", 0) + ("contest" in plan.parts)}
    if "tune" not in plan.parts:
        return None
    seconds = budget.share(plan.tuning_s, plan.least_tuning_s, kept_s=LEAST_CONTEST_S)
    if seconds is None:
        return None
    answer = tune_case(case, seconds)
    row: dict[str, Any] = {"workload": case.workload, "shape": case.shape, "dtype": case.dtype}
    row["attempts"] = row_before.get("attempts", 0) + 1
    if "error" in answer:
        row["error"] = f"tuning: {answer['error']['message']}"
    else:
        row["tuning"] = {name: answer.get(name) for name in KEPT}
    ledger.record("cases", case.label, row)
    return row


def run_cases(plan: GpuRun, ledger: GpuLedger, budget: Budget, tune_case: Tune, hold: Hold) -> None:
    """All cases without a result, then the slow peers of all that have one. What failed ATTEMPTS times is left."""
    quick = [name for name in plan.peers if name not in SLOW]
    for case in plan.cases:
        known = ledger.cases.get(case.label, {})
        if "ours" in known or ("error" in known and known.get("attempts", 0) >= ATTEMPTS):
            continue
        row = tuned(case, plan, ledger, budget, tune_case)
        seconds = budget.share(CONTEST_S, LEAST_CONTEST_S)
        if row is None and "tune" not in plan.parts:
            continue
        if row is None or seconds is None:
            break
        if "tuning" in row and "contest" in plan.parts:
            ledger.record("cases", case.label, without_error(row) | hold(case, quick, seconds))
        say("  ".join(filter(None, cells(case.label, ledger.cases[case.label]))))
    slow = [name for name in plan.peers if name in SLOW and "contest" in plan.parts]
    for case in plan.cases:
        row = ledger.cases.get(case.label, {})
        if not slow or not row.get("ours", {}).get("right") or all(name in row["peers"] for name in slow):
            continue
        seconds = budget.share(COMPILE_S, LEAST_COMPILE_S)
        if seconds is None:
            break
        again = hold(case, plan.peers, seconds)
        if "error" in again:  # what was measured without them stays
            again = {"peers": row["peers"] | {name: {"right": False, "reason": again["error"]} for name in slow}}
        ledger.record("cases", case.label, row | again)
        say("  ".join(filter(None, cells(case.label, ledger.cases[case.label]))))


def without_error(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "error"}


def say(text: str) -> None:
    print(text.strip(), file=sys.stderr, flush=True)


def run(args: argparse.Namespace, budget: Budget) -> int:
    target = parse_target(args.target)
    target = target.with_gpu(device_facts(target.kind))
    assert target.gpu is not None
    args.out.mkdir(parents=True, exist_ok=True)
    ledger = GpuLedger(args.out / f"{target.kind}.json", target.kind, target.gpu.name)
    checks = suite.QUICK_CHECKS if args.quick else suite.CHECKS
    plan = GpuRun(
        target,
        parse_cases(args.cases) if args.cases else suite.QUICK if args.quick else suite.CASES,
        () if args.no_verify or "verify" not in args.parts else checks,
        args.trials or (QUICK_TRIALS if args.quick else TRIALS),
        args.candidates or (QUICK_CANDIDATES if args.quick else CANDIDATES),
        tuple(name for name in PEERS if name not in args.without),
        args.out / "records.db",
        args.seed,
        args.tuning_seconds,
        QUICK_TUNING_S if args.quick else min(LEAST_TUNING_S, args.tuning_seconds),
        args.parts,
    )
    ledger.facts = device_report(target)
    ledger.runs.append({"minutes": args.minutes, "trials": plan.trials, "seed": args.seed, "load_before": load_now()})
    ledger.write()
    arena = ProcessArena(contest_command(target.kind), args.out / "contest.log")

    def tune_case(case: BenchmarkCase, seconds: float) -> dict[str, Any]:
        asked = WorkloadOptions(shape=case.shape, dtype=case.dtype, target=target.kind)
        return tune(
            case.workload, asked, trials=plan.trials, database=plan.database, seed=plan.seed, budget_s=seconds,
            timeout_s=seconds + 20.0,
        )  # fmt: skip

    def hold(case: BenchmarkCase, names: Sequence[str], seconds: float) -> dict[str, Any]:
        sample_s = SAMPLE_S / 10 if args.quick else SAMPLE_S
        return hold_contest(arena, case, plan.database, names, rounds=ROUNDS, sample_s=sample_s, deadline_s=seconds)

    def verify_one(check: suite.Check) -> dict[str, Any]:
        return verify(check, target, plan.candidates, plan.seed, build_workers=2)

    try:
        share = CHECK_SHARE if len(plan.parts) > 1 else 1.0
        run_checks(plan, ledger, lambda: budget.left_s - (1 - share) * budget.total_s, verify_one)
        if set(plan.parts) & {"tune", "contest"}:
            run_cases(plan, ledger, budget, tune_case, hold)
        run_checks(plan, ledger, lambda: budget.left_s, verify_one)
    except (KeyboardInterrupt, Interrupted):
        say("interrupted; what was measured is kept")
    finally:
        arena.close()
        ledger.runs[-1] |= {"seconds": round(budget.spent_s, 1), "totals": totals(ledger.checks, ledger.cases)}
        ledger.write()
        print(report(ledger.checks, ledger.cases, len(checks)))
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu.board", description=__doc__)
    parser.add_argument("--minutes", type=float, default=9.0, metavar="N", help="end within N minutes (default 9)")
    parser.add_argument("--target", choices=("cuda", "opencl"), default="cuda", help="default cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes and few trials, to try the script itself")
    parser.add_argument("--cases", metavar="NAMES", help="only these, as in gmm,c2d:1 (default: all)")
    parser.add_argument(
        "--trials", type=int, metavar="N", help=f"for each case (default {TRIALS}; quick {QUICK_TRIALS})"
    )
    parser.add_argument(
        "--tuning-seconds", type=float, default=TUNING_S, metavar="N", help=f"for a case (default {TUNING_S:.0f})"
    )
    parser.add_argument("--candidates", type=int, metavar="N", help=f"verified of each operator (default {CANDIDATES})")
    parser.add_argument("--without", action="append", default=[], choices=tuple(PEERS), help="leave out a peer")
    parser.add_argument("--no-verify", action="store_true", help="do not verify all operators first")
    parser.add_argument("--parts", type=_parts, default=PARTS, metavar="NAMES", help=f"of {','.join(PARTS)}; all")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default 0")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="default experiments/results/gpu/")
    return parser


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"expected names of {','.join(PARTS)}, got {text!r}")
    return names


# As a step


def predict(request: StepRequest) -> str:
    return {
        "verify": "every operator right; failures of new sketches for tensor cores, if any",
        "tune": "fp32 GMM 1024^3 in less than 90 s; no wrong results",
        "contest": f"GMM and C2D at {BEST_GOAL} of the best peer or better, copies at {COPY_GOAL}",
    }.get(request.step, "all of verify, tune and contest")


def measure(request: StepRequest) -> Iterator[tuple[str, Row]]:
    """One row: the totals. The rest is in a file of its own, which the next call goes on with."""
    parts = PARTS if request.step == "scoreboard" else (request.step,)
    words = ["--parts", ",".join(parts), "--minutes", str(request.seconds / 60), "--out", str(request.out)]
    dry = ["--quick", "--target", "opencl"] if request.is_dry else []
    args = build_parser().parse_args([*words, *dry, *request.words])
    run(args, Budget(args.minutes))
    ledger = json.loads((args.out / f"{args.target}.json").read_text(encoding="utf-8"))
    yield "totals", totals(ledger["checks"], ledger["cases"])
    for label, row in ledger["cases"].items():
        yield label, {"cells": cells(label, row)}


def summary(rows: Mapping[str, Row]) -> str:
    if "totals" not in rows:
        return ""
    cases = [tuple(row["cells"]) for label, row in rows.items() if label != "totals"]
    return "\n".join([*([table(HEADER, cases)] if cases else []), *verdicts(rows["totals"], len(suite.CHECKS))])


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        with interrupted_by_signals():
            return run(args, Budget(args.minutes))
    except AutoschedError as error:
        print(f"experiments.gpu.board: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())

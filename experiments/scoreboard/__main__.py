"""The command: `experiments.scoreboard` says what it does."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import experiments.scoreboard
from autosched.cli import options
from autosched.errors import AutoschedError, UsageError
from autosched.kernel.device import find_device
from autosched.target import Target, usable_cores
from experiments.metaschedule import MetaSchedule
from experiments.scoreboard.bouts import OPT_INS, Bout, choose, integers
from experiments.scoreboard.chart import draw
from experiments.scoreboard.contest import COMPILED, METASCHEDULE, PEERS, ROUNDS, Rules, hold, processes
from experiments.scoreboard.contestant import CALL, OURS
from experiments.scoreboard.ledger import Ledger
from experiments.scoreboard.table import cells, disturbed, report, roof, totals, until_near
from experiments.tuning import WRONG, load_now, result_file, tune

RESULTS = Path(__file__).resolve().parents[1] / "results" / "scoreboard.json"
TRIALS, QUICK_TRIALS = 64, 16
QUICK_BUDGET_S, QUICK_ROUNDS = 8.0, 4
QUICK_PEERS = tuple(name for name in PEERS if name != COMPILED)  # which takes longest to start
TUNING_TIMEOUT_S = 1800.0
ATTEMPTS = 3  # of a resumed run at a case in which the machine did something else
KEPT = (
    "trials", "failed", "failures", "best_s", "best_ci_s", "gflops", "peak_gflops", "wall_s", "search_s", "model_s",
    "build_s", "check_s", "measure_s", "first_result_s", "first_round_ratio", "sketch", "values", "trials_to_95",
    "seconds_to_95",
)  # fmt: skip  # of what `tune --json` says


@dataclass(frozen=True)
class ScoreboardRun:
    """What all cases have in common."""

    target: Target
    trials: int
    seed: int
    budget_s: float | None
    rules: Rules


def tuning_of(answer: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a search."""
    return {**until_near(answer.get("curve") or ()), **{name: answer[name] for name in KEPT if name in answer}}


def play(bout: Bout, setting: ScoreboardRun, directory: Path) -> dict[str, Any]:
    """One row: the case tuned, and its contest."""
    row = bout.facts(setting.target)
    row |= {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "revision": revision(),
        "load_before": load_now(), "asked_trials": setting.trials, "seed": setting.seed, "budget_s": setting.budget_s,
    }  # fmt: skip
    database = directory / "records.db"
    answer = search(bout, setting, database)
    if "error" in answer:
        return row | {"error": f"tuning: {answer['error']['message']}"}
    row["tuning"] = tuning_of(answer)
    for opt_in in setting.rules.opt_ins:
        if asked := bout.asked(opt_in):
            found = search(bout, setting, database, **asked)
            row[opt_in.name] = {"error": found["error"]["message"]} if "error" in found else tuning_of(found)
    row["wrong"] = sum(answer["failures"].get(kind, 0) for kind in WRONG)
    with processes(bout, setting.rules, directory) as given:
        row["entries"], rates = hold(bout, setting.rules, directory, database, answer["record_id"], given)
    rates["peak_gflops"] = max(rates["peak_gflops"], answer.get("peak_gflops") or 0.0)
    row["rates"] = rates
    row["roof"] = roof(row["flops"], row["bytes"], rates["peak_gflops"], rates["bandwidth"])
    reasons = [entry["reason"] for name in (OURS, CALL) if "reason" in (entry := row["entries"].get(name, {}))]
    return row | {"error": f"our kernel: {reasons[0]}"} if reasons else row


def search(bout: Bout, setting: ScoreboardRun, database: Path, **asked: Any) -> dict[str, Any]:
    """What `tune --json` says; with what an opt-in asks it is another task of the same database."""
    return tune(
        bout.case.workload, replace(bout.wanted, **asked), trials=setting.trials, database=database,
        seed=setting.seed, budget_s=setting.budget_s, timeout_s=TUNING_TIMEOUT_S,
    )  # fmt: skip


def revision() -> str | None:
    """The commit of this checkout, with a + where files differ from it."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10.0).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def pending(bouts: Sequence[Bout], ledger: Ledger) -> list[Bout]:
    """What a resumed run has to do; a case that is disturbed each time is left after ATTEMPTS."""
    missing = [bout for bout in bouts if not ledger.done(bout.label)]
    again = {name for name in disturbed(list(ledger.rows.values())) if ledger.rows[name].get("attempts", 1) < ATTEMPTS}
    return [*missing, *(bout for bout in bouts if bout.label in again)]


def run(bouts: Sequence[Bout], ledger: Ledger, resume: bool, play_one: Callable[[Bout, Path], dict[str, Any]]) -> None:
    """Plays the cases in order; with `resume` those that have no result yet, then those that were disturbed."""
    for bout in pending(bouts, ledger) if resume else bouts:
        with tempfile.TemporaryDirectory(prefix="autosched-scoreboard-") as directory:
            row = play_one(bout, Path(directory))
        attempts = ledger.rows.get(bout.label, {}).get("attempts", 0) if resume else 0
        ledger.record({**row, "attempts": attempts + 1})
        print("  ".join(cells(row)), file=sys.stderr, flush=True)


def setting_of(args: argparse.Namespace) -> ScoreboardRun:
    """Raises UsageError for peers that are unknown or unfit."""
    names = tuple(args.peers.split(",")) if args.peers else QUICK_PEERS if args.quick else PEERS
    if unknown := [name for name in names if name not in PEERS]:
        raise UsageError(f"there is no peer {unknown[0]!r}: --peers takes {', '.join(PEERS)}")
    target = find_device("cpu", max(args.threads)).target
    trials = args.trials or (QUICK_TRIALS if args.quick else TRIALS)
    asks_peer = args.peer_python is not None and METASCHEDULE in names
    peer = MetaSchedule.with_python(args.peer_python, trials, args.seed) if asks_peer else None
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    opt_ins = tuple(opt_in for opt_in in OPT_INS if getattr(args, opt_in.name))
    budget = args.budget if args.budget is not None else QUICK_BUDGET_S if args.quick else None
    return ScoreboardRun(target, trials, args.seed, budget, Rules(names, rounds, metaschedule=peer, opt_ins=opt_ins))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.scoreboard", description=experiments.scoreboard.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("cases", nargs="*", help="c2d:1, c2d (all its shapes), matmul:64x48x32 (default: all operators)")
    add("--batch", type=integers, default=(1,), metavar="N,..", help="default 1")
    add("--threads", type=integers, default=(usable_cores(),), metavar="N,..", help="default: the processor's cores")
    add(
        "--trials", type=options.integer(1), metavar="N", help=f"for each case (default {TRIALS}; quick {QUICK_TRIALS})"
    )
    add("--budget", type=options.duration, metavar="TIME", help="at most so long for a search, as in 30s")
    add("--seed", type=options.integer(0), default=0, metavar="S", help="default 0")
    add("--quick", action="store_true", help="one small case of each operator, few trials, without torch.compile")
    add("--resume", action="store_true", help="skip what is done; repeat cases that were disturbed by other work")
    add("--report", action="store_true", help="table and chart of the file, without measuring")
    for opt_in in OPT_INS:
        add(f"--{opt_in.name}", action="store_true", help=opt_in.about)
    add("--peers", metavar="NAMES", help=f"default {','.join(PEERS)}")
    add("--peer-python", type=Path, help="interpreter with TVM, without PyTorch")
    add("--out", type=result_file, default=RESULTS, metavar="JSON", help="default experiments/results/scoreboard.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        bouts, setting = choose(args.cases, args.batch, args.threads, args.quick), setting_of(args)
        ledger = Ledger(args.out, totals)
        if not args.report:
            run(bouts, ledger, args.resume, lambda bout, directory: play(bout, setting, directory))
        if args.quick:
            print(f"quick: {len(bouts)} cases, {setting.trials} trials each: no results to quote")
        rows = list(ledger.rows.values())
        print(report(rows))
        chart = args.out.with_suffix(".png")
        print(f"results: {args.out}")
        try:
            draw(rows, chart, "Throughput in parts of the best contestant's, geometric mean over shapes")
            print(f"chart: {chart}")
        except UsageError as missing:  # what was measured is worth its results without a chart
            print(missing, file=sys.stderr)
    except AutoschedError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted; the cases that are done are kept, --resume goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

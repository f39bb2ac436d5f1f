"""Tuning curves of networks: what their kernels take against trials and seconds, by each strategy of the search.

    python -m experiments.network_curves [--networks mobilenet_v2,bert_base] [--strategies gradient,gain,round-robin]
        [--seeds 3] [--budget 75s] [--threads N] [--quick] [--reduced] [--out JSON] [--for 10m]

This is figure 10 of Ansor's paper (OSDI 2020) for the networks of `experiments.networks.models`. Every session (a
network, a strategy and a seed) is `autosched tune` in a fresh process with an empty database; the order of strategies
turns with the seed. The result file is written after each, and a later call with the same settings goes on from it:
`--for` starts no session after so long. Then the figure is drawn beside it, medians as lines and ranges over the seeds
as bands, and a table printed. A curve is the sum over the kernels of a call, as they were measured during the search,
from where all that are worth it have been; `latency_s` is that of whole calls at the end. All sessions take 23 minutes,
with `--quick`, one seed and 38 seconds each, four. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

from autosched.cli import options
from autosched.errors import UsageError
from autosched.network_tuning.strategies import STRATEGIES, find_strategy
from autosched.target import usable_cores
from experiments.network_curves_figure import draw
from experiments.report.network_curves import network_curves
from experiments.report.results import Results
from experiments.scoreboard.__main__ import revision
from experiments.tuning import answer, load_now, result_file, write_results

RESULTS = Path(__file__).resolve().parent / "results" / "network_curves.json"
NETWORKS = ("mobilenet_v2", "bert_base")
MODELS = "experiments.networks.models:build"
BUDGET_S, QUICK_S, SEEDS = 75.0, 38.0, 3
GRACE_S = 120.0  # beyond its budget, after which a session is ended
KEPT = (
    "trials", "failed", "wall_s", "first_result_s", "start_latency_s", "latency_s", "latency_ci_s", "kernels_s",
    "verified", "curve",
)  # fmt: skip


@dataclass(frozen=True)
class CurveSetting:
    """What all sessions of a result file have in common."""

    budget_s: float
    threads: int
    reduced: bool = False


@dataclass(frozen=True, order=True)
class CurveSession:
    """The sessions of a file in this order: each seed of all networks and strategies before the next."""

    seed: int
    network: str
    strategy: str


Run: TypeAlias = Callable[[CurveSetting, CurveSession], dict[str, Any]]  # -> the object of `tune --json`


def run_session(setting: CurveSetting, session: CurveSession) -> dict[str, Any]:
    """In a process of its own; {"error": ...} where there is no answer."""
    with tempfile.TemporaryDirectory(prefix="autosched-curves-") as scratch:
        command = [sys.executable, "-m", "autosched", "tune", MODELS, "--set", f"name={session.network}"]
        command += ["--set", "reduced=true"] if setting.reduced else []
        command += ["--strategy", session.strategy, "--seed", str(session.seed), "--threads", str(setting.threads)]
        command += ["--budget", f"{setting.budget_s}s", "--db", f"{scratch}/records.db", "--json"]
        return answer(command, setting.budget_s + GRACE_S)


def sessions_of(networks: Sequence[str], strategies: Sequence[str], seeds: int) -> list[CurveSession]:
    """All sessions; what comes first changes with the seed."""
    found = []
    for seed in range(seeds):
        turned = [*strategies[seed % len(strategies) :], *strategies[: seed % len(strategies)]]
        found += [CurveSession(seed, network, strategy) for network in networks for strategy in turned]
    return found


def known_rows(path: Path, setting: CurveSetting) -> list[dict[str, Any]]:
    """The sessions of an earlier call that have a result. Raises UsageError where the file is of other settings."""
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        same, rows = content["settings"] == asdict(setting), list(content["rows"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no result of this experiment: move it away") from error
    if not same:
        raise UsageError(f"{path} was made with other settings ({content['settings']}): name another --out")
    return [row for row in rows if "error" not in row]


def row_of(session: CurveSession, load: float, found: Mapping[str, Any]) -> dict[str, Any]:
    """A session of the result file."""
    facts = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "revision": revision()}
    start = {**asdict(session), **facts, "load_before": load}
    if "error" in found:
        return {**start, "error": found["error"]["message"]}
    return {**start, **{name: found[name] for name in KEPT}}


def collect(path: Path, setting: CurveSetting, todo: Sequence[CurveSession], run: Run, until: float) -> bool:
    """Runs what is missing of `todo` into the file; whether all of it is there now. `until`: on time.monotonic."""
    rows = known_rows(path, setting)
    done = {CurveSession(row["seed"], row["network"], row["strategy"]) for row in rows}
    complete = True
    for session in todo:
        if session in done:
            continue
        if time.monotonic() >= until:
            return False
        load = load_now()
        rows.append(row_of(session, load, run(setting, session)))
        said = rows[-1].get("error") or f"{1e3 * rows[-1]['latency_s']:.3f} ms"
        print(f"{session.network} {session.strategy} seed {session.seed}: {said}", file=sys.stderr, flush=True)
        complete = complete and "error" not in rows[-1]
        write_results(path, {"settings": asdict(setting), "rows": rows})
    return complete


def report(path: Path) -> str:
    """Draws the figure and returns the table below it."""
    content = json.loads(path.read_text(encoding="utf-8"))
    results = Results(path.stem, content)
    if results.rows:
        try:
            draw(path.with_suffix(".png"), results.rows)
        except UsageError as missing:  # what was measured is worth its table without a figure
            print(missing, file=sys.stderr)
    return "\n".join(network_curves(results))


def parser_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.network_curves", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--networks", type=options.names, default=NETWORKS, metavar="NAMES", help=f"default {','.join(NETWORKS)}")
    add(
        "--strategies",
        type=options.names,
        default=tuple(STRATEGIES),
        metavar="NAMES",
        help=f"default {','.join(STRATEGIES)}",
    )
    add("--seeds", type=options.integer(1), metavar="N", help=f"default {SEEDS}")
    add("--budget", type=options.duration, metavar="TIME", help=f"of a session, default {BUDGET_S:.0f}s")
    add("--threads", type=options.integer(1), default=usable_cores(), metavar="N", help="default: the cores")
    add("--quick", action="store_true", help=f"one seed and {QUICK_S:.0f}s a session")
    add("--reduced", action="store_true", help="the networks at the sizes of tests: no results to quote")
    add(
        "--out",
        type=result_file,
        default=RESULTS,
        metavar="JSON",
        help="default experiments/results/network_curves.json",
    )
    add("--for", type=options.duration, dest="seconds", metavar="TIME", help="start no session later")
    return parser


def main(argv: Sequence[str] | None = None, run: Run = run_session) -> int:
    parser = parser_of()
    args = parser.parse_args(argv)
    until = time.monotonic() + (args.seconds or float("inf"))
    setting = CurveSetting(args.budget or (QUICK_S if args.quick else BUDGET_S), args.threads, args.reduced)
    try:
        for name in args.strategies:
            find_strategy(name)
        todo = sessions_of(args.networks, args.strategies, args.seeds or (1 if args.quick else SEEDS))
        complete = collect(args.out, setting, todo, run, until)
        if args.out.exists():
            print(report(args.out))
    except UsageError as error:
        parser.error(str(error))
    return 0 if complete else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""The command: `experiments.networks` says what it measures."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import experiments.networks
from autosched.cli import options
from autosched.errors import AutoschedError, UsageError
from autosched.target import usable_cores
from experiments.metaschedule import MetaSchedule
from experiments.networks.chart import draw
from experiments.networks.contest import NetworkBout, hold, processes
from experiments.networks.contestants import INT8, OURS, PEERS
from experiments.networks.table import totals
from experiments.report.networks import networks
from experiments.report.results import load
from experiments.scoreboard.__main__ import revision
from experiments.scoreboard.bouts import integers, label_of
from experiments.scoreboard.contest import ROUNDS, Rules
from experiments.scoreboard.ledger import Ledger
from experiments.tuning import load_now, result_file

TRIALS = 2000  # of all tasks of a network together
RESULTS = Path(__file__).resolve().parents[1] / "results" / "networks.json"


def play(bout: NetworkBout, rules: Rules, directory: Path) -> dict[str, Any]:
    """One row; without a time of ours it has an error."""
    facts = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "revision": revision()}
    row = {**bout.row, **facts, "load_before": load_now()}
    with processes(bout, rules, directory) as given:
        row |= hold(bout, rules, directory, given)
    ours = row["entries"][OURS]
    return row | {"error": f"ours: {ours['reason']}"} if "reason" in ours else row


def run(
    bouts: Sequence[NetworkBout], ledger: Ledger, resume: bool,
    play_one: Callable[[NetworkBout, Path], dict[str, Any]],
) -> None:  # fmt: skip
    """Plays the bouts in order and writes the file after each; with `resume` those that have no result yet."""
    for bout in bouts:
        label = label_of(bout.row)
        if resume and ledger.done(label) and ledger.rows[label].get("tuning_s", 0.0) == bout.tuning_s:
            continue
        with tempfile.TemporaryDirectory(prefix="autosched-networks-") as directory:
            row = play_one(bout, Path(directory))
        ledger.record(row)
        times = {name: entry.get("seconds", entry.get("reason")) for name, entry in row["entries"].items()}
        print(label, *(f"{name} {said}" for name, said in times.items()), sep="  ", file=sys.stderr, flush=True)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.networks", description=experiments.networks.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("networks", nargs="*", metavar="NETWORK", help="names of experiments.networks.models (default: all)")
    add("--batch", type=integers, default=(1,), metavar="N,..", help="default 1")
    add("--threads", type=integers, default=(usable_cores(),), metavar="N,..", help="default: the processor's cores")
    add("--tune", type=options.duration, metavar="TIME", help="ours once more, tuned for so long, as 60s or 2m")
    add("--winograd", action="store_true", help="with --tune: and so with Winograd's transforms of convolutions")
    add("--rounds", type=options.integer(1), default=ROUNDS, metavar="N", help=f"default {ROUNDS}, fewer of slow calls")
    add("--peers", default=",".join(PEERS), metavar="NAMES", help=f"beside eager; default {','.join(PEERS)}")
    add("--peer-python", type=Path, metavar="PYTHON", help="interpreter with TVM: MetaSchedule takes part, tuned once")
    add("--trials", type=options.integer(1), default=TRIALS, metavar="N", help=f"of MetaSchedule, default {TRIALS}")
    add("--reduced", action="store_true", help="the networks at the sizes of tests: no results to quote")
    add("--resume", action="store_true", help="skip what has a result")
    add("--report", action="store_true", help="table and chart of the file, without measuring")
    add("--out", type=result_file, default=RESULTS, metavar="JSON", help="default experiments/results/networks.json")
    return parser


def bouts_of(args: argparse.Namespace) -> list[NetworkBout]:
    """Raises UsageError for networks that there are not."""
    from experiments.networks.models import NETWORKS

    if unknown := [name for name in args.networks if name.removesuffix(INT8) not in NETWORKS]:
        raise UsageError(
            f"there is no network {unknown[0]!r}: there are {', '.join(NETWORKS)}, and as bytes NAME{INT8}"
        )
    if args.winograd and not args.tune:
        raise UsageError("--winograd is for tuned networks: give --tune TIME as well")
    return [
        NetworkBout(name, batch, threads, args.reduced, args.tune or 0.0, args.winograd)
        for batch in args.batch
        for threads in args.threads
        for name in args.networks or NETWORKS
    ]


def rules_of(args: argparse.Namespace) -> Rules:
    """Raises UsageError for peers that there are not, and an interpreter that has no TVM."""
    peers = tuple(filter(None, args.peers.split(",")))
    if unknown := [name for name in peers if name not in PEERS]:
        raise UsageError(f"there is no peer {unknown[0]!r}: --peers takes {', '.join(PEERS)}")
    peer = args.peer_python and MetaSchedule.with_python(args.peer_python, args.trials, seed=0)
    return Rules(peers, args.rounds, metaschedule=peer)


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        rules, ledger = rules_of(args), Ledger(args.out, totals)
        if not args.report:
            run(bouts_of(args), ledger, args.resume, lambda bout, directory: play(bout, rules, directory))
        print("\n".join(networks(load(args.out.parent, args.out.stem))))
        print(f"results: {args.out}")
        try:
            draw(list(ledger.rows.values()), args.out.with_suffix(".png"))
        except UsageError as missing:  # what was measured is worth its results without a chart
            print(missing, file=sys.stderr)
    except AutoschedError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted; the networks that are done are kept, --resume goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

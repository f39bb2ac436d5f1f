"""The command: `experiments.pipelines` says what it measures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import experiments.pipelines
from autosched.cli import options
from autosched.errors import UsageError
from autosched.target import usable_cores
from experiments.pipelines.entries import totals
from experiments.pipelines.programs import PROGRAMS, SHRUNK
from experiments.report.pipelines import pipelines
from experiments.report.results import load
from experiments.scoreboard.__main__ import revision
from experiments.scoreboard.bouts import integers, label_of
from experiments.scoreboard.ledger import Ledger
from experiments.tuning import answer, load_now, result_file

SIZE = (1536, 2560)
TRIALS, ROUNDS = 128, 10
RESULTS = Path(__file__).resolve().parents[1] / "results" / "pipelines.json"
TIMEOUT_S = 3600.0  # of one program: Halide's search for a schedule may take minutes


@dataclass(frozen=True)
class PipelineBout:
    """A program at a size, with so many threads."""

    name: str
    size: tuple[int, int]
    threads: int

    @property
    def row(self) -> dict[str, Any]:
        rows, columns = self.size
        return {"case": f"{self.name}:{rows}x{columns}", "batch": 1, "program": self.name, "threads": self.threads}


def play(bout: PipelineBout, trials: int, rounds: int) -> dict[str, Any]:
    """The row of a bout, measured in a process of its own; it has an error where that process has no answer."""
    facts = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "revision": revision()}
    numbers = (*bout.size, bout.threads, trials, rounds)
    command = [sys.executable, "-m", "experiments.pipelines.measure", bout.name, *map(str, numbers)]
    row = {**bout.row, **facts, "trials": trials, "load_before": load_now()}
    found = answer(command, TIMEOUT_S)
    return row | ({"error": found["error"]["message"]} if "error" in found else found)


def lines_of(row: dict[str, Any]) -> list[str]:
    """What is printed of a row as soon as it is there."""
    if "error" in row:
        return [f"{label_of(row)}: {row['error']}"]
    times = [
        f"  {name}: {1e3 * entry['seconds']:.3f} ms" if "seconds" in entry else f"  {name}: {entry['reason']}"
        for name, entry in row["entries"].items()
    ]
    return [label_of(row), *times]


def size_of(text: str) -> tuple[int, int]:
    """'1536x2560': rows and columns, for argparse."""
    numbers = text.split("x")
    if len(numbers) != 2 or not all(number.isdigit() and int(number) for number in numbers):
        raise argparse.ArgumentTypeError(f"a size is ROWSxCOLUMNS, as 1536x2560, got {text!r}")
    return int(numbers[0]), int(numbers[1])


def bouts_of(args: argparse.Namespace) -> list[PipelineBout]:
    """Raises UsageError for programs that there are not."""
    for name in args.programs:
        if name not in PROGRAMS:
            raise UsageError(f"there is no program {name}; there are {', '.join(PROGRAMS)}")
    return [
        PipelineBout(name, tuple(-(-n // SHRUNK.get(name, 1)) for n in args.size), threads)
        for threads in args.threads
        for name in args.programs
    ]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.pipelines", description=experiments.pipelines.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--programs", type=options.names, default=tuple(PROGRAMS), metavar="NAMES", help="default: all")
    add("--size", type=size_of, default=SIZE, metavar="ROWSxCOLUMNS", help="default 1536x2560")
    add("--threads", type=integers, default=(usable_cores(),), metavar="N,..", help="default: the processor's cores")
    add("--trials", type=options.integer(0), default=TRIALS, metavar="N", help=f"default {TRIALS}; 0: untuned only")
    add("--rounds", type=options.integer(1), default=ROUNDS, metavar="N", help=f"of the comparison, default {ROUNDS}")
    add("--resume", action="store_true", help="skip what has a result")
    add("--report", action="store_true", help="the table of the file, without measuring")
    add("--out", type=result_file, default=RESULTS, metavar="JSON", help="default experiments/results/pipelines.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        ledger = Ledger(args.out, totals)
        for bout in () if args.report else bouts_of(args):
            if args.resume and ledger.done(label_of(bout.row)):
                continue
            row = play(bout, args.trials, args.rounds)
            ledger.record(row)
            print("\n".join(lines_of(row)), file=sys.stderr, flush=True)
        print("\n".join(pipelines(load(args.out.parent, args.out.stem))))
    except UsageError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted; the programs that are done are kept, --resume goes on", file=sys.stderr)
        return 130
    return 1 if totals(list(ledger.rows.values()))["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())

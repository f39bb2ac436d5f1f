"""The command: `experiments.regret` says what it measures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import experiments.regret
from autosched.cli import options
from autosched.errors import UsageError
from autosched.target import usable_cores
from experiments.pipelines.__main__ import SIZE, size_of
from experiments.regret.measure import Subject, measure
from experiments.regret.operators import Operator, draw, parse
from experiments.regret.pipelines import pipeline_subject, program_subject
from experiments.report.regret import regret, summary
from experiments.report.results import Row, load
from experiments.scoreboard.__main__ import revision
from experiments.scoreboard.bouts import integers, label_of
from experiments.scoreboard.ledger import Ledger
from experiments.tuning import load_now, result_file

PAIRS, CANDIDATES = 100, 256
RESULTS = Path(__file__).resolve().parents[1] / "results" / "regret.json"


def operator_subject(operator: Operator) -> Subject:
    """The operator with arrays of its inputs, of normal distribution."""
    dag, rng = operator.dag, np.random.default_rng(0)
    arrays = tuple(rng.standard_normal(t.shape, "float32") for t in dag.inputs)
    return Subject(operator.name, tuple(dag.outputs), arrays, operator.weights)


def subjects(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Subject]]]:
    """The subjects by name, each made when it is measured. Raises UsageError for what there is not."""
    for text in args.cases:
        yield (found := parse(text)).name, partial(operator_subject, found)
    for name in args.programs:
        yield name, partial(program_subject, name, args.size)
    for n in range(args.pipelines):
        yield f"pipeline {args.seed}-{n}", partial(pipeline_subject, f"{args.seed}-{n}")
    for n in range(0 if args.cases or args.programs or args.pipelines else args.pairs):
        yield (operator := draw(args.seed, n)).name, partial(operator_subject, operator)


def totals(rows: Sequence[Row]) -> Mapping[str, Any]:
    """Mean, 95th percentile and worst of the regrets."""
    found = [row for row in rows if "regret" in row]
    return {"rows": len(found), **(summary(found) if found else {})}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.regret", description=experiments.regret.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--pairs", type=options.integer(1), default=PAIRS, metavar="N", help=f"random operators, default {PAIRS}")
    add("--seed", type=options.integer(0), default=0, metavar="N", help="default 0")
    add("--cases", nargs="+", default=(), metavar="OPERATOR", help="operators with their numbers, by name")
    add("--pipelines", type=options.integer(1), default=0, metavar="N", help="random pipelines in place of operators")
    add("--programs", type=options.names, default=(), metavar="NAMES", help="programs in place of operators")
    add("--size", type=size_of, default=SIZE, metavar="ROWSxCOLUMNS", help="of --programs, default 1536x2560")
    add("--candidates", type=options.integer(4), default=CANDIDATES, metavar="M", help=f"default {CANDIDATES}")
    add("--target", default="cpu", help="default: this processor")
    add("--threads", type=integers, default=(usable_cores(),), metavar="N,..", help="default: the processor's cores")
    add("--resume", action="store_true", help="skip what has a result")
    add("--again", action="store_true", help="measure the choices of today beside the candidates of the file")
    add("--report", action="store_true", help="the table of the file, without measuring")
    add("--out", type=result_file, default=RESULTS, metavar="JSON", help="default experiments/results/regret.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    failed = False
    try:
        ledger = Ledger(args.out, totals)
        for threads in () if args.report else args.threads:
            for name, make in subjects(args):
                case = name if args.target == "cpu" else f"{name} @ {args.target}"
                base = {"case": case, "batch": 1, "threads": threads, "target": args.target}
                earlier = ledger.rows.get(label_of(base), {}).get("entries", ())
                if (args.resume and ledger.done(label_of(base))) or (args.again and not earlier):
                    continue
                facts = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "revision": revision()}
                load_before = load_now()
                found = measure(make(), args.target, threads, args.candidates, earlier if args.again else ())
                ledger.record({**base, **facts, "load_before": load_before, **found})
                failed |= "error" in found or bool(found["failures"])
                said = found.get("error") or f"regret {found['regret']:.2f}, {found['took_s']} s"
                print("\n  ".join([f"{case}: {said}", *found.get("failures", ())]), file=sys.stderr, flush=True)
        print("\n".join(regret(load(args.out.parent, args.out.stem))))
    except UsageError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted; the subjects that are done are kept, --resume goes on", file=sys.stderr)
        return 130
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())

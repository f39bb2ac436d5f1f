"""Tunes every case of the operator set and shows how near each comes to the machine's peak.

    python -m experiments.sweep [--trials 64] [--batch 1] [--threads N] [--workloads c1d,c2d:2] [--out results.json]

Each case runs in a fresh process with a fresh database, so that none profits from another. Every process measures the
peak of the processor's fused multiply-adds just before it tunes; shares are of the largest of these, because what
disturbs that measurement makes it smaller. A case that moves more bytes than it computes is bound by memory, whatever
its share. The result file is written again after each case.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autosched.cli import options
from autosched.device import find_device
from autosched.errors import AutoschedError
from autosched.te.registry import WORKLOADS
from experiments.tuning import (
    WRONG,
    Case,
    geomean,
    load_now,
    median,
    microseconds,
    number,
    parse_cases,
    result_file,
    table,
    tune,
    write_results,
)

MORE = ("max_pool2d", "avg_pool2d", "global_max_pool2d", "global_avg_pool2d", "softmax", "layer_norm")
TIMEOUT_S = 1800.0
HEADER = ("case", "best us", "GFLOP/s", "of peak", "trials", "failed", "wrong", "tuning s", "first s", "failures")


def default_workloads() -> str:
    """All workloads with benchmark shapes, then MORE."""
    return ",".join([*(w.name for w in WORKLOADS.values() if w.shapes), *MORE])


def summarise(case: Case, answer: Mapping[str, Any]) -> dict[str, Any]:
    """One row of the result file: what `tune --json` said, or its error."""
    if "error" in answer:
        return {"case": case.label, "error": answer["error"]["message"]}
    kept = (
        "shape", "threads", "best_s", "best_ci_s", "gflops", "peak_gflops", "fraction_of_peak", "trials", "failed",
        "failures", "verified", "wall_s", "search_s", "model_s", "build_s", "check_s", "measure_s", "first_result_s",
        "sketch", "values", "curve",
    )  # fmt: skip
    wrong = sum(answer["failures"].get(kind, 0) for kind in WRONG)
    return {"case": case.label, "wrong": wrong, **{name: answer.get(name) for name in kept}}


def peak_of(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """GFLOP/s: the largest peak that any of the processes measured."""
    return max((row["peak_gflops"] for row in rows if row.get("peak_gflops")), default=None)


def share(row: Mapping[str, Any], peak: float | None) -> float | None:
    return row["gflops"] / peak if peak and row["gflops"] else None


def cells(row: Mapping[str, Any], peak: float | None) -> tuple[str, ...]:
    if "error" in row:
        return (row["case"], *["-"] * (len(HEADER) - 2), row["error"])
    kinds = " ".join(f"{kind}={n}" for kind, n in sorted(row["failures"].items()))
    return (
        row["case"],
        microseconds(row["best_s"]),
        number(row["gflops"], 1),
        number(share(row, peak)),
        str(row["trials"]),
        str(row["failed"]),
        str(row["wrong"]),
        number(row["wall_s"], 1),
        number(row["first_result_s"], 1),
        kinds,
    )


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the last lines of the table say."""
    good = [row for row in rows if "error" not in row]
    failures: Counter[str] = Counter()
    for row in good:
        failures.update(row["failures"])
    peak = peak_of(good)
    shares = [found for row in good if (found := share(row, peak))]
    return {
        "cases": len(rows),
        "without_result": [row["case"] for row in rows if "error" in row],
        "trials": sum(row["trials"] for row in good),
        "failures": dict(sorted(failures.items())),
        "wrong": sum(row["wrong"] for row in good),
        "peak_gflops": peak,
        "geomean_fraction_of_peak": geomean(shares),
        "median_wall_s": median([row["wall_s"] for row in good]),
        "median_first_result_s": median([row["first_result_s"] for row in good]),
    }


def sweep(args: argparse.Namespace, cases: Sequence[Case]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    settings = {name: getattr(args, name) for name in ("trials", "batch", "threads", "seed")}
    settings["load_before"] = load_now()
    with tempfile.TemporaryDirectory(prefix="autosched-sweep-") as scratch:
        for n, case in enumerate(cases):
            answer = tune(
                case,
                trials=args.trials,
                threads=args.threads,
                database=Path(scratch) / f"{n}.db",
                batch=args.batch,
                seed=args.seed,
                timeout_s=args.timeout,
            )
            rows.append(summarise(case, answer))
            print("  ".join(filter(None, cells(rows[-1], peak_of(rows)))), file=sys.stderr, flush=True)
            if args.out is not None:
                write_results(args.out, {"settings": settings, "totals": totals(rows), "cases": rows})
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.sweep", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workloads", default=default_workloads(), help="names, or name:index (default: all)")
    parser.add_argument("--trials", type=options.integer(1), default=64, metavar="N", help="for each case (default 64)")
    parser.add_argument("--batch", type=options.integer(1), default=1, metavar="N", help="default 1")
    parser.add_argument("--threads", type=options.integer(1), metavar="N", help="default: the processor's cores")
    parser.add_argument("--seed", type=options.integer(0), default=0, metavar="S", help="default 0")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="S", help="for one case (default 1800)")
    parser.add_argument("--out", type=result_file, metavar="JSON", help="write the results there")
    args = parser.parse_args(argv)
    try:
        cases = parse_cases(args.workloads)
        find_device("cpu", args.threads)
    except AutoschedError as error:
        parser.error(str(error))
    rows = sweep(args, cases)
    print(table(HEADER, [cells(row, peak_of(rows)) for row in rows]))
    for name, value in totals(rows).items():
        print(f"{name}: {number(value, 3) if isinstance(value, float) else value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Whether knowledge of other workloads helps a new one: searches among the measured programs, replayed.

    python -m experiments.carry_over

A search of a workload's committed programs picks them in rounds of 4, 8, 8, ... by the score of its ranker, which is
fitted after every round on what has been picked; picking a program gives its recorded time. Nothing is measured, so
all workloads can be asked. Each is searched three times, its ranker starting from

    draft        the analytic latency
    shapes       a forest fitted without the programs of the operator at this shape, for whatever batch and threads
    operators    a forest fitted without the programs of the operator

For each: the best of the first FIRST picks as a share of the best of all programs, and the picks until one is within
95 % of that; both over the workloads with at least LEAST programs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cost_model.ranker import Ranker, Rows, labels
from experiments.cost_model_quality import LEAST, family_folds, shape_folds
from experiments.programs import COMMITTED, Floats, Ints, Table, from_databases, read, tabulate

ROUNDS = (4, 8)  # the first one, and all others
FIRST = 8
NEAR = 0.95


@dataclass(frozen=True)
class Search:
    """`first`: best of all over the best of the first picks, in (0, 1]; `trials`: picks until one is near the best."""

    first: float
    trials: int


def replay(features: Rows, seconds: Floats, ranker: Ranker) -> Search:
    """A search among the programs of one workload; `seconds` `[n]`, inf where one failed."""
    n, picked = len(seconds), np.zeros(len(seconds), bool)
    order: list[int] = []
    while len(order) < n:
        scores = np.where(picked, -np.inf, ranker.predict(features))
        size = ROUNDS[0] if not order else ROUNDS[1]
        chosen = np.argsort(-scores, kind="stable")[: min(size, n - len(order))]
        picked[chosen] = True
        order += chosen.tolist()
        known = seconds[order]
        if ranker.should_refit(len(order)) and np.isfinite(known).any():
            group = np.zeros(len(order), np.int64)
            ranker.fit(features[order], labels(known, group), group)
        if known.min() <= seconds.min() / NEAR and len(order) >= FIRST:
            break
    taken = seconds[order]
    return Search(float(seconds.min() / taken[:FIRST].min()), int(np.flatnonzero(taken <= seconds.min() / NEAR)[0]) + 1)


def priors(table: Table, fold: Ints) -> dict[int, bytes]:
    """By fold: a forest fitted on all others."""
    found = {}
    for f in np.unique(fold):
        rows = fold != f
        if rows.any():
            ranker = Ranker()
            ranker.fit(table.features[rows], labels(table.seconds[rows], table.task[rows]), table.task[rows])
            found[int(f)] = ranker.save()
    return found


def compare(table: Table) -> dict[str, dict[int, Search]]:
    """By where the ranker starts from: each workload's search."""
    found: dict[str, dict[int, Search]] = {"draft": {}, "shapes": {}, "operators": {}}
    folds = {"shapes": shape_folds(table), "operators": family_folds(table)}
    forests = {name: priors(table, fold) for name, fold in folds.items()}
    for task in range(len(table.tasks)):
        mine = table.task == task
        if np.isfinite(table.seconds[mine]).sum() < LEAST:
            continue
        x, seconds = table.features[mine], table.seconds[mine]
        found["draft"][task] = replay(x, seconds, Ranker())
        for name, fold in folds.items():
            forest = forests[name].get(int(fold[mine][0]))
            found[name][task] = replay(x, seconds, Ranker(prior=forest))
    return found


def summary(found: dict[str, dict[int, Search]]) -> dict[str, dict[str, float]]:
    """For each start: means and medians, and how often it was worse or better than the draft by a fifth and more."""
    result = {}
    for name, searches in found.items():
        ratio = np.array([s.trials / found["draft"][t].trials for t, s in searches.items()])
        trials, first = np.array([s.trials for s in searches.values()]), np.array([s.first for s in searches.values()])
        result[name] = {
            "first_median": float(np.median(first)),
            "first_mean": float(first.mean()),
            "trials_to_95_median": float(np.median(trials)),
            "trials_to_95_mean": float(trials.mean()),
            "trials_over_draft_geomean": float(np.exp(np.log(ratio).mean())),
            "sooner": int((ratio <= 1 / 1.2).sum()),
            "later": int((ratio >= 1.2).sum()),
            "workloads": len(searches),
        }
    return result


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.carry_over", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--db", type=Path, nargs="+", help="take the programs of these databases")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    args = parser.parse_args(argv)
    found = summary(compare(tabulate(from_databases(args.db) if args.db else read(COMMITTED))))
    if args.json:
        print(json.dumps({"schema_version": 1, **found}))
        return 0
    for name, numbers in found.items():
        print(name)
        for key, value in numbers.items():
            print(f"  {key:28} {value:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

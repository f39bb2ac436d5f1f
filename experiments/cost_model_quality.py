"""How well the cost model orders programs that it has not seen.

    python -m experiments.cost_model_quality --json

A *workload* is an operator with its shape, batch size and number of threads. Every metric is taken within a workload,
over its valid programs, and then averaged over the workloads with at least LEAST programs (see
`experiments.ranking_metrics`):

    pairwise_accuracy       share of the pairs of programs that are ordered rightly
    apart_accuracy          the same of pairs whose times are more than APART apart
    close_pairs             share of the pairs that are not
    recall_at_30            share of the 30 fastest that are among the 30 best predicted

What a program's score comes from:

    (no prefix)             five random splits 80/20 of all programs, so that each is scored once by a model fitted on
                            programs of all workloads that are not itself
    loo_                    leave one workload out: fitted without all programs of the operator at that shape, with
                            whatever batch size and threads
    family_out_             leave one operator out: fitted on the other operators alone
    draft_                  the analytic latency, nothing fitted
    chance_                 random scores
    repeat_                 no scores: programs that were timed twice, ordered by the one time and judged by the other,
                            over workloads with at least REPEATED of them; no model can be expected to do better
    online_N                fitted on N random programs of the same workload alone, judged on the others of it, with
                            `recall_at_10`; `online_N_draft_` is the draft on the same programs

From the committed programs, or with --db from any database.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autosched.errors import AutoschedError
from autosched.te.operators.registry import find
from cost_model.cpu.features import ANALYTIC_COLUMN
from cost_model.ranker import Ranker, labels
from experiments.programs import COMMITTED, Floats, Ints, Measured, Table, from_databases, read, tabulate
from experiments.ranking_metrics import pairwise_accuracy, recall_at_k
from experiments.tuning import result_file, write_results

K = 30
APART = 1.1
LEAST = 40  # valid programs of a workload that counts
SPLITS = 5
REPEATED = 32
ONLINE = (16, 32, 64)
ONLINE_LEAST = 16  # programs left to judge by
ONLINE_K = 10

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Quality:
    """Means over workloads."""

    pairwise: float
    recall: float
    apart: float = float("nan")


def quality(scores: Floats, table: Table, rows: Bools | None = None, k: int = K, least: int = LEAST) -> Quality:
    """Of `scores` `[n]`, higher is better, over the workloads of the valid `rows`."""
    chosen = np.isfinite(table.seconds) if rows is None else rows & np.isfinite(table.seconds)
    pairs, recalls, apart = [], [], []
    for task in np.unique(table.task[chosen]):
        mine = chosen & (table.task == task)
        if mine.sum() >= least:
            pairs.append(pairwise_accuracy(scores[mine], table.seconds[mine]))
            recalls.append(recall_at_k(scores[mine], table.seconds[mine], k))
            apart.append(pairwise_accuracy(scores[mine], table.seconds[mine], APART))
    if not pairs:
        return Quality(float("nan"), float("nan"))
    told = [accuracy for accuracy in apart if not np.isnan(accuracy)]  # NaN: a workload without pairs so far apart
    return Quality(float(np.mean(pairs)), float(np.mean(recalls)), float(np.mean(told)) if told else float("nan"))


def close_pairs(table: Table, least: int = LEAST) -> float:
    """The share of pairs of a workload's programs whose times are within APART, the mean over workloads."""
    shares = []
    for task in np.unique(table.task):
        times = np.log(table.seconds[(table.task == task) & np.isfinite(table.seconds)])
        if len(times) >= least:
            gaps = np.abs(times[:, None] - times[None, :])[np.triu_indices(len(times), 1)]
            shares.append(np.mean(gaps <= np.log(APART)))
    return float(np.mean(shares)) if shares else float("nan")


def out_of_fold(table: Table, fold: Ints) -> Floats:
    """`[n]` the score of each program by a ranker that was fitted on all other folds."""
    scores = np.full(len(table), np.nan)
    for f in np.unique(fold):
        train, test = fold != f, fold == f
        if train.any():
            scores[test] = fitted(table, train).predict(table.features[test])
    return scores


def fitted(table: Table, rows: Bools) -> Ranker:
    ranker = Ranker()
    y = labels(table.seconds[rows], table.task[rows])
    ranker.fit(table.features[rows], y, table.task[rows])
    return ranker


# Which fold a program is in


def random_folds(table: Table) -> Ints:
    """All times of one program share a fold."""
    program = identities(table)
    return np.random.default_rng(0).permutation(int(program.max(initial=-1)) + 1)[program] % SPLITS


def identities(table: Table) -> Ints:
    """`[n]` equal numbers for times of one program, and for programs of a sketch that no feature tells apart."""
    sketch = np.unique(table.sketch, return_inverse=True)[1].reshape(-1)
    rows = np.column_stack([table.task.astype(np.float32), sketch.astype(np.float32), table.features])
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)


def shape_folds(table: Table) -> Ints:
    """Programs of an operator at one shape, all batch sizes and threads, are a fold."""
    shapes = [(t.family, without_batch(t)) for t in table.tasks]
    known = {shape: n for n, shape in enumerate(dict.fromkeys(shapes))}
    return np.array([known[shape] for shape in shapes])[table.task]


def without_batch(task: Measured) -> tuple[int, ...]:
    """The numbers of a workload but for the first, its batch size; all of an operator on plain matrices."""
    return task.shape[1:] if find(task.family).args[0] in ("N", "B") else task.shape


def family_folds(table: Table) -> Ints:
    families = sorted({t.family for t in table.tasks})
    return np.array([families.index(t.family) for t in table.tasks])[table.task]


# The report


def online(table: Table, n: int) -> tuple[Quality, Quality]:
    """(fitted on `n` programs of the workload itself, the draft) on the others."""
    scores, rng = np.full(len(table), np.nan), np.random.default_rng(1)
    for task in range(len(table.tasks)):
        mine = rng.permutation(np.flatnonzero((table.task == task) & np.isfinite(table.seconds)))
        if len(mine) < n + ONLINE_LEAST:
            continue
        chosen = np.zeros(len(table), bool)
        chosen[mine[:n]] = True
        scores[mine[n:]] = fitted(table, chosen).predict(table.features[mine[n:]])
    judged = np.isfinite(scores)
    draft = -table.features[:, ANALYTIC_COLUMN].astype(np.float64)
    return tuple(quality(s, table, judged, ONLINE_K, ONLINE_LEAST) for s in (scores, draft))  # type: ignore[return-value]


def repeated(table: Table) -> Quality:
    """How well one time of a program predicts another."""
    program, first = identities(table), np.full(len(table), np.nan)
    for p in np.flatnonzero(np.bincount(program) > 1):
        rows = np.flatnonzero((program == p) & np.isfinite(table.seconds))
        if len(rows) > 1:
            first[rows[1]] = -table.seconds[rows[0]]
    return quality(first, table, np.isfinite(first), least=REPEATED)


Scores = dict[str, Floats]
FOLDS: dict[str, Callable[[Table], Ints]] = {"": random_folds, "loo_": shape_folds, "family_out_": family_folds}


def all_scores(table: Table) -> Scores:
    """By prefix."""
    found = {prefix: out_of_fold(table, folds(table)) for prefix, folds in FOLDS.items()}
    found["draft_"] = -table.features[:, ANALYTIC_COLUMN].astype(np.float64)
    found["chance_"] = np.random.default_rng(2).random(len(table))
    return found


def report(table: Table, scores: Scores) -> dict[str, object]:
    """The JSON object that is printed."""
    found: dict[str, object] = {"schema_version": 1}
    for prefix, score in scores.items():
        q = quality(score, table)
        found |= {f"{prefix}pairwise_accuracy": _known(q.pairwise), f"{prefix}recall_at_{K}": _known(q.recall)}
        found[f"{prefix}apart_accuracy"] = _known(q.apart)
    found["close_pairs"] = _known(close_pairs(table))
    repeats = repeated(table)
    found |= {"repeat_pairwise_accuracy": _known(repeats.pairwise), f"repeat_recall_at_{K}": _known(repeats.recall)}
    found["programs"] = int(np.isfinite(table.seconds).sum())
    found["failed"] = int((~np.isfinite(table.seconds)).sum())
    found["workloads"] = len(table.tasks)
    for n in ONLINE:
        after, before = online(table, n)
        for prefix, q in ((f"online_{n}_", after), (f"online_{n}_draft_", before)):
            found |= {
                f"{prefix}pairwise_accuracy": _known(q.pairwise),
                f"{prefix}recall_at_{ONLINE_K}": _known(q.recall),
            }
    return found


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value


def by_family(table: Table, scores: Scores) -> list[str]:
    """The same for each operator and number of threads, as lines of a table."""
    names = list(scores)
    lines = ["operator  programs  " + "  ".join(f"{(p.rstrip('_') or 'split'):>10}" for p in names)]
    families = np.array([t.family for t in table.tasks])[table.task]
    threads = np.array([f"{t.threads} threads" for t in table.tasks])[table.task]
    for label in (families, threads):
        for name in np.unique(label):
            mine = label == name
            cells = [quality(scores[p], table, mine) for p in names]
            lines.append(f"{name:9} {mine.sum():8}  " + "  ".join(f"{q.pairwise:.3f}/{q.recall:.2f} " for q in cells))
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.cost_model_quality", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--db", type=Path, nargs="+", help="take the programs of these databases")
    parser.add_argument("--data", type=Path, default=COMMITTED, help="or of this file (default: the committed one)")
    parser.add_argument(
        "--out", type=result_file, help="write the figures, with the facts of this machine, to this file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    args = parser.parse_args(argv)
    try:
        table = tabulate(from_databases(args.db) if args.db else read(args.data))
    except AutoschedError as error:
        parser.error(str(error))
    scores = all_scores(table)
    found = report(table, scores)
    if args.out:
        write_results(args.out, found)
    if args.json:
        print(json.dumps(found))
        return 0
    print("\n".join([*by_family(table, scores), ""]))
    for key, value in found.items():
        print(f"{key:32} {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

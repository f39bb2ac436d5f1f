"""The table of `experiments.regret`: what the analytic model's choices cost, the worst first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.report.markdown import table, threads_text
from experiments.report.results import Lines, Results, Row

WORST = 10  # rows of a target and a number of threads that are listed


def regret(results: Results) -> Lines:
    """For each target and number of threads: mean, 95th percentile and worst; then the worst rows."""
    groups = sorted({(row["target"], row["threads"]) for row in results.rows})
    chosen = {key: [row for row in results.rows if (row["target"], row["threads"]) == key] for key in groups}
    header = ("target", "subjects", "mean regret", "95 % of them", "worst")
    figures = {key: [f"{figure:.2f}" for figure in summary(rows).values()] for key, rows in chosen.items()}
    lines = table(header, [(_title(*key), str(len(rows)), *figures[key]) for key, rows in chosen.items()])
    for key, rows in chosen.items():
        lines += ["", f"**{_title(*key)}**", "", *_worst(rows)]
    if failed := [f"`{row['case']}` ({row['error'][:200]})" for row in results.content["rows"] if "error" in row]:
        lines += ["", f"Without a time: {'; '.join(failed)}."]
    return [*lines, "", results.source(results.rows)]


def _title(target: str, threads: int) -> str:
    return f"{'this processor' if target == 'cpu' else target}, {threads_text(threads)}"


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Mean, 95th percentile and worst of the regrets of rows, of which there is one at least."""
    found = [row["regret"] for row in rows]
    return {"mean": float(np.mean(found)), "p95": float(np.percentile(found, 95)), "worst": max(found)}


def _worst(rows: Sequence[Row]) -> Lines:
    header = ("subject", "regret", "choice, ms (predicted)", "best, ms (predicted)", "choice", "best")

    def cells(row: Row) -> tuple[str, ...]:
        entries = (row["choice"], row["entries"][0])
        times = (f"{1e3 * e['seconds']:.3f} ({1e3 * e['predicted_s']:.3f})" for e in entries)
        name = row["case"].partition(" @ ")[0]
        return (f"`{name}`", f"{row['regret']:.2f}", *times, *(f"`{e['sketch']}`" for e in entries))

    worst = sorted(rows, key=lambda row: -row["regret"])[:WORST]
    return table(header, [cells(row) for row in worst])

"""The table of `experiments.network_curves`: where each strategy of a network's search ends, and how soon."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from experiments.report.markdown import table
from experiments.report.results import Lines, Results, Row
from experiments.tuning import number
from experiments.tuning_figure import BEST, SECONDS, TRIAL, near_at

HEADER = (
    "network", "strategy", "seeds", "at the start, ms", "at the end, ms", "range", "kernels, ms", "trials",
    "trials to 5 %", "s to 5 %", "trials to 5 % of its own", "s",
)  # fmt: skip
NEAR = 1.05  # times what the kernels take at the end of the best session's curve


def network_curves(results: Results) -> Lines:
    """Medians over the seeds, of how late a session comes near the best curve's end (one that never does, infinitely)
    and near its own."""
    rows = results.rows
    cells = []
    for network in dict.fromkeys(row["network"] for row in rows):
        mine = [row for row in rows if row["network"] == network]
        limit_s = NEAR * min((row["curve"][-1][BEST] for row in mine if row["curve"]), default=0.0)
        for strategy in dict.fromkeys(row["strategy"] for row in mine):
            cells.append(_cells([row for row in mine if row["strategy"] == strategy], limit_s))
    setting = results.content["settings"]
    made = [{fact: row.get(fact) for fact in ("date", "revision")} for row in rows]  # each had as many trials as it had
    threads = f"{setting['threads']} thread{'s' * (setting['threads'] > 1)}"
    said = f"{setting['budget_s']:.0f} s a session, {threads}."
    return [*table(HEADER, cells), "", said, "", results.source(made)]


def _cells(rows: Sequence[Row], limit_s: float) -> tuple[str, ...]:
    ends = [1e3 * row["latency_s"] for row in rows]
    to_best = [_median_place(rows, [limit_s] * len(rows), column) for column in (TRIAL, SECONDS)]
    own = [NEAR * row["curve"][-1][BEST] if row["curve"] else 0.0 for row in rows]
    to_own = [_median_place(rows, own, column) for column in (TRIAL, SECONDS)]
    return (
        rows[0]["network"], rows[0]["strategy"], str(len(rows)),
        number(median(1e3 * row["start_latency_s"] for row in rows), 3), number(median(ends), 3),
        f"{min(ends):.3f} to {max(ends):.3f}", number(median(1e3 * row["kernels_s"] for row in rows), 3),
        f"{median(row['trials'] for row in rows):.0f}", *(f"{place:.3g}" for place in (*to_best, *to_own)),
    )  # fmt: skip


def _median_place(rows: Sequence[Row], limits_s: Sequence[float], column: int) -> float:
    """Of the first point of each curve that is within its limit."""
    places = [near_at(row, limit_s, column) for row, limit_s in zip(rows, limits_s, strict=True)]
    return median(float("inf") if place is None else place for place in places)

"""Tables of networks: our program against the runtimes, and what its time is made of."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.networks.contestants import OURS, OWN
from experiments.networks.table import HEADER, Row, best_peer, cells, failures, losses, present, searches
from experiments.report.contests import panel_name
from experiments.report.markdown import table
from experiments.report.results import Lines, Results
from experiments.scoreboard.table import panels
from experiments.tuning import geomean, number


def networks(results: Results) -> Lines:
    """A table for each batch and number of threads, with what is slower and what took no part."""
    lines: Lines = []
    for panel, rows in panels(results.rows).items():
        shown = [cells(row, own) for row in rows for own in present(row)]
        lines += [f"**{panel_name(panel)}**", "", *table(HEADER, shown), ""]
        said = f"Against the best peer {_means(rows)}."
        behind = losses(rows)
        lines += [f"{said} {f'A peer is faster in {behind}.' if behind else 'In no network is a peer faster.'}", ""]
        if found := searches(rows):
            lines += [" ".join(found), ""]
        if failed := failures(rows):
            lines += ["Without a time: " + "; ".join(failed) + ".", ""]
    return [*lines, results.source(results.rows, ("torch",))]


def _means(rows: Sequence[Row]) -> str:
    """Of each of ours, over the networks that have a ratio."""
    found = {own: [best[1] for row in rows if (best := best_peer(row, own))] for own in OWN}
    parts = [
        f"{number(geomean(ratios))}{'' if own == OURS else f' ({own})'}, the geometric mean of {len(ratios)}"
        for own, ratios in found.items()
        if ratios
    ]
    return "; ".join(parts) or "-"

"""Tables of networks: our program against the runtimes, and what its time is made of."""

from __future__ import annotations

from experiments.networks.table import HEADER, best_peer, cells, failures, losses, totals
from experiments.report.contests import panel_name
from experiments.report.markdown import table
from experiments.report.results import Lines, Results
from experiments.scoreboard.table import panels
from experiments.tuning import number


def networks(results: Results) -> Lines:
    """A table for each batch and number of threads, with what is slower and what took no part."""
    lines: Lines = []
    for panel, rows in panels(results.rows).items():
        compared = sum(best_peer(row) is not None for row in rows)
        lines += [f"**{panel_name(panel)}**", "", *table(HEADER, [cells(row) for row in rows]), ""]
        said = f"Against the best peer {number(totals(rows)['best_peer'])}, the geometric mean of {compared}."
        behind = losses(rows)
        lines += [f"{said} {f'A peer is faster in {behind}.' if behind else 'In no network is a peer faster.'}", ""]
        if failed := failures(rows):
            lines += ["Without a time: " + "; ".join(failed) + ".", ""]
    return [*lines, results.source(results.rows, ("torch",))]

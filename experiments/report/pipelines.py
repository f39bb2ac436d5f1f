"""The table of `experiments.pipelines`: our kernels beside Halide's schedules and OpenCV."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.pipelines.entries import (
    AUTOMATIC,
    AUTOSCHEDULERS,
    BY_HAND,
    OPENCV,
    OURS,
    PEERS,
    gigabytes_per_second,
    means,
    ratio,
    seconds,
)  # fmt: skip
from experiments.report.markdown import table, threads_text
from experiments.report.results import Lines, Results, Row
from experiments.tuning import number

TIMES = (*OURS, *AUTOSCHEDULERS, BY_HAND, OPENCV)
RATED = (*OURS, AUTOMATIC, BY_HAND)  # whose compulsory traffic over time is shown


def pipelines(results: Results) -> Lines:
    """For each number of threads: times in ms, ratios to each peer, and compulsory bytes over time."""
    lines: Lines = []
    for threads in sorted({row["threads"] for row in results.rows}):
        rows = [row for row in results.rows if row["threads"] == threads]
        own = [name for name in OURS if any(seconds(row, name) for row in rows)]
        lines += [f"**{threads_text(threads)}**", "", *_times(rows, own), "", *_traffic(rows), ""]
    if failed := _failures(results.content["rows"]):
        lines += [f"Without a time: {'; '.join(failed)}.", ""]
    return [*lines, results.source(results.rows)]


def _times(rows: Sequence[Row], own: Sequence[str]) -> Lines:
    pairs = [(name, peer) for name in own for peer in PEERS]
    header = ("program", *(f"{name}, ms" for name in TIMES), *(f"{peer} over {name}" for name, peer in pairs))
    cells = [
        (
            f"`{row['case']}`",
            *(number(None if (s := seconds(row, name)) is None else 1e3 * s) for name in TIMES),
            *(number(ratio(row, peer, name)) for name, peer in pairs),
        )
        for row in rows
    ]
    found = {name: means(rows, name) for name in own}
    last = ("**geometric mean**", *[""] * len(TIMES), *(number(found[name][peer]) for name, peer in pairs))
    return table(header, [*cells, last])


def _traffic(rows: Sequence[Row]) -> Lines:
    header = ("program", "compulsory, MB", *(f"{name}, GB/s" for name in RATED))
    return table(
        header,
        [
            (
                f"`{row['case']}`", f"{row['least_bytes'] / 1e6:.1f}",
                *(number(gigabytes_per_second(row, name), 1) for name in RATED),
            )
            for row in rows
        ],
    )  # fmt: skip


def _failures(rows: Sequence[Row]) -> list[str]:
    """Who has no time, and why."""
    failed = [f"`{row['case']}` ({row['error'][:200]})" for row in rows if "error" in row]
    for row in rows:
        failed += [
            f"{name} on `{row['case']}`, {threads_text(row['threads'])} ({entry['reason'][:100]})"
            for name, entry in row.get("entries", {}).items()
            if "reason" in entry
        ]
    return failed

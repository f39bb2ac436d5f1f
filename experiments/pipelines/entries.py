"""Rows of results: who took part, the ratio to a peer, and how fast the compulsory bytes pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosched.cli.bench import geomean

UNTUNED, TUNED, BY_HAND, OPENCV = "untuned", "tuned", "by hand", "OpenCV"
AUTOSCHEDULERS = ("Mullapudi2016", "Adams2019", "Li2018")  # of Halide
AUTOMATIC = "the best autoscheduler"
OURS = (UNTUNED, TUNED)
PEERS = (AUTOMATIC, BY_HAND, OPENCV)
Row = Mapping[str, Any]


def seconds(row: Row, name: str) -> float | None:
    """Of a participant, or of the fastest autoscheduler; None where there is none with a right result."""
    entries = row["entries"]
    if name == AUTOMATIC:
        times = [s for peer in AUTOSCHEDULERS if (s := seconds(row, peer)) is not None]
        return min(times, default=None)
    found: float | None = entries.get(name, {}).get("seconds")
    return found


def ratio(row: Row, peer: str, own: str) -> float | None:
    """The peer's time over that of one of ours; None where one of them has none."""
    theirs, ours = seconds(row, peer), seconds(row, own)
    return theirs / ours if theirs and ours else None


def gigabytes_per_second(row: Row, name: str) -> float | None:
    """The compulsory traffic over a participant's time."""
    found = seconds(row, name)
    return row["least_bytes"] / found / 1e9 if found else None


def means(rows: Sequence[Row], own: str) -> dict[str, float | None]:
    """The geometric mean of the ratios to each peer."""
    return {peer: geomean([found for row in rows if (found := ratio(row, peer, own)) is not None]) for peer in PEERS}


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """What a result file says of all its rows: means by number of threads, and wrong results of ours."""
    done = [row for row in rows if "error" not in row]
    return {
        "geomeans": {
            f"{threads} threads": {own: means([row for row in done if row["threads"] == threads], own) for own in OURS}
            for threads in sorted({row["threads"] for row in done})
        },
        "wrong": [row["case"] for row in done if any(_is_wrong(row, own) for own in OURS)],
    }


def _is_wrong(row: Row, own: str) -> bool:
    return "wrong" in row["entries"].get(own, {}).get("reason", "")

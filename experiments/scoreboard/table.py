"""What the rows of the scoreboard come to: ratios, shares of the roofline, totals, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.scoreboard.bouts import OPT_INS, OptIn, label_of
from experiments.scoreboard.contest import COMPILED, METASCHEDULE, NUMPY, PEERS, TORCH
from experiments.scoreboard.contestant import CALL, OURS
from experiments.tuning import geomean, median, microseconds, number, table

Row = Mapping[str, Any]

FLOOR = 0.85  # a ratio below this is a case that must not be
LOW_SHARE = 0.75  # of the roofline, below which a case is listed even where all peers are slower
NEAR = 0.95  # of the final best throughput: trials and seconds until a search was there
QUIET_PEAK, QUIET_SPREAD = 0.93, 0.25  # see `disturbed`
PHASES = ("search", "model", "build", "check", "measure")
HEADER = (
    "case", "N", "thr", "ours us", "called", "torch", "compile", "numpy", "metas.", "best peer", "ratio", "of roof",
    "peer's", "limit", "tune s", "theirs s", "to 95%",
)  # fmt: skip
OPT_IN_HEADER = ("case", "N", "thr", "called us", "opted in", "torch", "its peer", "ratio")


def seconds(row: Row, name: str) -> float | None:
    """A contestant's time; None where it has none."""
    found = (row.get("entries") or {}).get(name, {}).get("seconds")
    return None if found is None else float(found)


def manner(peer: str) -> str:
    """Our entry that is called in the same way as the peer: MetaSchedule's loop is compiled, others' is Python."""
    return OURS if peer == METASCHEDULE else CALL


def ratio(row: Row, peer: str) -> float | None:
    """Its time over ours: above 1 we are faster."""
    theirs, ours = seconds(row, peer), seconds(row, manner(peer))
    return None if theirs is None or ours is None else theirs / ours


def best_peer(row: Row, peers: Sequence[str] = PEERS) -> tuple[str, float] | None:
    """Of `peers` the one that is fastest beside us, and the ratio to it."""
    found = {peer: r for peer in peers if (r := ratio(row, peer)) is not None}
    return min(found.items(), key=lambda item: item[1], default=None)


def share(row: Row, name: str) -> float | None:
    """The roofline's time over the contestant's."""
    time, roof = seconds(row, name), (row.get("roof") or {}).get("seconds")
    return None if time is None or not roof else roof / time


def roof(flops: int, n_bytes: int, peak_gflops: float, bandwidth: float) -> dict[str, Any]:
    """The least time that arithmetic and compulsory traffic leave, and which of them it is."""
    arithmetic = flops / (1e9 * peak_gflops) if peak_gflops else 0.0
    memory = n_bytes / bandwidth if bandwidth else 0.0
    return {"seconds": max(arithmetic, memory), "limit": "arithmetic" if arithmetic >= memory else "memory"}


def until_near(curve: Sequence[Sequence[float]]) -> dict[str, float | None]:
    """From [trial, elapsed seconds, best seconds] of a search: when it was at NEAR of its final throughput."""
    if not curve:
        return {"trials_to_95": None, "seconds_to_95": None}
    goal = min(point[2] for point in curve) / NEAR
    first = next(point for point in curve if point[2] <= goal)
    return {"trials_to_95": first[0], "seconds_to_95": first[1]}


def opt_in_ratio(row: Row, opt_in: OptIn) -> float | None:
    """The peer's time over ours, for the contest of an opt-in."""
    theirs, ours = seconds(row, opt_in.peer), seconds(row, opt_in.ours)
    return None if theirs is None or ours is None else theirs / ours


def opt_in_cells(row: Row, opt_in: OptIn) -> tuple[str, ...]:
    times = [microseconds(seconds(row, name)) for name in (CALL, opt_in.ours, TORCH, opt_in.peer)]
    return (row["case"], str(row["batch"]), str(row["threads"]), *times, number(opt_in_ratio(row, opt_in)))


def cells(row: Row) -> tuple[str, ...]:
    head = (row["case"], str(row["batch"]), str(row["threads"]))
    if "error" in row:
        return (*head, *["-"] * (len(HEADER) - len(head) - 1), row["error"])
    best, tuning = best_peer(row), row.get("tuning") or {}
    theirs = (row["entries"].get(METASCHEDULE) or {}).get("tuning_s")
    return (
        *head,
        *(microseconds(seconds(row, name)) for name in (OURS, CALL, TORCH, COMPILED, NUMPY, METASCHEDULE)),
        "-" if best is None else best[0],
        number(None if best is None else best[1]),
        number(share(row, OURS)),
        number(None if best is None else share(row, best[0])),
        f"{row['roof']['limit']} {row['level']}" if row["roof"]["limit"] == "memory" else "arithmetic",
        number(tuning.get("wall_s"), 1),
        number(theirs, 0),
        number(tuning.get("trials_to_95"), 0),
    )


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """The numbers that a change is held against; ratios above 1 say that we are faster."""
    good = [row for row in rows if "error" not in row]
    best = {label_of(row): found[1] for row in good if (found := best_peer(row)) is not None}
    shares = [(row["roof"]["limit"], of_roof) for row in good if (of_roof := share(row, OURS)) is not None]
    tuning = [row["tuning"] for row in good if row.get("tuning")]
    worst = sorted(best, key=lambda name: best[name])[:5]
    return {
        "cases": len(rows),
        "without_result": [label_of(row) for row in rows if "error" in row],
        "disturbed": disturbed(rows),
        "compared": len(best),
        "geomean_vs_best_peer": geomean(list(best.values())),
        **{f"geomean_vs_{peer}": geomean(ratios(good, peer)) for peer in PEERS},
        **{f"compared_with_{peer}": len(ratios(good, peer)) for peer in PEERS},
        "by_operator": by_operator(good),
        "worst": {name: best[name] for name in worst},
        "below_1": sum(r < 1.0 for r in best.values()),
        f"below_{FLOOR}": sum(r < FLOOR for r in best.values()),
        "geomean_share_of_roof": geomean([of_roof for _, of_roof in shares]),
        "median_share_by_limit": {
            limit: median([of_roof for found, of_roof in shares if found == limit])
            for limit in ("arithmetic", "memory")
        },
        **{
            f"geomean_with_{o.name}": geomean([r for row in good if (r := opt_in_ratio(row, o)) is not None])
            for o in OPT_INS
        },
        "tuning_time_ratio_vs_metaschedule": median(tuning_ratios(good)),
        "median_wall_s": median([t["wall_s"] for t in tuning]),
        "median_first_result_s": median([t["first_result_s"] for t in tuning if t.get("first_result_s")]),
        "median_first_round_ratio": median([t["first_round_ratio"] for t in tuning if t.get("first_round_ratio")]),
        "median_trials_to_95": median([t["trials_to_95"] for t in tuning if t.get("trials_to_95")]),
        "median_seconds_to_95": median([t["seconds_to_95"] for t in tuning if t.get("seconds_to_95")]),
        "share_of_wall": {
            name: median([t[f"{name}_s"] / t["wall_s"] for t in tuning if t.get(f"{name}_s") is not None])
            for name in PHASES
        },
        "wrong_trials": sum(row.get("wrong") or 0 for row in good),
    }


def disturbed(rows: Sequence[Row]) -> list[str]:
    """Labels of cases that were measured beside other work, as it seems.

    Either the processor reached less than QUIET_PEAK of the best peak in all rows of as many threads, or the interval
    of our time is wider than QUIET_SPREAD of it.
    """
    good = [row for row in rows if "error" not in row]
    peaks: dict[int, float] = {}
    for row in good:
        peaks[row["threads"]] = max(peaks.get(row["threads"], 0.0), row["rates"]["peak_gflops"])

    def spread(row: Row) -> float:
        ours = row["entries"][OURS]
        low, high = ours.get("ci") or (0.0, 0.0)
        return float(high - low) / float(ours["seconds"])

    return [
        label_of(row)
        for row in good
        if row["rates"]["peak_gflops"] < QUIET_PEAK * peaks[row["threads"]] or spread(row) > QUIET_SPREAD
    ]


def by_operator(rows: Sequence[Row]) -> dict[str, float | None]:
    """Geometric means of the ratios to the best peer of each case."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if best := best_peer(row):
            found.setdefault(row["workload"], []).append(best[1])
    return {workload: geomean(some) for workload, some in found.items()}


def ratios(rows: Sequence[Row], peer: str) -> list[float]:
    return [found for row in rows if (found := ratio(row, peer)) is not None]


def tuning_ratios(rows: Sequence[Row]) -> list[float]:
    """MetaSchedule's tuning time over ours."""
    return [
        theirs / row["tuning"]["wall_s"]
        for row in rows
        if row.get("tuning") and (theirs := (row["entries"].get(METASCHEDULE) or {}).get("tuning_s"))
    ]


def falls_short(rows: Sequence[Row]) -> list[Row]:
    """Cases in which a peer is faster, the worst first, then those far from the roofline."""
    good = [row for row in rows if "error" not in row]
    best = {label_of(row): found[1] for row in good if (found := best_peer(row)) is not None}
    losing = sorted((row for row in good if best.get(label_of(row), 1.0) < 1.0), key=lambda row: best[label_of(row)])
    low = [row for row in good if row not in losing and (share(row, OURS) or 1.0) < LOW_SHARE]
    return [*losing, *sorted(low, key=lambda row: share(row, OURS) or 1.0)]


def panels(rows: Sequence[Row]) -> dict[tuple[int, int], list[Row]]:
    """Rows by (batch, threads), in order."""
    found: dict[tuple[int, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["batch"], row["threads"])):
        found.setdefault((row["batch"], row["threads"]), []).append(row)
    return found


def report(rows: Sequence[Row]) -> str:
    """Everything that is printed last."""
    if not rows:
        return "there is no result yet"
    parts = []
    for (batch, threads), some in panels(rows).items():
        parts += [f"N={batch}, {threads} threads", table(HEADER, [cells(row) for row in some])]
        parts += [*lines(totals(some)), ""]
    for opt_in in OPT_INS:
        if some := [row for row in rows if seconds(row, opt_in.ours) is not None]:
            parts += [opt_in.title, table(OPT_IN_HEADER, [opt_in_cells(row, opt_in) for row in some]), ""]
    short = falls_short(rows)
    if short:
        title = f"Slower than a peer, or below {LOW_SHARE} of the roofline where none is faster"
        parts += [title, table(HEADER, [cells(row) for row in short]), ""]
    if len(panels(rows)) > 1:
        parts += ["All", *lines(totals(rows))]
    return "\n".join(parts).rstrip()


def lines(found: Mapping[str, Any]) -> list[str]:
    def text(value: object) -> str:
        match value:
            case float() | None:
                return number(value)
            case dict():
                return ", ".join(f"{name} {text(part)}" for name, part in value.items())
            case list():
                return ", ".join(map(str, value)) or "none"
        return str(value)

    return [f"{name}: {text(value)}" for name, value in found.items()]

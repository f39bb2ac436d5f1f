"""Tables of files that the scoreboard writes: ratios of times, shares of the roofline, what a search took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.report.markdown import lowest, spread, table, threads_text
from experiments.report.results import Lines, Results, Row, days, revisions
from experiments.scoreboard.bouts import OPT_INS, label_of
from experiments.scoreboard.contest import COMPILED, METASCHEDULE, NUMPY, PEERS, TORCH
from experiments.scoreboard.contestant import CALL, OURS
from experiments.scoreboard.table import (
    FLOOR,
    NEAR,
    PHASES,
    best_peer,
    disturbed,
    opt_in_ratio,
    panels,
    ratios,
    seconds,
    share,
    totals,
)
from experiments.tuning import geomean, microseconds, number

LIBRARIES = (TORCH, NUMPY)
LIMITS = ("arithmetic", "memory")
LOWEST = 12  # so many cases below FLOOR are named


def panel_name(panel: tuple[int, int]) -> str:
    batch, threads = panel
    return f"N={batch}, {threads_text(threads)}"


def best_ratios(rows: Sequence[Row], peers: Sequence[str] = PEERS) -> dict[str, float]:
    """By label, the ratio to the best of `peers`."""
    return {label_of(row): found[1] for row in rows if (found := best_peer(row, peers)) is not None}


def by_family(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """In the order in which they come."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["workload"], []).append(row)
    return found


def compared_to(rows: Sequence[Row], peer: str) -> str:
    """The geometric mean of the ratios to a peer, and of how many cases where those are not all."""
    found = ratios(rows, peer)
    cases = f" ({len(found)} cases)" if 0 < len(found) < len(rows) else ""
    return f"{number(geomean(found))}{cases}"


def against_best(rows: Sequence[Row]) -> tuple[str, str, str]:
    """The geometric mean of the ratios to the best peer, how many are below 1, and the least; that has three digits,
    since 0.996 is slower than a peer."""
    found = {row["case"]: best[1] for row in rows if (best := best_peer(row)) is not None}
    slower = sum(r < 1.0 for r in found.values())
    return f"**{number(geomean(list(found.values())))}**", str(slower), lowest(found, 1, 3) or "-"


# The contest


def headline(*all_results: Results) -> Lines:
    """A row for each machine, batch and number of threads."""
    header = (
        "processor", "batch, threads", "cases", "with MetaSchedule", "the best peer over ours", "slower in", "slowest",
        "disturbed",
    )  # fmt: skip
    rows, sources = [], []
    for results in all_results:
        noisy = set(disturbed(results.rows))
        for panel, some in panels(results.rows).items():
            disturbances = str(sum(label_of(row) in noisy for row in some))
            sizes = str(len(some)), str(len(ratios(some, METASCHEDULE)))
            rows.append((f"`{results.processor}`", panel_name(panel), *sizes, *against_best(some), disturbances))
        sources += ["", results.source(results.rows, (TORCH, NUMPY))]
    return [*table(header, rows), *sources]


def board(results: Results) -> Lines:
    """What peers take over what we take, for each batch and number of threads, and the cases in which we are slower."""
    header = (
        "batch, threads", "cases", "disturbed", "PyTorch", "NumPy", "the better of both", "MetaSchedule",
        "the best peer", "slower in", "slowest", "GFLOP/s of FMAs", "date", "revision",
    )  # fmt: skip
    noisy, lines = set(disturbed(results.rows)), []
    for panel, some in panels(results.rows).items():
        libraries = list(best_ratios(some, LIBRARIES).values())
        lines.append(
            (
                panel_name(panel), str(len(some)), str(sum(label_of(row) in noisy for row in some)),
                compared_to(some, TORCH), compared_to(some, NUMPY), number(geomean(libraries)),
                compared_to(some, METASCHEDULE), *against_best(some),
                number(max(row["rates"]["peak_gflops"] for row in some), 0), days(some), ", ".join(revisions(some)),
            )
        )  # fmt: skip
    return [*table(header, lines), "", behind(results.rows), "", results.source(results.rows, (TORCH, NUMPY))]


def behind(rows: Sequence[Row]) -> str:
    """The cases in which a peer is faster, the worst first, with the ratio and the peer."""
    found = [(label_of(row), *best) for row in rows if (best := best_peer(row)) is not None and best[1] < 1.0]
    named = [f"`{label}` {r:.3f} ({peer})" for label, peer, r in sorted(found, key=lambda item: item[2])]
    return f"Slower than a peer: {', '.join(named)}." if named else "In no case is a peer faster."


def families(results: Results) -> Lines:
    """The ratio to the best peer by operator: the geometric mean, and the least."""
    parts = {panel: by_family(rows) for panel, rows in panels(results.rows).items()}

    def cell(rows: Sequence[Row]) -> str:
        found = list(best_ratios(rows).values())
        return f"{number(geomean(found))} ({min(found):.2f})" if found else "-"

    rows = [
        (f"`{family}`", *(cell(some.get(family, ())) for some in parts.values())) for family in by_family(results.rows)
    ]
    return [*table(("operator", *map(panel_name, parts)), rows), "", results.source(results.rows, (TORCH, NUMPY))]


# The roofline


def shares(rows: Sequence[Row]) -> list[float]:
    return [found for row in rows if (found := share(row, OURS)) is not None]


def roofline(results: Results) -> Lines:
    """The share of the roofline by operator and by what limits: median, least and greatest; the cases below FLOOR."""
    parts = panels(results.rows)
    lines = []
    for family in by_family(results.rows):
        mine = [[row for row in some if row["workload"] == family] for some in parts.values()]
        lines.append((f"`{family}`", *(spread(shares(some)) for some in mine)))
    for limit in LIMITS:
        limited = [[row for row in some if row["roof"]["limit"] == limit] for some in parts.values()]
        lines.append((f"**bound by {limit}**", *(spread(shares(some)) for some in limited)))
    below = [f"- {panel_name(panel)}: {far_from_it(some)}." for panel, some in parts.items()]
    return [*table(("operator", *map(panel_name, parts)), lines), "", *below, "", results.source(results.rows)]


def far_from_it(rows: Sequence[Row]) -> str:
    """How many cases are below FLOOR of the roofline, and the lowest of them."""
    low = {row["case"]: found for row in rows if (found := share(row, OURS)) is not None and found < FLOOR}
    word = "the lowest " if len(low) > LOWEST else ""
    return f"{len(low)} of {len(rows)} below {FLOOR}" + (f", {word}{lowest(low, LOWEST)}" if low else "")


# Searches


def searches(results: Results) -> Lines:
    """Medians over the cases: how long a search takes, how soon it is near its end, what it spends its time on."""
    header = (
        "batch, threads", "seconds", "first verified kernel, s", f"trials to {NEAR:.0%}", f"seconds to {NEAR:.0%}",
        "best of the first round over the last best", "contest over search", "most in",
        *(f"{phase}, share" for phase in PHASES),
    )  # fmt: skip
    rows = []
    for panel, some in panels(results.rows).items():
        found, again = totals(some), timed_again(some)
        rows.append(
            (
                panel_name(panel), number(found["median_wall_s"], 1), number(found["median_first_result_s"], 1),
                number(found["median_trials_to_95"], 1), number(found["median_seconds_to_95"], 1),
                number(found["median_first_round_ratio"]), spread(list(again.values())),
                f"`{max(again, key=again.__getitem__)}`" if again else "-",
                *(number(found["share_of_wall"][p]) for p in PHASES),
            )
        )  # fmt: skip
    said = f"Wrong results among all trials: {totals(results.rows)['wrong_trials']}."
    return [*table(header, rows), "", said, "", results.source(results.rows)]


def timed_again(rows: Sequence[Row]) -> dict[str, float]:
    """By case, the time of the best kernel in the contest over its time in the final comparison of its search."""
    times = {row["case"]: (seconds(row, OURS), (row.get("tuning") or {}).get("best_s")) for row in rows}
    return {case: contest / search for case, (contest, search) in times.items() if contest and search}


# What is asked for beside the plain kernel, and beside PyTorch's eager mode


def opt_ins(results: Results) -> Lines:
    """Each opt-in: microseconds on both sides, the peer's over ours, and what our plain kernel takes over it."""
    header = ("opt-in", "case", "batch, threads", "ours, us", "peer", "its us", "ratio", "our plain kernel over it")
    rows = []
    for opt_in in OPT_INS:
        for row in results.rows:
            ours, plain = seconds(row, opt_in.ours), seconds(row, CALL)
            if ours is None or plain is None:
                continue
            rows.append(
                (
                    opt_in.name, f"`{row['case']}`", panel_name((row["batch"], row["threads"])), microseconds(ours),
                    opt_in.peer, microseconds(seconds(row, opt_in.peer)), number(opt_in_ratio(row, opt_in)),
                    number(plain / ours),
                )
            )  # fmt: skip
    return [*table(header, rows), "", results.source(results.rows, (TORCH,))]


def compiled(results: Results) -> Lines:
    """`torch.compile` beside eager PyTorch."""
    header = ("case", "batch, threads", "ours, us", "eager, us", "compiled, us", "compiled over eager")
    rows = []
    for row in results.rows:
        eager, theirs = seconds(row, TORCH), seconds(row, COMPILED)
        rows.append(
            (
                f"`{row['case']}`", panel_name((row["batch"], row["threads"])), microseconds(seconds(row, CALL)),
                microseconds(eager), microseconds(theirs), number(theirs / eager if theirs and eager else None),
            )
        )  # fmt: skip
    return [*table(header, rows), "", results.source(results.rows, (TORCH,))]


# Products


def products(results: Results, scoreboard: Results) -> Lines:
    """Shares of the peak of plain products M x N x K; the last columns are the scoreboard's of the same sizes."""
    parts = {threads: rows for (_, threads), rows in panels(results.rows).items()}
    again = {
        (size_of(row["args"]), row["threads"]): row
        for row in scoreboard.rows
        if row["workload"] == "gmm" and row["args"]["B"] == 1
    }
    columns = {"of the peak": of_peak, "of a loop of FMAs": of_loop, "NumPy, of the peak": numpy_of_peak}
    header = ["M x N x K", *(f"{name}, {threads_text(t)}" for name in columns for t in parts)]
    header += [f"in the scoreboard, {threads_text(t)}" for t in parts]
    by_size = {threads: {size_of(row["args"]): row for row in rows} for threads, rows in parts.items()}
    sizes = sorted({size for rows in by_size.values() for size in rows}, key=lambda s: (len(set(s)), s))
    lines = []
    for size in sizes:
        cells = [number(figure(by_size[t].get(size))) for figure in columns.values() for t in parts]
        cells += [number(of_peak(again.get((size, t)))) for t in parts]
        lines.append((" x ".join(map(str, size)), *cells))
    sources = results.source(results.rows, (NUMPY,)), "", scoreboard.source(list(again.values()))
    return [*table(header, lines), "", *sources]


def size_of(args: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(args[name] for name in "MNK")


def of_peak(row: Row | None) -> float | None:
    return share(row, OURS) if row else None


def numpy_of_peak(row: Row | None) -> float | None:
    return share(row, NUMPY) if row else None


def of_loop(row: Row | None) -> float | None:
    """Of what a loop of nothing but multiply-adds had in the same rounds, by the median."""
    if row is None or (time := seconds(row, OURS)) is None or not row["rates"].get("fma_gflops"):
        return None
    return float(row["flops"] / time / (1e9 * row["rates"]["fma_gflops"]))

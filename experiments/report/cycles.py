"""Tables of counted cycles, and of TVM's MetaSchedule by time and by cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.cycles import over_metaschedule, over_torch
from experiments.report.contests import by_family, panel_name
from experiments.report.markdown import lowest, spread, table
from experiments.report.results import Lines, Results, Row
from experiments.scoreboard.contest import METASCHEDULE, TORCH
from experiments.scoreboard.table import FLOOR, panels, ratio, share, tuning_ratios
from experiments.tuning import geomean, median, number

# Operators that are alike in what limits them.
GROUPS = {
    "convolutions and products": ("c1d", "c2d", "c3d", "gmm", "grp", "dil", "t2d", "cap", "cbr"),
    "depthwise convolutions": ("dep",),
    "norms and softmax": ("nrm", "sfm"),
    "attention": ("tbg", "tbs"),
}


def with_family(results: Results) -> list[Row]:
    return [{"workload": row["case"].partition(":")[0], **row} for row in results.rows]


def summed_up(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    """What PyTorch takes over ours, and our share of a loop of multiply-adds."""
    found = {row["case"]: over for row in rows if (over := over_torch(row)) is not None}
    shares = [row["share"] for row in rows]
    return name, str(len(rows)), number(geomean(list(found.values()))), lowest(found, 1) or "-", spread(shares)


def by_operator(results: Results) -> Lines:
    """Cycles by operator and group; below the cases far from a loop of multiply-adds."""
    rows = with_family(results)
    lines = [summed_up(f"`{family}`", some) for family, some in by_family(rows).items()]
    for name, families in GROUPS.items():
        if some := [row for row in rows if row["workload"] in families]:
            lines.append(summed_up(f"**{name}**", some))
    lines.append(summed_up("**all**", rows))
    dense = [row for row in rows if row["workload"] in GROUPS["convolutions and products"]]
    low = {row["case"]: row["share"] for row in dense if row["share"] < FLOOR}
    named = f": {lowest(low, digits=3)}" if low else ""
    said = f"Of {len(dense)} convolutions and products {len(low)} are below {FLOOR} of the loop{named}."
    loop = f"The loop does {number(results.content['flops_a_cycle'], 1)} operations a cycle."
    header = ("operator", "cases", "PyTorch's cycles over ours", "least", "of a loop of FMAs")
    return [*table(header, lines), "", f"{said} {loop}", "", results.source(rows, (TORCH,))]


# MetaSchedule


@dataclass(frozen=True)
class Side:
    """MetaSchedule on one machine: what it takes over ours and its share of the machine's limit, by case; its tuning
    time over ours."""

    title: str
    ratios: dict[str, float]
    shares: dict[str, float]
    tuning: list[float]


def timed(results: Results) -> list[Side]:
    """By time, a side for each batch and number of threads at which it took part."""
    sides = []
    for panel, rows in panels(results.rows).items():
        found = {row["case"]: over for row in rows if (over := ratio(row, METASCHEDULE)) is not None}
        parts = {row["case"]: part for row in rows if (part := share(row, METASCHEDULE)) is not None}
        title = f"`{results.processor}`, {panel_name(panel)}"
        sides += [Side(title, found, parts, tuning_ratios(rows))] if found else []
    return sides


def counted(results: Results) -> Side:
    """By cycles; the limit is a loop of multiply-adds."""
    rows = [row for row in results.rows if over_metaschedule(row) is not None]
    rate = results.content["flops_a_cycle"]
    return Side(
        f"`{results.processor}`, cycles",
        {row["case"]: over for row in rows if (over := over_metaschedule(row)) is not None},
        {row["case"]: row["flops"] / row[METASCHEDULE]["cycles"] / rate for row in rows},
        [row[METASCHEDULE]["tuning_s"] / row["tuning_s"] for row in rows],
    )


def metaschedule(scoreboard: Results, other: Results, cycles: Results) -> Lines:
    """A row for each case, ordered by the first machine's ratio, and what they come to."""
    sides = [*timed(scoreboard), *timed(other), counted(cycles)]
    cases = list(dict.fromkeys(case for side in sides for case in sorted(side.ratios, key=lambda c: side.ratios[c])))
    common = [case for case in cases if all(case in side.ratios for side in sides)]

    def line(name: str, figures: Sequence[tuple[float | None, float | None]]) -> tuple[str, ...]:
        return (name, *(number(figure) for pair in figures for figure in pair))

    rows = [line(f"`{case}`", [(s.ratios.get(case), s.shares.get(case)) for s in sides]) for case in cases]
    means = [(geomean(list(s.ratios.values())), geomean(list(s.shares.values()))) for s in sides]
    medians = [(median(list(s.ratios.values())), median(list(s.shares.values()))) for s in sides]
    alike = [(geomean([s.ratios[c] for c in common]), geomean([s.shares[c] for c in common])) for s in sides]
    rows += [line("**geometric mean**", means), line("**median**", medians)]
    rows += [
        line("**geometric mean of kernels at the limit**", [(1.0 / part if part else None, 1.0) for _, part in means])
    ]
    rows += [line(f"**geometric mean of the {len(common)} cases of all**", alike)]
    rows += [("**its tuning time over ours**", *(cell for s in sides for cell in (spread(s.tuning, 0), "")))]
    header = ["case", *(cell for side in sides for cell in (side.title, "its share of the limit"))]
    sources = [
        scoreboard.source([row for row in scoreboard.rows if ratio(row, METASCHEDULE) is not None]),
        other.source([row for row in other.rows if ratio(row, METASCHEDULE) is not None]),
        cycles.source(cycles.rows),
    ]
    return [*table(header, rows), *(line for source in sources for line in ("", source))]

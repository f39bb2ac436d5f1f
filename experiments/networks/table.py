"""What a row of a network says beside the others: ratios, and what our time is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.networks.contestants import OURS, OWN, PEERS, TUNED, WINOGRAD
from experiments.scoreboard.contest import METASCHEDULE
from experiments.tuning import geomean, number

Row = Mapping[str, Any]
HEADER = (
    "network", "ours, ms", *PEERS, "best peer", "of the best kernels", "of the bound", "load, s", "arena", "kernels",
)  # fmt: skip


def ratio(row: Row, peer: str, own: str = OURS) -> float | None:
    """The peer's time over that of one of ours, None where one of them has none."""
    ours, theirs = (row.get("entries", {}).get(name, {}).get("seconds") for name in (own, peer))
    return theirs / ours if ours and theirs else None


def best_peer(row: Row, own: str = OURS) -> tuple[str, float] | None:
    """The fastest of the peers and its ratio."""
    found = {peer: r for peer in PEERS if (r := ratio(row, peer, own)) is not None}
    return min(found.items(), key=lambda item: item[1]) if found else None


def present(row: Row) -> tuple[str, ...]:
    """Those of ours that took part; one at least, for the reason why it did not."""
    return tuple(name for name in OWN if name in row.get("entries", {})) or (OURS,)


def case_of(row: Row, own: str) -> str:
    """The network, and what was done for it."""
    tuned = f"tuned {row.get('tuning_s', 0):.0f} s"
    words = {OURS: "", TUNED: f", {tuned}", WINOGRAD: f", {tuned}, Winograd"}
    return f"`{row['case']}`{words[own]}"


def cells(row: Row, own: str = OURS) -> list[str]:
    """A line of the table. Shares are of the time in the network: what kernels alone take, and what the bound is."""
    entries, alone = row.get("entries", {}), row.get("alone", {})
    ours, best = entries.get(own, {}), best_peer(row, own)
    inside = alone.get("network_s") if alone.get("of", OURS) == own else None
    shares = [alone[name] / inside if inside and name in alone else None for name in ("kernels_s", "bound_s")]
    return [
        case_of(row, own),
        number(1e3 * ours["seconds"], 3) if "seconds" in ours else "-",
        *(number(ratio(row, peer, own)) for peer in PEERS),
        f"**{best[1]:.2f}**" if best else "-",
        *(number(share) for share in shares),
        f"{number(ours.get('load_s'), 1)}, {number(ours.get('warm_load_s'), 1)}" if own == OURS else "-",
        number(ours["arena_bytes"] / ours["bound_bytes"]) if ours.get("bound_bytes") else "-",
        f"{ours['kernels']} of {ours['tasks']} tasks" if "tasks" in ours else "-",
    ]


def failures(rows: Sequence[Row]) -> list[str]:
    """Who took no part and why."""
    return [
        f"`{row['case']}`, {name}: {entry['reason']}"
        for row in rows
        for name, entry in row.get("entries", {}).items()
        if "reason" in entry
    ]


def losses(rows: Sequence[Row]) -> str:
    """Where a peer is faster, the slowest first."""
    found = [
        (best[1], case_of(row, own), best[0])
        for row in rows
        for own in present(row)
        if (best := best_peer(row, own)) and best[1] < 1
    ]
    return ", ".join(f"{case} {r:.3f} ({peer})" for r, case, peer in sorted(found))


def searches(rows: Sequence[Row]) -> list[str]:
    """What TVM's MetaSchedule reached and ours beside it, a sentence for each network it was tuned for."""
    found = []
    for row in rows:
        peer = row.get("entries", {}).get(METASCHEDULE, {})
        if "seconds" not in peer:
            continue
        beside = [
            f"{number(ratio(row, METASCHEDULE, own))} of ours after {number(row['entries'][own].get('load_s'), 1)} s"
            f" ({'as loaded' if own == OURS else own})"
            for own in present(row)
            if ratio(row, METASCHEDULE, own)
        ]
        said = f"{number(1e3 * peer['seconds'], 3)} ms after {peer['trials']} trials in {number(peer['tuning_s'], 0)} s"
        found.append(f"`{row['case']}`: TVM's MetaSchedule {said}, {', '.join(beside)}.")
    return found


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """Means of the ratios, over the rows that have them."""
    best = [found[1] for row in rows if (found := best_peer(row))]
    means = {peer: geomean([r for row in rows if (r := ratio(row, peer)) is not None]) for peer in PEERS}
    return {"networks": len(rows), "best_peer": geomean(best), "slower": sum(r < 1 for r in best), **means}

"""Contests on a GPU, as the script sees them: a peer at which the process is lost is left out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.arena import Arena, Lost
from experiments.tuning import Case


def contest_command(target: str) -> list[str]:
    return [sys.executable, "-m", "experiments.gpu.contest", str(os.getpid()), target]


def hold_contest(
    arena: Arena,
    case: Case,
    database: Path,
    names: Sequence[str],
    *,
    rounds: int,
    sample_s: float,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """The row of a case. A peer at which the process is lost is left out of another try; its entry says why."""
    give_up, left_out = clock() + deadline_s, dict[str, Any]()
    while True:
        present = [name for name in names if name not in left_out]
        request = {
            "case": case.label,
            "db": str(database),
            "peers": present,
            "rounds": rounds,
            "sample_s": sample_s,
        }
        # What is slow to start is the last of `present`: it may take half of the time, and a try without it the rest.
        seconds = give_up - clock()
        try:
            row = arena.ask(request, seconds / 2 if present else seconds)
        except Lost as lost:
            if lost.stage not in present or clock() >= give_up:
                return {"error": str(lost)}
            left_out[lost.stage] = {"right": False, "reason": str(lost)}
            continue
        row.setdefault("peers", {})
        row["peers"] = {name: (left_out | row["peers"]).get(name) for name in names if name in left_out | row["peers"]}
        return row

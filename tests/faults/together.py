"""Tuners and readers that share one database file."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from autosched.errors import StoreError
from autosched.store import Database
from tests.faults.place import Place, Tally, check_records

STALL_S = 1.0  # what a call may wait, beyond its own work


def pairs(place: Place, n: int, rng: random.Random) -> Tally:
    """Two tuners of one task at a time, while this process exports, checks and packs their file."""
    tally = Tally("F15", "two tuners, one task, one file; F16: export, check and VACUUM beside them")
    for case in place.cases(n):
        path = place.database(f"F15-{case}")
        places = [Place.make(place.directory / f"{case}-{k}") for k in range(2)]
        children = [p.start("tests.faults.child", path, 16, rng.randrange(1000)) for p in places]
        faults: list[str] = []
        give_up = time.monotonic() + 120.0
        while any(c.poll() is None for c in children) and time.monotonic() < give_up:
            faults += _calls(path, place.directory / "out.jsonl", tally) if path.exists() else []
            time.sleep(0.05)
        for p, child in zip(places, children, strict=True):
            code = p.wait(child, 1.0)
            faults += [] if code == 0 else [f"exit code {code}: {p.errors.read_text()[-400:]}"]
            faults += [*check_records(path, p.acknowledged()), *p.orphans(), *p.litter()]
            tally.facts["rows acknowledged"] += p.acknowledged().total()
        tally.case(f"case {case}", faults)
    return tally


def _calls(path: Path, out: Path, tally: Tally) -> list[str]:
    """Each call once; one that failed, or stood still for longer than it worked and STALL_S more, is a fault."""
    faults = []
    for name in ("check", "export", "VACUUM"):
        begun, worked = time.monotonic(), time.process_time()
        try:
            if name == "VACUUM":
                with closing(sqlite3.connect(path, timeout=30.0)) as raw:
                    raw.execute("VACUUM")
            else:
                with Database(path, create=False) as database:
                    _ = database.check() if name == "check" else database.export_jsonl(out)
        except StoreError as error:
            faults += [] if "no records" in str(error) else [f"{name}: {error}"]  # a tuner is about to make tables
        except sqlite3.Error as error:
            faults.append(f"{name}: {error}")
        stall = time.monotonic() - begun - (time.process_time() - worked)
        faults += [f"{name} stood still for {stall:.2f} s"] if stall > STALL_S else []
        tally.facts["calls"] += 1
    return faults

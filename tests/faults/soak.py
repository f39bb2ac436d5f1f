"""One process that tunes small workloads over and over while things go wrong, and what it holds on to meanwhile.

python -m tests.faults.soak --minutes 1 --seed 0 [--rate 0.01]

After a trial, with probability `rate`, one of the workers is killed; before a search, with ten times that, files may
not grow beyond a limit, as on a full disk. Bounds: file descriptors, threads and scratch directories as after the
first searches, no zombie, a sound database, and in the second half of the time no more than 16 MB of growth, or 1 MB
an hour where that is more.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autosched import api
from autosched.errors import AutoschedError
from autosched.store import Database
from autosched.tuner.callbacks import Event
from autosched.tuner.result import Result

TASKS = (("matmul", (32, 32, 32)), ("matmul", (64, 48, 32)), ("softmax", (16, 64)))
WARM = 4  # searches until everything has been imported and made once
GROWTH_MB, GROWTH_MB_PER_H = 16.0, 1.0


@dataclass(frozen=True)
class Held:
    """What a process holds on to."""

    at_s: float
    rss_mb: float
    descriptors: int
    threads: int
    zombies: int
    files: int

    @classmethod
    def now(cls, home: Path) -> Held:
        states = [state for _, state in children()]
        files = sum(1 for name in ("cache/autosched/runs", "tmp") for _ in (home / name).glob("*"))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        rss_mb = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        n_descriptors = len(os.listdir("/proc/self/fd"))
        return cls(time.monotonic(), rss_mb, n_descriptors, threading.active_count(), states.count("Z"), files)


def children() -> list[tuple[int, str]]:
    """(number, state) of this process's own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if int(parent) == os.getpid():
                    found.append((int(entry.name), state))
    return found


@dataclass
class Saboteur:
    rng: random.Random
    rate: float
    kills: int = 0

    def on_start(self, event: Event) -> None:
        """Workers are starting."""

    def on_round(self, event: Event) -> None:
        """Only trials count."""

    def on_result(self, event: Event) -> None:
        living = [number for number, state in children() if state != "Z"]
        if living and self.rng.random() < self.rate:
            os.kill(self.rng.choice(living), signal.SIGKILL)
            self.kills += 1

    def on_finish(self, result: Result) -> None:
        """A search that got here survived."""


def broken(helds: list[Held]) -> list[str]:
    """The sentences on what is held on to."""
    first, half, last = helds[0], helds[len(helds) // 2], helds[-1]
    growth = last.rss_mb - half.rss_mb
    faults = []
    if growth > max(GROWTH_MB, GROWTH_MB_PER_H * (last.at_s - half.at_s) / 3600):
        faults.append(f"the second half took {growth:.1f} MB more")
    for name in ("descriptors", "threads", "files"):
        if getattr(last, name) > getattr(first, name):
            faults.append(f"{name} grew from {getattr(first, name)} to {getattr(last, name)}")
    if last.zombies:
        faults.append(f"{last.zombies} zombies")
    return faults


def soak(home: Path, seconds: float, rng: random.Random, rate: float) -> list[str]:
    saboteur, path = Saboteur(rng, rate), home / "records.db"
    helds: list[Held] = []
    searches, refused, faults = 0, 0, list[str]()
    begin = time.monotonic()
    while time.monotonic() < begin + seconds or len(helds) < 2:
        name, shape = rng.choice(TASKS)
        is_full = path.exists() and rng.random() < 10 * rate
        limit = path.stat().st_size + rng.randrange(50_000) if is_full else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            api.tune(name, shape=shape, trials=8, seed=rng.randrange(1000), db=path, callbacks=(saboteur,))
        except (AutoschedError, OSError) as error:
            refused += 1
            faults += [] if is_full else [f"{type(error).__name__}: {error}"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        searches += 1
        if searches >= WARM:
            helds.append(Held.now(home))
    with Database(path) as database:
        health = database.check()
    faults += broken(helds) + ([] if health.ok else [str(health)])
    minutes = (time.monotonic() - begin) / 60
    print(f"F26   soak: {minutes:.1f} min, {searches} searches, {health.n_records} records, {saboteur.kills} workers ")
    print(f"      killed, {refused} searches ended for lack of room; after {WARM} searches {helds[0]}, now {helds[-1]}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.01, help="probability of a fault after a trial")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as root:
        home = Path(root)
        (home / "tmp").mkdir()
        os.environ |= {"XDG_CACHE_HOME": str(home / "cache"), "TMPDIR": str(home / "tmp")}
        tempfile.tempdir = str(home / "tmp")
        faults = soak(home, 60 * options.minutes, random.Random(options.seed), options.rate)
    print(*(f"  BROKEN {fault}" for fault in faults), f"{len(faults)} bounds broken", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""Where a fault run takes place: a directory of its own for records, caches and temporary files, and the tuners in it.

Workers and compilers inherit the place's XDG_CACHE_HOME through every scrubbed environment. That is how the processes
of a place are known, whatever session or parent they have.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from autosched.store import Database
from tests.faults.child import SHAPE, WORKLOAD

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0  # of every child
ORPHAN_S = 2.0  # all processes of a killed tuner are gone by then
AGE_S = 120.0  # a scratch directory this old without an owner is swept
WORKER = "autosched.measure.worker"
Row = tuple[str, object]  # of a sketch: its time, or its class of failure


@dataclass
class Tally:
    """One line of the report: what was done, and the sentences on what went wrong."""

    family: str
    title: str
    cases: int = 0
    facts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def case(self, name: str, faults: Sequence[str]) -> None:
        self.cases += 1
        self.broken += [f"{name}: {fault}" for fault in faults]

    def line(self) -> str:
        facts = "".join(f", {n} {what}" for what, n in self.facts.items())
        return f"{self.family:5} {self.title}: {self.cases} cases{facts}, {len(self.broken)} bounds broken"


@dataclass(frozen=True)
class Place:
    """`until`: no case begins after this time, on `time.monotonic`."""

    directory: Path
    until: float = float("inf")

    @classmethod
    def make(cls, directory: Path, until: float = float("inf")) -> Place:
        for name in ("cache", "tmp", "records"):
            (directory / name).mkdir(parents=True)
        return cls(directory, until)

    def cases(self, n: int) -> Iterator[int]:
        return takewhile(lambda _: time.monotonic() < self.until, range(n))

    def database(self, name: str) -> Path:
        return self.directory / "records" / f"{name}.db"

    # Children

    def start(self, module: str, *words: object) -> subprocess.Popen[str]:
        """`python -m module words...` in a session of its own; both outputs are kept in files, so none can block."""
        environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "TMPDIR": str(self.directory / "tmp"),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", module, *map(str, words)]
        with self.output.open("w") as out, self.errors.open("w") as err:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
                text=True,
            )

    @property
    def output(self) -> Path:
        """Of the child that was started last."""
        return self.directory / "stdout"

    @property
    def errors(self) -> Path:
        return self.directory / "stderr"

    def wait(self, child: subprocess.Popen[str], seconds: float = DEADLINE_S) -> int | None:
        """The exit code; None, and the end of all processes of the place, if it takes longer."""
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill_all()
            child.wait()
            return None

    def wait_for_row(self, child: subprocess.Popen[str]) -> None:
        """Until the child has promised a row or has ended."""
        give_up = time.monotonic() + DEADLINE_S
        while not self.output.stat().st_size and child.poll() is None and time.monotonic() < give_up:
            time.sleep(0.005)

    def tune(self, path: Path, trials: int, seed: int, *words: str) -> subprocess.Popen[str]:
        """The command line's tuner."""
        shape = ",".join(map(str, SHAPE))
        fixed = ("--shape", shape, "--trials", trials, "--seed", seed, "--db", path, "--json")
        return self.start("autosched", "tune", WORKLOAD, *fixed, *words)

    def answer(self) -> dict[str, Any]:
        """The JSON object that the last child printed, {} if there is none."""
        with suppress(ValueError, IndexError):
            found = json.loads(self.output.read_text().splitlines()[-1])
            return found if isinstance(found, dict) else {}
        return {}

    def acknowledged(self) -> Counter[Row]:
        """The rows that the last child promised; a line that was cut short is no promise."""
        lines = self.output.read_text().splitlines(keepends=True)
        return Counter((s, x) for s, x in (json.loads(line) for line in lines if line.endswith("\n")))

    # Processes

    def processes(self) -> dict[int, str]:
        """Command lines of the living processes of this place, by number."""
        mark = f"XDG_CACHE_HOME={self.directory / 'cache'}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        return found

    def workers(self) -> list[int]:
        return [number for number, command in self.processes().items() if WORKER in command]

    def kill_all(self) -> int:
        """SIGKILL to all processes of this place; how many there were."""
        numbers = list(self.processes())
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return len(numbers)

    def orphans(self) -> list[str]:
        """What still runs ORPHAN_S after a tuner ended; it is killed."""
        give_up = time.monotonic() + ORPHAN_S
        while (left := self.processes()) and time.monotonic() < give_up:
            time.sleep(0.02)
        self.kill_all()
        return [f"process {number} is left: {command}" for number, command in left.items()]

    # What is left behind

    def age_scratch(self) -> None:
        """Lets what a killed tuner left be old enough for the next one to remove it."""
        then = time.time() - AGE_S
        for path in self._scratch():
            os.utime(path, (then, then))

    def litter(self) -> list[str]:
        """Scratch directories and temporary files; they are none of the next case's, so they are forgotten."""
        found = [*self._scratch(), *(self.directory / "tmp").iterdir()]
        self.age_scratch()
        for path in (self.directory / "tmp").iterdir():
            path.rename(self.directory / f"forgotten-{time.monotonic_ns()}")
        return [f"{path} is left" for path in found]

    def _scratch(self) -> Iterator[Path]:
        runs = self.directory / "cache" / "autosched" / "runs"
        return runs.iterdir() if runs.exists() else iter(())


# Records


def rows(path: Path) -> Counter[Row]:
    """All outcomes, read without the code under test."""
    if not path.exists():
        return Counter()
    with closing(sqlite3.connect(path, timeout=30.0)) as raw:
        if not raw.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return Counter()
        timed = raw.execute("SELECT sketch, seconds FROM measurements m JOIN candidates c ON c.id = m.candidate")
        failed = raw.execute("SELECT sketch, class FROM failures f JOIN candidates c ON c.id = f.candidate")
        return Counter([*timed, *failed])


def check_records(path: Path, promised: Counter[Row]) -> list[str]:
    """What is wrong: promised rows that are not there, a file that is not sound."""
    lost = promised - rows(path)
    faults = [f"{lost.total()} acknowledged rows are lost: {dict(lost)}"] if lost else []
    if rows(path):
        with Database(path, create=False) as database:
            health = database.check()
        faults += [] if health.ok else [f"`db check`: {health}"]
    return faults


def check_resume(place: Place, path: Path, seed: int, promised: Counter[Row]) -> list[str]:
    """Goes on with a search that was cut short, and looks at what it ends with and leaves behind."""
    place.age_scratch()
    known = rows(path)
    n_known = sum(n for (_, outcome), n in known.items() if outcome != "build_error")
    code = place.wait(place.tune(path, max(8, n_known + 4), seed, "--resume"))
    if code != 0:
        return [f"resume: exit code {code}: {place.errors.read_text()[-400:]}"]
    answer = place.answer()
    faults = [] if answer.get("verified") and answer.get("best_s", 0) > 0 else [f"resume: no verified best: {answer}"]
    if answer.get("resumed") != n_known:
        faults.append(f"resume: {answer.get('resumed')} of {n_known} rows were taken over")
    return [*faults, *check_records(path, promised), *place.orphans(), *place.litter()]

"""One program at one size, measured in this process: the row is the JSON object on the last line.

python -m experiments.pipelines.measure PROGRAM ROWS COLUMNS THREADS TRIALS
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import autosched as at
from autosched.cli.bench import time_interleaved
from autosched.errors import AutoschedError
from experiments.pipelines import opencv, schedules
from experiments.pipelines.contest import Array, Contest
from experiments.pipelines.entries import AUTOSCHEDULERS, BY_HAND, OPENCV, TUNED, UNTUNED

PROBE_S = 120.0  # for the search of a schedule, its compilation and a first call
CHOICE_RUNS = 3  # calls of each schedule by hand, of which the fastest enters the comparison
Entry = dict[str, Any]


@dataclass(frozen=True)
class Participant:
    """`make` takes the array of the result and returns what fills it; `failures`: what it raises where it cannot.

    `is_rounded`: its weights are rounded otherwise, so that integers may be one apart.
    """

    name: str
    make: Callable[[Array], Callable[[], object]]
    failures: tuple[type[Exception], ...]
    is_rounded: bool = False


def participants(contest: Contest, threads: int, trials: int, folder: Path) -> list[Participant]:
    """Ours, then the peers that are installed."""
    untuned, tuned = (partial(make, contest, threads, folder) for make in (_untuned, partial(_tuned, trials)))
    found = [Participant(UNTUNED, untuned, (AutoschedError,)), Participant(TUNED, tuned, (AutoschedError,))]
    return [*found[: 2 if trials else 1], *_halides(contest, threads), *_opencvs(contest, threads)]


def _halides(contest: Contest, threads: int) -> list[Participant]:
    os.environ["HL_NUM_THREADS"] = str(threads)
    try:
        hl = schedules.load_autoschedulers()
    except ImportError:
        return []
    given = (contest.name, contest.size, contest.arrays)
    hand = schedules.hand_schedules(contest.name, contest.size[0])
    makers: dict[str, Callable[[Array], Callable[[], object]]] = {
        **{name: partial(_searched, hl, name, threads, *given) for name in AUTOSCHEDULERS},
        **{f"{BY_HAND} {name}": partial(schedules.by_hand, hl, made, *given) for name, made in hand.items()},
    }
    return [Participant(name, make, (hl.HalideError, RuntimeError)) for name, make in makers.items()]


def _searched(
    hl: Any, scheduler: str, threads: int, name: str, size: tuple[int, int], arrays: Sequence[Array], out: Array
) -> Callable[[], object]:
    """Raises RuntimeError for a search that takes longer than PROBE_S, or ends the process that tries it."""
    numbers = map(str, (*size, threads))
    command = [sys.executable, "-m", "experiments.pipelines.measure", "--probe", scheduler, name, *numbers]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no result within {PROBE_S:.0f} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no schedule"])[-1])
    return schedules.automatic(hl, scheduler, threads, name, size, arrays, out)


def _probe(scheduler: str, name: str, size: tuple[int, int], threads: int) -> int:
    """Searches for a schedule and says on stderr why there is none."""
    hl, contest = schedules.load_autoschedulers(), Contest.of(name, size)
    try:
        schedules.automatic(hl, scheduler, threads, name, size, contest.arrays, contest.out())()
    except (hl.HalideError, RuntimeError) as error:
        print(str(error).partition("\n")[0], file=sys.stderr)
        return 1
    return 0


def _opencvs(contest: Contest, threads: int) -> list[Participant]:
    function = opencv.function_of(contest.name, threads)
    if function is None:
        return []
    return [Participant(OPENCV, partial(_opencv, function, contest), (RuntimeError,), is_rounded=True)]


def _untuned(contest: Contest, threads: int, folder: Path, out: Array) -> Callable[[], object]:
    kernel = at.compile(contest.workload, threads=threads, db=folder / "untuned.db")
    return lambda: kernel(*contest.arrays, out=out)


def _tuned(trials: int, contest: Contest, threads: int, folder: Path, out: Array) -> Callable[[], object]:
    kernel = at.tune(contest.workload, threads=threads, trials=trials, db=folder / "tuned.db").compile()
    return lambda: kernel(*contest.arrays, out=out)


def _opencv(function: opencv.Function, contest: Contest, out: Array) -> Callable[[], object]:
    return lambda: function(contest.arrays, out)


def prepared(contest: Contest, participant: Participant) -> tuple[Entry, Callable[[], object] | None]:
    """What is known of a participant before it is timed, and its call where its result is right."""
    out, start = contest.out(), time.perf_counter()
    try:
        run = participant.make(out)
        run()
    except participant.failures as error:
        return {"reason": str(error).partition("\n")[0]}, None
    entry: Entry = {"making_s": round(time.perf_counter() - start, 2)}
    if not contest.is_right(out, participant.is_rounded):
        return {**entry, "reason": "wrong result"}, None
    return entry, run


def row_of(contest: Contest, found: Sequence[Participant], rounds: int) -> dict[str, Any]:
    """The entries of all participants, with the seconds of those that are right; of the schedules by hand the fastest
    is kept."""
    entries, runs = dict[str, Entry](), dict[str, Callable[[], object]]()
    for participant in found:
        entries[participant.name], run = prepared(contest, participant)
        if run is not None:
            runs[participant.name] = run
        print(participant.name, entries[participant.name], file=sys.stderr, flush=True)
    hand = {name: run for name, run in runs.items() if name.startswith(BY_HAND)}
    best = min(hand, key=lambda name: _quickest(hand[name]), default=None)
    runs = {name: run for name, run in runs.items() if name not in hand or name == best}
    for name, seconds in time_interleaved(runs, rounds).items():
        entries[name]["seconds"] = seconds
    by_hand = {name: entries.pop(name) for name in list(entries) if name.startswith(BY_HAND)}
    if best is not None:
        entries[BY_HAND] = {**by_hand[best], "schedule": best.removeprefix(BY_HAND).strip()}
    elif by_hand:
        entries[BY_HAND] = next(iter(by_hand.values()))
    return {"entries": entries, "least_bytes": contest.least_bytes}


def _quickest(run: Callable[[], object]) -> float:
    times = []
    for _ in range(CHOICE_RUNS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main(argv: Sequence[str]) -> int:
    if argv[0] == "--probe":
        _, scheduler, name, *numbers = argv
        rows, columns, threads = map(int, numbers)
        return _probe(scheduler, name, (rows, columns), threads)
    name, (rows, columns, threads, trials, rounds) = argv[0], map(int, argv[1:])
    contest = Contest.of(name, (rows, columns))
    with tempfile.TemporaryDirectory(prefix="autosched-pipelines-") as folder:
        row: Mapping[str, Any] = row_of(contest, participants(contest, threads, trials, Path(folder)), rounds)
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

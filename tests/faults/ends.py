"""Tuners that are cut short: killed alone, killed with all their workers, out of disk, or told to end by a signal."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from tests.faults.place import Place, Tally, check_records, check_resume, rows

Family: TypeAlias = Callable[[Place, int, random.Random], Tally]

MOMENT_S = (0.1, 5.0)  # into a run
WRITING_S = 2.0  # the same, from the first row on
TRIALS = 64  # more than fit into the longest of these moments
POLITE_S = 3.0  # from a signal to the end
BEFORE = 3.0  # seconds in which a stopped worker is looked for
SIGNALS = ((signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGHUP, 1))


def kills(place: Place, n: int, rng: random.Random) -> Tally:
    return _killed(place, n, rng, Tally("F1", "kill -9 of the tuner, then --resume"), everybody=False)


def groups(place: Place, n: int, rng: random.Random) -> Tally:
    return _killed(place, n, rng, Tally("F2", "kill -9 of the tuner and all its workers"), everybody=True)


def _killed(place: Place, n: int, rng: random.Random, tally: Tally, *, everybody: bool) -> Tally:
    for case in place.cases(n):
        path, seed = place.database(f"{tally.family}-{case}"), rng.randrange(1000)
        child = place.start("tests.faults.child", path, TRIALS, seed)
        moment = rng.uniform(*MOMENT_S)
        if case % 2 == 0:  # half of them while rows are written, however long the start takes here
            place.wait_for_row(child)
            moment *= WRITING_S / MOMENT_S[1]
        time.sleep(moment)
        if everybody:
            tally.facts["processes killed"] += place.kill_all()
        child.kill()
        child.wait()
        promised = place.acknowledged()
        tally.facts["rows acknowledged"] += promised.total()
        tally.facts["killed before the first row"] += not promised
        faults = [*place.orphans(), *check_records(path, promised), *check_resume(place, path, seed, promised)]
        tally.case(f"case {case}, {moment:.2f} s", faults)
    return tally


def stops(place: Place, n: int, rng: random.Random) -> Tally:
    """A worker that stands still is given up at the second look, after some 10 s."""
    tally = Tally("F4", "SIGSTOP of a worker")
    for case in place.cases(n):
        path = place.database(f"F4-{case}")
        child = place.start("tests.faults.child", path, 16, case)
        time.sleep(rng.uniform(*MOMENT_S) * BEFORE / MOMENT_S[1])
        workers = place.workers()
        if workers:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGSTOP)
        tally.facts["workers stopped"] += bool(workers)
        code = place.wait(child)
        faults = [] if code == 0 else [f"exit code {code}: {place.errors.read_text()[-400:]}"]
        promised = place.acknowledged()
        faults += [*check_records(path, promised), *place.orphans(), *place.litter()]
        tally.case(f"case {case}", faults)
    return tally


def disk(place: Place, n: int, rng: random.Random) -> Tally:
    """No file may grow beyond a limit, as on a full disk; what was acknowledged before stays."""
    tally = Tally("F11", "no room in a file, then --resume")
    for case in place.cases(n):
        path, limit = place.database(f"F11-{case}"), rng.randrange(4096, 300_000)
        code = place.wait(place.start("tests.faults.child", path, TRIALS, case, limit))
        text, promised = place.errors.read_text(), place.acknowledged()
        faults = [f"at {limit} bytes: {text[-400:]}"] if code is None or "Traceback" in text else []
        tally.facts["rows acknowledged"] += promised.total()
        faults += [*place.orphans(), *check_resume(place, path, case, promised)]
        tally.case(f"case {case}, {limit} bytes", faults)
    return tally


def signals(place: Place, n: int, rng: random.Random) -> Tally:
    """Ctrl-C once and twice, SIGTERM and SIGHUP in turn; one that comes before Python runs our code just ends it."""
    tally = Tally("F19", "Ctrl-C once and twice, SIGTERM, SIGHUP")
    for case in place.cases(n):
        path, (number, times) = place.database(f"F19-{case}"), SIGNALS[case % len(SIGNALS)]
        child = place.tune(path, TRIALS, case)
        time.sleep(moment := rng.uniform(*MOMENT_S))
        begun = time.monotonic()
        for again in range(times):
            time.sleep(rng.uniform(0.0, 0.3) if again else 0.0)
            child.send_signal(number)
        code = place.wait(child, 20.0)
        took, answer, text = time.monotonic() - begun, place.answer(), place.errors.read_text()
        faults = [f"took {took:.1f} s"] if took > POLITE_S else []
        unready = code in (-number, 128 + number) and not path.exists()
        tally.facts["before our code ran"] += unready
        if code not in (0, 130) and not unready:
            faults.append(f"exit code {code}")
        if "Traceback" in text and not unready:
            faults.append(f"a traceback: {text[-300:]}")
        saved = rows(path).total()
        if times == 1 and saved and code == 130 and answer.get("interrupted") is not True and "error" not in answer:
            faults.append(f"{saved} rows but no best: {answer}")
        faults += [*check_records(path, rows(path)), *place.orphans(), *([] if unready else place.litter())]
        tally.case(f"case {case}, {times} x {number.name} after {moment:.2f} s", faults)
    return tally

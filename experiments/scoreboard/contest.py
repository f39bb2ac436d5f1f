"""One case's contest: contestants in processes of their own, checked against each other, timed in turn."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from autosched.cli.bench import THREAD_VARIABLES, TOLERANCE, random_inputs
from autosched.kernel.roofline import compulsory_bytes
from autosched.measure.results import median_interval
from experiments.arena import Lost, ProcessArena
from experiments.metaschedule import MetaSchedule, same_sizes
from experiments.scoreboard.bouts import Bout, OptIn
from experiments.scoreboard.contestant import CALL, MULTIPLY, OPERATIONS, OURS, READ

TORCH, COMPILED, NUMPY, METASCHEDULE = "torch", "torch.compile", "numpy", "metaschedule"
PEERS = (TORCH, COMPILED, NUMPY, METASCHEDULE)
BLOCK_S = 0.05
ROUNDS = 10  # even: each order as often as its reverse
SLOW_ROUNDS = ((1.0, 2), (0.25, 4))  # calls that take longer than so many seconds have so many rounds at most
REST_S = 0.05  # before each block: the threads of other pools go on spinning for a while, on the cores that this needs
LONG_RESTS_S = {METASCHEDULE: 0.5, NUMPY: 0.2}  # after these: OpenBLAS's threads were seen to spin for 100 ms
ENTER_S, TIME_S = 240.0, 120.0  # deadlines

Entry = dict[str, Any]  # {"seconds", "ci", ...}, or {"reason"} for one without a time


class Process(Protocol):
    def ask(self, request: Mapping[str, Any], deadline_s: float) -> dict[str, Any]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Rules:
    """How long a contest goes on, and who takes part."""

    peers: tuple[str, ...] = PEERS
    rounds: int = ROUNDS
    block_s: float = BLOCK_S
    rest_s: float = REST_S
    metaschedule: MetaSchedule | None = None
    opt_ins: tuple[OptIn, ...] = ()


def variables(threads: int) -> dict[str, str]:
    """Environment that gives every library as many threads."""
    return dict.fromkeys((*THREAD_VARIABLES, "TVM_NUM_THREADS"), str(threads))


def contestants(bout: Bout, rules: Rules) -> tuple[str, ...]:
    """Who enters, we first."""
    extra = [name for opt_in in rules.opt_ins if bout.asked(opt_in) for name in (opt_in.ours, opt_in.peer)]
    return tuple(dict.fromkeys((OURS, *rules.peers, *extra)))


@contextmanager
def processes(bout: Bout, rules: Rules, directory: Path) -> Iterator[dict[str, Process]]:
    """A process for each contestant, started when first asked; ours by the name OURS."""
    own = [sys.executable, "-m", "experiments.scoreboard.contestant", str(os.getpid())]
    commands = {name: own for name in contestants(bout, rules) if name != METASCHEDULE}
    if rules.metaschedule is not None:
        commands[METASCHEDULE] = rules.metaschedule.command(bout.case.label, bout.batch, bout.threads)
    found = {
        name: ProcessArena(command, directory / f"{name}.log", variables(bout.threads))
        for name, command in commands.items()
    }
    try:
        for process in found.values():
            process.start()
        yield dict(found)
    finally:
        for process in found.values():
            process.close()


def hold(
    bout: Bout, rules: Rules, directory: Path, database: Path, record_id: int, given: Mapping[str, Process]
) -> tuple[dict[str, Entry], dict[str, float]]:
    """(entries by contestant, rates of the machine). `directory` is for the arrays that the processes exchange.

    Reading memory and multiplying in registers are timed in the same rounds as all contestants: "bandwidth" and
    "fma_gflops" are by the median of their samples, as theirs is, "peak_gflops" the best that there was before and
    after.
    """
    dag, args = bout.built
    arrays = random_inputs([(t.name, t.public_shape, t.dtype) for t in dag.inputs])
    for i, array in enumerate(arrays):
        np.save(directory / f"in{i}.npy", array)
    request = {
        "op": "enter", "directory": str(directory), "workload": bout.case.workload, "args": dict(args),
        "shape": list(args.values()), "threads": bout.threads, "n_inputs": len(arrays), "block_s": rules.block_s,
        "database": str(database), "record_id": record_id,
        "asked": {opt_in.ours: bout.asked(opt_in) for opt_in in rules.opt_ins},
    }  # fmt: skip
    names = contestants(bout, rules)
    with ThreadPoolExecutor(len(names)) as pool:  # they start together: nothing is timed yet
        entries = dict(zip(names, pool.map(lambda name: enter(name, request, rules, bout, given), names), strict=True))
    for name, entry in entries.items():
        if "reason" not in entry:
            entry |= agreed(name, directory)
    if "reason" not in entries[OURS]:
        entries |= {CALL: {}, READ: {}, MULTIPLY: {}}
    present = [name for name, entry in entries.items() if "reason" not in entry]
    peak = {"op": "peak", "threads": bout.threads}
    before = ask(given[OURS], peak, TIME_S)
    for name, outcome in alternate(present, rules, clocks(present, given, rules)).items():
        entries[name] |= outcome
    after = ask(given[OURS], peak, TIME_S)
    reading, multiplying = (entries.pop(name, {}).get("seconds") for name in (READ, MULTIPLY))
    return entries, {
        "peak_gflops": max(row.get("peak_gflops", 0.0) for row in (before, after)),
        "bandwidth": compulsory_bytes(dag) / reading if reading else 0.0,
        "fma_gflops": OPERATIONS / multiplying / 1e9 if multiplying else 0.0,
    }


def enter(name: str, request: Mapping[str, Any], rules: Rules, bout: Bout, given: Mapping[str, Process]) -> Entry:
    """The beginning of a contestant's entry, or the reason why it cannot take part; its result is in the directory."""
    note = metaschedule_note(rules, bout) if name == METASCHEDULE else {}
    if "reason" in note:
        return note
    row = ask(given[name], {**request, "name": name}, ENTER_S)
    return {"reason": row["reason"]} if "reason" in row else note


def metaschedule_note(rules: Rules, bout: Bout) -> Entry:
    """What MetaSchedule's tuning came to, {"reason": ...} where there is nothing to run."""
    peer = rules.metaschedule
    if peer is None:
        return {"reason": "no --peer-python"}
    dag, args = bout.built
    found = peer.tuned(bout.case.label, args, bout.batch, bout.threads)
    if "error" in found:
        return {"reason": found["error"]["message"]}
    if not same_sizes(dag, found["shapes"]):
        return {"reason": f"it solved another problem, with the shapes {found['shapes']}"}
    return {name: found[name] for name in ("tuning_s", "trials", "failed", "mcpu", "version") if name in found}


def agreed(name: str, directory: Path) -> Entry:
    """How far a result is from ours, in parts of the largest element; a reason where it is another result."""
    if name == OURS:
        return {}
    ours = np.load(directory / f"{OURS}.npy", mmap_mode="r") if (directory / f"{OURS}.npy").exists() else None
    if ours is None:
        return {"reason": "there is no result of ours to compare with"}
    theirs = np.load(directory / f"{name}.npy", mmap_mode="r")
    if theirs.size != ours.size or (theirs.shape != ours.shape and name != METASCHEDULE):
        return {"reason": f"its result has shape {list(theirs.shape)}, ours {list(ours.shape)}"}
    scale = float(np.max(np.abs(ours), initial=1e-30))
    error = float(np.max(np.abs(theirs.reshape(ours.shape) - ours), initial=0.0)) / scale
    if not error <= TOLERANCE:
        return {"reason": f"its result differs from ours by {error:.3g} of the largest element"}
    return {"difference": error}


def ask(process: Process, request: Mapping[str, Any], deadline_s: float) -> Entry:
    """The row of an answer, {"reason": ...} when the process is lost."""
    try:
        return process.ask(request, deadline_s)
    except Lost as lost:
        return {"reason": str(lost)}


def clocks(present: Sequence[str], given: Mapping[str, Process], rules: Rules) -> dict[str, Callable[[], Entry]]:
    """What takes a sample of each contestant: {"seconds"} or {"reason"}."""

    def clock(name: str) -> Callable[[], Entry]:
        process = given[OURS if name in (CALL, READ, MULTIPLY) else name]
        return lambda: ask(process, {"op": "time", "name": name, "block_s": rules.block_s}, TIME_S)

    return {name: clock(name) for name in present}


def alternate(
    present: Sequence[str], rules: Rules, samplers: Mapping[str, Callable[[], Entry]],
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Entry]:  # fmt: skip
    """Entries of all: a sample in each round, forwards and backwards in turn, after one round to warm up.

    One that fails takes no further part. Slow calls have fewer rounds, see `rounds_of`.
    """
    samples: dict[str, list[float]] = {name: [] for name in present}
    failed: dict[str, Entry] = {}
    order, rest, n, rounds = list(present), rules.rest_s, -1, rules.rounds
    while n < rounds:
        for name in [name for name in order if name not in failed]:
            sleep(rest)
            answer = samplers[name]()
            rest = max(rules.rest_s, LONG_RESTS_S.get(name, 0.0) * (rules.rest_s > 0))
            if "reason" in answer:
                failed[name] = {"reason": answer["reason"]}
            elif n >= 0:
                samples[name].append(answer["seconds"])
            else:
                rounds = rounds_of(answer["seconds"], rounds)
        order.reverse()
        n += 1
    return {name: failed.get(name) or summary(times) for name, times in samples.items()}


def rounds_of(seconds: float, most: int) -> int:
    """How many rounds there are of calls that take so long."""
    return next((min(n, most) for longer, n in SLOW_ROUNDS if seconds > longer), most)


def summary(times: Sequence[float]) -> Entry:
    return {"seconds": median(times), "ci": list(median_interval(times)), "least_s": min(times), "samples": len(times)}

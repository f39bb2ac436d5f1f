"""One network's contest: everybody loads it, results are compared, and all are timed in turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autosched.cli.network.bench import ROUNDED_TO_BYTES, TOLERANCE
from experiments.arena import ProcessArena
from experiments.networks.contestants import (
    EAGER,
    FROM_ONNX,
    INT8,
    MODEL,
    ORT,
    OURS,
    OWN,
    PEERS,
    TUNED,
    Entrance,
    relative_error,
)
from experiments.scoreboard.contest import METASCHEDULE, Entry, Process, Rules, alternate, ask, rounds_of, variables

KERNEL_ROUNDS = 8  # even: each order as often as its reverse
LOAD_S, TIME_S, KERNELS_S = 900.0, 120.0, 600.0  # deadlines
EXPORTER = "export"


@dataclass(frozen=True)
class NetworkBout:
    """A network and how it is run. `tuning_s`: ours takes part once more, tuned for so long; `winograd`: and so with
    Winograd's transforms."""

    network: str
    batch: int
    threads: int
    reduced: bool = False
    tuning_s: float = 0.0
    winograd: bool = False

    @property
    def is_int8(self) -> bool:
        return self.network.endswith(INT8)

    @property
    def label(self) -> str:
        """What a file of this network is called."""
        return self.network + ("-reduced" if self.reduced else "")

    @property
    def own(self) -> tuple[str, ...]:
        """Ours, by name."""
        taking_part = (True, self.tuning_s > 0, self.tuning_s > 0 and self.winograd)
        return tuple(name for name, takes_part in zip(OWN, taking_part, strict=True) if takes_part)

    @property
    def judge(self) -> str:
        """Whose results all are compared with."""
        return ORT if self.is_int8 else EAGER

    @property
    def row(self) -> dict[str, Any]:
        tuning = {"tuning_s": self.tuning_s} if self.tuning_s else {}
        return {"case": self.network, "batch": self.batch, "threads": self.threads, "reduced": self.reduced, **tuning}

    def entrance(self, directory: Path) -> Entrance:
        return Entrance(self.network, self.batch, self.threads, self.reduced, directory, self.tuning_s)


def entrants(bout: NetworkBout, rules: Rules) -> tuple[str, ...]:
    """Ours first, and the judge always; of networks of bytes those that read files."""
    able = FROM_ONNX if bout.is_int8 else PEERS
    last = (METASCHEDULE,) if rules.metaschedule is not None and not bout.is_int8 else ()
    return (*bout.own, *(name for name in able if name == bout.judge or name in rules.peers), *last)


@contextmanager
def processes(bout: NetworkBout, rules: Rules, directory: Path) -> Iterator[dict[str, Process]]:
    """A process for each, started when first asked. Ours has an empty cache, so that its first load is a cold one, and
    no records but its own."""
    own = [sys.executable, "-m", "experiments.networks.contestant", str(os.getpid())]
    caches = {name: str(directory / "cache") for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME")}
    environment = {**variables(bout.threads), **caches}
    commands = dict.fromkeys((*entrants(bout, rules), EXPORTER), own)
    if METASCHEDULE in commands and rules.metaschedule is not None:
        commands[METASCHEDULE] = rules.metaschedule.network_command(bout.label, bout.batch, bout.threads)
    found = {name: ProcessArena(command, directory / f"{name}.log", environment) for name, command in commands.items()}
    try:
        yield dict(found)
    finally:
        for process in found.values():
            process.close()


def hold(bout: NetworkBout, rules: Rules, directory: Path, given: Mapping[str, Process]) -> dict[str, Any]:
    """What a row says of the contest: entries by contestant and the kernels alone of the first that there is of the
    tuned and the loaded one of ours.

    They load one after the other, because loading is timed; one that fails has a reason and takes no further part.
    """
    request = {**asdict(bout.entrance(directory)), "directory": str(directory)}
    exported: Entry = {}
    names = entrants(bout, rules)
    reading = (*FROM_ONNX, METASCHEDULE, *(bout.own if bout.is_int8 else ()))
    if any(name in reading for name in names):
        exported = ask(given[EXPORTER], {**request, "op": "export"}, LOAD_S)
        given[EXPORTER].close()
    entries: dict[str, Entry] = {}
    for name in names:
        entry = exported_note(exported) if name in reading else {}
        if name == METASCHEDULE and "reason" not in entry:
            entry = searched(bout, rules, directory)
        if "reason" not in entry:
            entry |= ask(given[name], {**request, "op": "enter", "name": name}, LOAD_S + bout.tuning_s)
        entries[name] = entry
    for name, entry in entries.items():
        if "reason" not in entry:
            entry.update(compared(bout, name, directory))
    present = [name for name, entry in entries.items() if "reason" not in entry]
    for name, entry in alternate(present, rules, samplers(present, rules, given)).items():
        entries[name].update(entry)
    alone: Entry = {}
    for name in (TUNED, OURS):
        if not alone and "reason" not in entries.get(name, {"reason": "not there"}):
            rounds = rounds_of(entries[name]["seconds"], min(rules.rounds, KERNEL_ROUNDS))
            words = {"op": "kernels", "rounds": rounds, "block_s": rules.block_s}
            alone = {**ask(given[name], words, KERNELS_S), "of": name}
    return {"entries": entries, "alone": alone}


def exported_note(exported: Entry) -> Entry:
    return {"reason": f"no ONNX file: {exported['reason']}"} if "reason" in exported else {}


def searched(bout: NetworkBout, rules: Rules, directory: Path) -> Entry:
    """What MetaSchedule's search came to, now or when it was kept; {"reason": ...} where it has no program."""
    assert rules.metaschedule is not None
    found = rules.metaschedule.tuned_network(directory / MODEL, bout.label, bout.batch, bout.threads)
    if "error" in found:
        return {"reason": found["error"]["message"]}
    return {name: found[name] for name in ("tuning_s", "trials", "failed", "mcpu", "version")}


def samplers(names: Sequence[str], rules: Rules, given: Mapping[str, Process]) -> dict[str, Callable[[], Entry]]:
    def sampler(process: Process) -> Callable[[], Entry]:
        return lambda: ask(process, {"op": "time", "block_s": rules.block_s}, TIME_S)

    return {name: sampler(given[name]) for name in names}


def compared(bout: NetworkBout, name: str, directory: Path) -> Entry:
    """How far a contestant's results are from the judge's; a reason where they are others."""
    if not (directory / f"{bout.judge}.npz").exists():
        return {}
    error = relative_error(results_of(name, directory), results_of(bout.judge, directory))
    if not error <= (ROUNDED_TO_BYTES if bout.is_int8 else TOLERANCE):
        return {"reason": f"its results differ from those of {bout.judge} by {error:.3g} of their root mean square"}
    return {"rms_error": error}


def results_of(name: str, directory: Path) -> list[np.ndarray[Any, Any]]:
    with np.load(directory / f"{name}.npz") as found:
        return [found[f"arr_{n}"] for n in range(len(found.files))]

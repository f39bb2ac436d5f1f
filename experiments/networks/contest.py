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

from autosched.cli.bench import TOLERANCE
from experiments.arena import ProcessArena
from experiments.networks.contestants import EAGER, FROM_ONNX, OURS, PEERS, Entrance, relative_error
from experiments.scoreboard.contest import Entry, Process, Rules, alternate, ask, variables

KERNEL_ROUNDS = 8  # even: each order as often as its reverse
LOAD_S, TIME_S, KERNELS_S = 900.0, 120.0, 600.0  # deadlines
EXPORTER = "export"


@dataclass(frozen=True)
class NetworkBout:
    """A network and how it is run."""

    network: str
    batch: int
    threads: int
    reduced: bool = False

    @property
    def row(self) -> dict[str, Any]:
        return {"case": self.network, "batch": self.batch, "threads": self.threads, "reduced": self.reduced}

    def entrance(self, directory: Path) -> Entrance:
        return Entrance(self.network, self.batch, self.threads, self.reduced, directory)


def entrants(peers: Sequence[str]) -> tuple[str, ...]:
    """Ours first, and eager always: results are compared with its."""
    return (OURS, *(name for name in PEERS if name == EAGER or name in peers))


@contextmanager
def processes(bout: NetworkBout, peers: Sequence[str], directory: Path) -> Iterator[dict[str, Process]]:
    """A process for each, started when first asked. Ours has an empty cache, so that its first load is a cold one."""
    command = [sys.executable, "-m", "experiments.networks.contestant", str(os.getpid())]
    environment = {**variables(bout.threads), "XDG_CACHE_HOME": str(directory / "cache")}
    names = (*entrants(peers), EXPORTER)
    found = {name: ProcessArena(command, directory / f"{name}.log", environment) for name in names}
    try:
        yield dict(found)
    finally:
        for process in found.values():
            process.close()


def hold(bout: NetworkBout, rules: Rules, directory: Path, given: Mapping[str, Process]) -> dict[str, Any]:
    """What a row says of the contest: entries by contestant and our kernels alone.

    They load one after the other, because loading is timed; one that fails has a reason and takes no further part.
    """
    request = {**asdict(bout.entrance(directory)), "directory": str(directory)}
    exported: Entry = {}
    if any(name in FROM_ONNX for name in rules.peers):
        exported = ask(given[EXPORTER], {**request, "op": "export"}, LOAD_S)
        given[EXPORTER].close()
    entries: dict[str, Entry] = {}
    for name in entrants(rules.peers):
        if name in FROM_ONNX and "reason" in exported:
            entries[name] = {"reason": f"no ONNX file: {exported['reason']}"}
        else:
            entries[name] = ask(given[name], {**request, "op": "enter", "name": name}, LOAD_S)
    for name, entry in entries.items():
        if "reason" not in entry:
            entry.update(compared(name, directory))
    present = [name for name, entry in entries.items() if "reason" not in entry]
    for name, entry in alternate(present, rules, samplers(present, rules, given)).items():
        entries[name].update(entry)
    alone: Entry = {}
    if "reason" not in entries[OURS]:
        words = {"op": "kernels", "rounds": min(rules.rounds, KERNEL_ROUNDS), "block_s": rules.block_s}
        alone = ask(given[OURS], words, KERNELS_S)
    return {"entries": entries, "alone": alone}


def samplers(names: Sequence[str], rules: Rules, given: Mapping[str, Process]) -> dict[str, Callable[[], Entry]]:
    def sampler(process: Process) -> Callable[[], Entry]:
        return lambda: ask(process, {"op": "time", "block_s": rules.block_s}, TIME_S)

    return {name: sampler(given[name]) for name in names}


def compared(name: str, directory: Path) -> Entry:
    """How far a contestant's results are from eager's; a reason where they are others."""
    if not (directory / f"{EAGER}.npz").exists():
        return {}
    error = relative_error(results_of(name, directory), results_of(EAGER, directory))
    if not error <= TOLERANCE:
        return {"reason": f"its results differ from eager's by {error:.3g} of their root mean square"}
    return {"rms_error": error}


def results_of(name: str, directory: Path) -> list[np.ndarray[Any, Any]]:
    with np.load(directory / f"{name}.npz") as found:
        return [found[f"arr_{n}"] for n in range(len(found.files))]

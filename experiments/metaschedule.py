"""TVM MetaSchedule as a peer: tuned once for each processor and case or network, then served from its cache."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosched.errors import UsageError
from autosched.runtime.state import state_directory
from autosched.target import parse_target
from autosched.te import ComputeDAG
from experiments.tuning import answer

PEER = Path(__file__).resolve().with_name("metaschedule_peer.py")
TUNING_TIMEOUT_S = 10800.0  # of 2,000 trials of a network; a case takes a minute for 64
PROBE_TIMEOUT_S = 60.0
# Exit code 0: fit; 3: no TVM; 4: PyTorch is there as well.
PROBE = "import sys; from importlib.util import find_spec as f; sys.exit(3 if not f('tvm') else 4 if f('torch') else 0)"


def check_peer(python: Path) -> None:
    """Raises UsageError unless `python` has TVM and lacks PyTorch, which would slow TVM's workers down."""
    if not os.access(python, os.X_OK):
        raise UsageError(f"{python} is no interpreter")
    code = subprocess.run([str(python), "-c", PROBE], timeout=PROBE_TIMEOUT_S, stdin=subprocess.DEVNULL).returncode
    if code == 4:
        raise UsageError(f"{python} has PyTorch beside TVM, which is unfair to MetaSchedule: give TVM its own")
    if code != 0:
        raise UsageError(f"{python} has no TVM: pip install 'autosched[metaschedule]' there")


@dataclass(frozen=True)
class MetaSchedule:
    """The peer at one setting."""

    python: Path
    cache: Path
    mcpu: str
    trials: int
    seed: int = 0

    @classmethod
    def with_python(cls, python: Path, trials: int, seed: int) -> MetaSchedule:
        """For this processor, with the user's cache. Raises UsageError for an interpreter that is unfit."""
        check_peer(python)
        return cls(python, state_directory() / "metaschedule", parse_target("cpu").mcpu, trials, seed)

    def library(self, label: str, batch: int, threads: int) -> Path:
        """Where the cache has the best kernel of a case, 'c2d:1', or the program of a network."""
        words = (self.mcpu, f"{threads}threads", f"{self.trials}trials", f"seed{self.seed}")
        name = label.replace(":", "-") + ("" if batch == 1 else f"-batch{batch}")
        return self.cache / "-".join(words) / f"{name}.so"

    def tuned(self, label: str, args: Mapping[str, int], batch: int, threads: int) -> dict[str, Any]:
        """What it reached, from the cache or by tuning now; {"error": ...} where it has no kernel.

        `args`: the workload's arguments by name, in the order of its shape tuple.
        """
        shape = ",".join(str(value) for value in args.values())
        words = ["tune", "--workload", label.partition(":")[0], "--shape", shape]
        return self._kept(words, self.library(label, batch, threads), threads)

    def tuned_network(self, model: Path, label: str, batch: int, threads: int) -> dict[str, Any]:
        """The same for a network, whose ONNX file is `model`."""
        return self._kept(["tune-network", "--model", str(model)], self.library(label, batch, threads), threads)

    def command(self, label: str, batch: int, threads: int) -> list[str]:
        """Of a process that runs its kernel."""
        own = ["--workload", label.partition(":")[0], "--library", str(self.library(label, batch, threads))]
        return [str(self.python), str(PEER), "serve", *own, "--threads", str(threads)]

    def network_command(self, label: str, batch: int, threads: int) -> list[str]:
        """Of a process that runs its program of a network."""
        library = str(self.library(label, batch, threads))
        return [str(self.python), str(PEER), "serve-network", "--library", library, "--threads", str(threads)]

    def _kept(self, words: Sequence[str], library: Path, threads: int) -> dict[str, Any]:
        note = library.with_suffix(".json")
        if library.exists() and note.exists():
            kept: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
            return kept
        library.parent.mkdir(parents=True, exist_ok=True)
        command = [str(self.python), str(PEER), *words, "--trials", str(self.trials), "--threads", str(threads)]
        found = answer([*command, "--seed", str(self.seed), "--library", str(library)], TUNING_TIMEOUT_S)
        if "error" not in found:
            note.write_text(json.dumps(found) + "\n", encoding="utf-8")
        return found


def same_sizes(dag: ComputeDAG, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether both sides' inputs and outputs have as many elements; orders and views may differ."""
    ours = sorted(math.prod(tensor.public_shape) for tensor in (*dag.inputs, *dag.outputs))
    return ours == sorted(math.prod(shape) for shape in shapes)

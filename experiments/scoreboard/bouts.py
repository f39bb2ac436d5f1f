"""What is compared: a benchmark case at a batch and a number of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autosched.cli import options
from autosched.errors import UsageError
from autosched.kernel.roofline import compulsory_bytes
from autosched.target import Target
from autosched.te import ComputeDAG
from autosched.te.operators.registry import WORKLOADS, build
from autosched.te.rewrites.winograd import match_stage
from autosched.tuner.options import WorkloadOptions
from experiments.tuning import BenchmarkCase, parse_cases

FAMILIES = tuple(w.name for w in WORKLOADS.values() if w.shapes)
WITH_WEIGHTS = ("c1d", "c2d", "c3d", "grp", "dil", "dep", "t2d", "cap", "cbr")
# One case of each family, small ones: to try the script, or a change, in minutes.
QUICK = "c1d:2,c2d:1,c3d:1,gmm:1,grp:1,dil:1,dep:1,t2d:1,cap:1,nrm:2,sfm:1,cbr:2,tbg:0,tbs:0"


@dataclass(frozen=True)
class OptIn:
    """What a user may ask for beside the plain kernel, a contest of its own, reported apart: contestant `ours`, of a
    search with `name` (an option of `autosched tune`), against `peer`."""

    name: str
    ours: str
    peer: str
    title: str
    about: str


OPT_INS = (
    OptIn(
        "weights", "autosched.weights", "torch.prepacked",
        "Constant weights, packed ahead of time on both sides; called from Python",
        "also with constant weights, packed ahead of time on both sides",
    ),
    OptIn(
        "winograd", "autosched.winograd", "torch",
        "Winograd's algorithm, whose error is larger, against PyTorch's choice; called from Python",
        "also with Winograd's algorithm, where a convolution can take it",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Bout:
    """One case of the scoreboard."""

    case: BenchmarkCase
    batch: int
    threads: int

    @property
    def label(self) -> str:
        return label_of({"case": self.case.label, "batch": self.batch, "threads": self.threads})

    @property
    def wanted(self) -> WorkloadOptions:
        """What is asked of the library; a batch of 1 is the shape as it is."""
        return WorkloadOptions(
            shape=self.case.shape, batch=self.batch if self.batch > 1 else None, threads=self.threads
        )

    @cached_property
    def built(self) -> tuple[ComputeDAG, Mapping[str, Any]]:
        """The graph, and the workload's arguments by name."""
        dag, spec = build(self.case.workload, self.wanted.shape, batch=self.wanted.batch)
        return dag, spec["args"]

    def asked(self, opt_in: OptIn) -> dict[str, Any]:
        """The option as `autosched.tune` takes it; empty for a case that it is not for.

        Weights are the inputs that never change in a network, so operators of two data inputs have none.
        """
        dag, _ = self.built
        if opt_in.name == "winograd":
            return {"winograd": True} if any(match_stage(op) is not None for op in dag.stages) else {}
        return {"weights": [t.name for t in dag.inputs[1:]]} if self.case.workload in WITH_WEIGHTS else {}

    def facts(self, target: Target) -> dict[str, Any]:
        """What a row says of the case itself; `level` is the memory that holds its inputs and outputs."""
        dag, args = self.built
        n_bytes = compulsory_bytes(dag)
        return {
            "case": self.case.label,
            "workload": self.case.workload,
            "batch": self.batch,
            "threads": self.threads,
            "args": dict(args),
            "flops": dag.flops,
            "bytes": n_bytes,
            "level": level_of(n_bytes, target, self.threads),
        }


def label_of(row: Mapping[str, Any]) -> str:
    """Of the bout that a row is about."""
    return f"{row['case']} N={row['batch']} t={row['threads']}"


def level_of(n_bytes: int, target: Target, threads: int) -> str:
    """The smallest memory that has room for `n_bytes`: the threads' own L2, the shared L3, or DRAM."""
    if n_bytes <= target.l2_bytes * threads:
        return "L2"
    return "L3" if n_bytes <= target.l3_bytes else "DRAM"


def choose(words: Sequence[str], batches: Sequence[int], threads: Sequence[int], quick: bool) -> tuple[Bout, ...]:
    """The cases that are named ('c2d:1', 'c2d', 'matmul:64x48x32'), all of them by default, at each batch and number of
    threads.

    Raises UsageError for an unknown one, or one that has no shape.
    """
    cases = parse_cases(",".join(words) if words else QUICK if quick else ",".join(FAMILIES))
    for case in cases:
        if case.shape is None:
            raise UsageError(f"{case.workload} has no benchmark shape: name one, or choose of {', '.join(FAMILIES)}")
    return tuple(Bout(case, batch, n) for n in threads for batch in batches for case in cases)


def integers(text: str) -> tuple[int, ...]:
    """'1,16' -> (1, 16), for argparse."""
    return tuple(map(options.integer(1), text.split(",")))

"""Sources for CUDA that are verified without a GPU, and as files that know what they compute."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosched.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.codegen.c.source import GpuSource
    from autosched.measure.gpu.simulated import SimulatedData
    from autosched.te import ComputeDAG
    from autosched.tuner.protocols import Candidate

SCHEMA_VERSION = 2
EXAMINED = 1 << 26  # operations up to which every access is examined: two seconds


@contextmanager
def simulated(dag: ComputeDAG, seed: int = 0) -> Iterator[SimulatedData]:
    """The data sets of a graph, for as long as it takes. Raises UsageError where they cannot be written."""
    from autosched.measure import make_problem
    from autosched.measure.gpu.simulated import SimulatedData
    from autosched.measure.host import ScratchDirectory

    with ScratchDirectory() as scratch:
        problem = make_problem(dag, scratch, seed)
        problem.wait()
        yield SimulatedData(scratch, problem.inputs, problem.outputs)


def right_ones(
    dag: ComputeDAG, drafted: Sequence[tuple[Candidate, Source]]
) -> tuple[list[tuple[Candidate, Source]], Counter[str]]:
    """Those that compute what the graph says, and how many of the others there are by classes of failure.

    Raises VerificationError where none is left, UsageError for sources of another dialect than CUDA's.
    """
    from autosched.codegen.c.source import GpuSource
    from autosched.measure.check import CandidateError
    from autosched.measure.gpu.simulated import EXAMINING, HASTY

    right: list[tuple[Candidate, Source]] = []
    failures, last = Counter[str](), ""
    with simulated(dag) as data:
        for candidate, source in drafted:
            if not isinstance(source, GpuSource) or source.dialect != "cuda":
                raise UsageError("the simulator executes CUDA C: give --target cuda with --simulate")
            try:
                data.check(source, EXAMINING if dag.flops <= EXAMINED else HASTY)
                right.append((candidate, source))
            except CandidateError as error:
                failures[error.fault] += 1
                last = str(error)
    if not right:
        raise VerificationError(f"none of {len(drafted)} candidates computes what it should: {last}; report this")
    return right, failures


def beside(path: Path) -> Path:
    """Of a source: the file that says what it computes and how it is launched."""
    return path.with_suffix(".json")


def description(source: GpuSource, spec: str) -> str:
    """All of a source but its text, and the `spec` of what it computes, as JSON."""
    said = {key: value for key, value in asdict(source).items() if key != "text"}
    return json.dumps({"schema_version": SCHEMA_VERSION, "workload": json.loads(spec), **said}, indent=1) + "\n"


def read_source(path: Path) -> tuple[GpuSource, str]:
    """A source that was written with its description, and the spec of what it computes. Raises UsageError."""
    from autosched.codegen.c.source import GpuSource
    from autosched.measure.protocol import ProtocolError, checked

    try:
        text = path.read_text(encoding="utf-8")
        said: dict[str, Any] = json.loads(beside(path).read_text(encoding="utf-8"))
        if said["schema_version"] != SCHEMA_VERSION:
            raise UsageError(f"{beside(path)} is of version {said['schema_version']}, expected {SCHEMA_VERSION}")
        del said["schema_version"]
        workload = said.pop("workload")
        source: GpuSource = checked({**said, "text": text}, GpuSource, "a source")
        return source, json.dumps(workload)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ProtocolError) as error:
        raise UsageError(
            f"{path} is read with what stands beside it in {beside(path).name}: {error}; write both with "
            "`autosched tune ... --target cuda --no-run --out-dir DIR`"
        ) from error

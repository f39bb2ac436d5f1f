"""Verification of CUDA sources in the simulator, without a GPU, and their files with a description in JSON."""

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
MAX_EXAMINED_OPERATIONS = 1 << 26  # with more operations not every access is examined: so many take 2 s


@contextmanager
def simulated_data(dag: ComputeDAG, seed: int = 0) -> Iterator[SimulatedData]:
    """Yield the inputs and reference outputs of a graph, drawn by `seed`; they are deleted at the end.

    Raises UsageError if they cannot be written.
    """
    from autosched.measure import make_problem
    from autosched.measure.gpu.simulated import SimulatedData
    from autosched.measure.host import ScratchDirectory

    with ScratchDirectory() as scratch:
        problem = make_problem(dag, scratch, seed)
        problem.wait()
        yield SimulatedData(scratch, problem.inputs, problem.outputs)


def verified_candidates(
    dag: ComputeDAG, candidates: Sequence[tuple[Candidate, Source]]
) -> tuple[list[tuple[Candidate, Source]], Counter[str]]:
    """Return the candidates whose results equal the reference, and the number of the others by class of failure.

    Raises VerificationError if all candidates fail, UsageError for sources of another dialect than CUDA's.
    """
    from autosched.codegen.c.source import GpuSource
    from autosched.measure.check import CandidateError
    from autosched.measure.gpu.simulated import EXAMINING, HASTY

    verified: list[tuple[Candidate, Source]] = []
    failures, last = Counter[str](), ""
    with simulated_data(dag) as data:
        for candidate, source in candidates:
            if not isinstance(source, GpuSource) or source.dialect != "cuda":
                raise UsageError("the simulator executes CUDA C: give --target cuda with --simulate")
            try:
                data.check(source, EXAMINING if dag.flops <= MAX_EXAMINED_OPERATIONS else HASTY)
                verified.append((candidate, source))
            except CandidateError as error:
                failures[error.fault] += 1
                last = str(error)
    if not verified:
        raise VerificationError(f"none of {len(candidates)} candidates computes what it should: {last}; report this")
    return verified, failures


def description_path(path: Path) -> Path:
    """Return the path of the JSON file that describes a source: its workload and its launches."""
    return path.with_suffix(".json")


def describe_source(source: GpuSource, spec: str) -> str:
    """Return the `spec` of a source's workload and all fields of the source but its text, as JSON."""
    fields = {key: value for key, value in asdict(source).items() if key != "text"}
    return json.dumps({"schema_version": SCHEMA_VERSION, "workload": json.loads(spec), **fields}, indent=1) + "\n"


def read_source(path: Path) -> tuple[GpuSource, str]:
    """Read a source with its description; return it and the spec of its workload. Raises UsageError."""
    from autosched.codegen.c.source import GpuSource
    from autosched.measure.protocol import ProtocolError, checked

    try:
        text = path.read_text(encoding="utf-8")
        fields: dict[str, Any] = json.loads(description_path(path).read_text(encoding="utf-8"))
        if fields["schema_version"] != SCHEMA_VERSION:
            version = fields["schema_version"]
            raise UsageError(f"{description_path(path)} is of version {version}, expected {SCHEMA_VERSION}")
        del fields["schema_version"]
        workload = fields.pop("workload")
        source: GpuSource = checked({**fields, "text": text}, GpuSource, "a source")
        return source, json.dumps(workload)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ProtocolError) as error:
        raise UsageError(
            f"{path} is read with what stands beside it in {description_path(path).name}: {error}; write both with "
            "`autosched tune ... --target cuda --no-run --out-dir DIR`"
        ) from error

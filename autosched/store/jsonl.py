"""JSON Lines format of records: a line for each candidate or fusion decision, self-contained and with its own sha256.

A damaged line therefore costs one record. The first line is a header; a file without one is read as well (two exports
joined, a tail). Every line is input from outside: types, ranges and hash are checked, and a bad one is None.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from autosched.errors import StoreError
from autosched.store.records import (
    MAX_INT,
    MAX_MESSAGE,
    MAX_TEXT,
    RUN_STATES,
    CandidateRow,
    FusionDecision,
    Outcome,
    Run,
    WorkloadRow,
    canonical_json,
    checked_outcome,
    checked_times,
    checked_values,
    digest,
    parse_data,
)
from autosched.store.schema import SCHEMA_VERSION, one_sentence

FORMAT = "autosched records"
FUSION = "fusion decision"  # `kind` of its lines; lines of candidates have none
MAX_NAME = 1_000
SIGNATURE = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Line:
    """A candidate with its workload, target, runs and outcomes. Run numbers refer to the ids of `runs`."""

    workload: WorkloadRow
    target_json: str
    runs: tuple[Run, ...]
    candidate: CandidateRow
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class FusionLine:
    """A fusion decision with the description of its fused kernel and of its target."""

    workload: WorkloadRow
    target_json: str
    decision: FusionDecision


def lost_run(candidate: CandidateRow, run_id: int) -> Run:
    """Return a substitute for a run whose row is damaged; the same candidate and number give the same uid."""
    uid = digest("lost run", candidate.identity, run_id)[:32]
    task = (candidate.workload, candidate.target, candidate.threads)
    return Run(run_id, uid, *task, 0, candidate.created, None, "failed")


def write(path: Path, lines: Iterable[Line | FusionLine]) -> int:
    """Write header and lines to a temporary file and rename it to `path`, so that `path` is complete or unchanged."""
    n_lines = 0
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with one_sentence(path):
        if path.exists() and not path.is_file():  # a device would be replaced by a file
            raise StoreError(f"{path} is not a regular file: name another file for the records")
        try:
            with partial.open("w", encoding="ascii") as file:
                file.write(canonical_json({"format": FORMAT, "schema_version": SCHEMA_VERSION}) + "\n")
                for line in lines:
                    content = _encode(line) if isinstance(line, Line) else _encode_decision(line)
                    file.write(canonical_json({**content, "sha256": digest(content)}) + "\n")
                    n_lines += 1
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    return n_lines


def read(path: Path) -> Iterator[Line | FusionLine | None]:
    """Yield the records of a file in order, None for each damaged line. Blank lines and headers are skipped.

    Raises StoreError for a file that cannot be read or whose header has a newer schema.
    """
    with one_sentence(path), open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{path} is not a regular file: name one that `autosched db export` wrote")
        for raw in _raw_lines(file, status.st_size):
            content = _data(raw)
            if content is not None and content.get("format") == FORMAT:
                _check_version(content, path)
            elif raw.strip():
                yield None if content is None else _decode(content)


def _open_at_once(path: str, flags: int) -> int:
    """Open without blocking on a named pipe without a writer, which is refused later."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _raw_lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield lines cut at MAX_TEXT + 1 bytes; longer ones are skipped as one damaged line.

    Ends after the `size` bytes that the file had at first, even if it grows or is endless (under /proc).
    """
    is_rest = False
    while raw := file.readline(min(size, MAX_TEXT + 1)):
        size -= len(raw)
        if not is_rest:
            yield raw
        is_rest = (is_rest or len(raw) > MAX_TEXT) and not raw.endswith(b"\n")


def _check_version(header: Mapping[str, object], path: Path) -> None:
    version = header.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StoreError(f"the header of {path} is damaged: its schema version must be a number, got {version!r:.80}")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {version}, newer than the {SCHEMA_VERSION} that this autosched reads: "
            "upgrade autosched"
        )


def _data(raw: bytes) -> dict[str, object] | None:
    try:
        value = parse_data(raw)
    except StoreError:
        return None
    return value if isinstance(value, dict) else None


def _encode(line: Line) -> dict[str, object]:
    candidate = line.candidate
    position = {run.id: i for i, run in enumerate(line.runs)}
    return {
        "workload": {"hash": line.workload.hash, "name": line.workload.name, "spec": line.workload.spec},
        "target": {"fingerprint": candidate.target, "json": line.target_json},
        "threads": candidate.threads,
        "runs": [
            {"uid": r.uid, "seed": r.seed, "started": r.started, "finished": r.finished, "status": r.status}
            for r in line.runs
        ],
        "run": position[candidate.run_id],
        "sketch": candidate.sketch,
        "steps": parse_data(candidate.steps),
        "values": candidate.values,
        "round": candidate.round,
        "created": candidate.created,
        "outcomes": [
            {
                "run": position[o.run_id],
                "seconds": o.seconds,
                "samples": list(o.samples),
                "ci": None if o.ci is None else list(o.ci),
                "failure": o.failure,
                "message": o.message,
                "created": o.created,
                **({} if o.signature is None else {"signature": o.signature}),
            }
            for o in line.outcomes
        ],
    }


def _encode_decision(line: FusionLine) -> dict[str, object]:
    decision = line.decision
    return {
        "kind": FUSION,
        "workload": {"hash": line.workload.hash, "name": line.workload.name, "spec": line.workload.spec},
        "target": {"fingerprint": decision.target, "json": line.target_json},
        "threads": decision.threads,
        "is_fused": decision.is_fused,
        "fused_s": list(decision.fused_s),
        "unfused_s": list(decision.unfused_s),
        "created": decision.created,
        **({} if decision.signature is None else {"signature": decision.signature}),
    }


def _decode(content: dict[str, object]) -> Line | FusionLine | None:
    """Return the checked record of a line; None if it is invalid."""
    claimed = content.pop("sha256", None)
    try:
        if digest(content) != claimed:
            return None
        return _fusion_line(content) if content.get("kind") == FUSION else _line(content)
    except (StoreError, KeyError, TypeError, ValueError):
        return None


def _line(content: Mapping[str, object]) -> Line:
    workload, target = _mapping(content["workload"]), _mapping(content["target"])
    task = (_text(workload["hash"]), _text(target["fingerprint"]), _int(content["threads"], 1))
    runs = tuple(_run(i, _mapping(run), task) for i, run in enumerate(_list(content["runs"])))
    values = _mapping(content["values"])
    candidate = CandidateRow(
        0,
        _int(content["run"], 0, len(runs) - 1),
        *task,
        _text(content["sketch"]),
        canonical_json(content["steps"]),
        checked_values({name: _int(value, -MAX_INT) for name, value in values.items()}),
        _int(content["round"], 0),
        _text(content["created"]),
    )
    outcomes = tuple(_outcome(_mapping(o), len(runs)) for o in _list(content["outcomes"]))
    if not outcomes:
        raise ValueError("a record has no outcome")
    name, spec = _text(workload["name"]), _text(workload["spec"], MAX_TEXT)
    return Line(WorkloadRow(task[0], name, spec), _text(target["json"], MAX_TEXT), runs, candidate, outcomes)


def _fusion_line(content: Mapping[str, object]) -> FusionLine:
    workload, target = _mapping(content["workload"]), _mapping(content["target"])
    is_fused = content["is_fused"]
    if not isinstance(is_fused, bool):
        raise TypeError("expected true or false")
    decision = FusionDecision(
        _text(workload["hash"]),
        _text(target["fingerprint"]),
        _int(content["threads"], 1),
        is_fused,
        checked_times(content["fused_s"]),
        checked_times(content["unfused_s"]),
        _text(content["created"]),
        _signature(content),
    )
    name, spec = _text(workload["name"]), _text(workload["spec"], MAX_TEXT)
    return FusionLine(WorkloadRow(decision.workload, name, spec), _text(target["json"], MAX_TEXT), decision)


def _run(position: int, run: Mapping[str, object], task: tuple[str, str, int]) -> Run:
    finished = None if run["finished"] is None else _text(run["finished"])
    status = _text(run["status"])
    if status not in RUN_STATES:
        raise ValueError(f"unknown status {status}")
    seed = _int(run["seed"], -MAX_INT)
    return Run(position, _text(run["uid"]), *task, seed, _text(run["started"]), finished, status)


def _outcome(outcome: Mapping[str, object], n_runs: int) -> Outcome:
    seconds = None if outcome["seconds"] is None else _float(outcome["seconds"])
    samples = tuple(_float(s) for s in _list(outcome["samples"]))
    failure = None if outcome["failure"] is None else _text(outcome["failure"])
    checked_outcome(seconds, samples, failure)
    ci = None
    if outcome["ci"] is not None:
        lo, hi = (_float(x) for x in _list(outcome["ci"]))
        checked_outcome(seconds, (lo, hi), failure)
        ci = (lo, hi)
    message = _text(outcome["message"], MAX_MESSAGE)
    run = _int(outcome["run"], 0, n_runs - 1)
    return Outcome(0, run, seconds, samples, ci, failure, message, _text(outcome["created"]), _signature(outcome))


def _signature(content: Mapping[str, object]) -> str | None:
    if content.get("signature") is None:
        return None
    signature = _text(content["signature"])
    if not SIGNATURE.fullmatch(signature):
        raise ValueError("a signature is a sha256 in hex")
    return signature


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError("expected an object")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("expected a list")
    return value


def _text(value: object, longest: int = MAX_NAME) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise TypeError("expected a text of bounded length")
    return value


def _int(value: object, lowest: int, highest: int = MAX_INT) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise TypeError("expected an integer in range")
    return value


def _float(value: object) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise TypeError("expected a number")
    return float(value)

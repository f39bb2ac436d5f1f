"""Source files of the best candidates of a search."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.errors import UsageError
from autosched.kernel.simulation import describe_source, description_path

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.tuner.result import Result
    from autosched.tuner.task import Task

N_SOURCES = 4  # candidates whose source is written


def make_output_directory(out_dir: Path | str) -> Path:
    """Return the directory, created if it is missing, before a search. Raises UsageError if it is read-only."""
    from autosched.store import named_path

    directory = named_path(out_dir)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the sources cannot be written to {directory}: {error.strerror}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"the sources cannot be written to {directory}: check its permissions")
    return directory


def write_fastest(directory: Path, task: Task, result: Result, spec: str, db: Path | str | None) -> None:
    """Write the sources of the N_SOURCES fastest candidates, the best of the final comparison first."""
    from autosched.store import command

    timed = sorted((t for t in result.records if t.seconds is not None), key=lambda t: t.seconds or 0.0)
    timed.sort(key=lambda t: t.record_id != result.record_id)
    try:
        write_sources(directory, task, [task.source(trial.candidate) for trial in timed[:N_SOURCES]], spec)
    except UsageError as error:
        stored = f"the best of the search, {1e6 * result.best_s:.4g} us, is record {result.record_id} all the same"
        raise UsageError(f"{error}; {stored} ({command(f'show {result.record_id}', db)})") from error


def write_sources(directory: Path, task: Task, sources: Sequence[Source], spec: str) -> None:
    """Write the code of candidates as `<workload>-<rank>.ll`, `.cu` or `.cl`.

    For a GPU, a `.json` file next to it has the launch parameters and the workload `spec`.
    """
    name = task.info.workload.rpartition(":")[2]
    for rank, source in enumerate(sources, start=1):
        write_source(directory, f"{name}-{rank}", source, spec)


def write_source(directory: Path, name: str, source: Source, spec: str) -> Path:
    """Write the code of one kernel, for a GPU with its description, and return the path of the code."""
    from autosched.artifacts.linking import write_whole
    from autosched.codegen.c.source import GpuSource

    path = directory / f"{name}{source.suffix}"
    write_whole(path, source.text.encode())
    if isinstance(source, GpuSource):
        write_whole(description_path(path), describe_source(source, spec).encode())
    return path

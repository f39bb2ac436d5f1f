"""Selection of stored tasks by workload, shape, type, target and threads."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from autosched.errors import UsageError
from autosched.ir.instructions.precision import EXACT

if TYPE_CHECKING:
    from autosched.store import Database, Record, WorkloadRow


@dataclass(frozen=True)
class StoredTask:
    """A recorded workload with its target and number of threads.

    A user's own workload is not built again to show its records: it has neither `shape` nor `flops`.
    """

    workload_hash: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    flops: int | None
    target: str
    threads: int
    weights: tuple[str, ...] = ()
    winograd: bool = False
    precision: str = EXACT

    @property
    def title(self) -> str:
        words = [self.name]
        if self.shape:
            words.append(f"({','.join(map(str, self.shape))})")
        if self.dtype != "float32":
            words.append(self.dtype)
        if self.weights:
            words.append(f"weights={','.join(self.weights)}")
        if self.winograd:
            words.append("winograd")
        if self.precision != EXACT:
            words.append(self.precision)
        return " ".join(words)

    def gflops(self, seconds: float) -> float | None:
        return None if self.flops is None else self.flops / seconds / 1e9


def stored_tasks(database: Database, args: argparse.Namespace) -> list[StoredTask]:
    """Return the tasks that match `args` (workload, shape, target, threads if given), in the order of their first run.

    Raises UsageError if there are none.
    """
    from autosched.store import command

    workloads = {w.hash: w for w in database.workloads()}
    task_of: dict[tuple[str, str, int], StoredTask] = {}
    for run in database.runs():
        key = (run.workload, run.target, run.threads)
        if key not in task_of and run.workload in workloads:
            task_of[key] = _task(workloads[run.workload], run.target, run.threads)
    wanted = _target(args)
    tasks = [t for t in task_of.values() if _fits(t, args) and t.target.startswith(wanted)]
    if not tasks:
        what = args.workload or "any workload"
        tune = f"tune {quote(args.workload or 'conv2d')}"
        raise UsageError(
            f"{database.path} has no records of {what} with these options: `{command('best', args.db)}` lists all, "
            f"`{command(tune, args.db)}` makes some"
        )
    return tasks


def record_time_text(record: Record) -> str:
    """Format the time of a measured record, with a mark for claims."""
    from autosched.cli.output import interval_text, time_text

    if record.seconds is None:
        return time_text(None)
    return f"{interval_text(record.seconds, record.ci)}{'' if record.verified else ', unverified'}"


def _target(args: argparse.Namespace) -> str:
    """Return the prefix of the fingerprints of the named target: plain cuda matches any GPU."""
    from autosched.cli.options import target_text
    from autosched.target import parse_target

    text = target_text(args)
    if text is None:
        return ""
    target = parse_target(text)
    if not target.backend.is_gpu:
        return target.fingerprint
    return f"{target.kind}-{target.arch}-" if args.arch else f"{target.kind}-"


def _fits(task: StoredTask, args: argparse.Namespace) -> bool:
    wanted = getattr(args, "weights", None)  # not every verb asks
    return (
        (args.workload is None or _is_named(task, args.workload))
        and args.shape in (None, task.shape)
        and args.threads in (None, task.threads)
        and (wanted is None or set(wanted) == set(task.weights))
        and getattr(args, "winograd", None) in (None, task.winograd)
        and getattr(args, "precision", None) in (None, task.precision)
    )


def _is_named(task: StoredTask, word: str) -> bool:
    """Return whether a word is the name of a task's workload or the beginning of its hash.

    A user's workload was recorded with the path from which it was first tuned, so only the names of its file and
    function are compared.
    """
    name = task.name.rpartition("/")[2] if ":" in word else task.name
    return name == (word.rpartition("/")[2] if ":" in word else word) or task.workload_hash.startswith(word)


def _task(workload: WorkloadRow, target: str, threads: int) -> StoredTask:
    """Return a task; a built-in workload is built again, if this version builds the same from its spec."""
    from autosched.errors import AutoschedError
    from autosched.store.records import parse_data
    from autosched.te.operators.registry import WORKLOADS
    from autosched.tuner.definition import redefine, spec_weights

    unknown = StoredTask(workload.hash, workload.name, (), "float32", None, target, threads)
    try:
        spec: Any = parse_data(workload.spec)
        unknown = replace(unknown, weights=spec_weights(spec), winograd=spec.get("winograd") is True)
        unknown = replace(unknown, precision=str(spec.get("precision", EXACT))[:16])
        if spec["name"] not in WORKLOADS:
            return unknown
        known = redefine(workload.spec, None)
    except (AutoschedError, AttributeError, KeyError, TypeError, ValueError):
        return unknown  # an import's nonsense
    if known.dag.content_hash != workload.hash:
        return unknown
    return replace(unknown, shape=known.shape, dtype=known.dtype, flops=known.dag.flops)

"""`autosched plot MODEL.onnx`: tuning curve of a network, the time of its kernels over the trials of its tasks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from autosched.cli.network.arguments import NamedNetwork, check_options, load_network
from autosched.errors import UsageError

if TYPE_CHECKING:
    from autosched.store import Record


@dataclass(frozen=True)
class TaskRecords:
    """Records of a task that is called `count` times."""

    count: int
    records: Sequence[Record]


def plot_network(network: NamedNetwork, args: argparse.Namespace) -> int:
    """Draw the tuning curve of a network from the records of its tasks, and return the command's exit code."""
    from autosched.cli.output import SCHEMA_VERSION, print_json, threads_text
    from autosched.store import Database, command

    check_options(network, args)
    model = load_network(network, args)
    target, threads = model.device.target.fingerprint, model.device.threads
    with Database(args.db, create=False) as database:
        tasks = [
            TaskRecords(task.count, database.records(task.request.problem.dag.content_hash, target, threads))
            for task in model.tasks
        ]
    timed = [task for task in tasks if any(r.verified and r.seconds is not None for r in task.records)]
    points = network_curve(timed)
    if not points:
        tune = command(f"tune {quote(network.word)}", args.db)
        raise UsageError(f"no kernel of {network.word} has a record with a time yet: run `{tune}`")
    name = Path(network.word.rpartition(":")[2]).stem
    path = args.out or Path(f"{name}.png")
    title = f"{name}, {len(timed)} of {len(tasks)} tasks, {threads_text(threads)}"
    _draw(points, title, path)
    if args.json:
        facts = {"model": network.word, "threads": threads, "tasks": len(tasks), "recorded": len(timed)}
        print_json({"schema_version": SCHEMA_VERSION, "file": str(path), **facts, "kernels_s": points})
    else:
        print(path)
    return 0


def network_curve(tasks: Sequence[TaskRecords]) -> list[tuple[int, float]]:
    """Return pairs of the trial, from 1 over all tasks, and the seconds of all calls with the best kernels so far.

    The curve begins when each task has a time. Trials are the records verified here, in the order of their creation.
    """
    trials = [
        (record.created, record.id, n) for n, task in enumerate(tasks) for record in task.records if record.verified
    ]
    by_id = {record.id: record for task in tasks for record in task.records}
    best: dict[int, float] = {}
    points = []
    for trial, (_, record_id, n) in enumerate(sorted(trials), start=1):
        seconds = by_id[record_id].seconds
        if seconds is not None:
            best[n] = min(seconds, best.get(n, seconds))
        if len(best) == len(tasks):
            points.append((trial, sum(tasks[k].count * s for k, s in best.items())))
    return points


def _draw(points: Sequence[tuple[int, float]], title: str, path: Path) -> None:
    from autosched.cli.figures import new_figure, save_figure

    figure = new_figure(8.0, 5.0, 120)
    axes = figure.add_subplot()
    axes.step([trial for trial, _ in points], [1e3 * seconds for _, seconds in points], where="post")
    axes.set_title(title)
    axes.set_xlabel("trials of all tasks")
    axes.set_ylabel("all kernels of a call, ms")
    axes.set_ylim(0.0, 1.1e3 * max(seconds for _, seconds in points))
    axes.grid(alpha=0.3)
    save_figure(figure, path)

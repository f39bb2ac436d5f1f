"""`autosched plot`: tuning curves, the best throughput over the number of trials, from the records."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from autosched.cli import options
from autosched.cli.network import arguments
from autosched.errors import UsageError

if TYPE_CHECKING:
    from autosched.cli.stored_tasks import StoredTask
    from autosched.store import Record


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "plot",
        help="draw best throughput against trials",
        description="Draws the best throughput against the number of trials as a PNG (needs `autosched[plot]`); of a "
        "network the time of all its kernels together.",
    )
    parser.add_argument("workload", help="a workload's name, or the beginning of its content hash, or a network")
    parser.add_argument("--shape", type=options.shape, metavar="N,..", help="only this shape")
    options.add_target(parser, default=None)
    parser.add_argument(
        "--set",
        dest="settings",
        type=options.setting,
        action="append",
        default=[],
        metavar="K=V",
        help="an argument of a function that returns a network",
    )
    arguments.add_sizes(parser)
    parser.add_argument(
        "--winograd",
        action="store_true",
        default=None,
        help="only what accepts Winograd's larger error (default: both)",
    )
    parser.add_argument("--out", type=options.path, metavar="PNG", help="default: WORKLOAD.png")
    options.add_db(parser)
    options.add_json(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Curve:
    """The (trial, best seconds so far) of a task; without `verified` they are claims."""

    task: StoredTask
    points: list[tuple[int, float]]
    verified: bool

    @property
    def label(self) -> str:
        return f"{self.task.title}, {self.task.threads} threads{'' if self.verified else ', unverified'}"


def run(args: argparse.Namespace) -> int:
    from autosched.cli.network.plot import plot_network
    from autosched.cli.output import SCHEMA_VERSION, print_json
    from autosched.cli.stored_tasks import stored_tasks
    from autosched.store import Database, command

    if (network := arguments.find_file(args.workload)) is not None:
        return plot_network(network, args)
    with Database(args.db, create=False) as database:
        try:
            tasks = stored_tasks(database, args)
        except UsageError:  # a function of a workload that is recorded need not be there any more
            if (network := arguments.find_network(args.workload, options.settings(args))) is not None:
                return plot_network(network, args)
            raise
        curves = [_verified_curve(t, database.records(t.workload_hash, t.target, t.threads)) for t in tasks]
    curves = [c for c in curves if c.points]
    if not curves:
        tune = command(f"tune {quote(args.workload)}", args.db)
        raise UsageError(f"no record of {args.workload} has a time yet: run `{tune}`")
    path = args.out or Path(f"{Path(curves[0].task.name.rpartition(':')[2]).name}.png")
    _draw(curves, path)
    if args.json:
        lines = [
            {
                "workload": c.task.name,
                "shape": c.task.shape,
                "target": c.task.target,
                "threads": c.task.threads,
                "verified": c.verified,
                "best_s": c.points,
            }
            for c in curves
        ]
        print_json({"schema_version": SCHEMA_VERSION, "file": str(path), "curves": lines})
    else:
        print(path)
    return 0


def _verified_curve(task: StoredTask, records: Sequence[Record]) -> Curve:
    """Return the curve of the records verified here, or of the claims if there are none."""
    ours = [r for r in records if r.verified]
    return Curve(task, curve(ours or records), bool(ours))


def curve(records: Sequence[Record]) -> list[tuple[int, float]]:
    """Return (trial counted from 1, best seconds so far) from the first trial that has a time; failures are
    trials too.
    """
    points = []
    best: float | None = None
    for trial, record in enumerate(records, start=1):
        if record.seconds is not None:
            best = record.seconds if best is None else min(best, record.seconds)
        if best is not None:
            points.append((trial, best))
    return points


def _draw(curves: Sequence[Curve], path: Path) -> None:
    from autosched.cli.figures import new_figure, save_figure

    figure = new_figure(8.0, 5.0, 120)
    axes = figure.add_subplot()
    has_flops = all(c.task.flops is not None for c in curves)
    for c in curves:
        rates = [(c.task.gflops(s) if has_flops else 1.0 / s) or 0.0 for _, s in c.points]
        axes.step([t for t, _ in c.points], rates, where="post", label=c.label)
    axes.set_xlabel("trials")
    axes.set_ylabel("best throughput, " + ("GFLOP/s" if has_flops else "calls/s"))
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    save_figure(figure, path)

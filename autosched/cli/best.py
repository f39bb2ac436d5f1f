"""`autosched best`: the best records of a workload, or of all recorded workloads."""

from __future__ import annotations

import argparse

from autosched.cli import options


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "best",
        help="list the best records",
        description="Lists the best records of a workload, or of every workload: certified ones first, then by time. "
        "Those that this installation has not verified are called so, and come last.",
    )
    parser.add_argument("workload", nargs="?", help="a workload's name, or the beginning of its content hash")
    parser.add_argument("--shape", type=options.shape, metavar="N,..", help="only this shape")
    options.add_weights(parser, "only those with these inputs as weights", default=None)
    options.add_winograd(parser, "those that accept Winograd's larger error; without this, the others")
    options.add_precision(parser, "those with such products")
    options.add_target(parser, default=None)
    parser.add_argument("-n", type=options.integer(1), default=1, help="how many of each (default 1)")
    options.add_db(parser)
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched.cli.output import SCHEMA_VERSION, print_json, rate_text, table
    from autosched.cli.stored_tasks import record_time_text, stored_tasks
    from autosched.store import Database, command

    with Database(args.db, create=False) as database:
        tasks = stored_tasks(database, args)
        task_records = [
            (task, record)
            for task in tasks
            for record in database.best(task.workload_hash, task.target, task.threads, args.n)
        ]
    if args.json:
        rows = [
            {
                "record_id": record.id,
                "workload": task.name,
                "shape": task.shape,
                "dtype": task.dtype,
                "weights": task.weights,
                "winograd": task.winograd,
                "precision": task.precision,
                "target": record.target,
                "threads": record.threads,
                "best_s": record.seconds,
                "best_ci_s": record.ci,
                "verified": record.verified,
                "gflops": task.gflops(record.seconds or 0.0) if record.seconds else None,
                "sketch": record.sketch,
                "values": record.values,
                "created": record.created,
            }
            for task, record in task_records
        ]
        print_json({"schema_version": SCHEMA_VERSION, "records": rows})
        return 0
    cells = [
        (
            str(record.id),
            task.title,
            str(record.threads),
            record_time_text(record),
            rate_text(task.gflops(record.seconds)),
            record.target,
        )
        for task, record in task_records
        if record.seconds is not None
    ]
    print(table(("id", "workload", "threads", "time", "rate", "target"), cells))
    if not all(record.verified for _, record in task_records):
        verify = command("verify ID", args.db)
        print(f"unverified: from elsewhere, and never run here; `{verify}` has a worker check one")
    return 0

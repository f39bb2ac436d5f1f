"""`autosched export`: a record's kernel as files that need no autosched to run."""

from __future__ import annotations

import argparse
from pathlib import Path

from autosched.backends import exports
from autosched.cli import options


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "export", help="write a record's kernel as files", description="Writes a record's kernel as files of its own."
    )
    parser.add_argument("--kind", choices=exports(), default="so", help="default: so, a shared library")
    parser.add_argument("--out", type=Path, metavar="PATH", help="file to write (default: named after the workload)")
    options.add_record(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched import api
    from autosched.cli.output import SCHEMA_VERSION, print_json

    paths = api.export(args.id, args.db, args.kind, args.out, workload=args.workload, target=args.target)
    files = [str(path) for path in paths]
    if args.json:
        print_json({"schema_version": SCHEMA_VERSION, "record_id": args.id, "kind": args.kind, "files": files})
    else:
        print("\n".join(files))
    return 0

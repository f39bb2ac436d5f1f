"""`autosched export`: a record's kernel, or a network, as files that need no autosched to run."""

from __future__ import annotations

import argparse
from pathlib import Path

from autosched.backends import exports
from autosched.cli import networks
from autosched.errors import UsageError


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "export",
        help="write a record's kernel or a network as files",
        description="Writes a record's kernel, or a network as one program, as files of its own.",
    )
    parser.add_argument("--kind", choices=exports(), default="so", help="default: so, a shared library")
    parser.add_argument("--out", type=Path, metavar="PATH", help="file to write (default: named after what it is)")
    networks.add_record_or_network(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched.cli.output import SCHEMA_VERSION, print_json

    paths = _record(args) if isinstance(args.id, int) else _network(args)
    files = [str(path) for path in paths]
    if args.json:
        subject = {"record_id": args.id} if isinstance(args.id, int) else {"model": args.id}
        print_json({"schema_version": SCHEMA_VERSION, **subject, "kind": args.kind, "files": files})
    else:
        print("\n".join(files))
    return 0


def _record(args: argparse.Namespace) -> list[Path]:
    from autosched import api

    return api.export(args.id, args.db, args.kind, args.out, workload=args.workload, target=args.target)


def _network(args: argparse.Namespace) -> list[Path]:
    if args.kind != "so":
        raise UsageError(f"a network is exported as so, a shared library with header and weights, not as {args.kind}")
    found = networks.the_network(args.id, args)
    out = args.out or Path(f"{found.name}.so")
    return networks.load_network(found, args).export(out)

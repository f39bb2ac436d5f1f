"""`autosched export`: a record's kernel, or a network, as files that run without autosched."""

from __future__ import annotations

import argparse
from pathlib import Path

from autosched.backends import exports
from autosched.cli import options
from autosched.cli.network import arguments
from autosched.errors import UsageError

ARCHIVE = "archive"
_NETWORK_SUFFIXES = {"so": ".so", ARCHIVE: ".asc"}
_ABOUT = "of a network, a file that autosched.load takes"


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "export",
        help="write a record's kernel or a network as files",
        description="Writes a record's kernel, or a network as one program, as files of its own.",
    )
    parser.add_argument(
        "--kind",
        choices=(*exports(), ARCHIVE),
        default="so",
        help=f"default: so, a shared library; {ARCHIVE}: {_ABOUT}",
    )
    parser.add_argument(
        "--out", type=options.path, metavar="PATH", help="file to write (default: named after what it is)"
    )
    arguments.add_record_or_network(parser)
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
    if args.kind not in _NETWORK_SUFFIXES:
        raise UsageError(
            "a network is exported as so, a shared library with header and weights, or as archive, a file that "
            f"autosched.load takes, not as {args.kind}"
        )
    network = arguments.require_network(args.id, args)
    out = args.out or Path(f"{network.name}{_NETWORK_SUFFIXES[args.kind]}")
    model = arguments.load_network(network, args)
    if args.kind == "so":
        return model.export(out)
    model.save(out)
    return [out]

"""`autosched verify`: rebuilds a record's kernel and proves its result against the reference once more."""

from __future__ import annotations

import argparse

from autosched.cli import options


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "verify",
        help="check a record's kernel against the reference",
        description="Rebuilds a record's kernel and compares its result with the reference; exit code 4 if it differs.",
    )
    options.add_record(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched import api
    from autosched.cli.output import SCHEMA_VERSION, print_json, time_text
    from autosched.errors import VerificationError

    facts: dict[str, object] = {"schema_version": SCHEMA_VERSION, "record_id": args.id}
    try:
        measured = api.verify(args.id, args.db, workload=args.workload, target=args.target)
    except VerificationError as error:
        if not args.json:
            raise
        print_json({**facts, "verified": False, "message": str(error)})
        return VerificationError.exit_code
    if args.json:
        print_json({**facts, "verified": True, "seconds": measured.seconds})
    else:
        seconds = time_text(measured.seconds)
        print(f"record {args.id} is verified: every element is within its error bound, in {seconds}")
    return 0

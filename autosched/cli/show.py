"""`autosched show`: one record as schedule steps, loop nest or generated code."""

from __future__ import annotations

import argparse

from autosched.backends import forms
from autosched.cli import options


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("show", help="show a record's schedule or code", description="Shows one record.")
    parser.add_argument("--as", dest="form", choices=forms(), default="ir", help="default: ir, the loop nest")
    options.add_record(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched import api
    from autosched.cli.output import SCHEMA_VERSION, print_json

    text = api.show(args.id, args.db, args.form, workload=args.workload, target=args.target)
    if args.json:
        print_json({"schema_version": SCHEMA_VERSION, "record_id": args.id, "as": args.form, "text": text})
    else:
        print(text)
    return 0

"""`autosched db`: export and import of records as JSON Lines, check of a database file, its path."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autosched.cli import options

if TYPE_CHECKING:
    from autosched.store import Database


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "db", help="export, import and check records", description="Works on the record database."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, run, summary in (
        ("export", run_export, "write all records to a JSON Lines file"),
        ("import", run_import, "add the records of a JSON Lines file; bad lines are skipped and counted"),
        ("check", run_check, "check the file and the hash of every record"),
        ("path", run_path, "print where the database lies"),
    ):
        action = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name in ("export", "import"):
            action.add_argument("file", type=options.path, help="a JSON Lines file")
        options.add_db(action)
        options.add_json(action)
        action.set_defaults(run=run)


def run_export(args: argparse.Namespace) -> int:
    with _open(args) as database:
        n_records = database.export_jsonl(args.file)
        facts = {"records": n_records, "damaged": database.damaged, "file": str(args.file)}
    left_out = f", {facts['damaged']} damaged rows left out" if facts["damaged"] else ""
    return _answer(args, facts, f"{n_records} records written to {args.file}{left_out}")


def run_import(args: argparse.Namespace) -> int:
    from autosched.errors import StoreError

    with _open(args, create=True) as database:
        kept, skipped = database.import_jsonl(args.file)
        path = database.path
    if skipped and not kept:
        raise StoreError(
            f"none of the {skipped} lines of {args.file} is a record: name a file that `autosched db export` wrote"
        )
    facts = {"kept": kept, "skipped": skipped, "db": str(path)}
    return _answer(args, facts, f"{kept} records read into {path}, {skipped} damaged lines skipped")


def run_check(args: argparse.Namespace) -> int:
    from autosched.errors import StoreError
    from autosched.store import command

    with _open(args) as database:
        health = database.check()
        path = database.path
    facts = {
        "db": str(path),
        "ok": health.ok,
        "records": health.n_records,
        "damaged": health.n_damaged,
        "problems": list(health.problems),
    }
    if health.ok:
        return _answer(args, facts, f"{path} is sound: {health.n_records} records")
    words = f"{path} has {health.n_damaged} damaged rows and {len(health.problems)} problems of the file"
    rescue = command("db export", args.db)
    _answer(args, facts, f"{words}; {health.n_records} records can be read, `{rescue}` rescues them")
    return StoreError.exit_code


def run_path(args: argparse.Namespace) -> int:
    from autosched.store import absolute_path, default_path

    path = absolute_path(default_path() if args.db is None else args.db)
    return _answer(args, {"db": str(path), "exists": path.exists()}, str(path))


def _open(args: argparse.Namespace, *, create: bool = False) -> Database:
    from autosched.store import Database

    return Database(args.db, create=create)


def _answer(args: argparse.Namespace, facts: dict[str, object], sentence: str) -> int:
    from autosched.cli.output import SCHEMA_VERSION, print_json

    if args.json:
        print_json({"schema_version": SCHEMA_VERSION, **facts})
    else:
        print(sentence)
    return 0

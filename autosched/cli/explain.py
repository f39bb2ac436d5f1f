"""`autosched explain`: a record against the limits of the device, and what the next best one did otherwise."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autosched.cli import options

if TYPE_CHECKING:
    from autosched.store import Database, Record


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "explain",
        help="say why a record is as fast as it is",
        description="Compares a record with the device's limits, the cost model's view and the next best record.",
    )
    options.add_record(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched import api
    from autosched.cli.output import SCHEMA_VERSION, print_json, printable
    from autosched.cli.stored import record_time_text
    from autosched.store import Database

    with Database(args.db, create=False) as database:
        record = database.record(args.id)
        standing = _standing(database, record)
    facts = dict(api.explain(args.id, args.db, workload=args.workload, target=args.target))
    if args.json:
        print_json({"schema_version": SCHEMA_VERSION, "record_id": args.id, **standing, "facts": facts})
        return 0
    outcome = f"failed ({record.failure}): {record.message}"
    if record.seconds is not None:
        outcome = f"{record_time_text(record)}, number {standing['rank']} of {standing['measured']}"
    print(f"record {record.id}, sketch {printable(record.sketch)}: {printable(outcome)}")
    for name, value in facts.items():
        print(f"  {name.replace('_', ' ')}: {_value_text(name, value)}")
    other = standing["runner_up"]
    if isinstance(other, dict):
        print(f"  next best: record {other['record_id']}, {other['slowdown']:.3f} times this one's time; it has")
        for line in other["differences"]:
            print(f"    {printable(line)}")
    return 0


def _standing(database: Database, record: Record) -> dict[str, object]:
    """The record's place among those of its task, and the differences of the best other one."""
    ranked = database.best(record.workload, record.target, record.threads, n=None)
    ids = [r.id for r in ranked]
    other = next((r for r in ranked if r.id != record.id), None)
    runner_up = None
    if other is not None and other.seconds is not None and record.seconds is not None:
        runner_up = {
            "record_id": other.id,
            "slowdown": other.seconds / record.seconds,
            "differences": _differences(record, other),
        }
    return {
        "seconds": record.seconds,
        "failure": record.failure,
        "verified": record.verified,
        "rank": ids.index(record.id) + 1 if record.id in ids else None,
        "measured": len(ids),
        "runner_up": runner_up,
    }


def _differences(record: Record, other: Record) -> list[str]:
    """What `other` chose differently, parameter by parameter; another sketch is one line."""
    if record.sketch != other.sketch:
        return [f"sketch {other.sketch} instead of {record.sketch}"]
    names = sorted({*record.values, *other.values})
    return [
        f"{name} = {other.values.get(name)} instead of {record.values.get(name)}"
        for name in names
        if record.values.get(name) != other.values.get(name)
    ]


def _value_text(name: str, value: object) -> str:
    from autosched.cli.output import printable, time_text

    if isinstance(value, float):
        return time_text(value) if name.endswith("_s") else f"{value:.4g}"
    return printable(str(value))

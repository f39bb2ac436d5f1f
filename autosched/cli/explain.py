"""`autosched explain`: a record or a network's kernels against the roofline of the device; of a record also the
differences to the next best one.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autosched.cli.network import arguments

if TYPE_CHECKING:
    from autosched.inspection.network import Explanation
    from autosched.store import Database, Record

WIDEST = 40  # width of the column of operators


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "explain",
        help="say why a record or a network is as fast as it is",
        description=(
            "Compares a record with the device's limits, the cost model's view and the next best record, or times each "
            "kernel of a network as it runs in it, and compares it with the device's limits."
        ),
    )
    arguments.add_record_or_network(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if isinstance(args.id, int):
        arguments.check_record(args)
        return _explain_record(args)
    return _explain_network(args)


def _explain_network(args: argparse.Namespace) -> int:
    from autosched import api
    from autosched.cli.output import SCHEMA_VERSION, print_json

    model = arguments.load_network(arguments.require_network(args.id, args), args)
    explanation = api.explain(model)
    if args.json:
        facts = {"schema_version": SCHEMA_VERSION, "model": args.id, "threads": model.threads}
        print_json({**facts, **_network_facts(explanation)})
    else:
        print(_network_text(explanation))
    return 0


def _network_facts(explanation: Explanation) -> dict[str, object]:
    layers = [
        {
            "operators": layer.operators,
            "origins": list(layer.origins),
            "count": layer.count,
            "seconds": layer.seconds,
            "share": explanation.share(layer),
            "flops": layer.flops,
            "bytes": layer.n_bytes,
            "least_s": layer.least_s,
            "fraction_of_roofline": layer.roofline_fraction,
        }
        for layer in explanation.layers
    ]
    sums = {
        "kernels_s": explanation.kernels_s,
        "call_s": explanation.call_s,
        "least_s": explanation.least_s,
        "flops": explanation.flops,
    }
    split = [{"operators": group.operators, "reason": group.reason} for group in explanation.split]
    forms = [part.to_json() for part in explanation.fusion_choices]
    fallbacks = [
        {"operators": list(part.operators), "engine": part.engine, "seconds": part.seconds}
        for part in explanation.fallbacks
    ]
    return {**sums, "layers": layers, "fallbacks": fallbacks, "split": split, "alternatives": forms}


def _network_text(explanation: Explanation) -> str:
    """Return a table with a row for each task, and the sums."""
    from autosched.cli.output import rate_text, share_text, table, time_text

    rows = []
    for layer in explanation.layers:
        seconds = max(layer.seconds, 1e-12)
        more = f" and {layer.count - 1} more" if layer.count > 1 else ""
        times = (time_text(layer.seconds), share_text(explanation.share(layer)))
        rates = (rate_text(layer.flops / seconds / 1e9), f"{layer.n_bytes / seconds / 1e9:.1f} GB/s")
        least = (time_text(layer.least_s), share_text(layer.roofline_fraction))
        origin = f"{layer.origins[0]}{more}" if layer.origins else ""
        rows.append((_fitted(layer.operators), str(layer.count), *times, *rates, *least, origin))
    header = ("kernel", "count", "time", "share", "operations", "traffic", "least", "of it", "origin")
    share = share_text(explanation.least_s / max(explanation.kernels_s, 1e-12))
    sums = (
        f"kernels {time_text(explanation.kernels_s)} together, a call {time_text(explanation.call_s)}; "
        f"least {time_text(explanation.least_s)}, {share} of the kernels' time"
    )
    return "\n".join(
        [
            table(header, rows),
            sums,
            *map(str, (*explanation.fallbacks, *explanation.split, *explanation.fusion_choices)),
        ]
    )


def _fitted(text: str) -> str:
    """Return the operators of a kernel, cut to the width of the column."""
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


def _explain_record(args: argparse.Namespace) -> int:
    from autosched import api
    from autosched.cli.output import SCHEMA_VERSION, print_json, printable
    from autosched.cli.stored_tasks import record_time_text
    from autosched.store import Database

    with Database(args.db, create=False) as database:
        record = database.record(args.id)
        standing = _rank_facts(database, record)
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


def _rank_facts(database: Database, record: Record) -> dict[str, object]:
    """Return the record's rank in its task, and the differences of the best other record."""
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
    """Return the parameters that differ in `other`, or one line for another sketch."""
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

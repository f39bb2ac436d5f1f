"""`autosched workloads`: the built-in operators, their arguments and benchmark shapes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autosched.cli import options

if TYPE_CHECKING:
    from autosched.te.operators.registry import BuiltinWorkload


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("workloads", help="list the built-in workloads", description="Lists built-in workloads.")
    parser.add_argument("workload", nargs="?", help="show the arguments, types and shapes of this one only")
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched.cli.output import SCHEMA_VERSION, print_json, table
    from autosched.te.operators.registry import WORKLOADS, find

    chosen = list(WORKLOADS.values()) if args.workload is None else [find(args.workload)]
    if args.json:
        rows = [
            {
                "name": w.name,
                "args": list(w.args),
                "defaults": list(w.defaults),
                "dtypes": list(w.dtypes),
                "summary": w.summary,
                "shapes": [list(s) for s in w.shapes],
            }
            for w in chosen
        ]
        print_json({"schema_version": SCHEMA_VERSION, "workloads": rows})
    elif args.workload is None:
        cells = [(w.name, _arguments(w), w.summary) for w in chosen]
        print(table(("name", "arguments", "what"), cells))
    else:
        workload = chosen[0]
        print(f"{workload.name}: {workload.summary}")
        print(f"  arguments  {_arguments(workload)}")
        print(f"  --dtype    {', '.join(workload.dtypes)}")
        for shape in workload.shapes:
            print(f"  --shape {','.join(map(str, shape))}")
    return 0


def _arguments(workload: BuiltinWorkload) -> str:
    """Return every argument with its default: 'N=1 CO=64 layout=NHWC'."""
    return " ".join(f"{n}={d}" for n, d in zip(workload.args, workload.defaults, strict=True))

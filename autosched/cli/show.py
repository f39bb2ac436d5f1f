"""`autosched show`: a record as schedule steps, loop nest or generated code, or a network as text."""

from __future__ import annotations

import argparse

from autosched.backends import VARIANTS, forms
from autosched.cli import options
from autosched.cli.network import arguments
from autosched.errors import UsageError

NETWORK_FORMS = ("graph", "groups", "memory", "dot")  # beside the code


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "show",
        help="show a record's schedule or code, or a network",
        description="Shows a record, or a network after passes, for a --target that need not be there: its graph, "
        "kernels (groups), arena (memory), code (llvm, cuda, opencl), a drawing (dot), or what each pass makes of it.",
    )
    parser.add_argument(
        "--as", dest="form", choices=(*forms(), VARIANTS, *NETWORK_FORMS),
        help="default: ir, the loop nest of a record, or graph of a network",
    )  # fmt: skip
    parser.add_argument(
        "--sizes", type=options.sizes, action="append", default=[], metavar="NAME=A:B",
        help="the range of a number of a record's workload, for its variants",
    )  # fmt: skip
    arguments.add_record_or_network(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched.cli.output import SCHEMA_VERSION, print_json

    is_record = isinstance(args.id, int)
    form = args.form or ("ir" if is_record else "graph")
    text = _record(args, form) if is_record else _network(args, form)
    if args.json:
        subject = {"record_id": args.id} if is_record else {"model": args.id}
        print_json({"schema_version": SCHEMA_VERSION, **subject, "as": form, "text": text})
    else:
        print(text)
    return 0


def _record(args: argparse.Namespace, form: str) -> str:
    from autosched import api

    arguments.check_record(args)
    sizes = options.size_ranges(args) or None
    return api.show(args.id, args.db, form, sizes=sizes, workload=args.workload, target=args.target)


def _network(args: argparse.Namespace, form: str) -> str:
    from autosched import api

    network = arguments.require_network(args.id, args)
    if args.sizes:
        raise UsageError(f"--sizes is for variants of records, and {args.id} is a network: give --size")
    sizes = arguments.sizes(args.size)
    return api.show(
        network.model, form, example_inputs=network.example_inputs, sizes=sizes,
        inputs=arguments.fixed_values(args.fix), target=args.target or "cpu", threads=args.threads,
    )  # fmt: skip

"""`autosched verify`: verification of a record's kernel, or of a whole network, against the reference."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autosched.cli import options
from autosched.cli.network import arguments
from autosched.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from autosched.verification.tolerances import Comparison
    from autosched.verification.verify import KernelCheck, Verification

SHOWN = 5  # number of kernels shown, those with errors nearest to their bounds


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "verify",
        help="check a record's kernel or a network against the reference",
        description=(
            "Rebuilds a record's kernel and compares its result with the reference, or compares a network and each of "
            "its kernels with the imported graph in float64; exit code 4 if it differs."
        ),
    )
    arguments.add_record_or_network(parser)
    parser.add_argument(
        "--inputs", type=options.path, metavar="FILE.npz", help="arrays by the inputs' names, for a network"
    )
    parser.add_argument("--locate", action="store_true", help="stop at the first kernel beyond its bound")
    parser.add_argument("--onnxruntime", action="store_true", help="compare an ONNX file with onnxruntime, too")
    arguments.add_simulate(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if isinstance(args.id, int):
        arguments.check_record(args, "inputs", "locate", "onnxruntime", "simulate")
        return _verify_record(args)
    return _verify_network(args)


def _verify_record(args: argparse.Namespace) -> int:
    from autosched import api
    from autosched.cli.output import SCHEMA_VERSION, print_json, time_text

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


def _verify_network(args: argparse.Namespace) -> int:
    from autosched import api
    from autosched.cli.output import SCHEMA_VERSION, print_json

    network = arguments.require_network(args.id, args)
    if args.onnxruntime and network.suffix != arguments.ONNX:
        raise UsageError(f"onnxruntime runs ONNX files, and {args.id} is none")
    model = arguments.load_network(network, args)
    fixed = arguments.fixed_values(args.fix)
    given = arguments.arrays_for(model.inputs, network, args.inputs, fixed)
    onnx = network.model if args.onnxruntime else None
    verification = api.verify(model, given, locate=args.locate, onnxruntime=onnx, fixed=fixed)
    if args.json:
        facts = {"schema_version": SCHEMA_VERSION, "model": args.id, "threads": model.threads}
        print_json(
            {**facts, "verified": verification.passed, "message": verification.summary(), **_described(verification)}
        )
        return 0 if verification.passed else VerificationError.exit_code
    print(_text(verification))
    if not verification.passed:
        raise VerificationError(f"{args.id} is not verified: {verification.summary()}")
    print(f"{args.id} is verified: {verification.summary()}")
    return 0


def _text(verification: Verification) -> str:
    """Return the errors of the outputs, and those of the kernels nearest to their bounds."""
    from autosched.cli.output import table

    rows = [(f"output {c.name}, {kind} inputs", *_cells(c)) for kind, cs in verification.outputs.items() for c in cs]
    rows += [
        (f"onnxruntime's {c.name}, {kind} inputs", *_cells(c)) for kind, cs in verification.foreign.items() for c in cs
    ]
    kernels = sorted(verification.kernels, key=lambda kernel: -kernel.worst.relative_error)[:SHOWN]
    rows += [(f"kernel {kernel.step}: {kernel.label}", *_cells(kernel.worst)) for kernel in kernels]
    if len(verification.kernels) > SHOWN:
        rows.append((f"{len(verification.kernels) - SHOWN} more kernels", *[""] * 5))
    return table(("what", "rms", "bound", "largest", "bound", ""), rows)


def _cells(c: Comparison) -> tuple[str, ...]:
    numbers = (c.error.rms, c.tolerance.rms, c.error.largest, c.tolerance.largest)
    return *(f"{x:.1e}" for x in numbers), "" if c.passed else "WRONG"


def _described(verification: Verification) -> dict[str, object]:
    return {
        "outputs": [{"inputs": kind, **_facts(c)} for kind, cs in verification.outputs.items() for c in cs],
        "kernels": [_kernel_facts(kernel) for kernel in verification.kernels],
        "first_wrong": None if verification.first_wrong is None else _kernel_facts(verification.first_wrong),
        "passes": list(map(_facts, verification.ideal)),
        "onnxruntime": [{"inputs": kind, **_facts(c)} for kind, cs in verification.foreign.items() for c in cs],
        "max_error": max((c.error.largest for c in verification.all_outputs), default=None),
    }


def _kernel_facts(kernel: KernelCheck) -> dict[str, object]:
    facts = {"step": kernel.step, "operators": kernel.operators, "origin": kernel.origin}
    return {**facts, **_facts(kernel.worst)}


def _facts(c: Comparison) -> dict[str, object]:
    return {
        "name": c.name,
        "rms": c.error.rms,
        "rms_bound": c.tolerance.rms,
        "largest": c.error.largest,
        "largest_bound": c.tolerance.largest,
        "passed": c.passed,
    }

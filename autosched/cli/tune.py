"""`autosched tune`: search of a workload's kernel, with its progress and the next commands.

A network is tuned as a whole, see `cli.network.tune`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from autosched.cli import options
from autosched.cli.network import arguments
from autosched.errors import UsageError
from autosched.ir.instructions.precision import EXACT

if TYPE_CHECKING:
    from autosched.kernel.sizes.tuning import SizesResult
    from autosched.tuner.result import Result

TRIALS = 64
TRIALS_OF_A_BUDGET = 10_000  # trials with --budget alone: more than any budget allows, so that the time ends the search


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "tune",
        help="search for the fastest kernel of a workload, or the kernels of a network",
        description="Searches for the fastest kernel of a workload, or for those of a network; every measured "
        "candidate is verified and recorded.",
    )
    parser.add_argument(
        "workload",
        help="a built-in name (see `autosched workloads`), path/to/file.py:function, or a network: MODEL.onnx",
    )
    parser.add_argument("more", nargs="*", metavar="MODEL.onnx", help="further networks, which are tuned together")
    options.add_workload(parser)
    options.add_weights(parser, "inputs that never change: they are packed once, ahead of time, and that is not timed")
    options.add_winograd(parser, "3x3 convolutions may take fewer operations, with a larger error (processors only)")
    options.add_precision(parser, "how precisely float32 is multiplied (CUDA only)")
    options.add_target(parser)
    arguments.add_sizes(parser)
    arguments.add_size_lists(parser)
    group = parser.add_argument_group("search")
    group.add_argument(
        "--trials",
        type=options.integer(1),
        metavar="N",
        help=f"candidates to measure (default {TRIALS}; with --budget alone, what fits in the time; of a network, what "
        "is worth it)",
    )
    group.add_argument("--budget", type=options.duration, metavar="TIME", help="stop after 60s, 2m or 1h")
    group.add_argument("--seed", type=options.integer(0), default=0, metavar="S", help="default 0")
    group.add_argument(
        "--resume",
        action="store_true",
        help="count the records of earlier runs as trials, but for candidates that could not be built",
    )
    arguments.add_scheduler_options(group)
    options.add_db(parser)
    parser.add_argument(
        "--no-run",
        action="store_true",
        help="search by the cost model alone, for any device: nothing is measured, verified or recorded",
    )
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="like --no-run, but kernels for CUDA are executed on the processor (by g++), and only right ones kept",
    )
    parser.add_argument(
        "--out-dir", type=options.path, metavar="DIR", help="write the sources of the best candidates there"
    )
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched import api
    from autosched.cli.interrupts import INTERRUPTED
    from autosched.cli.network.tune import tune_named
    from autosched.cli.output import print_json
    from autosched.cli.progress import watcher
    from autosched.kernel.sizes.tuning import SizesResult
    from autosched.tuner.policy import SearchSetup

    networks = arguments.find_networks((args.workload, *args.more), options.settings(args))
    if networks:
        return tune_named(networks, args)
    for name in ("size", "fix", "strategy", "objective"):
        if getattr(args, name):
            raise UsageError(f"--{name} is of networks, and {args.workload} is none")
    trials = args.trials or (TRIALS if args.budget is None else TRIALS_OF_A_BUDGET)
    without_device = args.no_run or args.simulate
    with watcher(as_json=args.json, budget_s=args.budget) as callbacks:
        result: Any = api.tune(
            args.workload,
            **options.workload_keywords(args),
            trials=trials,
            budget_s=args.budget,
            seed=args.seed,
            db=args.db,
            resume=args.resume,
            out_dir=args.out_dir,
            callbacks=callbacks,
            search=SearchSetup(measure=not without_device, simulate=args.simulate, started=args.started),
            **over_sizes(args),
        )
    if args.json:
        print_json(result.to_json())
    elif isinstance(result, SizesResult):
        print("\n".join([*(summary(own.result, args.db) for own in result.classes), *size_lines(result)]))
    else:
        print(estimate(result, args.out_dir) if without_device else summary(result, args.db))
    return INTERRUPTED if result.interrupted else 0


def over_sizes(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords of tuning over sizes; none without --sizes and --at."""
    ranges, at = options.size_ranges(args), dict(args.at)
    return {"sizes": ranges or None, "at": at} if ranges or at else {}


def size_lines(result: SizesResult) -> list[str]:
    """Return a line for each of the sizes that were tuned for, with the time of the class's schedule."""
    from autosched.cli.output import time_text

    names = [*result.kernel.ranges]
    return [
        f"  {', '.join(f'{name}={n}' for name, n in zip(names, sizes, strict=True))}  {time_text(seconds)}"
        for own in result.classes
        for sizes, seconds in own.seconds.items()
    ]


def summary(result: Result, db: Path | None = None) -> str:
    """Return the result of a search in a few lines, with the next commands."""
    from autosched.cli.output import clock_text, device_text, interval_text, is_gpu, rate_text, share_text, time_text
    from autosched.store import command

    peak = ""
    if result.fraction_of_peak is not None:
        peak = f", {share_text(result.fraction_of_peak)} of the measured peak of {rate_text(result.peak_gflops)}"
    failures = ", ".join(f"{n} {kind}" for kind, n in sorted(result.failures.items()))
    taken_over = f", {result.resumed} of them from records" if result.resumed else ""
    phases = ("prepare", "search", "model", "build", "check", "measure", "other")
    spent = ", ".join(f"{name} {time_text(getattr(result, f'{name}_s'))}" for name in phases)
    first = "" if result.first_result_s is None else f"; first verified kernel after {time_text(result.first_result_s)}"
    once = [f"  weights {', '.join(result.weights)}, prepared once; times are without that"] if result.weights else []
    larger = ["  Winograd's error is accepted; rates count the direct form's operations"] if result.winograd else []
    lines = [
        f"{result.workload} {result.shape} {result.dtype} on {device_text(result.target, result.threads)}",
        *once,
        *larger,
        *([] if result.precision == EXACT else [f"  products by {result.precision}"]),
        f"  best    {interval_text(result.best_s, result.best_ci_s)}, {rate_text(result.gflops)}{peak}",
        f"  trials  {result.trials} measured{taken_over}, {result.failed} failed{f' ({failures})' if failures else ''}",
        f"  time    {clock_text(result.wall_s)} min ({spent}){first}",
    ]
    if result.record_id is not None:
        lines.append(f"  record  {result.record_id}, {'verified' if result.verified else 'NOT verified'}")
        kind = result.target.split()[0] if is_gpu(result.target) else "so"
        workload = quote(result.workload)
        own = f" --workload {workload}" if ":" in workload else ""
        named = "" if result.target == "cpu" or is_gpu(result.target) else f" --target {quote(result.target)}"
        number = f"{result.record_id}{own}{named}"
        asked = " --winograd" if result.winograd else ""
        asked += "" if result.precision == EXACT else f" --precision {result.precision}"
        verbs = (f"show {number}", f"best {workload}{named}{asked}", f"export {number} --kind {kind}")
        lines.append("  next    " + "  |  ".join(command(verb, db) for verb in verbs))
    if result.interrupted:
        lines.append("  interrupted; everything measured so far is saved, --resume goes on")
    return "\n".join(lines)


def estimate(result: Result, out_dir: Path | None) -> str:
    """Return the result of a search without measurements."""
    from autosched.cli.output import device_text, rate_text, time_text

    values = ", ".join(f"{name}={value}" for name, value in result.values.items())
    wrong = f" ({result.failed} of {result.trials} candidates are wrong)" if result.failed else ""
    verified = f"verified in the simulator{wrong}" if result.verified else "NOT verified"
    lines = [
        f"{result.workload} {result.shape} {result.dtype} on {device_text(result.target, result.threads)}",
        f"  estimate  {time_text(result.best_s)}, {rate_text(result.gflops)} by the cost model, {verified}",
        f"  sketch    {result.sketch}",
        f"  values    {values or 'none'}",
        f"  sources   {'not written; --out-dir DIR writes them' if out_dir is None else out_dir}",
    ]
    return "\n".join(lines)

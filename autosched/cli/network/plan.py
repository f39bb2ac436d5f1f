"""`autosched tune MODEL.onnx --no-run`: ahead-of-time estimate of a network by the cost model, for any device."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from autosched.errors import UsageError
from autosched.ir.instructions.precision import EXACT

if TYPE_CHECKING:
    from autosched.cli.network.arguments import NamedNetwork
    from autosched.network_tuning.estimate import NetworkPlan

COLUMNS = ("kernel", "count", "share", "estimate", "rate", "sketch", "operators")
SEARCH_OPTIONS = ("trials", "budget", "resume", "strategy", "objective", "db")  # need measurements
# Options of workloads with their defaults.
WORKLOAD_OPTIONS: Mapping[str, object] = {
    "shape": None,
    "batch": None,
    "dtype": None,
    "weights": (),
    "precision": EXACT,
}


def plan_named(networks: Sequence[NamedNetwork], args: argparse.Namespace) -> int:
    """Run the command for one network, and return its exit code."""
    import autosched
    from autosched.cli import options
    from autosched.cli.network.arguments import fixed_values, sizes
    from autosched.cli.output import print_json

    if len(networks) != 1:
        raise UsageError(f"--no-run takes one network, got {len(networks)}: run it for each of them")
    given = next((name for name in SEARCH_OPTIONS if getattr(args, name)), None)
    if given is not None:
        raise UsageError(f"--{given} is of measurements, and by the model alone (--no-run) there are none")
    other = next((name for name in WORKLOAD_OPTIONS if getattr(args, name) != WORKLOAD_OPTIONS[name]), None)
    if other is not None:
        raise UsageError(f"--{other} is of workloads, and not taken for a network: leave it out")
    (network,) = networks
    plan = autosched.plan(
        network.model,
        network.example_inputs,
        sizes=sizes([*args.size, *network.sizes]),
        inputs=fixed_values(args.fix),
        target=options.target_text(args),
        threads=args.threads,
        out_dir=args.out_dir,
        winograd=bool(args.winograd),
    )
    if args.json:
        print_json({**plan.to_json(), "model": network.word})
    else:
        print(summary(network.word, plan))
    return 0


def summary(word: str, plan: NetworkPlan) -> str:
    """Return the estimate of the network in a few lines, with a line for each task."""
    from autosched.cli.output import device_text, rate_text, share_text, table, time_text

    rows = [
        [
            str(number),
            str(task.count),
            share_text(task.total_s / max(plan.estimate_s, 1e-12)),
            time_text(task.estimate_s),
            rate_text(1e-9 * task.flops / max(task.estimate_s, 1e-12)),
            task.sketch,
            task.name,
        ]
        for number, task in enumerate(plan.tasks, start=1)
    ]
    where = "not written; --out-dir DIR writes them" if not plan.files else str(plan.files[0].parent)
    lines = [
        f"{word} on {device_text(plan.target, plan.threads)}: {plan.n_kernels} kernels, {len(plan.tasks)} tasks",
        f"  estimate  {time_text(plan.estimate_s)} of all kernels by the cost model, NOT verified",
        f"  memory    weights {plan.weights_bytes} bytes, arena {plan.arena_bytes} bytes",
        f"  sources   {where}",
        *(f"  {line}" for line in table(COLUMNS, rows).splitlines()),
    ]
    return "\n".join(lines)

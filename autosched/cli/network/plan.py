"""`autosched tune MODEL.onnx --no-run`: the kernels of a network by the cost model alone, for any device."""

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
MEASURED = ("trials", "budget", "resume", "strategy", "objective", "db")  # what a search without measurements has not

OF_WORKLOADS: Mapping[str, object] = {"shape": None, "batch": None, "dtype": None, "weights": (), "precision": EXACT}


def plan_named(networks: Sequence[NamedNetwork], args: argparse.Namespace) -> int:
    """The command without measurements, for one network; its exit code."""
    import autosched
    from autosched.cli import options
    from autosched.cli.network.arguments import fixed_values, sizes
    from autosched.cli.output import print_json

    if len(networks) != 1:
        raise UsageError(f"--no-run takes one network, got {len(networks)}: run it for each of them")
    given = next((name for name in MEASURED if getattr(args, name)), None)
    if given is not None:
        raise UsageError(f"--{given} is of measurements, and by the model alone (--no-run) there are none")
    other = next((name for name in OF_WORKLOADS if getattr(args, name) != OF_WORKLOADS[name]), None)
    if other is not None:
        raise UsageError(f"--{other} is of workloads, and not taken for a network: leave it out")
    (network,) = networks
    found = autosched.plan(
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
        print_json({**found.to_json(), "model": network.word})
    else:
        print(summary(network.word, found))
    return 0


def summary(word: str, plan: NetworkPlan) -> str:
    """What is expected of the network in a few lines, and of each task in one."""
    from autosched.cli.output import device_text, rate_text, share_text, table, time_text

    rows = [
        [
            str(place),
            str(task.count),
            share_text(task.total_s / max(plan.estimate_s, 1e-12)),
            time_text(task.estimate_s),
            rate_text(1e-9 * task.flops / max(task.estimate_s, 1e-12)),
            task.sketch,
            task.name,
        ]
        for place, task in enumerate(plan.tasks, start=1)
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

"""`autosched tune MODEL.onnx`: tunes the kernels of networks, and shows the progress of the tasks."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TextIO

from autosched.cli.output import clock_text, share_text, time_text
from autosched.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

    from autosched.cli.network.arguments import NamedNetwork
    from autosched.network_tuning.results import (
        NetworkCallback,
        NetworkEvent,
        NetworkResult,
        NetworksResult,
        TaskResult,
    )

MAX_ROWS = 12  # of the table of tasks, those with the largest share
INTERRUPTED_TEXT = "  interrupted; everything measured so far is saved, --resume goes on"
COLUMNS = ("task", "count", "share", "best", "of roofline", "trials")


def tune_named(networks: Sequence[NamedNetwork], args: argparse.Namespace) -> int:
    """Run the command for one or more networks, and return its exit code."""
    from autosched.cli.interrupts import INTERRUPTED
    from autosched.cli.network.arguments import check_options, with_size_lists
    from autosched.cli.network.plan import plan_named
    from autosched.cli.output import print_json
    from autosched.network_tuning.results import NetworksResult

    for network in networks:
        check_options(network, args)
    if args.at:
        raise UsageError("--at is of workloads, and not taken for a network: leave it out")
    networks = with_size_lists(networks, args.sizes)
    if args.simulate:
        raise UsageError(
            "tune measures the kernels of a network, or takes what the model likes with --no-run: autosched verify has "
            "--simulate"
        )
    if args.no_run:
        return plan_named(networks, args)
    if args.out_dir is not None:
        raise UsageError("--out-dir is of workloads, and of networks with --no-run: leave it out, or give --no-run")
    result: NetworkResult | NetworksResult
    with _watcher(as_json=args.json) as callbacks:
        if len(networks) == 1:
            result = _tune_one(networks[0], args, callbacks)
            parts = result.networks if isinstance(result, NetworksResult) else (result,)
            text = [summary(networks[0], part, args) for part in parts]
            data = {**result.to_json(), "model": networks[0].word}
        else:
            result = _tune_together(networks, args, callbacks)
            text, data = summaries(networks, result, args), result.to_json()
    if args.json:
        print_json(data)
    else:
        print("\n".join([*text, INTERRUPTED_TEXT] if result.interrupted else text))
    if not result.verified:
        return VerificationError.exit_code
    return INTERRUPTED if result.interrupted else 0


def _tune_one(
    network: NamedNetwork, args: argparse.Namespace, callbacks: Sequence[NetworkCallback]
) -> NetworkResult | NetworksResult:
    from autosched import api
    from autosched.cli import options
    from autosched.cli.network.arguments import fixed_values, sizes

    keywords = options.workload_keywords(args)
    keywords["settings"] = None  # the function was called with them
    return api.tune(
        network.model,
        **keywords,
        **_effort(args),
        example_inputs=network.example_inputs,
        sizes=sizes([*args.size, *network.sizes]),
        inputs=fixed_values(args.fix),
        callbacks=callbacks,
    )


def _tune_together(
    networks: Sequence[NamedNetwork], args: argparse.Namespace, callbacks: Sequence[NetworkCallback]
) -> NetworksResult:
    from autosched import api
    from autosched.cli import options
    from autosched.cli.network.arguments import load_network

    keywords = options.workload_keywords(args)
    keywords["settings"] = None
    models = {network.name: load_network(network, args) for network in networks}
    if len(models) < len(networks):
        raise UsageError(
            "networks that are tuned together need names of their own, but two are the same of "
            f"{', '.join(n.name for n in networks)}: rename a file or function"
        )
    return api.tune(models, **keywords, **_effort(args), callbacks=callbacks)


def _effort(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of budget and task scheduler as keywords of `tune`."""
    from autosched.tuner.policy import SearchSetup

    chosen = {name: getattr(args, name) for name in ("strategy", "objective") if getattr(args, name) is not None}
    return {
        "trials": args.trials,
        "budget_s": args.budget,
        "seed": args.seed,
        "db": args.db,
        "resume": args.resume,
        "search": SearchSetup(started=args.started),
        **chosen,
    }


def summaries(networks: Sequence[NamedNetwork], result: NetworksResult, args: argparse.Namespace) -> list[str]:
    """Return the results of tuning several networks: a summary of each, and a line on the objective."""
    texts = [summary(n, r, args) for n, r in zip(networks, result.networks, strict=True)]
    name, start, now = result.networks[0].objective, result.start_value, result.value
    return [*texts, f"objective {name}: {now:.6g}, {start:.6g} at the start"]


def summary(network: NamedNetwork, result: NetworkResult, args: argparse.Namespace) -> str:
    """Return the result of tuning a network in a few lines: times, the largest tasks, and the next command."""
    from autosched.cli.output import device_text, interval_text, table
    from autosched.store import command

    device = result.model.device
    now, start = interval_text(result.latency_s, result.latency_ci_s), time_text(result.start_latency_s)
    checked = "verified" if result.verified else "NOT verified"
    word = " ".join([network.word, *_sizes(network.sizes)])
    resumed = f", {result.resumed} of them from records" if result.resumed else ""
    lines = [
        f"{word} on {device_text(args.target or 'cpu', device.threads)}: {len(result.tasks)} tasks",
        f"  latency  {now}, {start} at the start, {result.start_latency_s / result.latency_s:.2f} times as fast",
        f"  kernels  {time_text(result.kernels_s)} together; arena {result.model.arena_bytes} bytes",
        f"  trials   {result.trials} measured{resumed}, {result.failed} failed; by {result.strategy}",
        f"  time     {clock_text(result.wall_s)} min; first run after {time_text(result.first_result_s)}",
        f"  result   {checked}, largest error {result.max_error:.2g} of the largest number",
        *(f"  failed   {task.name}: {task.error}" for task in result.tasks if task.error),
        *(f"  form     {part}" for part in result.parts),
        *(f"  {line}" for line in table(COLUMNS, _rows(result.tasks)).splitlines()),
        f"  next     {command(f'plot {quote(network.word)}{_options(network, args)}', args.db)}",
    ]
    return "\n".join(lines)


def _sizes(pairs: Sequence[tuple[str, object]]) -> list[str]:
    return [f"{name}={value}" for name, value in pairs]


def _value_text(value: object) -> str:
    return str(value) if isinstance(value, Path) else json.dumps(value)


def _options(network: NamedNetwork, args: argparse.Namespace) -> str:
    """Return the options that select this network and its threads in another command."""
    given = [f"--size {size}" for size in _sizes([*args.size, *network.sizes])]
    given += [f"--fix {quote(f'{name}={_value_text(value)}')}" for name, value in args.fix]
    given += [f"--set {setting}" for setting in _sizes(args.settings)]
    given += ["--winograd"] if args.winograd else []
    given += [] if args.threads is None else [f"--threads {args.threads}"]
    return "".join(f" {words}" for words in given)


def _rows(tasks: Sequence[TaskResult]) -> list[list[str]]:
    largest = sorted(tasks, key=lambda task: -task.share)[:MAX_ROWS]
    return [
        [
            t.name,
            str(t.count),
            share_text(t.share),
            time_text(t.best_s),
            share_text(t.fraction_of_roofline),
            str(t.trials),
        ]
        for t in largest
    ]


@contextmanager
def _watcher(*, as_json: bool) -> Iterator[tuple[NetworkCallback, ...]]:
    """Yield the callbacks of a search. With `as_json` they write to stderr, and only if that is a terminal."""
    stream = sys.stderr if as_json else sys.stdout
    is_terminal = stream.isatty()
    if as_json and not is_terminal:
        yield ()
    elif as_json or not is_terminal or os.environ.get("TERM") == "dumb":
        yield (RoundLines(stream),)
    else:
        live = LiveTable()
        try:
            yield (live,)
        finally:
            live.close()  # restores the cursor even if the search raises


def state_text(event: NetworkEvent) -> str:
    """'[1:05] 96 trials  kernels 4.1 ms, 4.5 ms at the start, 3 % may be left'."""
    text = f"[{clock_text(event.elapsed_s)}] {event.trials}"
    text += " trials" if event.most_trials is None else f"/{event.most_trials} trials"
    if event.kernels_s is None or event.start_s is None:
        done = sum(task.best_s is not None for task in event.tasks)
        return f"{text}  {done} of {len(event.tasks)} tasks have a verified kernel"
    left = share_text(event.gain)
    eta = "" if event.eta_s is None else f", {clock_text(event.eta_s)} left"
    return (
        f"{text}  kernels {time_text(event.kernels_s)}, {time_text(event.start_s)} at the start, "
        f"{left} may be gained by a round of each{eta}"
    )


class RoundLines:
    """Progress as a line for each round, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def on_turn(self, event: NetworkEvent) -> None:
        task = "" if event.turn is None else f"  next: {event.tasks[event.turn].name}"
        self._line(f"{state_text(event)}{task}")

    def on_end(self, event: NetworkEvent) -> None:
        self._line(f"{state_text(event)}  final comparison")

    def _line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveTable:
    """Progress as a table of the largest tasks, redrawn in place before each round, so never during a measurement."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def on_turn(self, event: NetworkEvent) -> None:
        from rich.live import Live

        if self._live is None:
            self._live = Live(auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(_render(event), refresh=True)

    def on_end(self, event: NetworkEvent) -> None:
        self.on_turn(event)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _render(event: NetworkEvent) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == COLUMNS[0] else "right")
    for row in _rows(event.tasks):
        table.add_row(*map(Text, row))
    return Group(Text(state_text(event)), table)

"""The script: `experiments.gpu` says what it does."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import experiments.gpu
from autosched.cli.interrupts import interrupted_by_signals
from autosched.errors import AutoschedError, Interrupted
from experiments.gpu import board
from experiments.gpu.card_ledger import CardLedger
from experiments.gpu.step import encode
from experiments.gpu.steps import DEFAULT, CardStep, StepRequest, chosen, seconds_of, step_table

RESERVE_S = 3.0  # for the table
LEAST_S = 3.0  # a step with less is not begun
GRACE_S = 3.0  # beyond what a step was told, for it to end by itself
LOG_TAIL = 400


@dataclass(frozen=True)
class Ended:
    """How a step's process ended: "done", or what happened to it."""

    how: str
    seconds: float


def run_step(request: StepRequest, receive: Callable[[str], None], log: Path) -> Ended:
    """The lines of the step's process go to `receive`; its process group is killed at the deadline."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "experiments.gpu.step", encode(request)]
    with log.open("ab") as errors:
        errors.write(f"== {request.step}\n".encode())
        errors.flush()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True
        )
    in_time = False
    try:
        in_time = _lines(process, begun + request.seconds + GRACE_S, receive)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM if in_time else signal.SIGKILL)
        status = process.wait()
    spent = time.monotonic() - begun
    if not in_time:
        return Ended("killed at its deadline", spent)
    if status == 0:
        return Ended("done", spent)
    return Ended(f"ended with {status}: {_last_words(log)}", spent)


def _lines(process: subprocess.Popen[bytes], give_up: float, receive: Callable[[str], None]) -> bool:
    """Hands on what the process prints until it has ended; False when it has not in time."""
    assert process.stdout is not None
    descriptor, kept = process.stdout.fileno(), b""
    while True:
        left = give_up - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return False
        data = os.read(descriptor, 1 << 16)
        if not data:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, give_up - time.monotonic()))
            return process.poll() is not None
        *lines, kept = (kept + data).split(b"\n")
        for line in lines:
            receive(line.decode(errors="replace"))


def _last_words(log: Path) -> str:
    """The last line that is none of a progress report."""
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:LOG_TAIL] if lines else ""
    return ""


def run(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Every step in its turn; none stops the next."""
    begun = time.monotonic()
    steps = chosen(args.steps)
    board.build_parser().parse_args(list(words))  # a wrong word is said now
    args.out.mkdir(parents=True, exist_ok=True)
    ledger = CardLedger(args.out / "card.json", args.dry)
    try:
        for n, step in enumerate(steps):
            left = 60.0 * args.minutes - RESERVE_S - (time.monotonic() - begun)
            seconds = seconds_of(steps[n:], left) - GRACE_S
            if seconds < LEAST_S:
                ledger.end(step.name, "not begun: too little time", 0.0)
                continue
            request = StepRequest(step.name, seconds, args.dry, args.out, tuple(words))
            run_one(step, request, ledger, args.out / "card.log")
    except (KeyboardInterrupt, Interrupted):
        print("interrupted; what was measured is kept", file=sys.stderr)
    finally:
        ledger.write()
        print(ledger.report([step.name for step in steps]))
    return 0


def run_one(step: CardStep, request: StepRequest, ledger: CardLedger, log: Path) -> None:
    say(f"== {step.name} ({request.seconds:.0f} s): {step.what}")
    ledger.begin(step.name)
    ended = run_step(request, lambda line: ledger.take(step.name, line, say), log)
    if not ledger.has_summary(step.name):  # it was killed: what it had seen by then
        with suppress(Exception):
            ledger.take(step.name, json.dumps({"summary": step.load().summary(ledger.rows(step.name))}), say)
    ledger.end(step.name, ended.how, ended.seconds)
    say(f"   {ended.how}, {ended.seconds:.1f} s")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="experiments/gpu/run.sh",
        description=experiments.gpu.__doc__,
        epilog=f"steps:\n{step_table()}\n\nmore, of the scoreboard: {board.build_parser().format_usage()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--steps", default=",".join(DEFAULT), metavar="NAMES", help=f"in this order (default {','.join(DEFAULT)})"
    )
    parser.add_argument("--minutes", type=float, default=9.0, metavar="N", help="end within N minutes (default 9)")
    parser.add_argument("--dry", action="store_true", help="no card: tiny shapes on the simulator, no peers")
    parser.add_argument(
        "--out", type=Path, default=board.RESULTS, metavar="DIR", help="default experiments/results/gpu/"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args, words = build_parser().parse_known_args(argv)
    try:
        with interrupted_by_signals():
            return run(args, words)
    except AutoschedError as error:
        print(f"experiments/gpu/run.sh: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())

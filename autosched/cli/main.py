"""The console script `autosched`: finds the verb, runs it, and turns every error into one sentence and an exit code.

Modules of verbs import only argparse and errors at their top, so `--help` stays quick; what a verb needs it imports
when it runs. Exit codes: 0 ok, 1 a bug of ours, 2 usage, 3 no valid candidate, 4 verification failed, 5 device not
usable, 130 interrupted and saved. With AUTOSCHED_DEBUG set, errors are raised with their traceback instead.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from autosched.cli.output import SCHEMA_VERSION, print_json
from autosched.errors import AutoschedError, UsageError

VERBS = ("tune", "workloads", "best", "show", "bench", "explain", "verify", "export", "db", "plot", "doctor")
INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


class Parser(argparse.ArgumentParser):
    """Raises UsageError with one sentence where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")


class ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from autosched import __version__

        print(f"autosched {__version__}")
        parser.exit()


def build_parser() -> Parser:
    parser = Parser(
        prog="autosched",
        description="Turns a tensor expression into the fastest kernel that this machine can run.",
        epilog="Begin with `autosched tune conv2d`; `autosched VERB --help` tells more.",
    )
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        importlib.import_module(f"autosched.cli.{verb}").add_parser(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code and never raises, unless AUTOSCHED_DEBUG is set."""
    args = argparse.Namespace(json=False, started=time.monotonic())
    try:
        try:
            build_parser().parse_args(argv, args)
        except SystemExit as done:  # --help and --version
            return int(done.code or 0)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except BaseException as error:
        if os.environ.get("AUTOSCHED_DEBUG"):
            raise
        return _report(error, as_json=bool(args.json))


def _report(error: BaseException, *, as_json: bool) -> int:
    """Prints what went wrong in one line; with --json also as an object on stdout. Returns the exit code."""
    if isinstance(error, BrokenPipeError):
        # Whoever read the output has enough; nothing may be written to it any more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    match error:
        case AutoschedError():
            kind, code, sentence = type(error).__name__, error.exit_code, _one_line(error)
        case KeyboardInterrupt():
            kind, code, sentence = "Interrupted", INTERRUPTED, "interrupted; everything measured so far is saved"
        case MemoryError():
            kind, code, sentence = "MemoryError", 2, "this machine has not enough memory: use a smaller shape"
        case Exception():
            detail = f"{type(error).__name__}: {_one_line(error)}"
            sentence = f"{detail}; set AUTOSCHED_DEBUG=1 for the traceback, and please report it"
            kind, code = "InternalError", 1
        case _:
            raise error
    word = "internal error" if kind == "InternalError" else "error"
    print(f"autosched: {word}: {sentence}", file=sys.stderr)
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "error": {"class": kind, "message": sentence, "exit_code": code}})
    return code


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or "no further message"


if __name__ == "__main__":
    sys.exit(main())

"""Console script `autosched`: it finds and runs the verb, and turns every error into one sentence and an exit code.

Modules of verbs import only argparse and errors at their top, so that `--help` is fast; other modules are imported when
a verb runs. Exit codes: 0 ok, 1 a bug of autosched, 2 usage, 3 no valid candidate, 4 verification failed, 5 device not
usable, 130 interrupted and saved. With AUTOSCHED_DEBUG set, errors are raised with their traceback instead.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import gc
import importlib
import io
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

from autosched.cli.interrupts import INTERRUPTED, Interrupts, leave_nothing
from autosched.cli.output import SCHEMA_VERSION, print_json
from autosched.errors import AutoschedError, AutoschedWarning, InternalError, UsageError

VERBS = ("tune", "workloads", "best", "show", "bench", "run", "explain", "verify", "export", "db", "plot", "doctor")
# Threshold of the garbage collector: expressions are many, long-lived and without cycles. With Python's default a fifth
# of the time for closed forms was spent in collections.
GC_THRESHOLD = (100_000, 20, 50)
MAX_START_S = 30.0  # seconds; an older process did something else before its command
EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)  # errors of exhausted resources
BROKEN_PIPE = 141  # a shell's exit code of a program that SIGPIPE ended


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError with one sentence where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        namespace, unknown = super().parse_known_args(args, namespace)
        option = next((word.partition("=")[0] for word in unknown if word.startswith("--")), "")
        if near := difflib.get_close_matches(option, self._option_string_actions, n=1):
            self.error(f"there is no option {option}; did you mean {near[0]}?")
        return namespace, unknown


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
    """Run one command and return its exit code; never raises, unless AUTOSCHED_DEBUG is set.

    Without `argv` it is the process's own command, and an interrupt ends the process.
    """
    if argv is not None:
        return _run(argv, Interrupts())
    gc.set_threshold(*GC_THRESHOLD)
    _prepare_streams()
    interrupts = Interrupts()
    interrupts.listen()
    code = _run(None, interrupts)
    interrupts.end_quietly()
    leave_nothing()
    if code == INTERRUPTED:
        # At once: no second Ctrl-C meets a half-closed interpreter, and none of the first that CPython noticed inside
        # an `exec` of some import turns the exit code into a signal. Everything is saved and closed.
        for stream in (sys.stdout, sys.stderr):
            with _as_far_as_possible(stream):
                pass
        os._exit(INTERRUPTED)
    return code


def _prepare_streams() -> None:
    """Open the null device for a closed stdin, stdout or stderr, so that no file opened later gets its descriptor."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(number, "w", closefd=False)))
        getattr(sys, name).reconfigure(errors="backslashreplace")  # a name may have what the encoding lacks


def _run(argv: Sequence[str] | None, interrupts: Interrupts) -> int:
    words = sys.argv[1:] if argv is None else argv
    started = process_start() if argv is None else time.monotonic()
    args = argparse.Namespace(json="--json" in words, started=started)
    try:
        try:
            _check_encoding(words)
            build_parser().parse_args(_joined(words), args)
        except SystemExit as done:  # --help and --version
            return int(done.code or 0)
        with _warnings_as_lines():
            code: int = args.run(args)
        sys.stdout.flush()
        return code
    except BaseException as error:
        interrupts.end_quietly()
        if os.environ.get("AUTOSCHED_DEBUG"):
            raise
        if interrupts.happened and not isinstance(error, AutoschedError):
            error = KeyboardInterrupt()  # whatever came of it: an import that it cut short says ImportError
        return _report(error, as_json=bool(args.json))


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print the library's warnings as lines, without the line of code that Python adds."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def print_line(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, AutoschedWarning):
                print(f"autosched: {_one_line(message)}", file=sys.stderr)
            else:
                show(message, category, *place, **more)

        warnings.showwarning = print_line
        yield


def _joined(words: Sequence[str]) -> list[str]:
    """Return the words with negative values joined to their options, as argparse would take them for options."""
    joined: list[str] = []
    for word in words:
        if re.match(r"-\.?\d", word) and joined and re.fullmatch(r"--[a-z][a-z-]*", joined[-1]):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _check_encoding(words: Sequence[str]) -> None:
    """Raise UsageError for words that are not text (lone surrogates, PEP 383): they cannot be recorded or printed."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the argument {word!a} is not UTF-8: rename the file, or set LC_ALL=C.UTF-8 where it is the locale's"
            ) from error


def process_start() -> float:
    """Return the start of this process on `time.monotonic`, so that the time of interpreter and imports counts.

    From Linux's clock ticks since boot (proc(5), `starttime`); elsewhere, and if that is implausible, now.
    """
    now = time.monotonic()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return now
    return now - age if 0.0 <= age <= MAX_START_S else now


def _report(error: BaseException, *, as_json: bool) -> int:
    """Print an error in one line, with --json also as an object on stdout. Returns the exit code."""
    if isinstance(error, BrokenPipeError):  # the reader of the output has ended
        _write_no_more(sys.stdout)
        return BROKEN_PIPE
    match error:
        case AutoschedError():
            kind, code, sentence = type(error).__name__, error.exit_code, _one_line(error)
        case KeyboardInterrupt():
            kind, code, sentence = "Interrupted", INTERRUPTED, "interrupted; everything measured so far is saved"
        case OSError(errno=int(number)) if number in EXHAUSTED:
            kind, code = "OSError", 2
            where = f" in {error.filename}" if error.filename else ""
            sentence = f"{error.strerror}{where}: make room and try again; everything measured so far is saved"
        case MemoryError():
            kind, code, sentence = "MemoryError", 2, "this machine has not enough memory: use a smaller shape"
        case Exception():
            is_named = isinstance(error, InternalError)
            detail = _one_line(error) if is_named else f"{type(error).__name__}: {_one_line(error)}"
            sentence = f"{detail}; set AUTOSCHED_DEBUG=1 for the traceback, and please report it"
            kind, code = "InternalError", 1
        case _:
            raise error
    word = "internal error" if kind == "InternalError" else "error"
    with _as_far_as_possible(sys.stderr):
        print(f"autosched: {word}: {sentence}", file=sys.stderr)
    if as_json:
        content = {"class": kind, "message": sentence, "exit_code": code}
        with _as_far_as_possible(sys.stdout):
            print_json({"schema_version": SCHEMA_VERSION, "error": content})
    return code


@contextmanager
def _as_far_as_possible(stream: TextIO) -> Iterator[None]:
    """Ignore errors of the last output on a stream that may be closed or full; the exit code is not affected."""
    try:
        yield
        stream.flush()
    except OSError:
        _write_no_more(stream)


def _write_no_more(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that nothing is written to it any more, not even at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _one_line(error: BaseException | str) -> str:
    return " ".join(str(error).split()) or "no further message"


if __name__ == "__main__":
    sys.exit(main())

"""What the experiments share: benchmark cases, tuning one of them in a fresh process, and result files."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autosched.artifacts.linking import write_whole
from autosched.cli.bench import geomean
from autosched.cli.interrupts import interrupted_by_signals
from autosched.cli.output import table
from autosched.errors import UsageError
from autosched.measure.results import FAULTS
from autosched.te.operators.registry import find
from autosched.tuner.options import WorkloadOptions
from experiments.hostinfo import host_facts

SCHEMA_VERSION = 1
QUIET = 0.5  # a load average above this means that the machine does something else
# Classes of failure in which a kernel ran and did what it must not do.
WRONG = ("wrong_result", "unstable_result", "clobbered_input", "out_of_bounds")
assert set(WRONG) <= set(FAULTS)


@dataclass(frozen=True)
class BenchmarkCase:
    """A workload at its benchmark shape `index` (from 0), at a shape of its own, or with its default arguments.

    `dtype`: of its operands; the workload's own where it is None.
    """

    workload: str
    index: int | None = None
    own_shape: tuple[int, ...] | None = None
    dtype: str | None = None

    @property
    def label(self) -> str:
        where = "" if self.index is None else f":{self.index}"
        if self.own_shape is not None:
            where = f":{'x'.join(map(str, self.own_shape))}"
        return f"{self.workload}{where}{'' if self.dtype is None else f'@{self.dtype}'}"

    @property
    def shape(self) -> tuple[int, ...] | None:
        return self.own_shape if self.index is None else find(self.workload).shapes[self.index]


def parse_cases(text: str) -> tuple[BenchmarkCase, ...]:
    """'c2d:1,gmm,softmax,matmul:64x48x32@bfloat16': one benchmark shape, all of them, the defaults of a workload that
    has none, and a shape of one's own; with @, another dtype than the workload's own.

    Raises UsageError for an unknown workload or dtype, or a benchmark shape that the workload does not have.
    """
    cases: list[BenchmarkCase] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        where, at, dtype = word.partition("@")
        name, colon, number = where.partition(":")
        shapes, of = find(name).shapes, partial(BenchmarkCase, name, dtype=dtype or None)
        if at and dtype not in find(name).dtypes:
            raise UsageError(f"{name} takes {', '.join(find(name).dtypes)}, got {word!r}")
        if not colon:
            cases += [of(i) for i in range(len(shapes))] or [of()]
        elif number.isdigit() and int(number) < len(shapes):
            cases.append(of(int(number)))
        elif len(sizes := number.split("x")) > 1 and all(size.isdigit() for size in sizes):
            cases.append(of(own_shape=tuple(map(int, sizes))))
        else:
            has = f"the shapes 0 to {len(shapes) - 1}" if shapes else "no benchmark shape"
            raise UsageError(f"{name} has {has}, got {word!r}; a shape of your own is written {name}:64x48x32")
    if not cases:
        raise UsageError("no case is named: write them as in c2d:1,gmm,softmax")
    return tuple(cases)


def tune(
    workload: str,
    asked: WorkloadOptions,
    *,
    trials: int,
    database: Path,
    seed: int = 0,
    budget_s: float | None = None,
    timeout_s: float,
) -> dict[str, Any]:
    """The object of `autosched tune --json`, run in a process of its own; {"error": ...} where there is none."""
    command = [sys.executable, "-m", "autosched.cli.main", "tune", workload, "--json", *option_words(asked)]
    command += ["--trials", str(trials), "--seed", str(seed), "--db", str(database)]
    command += [] if budget_s is None else ["--budget", f"{budget_s:.1f}s"]
    return answer(command, timeout_s)


def option_words(asked: WorkloadOptions) -> list[str]:
    """The options by which `autosched tune` is asked for the same; what nothing is said of stays the default."""
    words = [word for name, value in (asked.settings or {}).items() for word in ("--set", f"{name}={value}")]
    for name in ("shape", "weights"):
        if values := getattr(asked, name):
            words += [f"--{name}", ",".join(map(str, values))]
    for name in ("batch", "dtype", "target", "threads"):
        if (value := getattr(asked, name)) is not None:
            words += [f"--{name}", str(value)]
    return [*words, *["--winograd"] * asked.winograd]


def answer(command: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """The JSON object on the last line that `command` prints; {"error": ...} where there is none in time.

    What ends this process politely (SIGTERM) ends the command first, as Ctrl-C does.
    """
    try:
        with interrupted_by_signals():
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {"error": {"class": "Timeout", "message": f"no answer within {timeout_s:.0f} s"}}
    lines = done.stdout.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        found = None
    if isinstance(found, dict):
        return found
    words = f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"
    return {"error": {"class": "NoAnswer", "message": words}}


def load_now() -> float:
    """The load average of the last minute; complains on stderr where something else is busy."""
    load = round(os.getloadavg()[0], 2)
    if load > QUIET:
        print(f"the load average is {load}: times taken beside other work compare nothing", file=sys.stderr, flush=True)
    return load


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def microseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e6 * seconds:.1f}"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def result_file(text: str) -> Path:
    """A type of options: a file that can be written, whose directory is made where it is missing. Said before the
    hours of measuring, not after."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a directory; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.touch()
        part.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be written: {error.strerror}") from error
    return path


def write_results(path: Path, content: Mapping[str, object]) -> None:
    """`content` as JSON beside the facts of this machine; the file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"schema_version": SCHEMA_VERSION, "host": host_facts(), **content}
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())


__all__ = [
    "SCHEMA_VERSION", "WRONG", "BenchmarkCase", "answer", "geomean", "load_now", "median", "microseconds", "number",
    "option_words", "parse_cases", "result_file", "table", "tune", "write_results",
]  # fmt: skip

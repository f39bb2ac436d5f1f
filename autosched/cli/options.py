"""Options of several verbs, and the types of their values; error messages say which values are accepted."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.errors import UsageError
from autosched.ir.instructions.precision import EXACT, PRECISIONS

if TYPE_CHECKING:
    from autosched.tuner.options import WorkloadKeywords

MAX_NUMBER = 2**31 - 1
DURATION_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def integer(lowest: int) -> Callable[[str], int]:
    """Return the type of whole numbers from `lowest` on; argparse adds the option's name to its error."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,18}", text) or not lowest <= int(text) <= MAX_NUMBER:
            raise argparse.ArgumentTypeError(f"a whole number of at least {lowest} is needed, got {text!r}")
        return int(text)

    return parse


def duration(text: str) -> float:
    """Parse '60s', '2m', '1h' or '90' (seconds) to seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([smh]?)", text.strip().lower())
    seconds = float(match[1]) * DURATION_UNITS[match[2]] if match else 0.0
    if not 0.0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"a time is written 60s, 2m or 1h and is above 0, got {text!r}")
    return seconds


def shape(text: str) -> tuple[int, ...]:
    """Parse '1,56,56,64' to (1, 56, 56, 64); zeros are arguments too (no padding)."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d{1,10}", part) and int(part) <= MAX_NUMBER for part in parts):
        raise argparse.ArgumentTypeError(f"a shape is whole numbers with commas, as in 1,56,56,64, got {text!r}")
    return tuple(int(part) for part in parts)


def setting(text: str) -> tuple[str, int | str]:
    """Parse 'CO=128' to ('CO', 128) and 'layout=NCHW' to ('layout', 'NCHW')."""
    name, equals, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if not equals or not name.isidentifier() or not value:
        raise argparse.ArgumentTypeError(f"a setting is written NAME=VALUE, as in CO=128, got {text!r}")
    return name, int(value) if re.fullmatch(r"[+-]?\d{1,10}", value) else value


def size(text: str) -> tuple[str, int]:
    """Parse 'batch=8' to ('batch', 8); names of dimensions may be any text, as in 'x[0]=8'."""
    name, _, value = text.rpartition("=")
    if not name.strip() or not re.fullmatch(r"\s*\d{1,10}\s*", value) or int(value) > MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"a size is written NAME=N, as in batch=8, and is at least 0, got {text!r}")
    return name.strip(), int(value)


def sizes(text: str) -> tuple[str, tuple[int, ...] | range]:
    """Parse 'batch=1,4' to ('batch', (1, 4)), each number once, and 'M=1:4096' to ('M', range(1, 4097))."""
    name, _, values = text.rpartition("=")
    first, colon, last = values.partition(":")
    if colon:
        return name.strip(), range(size(f"{name}={first}")[1], size(f"{name}={last}")[1] + 1)
    return name.strip(), tuple(dict.fromkeys(size(f"{name}={value}")[1] for value in values.split(",")))


def size_ranges(args: argparse.Namespace) -> dict[str, range]:
    """Return the ranges of --sizes by name. Raises UsageError for single numbers, which are for networks."""
    for name, allowed in args.sizes:
        if not isinstance(allowed, range):
            raise UsageError(f"--sizes of a workload is a range, as in {name}=1:4096, got single numbers of {name}")
    return dict(args.sizes)


def fixed(text: str) -> tuple[str, object]:
    """Parse 'sr=16000' to ('sr', 16000); 'h=[[0, 1.5]]' is JSON, 'h=h0.npy' the path of an array."""
    name, equals, value = text.partition("=")
    name, value = name.strip(), value.strip()
    try:
        fixed_value: object = Path(value) if value.lower().endswith(".npy") else json.loads(value)
    except (ValueError, RecursionError):
        fixed_value = None
    if not equals or not name or fixed_value is None or isinstance(fixed_value, (str, dict)):
        raise argparse.ArgumentTypeError(
            f"a fixed input is written NAME=VALUE, a number, a list as in [1, 2], or FILE.npy, got {text!r}"
        )
    return name, fixed_value


def path(text: str) -> Path:
    if not text.strip() or "\0" in text:
        raise argparse.ArgumentTypeError(f"a path is needed, got {text!r}")
    return Path(text)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")


def add_db(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--db", type=path, metavar="PATH", help="the record database (default: see `autosched db path`)"
    )


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Add --set, the arguments of an operator that differ from its defaults."""
    group = parser.add_argument_group("workload")
    group.add_argument("--shape", type=shape, metavar="N,..", help="all arguments in order, as in 1,56,56,64")
    group.add_argument(
        "--set", dest="settings", type=setting, action="append", default=[], metavar="K=V", help="one argument by name"
    )
    group.add_argument("--batch", type=integer(1), metavar="N", help="the first argument (images, matrices)")
    group.add_argument("--dtype", metavar="TYPE", help="type of the elements (default float32)")


def settings(args: argparse.Namespace) -> dict[str, int | str]:
    """Return the values of --set by name. Raises UsageError if a name has two values."""
    value_of: dict[str, int | str] = {}
    for name, value in args.settings:
        if value_of.setdefault(name, value) != value:
            raise UsageError(f"{name} has two values, {value_of[name]} and {value}: give one")
    return value_of


def names(text: str) -> tuple[str, ...]:
    """Parse 'W,bias' to ('W', 'bias')."""
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise argparse.ArgumentTypeError(f"names are written with commas, as in W,bias, got {text!r}")
    return parts


def add_weights(parser: argparse.ArgumentParser, about: str, default: tuple[str, ...] | None = ()) -> None:
    parser.add_argument("--weights", type=names, default=default, metavar="W,..", help=about)


def add_winograd(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("--winograd", action="store_true", help=about)


def add_precision(parser: argparse.ArgumentParser, about: str, default: str | None = EXACT) -> None:
    parser.add_argument("--precision", choices=(EXACT, *PRECISIONS), default=default, help=about)


def counts(text: str) -> tuple[int, ...]:
    """Parse '1,2' to (1, 2)."""
    return tuple(integer(1)(part.strip()) for part in text.split(","))


def add_target(
    parser: argparse.ArgumentParser, default: str | None = "cpu", threads: Callable[[str], object] | None = None
) -> None:
    group = parser.add_argument_group("device")
    group.add_argument(
        "--target", default=default, help="cpu, cuda, opencl, 'llvm -mcpu=haswell' or 'cuda -arch=sm_80'"
    )
    group.add_argument("--mcpu", "-mcpu", metavar="NAME", help="LLVM's name of the processor, as in znver4")
    group.add_argument("--arch", "-arch", metavar="NAME", help="the GPU's compute capability, as in sm_90, with cuda")
    group.add_argument("--threads", type=threads or integer(1), metavar="N", help="of a processor; default: its cores")


def add_record(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a record's number."""
    parser.add_argument("id", type=integer(1), help="a record's number, see `autosched best`")
    add_record_facts(parser)


def add_record_facts(parser: argparse.ArgumentParser) -> None:
    """Add --workload and --target of a record: a database never names code to run, so the user names a
    function again.
    """
    parser.add_argument("--workload", metavar="FILE.py:FUNCTION", help="the workload, if it is not a built-in one")
    parser.add_argument("--target", help="the record's target, if it is another processor; of a network what it is for")
    add_db(parser)
    add_json(parser)


def target_text(args: argparse.Namespace) -> str | None:
    """Return the target in the library's form."""
    if args.arch is not None:
        return f"{args.target or 'cuda'} -arch={args.arch}"
    if args.mcpu is None:
        return None if args.target is None else str(args.target)
    return f"{args.target or 'llvm'} -mcpu={args.mcpu}"


def workload_keywords(args: argparse.Namespace) -> WorkloadKeywords:
    """Return the options of `add_workload` and `add_target`, and those of weights, Winograd and precision if the verb
    has them, as keywords of the library.
    """
    keywords: WorkloadKeywords = {
        "shape": args.shape,
        "settings": settings(args),
        "batch": args.batch,
        "dtype": args.dtype,
        "target": target_text(args),
        "threads": args.threads,
    }
    if "weights" in args:
        keywords["weights"] = args.weights
    if "winograd" in args:
        keywords["winograd"] = args.winograd
    if "precision" in args:
        keywords["precision"] = args.precision
    return keywords

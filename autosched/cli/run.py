"""`autosched run`: a network as one program, on arrays from a file."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosched.cli import options
from autosched.errors import UsageError

if TYPE_CHECKING:
    from autosched.network.model import Model


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "run",
        help="run a network on arrays from a file",
        description="Compiles an ONNX file to one program, without measuring anything, and runs it once.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL.onnx", help="the network; needs the extra onnx")
    parser.add_argument("--inputs", type=Path, required=True, metavar="FILE.npz", help="arrays by the inputs' names")
    parser.add_argument("--outputs", type=Path, metavar="FILE.npz", help="where the results go, by the outputs' names")
    parser.add_argument(
        "--size", type=options.setting, action="append", default=[], metavar="NAME=N", help="a symbolic dimension"
    )
    parser.add_argument("--threads", type=options.integer(1), metavar="N", help="default: the processor's cores")
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched import api
    from autosched.cli.output import SCHEMA_VERSION, print_json, time_text

    begun = time.monotonic()
    model = api.load(args.model, sizes=sizes(args), threads=args.threads)
    loaded = time.monotonic()
    given = _arrays(args.inputs, model)
    results = model(**given)
    ended = time.monotonic()
    found = dict(zip((spec.name for spec in model.outputs), _several(results), strict=True))
    if args.outputs is not None:
        _write(args.outputs, found)
    if args.json:
        facts = {"schema_version": SCHEMA_VERSION, "model": str(args.model), "threads": model.threads}
        print_json({**facts, **_described(model), "load_s": loaded - begun, "run_s": ended - loaded})
    else:
        print(f"{args.model.name}: loaded in {time_text(loaded - begun)}, run in {time_text(ended - loaded)}")
        for name, array in found.items():
            print(f"  {name}: {array.dtype}{list(array.shape)}")
    return 0


def sizes(args: argparse.Namespace) -> dict[str, int]:
    """What --size says, by name."""
    found: dict[str, int] = {}
    for name, value in args.size:
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"--size {name}={value}: a size is a whole number of at least 1")
        if found.setdefault(name, value) != value:
            raise UsageError(f"--size {name} has two values, {found[name]} and {value}: give one")
    return found


def _arrays(path: Path, model: Model) -> Mapping[str, Any]:
    """The arrays of a file by the names of the network's inputs. Raises UsageError for a file that has not these."""
    import numpy as np

    names = [spec.name for spec in model.inputs]
    try:
        with np.load(path, allow_pickle=False) as file:
            given = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise UsageError(f"the inputs cannot be read from {path}: {error}") from error
    if set(given) != set(names):
        raise UsageError(
            f"{path} has the arrays {', '.join(given) or 'none'}, but the network takes {', '.join(names)}"
        )
    return given


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    """The arrays as a whole file, or none."""
    import numpy as np

    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            np.savez(file, **arrays)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"the outputs cannot be written to {path}: {error.strerror}") from error


def _several(results: object) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _described(model: Model) -> dict[str, object]:
    def shapes(specs: Any) -> list[dict[str, object]]:
        return [{"name": s.name, "shape": list(s.shape), "dtype": s.dtype} for s in specs]

    return {
        "inputs": shapes(model.inputs),
        "outputs": shapes(model.outputs),
        "tasks": [{"name": t.request.problem.name, "count": t.count} for t in model.tasks],
        "arena_bytes": model.arena_bytes,
        "arena_bound_bytes": model.bound_bytes,
    }

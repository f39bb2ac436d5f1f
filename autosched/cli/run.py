"""`autosched run`: run of a network on arrays from a file."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosched.cli import options
from autosched.cli.network import arguments
from autosched.errors import UsageError

if TYPE_CHECKING:
    from autosched.executor.model import Model


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "run",
        help="run a network on arrays from a file",
        description="Compiles a network to one program, without measuring anything, and runs it once.",
    )
    parser.add_argument("model", metavar="MODEL", help=arguments.SYNTAX)
    parser.add_argument(
        "--inputs",
        type=options.path,
        metavar="FILE.npz",
        help="arrays by the inputs' names (default: those of FUNCTION)",
    )
    parser.add_argument(
        "--outputs", type=options.path, metavar="FILE.npz", help="where the results go, by the outputs' names"
    )
    arguments.add_network(parser)
    parser.add_argument("--target", help="cpu, 'llvm -mcpu=haswell', cuda, 'cuda -arch=sm_80' or opencl")
    arguments.add_simulate(parser)
    options.add_db(parser)
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autosched.cli.output import SCHEMA_VERSION, print_json, time_text

    begun = time.monotonic()
    network = arguments.require_network(args.model, args)
    if args.inputs is None and network.example_inputs is None:
        text = arguments.inputs_text(network, args)
        raise UsageError(f"run needs --inputs FILE.npz with an array for each input of {args.model}: {text}")
    model = arguments.load_network(arguments.with_sizes_of_inputs(network, args.inputs, args), args)
    loaded = time.monotonic()
    given = arguments.arrays_for(model.inputs, network, args.inputs, arguments.fixed_values(args.fix))
    assert given is not None
    results = model(*given)
    ended = time.monotonic()
    outputs = dict(zip((spec.name for spec in model.outputs), _several(results), strict=True))
    if args.outputs is not None:
        _write(args.outputs, outputs)
    if args.json:
        facts = {"schema_version": SCHEMA_VERSION, "model": args.model, "threads": model.threads}
        print_json({**facts, **_described(model), "load_s": loaded - begun, "run_s": ended - loaded})
    else:
        print(f"{args.model}: loaded in {time_text(loaded - begun)}, run in {time_text(ended - loaded)}")
        for name, array in outputs.items():
            print(f"  {name}: {array.dtype}{list(array.shape)}")
    return 0


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    """The arrays as a whole file, or none."""
    import numpy as np

    if not path.name or path.is_dir():
        raise UsageError(f"the outputs cannot be written to {path}, which is a folder: name a file")
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

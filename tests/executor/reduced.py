"""The networks of the experiments, at reduced sizes, verified kernel by kernel on a target.

python -m tests.executor.reduced --target opencl                     on a GPU, or on the processor with PoCL
python -m tests.executor.reduced --target "cuda -arch=sm_80" bert_base --dtype float16       in the simulator
python -m tests.executor.reduced --target cuda --on-device           on the card that is there

A line for each network and type; the exit code is 4 where a result is wrong, or none comes. With --kept FILE what was
right is written there, and is not run again while autosched has the same code:

python -m tests.executor.reduced --target "cuda -arch=sm_80" --kept reduced.txt
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from itertools import product
from pathlib import Path

import torch

from autosched.errors import AutoschedError, VerificationError
from autosched.executor.compile_graph import SIMULATED, compile_graph
from autosched.executor.load import load_network
from autosched.graph.graph import Graph
from autosched.kernel.device import find_device
from autosched.network_api import verify_model
from autosched.runtime.versions import source_digest
from experiments.networks.models import NETWORKS, build

DTYPES = ("float32", "float16", "bfloat16")


def main() -> int:
    options = _parser().parse_args()
    warnings.filterwarnings("ignore")
    kind = find_device(options.target, None, runs=False).target.kind
    simulate = kind == SIMULATED and not options.on_device
    wrong = 0
    known = _kept(options.kept)
    for name, dtype in product(options.networks or NETWORKS, options.dtype or DTYPES):
        case = f"{name} {dtype} on {options.target} of {source_digest()[:16]}"
        if case in known:
            continue
        begin = time.monotonic()
        try:
            said = verified(name, dtype, options.target, simulate)
            if options.kept is not None:
                with options.kept.open("a", encoding="utf-8") as file:
                    file.write(f"{case}: {said}\n")
        except AutoschedError as error:
            wrong, said = wrong + 1, f"{type(error).__name__}: {error}"
        print(f"{name} {dtype}: {said}, {time.monotonic() - begin:.1f} s", flush=True)
    return VerificationError.exit_code if wrong else 0


def _kept(file: Path | None) -> frozenset[str]:
    """The cases that were right."""
    if file is None or not file.exists():
        return frozenset()
    return frozenset(line.partition(":")[0] for line in file.read_text(encoding="utf-8").splitlines())


def verified(name: str, dtype: str, target: str, simulate: bool) -> str:
    """How near to its bound a network comes on a target. Raises VerificationError where it is wrong, and what
    compiling it raises."""
    model = compile_graph(graph_of(name, dtype), target, simulate=simulate)
    found = verify_model(model)
    if not found.passed:
        raise VerificationError(found.summary())
    return (
        f"{len(found.kernels)} kernels, {len(model.tasks)} tasks, {found.worst_output.relative_error:.2f} of the bound"
    )


def graph_of(name: str, dtype: str) -> Graph:
    """The reduced network with its floats in that type."""
    module, inputs = build(name, reduced=True)
    kind = getattr(torch, dtype)
    given = tuple(t.to(kind) if t.is_floating_point() else t for t in inputs)
    return load_network(module.to(kind), given)[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.executor.reduced")
    parser.add_argument("networks", nargs="*", choices=[[], *NETWORKS], metavar="NAME", help="default: all")
    parser.add_argument("--target", default="opencl", help="default: opencl")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="may be repeated; default: all")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="cases that were right, which are not run again")
    parser.add_argument("--on-device", action="store_true", help="kernels for CUDA run on a card")
    return parser


if __name__ == "__main__":
    sys.exit(main())

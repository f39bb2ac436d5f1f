"""The networks of the experiments, at reduced sizes, verified kernel by kernel on a target.

python -m tests.network.reduced --target opencl                     on a GPU, or on the processor with PoCL
python -m tests.network.reduced --target "cuda -arch=sm_80" bert_base --dtype float16       in the simulator
python -m tests.network.reduced --target cuda --on-device           on the card that is there

A line for each network and type; the exit code is 4 where a result is wrong, or none comes.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import torch

from autosched.errors import AutoschedError, VerificationError
from autosched.graph.graph import Graph
from autosched.network.compile import SIMULATED, compile_graph
from autosched.network.load import load_graph
from autosched.network.verbs import verify_model
from autosched.session.device import find_device
from experiments.networks.models import NETWORKS, build

DTYPES = ("float32", "float16", "bfloat16")


def main() -> int:
    options = _parser().parse_args()
    warnings.filterwarnings("ignore")
    kind = find_device(options.target, None, runs=False).target.kind
    simulate = kind == SIMULATED and not options.on_device
    wrong = 0
    for name in options.networks or NETWORKS:
        for dtype in options.dtype or DTYPES:
            begin = time.monotonic()
            try:
                said = verified(name, dtype, options.target, simulate)
            except AutoschedError as error:
                wrong, said = wrong + 1, f"{type(error).__name__}: {error}"
            print(f"{name} {dtype}: {said}, {time.monotonic() - begin:.1f} s", flush=True)
    return VerificationError.exit_code if wrong else 0


def verified(name: str, dtype: str, target: str, simulate: bool) -> str:
    """How near to its bound a network comes on a target. Raises VerificationError where it is wrong, and what
    compiling it raises."""
    model = compile_graph(graph_of(name, dtype), target, simulate=simulate)
    found = verify_model(model)
    if not found.passed:
        raise VerificationError(found.summary())
    return f"{len(found.kernels)} kernels, {len(model.tasks)} tasks, {found.worst_output.of_bound:.2f} of the bound"


def graph_of(name: str, dtype: str) -> Graph:
    """The reduced network with its floats in that type."""
    module, inputs = build(name, reduced=True)
    kind = getattr(torch, dtype)
    given = tuple(t.to(kind) if t.is_floating_point() else t for t in inputs)
    return load_graph(module.to(kind), given, {})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.network.reduced")
    parser.add_argument("networks", nargs="*", choices=[[], *NETWORKS], metavar="NAME", help="default: all")
    parser.add_argument("--target", default="opencl", help="default: opencl")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="may be repeated; default: all")
    parser.add_argument("--on-device", action="store_true", help="kernels for CUDA run on a card")
    return parser


if __name__ == "__main__":
    sys.exit(main())

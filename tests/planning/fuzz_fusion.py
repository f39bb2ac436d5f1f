"""Random bottlenecks as networks, fused and unfused: `python -m tests.planning.fuzz_fusion --count 200`.

Each fusion candidate runs as one kernel, then as several; both are compared with the network node by node.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from unittest.mock import patch

import numpy as np

from autosched.errors import AutoschedError
from autosched.executor.compile_graph import compile_graph
from autosched.graph.fusion import candidates
from autosched.graph.graph import Array, Graph
from autosched.graph.interpret import interpret
from autosched.ir.dtype import DTYPES
from autosched.planning.extract_tasks import Choices
from tests.graph.random_bottlenecks import random_bottleneck

# Of the largest number: what a kernel need not round in between. Bytes are exact but for a rounding of float32.
TOLERANCES = {"float32": 1e-5, "bfloat16": 0.05, "int8": 1.01 / 127}


def inputs_of(graph: Graph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found = {}
    for name in graph.inputs:
        value = graph.values[name]
        drawn = rng.integers(-128, 128, value.shape) if value.dtype == "int8" else rng.standard_normal(value.shape)
        found[name] = drawn.astype(DTYPES[value.dtype].numpy_dtype)
    return found


def choices_with(is_fused: bool) -> Choices:
    """Choose fused kernels everywhere, or nowhere."""
    return Choices(is_fused=lambda kernel_spec: is_fused)


def faults_of(seed: int, threads: int = 1) -> tuple[list[str], int]:
    """What is wrong with the network of one seed, and how many of its chains were fused."""
    graph = random_bottleneck(seed)
    given = inputs_of(graph, seed)
    wanted = interpret(graph, given)
    faults, n_fused = [], 0
    # Chains with the smallest intermediates are candidates too.
    with patch.multiple(candidates, L2_SHARE=0.0, MIN_TRAFFIC_SHARE=0.0):
        for is_fused in (True, False):
            try:
                model = compile_graph(graph, threads=threads, choices=choices_with(is_fused))
            except AutoschedError as error:
                faults.append(f"{type(error).__name__}: {error}")
                continue
            n_fused += sum(part.is_fused for part in model.program.fusion_choices)
            if (far := difference(dict(zip(graph.outputs, [model(**given)], strict=True)), wanted)) > 1:
                faults.append(f"{'fused' if is_fused else 'unfused'}: differs by {far:.2g} times what it may")
    return faults, n_fused


def difference(got: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """The largest one, as a multiple of what is tolerated."""
    worst = 0.0
    for name, array in wanted.items():
        wide, other = array.astype("float64"), got[name].astype("float64")
        allowed = TOLERANCES[array.dtype.name] * max(1.0, float(np.abs(wide).max(initial=0.0)))
        worst = max(worst, float(np.abs(other - wide).max(initial=0.0)) / allowed)
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planning.fuzz_fusion", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="networks")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each later one has the next number")
    parser.add_argument("--threads", type=int, default=1)
    words = parser.parse_args()
    failed = parts = 0
    for seed in range(words.seed, words.seed + words.count):
        faults, n_fused = faults_of(seed, words.threads)
        failed, parts = failed + bool(faults), parts + n_fused
        for fault in faults:
            print(f"seed {seed}: {fault}", flush=True)
    print(f"{words.count} networks, {parts} parts as one kernel, {failed} with faults")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

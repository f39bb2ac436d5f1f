"""Random graphs through passes, partition and the plan of memory: `python -m tests.graph.fuzz --count 20000`.

The groups are evaluated in float64, as the stages that a kernel is made from, and compared with the graph as it came:
once with an array for each value, and once in the buffers of a network, at the homes that the plan gives. With
`--compiled` so many of the graphs become programs, too, which are called CALLS times each, with guards around results.
Some have indices that are out of range: their programs must raise IndexError.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from autosched.errors import AutoschedError, InternalError
from autosched.executor.compile_graph import compile_graph
from autosched.graph.fusion.partition import dag_of, partition
from autosched.graph.graph import Array, Graph
from autosched.graph.index_checks import required_checks
from autosched.graph.interpret import each_value, exact, interpret
from autosched.graph.passes import run_passes
from autosched.graph.steps import Alias, Join
from autosched.ir.dtype import DTYPES
from autosched.kernel.device import Device, find_device
from autosched.planning.device_passes import with_own_outputs
from autosched.runtime.tensors import are_equal
from autosched.verification.sample_inputs import input_sets
from tests.graph.drafts import some_inputs
from tests.graph.random_graphs import random_graph
from tests.guards import guarded
from tests.planning.in_memory import planned, run_in_memory

EXACT, ROUNDED = 1e-6, 1e-3  # of the largest element; folded constants are of float32
PROGRESS = 1000  # graphs, after which a long run says how far it is
CALLS = 50  # one often passes where memory is damaged
TARGETS = (("cpu", 1), ("cpu", 2), ("cpu -mcpu=znver3", 1), ("cuda -arch=sm_80", None))


def run_steps(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by the steps of the partition. Raises KeyError where one reads what is not made yet."""
    values: dict[str, Array] = {**graph.constants, **inputs}
    for step in partition(graph):
        if isinstance(step, Alias):
            values[step.output] = step.part_of(values[step.base], graph.values[step.output].shape)
            continue
        if isinstance(step, Join):
            values[step.output] = step.of([values[name] for name in step.parts], graph.values[step.output].shape)
            continue
        assert not set(step.outputs) & values.keys(), f"{step} makes a value again"
        found = exact(dag_of(graph, step), {f"x{n}": values[name] for n, name in enumerate(step.inputs)})
        values |= {
            name: array.reshape(graph.values[name].shape) for name, array in zip(step.outputs, found, strict=True)
        }
    return {name: values[name] for name in graph.outputs}


def difference(got: Mapping[str, Array], wanted: Mapping[str, Array], names: Mapping[str, str]) -> float:
    """The largest one, in units of the largest element of each output; `names`: of what is wanted that of what is
    got."""
    worst = 0.0
    for name, array in wanted.items():
        wide = array.astype("float64")
        other = got[names[name]].astype("float64")
        assert other.shape == wide.shape
        if not wide.size:
            continue
        same = np.isclose(other, wide, rtol=0, atol=0, equal_nan=True)
        apart = np.where(same, 0, np.abs(other - wide))
        worst = max(worst, float(np.nan_to_num(apart, nan=np.inf).max()) / max(1.0, float(np.nanmax(np.abs(wide)))))
    return worst


def inputs_for(graph: Graph, seed: int) -> dict[str, Array]:
    """Inputs of a random graph. Its integers are indices in range, but one of them in a third of the graphs perhaps."""
    rng, drawn = np.random.default_rng(seed), input_sets(graph, seed=seed)[0].arrays
    integers = {name: drawn[name] for name in graph.inputs if DTYPES[graph.values[name].dtype].is_integer}
    if integers and rng.random() < 1 / 3 and not any(value.is_empty for value in graph.values.values()):
        array = integers[rng.choice([*integers])].reshape(-1)
        limits = np.iinfo(array.dtype)
        wrong = [n for n in (-1, -2, 3, 17, 1 << 30, -(1 << 31), limits.max) if limits.min <= n <= limits.max]
        array[rng.integers(array.size)] = wrong[rng.integers(len(wrong))]
    return {**some_inputs(graph), **integers}


def is_out_of_range(graph: Graph, inputs: Mapping[str, Array]) -> bool:
    """Whether an index is, by the values of the graph as it came."""
    values = dict(each_value(graph, inputs))
    needs = [need for node in graph.nodes for need in required_checks(node, graph.values)]
    return any(((values[need.ids] < need.low) | (values[need.ids] > need.high)).any() for need in needs)


def faults_of(seed: int, compiled: bool = False) -> list[str]:
    """What is wrong with the graph of one seed after passes and partition."""
    graph = random_graph(seed)
    inputs = inputs_for(graph, seed)
    wanted = interpret(graph, inputs, exact)
    try:
        after = with_own_outputs(run_passes(graph)[0])
        names = dict(zip(graph.outputs, after.outputs, strict=True))
        faults = []
        if (far := difference(run_steps(after, inputs), wanted, names)) > EXACT:
            faults.append(f"the groups differ by {far:.1e}")
        faults += stored_faults(graph, inputs, wanted, seed)
        if compiled and not faults:
            faults += compiled_faults(graph, inputs, wanted)
    except (AutoschedError, AssertionError, KeyError, InternalError) as error:
        return [f"{type(error).__name__}: {error}"]
    return faults


def stored_faults(graph: Graph, inputs: Mapping[str, Array], wanted: Mapping[str, Array], seed: int) -> list[str]:
    """What is wrong with the plan of memory, for one of the TARGETS."""
    rng = random.Random(seed)
    device = _device(*rng.choice(TARGETS))
    if device.target.gpu is None and rng.random() < 0.3:  # batches are taken apart for small caches
        device = replace(device, target=replace(device.target, l2_bytes=rng.choice((100, 1000, 10000))))
    got = run_in_memory(planned(graph, device, rng), inputs)
    faults = []
    for name, array in zip(graph.outputs, got, strict=True):
        if (far := difference({name: array}, {name: wanted[name]}, {name: name})) > ROUNDED:
            faults.append(f"the output {name} differs by {far:.1e} as it is stored")
    return faults


@cache
def _device(target: str, threads: int | None) -> Device:
    return find_device(target, threads, runs=False)


def compiled_faults(graph: Graph, inputs: Mapping[str, Array], wanted: Mapping[str, Array]) -> list[str]:
    """What is wrong with the program, called again and again."""
    model, is_refused = compile_graph(graph, threads=1), is_out_of_range(graph, inputs)
    first: list[Array] | None = None
    for call in range(CALLS):
        results = [guarded(spec.shape, spec.numpy_dtype) for spec in model.outputs]
        arrays = [result.array for result in results]
        try:
            model(**inputs, out=arrays if len(arrays) > 1 else arrays[0])
        except IndexError as error:
            return [] if is_refused else [f"no index is out of range, but {error}"]
        if is_refused:
            return ["an index is out of range, and nobody says so"]
        if not all(result.is_intact for result in results):
            return [f"call {call} writes around its results"]
        if first is None:
            first = arrays
            for name, array in zip(graph.outputs, arrays, strict=True):
                if (far := difference({name: array}, {name: wanted[name]}, {name: name})) > ROUNDED:
                    return [f"the output {name} of the program differs by {far:.1e}"]
        elif not all(map(are_equal, arrays, first)):
            return [f"call {call} has other results than the first one"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="graphs")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each later one has the next number")
    parser.add_argument("--compiled", type=int, default=0, help="how many of them become programs")
    words = parser.parse_args()
    failed = 0
    for seed in range(words.seed, words.seed + words.count):
        faults = faults_of(seed, seed < words.seed + words.compiled)
        failed += bool(faults)
        for fault in faults:
            print(f"seed {seed}: {fault}", flush=True)
        if (seed + 1 - words.seed) % PROGRESS == 0:
            print(f"{seed + 1 - words.seed} graphs", file=sys.stderr, flush=True)
    print(f"{words.count} graphs, {failed} with faults")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

"""Random graphs through passes and partition: `python -m tests.graph.fuzz --count 20000`.

The groups are evaluated in float64, as the stages that a kernel is made from, and compared with the graph as it came;
with `--compiled` so many of the graphs become programs, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import numpy as np

from autosched.errors import AutoschedError
from autosched.graph.graph import Array, Graph
from autosched.graph.interpret import exact, interpret
from autosched.graph.partition import dag_of, partition
from autosched.graph.passes import run_passes
from autosched.graph.steps import Alias, Join
from autosched.network.compile import compile_graph
from autosched.network.program import with_own_outputs
from tests.graph.drafts import some_inputs
from tests.graph.random_graphs import random_graph

EXACT, ROUNDED = 1e-6, 1e-3  # of the largest element; folded constants are of float32


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
        same = np.isclose(other, wide, rtol=0, atol=0, equal_nan=True)
        apart = np.where(same, 0, np.abs(other - wide))
        worst = max(worst, float(np.nan_to_num(apart, nan=np.inf).max()) / max(1.0, float(np.nanmax(np.abs(wide)))))
    return worst


def faults_of(seed: int, compiled: bool = False) -> list[str]:
    """What is wrong with the graph of one seed after passes and partition."""
    graph = random_graph(seed)
    inputs = some_inputs(graph)
    wanted = interpret(graph, inputs, exact)
    try:
        after = with_own_outputs(run_passes(graph)[0])
        names = dict(zip(graph.outputs, after.outputs, strict=True))
        faults = []
        if (far := difference(run_steps(after, inputs), wanted, names)) > EXACT:
            faults.append(f"the groups differ by {far:.1e}")
        if compiled and not faults:
            results = compile_graph(graph, threads=1)(**inputs)
            arrays = results if isinstance(results, tuple) else (results,)
            got = dict(zip(graph.outputs, arrays, strict=True))
            if (far := difference(got, wanted, {name: name for name in wanted})) > ROUNDED:
                faults.append(f"the program differs by {far:.1e}")
    except (AutoschedError, AssertionError, KeyError) as error:
        return [f"{type(error).__name__}: {error}"]
    return faults


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
    print(f"{words.count} graphs, {failed} with faults")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

"""The oracle: a concrete loop nest must compute what the DAG's reference computes."""

from __future__ import annotations

import numpy as np

from autosched.ir.interpret import interpret
from autosched.ir.printer import func_text
from autosched.ir.stmt import Func
from autosched.te.dag import ComputeDAG
from autosched.te.inputs import make_inputs
from autosched.te.reference import evaluate, within


def check_nest(func: Func, dag: ComputeDAG, seed: int = 0) -> dict[str, int]:
    """Interprets `func` on small integers and compares with the reference; returns the stores done by stage.

    Sums of products of small integers have an error bound of 0, so wrong indexing cannot hide in a tolerance.
    Parallel loops run in a random order, and tasks that meet in memory fail.
    """
    rng = np.random.default_rng(seed)
    inputs = make_inputs(dag, seed, "integers")
    counts: dict[str, int] = {}
    results = interpret(func, inputs, parallel_order=lambda n: rng.permutation(n).tolist(), counts=counts)
    expected = evaluate(dag, inputs)
    for tensor, got, reference in zip(dag.outputs, results, expected, strict=True):
        seen = got.reshape(tensor.public_shape)
        wrong = np.argwhere(~within(reference, seen))
        if len(wrong):
            at = tuple(wrong[0].tolist())
            raise AssertionError(
                f"{tensor.name}{list(at)} is {seen[at]}, not {reference.value[at]} +- {reference.bound[at]}; "
                f"{len(wrong)} of {seen.size} elements are wrong in\n{func_text(func)}"
            )
    return counts

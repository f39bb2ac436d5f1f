"""A network against its reference: the graph as it came, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosched.graph.graph import Array, Graph
from autosched.graph.interpret import exact, interpret
from autosched.ir.dtype import DTYPES
from autosched.network.model import Model


def example_arrays(graph: Graph) -> list[Array]:
    """An array for each input: normal numbers; integers, which may be places, are 0."""
    rng = np.random.default_rng(0)
    values = [graph.values[name] for name in graph.inputs]
    return [
        (rng.standard_normal(v.shape) if DTYPES[v.dtype].is_float else np.zeros(v.shape)).astype(
            DTYPES[v.dtype].numpy_dtype
        )
        for v in values
    ]


def largest_error(model: Model, arrays: Sequence[Array]) -> float:
    """The largest difference of an output over the largest number in it."""
    wanted = interpret(model.original, dict(zip(model.original.inputs, arrays, strict=True)), exact)
    results = model(*arrays)
    several = results if isinstance(results, tuple) else (results,)
    errors = [0.0]
    for got, want in zip(several, wanted.values(), strict=True):
        off = np.abs(got.astype("float64") - want).max(initial=0.0)
        errors.append(float(off / max(np.abs(want).max(initial=0.0), 1e-30)))
    return max(errors)

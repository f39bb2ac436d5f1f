"""ATen operators with symbols for all sizes: a trace at numbers computes what torch does, at other sizes too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.passes import run_passes  # noqa: E402
from autosched.graph.torch.load import AnyShapes  # noqa: E402
from autosched.graph.traces import numbered_graph, symbolic_sizes  # noqa: E402
from autosched.ir.size import Guards, evaluate, form_of  # noqa: E402
from tests.graph.test_torch_rules import FAMILIES, Function, x  # noqa: E402

CASES = {name: case for family in FAMILIES.values() for name, case in [*family.items()][::8]}
# Their indices are constants of the import, or their operands are sorted.
UNTRACED = {"diagonals", "windows", "writes to slices with steps", "adaptive maxima", "searchsorted"}


def other_sizes(tensors: Any, more: int) -> list[Any]:
    """Return tensors whose sizes of more than 1 are larger."""
    shapes = [[n + more if n > 1 else n for n in t.shape] for t in tensors]
    return [x(*shape, dtype=t.dtype, seed=more) for shape, t in zip(shapes, tensors, strict=True)]


def sizes_of(tensors: Any) -> dict[str, int]:
    return {f"{k}.{d}": n for k, t in enumerate(tensors) for d, n in enumerate(t.shape)}


@pytest.mark.parametrize("name", [name for name in CASES if name not in UNTRACED])
def test_a_trace_is_the_function_of_all_sizes(name):
    function, tensors = CASES[name]
    if any(t.dtype in (torch.bfloat16, torch.bool) for t in tensors):
        pytest.skip("its numbers are not those of NumPy")
    guards, sizes = Guards(), sizes_of(tensors)
    with guards:
        symbols = symbolic_sizes(guards, sizes, dict.fromkeys(sizes, range(1 << 20)))
        shapes = [tuple(symbols[f"{k}.{d}"] for d in range(t.dim())) for k, t in enumerate(tensors)]
        graph = run_passes(AnyShapes(Function(function), tuple(tensors)).graph(shapes))[0]
    for more in (0, 1, 3):
        given = other_sizes(tensors, more) if more else list(tensors)
        if not guards.hold(sizes_of(given)):
            assert more
            continue
        try:
            expected = function(*given)
        except (RuntimeError, ValueError, IndexError):  # of sizes or numbers that the operator has no result for
            assert more
            continue
        values = guards.values(sizes_of(given))
        numbered = numbered_graph(graph, lambda size, values=values: int(evaluate(form_of(size), values)))
        arrays = {n: t.detach().numpy() for n, t in zip(numbered.inputs, given, strict=True)}
        results = interpret(numbered, arrays)
        expected = expected if isinstance(expected, tuple | list) else (expected,)
        for output, y in zip(numbered.outputs, expected, strict=True):
            np.testing.assert_allclose(results[output], y.detach().numpy(), rtol=1e-3, atol=1e-4, err_msg=name)

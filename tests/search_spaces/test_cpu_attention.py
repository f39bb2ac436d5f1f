"""Sums weighted by a softmax of a product's results, in tasks of rows: attention."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from autosched import te
from autosched.ir.interpreter.interpret import interpret
from autosched.ir.stmt import ForKind, Scope
from autosched.lower import concretise, lower
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.operators.attention import scaled_dot_product
from autosched.te.operators.registry import build
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu import sketches
from search_spaces.space import Sketch
from tests.codegen.running import check_candidate
from tests.helpers import little_rows
from tests.weighted_sums import Sizes, weighted

HOST = parse_target("cpu")


def in_tasks(dag: ComputeDAG, threads: int = 2) -> list[Sketch]:
    return [s for s in sketches(dag, HOST, threads) if ":rows" in s.name]


@pytest.mark.parametrize("masked", ["", "added", "kept", "causal"])
@pytest.mark.parametrize("sizes", [Sizes(13, 21, 5, 9), Sizes(4, 17, 3, 8, 2), Sizes(5, 2, 3, 2, 2)])
def test_they_are_exact(sizes: Sizes, masked: str) -> None:
    dag = collapse(weighted(sizes, "float32", masked))
    found = in_tasks(dag)
    assert len(found) == 1
    data = make_inputs(dag, 0, "normal")
    for sketch in found:
        for row in little_rows(sketch, 1, np.random.default_rng(1)):
            check_candidate(dag, sketch, row, data)


def test_nothing_of_the_size_of_all_scores_is_stored() -> None:
    dag = collapse(build("attention", settings={"N": 2, "heads": 3, "queries": 96, "dim": 8})[0])
    for sketch in in_tasks(dag):
        stages = {s.name: s for s in sketch.state.stages}
        roots = {s.name for s in stages.values() if s.at is None}
        assert roots <= {"mixed", "K.pack"}
        assert stages["scores"].scope is stages["power"].scope is Scope.LOCAL
        assert [x.name for x in stages["mixed"].loops if x.kind is ForKind.PARALLEL][-1] == "i2.0"


def test_a_block_of_rows_ends_at_the_diagonal() -> None:
    """Four blocks of 4 rows have 4, 8, 12 and 16 columns."""
    dag = collapse(weighted(Sizes(16, 16, 4, 8), "float32", "causal"))
    [sketch] = in_tasks(dag)
    row = {p.name: p.domain[0] for p in sketch.params} | {"Z.i0.b": 2, "Z.i0.r": 2}
    func, _ = concretise(lower(sketch.state), row)
    counts: Counter[str] = Counter()
    interpret(func, make_inputs(dag, 0, "normal"), counts=counts)
    assert counts["E"] == 4 * (4 + 8 + 12 + 16)
    assert counts["Y.acc"] == 8 * counts["E"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_heads_beside_each_other_are_one_nest(causal: bool, masked: bool) -> None:
    """As networks have them: heads are columns of one product, and of the result; only keys are copied."""
    rows, heads, dim = 13, 2, 5
    x = [te.placeholder((rows, 3 * heads * dim), name=f"X{n}") for n in range(3)]
    q, k, v = (
        te.compute((heads, rows, dim), lambda h, i, d, n=n: x[n][i, (n * heads + h) * dim + d], name=f"part{n}")
        for n in range(3)
    )
    mask = te.placeholder((1, 1, rows), name="mask") if masked else None
    mixed = scaled_dot_product(q, k, v, (heads,), 0.5, mask, causal)
    dag = collapse(ComputeDAG(te.compute((rows, heads, dim), lambda i, h, d: mixed[h, i, d], name="Y")))
    sketch = in_tasks(dag)[0]
    packed = sketch.state.stage("X1.pack")
    assert [a.extent.value for a in packed.op.axes] == [heads, rows, dim]
    assert {s.name for s in sketch.state.stages if s.at is None} == {"Y", "X1.pack"}
    data = make_inputs(dag, 0, "normal")
    for row in little_rows(sketch, 1, np.random.default_rng(1)):
        check_candidate(dag, sketch, row, data)

"""Sums weighted by a softmax of a product's results, in tasks of rows: attention."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from autosched.ir.interpreter.interpret import interpret
from autosched.ir.stmt import ForKind, Scope
from autosched.lower import concretise, lower
from autosched.target import parse_target
from autosched.te import ComputeDAG
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
    return [s for s in sketches(dag, HOST, threads) if s.name.endswith(":rows")]


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

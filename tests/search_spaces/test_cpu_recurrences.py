"""Recurrences on processors: each alternative computes the reference, along rows and along columns."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu import sketches
from search_spaces.space import sample
from tests.codegen.running import check_candidate
from tests.te.scans import CASES, case, smoothed, there_and_back

HOST = parse_target("cpu")
WITH_POINTS = [name for name in CASES if name not in ("no positions", "no lines")]


@pytest.mark.parametrize("name", WITH_POINTS)
def test_alternatives(name):
    dag = collapse(case(name))
    for sketch in sketches(dag, HOST, 2):
        for values in sample(sketch, 2, np.random.default_rng(3)) if sketch.params else [[]]:
            row = {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}
            check_candidate(dag, sketch, row, make_inputs(dag, 0, "normal"))


def test_rows_are_transposed_in_blocks_and_columns_are_not():
    names = [[s.name for s in sketches(ComputeDAG(smoothed((64, 96), axis)), HOST, 2)] for axis in (0, 1)]
    assert names == [["Y:columns"], ["Y:blocks", "Y:lines"]]


def test_a_recurrence_that_another_one_reads_is_computed_in_its_tasks():
    for axis, kind in ((0, "columns"), (1, "blocks")):
        found = {s.name: s for s in sketches(ComputeDAG(there_and_back((64, 96), axis)), HOST, 2)}
        assert found[f"B:{kind}/F@B"].state.stage("F").at is not None
        assert all(s.state.stage("F").at is None for name, s in found.items() if "F@B" not in name)


def test_a_single_line_is_left_as_it_is():
    assert [s.name for s in sketches(ComputeDAG(smoothed((100,))), HOST, 2)] == ["Y:lines"]

"""Recurrences on processors: each alternative computes the reference, along rows and along columns."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu import sketches
from search_spaces.space import sample
from tests.codegen.running import check_candidate
from tests.te.scans import CASES, case, doubled_input, smoothed, there_and_back

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


def _held(x, n):
    """The last position of each row, along the row."""
    return te.scan((3, n), lambda y, i, j: te.select(j < n - 1, y[i, j + 1], x[i, j]), axis=1, dtype="int32", name="S")


def weights_of_a_sum():
    x, k = te.placeholder((3, 4), "int32", "X"), te.reduce_axis(4, "k")
    w = te.placeholder((4, 5), "int32", "W")
    s = _held(x, 4)
    return te.compute((3, 5), lambda i, j: te.sum(te.select(k >= 1, s[i, k - 1], 0) * w[k, j], axis=k), name="Y")


def between_two_reductions():
    x, k, r = te.placeholder((3, 4, 2), "int32", "X"), te.reduce_axis(4, "k"), te.reduce_axis(2, "r")
    c = te.compute((3, 4), lambda i, j: te.sum(x[i, j, r], axis=r), name="C")
    s = _held(c, 4)
    t = te.compute((3, 4), lambda i, j: s[2 - i, j], name="T")
    return te.compute((3,), lambda i: te.sum(t[i, k], axis=k), name="Y")


def read_in_groups():
    x, k = te.placeholder((3, 4), "int32", "X"), te.reduce_axis(1, "k")
    s = _held(x, 4)
    e = te.compute((3, 1), lambda i, j: s[i, j], name="E")
    return te.compute((6, 1), lambda i, j: te.sum(e[i // 2 + k, j], axis=k), name="Y")


@pytest.mark.parametrize("make", [weights_of_a_sum, between_two_reductions, read_in_groups])
def test_reductions_around_a_recurrence(make):
    dag = collapse(ComputeDAG(make()))
    for sketch in sketches(dag, HOST, 2):
        (values,) = sample(sketch, 1, np.random.default_rng(4)) if sketch.params else [[]]
        row = {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}
        check_candidate(dag, sketch, row, make_inputs(dag, 0, "integers"))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "bool"])
def test_rows_of_lanes_in_registers_do_not_meet(dtype):
    """Three rows of 33 lanes, whose last vector is written as a whole."""
    x = te.placeholder((33, 1), dtype, "X")
    dag = ComputeDAG(
        te.scan((33, 3), lambda y, i, j: te.select(j >= 2, y[i, j - 2], x[i, 0]), axis=1, dtype=dtype, name="S")
    )
    blocks = next(s for s in sketches(collapse(dag), HOST, 1) if s.name == "S:blocks")
    row = {p.name: p.domain[-1] for p in blocks.params}
    check_candidate(collapse(dag), blocks, row, make_inputs(collapse(dag), 0, "integers"))


def test_a_fused_consumer_is_computed_in_the_tasks_of_the_recurrence():
    for axis, kind in ((0, "columns"), (1, "blocks")):
        found = {s.name: s for s in sketches(ComputeDAG(doubled_input((64, 96), axis)), HOST, 2)}
        assert found[f"Z:{kind}/Y@Z"].state.stage("Y").at is not None
        assert found[f"Y:{kind}"].state.stage("Z").at is None

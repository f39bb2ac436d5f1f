"""Convolutions by warpgroups: pixels that the copy engine gathers, in the simulator."""

from __future__ import annotations

import pytest

from autosched.codegen import build_source
from autosched.codegen.c.source import GpuSource
from autosched.te.dag import ComputeDAG
from tests.matrix_products import product
from tests.search_spaces.gpu_candidates import best_with_and_without, conv
from tests.search_spaces.test_gpu_warpgroups import MARK, SM_90, by_warpgroups, check, check_rows, drawn


@pytest.mark.parametrize(
    "dag",
    [
        conv("c1d", (2, 37, 64, 16, 3, 2, 1), "float16"),
        conv("c2d", (2, 7, 9, 32, 16, 3, 1, 1)),
        conv("c2d", (1, 11, 13, 32, 40, 3, 2, 1)),
        conv("c2d", (1, 20, 9, 64, 24, 1, 2, 0)),
        conv("c3d", (2, 2, 4, 5, 32, 16, 3, 1, 1)),
        conv("dil", (1, 9, 10, 32, 16, 3, 1, 2, 2), "float16"),
        conv("cbr", (2, 9, 9, 32, 32, 3, 1, 1)),
        conv("conv2d", (1, 9, 8, 32, 64, 3, 1, 1), layout="NCHW"),
        conv("c2d", (1, 9, 8, 64, 32, 3, 1, 1), "int8"),
        conv("conv2d", (3, 9, 7, 32, 64, 3, 2, 1), layout="NCHW"),
        conv("c2d", (2, 7, 9, 48, 16, 3, 1, 1)),
        conv("c2d", (1, 7, 9, 24, 16, 3, 2, 1), "float16"),
        conv("c2d", (1, 7, 9, 20, 16, 3, 1, 1)),
        conv("c2d", (1, 9, 9, 24, 32, 1, 2, 0)),
        conv("conv2d", (1, 9, 8, 24, 64, 3, 1, 1), layout="NCHW"),
        conv("c2d", (1, 7, 9, 48, 32, 3, 1, 1), "int8"),
        conv("c2d", (1, 8, 8, 32, 20, 3, 1, 1)),
        conv("c2d", (2, 7, 9, 17, 19, 3, 1, 1), "float16"),
        conv("grp", (1, 7, 8, 64, 42, 3, 1, 1, 1, 2)),
        conv("grp", (1, 7, 8, 64, 64, 3, 1, 1, 1, 2)),
        conv("grp", (2, 7, 5, 48, 48, 3, 2, 1, 1, 3), "float16"),
        conv("grp", (2, 9, 9, 96, 96, 1, 1, 0, 1, 3)),
        conv("conv2d", (2, 9, 8, 64, 128, 3, 1, 1), layout="NCHW", groups=2),
    ],
    ids=lambda dag: "-".join(map(str, (*dag.inputs[0].public_shape, "to", *dag.outputs[0].public_shape))),
)
def test_kinds(dag: ComputeDAG) -> None:
    check(dag)


@pytest.mark.parametrize(
    "dag", [conv("c2d", (1, 5, 5, 64, 16, 3, 1, 1)), product(64, 48, 320, "nt", "bfloat16")], ids=str
)
def test_parts_of_the_reduction(dag: ComputeDAG) -> None:
    """Equal ones, whose tiles end with them."""
    parts = [d for d in drawn(dag) if "split-k" in d.sketch.name]
    assert parts
    check_rows(dag, parts)


def test_the_map_is_of_pixels_and_copies_are_of_windows() -> None:
    one = drawn(conv("c2d", (2, 7, 9, 32, 16, 3, 1, 1)))[-1]
    source = build_source(one.func, next(iter(one.candidates(1))), SM_90)
    assert isinstance(source, GpuSource)
    assert ".im2col" in source.text
    assert "corners (-1, -1) and (-1, -1), steps (1, 1, 1, 1)" in source.text


def test_where_they_are_offered() -> None:
    assert by_warpgroups(conv("c2d", (1, 8, 8, 32, 16, 3, 1, 1)))
    assert by_warpgroups(conv("c2d", (1, 8, 8, 24, 16, 3, 1, 1)))[0] == "conv:wgmma.bfloat16-staged", "with no copy"
    assert not by_warpgroups(conv("c2d", (1, 8, 8, 3, 16, 3, 1, 1))), "most of an instruction's channels would be zero"
    assert by_warpgroups(conv("grp", (1, 8, 8, 32, 32, 3, 1, 1, 1, 2)))
    assert not by_warpgroups(conv("grp", (1, 8, 8, 48, 32, 3, 1, 1, 1, 2))), "a tile would reach into another group"
    assert "conv:wgmma.bfloat16-copied" in by_warpgroups(conv("c2d", (1, 8, 8, 32, 20, 3, 1, 1))), "of 40 bytes"
    assert not by_warpgroups(conv("c2d", (1, 8, 8, 32, 8, 3, 1, 1))), "nor is a row of them a panel's"
    assert not by_warpgroups(conv("dep", (1, 8, 8, 32, 3, 1, 1)))


def test_the_draft_prefers_them_where_there_is_much_to_do() -> None:
    by_warpgroups_s, others_s = best_with_and_without(conv("c2d", (32, 28, 28, 256, 256, 3, 1, 1)), SM_90, MARK)
    assert by_warpgroups_s < others_s

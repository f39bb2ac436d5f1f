"""Rows with the same canonical row are the same program: one nest of loops, which is all that code is made of."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.lower import concretise, lower
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model import CostModel
from search_spaces import space
from search_spaces.cpu import sketches

PAIRS = 1  # compared of each sketch
THREADS = 2
CASES = {
    "product": ("matmul", (1, 37, 53, 300)),
    "one row": ("matmul", (1, 1, 130, 65)),
    "convolution": ("c2d", (1, 7, 7, 5, 48, 3, 1, 1)),
    "depthwise": ("dep", (1, 11, 13, 20, 3, 2, 1)),
    "transposed": ("t2d", (1, 4, 4, 6, 8, 4, 2, 1)),
    "attention": ("tbs", (1, 17, 3, 16)),
    "rows": ("elementwise", (1, 7, 3000)),
}


def blur() -> te.ComputeDAG:
    """Two stages with a halo: they are computed in tiles and in strips as well."""
    a = te.placeholder((37, 203), name="A")
    across = te.compute((37, 200), lambda i, j: a[i, j] + a[i, j + 1] * a[i, j + 3], name="across")
    down = te.compute((35, 200), lambda i, j: across[i, j] + across[i + 1, j] * across[i + 2, j], name="down")
    return te.ComputeDAG((down,))


@pytest.mark.parametrize("case", CASES)
def test_canonical_rows_are_the_same_program(case: str) -> None:
    name, shape = CASES[case]
    settings = dict(zip(("M", "N", "K"), shape[1:], strict=False)) if name in ("matmul", "elementwise") else None
    compare((build(name, settings=settings) if settings else build(name, shape=shape))[0])


def test_canonical_tiles_of_pipelines_are_the_same_program() -> None:
    compare(blur())


def compare(graph: te.ComputeDAG) -> None:
    """Hold some rows of each sketch against their canonical rows."""
    target, rng, dag, compared = parse_target("llvm -mcpu=skylake-avx512"), np.random.default_rng(0), collapse(graph), 0
    for sketch in sketches(dag, target, THREADS):
        nest, names = lower(sketch.state), tuple(p.name for p in sketch.params)
        model = CostModel([nest], [names], target, THREADS)
        rows = model.legal_rows(0, space.enumerate_grid(sketch, 200, rng))
        found = space.canonical(sketch, rows)
        assert space.contains(sketch, found).all()
        assert model.legal(0, found).all()
        assert np.array_equal(space.canonical(sketch, found), found)
        for n in rng.permutation(np.flatnonzero((found != rows).any(axis=1)))[:PAIRS]:
            same = [dict(zip(names, map(int, row[n]), strict=True)) for row in (rows, found)]
            first, second = (concretise(nest, values)[0] for values in same)
            assert first == second, f"{sketch.name}: {same}"
            compared += 1
    assert compared

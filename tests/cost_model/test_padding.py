"""What padding costs in closed form, against counting."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.graph.operators import operators
from autosched.ir.closed_forms.program import Program
from autosched.lower import lower
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.statements import Statement, analyse
from search_spaces.cpu import sketches
from search_spaces.space import Sketch


def inlined(shape: tuple[int, ...], name: str = "c2d", kind: str = "/pad@inline") -> tuple[Sketch, Statement]:
    """The multiply-adds of a convolution whose padding is a condition of its reads."""
    dag = collapse(build(name, shape)[0])
    sketch = next(s for s in sketches(dag, parse_target("llvm -mcpu=haswell"), 1) if s.name.endswith(kind))
    updates = [s for s in analyse(lower(sketch.state)).statements if s.accumulators and s.updates]
    return sketch, updates[0]


def evaluated(sketch: Sketch, statement: Statement, **sizes: int) -> tuple[float, float]:
    """(share of the work that is left, share of the tiles with tests), the register tile's `sizes` by axis."""
    row = []
    for p in sketch.params:
        wanted = sizes.get(p.name.split(".")[-2], p.domain[0]) if p.name.endswith(".r") else p.domain[0]
        row.append(wanted)
    program = Program([statement.weight, statement.border], tuple(p.name for p in sketch.params))
    weight, border = program(np.array([row]))
    return float(np.ravel(weight)[0]), float(np.ravel(border)[0])


def counted(n: int, k: int, stride: int, pad: int) -> float:
    """The share of pairs of an output and a tap whose element is in the image."""
    outputs = (n + 2 * pad - k) // stride + 1
    return sum(0 <= i * stride + a - pad < n for i in range(outputs) for a in range(k)) / (outputs * k)


@pytest.mark.parametrize(("n", "k", "stride", "pad"), [(7, 3, 1, 1), (14, 3, 1, 1), (9, 5, 1, 2), (28, 7, 2, 3)])
def test_what_is_outside_is_not_counted_as_work(n, k, stride, pad):
    sketch, statement = inlined((1, n, n, 64, 64, k, stride, pad))
    exact = counted(n, k, stride, pad) ** 2
    for rows, columns in ((1, 1), (2, 1), (1, 4), (7, 2)):
        weight, border = evaluated(sketch, statement, oh=rows, ow=columns, co=8)
        assert weight == pytest.approx(exact, abs=0.02)
        assert border < 0.1  # the channels are many steps inside


@pytest.mark.parametrize(("n", "k", "stride", "pad"), [(14, 3, 1, 1), (7, 5, 1, 2), (15, 3, 2, 1)])
def test_rows_of_a_tile_beyond_the_output_are_outside(n, k, stride, pad):
    """Tiles of a blocked reduction that do not divide hang over the border, by more rows than the window is high."""
    sketch, statement = inlined((1, n, n, 512, 64, k, stride, pad), kind="blocked/pad@inline")
    outputs = (n + 2 * pad - k) // stride + 1
    for rows in (outputs - 1, outputs // 2 + 1):
        weight, _ = evaluated(sketch, statement, oh=rows, ow=1, co=8)
        tiled = rows * -(-outputs // rows)
        inside = sum(0 <= i * stride + a - pad < n for i in range(tiled) for a in range(k)) / (tiled * k)
        assert weight == pytest.approx(inside * counted(n, k, stride, pad), abs=0.04)


@pytest.mark.parametrize(("phases", "columns", "settled"), [(1, 1, 2), (1, 3, 2), (2, 1, 2), (2, 3, 1)])
def test_phases_and_steps_of_an_image_are_two_axes_of_one_sum(phases: int, columns: int, settled: int) -> None:
    """Rows of a transposed convolution are phases + steps of the image, of which few are an end's. Along `settled` of
    two axes a tile has outputs of one loop at most; on three columns it does not divide."""
    sketch, statement = inlined((1, 8, 8, 64, 32, 4, 2, 1), "t2d")
    inside = [0 <= q + r - t < 8 for q in range(8) for r in range(2) for t in range(2)]
    weight = evaluated(sketch, statement, qw=columns, rw=phases)[0]
    assert weight == pytest.approx((sum(inside) / len(inside)) ** settled)


@pytest.mark.parametrize("rows", [3, 5, 7])
def test_phases_of_rows_beyond_the_output_are_outside(rows: int) -> None:
    """Most of the last tile, but none of what is inside."""
    sketch, statement = inlined((1, 8, 8, 64, 32, 4, 2, 1), "t2d", "thin/pad@inline")
    tiled = rows * -(-8 // rows)
    inside = [[0 <= q + r - t < 8 for q in range(n) for r in range(2) for t in range(2)] for n in (tiled, 8)]
    exact = [sum(pairs) / len(pairs) for pairs in inside]
    assert evaluated(sketch, statement, qh=rows)[0] == pytest.approx(exact[0] * exact[1], abs=0.08)


def test_a_causal_mask_is_a_condition_on_the_distance_of_two_loops() -> None:
    """Scores of query i and key j are kept where j <= i: both loops are spatial, with steps 1 and -1."""
    shapes = {"q": (4, 5, 6), "k": (4, 7, 6), "v": (4, 7, 3)}
    tensors = [te.placeholder(shape, name=name) for name, shape in shapes.items()]
    result = operators()["attention"](*tensors, te.placeholder((5, 7), "bool", "mask"), causal=True)
    for sketch in sketches(collapse(te.ComputeDAG(result)), parse_target("llvm -mcpu=haswell"), 1)[:4]:
        for statement in analyse(lower(sketch.state)).statements:
            weight, _ = evaluated(sketch, statement)
            assert 0.0 < weight <= 1.0

"""Blocks started in bands of rows: each is computed once, and what runs at a time is what the cost model says."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.codegen.c.kernel import emit
from autosched.errors import ScheduleError
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import INDEX, Const
from autosched.ir.raster import block_of, side_by_side
from autosched.ir.simplify import Simplifier
from autosched.lower import concretise, lower
from autosched.schedule import Raster, initial_state, replay, steps_to_json
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from search_spaces.gpu import sketches
from tests.codegen.gpu import dialects, run
from tests.gpu_schedules import matmul, matmul_state

GRIDS = ((1, 1), (4, 3), (3, 7), (16, 5), (5, 16))


def started(across: int, down: int, group: int) -> list[tuple[int, int]]:
    """The blocks of a grid, in their order."""
    simplify = Simplifier()
    numbers = [Const(n, INDEX) for n in range(across * down)]
    places = [[simplify(x) for x in block_of(n, across, down, group)] for n in numbers]
    assert all(isinstance(x, Const) for place in places for x in place)
    return [(int(x.value), int(y.value)) for x, y in places]  # type: ignore[attr-defined]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_every_block_is_started_once(grid: tuple[int, int], group: int) -> None:
    across, down = grid
    order = started(across, down, group)
    assert sorted(order) == [(x, y) for x in range(across) for y in range(down)]
    bands = [y // group for _, y in order]
    assert bands == sorted(bands)
    if group == 1:
        assert order == [(x, y) for y in range(down) for x in range(across)]


@pytest.mark.parametrize(("across", "down", "group", "blocks"), [
    (8, 8, 1, 16), (8, 8, 4, 16), (8, 8, 2, 4), (16, 4, 4, 32), (4, 16, 2, 24), (8, 8, 8, 64), (8, 8, 1, 4),
])  # fmt: skip
def test_the_cost_model_counts_the_same_blocks(across: int, down: int, group: int, blocks: int) -> None:
    """Of whole columns of whole bands."""
    first = started(across, down, group)[:blocks]
    forms = side_by_side(*(Const(n, INDEX) for n in (blocks, across, down, group)))
    said = Program(list(forms), ["n"])(np.zeros((1, 1), np.int64))[:, 0]
    assert list(said) == [len({x for x, _ in first}), len({y for _, y in first})]


@dialects
@pytest.mark.parametrize("rows", [2, 3, 16])
def test_a_product_in_bands(dialect: str, rows: int) -> None:
    dag = matmul(41, 29, 7)
    state = matmul_state(dag).apply(Raster("C", "rows"))
    values = {"iv": 1, "it": 4, "is": 2, "jv": 1, "jt": 4, "js": 2, "k1": 2, "k2": 2, "va": 1, "vb": 1, "rows": rows}
    f, simplify = concretise(lower(state), values)
    source = emit(f, simplify, dialect)
    assert "int block = " in source.text
    inputs = make_inputs(dag, 0, "integers")
    (reference,) = evaluate(dag, inputs)
    assert within(reference, run(source, f, inputs)["C"]).all()


def test_one_row_at_a_time_is_the_order_of_the_device() -> None:
    state = matmul_state(matmul(41, 29, 7)).apply(Raster("C", 1))
    values = {"iv": 1, "it": 4, "is": 2, "jv": 1, "jt": 4, "js": 2, "k1": 2, "k2": 2, "va": 1, "vb": 1}
    assert "block = " not in emit(*concretise(lower(state), values), "cuda").text


def test_records_and_refusals() -> None:
    dag = matmul(8, 8, 8)
    state = matmul_state(dag).apply(Raster("C", 4))
    text = steps_to_json(state, dict.fromkeys(("iv", "it", "is", "jv", "jt", "js", "k1", "k2", "va", "vb"), 1))
    assert '["Raster","C",4]' in text
    assert replay(dag, text).stage("C").raster == 4
    with pytest.raises(ScheduleError, match=r"raster\(C\): bind two of its loops to blockIdx.x and blockIdx.y first"):
        initial_state(dag).apply(Raster("C", 4))


def test_products_larger_than_the_shared_cache_choose_an_order() -> None:
    for size, chosen in ((4096, True), (256, False)):
        (first, *_) = sketches(build("matmul", (size, size, size))[0], parse_target("cuda"))
        assert any(p.kind == "raster" for p in first.params) == chosen
